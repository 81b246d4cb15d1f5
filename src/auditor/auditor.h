/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay-audit: reads the audit log, for people and for scripts. `cay audit` runs it. It needs no
 * daemon and writes nothing but the index. One `struct auditor` holds the options; main.c makes it.
 */
#ifndef CAY_AUDITOR_AUDITOR_H
#define CAY_AUDITOR_AUDITOR_H

#include "audit/audit.h"

/* As the cay program's. */
#define AUDITOR_EXIT_ERROR 125
#define AUDITOR_EXIT_BROKEN 1

struct auditor {
    struct cay_error err;
    /* options */
    const char *dir, *since, *until, *id, *tenant, *label, *action;
    uint64_t limit;
    bool follow, json, verify, help;

    struct cay_buf out; /* not yet written */
    bool headed;        /* the table's first line is out */
    bool failed;        /* standard output takes no more */
    uint64_t seq;       /* of the last entry shown */
};

/* One entry, as an audit_each: a row of the table, or with --json the line itself. */
int auditor_show(const char *line, size_t size, void *data);
/* Writes what is buffered. 0, or -1 with err filled. */
int auditor_flush(struct auditor *auditor);
/* --verify: 0, AUDITOR_EXIT_BROKEN, or -1 with err filled. */
int auditor_verify(struct auditor *auditor);

#endif
