/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conversation with a keeper, or with a file worker, on the loop: ask, and take the messages that
 * come, one callback each. A call that is paused reads nothing more, so that the other side waits
 * and nothing piles up here.
 */
#ifndef CAY_DAEMON_CALL_H
#define CAY_DAEMON_CALL_H

#include "daemon/daemon.h"
#include "wire/chan.h"

struct call;

struct call_ops {
    /* A message; borrowed for the length of the callback, which may pause or end the call. */
    void (*message)(struct call *call, const struct msg *msg);
    /* The other side is gone, or did not answer in time; `err` says which. The call is over. */
    void (*lost)(struct call *call, const struct cay_error *err);
    /* There is room again after call_send said "full". May be NULL. */
    void (*room)(struct call *call);
};

struct call {
    struct daemon *d;
    const struct call_ops *ops;
    void *data; /* the owner's */
    struct watch watch;
    struct chan chan;
    struct cay_buf out;    /* encoded, not yet sent: one message at most */
    struct cay_error lost; /* why it could not be made; told by a turn of the loop */
    struct timer timer;    /* patience, the next look, the next try to connect, or to tell `lost` */
    uint64_t patience_ms, retry_until_us;
    uint64_t heard_us;   /* when the keeper last said or took something */
    struct probe *probe; /* it is being asked whether it lives */
    unsigned looks;      /* after a worker that is silent */
    size_t read_max;
    char id[CAY_MAX_ID];
    bool open, paused, worker;
    bool alive;   /* the worker says so now and then (FS_ALIVE) */
    bool hung_up; /* it did, and why is not known yet */
    bool *ended;  /* set while a callback is at work: to be told if it ends the call */
};

/*
 * Sends `request` to the keeper of `id`. Never fails at once: whatever is wrong comes as `lost`,
 * from the loop. patience_ms: how long the first answer may take; 0: for ever, but a keeper that is
 * silent for long is asked whether it lives, and is lost if it does not answer that.
 */
void call_start(struct call *call, struct daemon *d, const char *id, const struct msg *request,
                uint64_t patience_ms, const struct call_ops *ops, void *data);
/* The same on a connected socket (a file channel), which is taken over. `minor`: the version of the
 * worker, which is lost if it should say that it lives and does not. */
void call_on(struct call *call, struct daemon *d, const char *id, int sock, uint8_t minor,
             const struct msg *request, const struct call_ops *ops, void *data);
/* Says something to a keeper and does not listen to its answer. */
void call_post(struct daemon *d, const char *id, const struct msg *msg);
/* One more message. 0: sent or on its way; then room() is called when the next may be sent, if
 * `call_full`. -1: too large. */
int call_send(struct call *call, const struct msg *msg);
bool call_full(const struct call *call);
void call_pause(struct call *call);
/* Messages that are here already are delivered before it returns. */
void call_resume(struct call *call);
/* Reads at most this much at once: for the kind of call that there may be very many of. */
void call_small(struct call *call, size_t bytes);
/* Takes the descriptor that came with the message. */
int call_take_fd(struct call *call);
/* Ends it; the keeper notices. Safe on a zeroed or ended one, and inside its own callbacks. */
void call_end(struct call *call);

#endif
