/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST exec: a command from its start to its whole result in one answer.
 *
 * Output is collected as it comes while it is small. A command that prints more is waited for
 * first, and its output then read from the keeper's spool, once for each stream, straight into the
 * answer: the result may be as large as the sandbox's `output` allows and costs no memory here.
 * What is larger is an error: a result is whole.
 */
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/journal.h"
#include "daemon/roster.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Collected in memory, both streams together. */
#define SMALL (128u << 10)
/* A piece of a large answer: raw bytes, a multiple of three for base64, and its encoded form. */
#define PART 6144u
#define MAX_PENDING (6 * PART + 4096)
#define MAX_INPUT (1u << 20)

enum phase {
    PHASE_STARTING,
    PHASE_RUNNING,
    PHASE_STDOUT, /* large: the spool is read for standard output */
    PHASE_STDERR, /* ... and for standard error */
    PHASE_END,
};

struct run {
    struct call call;
    struct daemon *d;
    struct request *r; /* NULL: its client went away before it had started */
    struct exec_slot slot;
    char id[CAY_MAX_ID];
    enum phase phase;
    bool base64, large, kill, fed;
    struct cay_buf input;
    size_t given;
    struct cay_buf out[2];
    struct cay_exit exit;
    uint64_t end;
    /* large */
    uint64_t next; /* offset of the byte of the spool that comes next */
    const char *data;
    size_t size;
    char carry[4]; /* of a stream: what did not fill a unit of three, or a character */
    size_t n_carry;
    struct cay_buf pending;
    size_t sent;
};

static const struct call_ops run_ops, spool_ops;

/* Its client went away in the middle: if it wished so, the command goes, too. */
static void kill_tree(const struct run *run)
{
    const struct msg kill = {
        .type = OP_SIGNAL,
        .pid = (uint64_t)run->exit.pid,
        .signal = SIGKILL,
        .flags = MSG_F_TREE | MSG_F_LEFT,
    };
    call_post(run->d, run->id, &kill);
}

static void run_free(struct run *run)
{
    exec_slot_free(&run->slot);
    call_end(&run->call);
    buf_done(&run->input);
    buf_done(&run->out[0]);
    buf_done(&run->out[1]);
    buf_done(&run->pending);
    free(run);
}

/* The command goes on, or is killed, without its client; it counts until its end. If it is we who
 * go, its client may come back: its lease waits for that. */
static void run_abandon(struct run *run)
{
    if (run->phase == PHASE_RUNNING && run->kill && run->d->phase != DAEMON_CLOSING)
        kill_tree(run);
    if (run->phase == PHASE_RUNNING)
        exec_slot_watch(&run->slot, run->exit.pid);
    run_free(run);
}

static void on_drop(struct request *r)
{
    struct run *run = r->op;
    run->r = NULL;
    /* What is about to start cannot be killed or counted yet. */
    if (run->phase != PHASE_STARTING || !run->call.d || (!run->kill && !run->slot.tenant))
        run_abandon(run);
}

/* ---- small results --------------------------------------------------------------------------- */

static void add_stream(struct cay_buf *out, const char *name, const struct cay_buf *bytes,
                       bool base64)
{
    json_key(out, name);
    if (!base64) {
        buf_json_n(out, bytes->data ? bytes->data : "", bytes->size);
        return;
    }
    buf_str(out, "\"");
    base64_encode(out, bytes->data, bytes->size);
    buf_str(out, "\"");
}

static void reply_small(struct run *run)
{
    autobuf struct cay_buf body = CAY_BUF(8 * SMALL + 4096);
    buf_str(&body, "{");
    json_exit(&body, &run->exit);
    json_str(&body, "encoding", run->base64 ? "base64" : "utf8");
    add_stream(&body, "stdout", &run->out[0], run->base64);
    add_stream(&body, "stderr", &run->out[1], run->base64);
    buf_str(&body, "}\n");
    reply_json(run->r, MHD_HTTP_OK, &body);
}

/* ---- large results --------------------------------------------------------------------------- */

/* Adds bytes to the string that is open in the answer. What cannot be encoded alone waits for the
 * next bytes, or for `last`. Takes at most PART. */
static size_t encode(struct run *run, const char *data, size_t size, bool last)
{
    char part[PART + sizeof(run->carry)];
    size_t taken = CAY_MIN(size, (size_t)PART), n = run->n_carry + taken, use;
    memcpy(part, run->carry, run->n_carry);
    memcpy(part + run->n_carry, data, taken);
    bool end = last && taken == size;
    if (run->base64) {
        use = end ? n : n / 3 * 3;
        base64_encode(&run->pending, part, use);
    } else {
        use = n;
        /* Up to three bytes at the end may be the beginning of a character. */
        size_t valid = utf8_valid(part, n);
        if (!end && n - valid < 4 && valid < n)
            use = valid;
        size_t before = run->pending.size;
        buf_json_n(&run->pending, part, use);
        /* Without its quotes: it is the middle of a string. */
        if (!buf_failed(&run->pending)) {
            memmove(run->pending.data + before, run->pending.data + before + 1,
                    run->pending.size - before - 2);
            run->pending.size -= 2;
        }
    }
    run->n_carry = n - use;
    memcpy(run->carry, part + use, run->n_carry);
    return taken;
}

static void next_pass(struct run *run)
{
    struct request *r = run->r;
    const struct msg request = {.type = OP_ATTACH, .pid = (uint64_t)run->exit.pid, .size = PART};
    run->n_carry = 0;
    run->next = 0;
    call_end(&run->call);
    call_start(&run->call, r->d, r->id, &request, 0, &spool_ops, run);
    call_small(&run->call, 2 * PART);
}

static void pass_over(struct run *run)
{
    encode(run, "", 0, true);
    if (run->phase == PHASE_STDOUT) {
        run->phase = PHASE_STDERR;
        buf_str(&run->pending, "\",\"stderr\":\"");
        next_pass(run);
    } else {
        run->phase = PHASE_END;
        buf_str(&run->pending, "\"}\n");
        call_end(&run->call);
    }
    request_wake(run->r);
}

static void spool_lost(struct call *call, const struct cay_error *err)
{
    struct run *run = call->data;
    (void)err;
    /* The answer has begun: its client sees a string that does not end. */
    run->phase = PHASE_END;
    run->large = false;
    request_wake(run->r);
}

static void spool_message(struct call *call, const struct msg *msg)
{
    struct run *run = call->data;
    int wanted = run->phase == PHASE_STDOUT ? 1 : 2;
    if (msg->type == MSG_OUTPUT && msg->offset != run->next) {
        spool_lost(call, NULL); /* dropped meanwhile */
        call_end(call);
        return;
    }
    if (msg->type == MSG_OUTPUT)
        run->next += msg->data.size;
    if (msg->type == MSG_OUTPUT && (int)msg->stream != wanted)
        return;
    if (msg->type == MSG_OUTPUT) {
        run->data = msg->data.data;
        run->size = msg->data.size;
        call_pause(call);
        request_wake(run->r);
        return;
    }
    if (msg->type == MSG_EXIT && msg->offset == run->next) {
        pass_over(run);
        return;
    }
    spool_lost(call, NULL); /* it is forgotten already */
    call_end(call);
}

static const struct call_ops spool_ops = {.message = spool_message, .lost = spool_lost};

static ssize_t large_read(struct request *r, char *buffer, size_t size)
{
    struct run *run = r->op;
    for (;;) {
        size_t n = buf_hand_out(&run->pending, &run->sent, buffer, size);
        if (n > 0)
            return (ssize_t)n;
        if (run->size > 0) {
            n = encode(run, run->data, run->size, false);
            run->data += n;
            run->size -= n;
            continue;
        }
        if (run->phase == PHASE_END)
            return run->large ? STREAM_END : STREAM_BROKEN;
        call_resume(&run->call);
        if (run->size == 0 && run->pending.size == 0 && run->phase != PHASE_END)
            return STREAM_WAIT;
    }
}

static void reply_large(struct run *run)
{
    struct request *r = run->r;
    buf_str(&run->pending, "{");
    json_exit(&run->pending, &run->exit);
    json_str(&run->pending, "encoding", run->base64 ? "base64" : "utf8");
    buf_str(&run->pending, ",\"stdout\":\"");
    run->phase = PHASE_STDOUT;
    next_pass(run);
    r->read = large_read;
    reply_stream(r, MHD_HTTP_OK, "application/json", UINT64_MAX);
}

/* ---- while it runs --------------------------------------------------------------------------- */

/* Input goes piece by piece, as the keeper takes it. */
static void feed(struct run *run)
{
    while (!run->fed && !call_full(&run->call)) {
        size_t part = CAY_MIN(run->input.size - run->given, (size_t)CAY_MAX_DATA);
        struct msg msg = {.type = OP_STDIN,
                          .pid = (uint64_t)run->exit.pid,
                          .flags = MSG_F_AT, /* some of it may be there already: see `key` */
                          .offset = run->given};
        if (part)
            msg.data = (struct wire_bytes){run->input.data + run->given, part};
        else
            msg.flags |= MSG_F_EOF;
        call_send(&run->call, &msg);
        run->given += part;
        run->fed = part == 0;
    }
}

static void collect(struct run *run, const struct msg *msg)
{
    struct cay_buf *out = &run->out[msg->stream == 2];
    if (!run->large && run->out[0].size + run->out[1].size + msg->data.size <= SMALL &&
        buf_add(out, msg->data.data, msg->data.size) == 0)
        return;
    run->large = true;
    buf_done(&run->out[0]);
    buf_done(&run->out[1]);
}

/* The exit is in the detail: the command did run. */
static void reply_too_large(struct run *run, uint64_t size)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_TOO_LARGE,
             "the command printed %llu bytes, more than the sandbox keeps for one result; start it "
             "as a process and follow its output, or make the sandbox with a larger 'output'",
             (unsigned long long)size);
    run->r->exit = &run->exit;
    reply_error(run->r, &err);
    run->r->exit = NULL;
}

static void on_exit_message(struct run *run, const struct msg *msg)
{
    uint64_t size = msg->offset, kept_from = msg->number;
    run->exit = msg_exit(msg);
    exec_slot_free(&run->slot);
    run->phase = PHASE_END;
    call_end(&run->call);
    if (run->large && kept_from > 0)
        reply_too_large(run, size);
    else if (run->large)
        reply_large(run);
    else
        reply_small(run);
}

static void fail(struct run *run, const struct cay_error *why)
{
    struct request *r = run->r;
    struct cay_error err = *why;
    exec_slot_lost(&run->slot, run->phase == PHASE_RUNNING ? run->exit.pid : 0, why);
    run->phase = PHASE_END;
    if (!r) {
        run_free(run);
        return;
    }
    exec_slot_explain(r, &run->slot, &err);
    if (!run->slot.full)
        journal_note(r, AUDIT_EXEC, NULL, &err);
    reply_error(r, &err);
}

static void run_message(struct call *call, const struct msg *msg)
{
    struct run *run = call->data;
    struct cay_error err;
    switch (msg->type) {
    case MSG_STARTED:
        run->phase = PHASE_RUNNING;
        run->exit.pid = (pid_t)msg->pid;
        if (msg->flags & MSG_F_KNOWN)
            exec_slot_free(&run->slot); /* it has a place already */
        if (run->r)
            feed(run);
        else
            run_abandon(run);
        return;
    case MSG_OUTPUT:
        collect(run, msg);
        return;
    case MSG_EXIT:
        on_exit_message(run, msg);
        return;
    default:
        msg_to_error(msg, &err);
    }
    fail(run, &err);
}

static void run_lost(struct call *call, const struct cay_error *err)
{
    fail(call->data, err);
}

static void run_room(struct call *call)
{
    struct run *run = call->data;
    if (run->phase == PHASE_RUNNING)
        feed(run);
}

static const struct call_ops run_ops = {.message = run_message, .lost = run_lost, .room = run_room};

/* ---- opening --------------------------------------------------------------------------------- */

static int take_input(struct run *run, const struct exec_body *body, struct cay_error *err)
{
    run->fed = !body->input && !body->input_base64;
    if (body->input)
        return buf_add(&run->input, body->input, strlen(body->input)) < 0
                   ? cay_fail(err, CAY_E_TOO_LARGE, "the input is too large")
                   : 0;
    if (!body->input_base64 ||
        base64_decode(body->input_base64, strlen(body->input_base64), &run->input, err) == 0)
        return 0;
    snprintf(run->r->field, sizeof(run->r->field), "input_base64");
    return cay_fail_context(err, "input_base64");
}

static int begin(struct request *r, struct run *run, struct cay_error *err)
{
    struct exec_body body;
    if (input_no_query(r, err) < 0 || exec_body(r, false, &body, err) < 0 ||
        take_input(run, &body, err) < 0 || exec_permit(r, &body, false, &run->slot, err) < 0)
        return -1;
    run->base64 = body.encoding && strcmp(body.encoding, "base64") == 0;
    run->kill = body.kill_on_disconnect;
    const struct msg request = exec_message(&body, &run->slot);
    call_start(&run->call, r->d, r->id, &request, 0, &run_ops, run);
    return 0;
}

void exec_run(struct request *r)
{
    struct cay_error err;
    struct run *run = calloc(1, sizeof(*run));
    if (!run) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    run->d = r->d;
    run->r = r;
    snprintf(run->id, sizeof(run->id), "%s", r->id);
    run->input = CAY_BUF(MAX_INPUT);
    run->out[0] = run->out[1] = CAY_BUF(SMALL);
    run->pending = CAY_BUF(MAX_PENDING);
    r->op = run;
    r->drop = on_drop;
    if (begin(r, run, &err) < 0)
        reply_error(r, &err);
}
