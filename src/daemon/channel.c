/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/channel.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <string.h>

/* Starting a worker: a fork in the sandbox, which may be out of processor time but not for so long.
 * The work itself may take as long as the client waits. */
#define OPEN_MS 30000
/* What may wait in `out`: a piece, and all that one frame may become when it is written as JSON and
 * its names are as long as names can be. */
#define MAX_OUT (2u << 20)

static void fail(struct channel *ch, const struct cay_error *err)
{
    struct cay_error copy = *err; /* it may be the call's own */
    channel_close(ch);
    ch->ops->done(ch, &copy);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct channel *ch = call->data;
    struct cay_error err;
    if (msg->type == MSG_OK) {
        ch->ops->done(ch, NULL);
    } else if (msg->type == MSG_ERROR) {
        msg_to_error(msg, &err);
        fail(ch, &err);
    } else if (msg->type != FS_ALIVE && ch->ops->take) {
        ch->ops->take(ch, msg);
    }
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    fail(call->data, err);
}

static void on_room(struct call *call)
{
    struct channel *ch = call->data;
    if (ch->ops->room)
        ch->ops->room(ch);
}

static const struct call_ops worker_ops = {on_message, on_lost, on_room};

static void on_opened(struct call *call, const struct msg *msg)
{
    struct channel *ch = call->data;
    struct cay_error err;
    int sock = msg->type == MSG_OK ? call_take_fd(call) : -1;
    uint8_t minor = call->chan.minor; /* keeper and worker are of one build */
    if (msg->type == MSG_ERROR)
        msg_to_error(msg, &err);
    else if (sock < 0)
        cay_fail(&err, CAY_E_INTERNAL, "the keeper gave no file channel");
    call_end(call);
    if (sock < 0) {
        fail(ch, &err);
        return;
    }
    ch->open = true;
    call_on(&ch->worker, ch->r->d, ch->r->id, sock, minor, &ch->first, &worker_ops, ch);
    if (ch->ops->room && !call_full(&ch->worker))
        ch->ops->room(ch);
}

static const struct call_ops keeper_ops = {on_opened, on_lost, NULL};

void channel_open(struct channel *ch, struct request *r, const char *user, const struct msg *first,
                  const struct channel_ops *ops)
{
    ch->r = r;
    ch->ops = ops;
    ch->first = *first;
    ch->out = CAY_BUF(MAX_OUT);
    call_start(&ch->keeper, r->d, r->id, &(struct msg){.type = OP_FS, .user = user, .cwd = "/"},
               OPEN_MS, &keeper_ops, ch);
}

void channel_close(struct channel *ch)
{
    ch->open = false;
    call_end(&ch->keeper);
    call_end(&ch->worker);
}

void channel_done(struct channel *ch)
{
    channel_close(ch);
    buf_done(&ch->out);
}

bool channel_send(struct channel *ch, const struct msg *msg)
{
    return ch->open && !call_full(&ch->worker) && call_send(&ch->worker, msg) == 0;
}

/* ---- streamed answers ------------------------------------------------------------------------ */

static ssize_t on_read(struct request *r, char *buffer, size_t size)
{
    struct channel *ch = r->op;
    if (ch->taken == ch->out.size) {
        ch->taken = ch->out.size = 0;
        if (ch->paused && ch->open) {
            ch->paused = false;
            call_resume(&ch->worker);
        }
    }
    size_t n = CAY_MIN(size, ch->out.size - ch->taken);
    if (n == 0)
        return ch->end ? ch->end : STREAM_WAIT;
    memcpy(buffer, ch->out.data + ch->taken, n);
    ch->taken += n;
    if (ch->taken >= CAY_MAX_DATA) {
        buf_eat(&ch->out, ch->taken);
        ch->taken = 0;
    }
    return (ssize_t)n;
}

static void on_end(struct request *r, const struct cay_error *why)
{
    struct channel *ch = r->op;
    if (!ch->end)
        fail(ch, why);
}

void channel_stream(struct channel *ch, unsigned status, const char *type, uint64_t size)
{
    ch->r->read = on_read;
    ch->r->end = on_end;
    reply_stream(ch->r, status, type, size);
}

void channel_flow(struct channel *ch)
{
    if (buf_failed(&ch->out)) {
        channel_stop(ch, STREAM_BROKEN);
        return;
    }
    if (ch->out.size - ch->taken >= CAY_MAX_DATA && ch->open && !ch->paused) {
        ch->paused = true;
        call_pause(&ch->worker);
    }
    request_wake(ch->r);
}

void channel_stop(struct channel *ch, int end)
{
    channel_close(ch);
    ch->end = end;
    request_wake(ch->r);
}
