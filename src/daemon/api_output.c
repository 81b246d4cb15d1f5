/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes print, as it comes, from any offset: GET output, GET logs, and the answer of POST
 * processes?follow=true. One message of the keeper is held at a time, where it was received; it is
 * put into the client's form piece by piece, when the client has room. The next message is asked
 * for when this one is gone: a slow client fills its own socket and holds back the process that it
 * follows, and nothing else.
 */
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/log.h"
#include "daemon/output.h"
#include "wire/frames.h"

#include <stdio.h>
#include <string.h>

/* Bytes of output in one event: in the worst case six times as many go out. */
#define EVENT_BYTES 4096u
#define MAX_PENDING (8 * EVENT_BYTES + 4096)
/* A thousand clients may follow: each costs this much. */
#define PIECE 8192u
/* A keeper that has a reason to refuse does it at once; one that says nothing has nothing yet. */
#define SILENCE_US 20000

enum form {
    FORM_NDJSON,
    FORM_FRAMES,
    FORM_BYTES,
};

struct output {
    struct call call;
    struct request *r;         /* NULL: its client went away before the command had started */
    struct exec_slot slot;     /* of a command that is starting */
    struct cay_sandbox *ended; /* logs of one that has ended: read from its record */
    struct cay_proc *saved;
    enum form form;
    struct timer silence;
    bool replied, over, logs;
    bool broken;   /* it cannot be whole, and its form has no way to say so */
    uint64_t next; /* offset of the byte that comes next; CAY_FROM_KEPT: whichever comes first */
    /* the message that is being sent: borrowed from the call, which is paused */
    const char *data;
    size_t size;
    uint64_t offset;
    int stream;
    struct cay_buf pending; /* in the client's form */
    size_t sent;
};

/* An event that is not output: JSON in every form that has room for it. */
static void put_event(struct output *o, enum frames_kind kind, const struct cay_buf *json)
{
    if (o->form == FORM_FRAMES) {
        frames_put(&o->pending, kind, o->offset, json->data, json->size);
    } else if (o->form == FORM_NDJSON) {
        buf_add(&o->pending, json->data, json->size);
        buf_str(&o->pending, "\n");
    }
}

/* The next piece of the message; how much of it. */
static size_t put_output(struct output *o)
{
    size_t n = CAY_MIN(o->size, (size_t)EVENT_BYTES);
    struct cay_buf *out = &o->pending;
    if (o->form == FORM_BYTES) {
        buf_add(out, o->data, n);
        return n;
    }
    if (o->form == FORM_FRAMES) {
        frames_put(out, o->stream == 2 ? FRAMES_STDERR : FRAMES_STDOUT, o->offset, o->data, n);
        return n;
    }
    size_t valid = utf8_valid(o->data, n);
    /* A character across the end of a piece goes with the next one; one that is cut by the end of
     * the message, or no character at all, goes as bytes. */
    bool text = valid == n || (valid > 0 && n - valid < 4 && n < o->size);
    if (text)
        n = valid;
    buf_str(out, "{");
    json_str(out, "type", "output");
    json_str(out, "stream", o->stream == 2 ? "stderr" : "stdout");
    json_num(out, "offset", o->offset);
    json_key(out, text ? "data" : "data_base64");
    if (text) {
        buf_json_n(out, o->data, n);
    } else {
        buf_str(out, "\"");
        base64_encode(out, o->data, n);
        buf_str(out, "\"");
    }
    buf_str(out, "}\n");
    return n;
}

/* The end, or the reason for it. */
static void put_end(struct output *o)
{
    autobuf struct cay_buf json = CAY_BUF(256);
    buf_str(&json, "{");
    json_str(&json, "type", "end");
    json_num(&json, "offset", o->offset);
    buf_str(&json, "}");
    put_event(o, FRAMES_END, &json);
    o->over = true;
}

static void fail(struct output *o, const struct cay_error *err);

/* What is missing before `offset` is told before that comes. */
static void put_gap(struct output *o, uint64_t offset, uint64_t why)
{
    autobuf struct cay_buf json = CAY_BUF(256);
    if (o->next == CAY_FROM_KEPT || offset <= o->next)
        return;
    json_gap(&json, o->next, offset, (enum cay_code)why);
    o->offset = o->next;
    put_event(o, FRAMES_GAP, &json);
    o->broken = o->form == FORM_BYTES;
    o->next = o->offset = offset;
}

/* The log of a sandbox that has ended is a file: no waiting. */
static void next_saved(struct output *o)
{
    struct cay_event event;
    struct cay_error err;
    int got = cay_proc_next(o->saved, 0, &event, &err);
    if (got < 0) {
        fail(o, &err);
        return;
    }
    if (got == 0) {
        put_end(o);
        return;
    }
    if (event.kind == CAY_EVENT_GAP) {
        put_gap(o, event.offset + event.size, event.why);
        return;
    }
    o->next = event.offset + event.size;
    o->data = event.data;
    o->size = event.size;
    o->offset = event.offset;
    o->stream = event.stream;
}

static int open_saved(struct output *o, struct cay_error *err)
{
    struct request *r = o->r;
    if (cay_get(r->d->cay, r->id, &o->ended, err) < 0)
        return -1;
    return cay_attach(o->ended, 0, o->next, false, &o->saved, err);
}

/* ---- towards the client ---------------------------------------------------------------------- */

static ssize_t output_read(struct request *r, char *buffer, size_t size)
{
    struct output *o = r->op;
    for (;;) {
        size_t n = buf_hand_out(&o->pending, &o->sent, buffer, size);
        if (n > 0)
            return (ssize_t)n;
        if (o->size > 0) {
            n = put_output(o);
            o->data += n;
            o->size -= n;
            o->offset += n;
            continue;
        }
        if (o->broken)
            return STREAM_BROKEN;
        if (o->over)
            return STREAM_END;
        if (o->saved) {
            next_saved(o);
            continue;
        }
        call_resume(&o->call);
        if (o->size == 0 && o->pending.size == 0 && !o->over)
            return STREAM_WAIT;
    }
}

/* What is held of the keeper's message is asked for again, from where this stream ends. */
static void output_end(struct request *r, const struct cay_error *why)
{
    struct output *o = r->op;
    o->size = 0;
    if (!o->over)
        fail(o, why);
}

static void begin(struct output *o)
{
    static const char *const types[] = {"application/x-ndjson", FRAMES_TYPE,
                                        "application/octet-stream"};
    if (o->replied)
        return;
    o->replied = true;
    timer_clear(&o->r->d->loop, &o->silence);
    o->r->read = output_read;
    o->r->end = output_end;
    o->r->piece = PIECE;
    reply_stream(o->r, MHD_HTTP_OK, types[o->form], UINT64_MAX);
}

static void on_silence(struct timer *timer)
{
    begin(container_of(timer, struct output, silence));
}

/* ---- from the keeper ------------------------------------------------------------------------- */

static void finish(struct output *o, enum frames_kind kind, const struct cay_buf *json)
{
    put_event(o, kind, json);
    o->over = true;
    call_end(&o->call);
    begin(o);
    request_wake(o->r);
}

static void fail(struct output *o, const struct cay_error *err)
{
    autobuf struct cay_buf json = CAY_BUF(4096);
    if (!o->replied) {
        struct cay_error why = *err;
        timer_clear(&o->r->d->loop, &o->silence);
        call_end(&o->call);
        exec_slot_explain(o->r, &o->slot, &why);
        reply_error(o->r, &why);
        o->over = true;
        return;
    }
    buf_str(&json, "{");
    json_str(&json, "type", "error");
    json_key(&json, "error");
    error_json(&json, o->r, err);
    buf_str(&json, "}");
    o->broken = o->form == FORM_BYTES;
    finish(o, FRAMES_ERROR, &json);
}

static void put_exit(struct output *o, const struct msg *msg)
{
    autobuf struct cay_buf json = CAY_BUF(4096);
    const struct cay_exit e = msg_exit(msg);
    put_gap(o, msg->offset, msg->code);
    o->offset = msg->offset;
    buf_str(&json, "{");
    json_str(&json, "type", "exit");
    json_num(&json, "offset", msg->offset);
    json_key(&json, "exit");
    buf_str(&json, "{");
    json_exit(&json, &e);
    buf_str(&json, "}}");
    finish(o, FRAMES_EXIT, &json);
}

static void put_started(struct output *o, const struct msg *msg)
{
    o->r->pid = (pid_t)msg->pid;
    exec_slot_started(&o->slot, msg);
    if (o->form == FORM_NDJSON) {
        buf_str(&o->pending, "{");
        json_str(&o->pending, "type", "started");
        json_num(&o->pending, "pid", msg->pid);
        buf_str(&o->pending, "}\n");
    }
    char pid[24];
    snprintf(pid, sizeof(pid), "%llu", (unsigned long long)msg->pid);
    begin(o);
    reply_header(o->r, "X-Cay-Pid", pid); /* the other forms have no event for it */
    request_wake(o->r);
}

static void output_free(struct output *o)
{
    exec_slot_free(&o->slot);
    call_end(&o->call);
    cay_proc_free(o->saved);
    cay_sandbox_free(o->ended);
    buf_done(&o->pending);
    free(o);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct output *o = call->data;
    struct cay_error err;
    if (!o->r) {
        if (msg->type == MSG_STARTED)
            exec_slot_started(&o->slot, msg);
        output_free(o);
        return;
    }
    switch (msg->type) {
    case MSG_STARTED:
        put_started(o, msg);
        return;
    case MSG_OUTPUT:
        put_gap(o, msg->offset, msg->code);
        o->next = msg->offset + msg->data.size;
        o->data = msg->data.data;
        o->size = msg->data.size;
        o->offset = msg->offset;
        o->stream = (int)msg->stream;
        call_pause(call);
        begin(o);
        request_wake(o->r);
        return;
    case MSG_EXIT:
        put_exit(o, msg);
        return;
    case MSG_OK:
        put_gap(o, msg->offset, msg->code);
        put_end(o);
        call_end(call);
        begin(o);
        request_wake(o->r);
        return;
    default:
        msg_to_error(msg, &err);
    }
    if (err.code == CAY_E_STALLED)
        log_event(LOG_WARNING, "a follower was cut off", "sandbox", o->r->id, "why", err.text);
    fail(o, &err);
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct output *o = call->data;
    struct cay_error why = *err;
    if (!o->r) {
        output_free(o);
        return;
    }
    if (o->logs && !o->replied && err->code == CAY_E_GONE && open_saved(o, &why) == 0)
        begin(o);
    else
        fail(o, &why);
}

static const struct call_ops ops = {.message = on_message, .lost = on_lost};

/* ---- opening --------------------------------------------------------------------------------- */

static void on_drop(struct request *r)
{
    struct output *o = r->op;
    timer_clear(&r->d->loop, &o->silence);
    o->r = NULL;
    if (!o->slot.tenant || o->over)
        output_free(o); /* else it is counted, as soon as it is known what */
}

static enum form form_of(struct request *r)
{
    if (request_accepts(r, FRAMES_TYPE))
        return FORM_FRAMES;
    return request_accepts(r, "application/octet-stream") || request_accepts(r, "text/plain")
               ? FORM_BYTES
               : FORM_NDJSON;
}

static struct output *open_output(struct request *r)
{
    struct output *o = calloc(1, sizeof(*o));
    if (!o) {
        struct cay_error err;
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    o->r = r;
    o->form = form_of(r);
    o->pending = CAY_BUF(MAX_PENDING);
    o->silence.fire = on_silence;
    r->op = o;
    r->drop = on_drop;
    return o;
}

static void talk(struct output *o, struct msg *request)
{
    struct request *r = o->r;
    request->size = PIECE;
    call_start(&o->call, r->d, r->id, request, 0, &ops, o);
    call_small(&o->call, PIECE);
    if (request->flags & MSG_F_FOLLOW)
        timer_set(&r->d->loop, &o->silence, cay_now_us() + SILENCE_US);
}

void output_exec(struct request *r, struct msg *request, struct exec_slot *slot)
{
    struct output *o = open_output(r);
    if (!o) {
        exec_slot_free(slot);
        return;
    }
    o->slot = *slot;
    o->next = request->offset;
    talk(o, request);
}

struct output_query {
    uint64_t from, stall_ms;
    bool follow, has_from;
};

static const struct opt fields[] = {
    OPT("from", 0, OPT_COUNT, offsetof(struct output_query, from), NULL, NULL,
        .extra = offsetof(struct output_query, has_from)),
    OPT("stall", 0, OPT_DURATION, offsetof(struct output_query, stall_ms), NULL, NULL,
        .nonzero = true, .most = CAY_MAX_STALL_MS),
    OPT("follow", 0, OPT_FLAG, offsetof(struct output_query, follow), NULL, NULL),
};

static void attach(struct request *r, bool logs)
{
    struct cay_error err;
    struct output_query query = {0};
    if (input_query(r, fields, CAY_COUNT(fields), &query, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct output *o = open_output(r);
    if (!o)
        return;
    o->logs = logs;
    o->next = query.has_from ? query.from : CAY_FROM_KEPT;
    o->offset = query.from;
    struct msg request = {.type = OP_ATTACH,
                          .pid = (uint64_t)r->pid,
                          .offset = o->next,
                          .idle_ms = query.stall_ms,
                          .flags = query.follow ? MSG_F_FOLLOW : 0};
    talk(o, &request);
}

void output_of(struct request *r)
{
    attach(r, false);
}

void output_logs(struct request *r)
{
    attach(r, true);
}
