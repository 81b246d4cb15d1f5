/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/chan.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "wire/version.h"

#include <poll.h>
#include <string.h>

/* What one read takes at most: a data frame with its header and fields. */
#define READ_SIZE (CAY_MAX_DATA + 512u)

void chan_init(struct chan *chan, int sock)
{
    *chan = (struct chan){.sock = sock, .in = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER + READ_SIZE)};
}

void chan_done(struct chan *chan)
{
    for (size_t i = 0; i < chan->n_fds; i++)
        close(chan->fds[i]);
    if (chan->sock >= 0)
        close(chan->sock);
    buf_done(&chan->in);
    *chan = (struct chan){.sock = -1};
}

int chan_await(const struct chan *chan, int timeout_ms, struct cay_error *err)
{
    struct pollfd p = {.fd = chan->sock, .events = POLLIN};
    uint64_t end = timeout_ms > 0 ? cay_after_ms((uint64_t)timeout_ms) : 0;
    for (;;) {
        int n = poll(&p, 1, timeout_ms);
        if (n >= 0)
            return n > 0;
        if (errno != EINTR)
            return cay_fail_errno(err, errno, "cannot wait for output");
        if (timeout_ms > 0) {
            uint64_t now = cay_now_us();
            timeout_ms = now >= end ? 0 : (int)((end - now) / 1000) + 1;
        }
    }
}

static void drop_eaten(struct chan *chan)
{
    buf_eat(&chan->in, chan->eaten);
    chan->eaten = 0;
}

ssize_t chan_fill(struct chan *chan)
{
    drop_eaten(chan);
    /* Small messages are the rule: start small, grow while a large frame is coming in. */
    size_t want = chan->in.size < 2048 ? 4096 : chan->read_max ? chan->read_max : READ_SIZE;
    char *room = buf_room(&chan->in, want);
    if (!room) {
        errno = ENOMEM;
        return -1;
    }
    ssize_t n = sock_recv(chan->sock, room, want, chan->fds, &chan->n_fds, FRAME_MAX_FDS);
    if (n > 0)
        chan->in.size += (size_t)n;
    return n;
}

int chan_pop(struct chan *chan, struct msg *out, struct cay_error *err)
{
    struct frame frame = {.major = WIRE_MAJOR};
    /* Nothing is moved here: many small frames in one read must not cost their square. */
    int64_t n = chan->in.size == chan->eaten
                    ? 0
                    : frame_parse(chan->in.data + chan->eaten, chan->in.size - chan->eaten, &frame);
    if (n < 0)
        return cay_fail(err, CAY_E_INVALID, "not a cay frame");
    if (frame.major != WIRE_MAJOR && !msg_is_common(frame.type))
        return cay_fail(err, CAY_E_VERSION,
                        "the other side speaks protocol %u.%u, this is " WIRE_WHO, frame.major,
                        frame.minor);
    if (n == 0)
        return 0;
    if (frame.fds > chan->n_fds)
        return cay_fail(err, CAY_E_INVALID, "a frame came without its descriptors");
    if (msg_decode(&frame, out, err) < 0)
        return -1;
    chan->minor = frame.minor;
    chan->eaten += (size_t)n;
    return 1;
}

int chan_take_fd(struct chan *chan)
{
    if (chan->n_fds == 0)
        return -1;
    int fd = chan->fds[0];
    memmove(chan->fds, chan->fds + 1, --chan->n_fds * sizeof(int));
    return fd;
}

int chan_recv(struct chan *chan, struct msg *out, struct cay_error *err)
{
    for (;;) {
        int popped = chan_pop(chan, out, err);
        if (popped != 0)
            return popped;
        ssize_t n = chan_fill(chan);
        if (n == 0)
            return 0;
        if (n < 0)
            return cay_fail_errno(err, errno, "cannot read from the peer");
    }
}

/* Reads until `size` bytes are there. 1, 0 at the end of file, -1. */
static int fill_exact(struct chan *chan, size_t size, struct cay_error *err)
{
    while (chan->in.size < size) {
        size_t want = size - chan->in.size;
        char *room = size > CAY_MAX_FRAME + FRAME_HEADER ? NULL : buf_room(&chan->in, want);
        if (!room)
            return cay_fail(err, CAY_E_INVALID, "not a cay frame");
        ssize_t n = sock_recv(chan->sock, room, want, chan->fds, &chan->n_fds, FRAME_MAX_FDS);
        if (n <= 0)
            return n < 0 ? cay_fail_errno(err, errno, "cannot read from the peer") : 0;
        chan->in.size += (size_t)n;
    }
    return 1;
}

int chan_recv_exact(struct chan *chan, struct msg *out, struct cay_error *err)
{
    drop_eaten(chan);
    int got = fill_exact(chan, FRAME_HEADER, err);
    if (got > 0)
        got = fill_exact(chan, frame_size(chan->in.data), err);
    return got <= 0 ? got : chan_pop(chan, out, err);
}

int chan_send(int sock, const struct msg *msg, const int *fds, size_t n_fds, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER);
    if (msg_encode(&buf, msg, (uint8_t)n_fds) < 0)
        return cay_fail(err, CAY_E_TOO_LARGE, "the message is larger than %u bytes", CAY_MAX_FRAME);
    if (sock_send_all(sock, buf.data, buf.size, fds, n_fds) < 0)
        return cay_fail_errno(err, errno, "cannot send to the peer");
    return 0;
}
