/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer's side, shared by journal.c (append, rotate, sync) and recover.c (what audit_open
 * finds).
 */
#ifndef CAY_AUDIT_JOURNAL_H
#define CAY_AUDIT_JOURNAL_H

#include "audit/store.h"

#include <pthread.h>

/* Something about the log itself that the log has yet to tell. It waits here while the disk is
 * full. */
struct audit_pending {
    bool wanted;
    enum audit_action action;
    const char *reason;
    char file[AUDIT_NAME]; /* where bytes went; empty: nowhere */
    uint64_t bytes;        /* that were no lines */
    uint64_t from, to;     /* entries that are lost or pruned; 0: none */
};

struct audit {
    int dir; /* locked for as long as we write */
    struct audit_options options;
    char boot[40];
    struct cay_buf line;

    uint64_t size;      /* of the current file; whatever is beyond is not ours */
    uint64_t before_ms; /* when the last line before us was written */
    uint64_t first;     /* seq of its first line; 0: it is empty */
    uint64_t rotate_at; /* size at which to rotate next */
    bool torn;          /* a failed write may have left bytes beyond `size` */
    uint64_t reserved;  /* up to here the disk has blocks for the current file, beyond its end */
    bool low;           /* and there are no more: what is left is for removals */
    struct audit_pending recovered, pruned;

    pthread_mutex_t lock; /* of what follows: audit_sync runs in another thread */
    int fd;               /* O_APPEND */
    int retired;          /* a rotated file that was not synced yet, or -1 */
    uint64_t seq;         /* of the last line */
    char hash[AUDIT_HASH];
    bool renamed; /* the directory is to be synced, too */

    pthread_mutex_t sync_lock; /* one audit_sync at a time; and: */
    uint64_t synced;           /* what head says; UINT64_MAX: unknown */
};

/* Finds where the chain ends, mends what a crash left there and fills audit->fd and what belongs to
 * it. What the log must tell about it waits in audit->recovered. */
int audit_recover(struct audit *audit, struct cay_error *err);

/* Opens the current file for appending; made if missing. */
int audit_open_current(int dir, struct cay_error *err);

#endif
