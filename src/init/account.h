/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts: who a command or a file worker runs as, by the sandbox's own /etc/passwd and
 * /etc/group. Both files are the sandbox's to write: they are opened without blocking, read up to
 * CAY_MAX_PASSWD and parsed without NSS. Runs in the forked child, never in init itself.
 */
#ifndef CAY_INIT_ACCOUNT_H
#define CAY_INIT_ACCOUNT_H

#include "base/limits.h"

#include <cay/cay.h>

struct account {
    uid_t uid;
    gid_t gid;
    gid_t groups[CAY_MAX_GROUPS]; /* supplementary */
    size_t n_groups;
    char name[64];           /* "" for an id that no line names */
    char home[CAY_MAX_PATH]; /* "" likewise */
};

/* `user`: name | uid, optionally ":" group | gid; NULL or "": uid 0. */
int account_find(const char *user, struct account *out, struct cay_error *err);
/* Gives up what this process is and becomes the account, for good. */
int account_become(const struct account *account, struct cay_error *err);

#endif
