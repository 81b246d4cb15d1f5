/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that live on without their caller: start, list, signal, feed, wait.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/ask.h"
#include "daemon/exec_body.h"
#include "daemon/output.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* As many processes as a keeper knows, with their commands escaped. */
#define MAX_LIST (4u << 20)

/* ---- start ----------------------------------------------------------------------------------- */

struct start_query {
    uint64_t stall_ms, from;
    bool follow;
};

static const struct opt start_parameters[] = {
    OPT("follow", 0, OPT_FLAG, offsetof(struct start_query, follow), NULL, NULL),
    OPT("stall", 0, OPT_DURATION, offsetof(struct start_query, stall_ms), NULL, NULL,
        .nonzero = true, .most = CAY_MAX_STALL_MS),
    OPT("from", 0, OPT_COUNT, offsetof(struct start_query, from), NULL, NULL),
};

struct starting {
    struct ask ask;
    struct exec_slot slot;
};

static void settle_started(struct ask *ask, const struct msg *msg)
{
    struct starting *starting = (struct starting *)ask;
    ask->answered = true;
    if (msg)
        exec_slot_started(&starting->slot, msg);
    else
        exec_slot_free(&starting->slot);
}

static bool forgive_full(struct ask *ask, const struct cay_error *err)
{
    struct starting *starting = (struct starting *)ask;
    struct cay_error why = *err;
    if (!starting->slot.full)
        return false;
    exec_slot_explain(ask->r, &starting->slot, &why);
    reply_error(ask->r, &why);
    return true;
}

static void done_started(struct ask *ask, const struct msg *msg)
{
    autobuf struct cay_buf body = CAY_BUF(256);
    buf_str(&body, "{");
    json_num(&body, "pid", msg->pid);
    buf_str(&body, "}\n");
    reply_json(ask->r, MHD_HTTP_CREATED, &body);
}

void proc_start(struct request *r)
{
    struct cay_error err;
    struct exec_body body;
    struct start_query query = {0};
    struct exec_slot slot = {0};
    if (input_query(r, start_parameters, CAY_COUNT(start_parameters), &query, &err) < 0 ||
        (query.follow && request_streams(r, NULL, &err) < 0) ||
        exec_body(r, true, &body, &err) < 0 || exec_permit(r, &body, true, &slot, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct msg request = exec_message(&body, &slot);
    request.idle_ms = query.stall_ms;
    request.offset = query.from;
    if (query.follow) {
        output_exec(r, &request, &slot);
        return;
    }
    struct starting *starting = ask_new(r, sizeof(*starting), 0, done_started);
    if (!starting) {
        exec_slot_free(&slot);
        return;
    }
    starting->slot = slot;
    starting->ask.settle = settle_started;
    starting->ask.forgive = forgive_full;
    request.flags |= MSG_F_DETACH;
    ask_go(&starting->ask, &request, 0);
}

/* ---- list, get ------------------------------------------------------------------------------- */

static void add_proc(struct cay_buf *out, const struct msg *msg)
{
    const struct cay_proc_info info = msg_proc(msg);
    json_comma(out);
    buf_str(out, "{");
    json_proc(out, &info);
    buf_str(out, "}");
}

static void on_listed(struct ask *ask, const struct msg *msg)
{
    struct request *r = ask->r;
    struct cay_error err;
    if (msg->type == MSG_PROC) {
        if (!r->pid || (pid_t)msg->pid == r->pid)
            add_proc(&ask->out, msg);
        return;
    }
    if (!r->pid)
        buf_str(&ask->out, "]}\n");
    if (ask->out.size) {
        reply_json(r, MHD_HTTP_OK, &ask->out);
        return;
    }
    cay_fail(&err, CAY_E_NOT_FOUND, "no process %d in sandbox '%s'", (int)r->pid,
             request_shown_id(r, r->id));
    reply_error(r, &err);
}

void proc_list(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct ask *ask = ask_new(r, sizeof(*ask), MAX_LIST, on_listed);
    if (!ask)
        return;
    if (!r->pid)
        buf_str(&ask->out, "{\"processes\":[");
    ask_go(ask, &(struct msg){.type = OP_PROCS}, ASK_PATIENCE_MS);
}

void proc_get(struct request *r)
{
    proc_list(r);
}

/* ---- signals --------------------------------------------------------------------------------- */

struct signal_body {
    int signal;
    bool tree;
};

static const struct opt signal_fields[] = {
    OPT("signal", 0, OPT_SIGNAL, offsetof(struct signal_body, signal), NULL, NULL),
    OPT("tree", 0, OPT_FLAG, offsetof(struct signal_body, tree), NULL, NULL),
};

static void send_signal(struct request *r, int number, bool tree)
{
    struct ask *ask = ask_new(r, sizeof(*ask), 0, ask_done);
    if (!ask)
        return;
    ask->audited = true;
    ask->action = AUDIT_SIGNAL;
    ask->numbers[0] = (uint64_t)number;
    ask->detail.signal = &ask->numbers[0];
    const struct msg request = {.type = OP_SIGNAL,
                                .pid = (uint64_t)r->pid,
                                .signal = (uint64_t)number,
                                .flags = tree ? MSG_F_TREE : 0};
    ask_go(ask, &request, ASK_PATIENCE_MS);
}

void proc_signal(struct request *r)
{
    struct cay_error err;
    struct signal_body body = {0};
    int result = input_no_query(r, &err);
    if (result == 0)
        result = input_json(r, signal_fields, CAY_COUNT(signal_fields), &body, &err);
    if (result == 0 && !body.signal) {
        snprintf(r->field, sizeof(r->field), "signal");
        result = cay_fail(&err, CAY_E_INVALID, "say which signal: {\"signal\":\"TERM\"}");
    }
    if (result < 0)
        reply_error(r, &err);
    else
        send_signal(r, body.signal, body.tree);
}

void proc_kill(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0)
        reply_error(r, &err);
    else
        send_signal(r, SIGKILL, true);
}

/* ---- terminals, waiting ---------------------------------------------------------------------- */

struct resize_body {
    uint64_t rows, cols;
};

static const struct opt resize_fields[] = {
    OPT("rows", 0, OPT_COUNT, offsetof(struct resize_body, rows), NULL, NULL, .nonzero = true),
    OPT("cols", 0, OPT_COUNT, offsetof(struct resize_body, cols), NULL, NULL, .nonzero = true),
};

void proc_resize(struct request *r)
{
    struct cay_error err;
    struct resize_body body = {0};
    int result = input_no_query(r, &err);
    if (result == 0)
        result = input_json(r, resize_fields, CAY_COUNT(resize_fields), &body, &err);
    if (result == 0 &&
        (!body.rows || !body.cols || body.rows > UINT16_MAX || body.cols > UINT16_MAX))
        result = cay_fail(&err, CAY_E_INVALID, "rows and cols must be 1 to 65535");
    struct ask *ask = result < 0 ? NULL : ask_new(r, sizeof(*ask), 0, ask_done);
    if (result < 0)
        reply_error(r, &err);
    if (!ask)
        return;
    const struct msg request = {
        .type = OP_RESIZE, .tag = 1, .pid = (uint64_t)r->pid, .rows = body.rows, .cols = body.cols};
    ask_go(ask, &request, ASK_PATIENCE_MS);
}

struct wait_body {
    uint64_t timeout_ms;
    bool has_timeout;
};

static const struct opt wait_fields[] = {
    OPT("timeout", 0, OPT_DURATION, offsetof(struct wait_body, timeout_ms), NULL, NULL,
        .extra = offsetof(struct wait_body, has_timeout)),
};

static void done_wait(struct ask *ask, const struct msg *msg)
{
    autobuf struct cay_buf body = CAY_BUF(4096);
    const struct cay_exit e = msg_exit(msg);
    buf_str(&body, "{");
    json_exit(&body, &e);
    buf_str(&body, "}\n");
    reply_json(ask->r, MHD_HTTP_OK, &body);
}

void proc_wait(struct request *r)
{
    struct cay_error err;
    struct wait_body body = {0};
    if (input_no_query(r, &err) < 0 ||
        input_json(r, wait_fields, CAY_COUNT(wait_fields), &body, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct ask *ask = ask_new(r, sizeof(*ask), 0, done_wait);
    if (!ask)
        return;
    const struct msg request = {.type = OP_WAIT,
                                .pid = (uint64_t)r->pid,
                                .timeout_ms = body.has_timeout ? body.timeout_ms : UINT64_MAX};
    ask_go(ask, &request, 0);
}

/* ---- standard input -------------------------------------------------------------------------- */

/*
 * Each piece is one OP_STDIN, answered with OK when the keeper has taken it, and it takes no more
 * than it has room for: so a process that does not read holds back its writer, and nobody else.
 */
struct feed {
    struct ask ask;
    bool eof; /* to be closed after the last */
    bool at;  /* the client says where its bytes belong: */
    uint64_t offset;
};

static void send_piece(struct feed *feed, const char *data, size_t size, uint64_t flags)
{
    struct ask *ask = &feed->ask;
    const struct msg msg = {.type = OP_STDIN,
                            .tag = 1,
                            .pid = ask->pid,
                            .data = {data, size},
                            .flags = flags | (feed->at ? MSG_F_AT : 0),
                            .offset = feed->offset + ask->numbers[0]};
    ask->idle = false;
    ask->numbers[0] += size;
    if (ask->call.d)
        call_send(&ask->call, &msg);
    else
        ask_go(ask, &msg, 0);
}

/* All that came is with the keeper. */
static void feed_over(struct feed *feed)
{
    bool eof = feed->eof;
    feed->eof = false;
    if (eof)
        send_piece(feed, NULL, 0, MSG_F_EOF);
    else
        ask_done(&feed->ask, NULL);
}

static void on_taken(struct ask *ask, const struct msg *msg)
{
    struct feed *feed = (struct feed *)ask;
    (void)msg;
    ask->idle = true;
    if (ask->r->stage == REQUEST_WORKING)
        feed_over(feed);
    else
        request_wake(ask->r);
}

static ssize_t stdin_write(struct request *r, const char *data, size_t size)
{
    struct feed *feed = r->op;
    if (!feed->ask.idle)
        return 0;
    size_t part = CAY_MIN(size, (size_t)CAY_MAX_DATA);
    send_piece(feed, data, part, 0);
    return (ssize_t)part;
}

static void stdin_finish(struct request *r)
{
    struct feed *feed = r->op;
    if (!feed->ask.idle)
        return; /* on_taken goes on */
    if (feed->ask.call.d || feed->eof)
        feed_over(feed);
    else
        send_piece(feed, "", 0, 0); /* nothing at all: is there such a process? */
}

struct stdin_query {
    uint64_t offset;
    bool eof, at;
};

static const struct opt stdin_parameters[] = {
    OPT("eof", 0, OPT_FLAG, offsetof(struct stdin_query, eof), NULL, NULL),
    OPT("offset", 0, OPT_COUNT, offsetof(struct stdin_query, offset), NULL, NULL,
        .extra = offsetof(struct stdin_query, at)),
};

void proc_stdin(struct request *r)
{
    struct cay_error err;
    struct stdin_query query = {0};
    if (input_query(r, stdin_parameters, CAY_COUNT(stdin_parameters), &query, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct feed *feed = ask_new(r, sizeof(*feed), 0, on_taken);
    if (!feed)
        return;
    feed->ask.pieces = feed->ask.idle = true;
    feed->ask.audited = true;
    feed->ask.action = AUDIT_STDIN;
    feed->ask.detail.bytes = &feed->ask.numbers[0];
    feed->eof = query.eof;
    feed->at = query.at;
    feed->offset = query.offset;
    r->write = stdin_write;
    r->finish = stdin_finish;
}
