/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream of a process as a socket: a thread that reads its output from the daemon, posts its
 * input, and speaks to the caller at the other end of a socket pair as a keeper would (wire/msg.h):
 * MSG_OUTPUT..., then one of MSG_EXIT, MSG_OK (nothing more now) and MSG_ERROR; OP_STDIN comes in.
 * So the caller has one descriptor that poll() understands, for both directions.
 *
 * A connection that is lost is made again where it was, for STREAM_PATIENCE_MS: a daemon that is
 * restarted or upgraded goes unnoticed. What counts as a new loss, with a time of its own, is one
 * after output, or of a connection that stood for a while: so a command may be silent for as long
 * as it likes, and a server that ends each stream at once is an error when the time is over. A
 * keeper that hangs is one as soon as the daemon says so. Used by exec.c.
 */
#ifndef CAY_REMOTE_STREAM_H
#define CAY_REMOTE_STREAM_H

#include "remote/http.h"

#define STREAM_PATIENCE_MS 15000

struct stream;

struct stream_of {
    pid_t pid;     /* 0: the log of the sandbox */
    uint64_t from; /* offset, or CAY_FROM_KEPT */
    bool follow;
    bool sole;         /* nobody else gives it input */
    uint64_t stall_ms; /* see struct cay_exec */
};

/* `sock` is the caller's end, and the caller's to close. */
int stream_open(struct http *http, const char *id, const struct stream_of *of, struct stream **out,
                int *sock, struct cay_error *err);
/* After the caller's end was closed: waits a moment for input that is on its way. */
void stream_close(struct stream *stream);

#endif
