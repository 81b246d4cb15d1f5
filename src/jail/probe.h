/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this host can do for sandboxes, and what it costs where it cannot: `cay doctor`. Nothing
 * here is on the way of a create, which simply tries; and nothing changes the host: whatever could
 * leave a trace is tried in a child with its own namespaces.
 */
#ifndef CAY_JAIL_PROBE_H
#define CAY_JAIL_PROBE_H

#include <cay/cay.h>

#define PROBE_MAX 32

struct probe_result {
    const char *name; /* static */
    int level;        /* 0 fine, 1 works with a loss, 2 does not work */
    char finding[160];
    char advice[200]; /* "" when there is nothing to do */
};

/* Runs every check, in a fixed order; returns how many results were written. */
size_t probe_all(const char *state_dir, struct probe_result *out, size_t max);

/* ---- between probe.c and probe_try.c --------------------------------------------------------- */

struct probe_host {
    const char *state_dir;
    bool root;
    int major, minor; /* of the kernel */
};

typedef void probe_check(const struct probe_host *host, struct probe_result *out);

void probe_say(struct probe_result *out, int level, const char *advice, const char *fmt, ...)
    CAY_PRINTF(4, 5);
/* A number from a file like those of /proc/sys; -1 if there is none. */
long long probe_number(const char *path);

/* Each of these runs in a child of its own. */
probe_check probe_user_namespace, probe_overlay, probe_tmpfs_xattr, probe_idmap, probe_seccomp;

/* probe_budget.c: what ten sandboxes could take from all of the host. */
probe_check probe_uncounted, probe_files, probe_terminals, probe_processes, probe_filters;

#endif
