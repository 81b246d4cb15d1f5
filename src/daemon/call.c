/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/call.h"

#include "base/err.h"
#include "base/sock.h"
#include "base/util.h"
#include "daemon/roster.h"
#include "wire/version.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* A sandbox that is being made listens soon: look again, for as long as that may take. */
#define RETRY_US 5000
#define RETRY_FOR_MS 10000
/* One whose keeper died is swept by a worker: how it ended is known then. */
#define EXPLAIN_FOR_MS 3000

static void update(struct call *call)
{
    if (!call->open)
        return;
    uint32_t events = (call->paused ? 0 : EPOLLIN) | (call->out.size ? EPOLLOUT : 0);
    /* A hangup is told whether it is asked for or not: a call that is paused must not hear it. */
    if (events)
        loop_watch(&call->d->loop, &call->watch, call->chan.sock, events);
    else
        loop_forget(&call->d->loop, &call->watch);
}

/* Ends the call and tells its owner, who may free it: nothing follows. */
static void lose(struct call *call, const struct cay_error *why)
{
    struct cay_error err = *why;
    const struct call_ops *ops = call->ops;
    call_end(call);
    ops->lost(call, &err);
}

static void probe_free(struct probe *probe);

static void close_call(struct call *call)
{
    probe_free(call->probe);
    call->probe = NULL;
    loop_forget(&call->d->loop, &call->watch);
    timer_clear(&call->d->loop, &call->timer);
    buf_done(&call->out);
    if (call->open)
        chan_done(&call->chan);
    call->chan.sock = -1;
    call->open = false;
}

/* Why the keeper hung up; while that cannot be told yet, later. */
static void explain(struct call *call)
{
    sandbox_explain(call->d->looker, call->id, &call->lost);
    if (call->lost.code != CAY_E_UNAVAILABLE || cay_now_us() >= call->retry_until_us) {
        lose(call, &call->lost);
        return;
    }
    roster_suspect(call->d->roster, call->id);
    timer_set(&call->d->loop, &call->timer, cay_now_us() + RETRY_US);
}

static void hung_up(struct call *call)
{
    if (call->worker) {
        cay_fail(&call->lost, CAY_E_GONE, "the sandbox '%s' ended meanwhile", call->id);
        lose(call, &call->lost);
        return;
    }
    close_call(call);
    call->hung_up = true;
    call->retry_until_us = cay_after_ms(EXPLAIN_FOR_MS);
    explain(call);
}

static void heard(struct call *call)
{
    call->heard_us = cay_now_us();
    call->looks = 0;
}

static void flush(struct call *call)
{
    while (call->out.size) {
        ssize_t n = sock_send(call->chan.sock, call->out.data, call->out.size, NULL, 0);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            /* What it said before it hung up is still to be read. */
            call->out.size = 0;
            break;
        }
        buf_eat(&call->out, (size_t)n);
        heard(call);
    }
    if (call->out.size == 0 && call->out.capacity > 4096)
        buf_done(&call->out);
    update(call);
}

/* Calls back with a message, or (NULL) to say that there is room. The owner may end the call in its
 * callback, and even free what the call is part of: then false. */
static bool tell(struct call *call, const struct msg *msg)
{
    bool ended = false;
    call->ended = &ended; /* cppcheck-suppress autoVariables ; taken back before we return */
    if (msg)
        call->ops->message(call, msg);
    else if (call->ops->room)
        call->ops->room(call);
    if (!ended)
        call->ended = NULL;
    return !ended;
}

static void deliver(struct call *call)
{
    struct msg msg;
    struct cay_error err;
    while (call->open && !call->paused) {
        int popped = chan_pop(&call->chan, &msg, &err);
        if (popped == 0)
            return;
        if (popped < 0) {
            if (!call->worker)
                (void)sandbox_misheard(call->id, &err);
            lose(call, &err);
            return;
        }
        heard(call);
        if (call->patience_ms)
            timer_clear(&call->d->loop, &call->timer);
        bool goes_on = tell(call, &msg);
        msg_done(&msg);
        if (!goes_on)
            return;
    }
}

static void on_ready(struct watch *watch, uint32_t events)
{
    struct call *call = container_of(watch, struct call, watch);
    if (events & EPOLLOUT) {
        flush(call);
        if (!call->out.size && !tell(call, NULL))
            return;
    }
    if (call->paused || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    ssize_t n = chan_fill(&call->chan);
    if (n == 0 || (n < 0 && errno != EAGAIN))
        hung_up(call);
    else
        deliver(call);
}

/* ---- is it there? ---------------------------------------------------------------------------- */

struct probe {
    struct call call;
    struct call *of;
    uint64_t asked_us;
};

static void look_later(struct call *call)
{
    uint64_t from = call->paused ? cay_now_us() : call->heard_us;
    timer_set(&call->d->loop, &call->timer, from + SANDBOX_CHECK_MS * UINT64_C(1000));
}

/* The same for a worker: it is in the sandbox, so nobody else can say how it is. */
static void look_worker(struct call *call)
{
    uint64_t every = SANDBOX_WORKER_LOOK_MS * UINT64_C(1000), now = cay_now_us();
    bool silent = !call->paused && now - call->heard_us >= every;
    if (silent && sandbox_worker_look(call->d->looker, call->id, &call->looks, &call->lost) < 0)
        lose(call, &call->lost);
    else
        timer_set(&call->d->loop, &call->timer,
                  silent || call->paused ? now + every : call->heard_us + every);
}

static void probe_free(struct probe *probe)
{
    if (!probe)
        return;
    call_end(&probe->call);
    free(probe);
}

static void probe_over(struct probe *probe, const struct cay_error *err)
{
    struct call *call = probe->of;
    struct cay_error why = err ? *err : (struct cay_error){0};
    bool heard = call->heard_us > probe->asked_us;
    call->probe = NULL;
    probe_free(probe);
    /* Everything else, and what came meanwhile, is told by the call itself. */
    if (why.code == CAY_E_UNAVAILABLE && !heard) {
        lose(call, &why);
        return;
    }
    call->heard_us = cay_now_us();
    look_later(call);
}

static void probe_message(struct call *call, const struct msg *msg)
{
    (void)msg;
    probe_over(call->data, NULL);
}

static void probe_lost(struct call *call, const struct cay_error *err)
{
    probe_over(call->data, err);
}

static const struct call_ops probe_ops = {.message = probe_message, .lost = probe_lost};

/* A process that prints nothing, or does not read, says nothing about its keeper. */
static void look(struct call *call)
{
    bool silent = cay_now_us() - call->heard_us >= SANDBOX_CHECK_MS * UINT64_C(1000);
    if (silent && !call->paused)
        call->probe = calloc(1, sizeof(*call->probe));
    if (!call->probe) {
        look_later(call);
        return;
    }
    call->probe->of = call;
    call->probe->asked_us = cay_now_us();
    call_start(&call->probe->call, call->d, call->id, &(struct msg){.type = OP_INFO},
               SANDBOX_ANSWER_MS, &probe_ops, call->probe);
}

static void on_timer(struct timer *timer);

static void prepare(struct call *call, struct daemon *d, const char *id, const struct call_ops *ops,
                    void *data)
{
    *call = (struct call){.d = d, .ops = ops, .data = data};
    call->chan.sock = -1;
    call->watch = (struct watch){.fd = -1, .ready = on_ready};
    call->timer.fire = on_timer;
    call->out = CAY_BUF(CAY_MAX_FRAME + 4096);
    snprintf(call->id, sizeof(call->id), "%s", id);
}

static void begin(struct call *call, int sock)
{
    chan_init(&call->chan, sock);
    call->chan.read_max = call->read_max;
    call->open = true;
    call->heard_us = cay_now_us();
    flush(call);
    if (call->patience_ms)
        timer_set(&call->d->loop, &call->timer, cay_after_ms(call->patience_ms));
    else if (call->alive)
        look_worker(call);
    else if (!call->worker)
        look_later(call);
}

static void dial(struct call *call)
{
    int sock;
    if (sandbox_dial(call->d->looker, call->id, &sock, &call->lost) == 0) {
        call->lost.code = CAY_OK;
        begin(call, sock);
        return;
    }
    bool again = call->lost.code == CAY_E_UNAVAILABLE && cay_now_us() < call->retry_until_us;
    if (again)
        roster_suspect(call->d->roster, call->id);
    timer_set(&call->d->loop, &call->timer, again ? cay_now_us() + RETRY_US : 0);
}

static void on_timer(struct timer *timer)
{
    struct call *call = container_of(timer, struct call, timer);
    if (call->open && call->worker) {
        look_worker(call);
    } else if (call->open && !call->patience_ms) {
        look(call);
    } else if (call->open) {
        cay_fail(&call->lost, CAY_E_UNAVAILABLE,
                 "the keeper of sandbox '%s' does not answer; removing it by force ends it",
                 call->id);
        call->lost.sys_errno = ETIMEDOUT; /* by which clients know it from a daemon that ends */
        lose(call, &call->lost);
    } else if (call->hung_up) {
        explain(call);
    } else if (call->lost.code == CAY_E_UNAVAILABLE && cay_now_us() < call->retry_until_us) {
        dial(call);
    } else {
        lose(call, &call->lost);
    }
}

void call_start(struct call *call, struct daemon *d, const char *id, const struct msg *request,
                uint64_t patience_ms, const struct call_ops *ops, void *data)
{
    prepare(call, d, id, ops, data);
    call->patience_ms = patience_ms;
    call->retry_until_us = cay_after_ms(RETRY_FOR_MS);
    if (msg_encode(&call->out, request, 0) < 0) {
        cay_fail(&call->lost, CAY_E_TOO_LARGE, "the request is larger than %u bytes",
                 CAY_MAX_FRAME);
        timer_set(&d->loop, &call->timer, 0);
        return;
    }
    dial(call);
}

void call_on(struct call *call, struct daemon *d, const char *id, int sock, uint8_t minor,
             const struct msg *request, const struct call_ops *ops, void *data)
{
    prepare(call, d, id, ops, data);
    call->worker = true;
    call->alive = minor >= WIRE_MINOR_ALIVE;
    fcntl(sock, F_SETFL, O_RDWR | O_NONBLOCK);
    if (msg_encode(&call->out, request, 0) < 0) {
        close(sock);
        cay_fail(&call->lost, CAY_E_TOO_LARGE, "the request is larger than %u bytes",
                 CAY_MAX_FRAME);
        timer_set(&d->loop, &call->timer, 0);
        return;
    }
    begin(call, sock);
}

void call_post(struct daemon *d, const char *id, const struct msg *msg)
{
    autobuf struct cay_buf out = CAY_BUF(4096);
    int sock;
    if (msg_encode(&out, msg, 0) < 0 || sandbox_dial(d->looker, id, &sock, NULL) < 0)
        return;
    sock_send(sock, out.data, out.size, NULL, 0);
    close(sock);
}

int call_send(struct call *call, const struct msg *msg)
{
    if (!call->open)
        return 0; /* `lost` was or will be told */
    size_t before = call->out.size;
    if (msg_encode(&call->out, msg, 0) < 0) {
        call->out.failed = false;
        call->out.size = before;
        return -1;
    }
    flush(call);
    return 0;
}

bool call_full(const struct call *call)
{
    return call->out.size > 0;
}

void call_pause(struct call *call)
{
    call->paused = true;
    update(call);
}

void call_resume(struct call *call)
{
    call->paused = false;
    heard(call); /* it was not listened to */
    update(call);
    deliver(call);
}

void call_small(struct call *call, size_t bytes)
{
    call->read_max = call->chan.read_max = bytes;
}

int call_take_fd(struct call *call)
{
    return chan_take_fd(&call->chan);
}

void call_end(struct call *call)
{
    if (!call->d)
        return;
    if (call->ended)
        *call->ended = true;
    call->ended = NULL;
    close_call(call);
}
