/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes into and comes out of a process. Output is drained into the spool, unless a follower
 * lags (flow.c); input is taken as far as the process reads it, and its senders are held back
 * beyond that. The keeper makes the pipes, so that it reads its own descriptors; a terminal's
 * master comes from init, and was looked at.
 */
#include "base/util.h"
#include "keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>

/* What is read at the end of a process: a pipe's capacity a few times over, not for ever, because a
 * child that lives on may write without pause. */
#define LAST_DRAIN (1u << 20)
/* What a terminal still had to say after its process ended is waited for this long at a time. */
#define TERMINAL_FLUSH_MS 5
/* ... and this long in all: somebody else may drip into it for ever. */
#define TERMINAL_LAST_MS 50

/* ---- output ---------------------------------------------------------------------------------- */

static void push_input(struct proc *proc);

static void close_end(struct pipe_end *end)
{
    loop_forget(&end->proc->keeper->loop, &end->watch);
    if (end->proc->pty && end->proc->in == end->fd)
        end->proc->in = -1;
    close_fd(&end->fd);
}

/* Output of a terminal comes through the kernel's buffers a little later than
 * its writer's death. */
static bool more_from_terminal(const struct pipe_end *end)
{
    struct pollfd p = {.fd = end->fd, .events = POLLIN};
    return end->proc->pty && poll(&p, 1, TERMINAL_FLUSH_MS) > 0;
}

/* Reads what is there, `limit` bytes at most; `last`: to the very end. False: nobody writes any
 * more. */
static bool drain(struct pipe_end *end, size_t limit, bool last)
{
    char chunk[CAY_MAX_DATA];
    struct proc *proc = end->proc;
    uint64_t until = last ? cay_after_ms(TERMINAL_LAST_MS) : 0;
    for (size_t total = 0; total < limit;) {
        ssize_t n = read(end->fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (last && cay_now_us() < until && more_from_terminal(end))
                continue;
            return true;
        }
        if (n <= 0) /* EIO: the other side of a terminal is closed */
            return false;
        flow_store(proc, end->stream, chunk, (size_t)n);
        total += (size_t)n;
        if (proc->pty && last && cay_now_us() >= until)
            return true;
        if (!last && (size_t)n < sizeof(chunk) / 2)
            return true; /* emptied, most likely; if not, the loop tells us again */
    }
    return true;
}

static void on_output(struct watch *watch, uint32_t events)
{
    struct pipe_end *end = container_of(watch, struct pipe_end, watch);
    struct proc *proc = end->proc;
    if (proc->pty && (events & EPOLLOUT))
        push_input(proc);
    if (proc->stopped) {
        /* A hang-up cannot be masked: it is looked at when the follower has caught up. */
        if (events & (EPOLLHUP | EPOLLERR))
            loop_forget(&proc->keeper->loop, &end->watch);
        return;
    }
    if ((events & ~EPOLLOUT) && !drain(end, CAY_MAX_DATA, false)) {
        /* A master that is closed hangs up on the process, which may live on
         * without its terminal. */
        if (proc->pty && proc->state == PROC_RUNNING)
            loop_forget(&proc->keeper->loop, &end->watch);
        else
            close_end(end);
    }
    clients_of(proc->keeper, proc);
    clients_of(proc->keeper, NULL);
    flow_check(proc->keeper, proc);
}

static void open_end(struct pipe_end *end, struct proc *proc, int fd, int stream)
{
    *end = (struct pipe_end){
        .watch = {.fd = -1, .ready = on_output}, .proc = proc, .fd = fd, .stream = stream};
}

/* ---- standard input -------------------------------------------------------------------------- */

bool stdio_room(const struct proc *proc)
{
    return proc->in < 0 || proc->in_buf.size <= CAY_MAX_STDIN / 2;
}

/* Those that are held go on while there is room; the next of them may find that there is none. */
static void release_writers(struct proc *proc)
{
    for (struct client *c = proc->keeper->clients; c; c = c->next)
        if (c->held && c->feeds == proc && stdio_room(proc)) {
            c->feeds = NULL;
            client_resume(c);
        }
}

static void close_input(struct proc *proc)
{
    loop_forget(&proc->keeper->loop, &proc->in_watch);
    if (!proc->pty)
        close_fd(&proc->in);
    proc->in = -1;
    buf_done(&proc->in_buf);
    release_writers(proc);
}

static void push_input(struct proc *proc)
{
    while (proc->in >= 0 && proc->in_buf.size) {
        ssize_t n = write(proc->in, proc->in_buf.data, proc->in_buf.size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) { /* nobody reads it any more */
            close_input(proc);
            break;
        }
        buf_eat(&proc->in_buf, (size_t)n);
    }
    if (proc->in >= 0 && proc->in_buf.size == 0 && proc->in_eof)
        close_input(proc);
    if (proc->in >= 0 && !proc->pty)
        loop_watch(&proc->keeper->loop, &proc->in_watch, proc->in,
                   proc->in_buf.size ? EPOLLOUT : 0);
    else if (proc->in >= 0)
        stdio_watch(proc);
    release_writers(proc);
}

static void on_input_room(struct watch *watch, uint32_t events)
{
    struct proc *proc = container_of(watch, struct proc, in_watch);
    if (events & (EPOLLERR | EPOLLHUP))
        close_input(proc);
    else
        push_input(proc);
}

int stdio_input(struct proc *proc, const char *bytes, size_t size, bool eof)
{
    /* A terminal has no end of file; it has a character that stands for it. */
    static const char eot = 4;
    size_t before = proc->in_buf.size;
    if (proc->in < 0 || proc->in_eof)
        return 0; /* as writing to a closed pipe: the bytes have nowhere to go */
    bool failed = size && buf_add(&proc->in_buf, bytes, size) < 0;
    failed = failed || (eof && proc->pty && buf_add(&proc->in_buf, &eot, 1) < 0);
    if (failed) {
        proc->in_buf.failed = false;
        proc->in_buf.size = before;
        return -1;
    }
    proc->in_eof = eof && !proc->pty;
    push_input(proc);
    return 0;
}

/* ---- together -------------------------------------------------------------------------------- */

void stdio_init(struct proc *proc)
{
    proc->in = -1;
    proc->in_watch = (struct watch){.fd = -1, .ready = on_input_room};
    proc->in_buf = CAY_BUF(CAY_MAX_STDIN + CAY_MAX_FRAME);
    open_end(&proc->out, proc, -1, 1);
    open_end(&proc->err, proc, -1, 2);
}

/* theirs: stdin, stdout, stderr for init. Standard input is the end of a pipe that nobody writes
 * to, unless it was asked for: no descriptor of a host file ever enters a sandbox. */
int stdio_pipes(struct proc *proc, bool want_stdin, int theirs[3])
{
    int pairs[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    for (int i = 0; i < 3; i++) {
        if (pipe2(pairs[i], O_CLOEXEC) < 0) {
            for (int j = 0; j < i; j++) {
                close(pairs[j][0]);
                close(pairs[j][1]);
            }
            return -1;
        }
    }
    theirs[0] = pairs[0][0];
    theirs[1] = pairs[1][1];
    theirs[2] = pairs[2][1];
    proc->out.fd = pairs[1][0];
    proc->err.fd = pairs[2][0];
    /* Theirs also by owner, so that a program may open /dev/stdout. */
    uid_t uid = proc->keeper->cgroup.owner;
    gid_t gid = proc->keeper->cgroup.group;
    for (int i = 0; i < 3; i++)
        (void)!fchown(theirs[i], uid, gid);
    fcntl(proc->out.fd, F_SETFL, O_NONBLOCK);
    fcntl(proc->err.fd, F_SETFL, O_NONBLOCK);
    if (want_stdin) {
        proc->in = pairs[0][1];
        fcntl(proc->in, F_SETFL, O_WRONLY | O_NONBLOCK);
    } else {
        close(pairs[0][1]);
    }
    return 0;
}

void stdio_start(struct proc *proc, int master)
{
    if (proc->pty) {
        proc->out.fd = master;
        proc->in = master;
    }
    stdio_watch(proc);
}

static void watch_end(struct pipe_end *end, uint32_t events)
{
    struct loop *loop = &end->proc->keeper->loop;
    if (end->fd < 0)
        return;
    if (events)
        loop_watch(loop, &end->watch, end->fd, events);
    else
        loop_forget(loop, &end->watch);
}

void stdio_watch(struct proc *proc)
{
    uint32_t output = proc->stopped ? 0 : EPOLLIN;
    /* A terminal is one descriptor, both ways. */
    watch_end(&proc->out, output | (proc->pty && proc->in_buf.size ? EPOLLOUT : 0));
    watch_end(&proc->err, output);
}

void stdio_end(struct proc *proc)
{
    if (proc->out.fd >= 0 && !drain(&proc->out, LAST_DRAIN, true))
        close_end(&proc->out);
    if (proc->err.fd >= 0 && !drain(&proc->err, LAST_DRAIN, true))
        close_end(&proc->err);
    close_input(proc);
}

void stdio_done(struct proc *proc)
{
    close_input(proc);
    close_end(&proc->out);
    close_end(&proc->err);
}
