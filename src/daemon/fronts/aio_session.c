/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of the AIO front after their commands were answered for: what the last one printed
 * since, waiting for it, ending it, and removing the session. The keeper tells which commands a
 * session has, by their arguments: the newest of them is the last. Only if it knows of none, it is
 * looked whether there is such a session at all.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fronts/aio.h"
#include "daemon/fronts/aio_script.h"
#include "daemon/fronts/text.h"
#include "daemon/journal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define MAX_STREAM (8u << 20)
/* A keeper answers at once. */
#define PATIENCE_MS 10000
/* Waiting without a limit of the client's: as long as its HTTP library would. */
#define WAIT_MS 600000
#define KILL_MS 5000
/* After the first new output, for what comes with it. */
#define GATHER_US 20000

enum kind { KIND_VIEW, KIND_WAIT, KIND_KILL, KIND_OUTPUT, KIND_SIGNAL, KIND_REMOVE };

struct args {
    const char *session, *command_id;
    uint64_t seconds_ms, max_ms, offset[2];
    bool wait;
    int signal;
};

struct look {
    struct channel ch; /* its request is ours, whether it is opened or not */
    struct call call;
    enum kind kind;
    const char *family;
    struct args args;
    const char *path; /* of the session */
    uint64_t started_ms;
    pid_t pid; /* of the last command; 0: none */
    char command[256];
    struct excerpt out[2];
    struct timer timer;
};

static void drop(struct request *r)
{
    struct look *look = r->op;
    timer_clear(&r->d->loop, &look->timer);
    call_end(&look->call);
    channel_done(&look->ch);
    excerpt_done(&look->out[0]);
    excerpt_done(&look->out[1]);
    free(look);
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char *status_of(const struct look *look, const struct cay_exit *e)
{
    bool bash = strcmp(look->family, "bash") == 0;
    if (!e)
        return "running";
    return e->timed_out ? (bash ? "timed_out" : "hard_timeout")
           : e->signal  ? (bash ? "killed" : "terminated")
                        : "completed";
}

static void add_code(struct cay_buf *out, const char *name, const struct cay_exit *e)
{
    json_key(out, name);
    if (e && e->pid)
        buf_fmt(out, "%d", e->exit_code);
    else
        buf_str(out, "null");
}

static void add_text(struct cay_buf *out, const char *name, struct excerpt *text)
{
    autobuf struct cay_buf shown = CAY_BUF(MAX_STREAM + 4096);
    excerpt_text(text, 0, &shown);
    json_key(out, name);
    buf_json_n(out, shown.data ? shown.data : "", shown.size);
}

static void add_output(struct cay_buf *out, struct look *look, const struct cay_exit *e)
{
    add_text(out, "stdout", &look->out[0]);
    add_text(out, "stderr", &look->out[1]);
    json_num(out, "offset", look->out[0].next);
    json_num(out, "stderr_offset", look->out[1].next);
    json_key(out, "command");
    if (!look->pid) {
        buf_str(out, "null");
        return;
    }
    buf_fmt(out, "{\"command_id\":\"%d\"", (int)look->pid);
    json_str(out, "command", look->command);
    json_str(out, "status", status_of(look, e));
    add_code(out, "exit_code", e);
    buf_str(out, "}");
}

/* What is known of the command; NULL: it runs. */
static void answer(struct look *look, const struct cay_exit *e)
{
    autobuf struct cay_buf out = CAY_BUF(12 * MAX_STREAM + 16384);
    timer_clear(&look->ch.r->d->loop, &look->timer);
    call_end(&look->call);
    /* The rest of a character may come: it is whole in the next answer. */
    for (size_t i = 0; i < CAY_COUNT(look->out) && !e; i++)
        excerpt_hold(&look->out[i]);
    aio_begin(&out, e ? "The command has ended" : "The command goes on");
    if (look->kind == KIND_OUTPUT || look->kind == KIND_VIEW)
        json_str(&out, "session_id", look->args.session);
    if (look->kind == KIND_OUTPUT) {
        add_output(&out, look, e);
    } else {
        json_str(&out, "status", status_of(look, e));
        if (look->kind != KIND_WAIT)
            add_code(&out, "exit_code", e);
    }
    if (look->kind == KIND_KILL)
        add_code(&out, "returncode", e);
    if (look->kind == KIND_VIEW) {
        add_text(&out, "output", &look->out[0]);
        json_str(&out, "command", look->command);
        buf_str(&out, ",\"console\":null");
    }
    aio_reply(look->ch.r, &out);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Adds what is beyond what the client has already. A view is of both streams together. */
static void take_output(struct look *look, const struct msg *msg)
{
    bool apart = look->kind == KIND_OUTPUT;
    struct excerpt *out = &look->out[apart && msg->stream == 2];
    uint64_t before = out->total;
    excerpt_put(out, apart ? msg->number : msg->offset, msg->data.data, msg->data.size);
    if (look->args.wait && apart && out->total > before && out->total > excerpt_unfinished(out))
        timer_set(&look->ch.r->d->loop, &look->timer, cay_now_us() + GATHER_US);
}

/* All that is there came: what did not is not kept any more. */
static void take_end(struct look *look, const struct msg *msg)
{
    bool apart = look->kind == KIND_OUTPUT;
    if (!apart && look->kind != KIND_VIEW)
        return;
    excerpt_stop(&look->out[0], msg->size + (apart ? 0 : msg->end));
    excerpt_stop(&look->out[1], apart ? msg->end : 0);
}

static void on_news(struct call *call, const struct msg *msg)
{
    struct look *look = call->data;
    struct cay_exit e = {0};
    struct cay_error err;
    bool reads = look->kind == KIND_OUTPUT || look->kind == KIND_VIEW;
    if (msg->type == MSG_OUTPUT) {
        take_output(look, msg);
    } else if (msg->type == MSG_EXIT) {
        e = msg_exit(msg);
        take_end(look, msg);
        answer(look, &e);
    } else if (msg->type != MSG_ERROR) {
        take_end(look, msg);
        answer(look, NULL); /* OK: that is all so far */
    } else {
        msg_to_error(msg, &err);
        /* One that the keeper has forgotten has ended; what it printed is not kept any more. */
        if ((err.code == CAY_E_NOT_FOUND && !reads) || err.code == CAY_E_TIMEOUT)
            answer(look, err.code == CAY_E_TIMEOUT ? NULL : &e);
        else
            reply_error(look->ch.r, &err);
    }
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct look *look = call->data;
    reply_error(look->ch.r, err);
}

static void on_timer(struct timer *timer)
{
    answer(container_of(timer, struct look, timer), NULL);
}

static void ask(struct look *look, const struct msg *msg)
{
    static const struct call_ops ops = {.message = on_news, .lost = on_lost};
    struct request *r = look->ch.r;
    call_start(&look->call, r->d, r->id, msg, 0, &ops, look);
}

/* Sends a signal to all processes of a command. */
static void send_signal(struct look *look, pid_t pid, int number)
{
    struct request *r = look->ch.r;
    const struct msg msg = {
        .type = OP_SIGNAL, .pid = (uint64_t)pid, .signal = (uint64_t)number, .flags = MSG_F_TREE};
    const struct audit_detail detail = {.pid = AUDIT_NUMBER(pid), .signal = AUDIT_NUMBER(number)};
    journal_note(r, AUDIT_SIGNAL, &detail, NULL);
    call_post(r->d, r->id, &msg);
}

/* Which command it is about is known. */
static void found(struct look *look)
{
    uint64_t pid = (uint64_t)look->pid;
    bool follow = look->kind == KIND_OUTPUT && look->args.wait;
    uint64_t wait_ms = look->args.seconds_ms ? look->args.seconds_ms : WAIT_MS;
    if (look->args.max_ms)
        wait_ms = CAY_MIN(wait_ms, look->args.max_ms);
    switch (look->kind) {
    case KIND_VIEW:
    case KIND_OUTPUT:
        if (follow)
            timer_set(&look->ch.r->d->loop, &look->timer, cay_after_ms(wait_ms));
        ask(look, &(struct msg){.type = OP_ATTACH,
                                .pid = pid,
                                .number = look->args.offset[0],
                                .end = look->args.offset[1],
                                .flags = MSG_F_STREAMS | (follow ? MSG_F_FOLLOW : 0)});
        return;
    case KIND_WAIT:
        ask(look, &(struct msg){.type = OP_WAIT, .pid = pid, .timeout_ms = wait_ms});
        return;
    case KIND_KILL:
    case KIND_SIGNAL:
        send_signal(look, look->pid, look->args.signal);
        ask(look, &(struct msg){.type = OP_WAIT,
                                .pid = pid,
                                .timeout_ms = look->kind == KIND_KILL ? KILL_MS : 0});
        return;
    case KIND_REMOVE:
        return;
    }
}

/* ---- the session ----------------------------------------------------------------------------- */

static void removed(struct look *look, const struct cay_error *err)
{
    struct request *r = look->ch.r;
    autobuf struct cay_buf out = CAY_BUF(4096);
    const struct audit_detail detail = {.path = look->path};
    journal_note(r, AUDIT_REMOVE, &detail, err);
    if (err) {
        reply_error(r, err);
        return;
    }
    aio_begin(&out, "The session is removed");
    json_str(&out, "session_id", look->args.session);
    aio_reply(r, &out);
}

/* Of a look at its directory, or of its removal. */
static void on_done(struct channel *ch, const struct cay_error *err)
{
    struct look *look = container_of(ch, struct look, ch);
    const struct cay_exit none = {0};
    channel_close(ch);
    if (err && err->code == CAY_E_NOT_FOUND)
        aio_no_session(ch->r);
    else if (look->kind == KIND_REMOVE)
        removed(look, err);
    else if (err)
        reply_error(ch->r, err);
    else
        answer(look, &none);
}

static const struct channel_ops file_ops = {NULL, on_done, NULL};

static void open_session(struct look *look)
{
    bool remove = look->kind == KIND_REMOVE;
    channel_open(&look->ch, look->ch.r, NULL,
                 &(struct msg){.type = remove ? FS_REMOVE : FS_STAT,
                               .path = look->path,
                               .flags = remove ? MSG_F_RECURSIVE : 0},
                 &file_ops);
}

/* The command, if these are the arguments of one of the session's (aio_script.h); else NULL. */
static const char *command_of(const struct look *look, const char *text)
{
    char begin[256];
    const char *const shells[][2] = {{"/bin/bash", "bash"}, {"/bin/sh", "sh"}};
    for (size_t i = 0; i < CAY_COUNT(shells); i++) {
        int n = snprintf(begin, sizeof(begin), "%s -c " AIO_SHELL " %s %s/%s ", shells[i][0],
                         shells[i][1], look->family, look->args.session);
        if (strncmp(text, begin, (size_t)n) == 0)
            return text + n;
    }
    return NULL;
}

static void on_process(struct look *look, const struct msg *msg)
{
    bool running = msg->flags & MSG_F_RUNNING;
    const char *command = msg->text ? command_of(look, msg->text) : NULL;
    if (!command)
        return;
    if (look->kind == KIND_REMOVE && running)
        send_signal(look, (pid_t)msg->pid, SIGKILL);
    if (look->pid && (msg->started_ms < look->started_ms ||
                      (msg->started_ms == look->started_ms && (pid_t)msg->pid < look->pid)))
        return;
    look->pid = (pid_t)msg->pid;
    look->started_ms = msg->started_ms;
    snprintf(look->command, sizeof(look->command), "%s", command);
}

static void on_processes(struct call *call, const struct msg *msg)
{
    struct look *look = call->data;
    struct cay_error err;
    if (msg->type == MSG_PROC) {
        on_process(look, msg);
        return;
    }
    if (msg->type == MSG_ERROR) {
        msg_to_error(msg, &err);
        call_end(call);
        reply_error(look->ch.r, &err);
        return;
    }
    call_end(call);
    if (look->pid && look->kind != KIND_REMOVE)
        found(look);
    else
        open_session(look);
}

/* ---- the requests ---------------------------------------------------------------------------- */

static void start(struct request *r, enum kind kind, const char *family, const struct args *args)
{
    static const struct call_ops ops = {.message = on_processes, .lost = on_lost};
    struct look *look = NULL;
    struct cay_error err;
    pid_t pid = 0;
    if (!args->session || !aio_session_ok(args->session) ||
        (args->command_id && parse_pid(args->command_id, &pid, NULL) < 0)) {
        aio_no_session(r);
        return;
    }
    const char *path = aio_session_path(r, family, args->session);
    if (!path || !(look = calloc(1, sizeof(*look)))) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    *look = (struct look){.kind = kind, .family = family, .args = *args, .path = path, .pid = pid};
    look->timer.fire = on_timer;
    excerpt_init(&look->out[0], MAX_STREAM / 2);
    excerpt_init(&look->out[1], MAX_STREAM / 2);
    look->out[0].next = args->offset[0];
    look->out[1].next = args->offset[1];
    look->ch.r = r;
    r->op = look;
    r->drop = drop;
    if (pid)
        found(look);
    else
        call_start(&look->call, r->d, r->id, &(struct msg){.type = OP_PROCS}, PATIENCE_MS, &ops,
                   look);
}

#define AT(member) offsetof(struct args, member)

static void shell(struct request *r, enum kind kind)
{
    static const struct opt table[] = {
        OPT("id", 0, OPT_STR, AT(session), NULL, NULL),
        OPT("seconds", 0, OPT_DURATION, AT(seconds_ms), NULL, NULL),
        OPT("max_wait_seconds", 0, OPT_DURATION, AT(max_ms), NULL, NULL),
    };
    struct args args = {.signal = SIGKILL};
    if (aio_input(r, table, CAY_COUNT(table), &args) == 0)
        start(r, kind, "shell", &args);
}

void aio_shell_view(struct request *r)
{
    shell(r, KIND_VIEW);
}

void aio_shell_wait(struct request *r)
{
    shell(r, KIND_WAIT);
}

void aio_shell_kill(struct request *r)
{
    shell(r, KIND_KILL);
}

static void bash(struct request *r, enum kind kind)
{
    static const struct opt table[] = {
        OPT("session_id", 0, OPT_STR, AT(session), NULL, NULL),
        OPT("command_id", 0, OPT_STR, AT(command_id), NULL, NULL),
        OPT("offset", 0, OPT_COUNT, AT(offset[0]), NULL, NULL),
        OPT("stderr_offset", 0, OPT_COUNT, AT(offset[1]), NULL, NULL),
        OPT("wait", 0, OPT_FLAG, AT(wait), NULL, NULL),
        OPT("wait_timeout", 0, OPT_DURATION, AT(seconds_ms), NULL, NULL),
        OPT("signal", 0, OPT_SIGNAL, AT(signal), NULL, NULL),
    };
    struct args args = {.signal = SIGTERM};
    if (aio_input(r, table, CAY_COUNT(table), &args) == 0)
        start(r, kind, "bash", &args);
}

void aio_bash_output(struct request *r)
{
    bash(r, KIND_OUTPUT);
}

void aio_bash_kill(struct request *r)
{
    bash(r, KIND_SIGNAL);
}

/* The id is a part of the path. */
static void remove_session(struct request *r, const char *family)
{
    static const char before[] = "/sessions/";
    char id[AIO_SESSION] = "";
    struct cay_error err;
    const char *at = strstr(r->path, before);
    size_t n = at ? strcspn(at + strlen(before), "/") : 0;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    if (n < sizeof(id))
        memcpy(id, at ? at + strlen(before) : "", n);
    const char *copy = opt_strndup(&r->arena, id, strlen(id));
    start(r, KIND_REMOVE, family, &(struct args){.session = copy});
}

void aio_shell_delete(struct request *r)
{
    remove_session(r, "shell");
}

void aio_bash_close(struct request *r)
{
    remove_session(r, "bash");
}
