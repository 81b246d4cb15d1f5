/* SPDX-License-Identifier: Apache-2.0 */
/* A command as requests describe it. */
#ifndef CAY_DAEMON_EXEC_BODY_H
#define CAY_DAEMON_EXEC_BODY_H

#include "daemon/input.h"
#include "wire/msg.h"

struct exec_body {
    const char *const *argv, *const *env;
    const char *shell, *cwd, *user, *key;
    uint64_t timeout_ms, rows, cols;
    bool has_timeout, kill_on_disconnect;
    /* exec */
    const char *input, *input_base64, *encoding;
    /* processes */
    bool want_stdin, pty;
    bool hold;  /* it waits a while for the first who follows it */
    bool known; /* nothing is started: only a process that has its key already may be had */
};

/* The fields of POST exec, or of POST processes; checked. */
int exec_body(struct request *r, bool background, struct exec_body *out, struct cay_error *err);
/* A place among the commands that a tenant may run at once, from the permission to the end of the
 * process. Zeroed: its tenant has no such limit. */
struct exec_slot {
    struct daemon *d;
    struct tenant *tenant;
    struct vigil *vigil; /* what watches it in the background */
    char id[CAY_MAX_ID];
    bool full; /* there is none left: only a process that has its key already may be had */
};

/* How long a command with kill_on_disconnect lives without a client, if it is not known that its
 * client is gone: it may come back with its key, or this daemon. */
#define EXEC_LEASE_MS 10000

/* Quota of running commands of the request's tenant, then the audit log; neither has to do with a
 * process that is only asked for. */
int exec_permit(struct request *r, const struct exec_body *body, bool background,
                struct exec_slot *slot, struct cay_error *err);
/* The request to the keeper; borrows. */
struct msg exec_message(const struct exec_body *body, const struct exec_slot *slot);
/* The keeper has answered. A process that was known before has a place already. */
void exec_slot_started(struct exec_slot *slot, const struct msg *started);
/* The keeper's refusal as the client is to see it: a full slot's is that of the quota. */
void exec_slot_explain(struct request *r, const struct exec_slot *slot, struct cay_error *err);
void exec_slot_free(struct exec_slot *slot);
/* It is given back when this process ends; nobody need wait for that. */
void exec_slot_watch(struct exec_slot *slot, pid_t pid);
/* The keeper does not answer, or has refused something: the place is given back now if that means
 * that the process is over or (no pid) did not start, else when it ends. */
void exec_slot_lost(struct exec_slot *slot, pid_t pid, const struct cay_error *err);
/* The place of a process that runs already, from now to its end. */
int exec_slot_adopt(struct daemon *d, struct tenant *tenant, const char *id, pid_t pid);

#endif
