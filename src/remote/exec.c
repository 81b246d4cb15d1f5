/* SPDX-License-Identifier: Apache-2.0 */
/* Running things: processes of a sandbox, and the caller's end of their streams (stream.h). */
#include "base/err.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "remote/split.h"
#include "remote/stream.h"
#include "wire/chan.h"
#include "wire/follow.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Between two attempts at a request that may be repeated. */
#define RETRY_NS 200000000

struct cay_proc {
    struct cay *cay;
    char id[CAY_MAX_ID];
    struct stream_of of;
    struct follow events;
    struct stream *stream; /* opened by the first who needs it: who only starts does not */
    struct chan chan;
    struct msg current; /* what the last event borrowed from */
};

/* ---- starting and attaching ------------------------------------------------------------------ */

static int new_proc(struct cay_sandbox *sandbox, const struct stream_of *of, struct cay_proc **out,
                    struct cay_error *err)
{
    struct cay_proc *proc = calloc(1, sizeof(*proc));
    if (!proc)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    proc->cay = sandbox->cay;
    proc->of = *of;
    proc->events.next = of->from;
    proc->chan.sock = -1;
    memcpy(proc->id, sandbox->id, sizeof(proc->id));
    *out = proc;
    return 0;
}

static int open_stream(struct cay_proc *proc, struct cay_error *err)
{
    int sock;
    if (proc->stream)
        return 0;
    if (stream_open(proc->cay->http, proc->id, &proc->of, &proc->stream, &sock, err) < 0)
        return -1;
    chan_init(&proc->chan, sock);
    return 0;
}

/* Names the start: asked for twice, it starts one process. */
static int set_key(json_t *body, struct cay_error *err)
{
    unsigned char bytes[12];
    char key[2 * sizeof(bytes) + 1];
    cay_random(bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(key + 2 * i, 3, "%02x", bytes[i]);
    return json_set_str(body, "key", key, err);
}

static int make_body(const struct cay_exec *exec, json_t *body, struct cay_error *err)
{
    if (set_key(body, err) < 0 ||
        json_set_list(body, "argv", exec->shell ? NULL : exec->argv, err) < 0 ||
        json_set_str(body, "shell", exec->shell, err) < 0 ||
        json_set_pairs(body, "env", exec->env, err) < 0 ||
        json_set_str(body, "cwd", exec->cwd, err) < 0 ||
        json_set_str(body, "user", exec->user, err) < 0 ||
        json_set_ms(body, "timeout", exec->timeout_ms, err) < 0)
        return -1;
    if (exec->want_stdin || exec->input_size)
        json_object_set_new(body, "stdin", json_true());
    /* Its output is asked for by a second request: it must not run ahead of that. */
    if (!exec->detach)
        json_object_set_new(body, "hold", json_true());
    if (!exec->pty)
        return 0;
    json_object_set_new(body, "pty", json_true());
    if (json_set_num(body, "rows", exec->rows, err) < 0)
        return -1;
    return json_set_num(body, "cols", exec->cols, err);
}

/* A start has its key: where its answer is lost, or the daemon is just restarted, it is repeated.
 */
static int post_start(struct cay_sandbox *sandbox, const struct ask *ask, json_t **answer,
                      struct cay_error *err)
{
    struct cay_error own;
    uint64_t until = cay_now_us() + STREAM_PATIENCE_MS * 1000ull;
    if (!err)
        err = &own;
    while (http_object(sandbox->cay->http, ask, answer, err) < 0) {
        if (err->code != CAY_E_UNAVAILABLE || cay_now_us() > until)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
    }
    return 0;
}

int cay_start(struct cay_sandbox *sandbox, const struct cay_exec *exec, struct cay_proc **out,
              struct cay_error *err)
{
    autoask struct ask ask;
    json_t *answer;
    bool argv = exec->argv && exec->argv[0];
    if (argv == (exec->shell != NULL))
        return cay_fail(err, CAY_E_INVALID, "give a command either as argv or as a shell string");
    ask_init(&ask, "POST", "sandboxes/%/processes", sandbox->id);
    ask.body = json_object();
    ask.repeatable = true;
    /* Without its client the command ends, and its sandbox, idle then, too. */
    if (sandbox->ephemeral && !exec->detach)
        json_object_set_new(ask.body, "kill_on_disconnect", json_true());
    if (make_body(exec, ask.body, err) < 0 || post_start(sandbox, &ask, &answer, err) < 0)
        return -1;
    uint64_t pid = json_u64(answer, "pid");
    json_decref(answer);
    if (pid == 0 || pid > INT32_MAX)
        return cay_fail(err, CAY_E_INTERNAL, "the daemon's answer names no process");
    const struct stream_of of = {
        .pid = (pid_t)pid, .follow = true, .sole = true, .stall_ms = exec->stall_ms};
    return new_proc(sandbox, &of, out, err);
}

int cay_attach(struct cay_sandbox *sandbox, pid_t pid, uint64_t from, bool follow,
               struct cay_proc **out, struct cay_error *err)
{
    const struct stream_of of = {.pid = pid, .from = from, .follow = follow};
    return new_proc(sandbox, &of, out, err);
}

/* ---- the stream ------------------------------------------------------------------------------ */

int cay_proc_next(struct cay_proc *proc, int timeout_ms, struct cay_event *out,
                  struct cay_error *err)
{
    if (proc->events.gap)
        return follow_take(&proc->events, &proc->current, out, err);
    msg_done(&proc->current);
    proc->current = (struct msg){0};
    if (open_stream(proc, err) < 0)
        return -1;
    while (!proc->events.over) {
        int popped = chan_pop(&proc->chan, &proc->current, err);
        if (popped < 0)
            return -1;
        if (popped > 0)
            return follow_take(&proc->events, &proc->current, out, err);
        int ready = chan_await(&proc->chan, timeout_ms, err);
        if (ready <= 0)
            return ready;
        ssize_t n = chan_fill(&proc->chan);
        if (n <= 0)
            return cay_fail(err, CAY_E_INTERNAL, "the stream of output ended without a reason");
    }
    return 0;
}

pid_t cay_proc_pid(const struct cay_proc *proc)
{
    return proc->of.pid;
}

int cay_proc_fd(const struct cay_proc *proc)
{
    /* Whoever polls will want what comes: the stream is opened here if nobody did before. */
    return open_stream((struct cay_proc *)proc, NULL) < 0 ? -1 : proc->chan.sock;
}

int cay_proc_write(struct cay_proc *proc, const void *data, size_t size, struct cay_error *err)
{
    if (open_stream(proc, err) < 0)
        return -1;
    for (size_t done = 0; done < size;) {
        size_t part = CAY_MIN(size - done, (size_t)CAY_MAX_DATA);
        const struct msg msg = {.type = OP_STDIN,
                                .pid = (uint64_t)proc->of.pid,
                                .data = {(const char *)data + done, part}};
        if (chan_send(proc->chan.sock, &msg, NULL, 0, err) < 0)
            return -1;
        done += part;
    }
    return 0;
}

int cay_proc_close_stdin(struct cay_proc *proc, struct cay_error *err)
{
    const struct msg msg = {.type = OP_STDIN, .pid = (uint64_t)proc->of.pid, .flags = MSG_F_EOF};
    return open_stream(proc, err) < 0 ? -1 : chan_send(proc->chan.sock, &msg, NULL, 0, err);
}

/* The daemon asks the keeper by itself, and the stream says what came of it. */
int cay_proc_check(struct cay_proc *proc, struct cay_error *err)
{
    (void)proc;
    (void)err;
    return 0;
}

int cay_proc_resize(struct cay_proc *proc, uint16_t rows, uint16_t cols, struct cay_error *err)
{
    autoask struct ask ask;
    char pid[REMOTE_PID];
    ask_init(&ask, "POST", "sandboxes/%/processes/%/resize", proc->id, pid_text(proc->of.pid, pid));
    ask.body = json_pack("{sisi}", "rows", (int)rows, "cols", (int)cols);
    return http_order(proc->cay->http, &ask, err);
}

void cay_proc_free(struct cay_proc *proc)
{
    if (!proc)
        return;
    msg_done(&proc->current);
    if (proc->stream)
        chan_done(&proc->chan);
    stream_close(proc->stream);
    free(proc);
}

/* ---- processes ------------------------------------------------------------------------------- */

static int wait_once(struct cay_sandbox *sandbox, pid_t pid, uint64_t timeout_ms, bool *lost,
                     struct cay_exit *out, struct cay_error *err)
{
    autoask struct ask ask;
    autoanswer struct answer answer = {0};
    char text[REMOTE_PID];
    ask_init(&ask, "POST", "sandboxes/%/processes/%/wait", sandbox->id, pid_text(pid, text));
    ask.seconds = 0;
    ask.repeatable = true;
    ask.body = json_object();
    if (timeout_ms == 0)
        json_object_set_new(ask.body, "timeout", json_integer(0));
    else if (timeout_ms != UINT64_MAX && json_set_ms(ask.body, "timeout", timeout_ms, err) < 0)
        return -1;
    if (http_do(sandbox->cay->http, &ask, &answer, err) < 0) {
        *lost = err->code == CAY_E_UNAVAILABLE && !http_is_hung(err);
        return -1;
    }
    json_t *object = json_parse(answer.body.data, answer.body.size);
    bool good = json_is_exit(object);
    if (good)
        json_to_exit(object, out);
    json_decref(object);
    return good ? 0 : cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no exit");
}

/* A wait may be longer than the daemon lives: it goes on with the next. */
int cay_wait(struct cay_sandbox *sandbox, pid_t pid, uint64_t timeout_ms, struct cay_exit *out,
             struct cay_error *err)
{
    struct cay_error own;
    uint64_t end = timeout_ms == UINT64_MAX ? 0 : cay_after_ms(timeout_ms), patience = 0;
    if (!err)
        err = &own;
    for (;;) {
        bool lost = false;
        uint64_t began = cay_now_us();
        if (wait_once(sandbox, pid, timeout_ms, &lost, out, err) == 0)
            return 0;
        uint64_t now = cay_now_us();
        /* A long wait that was cut is a new loss. */
        if (!patience || now - began > STREAM_PATIENCE_MS * 1000ull)
            patience = now + STREAM_PATIENCE_MS * 1000ull;
        if (!lost || now > patience)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
        if (end)
            timeout_ms = end > cay_now_us() ? (end - cay_now_us()) / 1000 : 0;
    }
}

int cay_signal(struct cay_sandbox *sandbox, pid_t pid, int signal, bool tree, struct cay_error *err)
{
    autoask struct ask ask;
    char text[REMOTE_PID];
    ask_init(&ask, "POST", "sandboxes/%/processes/%/signal", sandbox->id, pid_text(pid, text));
    ask.body = json_pack("{sisb}", "signal", signal, "tree", (int)tree);
    return http_order(sandbox->cay->http, &ask, err);
}

struct procs {
    int (*each)(const struct cay_proc_info *info, void *data);
    void *data;
};

static int on_proc(json_t *object, void *data)
{
    const struct procs *p = data;
    struct cay_proc_info info = {
        .pid = (pid_t)json_u64(object, "pid"),
        .running = json_flag(object, "running"),
        .pty = json_flag(object, "pty"),
        .started_ms = json_u64(object, "started_ms"),
        .output_start = json_u64(object, "output_start"),
        .output_end = json_u64(object, "output_end"),
    };
    snprintf(info.command, sizeof(info.command), "%s", json_text(object, "command"));
    json_to_exit(json_object_get(object, "exit"), &info.exit);
    return p->each(&info, p->data);
}

int cay_procs(struct cay_sandbox *sandbox,
              int (*each)(const struct cay_proc_info *info, void *data), void *data,
              struct cay_error *err)
{
    autoask struct ask ask;
    struct procs p = {each, data};
    ask_init(&ask, "GET", "sandboxes/%/processes", sandbox->id);
    return http_each(sandbox->cay->http, &ask, SPLIT_LIST, on_proc, &p, NULL, err);
}
