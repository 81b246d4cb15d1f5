/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients send, into structs, by the same option tables that serve the command line. Nothing
 * is ignored: an unknown member or parameter is an error that names it. What the struct points to
 * lives as long as the request.
 */
#ifndef CAY_DAEMON_INPUT_H
#define CAY_DAEMON_INPUT_H

#include "daemon/request.h"

/*
 * JSON by type of the option: FLAG a boolean; STR, ID, PROFILE, MODE a string; COUNT a whole
 * number; SIZE a whole number or a string such as "512M"; DURATION seconds or a string such as
 * "15m"; CPUS and SIGNAL a number or a string; STRV an array of strings; ENV and LABELS an object
 * of strings; MOUNTS an array of {"source","target","read_only"}. null is as good as absent.
 */
int input_json(struct request *r, const struct opt *table, size_t n, void *object,
               struct cay_error *err);
/* The same, for other products' protocols: what the table does not have is ignored. */
int input_json_loose(struct request *r, const struct opt *table, size_t n, void *object,
                     struct cay_error *err);
/*
 * The three steps of that, for a body so large that a worker reads it. The second needs no request;
 * `zeros`: strings may have zero bytes. What it gives is to be freed with json_decref.
 */
struct json_t;
int input_is_json(struct request *r, struct cay_error *err);
int input_parse(const char *text, size_t size, bool zeros, struct json_t **out,
                struct cay_error *err);
int input_apply(struct request *r, struct json_t *body, const struct opt *table, size_t n,
                void *object, bool loose, struct cay_error *err);
int input_query(struct request *r, const struct opt *table, size_t n, void *object,
                struct cay_error *err);
/* For handlers that take no parameters at all. */
int input_no_query(struct request *r, struct cay_error *err);

#endif
