/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel: one socket, its unread bytes and the descriptors that came with them, cut into
 * messages. The cutting (chan_pop) does no I/O and is what the fuzz target drives; chan_fill,
 * chan_await, chan_recv and chan_send are the only places where frames meet a socket.
 */
#ifndef CAY_WIRE_CHAN_H
#define CAY_WIRE_CHAN_H

#include "wire/msg.h"

struct chan {
    int sock; /* owned */
    struct cay_buf in;
    size_t eaten; /* bytes of the messages handed out so far; dropped by the next read */
    int fds[FRAME_MAX_FDS];
    size_t n_fds;
    uint8_t minor;   /* version of the peer, from its last frame */
    size_t read_max; /* bytes of one read; 0: a whole pipe. For who has very many channels */
};

void chan_init(struct chan *chan, int sock);
void chan_done(struct chan *chan); /* closes the socket and unclaimed descriptors */

/* Reads once. >0: bytes came; 0: the peer hung up; -1 with errno (EAGAIN on
 * a non-blocking socket). */
ssize_t chan_fill(struct chan *chan);
/* Until there is something to fill it with, a hangup among it; timeout as of poll(). 1; 0: time is
 * up; -1. */
int chan_await(const struct chan *chan, int timeout_ms, struct cay_error *err);
/*
 * The next whole message among the bytes read so far. 1: `out` (borrowing from the channel until
 * the next pop or fill; free with msg_done); 0: not yet; -1: drop the peer,
 * and say why if it asked something: it talks nonsense (INVALID), is of another version (VERSION),
 * or wants something that this version does not know (UNSUPPORTED).
 */
int chan_pop(struct chan *chan, struct msg *out, struct cay_error *err);
/* Takes the oldest descriptor that came, -1 if there is none. Call once for each that was
 * announced. */
int chan_take_fd(struct chan *chan);

/* Blocking: the next message. 1, or 0 when the peer hung up, or -1. */
int chan_recv(struct chan *chan, struct msg *out, struct cay_error *err);
/* The same, but nothing beyond that message is read from the socket: it may go to another reader.
 */
int chan_recv_exact(struct chan *chan, struct msg *out, struct cay_error *err);
/* Blocking (waits also on a non-blocking socket). Descriptors are borrowed. */
int chan_send(int sock, const struct msg *msg, const int *fds, size_t n_fds, struct cay_error *err);

#endif
