/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one error object: caller-allocated, fixed size, never freed. `cay_fail*` fill it and return
 * -1, so that `return cay_fail(err, ...)` is the way out of every function that can fail.
 */
#ifndef CAY_BASE_ERR_H
#define CAY_BASE_ERR_H

#include <cay/cay.h>
#include <stdarg.h>

/* A failure that we found ourselves. */
int cay_fail(struct cay_error *err, enum cay_code code, const char *fmt, ...) CAY_PRINTF(3, 4);
/* A failure of a system call: the code comes from `eno`, ": strerror" is appended. */
int cay_fail_errno(struct cay_error *err, int eno, const char *fmt, ...) CAY_PRINTF(3, 4);
/* Puts context in front of what is there: "cannot create box1: " + text. */
int cay_fail_context(struct cay_error *err, const char *fmt, ...) CAY_PRINTF(2, 3);
/* Takes over an error that came over a wire; an unknown code becomes INTERNAL. */
int cay_fail_copy(struct cay_error *err, unsigned code, int eno, const char *text);

enum cay_code cay_code_of_errno(int eno);
/* By JSON name; CAY_E_INTERNAL when unknown. */
enum cay_code cay_code_of_name(const char *name);

#endif
