/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's file channel: the keeper starts a worker in the sandbox, and the handler talks to
 * that. What the worker says is data of an untrusted process: it is passed on or counted, and only
 * its type decides what happens.
 *
 * A handler's object begins with a struct channel and is the request's `op`. It holds one piece of
 * an answer at most: while the client has not taken it, the worker is not listened to.
 */
#ifndef CAY_DAEMON_CHANNEL_H
#define CAY_DAEMON_CHANNEL_H

#include "daemon/call.h"
#include "daemon/request.h"

struct channel;

struct channel_ops {
    /* DATA, ENTRY, MATCH, CHANGE; borrowed. May be NULL where none is expected. */
    void (*take)(struct channel *ch, const struct msg *msg);
    /* OK: err is NULL, and another request may be sent. Otherwise the channel is closed. */
    void (*done)(struct channel *ch, const struct cay_error *err);
    /* Opened, or room again after call_full. May be NULL. */
    void (*room)(struct channel *ch);
};

struct channel {
    struct request *r;
    const struct channel_ops *ops;
    struct call keeper, worker;
    struct msg first;
    bool open;

    /* a streamed answer */
    struct cay_buf out; /* handlers append; not yet taken by the client */
    size_t taken;       /* of `out` */
    int end;            /* what `read` says when `out` is empty; 0: more will come */
    bool paused;
};

/*
 * Opens it as `user` (NULL: the sandbox's) and sends the first request, whose strings live as long
 * as the HTTP request. Whatever fails comes as `done`, from the loop.
 */
void channel_open(struct channel *ch, struct request *r, const char *user, const struct msg *first,
                  const struct channel_ops *ops);
/* Hangs up; the worker undoes what it has not finished. */
void channel_close(struct channel *ch);
/* The same, and frees what the channel holds. */
void channel_done(struct channel *ch);
/* The next request, or a part of one; true if it could be sent. */
bool channel_send(struct channel *ch, const struct msg *msg);

/* Begins a streamed answer out of `out`. `size` as in reply_stream. */
void channel_stream(struct channel *ch, unsigned status, const char *type, uint64_t size);
/* After something was appended to `out`: lets the client have it. */
void channel_flow(struct channel *ch);
/* Hangs up; once `out` is taken, the answer ends as STREAM_END or STREAM_BROKEN say. */
void channel_stop(struct channel *ch, int end);

#endif
