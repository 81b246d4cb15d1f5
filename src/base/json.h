/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON out: members appended to a buffer. What cay.h tells of sandboxes, processes and files has
 * one form here, which the command line and the daemon share.
 */
#ifndef CAY_BASE_JSON_H
#define CAY_BASE_JSON_H

#include "base/buf.h"

/* Members: `"name":value`, with a comma before them unless they follow '{' or '['. */
void json_comma(struct cay_buf *out);
void json_key(struct cay_buf *out, const char *name);
void json_str(struct cay_buf *out, const char *name, const char *value); /* NULL: null */
void json_num(struct cay_buf *out, const char *name, uint64_t value);
void json_bool(struct cay_buf *out, const char *name, bool value);
/* {"K":"V",...} from a list of "K=V". */
void json_pairs(struct cay_buf *out, const char *name, char *const *pairs);
/* The same JSON text with line breaks and indentation. */
void json_pretty(struct cay_buf *out, const char *json, size_t size);

/* The members of an object, without its braces. */
void json_info(struct cay_buf *out, const struct cay_info *info);
void json_exit(struct cay_buf *out, const struct cay_exit *e);
/* A whole object: bytes of a stream that are not kept any more. */
/* `why`: CAY_OK if that is not known. */
void json_gap(struct cay_buf *out, uint64_t from, uint64_t to, enum cay_code why);
void json_proc(struct cay_buf *out, const struct cay_proc_info *p);
void json_stats(struct cay_buf *out, const char *id, const struct cay_stats *s);
/* All but name and target, which are the caller's to show. */
void json_stat(struct cay_buf *out, const struct cay_stat *st);
const char *json_type_name(char type);   /* of struct cay_stat */
const char *json_change_name(char kind); /* of struct cay_change */

/* The fields of struct cay_stats, all uint64_t; a NULL name ends them. */
struct json_stat_field {
    const char *name;
    size_t offset;
};
extern const struct json_stat_field json_stats_fields[];

#endif
