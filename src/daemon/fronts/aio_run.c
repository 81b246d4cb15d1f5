/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of the AIO front: shell/exec (one stream, a limit on silence), bash/exec (two streams,
 * an environment of its own), and sessions/create, which is a command of nothing.
 *
 * Each command runs in a shell of its own, which takes up what the last one of its session left and
 * leaves the same at its end (aio_script.h). So commands of one session can run side by side, a
 * daemon that is killed loses nothing, and there is no terminal whose echo and prompt would be in
 * the way.
 *
 * A command of a session is started in the session's directory: a session that is not there is a
 * directory that cannot be entered, and the keeper says so before anything runs. Which commands of
 * a session run is known by the keeper, which remembers their arguments (aio_session.c).
 */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/fronts/aio.h"
#include "daemon/fronts/aio_script.h"
#include "daemon/fronts/text.h"
#include "daemon/journal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Silence after which a command is answered for, unless the client says otherwise. */
#define IDLE_MS 120000
/* Making a session takes a moment. */
#define CREATE_MS 30000
/* Characters of shell/exec's output, unless the client says otherwise. */
#define MAX_CHARS 30000
/* What is kept of one stream for a client that wants all of it, and of any: half at either end. */
#define MAX_STREAM (8u << 20)
/* One argument of a program, as the kernel has it: MAX_ARG_STRLEN, with its NUL. */
#define MAX_COMMAND (128u << 10)

enum kind { KIND_SHELL, KIND_BASH, KIND_CREATE };

enum stage { STAGE_STARTING, STAGE_RUNNING, STAGE_OVER };

struct args {
    const char *family; /* "shell", "bash" */
    const char *command, *session, *dir;
    const char *const *env;
    uint64_t timeout_ms, idle_ms, hard_ms, max_chars;
    bool async, strict, logical, truncate;
};

struct run {
    struct call call;
    struct daemon *d;
    struct request *r; /* NULL: its client went away before it had started */
    struct exec_slot slot;
    char id[CAY_MAX_ID];
    enum kind kind;
    enum stage stage;
    struct args args;
    char session[AIO_SESSION];
    bool known;      /* the client named the session: it has to be there */
    bool sh;         /* there is no bash */
    struct msg exec; /* its strings are the request's */
    char tag[16 + AIO_SESSION];
    const char *argv[7];
    struct excerpt out[2];
    struct timer timer;
    uint64_t began_us, heard_us;
    pid_t pid;
};

static const struct call_ops run_ops;

static void run_free(struct run *run)
{
    exec_slot_free(&run->slot);
    timer_clear(&run->d->loop, &run->timer);
    call_end(&run->call);
    excerpt_done(&run->out[0]);
    excerpt_done(&run->out[1]);
    free(run);
}

/* Nobody waits for the command any more; it counts until its end. One that was answered for goes
 * on; one whose client or daemon went away ends with its lease. */
static void run_leave(struct run *run)
{
    if (run->stage == STAGE_RUNNING)
        exec_slot_watch(&run->slot, run->pid);
    run_free(run);
}

static void on_drop(struct request *r)
{
    struct run *run = r->op;
    run->r = NULL;
    /* What is about to start cannot be counted yet. */
    if (run->stage != STAGE_STARTING || !run->call.d || !run->slot.tenant)
        run_leave(run);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void add_text(struct cay_buf *out, const char *name, struct excerpt *text, size_t max_chars)
{
    autobuf struct cay_buf shown = CAY_BUF(MAX_STREAM + 4096);
    excerpt_text(text, max_chars, &shown);
    json_key(out, name);
    buf_json_n(out, shown.data ? shown.data : "", shown.size);
}

static void add_code(struct cay_buf *out, const struct cay_exit *e)
{
    json_key(out, "exit_code");
    if (e)
        buf_fmt(out, "%d", e->exit_code);
    else
        buf_str(out, "null");
}

static void reply_shell(struct run *run, const char *status, const struct cay_exit *e)
{
    autobuf struct cay_buf out = CAY_BUF(6 * MAX_STREAM + 6 * MAX_COMMAND + 4096);
    aio_begin(&out, e ? "The command has ended" : "The command goes on");
    json_str(&out, "session_id", run->session);
    json_str(&out, "command", run->args.command);
    json_str(&out, "status", status);
    add_text(&out, "output", &run->out[0], run->args.max_chars);
    add_code(&out, e);
    buf_str(&out, ",\"console\":null");
    aio_reply(run->r, &out);
}

static void reply_bash(struct run *run, const char *status, const struct cay_exit *e)
{
    autobuf struct cay_buf out = CAY_BUF(12 * MAX_STREAM + 6 * MAX_COMMAND + 4096);
    /* The rest of a character may come: bash/output gives it, from these offsets. */
    for (size_t i = 0; i < CAY_COUNT(run->out) && !e; i++)
        excerpt_hold(&run->out[i]);
    aio_begin(&out, e ? "The command has ended" : "The command goes on");
    json_str(&out, "session_id", run->session);
    json_key(&out, "command_id");
    buf_fmt(&out, "\"%d\"", (int)run->pid);
    json_str(&out, "command", run->args.command);
    json_str(&out, "status", status);
    add_text(&out, "stdout", &run->out[0], run->args.max_chars);
    add_text(&out, "stderr", &run->out[1], run->args.max_chars);
    add_code(&out, e);
    json_num(&out, "offset", run->out[0].next);
    json_num(&out, "stderr_offset", run->out[1].next);
    aio_reply(run->r, &out);
}

/* The shell printed its directory; if it could not make the session, why. */
static void reply_created(struct run *run, const struct cay_exit *e)
{
    autobuf struct cay_buf out = CAY_BUF(64u << 10), dir = CAY_BUF(MAX_STREAM + 4096);
    struct cay_error err;
    excerpt_text(&run->out[0], 0, &dir);
    if (dir.size && dir.data[dir.size - 1] == '\n')
        dir.size--;
    if (e->exit_code != 0) {
        cay_fail(&err, CAY_E_INTERNAL, "the session could not be made in the sandbox: %.*s",
                 (int)CAY_MIN(dir.size, (size_t)256), dir.data ? dir.data : "");
        reply_error(run->r, &err);
        return;
    }
    aio_begin(&out, "The session is there");
    json_str(&out, "session_id", run->session);
    json_key(&out, "working_dir");
    buf_json_n(&out, dir.data ? dir.data : "", CAY_MIN(dir.size, (size_t)CAY_MAX_PATH));
    if (strcmp(run->args.family, "bash") == 0)
        aio_session_times(&out, cay_wall_ms(), cay_wall_ms());
    aio_reply(run->r, &out);
}

static void answer(struct run *run, const char *status, const struct cay_exit *e)
{
    /* Its client goes on without it, and knows: it is in the background from here on. */
    if (!e && run->exec.ttl_ms)
        call_send(&run->call, &(struct msg){.type = OP_LIFETIME, .pid = (uint64_t)run->pid});
    run->r->drop = NULL; /* it is ours to free */
    if (run->kind == KIND_CREATE && e)
        reply_created(run, e);
    else if (run->kind == KIND_BASH)
        reply_bash(run, status, e);
    else
        reply_shell(run, status, e);
    run_leave(run);
}

static void fail(struct run *run, const struct cay_error *err)
{
    struct cay_error copy = *err;
    exec_slot_lost(&run->slot, run->stage == STAGE_RUNNING ? run->pid : 0, err);
    run->stage = STAGE_OVER;
    if (run->r) {
        run->r->drop = NULL;
        journal_note(run->r, AUDIT_EXEC, NULL, &copy);
        /* The directory to run in was not there: see enter_cwd of init. */
        if (run->known && ((copy.code == CAY_E_NOT_FOUND && !copy.sys_errno) ||
                           copy.sys_errno == ENOTDIR || copy.sys_errno == ELOOP))
            aio_no_session(run->r);
        else
            reply_error(run->r, &copy);
    }
    run_free(run);
}

/* ---- while it runs --------------------------------------------------------------------------- */

static void wait_on(struct run *run)
{
    uint64_t silence = run->args.idle_ms ? run->heard_us + run->args.idle_ms * 1000 : UINT64_MAX;
    uint64_t end = run->args.timeout_ms ? run->began_us + run->args.timeout_ms * 1000 : UINT64_MAX;
    if (CAY_MIN(silence, end) != UINT64_MAX)
        timer_set(&run->d->loop, &run->timer, CAY_MIN(silence, end));
}

/* The client has waited long enough, or nothing was heard for too long. */
static void on_timer(struct timer *timer)
{
    struct run *run = container_of(timer, struct run, timer);
    uint64_t now = cay_now_us();
    if (run->args.timeout_ms && now - run->began_us >= run->args.timeout_ms * 1000)
        answer(run, "running", NULL);
    else if (run->args.idle_ms && now - run->heard_us >= run->args.idle_ms * 1000)
        answer(run, "no_change_timeout", NULL);
    else
        wait_on(run);
}

static void started(struct run *run, const struct msg *msg)
{
    run->stage = STAGE_RUNNING;
    run->pid = (pid_t)msg->pid;
    run->began_us = run->heard_us = cay_now_us();
    if (!run->r)
        run_leave(run);
    else if (run->args.async)
        answer(run, "running", NULL);
    else
        wait_on(run);
}

static void ended(struct run *run, const struct msg *msg)
{
    const struct cay_exit e = msg_exit(msg);
    bool bash = run->kind == KIND_BASH;
    run->stage = STAGE_OVER;
    excerpt_stop(&run->out[0], msg->size);
    excerpt_stop(&run->out[1], msg->end);
    answer(run,
           e.timed_out ? (bash ? "timed_out" : "hard_timeout")
           : e.signal  ? (bash ? "killed" : "terminated")
                       : "completed",
           &e);
}

static void go(struct run *run)
{
    run->argv[0] = run->sh ? "/bin/sh" : "/bin/bash";
    run->argv[3] = run->sh ? "sh" : "bash";
    call_start(&run->call, run->d, run->id, &run->exec, 0, &run_ops, run);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct run *run = call->data;
    struct cay_error err;
    switch (msg->type) {
    case MSG_STARTED:
        started(run, msg);
        return;
    case MSG_OUTPUT:
        run->heard_us = cay_now_us();
        excerpt_put(&run->out[msg->stream == 2], msg->number, msg->data.data, msg->data.size);
        return;
    case MSG_EXIT:
        ended(run, msg);
        return;
    default:
        msg_to_error(msg, &err);
    }
    bool no_shell = err.code == CAY_E_NOT_FOUND && err.sys_errno == ENOENT;
    if (!no_shell || run->sh || !run->r) {
        fail(run, &err);
        return;
    }
    run->sh = true;
    call_end(call);
    go(run);
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    fail(call->data, err);
}

static const struct call_ops run_ops = {.message = on_message, .lost = on_lost};

/* ---- the request ----------------------------------------------------------------------------- */

static int out_of_memory(struct request *r)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
    reply_error(r, &err);
    return -1;
}

static int add_variable(struct run *run, const char *name, const char *value)
{
    struct opt_arena *arena = &run->r->arena;
    size_t size = strlen(name) + strlen(value) + 2;
    char *text = opt_alloc(arena, size);
    if (!text)
        return out_of_memory(run->r);
    snprintf(text, size, "%s=%s", name, value);
    return opt_append(arena, &run->exec.env, text, OPT_MAX_LIST, NULL) < 0 ? out_of_memory(run->r)
                                                                           : 0;
}

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_')
            return false;
    return n > 0 && !isdigit((unsigned char)text[0]);
}

/* The client's variables, under names of ours until the session's own are there. */
static int add_env(struct run *run)
{
    autobuf struct cay_buf names = CAY_BUF(MAX_COMMAND - 64);
    for (const char *const *env = run->args.env; env && *env; env++) {
        size_t n = strcspn(*env, "=");
        char name[256];
        if (!is_name(*env, n) || n > sizeof(name) - 16)
            return aio_refuse(run->r, "env", "has a name that is none: ^[A-Za-z_][A-Za-z0-9_]*$");
        snprintf(name, sizeof(name), "_CAY_E_%.*s", (int)n, *env);
        buf_fmt(&names, "%.*s ", (int)n, *env);
        if (add_variable(run, name, (*env)[n] ? *env + n + 1 : "") < 0)
            return -1;
    }
    const char *list = buf_cstr(&names);
    if (!list)
        return aio_refuse(run->r, "env", "has too many names");
    return add_variable(run, "_CAY_N", list);
}

/* All that the shell needs to know. */
static int prepare(struct run *run)
{
    const struct args *args = &run->args;
    const char *dir = aio_session_path(run->r, args->family, run->session);
    char how[16];
    if (!dir)
        return out_of_memory(run->r);
    snprintf(how, sizeof(how), "%s%s%s%s%s", run->kind == KIND_BASH ? "" : HOW_MERGED,
             !args->session && run->kind != KIND_CREATE ? HOW_AUTO : "",
             args->logical ? HOW_LOGICAL : "", args->strict ? HOW_STRICT : "",
             run->kind == KIND_CREATE ? HOW_CREATE : "");
    /* What makes a session is no command of it. */
    snprintf(run->tag, sizeof(run->tag), "%s%s/%s", run->kind == KIND_CREATE ? "new:" : "",
             args->family, run->session);
    const char *argv[] = {NULL, "-c", AIO_SHELL, NULL, run->tag, args->command, NULL};
    memcpy(run->argv, argv, sizeof(argv));
    run->exec = (struct msg){.type = OP_EXEC,
                             .argv = run->argv,
                             .cwd = run->known ? dir : NULL,
                             .timeout_ms = args->hard_ms,
                             .ttl_ms = args->async ? 0 : EXEC_LEASE_MS,
                             .flags = args->async ? MSG_F_DETACH : 0};
    if (add_variable(run, "_CAY", aio_script) < 0 || add_variable(run, "_CAY_S", dir) < 0 ||
        add_variable(run, "_CAY_M", how) < 0 ||
        add_variable(run, "_CAY_D", args->dir ? args->dir : "") < 0)
        return -1;
    return add_env(run);
}

/* The name that the client gave, or a new one. -1: answered. */
static int name_session(struct run *run)
{
    const char *given = run->args.session;
    unsigned char random[8];
    if (given && !aio_session_ok(given)) {
        if (run->kind == KIND_CREATE)
            return aio_refuse(run->r, strcmp(run->args.family, "bash") == 0 ? "session_id" : "id",
                              "must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', the first a letter "
                              "or digit");
        aio_no_session(run->r);
        return -1;
    }
    run->known = given && run->kind != KIND_CREATE;
    cay_random(random, sizeof(random));
    if (given)
        snprintf(run->session, sizeof(run->session), "%s", given);
    else
        snprintf(run->session, sizeof(run->session), "%s-%02x%02x%02x%02x%02x%02x%02x%02x",
                 run->kind == KIND_CREATE ? "session" : "auto", random[0], random[1], random[2],
                 random[3], random[4], random[5], random[6], random[7]);
    return 0;
}

static int check(struct request *r, const struct args *args)
{
    if (!args->command)
        return aio_refuse(r, "command", "is missing");
    if (strlen(args->command) >= MAX_COMMAND)
        return aio_refuse(r, "command", "is longer than 131071 bytes; write it to a file first");
    if (args->dir && (args->dir[0] != '/' || strlen(args->dir) >= CAY_MAX_PATH))
        return aio_refuse(r, "exec_dir", "has to be an absolute path");
    return 0;
}

/* Quotas and the audit log, and off it goes. */
static int launch(struct run *run)
{
    const struct args *args = &run->args;
    const struct exec_body body = {.shell = args->command, .env = args->env};
    struct cay_error err;
    if (prepare(run) < 0)
        return -1;
    if (exec_permit(run->r, &body, args->async, &run->slot, &err) < 0) {
        reply_error(run->r, &err);
        return -1;
    }
    go(run);
    return 0;
}

static void start(struct request *r, enum kind kind, const struct args *args)
{
    if (check(r, args) < 0)
        return;
    struct run *run = calloc(1, sizeof(*run));
    if (!run) {
        out_of_memory(r);
        return;
    }
    *run = (struct run){.d = r->d, .r = r, .kind = kind, .args = *args};
    run->timer.fire = on_timer;
    snprintf(run->id, sizeof(run->id), "%s", r->id);
    /* Four bytes are the most that a character has. */
    size_t keep = MAX_STREAM / 2;
    if (args->max_chars && args->max_chars < MAX_STREAM / 4)
        keep = CAY_MAX(args->max_chars * 2, (size_t)4096);
    excerpt_init(&run->out[0], keep);
    excerpt_init(&run->out[1], keep);
    r->op = run;
    r->drop = on_drop;
    if (name_session(run) == 0)
        launch(run);
}

#define AT(member) offsetof(struct args, member)
#define COMMON                                                       \
    OPT("command", 0, OPT_STR, AT(command), NULL, NULL, .max = 1),   \
        OPT("exec_dir", 0, OPT_STR, AT(dir), NULL, NULL),            \
        OPT("async_mode", 0, OPT_FLAG, AT(async), NULL, NULL),       \
        OPT("timeout", 0, OPT_DURATION, AT(timeout_ms), NULL, NULL), \
        OPT("hard_timeout", 0, OPT_DURATION, AT(hard_ms), NULL, NULL)

void aio_shell_exec(struct request *r)
{
    static const struct opt table[] = {
        COMMON,
        OPT("id", 0, OPT_STR, AT(session), NULL, NULL),
        OPT("strict", 0, OPT_FLAG, AT(strict), NULL, NULL),
        OPT("preserve_symlinks", 0, OPT_FLAG, AT(logical), NULL, NULL),
        OPT("truncate", 0, OPT_FLAG, AT(truncate), NULL, NULL),
        OPT("no_change_timeout", 0, OPT_DURATION, AT(idle_ms), NULL, NULL),
    };
    struct args args = {.family = "shell", .truncate = true};
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0)
        return;
    if (!args.idle_ms)
        args.idle_ms = IDLE_MS;
    args.max_chars = args.truncate ? MAX_CHARS : 0;
    start(r, KIND_SHELL, &args);
}

void aio_bash_exec(struct request *r)
{
    static const struct opt table[] = {
        COMMON,
        OPT("session_id", 0, OPT_STR, AT(session), NULL, NULL),
        OPT("env", 0, OPT_ENV, AT(env), NULL, NULL),
        OPT("max_output_length", 0, OPT_COUNT, AT(max_chars), NULL, NULL),
    };
    struct args args = {.family = "bash"};
    if (aio_input(r, table, CAY_COUNT(table), &args) == 0)
        start(r, KIND_BASH, &args);
}

static void create(struct request *r, const char *family, const char *id_name)
{
    const struct opt table[] = {
        OPT(id_name, 0, OPT_STR, AT(session), NULL, NULL),
        OPT("exec_dir", 0, OPT_STR, AT(dir), NULL, NULL),
        OPT("preserve_symlinks", 0, OPT_FLAG, AT(logical), NULL, NULL),
    };
    struct args args = {.family = family, .command = "# make a session", .hard_ms = CREATE_MS};
    if (aio_input(r, table, CAY_COUNT(table), &args) == 0)
        start(r, KIND_CREATE, &args);
}

void aio_shell_create(struct request *r)
{
    create(r, "shell", "id");
}

void aio_bash_create(struct request *r)
{
    create(r, "bash", "session_id");
}
