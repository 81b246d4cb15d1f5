/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's inside: a handle, how it reaches its keeper, and what is done about dead keepers.
 * For the files of src/sandbox, and for the daemon, which cannot wait for an answer as the calls of
 * <cay/cay.h> do.
 */
#ifndef CAY_SANDBOX_SANDBOX_H
#define CAY_SANDBOX_SANDBOX_H

#include "sandbox/home.h"
#include "sandbox/spec.h"
#include "sandbox/status.h"
#include "wire/chan.h"
#include "wire/follow.h"

#include <stdatomic.h>

struct cay_sandbox {
    struct cay *cay; /* borrowed: the handle must not outlive it */
    char id[CAY_MAX_ID];
    bool ephemeral;
    bool owner;         /* this handle created it: an ephemeral one ends with it */
    atomic_bool ending; /* its last command ended, and it with that */
    atomic_bool closed; /* the handle was given back; streams may still use it */
    atomic_int refs;
    /* The creator's own connection, which keeps an ephemeral sandbox alive; -1 when it is lent to a
     * stream or was never there. Using it saves the first exec a connect. */
    atomic_int creator;
    atomic_int parked; /* the same, after a stream was left before its end: good for nothing else */
};

struct cay_sandbox *sandbox_new(struct cay *cay, const char *id, struct cay_error *err);
void sandbox_unref(struct cay_sandbox *sandbox);

/*
 * Connects to the keeper without waiting for anything: a connected, non-blocking socket. NOT_FOUND,
 * GONE (with how it ended), or UNAVAILABLE: it is being made, or busy; try again in a moment.
 */
int sandbox_dial(struct cay *cay, const char *id, int *sock, struct cay_error *err);
/* Why the keeper hung up: always -1, with GONE and how the sandbox ended, NOT_FOUND, or, if it
 * lives, UNAVAILABLE. */
int sandbox_explain(struct cay *cay, const char *id, struct cay_error *err);
/* After chan_pop or chan_recv failed on a keeper's socket: -1 if that is because it is of another
 * version, and `err` then says so; 0: because of something else. */
int sandbox_misheard(const char *id, struct cay_error *err);
/* Connects to the keeper, and waits for one that is being made. NOT_FOUND, GONE (with how it
 * ended), or a channel to be given to chan_done. */
int sandbox_connect(struct cay_sandbox *sandbox, struct chan *out, struct cay_error *err);
/* After a request could not be sent: a keeper that hangs up in the middle of one has said why,
 * which is put into `err` (not NULL). Always -1. */
int sandbox_unsent(struct chan *chan, struct cay_error *err);
/* One request, one answer; ERROR answers become errors. Free the answer with msg_done, then
 * chan_done. */
int sandbox_call(struct cay_sandbox *sandbox, const struct msg *request, struct chan *chan,
                 struct msg *answer, struct cay_error *err);
/* The keeper has no place for one more caller. A limit of its own is the only one that is told
 * without an errno: a shortage of this process, or of its host, has one. */
static inline bool sandbox_is_crowded(const struct cay_error *why)
{
    return why->code == CAY_E_LIMIT && !why->sys_errno;
}
/* A request whose answer is just OK. */
int sandbox_order(struct cay_sandbox *sandbox, const struct msg *request, struct cay_error *err);

/* How long a caller waits for a keeper that makes a sandbox, or starts a command. */
#define SANDBOX_PATIENCE_MS 60000
/* And for one that is asked something else. */
#define SANDBOX_ANSWER_MS 10000
/* A keeper that says nothing, or takes nothing, for this long is asked whether it lives. */
#define SANDBOX_CHECK_MS (SANDBOX_PATIENCE_MS - SANDBOX_ANSWER_MS)
/* Until the socket has something to read, a hangup among it. False: not in time. */
bool sandbox_await(int sock, uint64_t ms);
/* Asks it. -1 with CAY_E_UNAVAILABLE: it did not answer, and `sock` (-1: none) is silent still. */
int sandbox_check(struct cay *cay, const char *id, int sock, struct cay_error *err);
/* Sends a message in the parts that the socket takes. `part` sends one, and waits until it can as
 * its peer deserves: how much it sent, or -1. */
int sandbox_send_parts(const struct msg *msg,
                       ssize_t (*part)(void *peer, const char *bytes, size_t size,
                                       struct cay_error *err),
                       void *peer, struct cay_error *err);
/* Sends to the keeper of `id`. What it does not take may be waited for as long as it lives: a
 * process that does not read holds back whoever writes to it. */
int sandbox_send(struct cay *cay, const char *id, int sock, const struct msg *msg,
                 struct cay_error *err);

/* files.c: a worker that speaks WIRE_MINOR_ALIVE and was not heard for SANDBOX_WORKER_LOOK_MS is
 * looked after. `looks` counts how often, since it was heard. -1 with UNAVAILABLE: it was silent
 * for CAY_SILENT_MS, in which its sandbox was not paused. Does not wait for anybody. */
#define SANDBOX_WORKER_LOOK_MS (CAY_SILENT_MS / SANDBOX_WORKER_LOOKS)
#define SANDBOX_WORKER_LOOKS 6u
int sandbox_worker_look(struct cay *cay, const char *id, unsigned *looks, struct cay_error *err);

/* kill.c: the last resort for a keeper that does not answer: it dies, and its sandbox with it. */
int sandbox_kill_keeper(struct cay *cay, const char *id, struct cay_error *err);
/* The same for the creator, who holds the lock as well and sweeps afterwards. */
void sandbox_kill_maker(struct cay *cay, const char *id);

/* The payload of the record that says how a sandbox is, from wherever it is now. */
int sandbox_status(struct cay *cay, const char *id, struct cay_buf *out, struct cay_error *err);
int sandbox_spec(struct cay *cay, const char *id, struct spec *out, struct cay_error *err);

/* exec.c: the parts of cay_start that cay_create_start needs. */
int exec_check(const struct cay_exec *exec, struct cay_error *err);
struct msg exec_request(const struct cay_exec *exec);
/* The EXEC was sent on the creator's connection already: takes its answer, and lends the
 * connection. */
int exec_adopt(struct cay_sandbox *sandbox, struct cay_proc **out, struct cay_error *err);

/* launch.c: starts a keeper, which waits for the spec on `creator`; if none comes, because the id
 * is taken, say, it goes. */
int launch_keeper(const char *id, int *creator, struct cay_error *err);

/* create.c: the parts of it that prepare.c needs. */
struct config;
void create_random(char out[13]); /* hex digits */
/* The run directory with its lock. 1: ours; 0: there is one already; -1. */
int create_claim(struct cay *cay, const char *id, int *status, struct cay_error *err);
/* The spec as it counts, with all defaults. The image is borrowed from the config, which is to be
 * freed in any case; `dir` is that of image_check, to be closed. */
int create_check(struct cay *cay, const struct cay_spec *given, struct config *config,
                 struct spec *out, const char **image, int *dir, struct cay_error *err);

/* prepare.c: if it is ready and can become this, the connection to its keeper, and its name; else
 * -1. It is left to prepare_free in any case. */
struct prepared;
int prepare_take(struct cay *cay, struct prepared *prepared, const struct cay_spec *spec,
                 const char *image, int image_dir, char instance[CAY_MAX_ID]);

enum life {
    LIFE_UNKNOWN = -1, /* it could not be looked at; nothing may be concluded from that */
    LIFE_NONE,         /* no such sandbox */
    LIFE_KEPT,         /* a keeper (or a creator at work) holds it */
    LIFE_ENDED,        /* only its record is left */
};

/*
 * Looks whether the sandbox is kept. One that was kept by a keeper that is dead now is swept on the
 * way: its cgroups, ids and run directory go, its record says lost. `err` is set when it is
 * UNKNOWN.
 */
enum life sandbox_life(struct cay *cay, const char *id, struct cay_error *err);
/* Its keeper holds the lock of its status, as far as anybody can tell: false only if that is
 * sure. */
bool sandbox_kept(const struct cay *cay, const char *id);
/* Removes what is left of a sandbox whose lock is held by the caller. -1: not all of it could be
 * removed, and the run directory stays for the next who looks. */
int sandbox_sweep(struct cay *cay, const char *id, int status_fd);

/*
 * What a sandbox left whose run directory is gone, which is not how they end: its cgroups, by name,
 * with whatever runs in them. The id is claimed meanwhile (*claim; -1: there was nothing to do),
 * and is to be given back with sandbox_unclaim when the record is removed.
 */
int sandbox_sweep_groups(struct cay *cay, const char *id, int *claim, struct cay_error *err);
void sandbox_unclaim(struct cay *cay, const char *id, int *claim);
/* The same of prepared sandboxes that nobody had: no record tells of them, only their cgroups do.
 */
void sandbox_sweep_prepared(struct cay *cay);

#endif
