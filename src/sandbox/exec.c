/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running things: the caller's end of EXEC, ATTACH, WAIT, SIGNAL and PROCS.
 */
#include "base/err.h"
#include "base/util.h"
#include "sandbox/sandbox.h"
#include "wire/follow.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct cay_proc {
    struct cay *cay;
    char id[CAY_MAX_ID];
    struct cay_sandbox *creator_of; /* its creator's connection is lent to us; given back on free */
    struct chan chan;
    struct msg current; /* what the last event borrowed from */
    pid_t pid;
    bool last; /* its ephemeral sandbox ends with it */
    int log;   /* of a sandbox that has ended: its saved output, read from here; else -1 */
    uint64_t log_start, log_offset; /* what was printed before log_start was not kept */
    uint64_t log_end;               /* what its record says; 0: nothing */
    struct follow follow;
    char *chunk;
};

int exec_check(const struct cay_exec *exec, struct cay_error *err)
{
    bool argv = exec->argv && exec->argv[0];
    if (argv == (exec->shell != NULL))
        return cay_fail(err, CAY_E_INVALID, "give a command either as argv or as a shell string");
    if (exec->cwd && exec->cwd[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "working directory '%s' is not an absolute path",
                        exec->cwd);
    for (const char *const *e = exec->env; e && *e; e++)
        if (!strchr(*e, '=') || **e == '=')
            return cay_fail(err, CAY_E_INVALID, "environment entry '%s' is not NAME=VALUE", *e);
    return 0;
}

struct msg exec_request(const struct cay_exec *exec)
{
    return (struct msg){
        .type = OP_EXEC,
        .flags =
            (exec->pty ? MSG_F_PTY : 0) | (exec->want_stdin || exec->input_size ? MSG_F_STDIN : 0),
        .argv = exec->shell ? NULL : exec->argv,
        .shell = exec->shell,
        .env = exec->env,
        .cwd = exec->cwd,
        .user = exec->user,
        .rows = exec->rows,
        .cols = exec->cols,
        .timeout_ms = exec->timeout_ms,
        .idle_ms = exec->stall_ms,
    };
}

/* A keeper that is gone has hung up; then a new connection tells why. */
static bool is_alive(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

static struct cay_proc *proc_new(const struct cay_sandbox *sandbox, struct cay_error *err)
{
    struct cay_proc *proc = calloc(1, sizeof(*proc));
    if (!proc) {
        cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        return NULL;
    }
    proc->cay = sandbox->cay;
    memcpy(proc->id, sandbox->id, sizeof(proc->id));
    proc->chan.sock = proc->log = -1;
    return proc;
}

static int proc_send(struct cay_proc *proc, const struct msg *msg, struct cay_error *err)
{
    return sandbox_send(proc->cay, proc->id, proc->chan.sock, msg, err);
}

int cay_proc_check(struct cay_proc *proc, struct cay_error *err)
{
    return proc->chan.sock < 0 ? 0 : sandbox_check(proc->cay, proc->id, proc->chan.sock, err);
}

/* Opens a stream with its first request; the first answer must be `expected`. */
static struct cay_proc *open_stream(struct cay_sandbox *sandbox, const struct msg *request,
                                    bool lend, struct cay_error *err)
{
    struct cay_error own;
    if (!err)
        err = &own;
    struct cay_proc *proc = proc_new(sandbox, err);
    if (!proc)
        return NULL;
    int creator = lend ? atomic_exchange(&sandbox->creator, -1) : -1;
    if (creator >= 0 && is_alive(creator)) {
        chan_init(&proc->chan, creator);
        proc->creator_of = sandbox;
        atomic_fetch_add(&sandbox->refs, 1);
    } else {
        close_fd(&creator);
        if (sandbox_connect(sandbox, &proc->chan, err) < 0) {
            free(proc);
            return NULL;
        }
    }
    if (proc_send(proc, request, err) == 0)
        return proc;
    sandbox_unsent(&proc->chan, err);
    if (err->code == CAY_E_GONE)
        sandbox_explain(sandbox->cay, sandbox->id, err);
    cay_proc_free(proc);
    return NULL;
}

/*
 * A start takes as long as it takes: one that was caught by a pause waits for the resume. But a
 * keeper that lives answers other questions meanwhile.
 */
static int await_keeper(struct cay_proc *proc, struct cay_error *err)
{
    while (!sandbox_await(proc->chan.sock, SANDBOX_CHECK_MS))
        if (cay_proc_check(proc, err) < 0)
            return -1;
    return 0;
}

static int await_started(struct cay_sandbox *sandbox, struct cay_proc *proc, struct cay_proc **out,
                         struct cay_error *err)
{
    automsg struct msg answer = {0};
    struct cay_error own;
    if (!err)
        err = &own;
    if (await_keeper(proc, err) < 0) {
        cay_proc_free(proc);
        return -1;
    }
    int got = chan_recv(&proc->chan, &answer, err);
    if (got > 0 && answer.type == MSG_STARTED) {
        proc->pid = (pid_t)answer.pid;
        *out = proc;
        return 0;
    }
    if (got > 0 && answer.type == MSG_ERROR)
        msg_to_error(&answer, err);
    else if (got >= 0 || sandbox_misheard(sandbox->id, err) == 0)
        cay_fail(err, CAY_E_GONE, "sandbox '%s' ended before the command started", sandbox->id);
    cay_proc_free(proc);
    return -1;
}

int cay_start(struct cay_sandbox *sandbox, const struct cay_exec *exec, struct cay_proc **out,
              struct cay_error *err)
{
    if (exec_check(exec, err) < 0)
        return -1;
    struct msg request = exec_request(exec);
    struct cay_proc *proc = open_stream(sandbox, &request, true, err);
    if (!proc)
        return -1;
    return await_started(sandbox, proc, out, err);
}

int exec_adopt(struct cay_sandbox *sandbox, struct cay_proc **out, struct cay_error *err)
{
    struct cay_proc *proc = proc_new(sandbox, err);
    if (!proc)
        return -1;
    proc->creator_of = sandbox;
    atomic_fetch_add(&sandbox->refs, 1);
    proc->last = sandbox->ephemeral;
    chan_init(&proc->chan, atomic_exchange(&sandbox->creator, -1));
    return await_started(sandbox, proc, out, err);
}

/* Where the output of a sandbox that has ended came to its end. */
static int saved_end(struct cay_sandbox *sandbox, uint64_t *end, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (sandbox_status(sandbox->cay, sandbox->id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    *end = status.log_end;
    return 0;
}

/* The merged output of a sandbox that has ended is a file. */
static struct cay_proc *open_saved_log(struct cay_sandbox *sandbox, uint64_t from,
                                       struct cay_error *err)
{
    autofd int dir = home_open(sandbox->cay->sandboxes, sandbox->id);
    autofd int log =
        dir < 0 ? -1 : openat(dir, "log", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (log < 0 && !home_absent(errno)) {
        cay_fail_errno(err, errno, "cannot open the saved output of sandbox '%s'", sandbox->id);
        return NULL;
    }
    struct stat st;
    if (log >= 0 && (fstat(log, &st) < 0 || !S_ISREG(st.st_mode)))
        close_fd(&log); /* something else has its name: what it had is lost */
    uint64_t start = 0, end;
    if (saved_end(sandbox, &end, err) < 0)
        return NULL;
    ssize_t n = log < 0 ? 0 : pread(log, &start, sizeof(start), 0);
    if (n < 0) {
        cay_fail_errno(err, errno, "cannot read the saved output of sandbox '%s'", sandbox->id);
        return NULL;
    }
    struct cay_proc *proc = proc_new(sandbox, err);
    char *chunk = malloc(CAY_MAX_DATA);
    if (!proc || !chunk) {
        free(proc);
        free(chunk);
        cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        return NULL;
    }
    if (n != (ssize_t)sizeof(start))
        close_fd(&log); /* it printed nothing, or all of it is lost */
    proc->log = steal_fd(&log);
    proc->log_end = end;
    proc->follow.over = proc->log < 0 && end == 0; /* it printed nothing */
    proc->log_start = start;
    proc->log_offset = from == CAY_FROM_KEPT ? start : CAY_MAX(from, start);
    proc->chunk = chunk;
    return proc;
}

static int next_saved(struct cay_proc *proc, struct cay_event *out, struct cay_error *err)
{
    if (proc->follow.next < proc->log_offset) {
        *out = (struct cay_event){.kind = CAY_EVENT_GAP,
                                  .offset = proc->follow.next,
                                  .size = proc->log_offset - proc->follow.next};
        proc->follow.next = proc->log_offset;
        return 1;
    }
    ssize_t n = proc->log < 0
                    ? 0
                    : pread(proc->log, proc->chunk, CAY_MAX_DATA,
                            (off_t)(proc->log_offset - proc->log_start + sizeof(proc->log_start)));
    if (n < 0)
        return cay_fail_errno(err, errno, "cannot read the saved output");
    if (n == 0 && proc->log_offset < proc->log_end) {
        proc->follow.over = true;
        return cay_fail(err, CAY_E_LOST,
                        "the last %llu bytes that sandbox '%s' printed were not saved when it "
                        "ended: the host's disk was full, or their file is damaged",
                        (unsigned long long)(proc->log_end - proc->log_offset), proc->id);
    }
    *out = (struct cay_event){.kind = CAY_EVENT_OUTPUT,
                              .stream = 1,
                              .offset = proc->log_offset,
                              .data = proc->chunk,
                              .size = (size_t)n};
    proc->log_offset += (uint64_t)n;
    proc->follow.next = proc->log_offset;
    proc->follow.over = n == 0;
    return n > 0;
}

int cay_attach(struct cay_sandbox *sandbox, pid_t pid, uint64_t from, bool follow,
               struct cay_proc **out, struct cay_error *err)
{
    struct cay_error own;
    if (!err)
        err = &own;
    const struct msg request = {.type = OP_ATTACH,
                                .pid = (uint64_t)pid,
                                .offset = from,
                                .flags = follow ? MSG_F_FOLLOW : 0};
    struct cay_proc *proc = open_stream(sandbox, &request, false, err);
    if (!proc && pid == 0 && err->code == CAY_E_GONE)
        proc = open_saved_log(sandbox, from, err);
    if (!proc)
        return -1;
    proc->pid = pid;
    proc->follow.next = from;
    *out = proc;
    return 0;
}

int cay_proc_next(struct cay_proc *proc, int timeout_ms, struct cay_event *out,
                  struct cay_error *err)
{
    if (proc->follow.gap)
        return follow_take(&proc->follow, &proc->current, out, err);
    msg_done(&proc->current);
    proc->current = (struct msg){0};
    if (proc->chunk && !proc->follow.over)
        return next_saved(proc, out, err);
    while (!proc->follow.over) {
        int popped = chan_pop(&proc->chan, &proc->current, err);
        if (popped < 0)
            return -1;
        if (popped > 0)
            return follow_take(&proc->follow, &proc->current, out, err);
        int ready =
            timeout_ms < 0 ? await_keeper(proc, err) + 1 : chan_await(&proc->chan, timeout_ms, err);
        if (ready <= 0)
            return timeout_ms < 0 ? -1 : ready;
        ssize_t n = chan_fill(&proc->chan);
        if (n < 0)
            return cay_fail_errno(err, errno, "lost the connection to the sandbox");
        if (n == 0)
            return cay_fail(err, CAY_E_GONE, "the sandbox ended while the process ran");
    }
    return 0;
}

pid_t cay_proc_pid(const struct cay_proc *proc)
{
    return proc->pid;
}

int cay_proc_fd(const struct cay_proc *proc)
{
    return proc->chan.sock;
}

int cay_proc_write(struct cay_proc *proc, const void *data, size_t size, struct cay_error *err)
{
    for (size_t done = 0; done < size;) {
        size_t part = CAY_MIN(size - done, (size_t)CAY_MAX_DATA);
        const struct msg msg = {.type = OP_STDIN,
                                .pid = (uint64_t)proc->pid,
                                .data = {(const char *)data + done, part}};
        if (proc_send(proc, &msg, err) < 0)
            return -1;
        done += part;
    }
    return 0;
}

int cay_proc_close_stdin(struct cay_proc *proc, struct cay_error *err)
{
    const struct msg msg = {.type = OP_STDIN, .pid = (uint64_t)proc->pid, .flags = MSG_F_EOF};
    return proc_send(proc, &msg, err);
}

int cay_proc_resize(struct cay_proc *proc, uint16_t rows, uint16_t cols, struct cay_error *err)
{
    const struct msg msg = {
        .type = OP_RESIZE, .pid = (uint64_t)proc->pid, .rows = rows, .cols = cols};
    return proc_send(proc, &msg, err);
}

/* The creator's connection goes back to its handle: to be used again if the stream came to its end,
 * else only to be held, as closing it would end an ephemeral sandbox. */
static void give_back(struct cay_proc *proc)
{
    struct cay_sandbox *sandbox = proc->creator_of;
    bool clean = proc->follow.over && proc->chan.in.size == proc->chan.eaten;
    if (proc->last && proc->follow.over)
        atomic_store(&sandbox->ending, true);
    if (!atomic_load(&sandbox->closed) && (clean || sandbox->ephemeral)) {
        int before = atomic_exchange(clean ? &sandbox->creator : &sandbox->parked, proc->chan.sock);
        close_fd(&before);
        proc->chan.sock = -1;
    }
    sandbox_unref(sandbox);
}

void cay_proc_free(struct cay_proc *proc)
{
    if (!proc)
        return;
    msg_done(&proc->current);
    if (proc->creator_of)
        give_back(proc);
    chan_done(&proc->chan);
    close_fd(&proc->log);
    free(proc->chunk);
    free(proc);
}

/* ---- processes ------------------------------------------------------------------------------- */

int cay_wait(struct cay_sandbox *sandbox, pid_t pid, uint64_t timeout_ms, struct cay_exit *out,
             struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    const struct msg request = {.type = OP_WAIT, .pid = (uint64_t)pid, .timeout_ms = timeout_ms};
    if (sandbox_call(sandbox, &request, &chan, &answer, err) < 0)
        return -1;
    *out = msg_exit(&answer);
    msg_done(&answer);
    chan_done(&chan);
    return 0;
}

int cay_signal(struct cay_sandbox *sandbox, pid_t pid, int signal, bool tree, struct cay_error *err)
{
    const struct msg request = {.type = OP_SIGNAL,
                                .pid = (uint64_t)pid,
                                .signal = (uint64_t)signal,
                                .flags = tree ? MSG_F_TREE : 0};
    return sandbox_order(sandbox, &request, err);
}

int cay_procs(struct cay_sandbox *sandbox,
              int (*each)(const struct cay_proc_info *info, void *data), void *data,
              struct cay_error *err)
{
    struct chan chan;
    struct msg msg;
    struct cay_proc_info info;
    if (sandbox_call(sandbox, &(struct msg){.type = OP_PROCS}, &chan, &msg, err) < 0)
        return -1;
    int got = 1, stop = 0;
    while (got > 0 && msg.type == MSG_PROC && !stop) {
        info = msg_proc(&msg);
        stop = each(&info, data);
        msg_done(&msg);
        got = chan_recv(&chan, &msg, err);
    }
    if (got > 0)
        msg_done(&msg);
    chan_done(&chan);
    return got < 0    ? -1
           : got == 0 ? cay_fail(err, CAY_E_GONE, "sandbox '%s' ended", sandbox->id)
                      : 0;
}
