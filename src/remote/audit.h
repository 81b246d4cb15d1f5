/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log of a daemon: the one thing that libcay has no call for. Used by `cay audit`. */
#ifndef CAY_REMOTE_AUDIT_H
#define CAY_REMOTE_AUDIT_H

#include <cay/cay.h>

/* What is NULL or 0 does not choose. */
struct remote_audit {
    const char *since, *until, *sandbox, *tenant, *label, *action;
    uint64_t limit; /* the last ones; at most REMOTE_AUDIT_MAX_LAST */
};

#define REMOTE_AUDIT_MAX_LAST 100000

/* Everything is borrowed until the callback returns; "" where there is nothing. */
struct remote_audit_line {
    const char *json; /* the whole line */
    size_t size;
    const char *time, *who, *tenant, *action, *sandbox, *result;
    const char *summary; /* what was done, in a few words */
};

/* In the order of the log; a non-zero return of `each` ends it. */
int remote_audit(struct cay *cay, const struct remote_audit *query,
                 int (*each)(const struct remote_audit_line *line, void *data), void *data,
                 struct cay_error *err);

#endif
