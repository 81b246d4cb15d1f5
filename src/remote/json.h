/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON of the daemon, read with care: a member that is missing or of another type reads as empty,
 * every string is cut to the size of where it goes. And JSON for it: what is not UTF-8 cannot be
 * sent, and is an error rather than something else.
 */
#ifndef CAY_REMOTE_JSON_H
#define CAY_REMOTE_JSON_H

#include <cay/cay.h>
#include <jansson.h>

/* NULL when it is no JSON; json_decref. */
json_t *json_parse(const char *bytes, size_t size);

const char *json_text(const json_t *object, const char *name); /* "" when it is not there */
uint64_t json_u64(const json_t *object, const char *name);
bool json_flag(const json_t *object, const char *name);
/* Thousandths of what is there: milliseconds with decimals become microseconds. */
uint64_t json_milli(const json_t *object, const char *name);
/* A name or path: NAME_base64 where it is not UTF-8, else NAME. NULL: not there. Owned. */
char *json_bytes(const json_t *object, const char *name);
/* Takes over {"code","message","detail":{"errno"}}; returns -1. */
int json_to_error(const json_t *error, struct cay_error *err);
/* Whether it tells how a process ended: else it would end with 0. */
bool json_is_exit(const json_t *object);
void json_to_exit(const json_t *object, struct cay_exit *out);

/* Members of a request. NULL, and the zero of numbers, add nothing. 0 or -1. */
int json_set_str(json_t *object, const char *name, const char *value, struct cay_error *err);
int json_set_num(json_t *object, const char *name, uint64_t value, struct cay_error *err);
int json_set_ms(json_t *object, const char *name, uint64_t ms, struct cay_error *err);
int json_set_list(json_t *object, const char *name, const char *const *list, struct cay_error *err);
/* {"K":"V"} of "K=V". */
int json_set_pairs(json_t *object, const char *name, const char *const *list,
                   struct cay_error *err);

#endif
