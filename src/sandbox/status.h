/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status of a sandbox: what its keeper says of it while it lives, and what is left of it
 * afterwards. Any version may read what any other wrote: a field never changes its meaning, none
 * has WIRE_MUST, and what is not known is skipped.
 */
#ifndef CAY_SANDBOX_STATUS_H
#define CAY_SANDBOX_STATUS_H

#include "base/buf.h"
#include "sandbox/home.h"

struct status {
    uint64_t state; /* enum cay_state */
    const char *reason, *image, *boot_id;
    uint64_t created_ms, ended_ms;
    uint64_t ttl_deadline_us; /* on the clock of cay_now_us; 0: none */
    uint64_t keeper_pid, init_pid, processes;
    uint64_t id_range;  /* 1 + the number of its range of user ids; 0: none */
    uint64_t ephemeral; /* leaves no record */
    const char *const *labels;
    /* The name that it was prepared under, which its cgroup and its ids have; NULL: its own. */
    const char *instance;
    const char *version; /* of the cay that keeps it; NULL in what is encoded: of this one */
    uint64_t log_end;    /* of one that has ended: where its output ended; 0: none, or not known */
};

int status_encode(const struct status *status, struct cay_buf *out);
/* Borrows from `bytes`; free the lists with status_done. */
int status_decode(const char *bytes, size_t size, struct status *out, struct cay_error *err);
void status_done(struct status *status);
#define autostatus __attribute__((cleanup(status_done)))

/* Of a record of another major version: what all have in common, as far as it can be read. `kept`:
 * its keeper lives. Borrows as status_decode does. */
struct status status_foreign(const char *bytes, size_t size, bool kept, char reason[160]);

/* Owned by the caller: cay_info_done. */
int status_to_info(const struct status *status, const char *id, struct cay_info *out,
                   struct cay_error *err);

/* To look at the lock and, where the disk lets anybody write, to take it. -1 with errno. */
int status_open(int dir, const char *name);
/* Takes the lock that says "a keeper lives"; it belongs to the open file and is inherited.
 * 0 or -1. */
int status_lock(int fd);
bool status_locked(int fd);

#endif
