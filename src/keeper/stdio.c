/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes into and comes out of a process. Output is drained into the spool whether or not
 * anybody listens; input is taken as far as the process reads it, and its senders are held back
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
        spool_append(&proc->spool, proc->keeper->cay.sandboxes, end->stream, chunk, (size_t)n);
        spool_append(&proc->keeper->log, proc->keeper->cay.sandboxes, end->stream, chunk,
                     (size_t)n);
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
}

static void open_end(struct pipe_end *end, struct proc *proc, int fd, int stream)
{
    *end = (struct pipe_end){
        .watch = {.fd = -1, .ready = on_output}, .proc = proc, .fd = fd, .stream = stream};
}

/* ---- standard input -------------------------------------------------------------------------- */

static void release_writers(struct proc *proc)
{
    for (struct client *c = proc->keeper->clients; c; c = c->next)
        if (c->held && c->feeds == proc) {
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
    if (proc->in >= 0 && proc->in_buf.size == 0 && proc->in_eof) {
        if (proc->pty) {
            const char eot = 4;
            (void)!write(proc->in, &eot, 1);
            proc->in_eof = false;
        } else {
            close_input(proc);
        }
    }
    uint32_t room = proc->in_buf.size ? EPOLLOUT : 0;
    if (proc->in >= 0 && !proc->pty)
        loop_watch(&proc->keeper->loop, &proc->in_watch, proc->in, room);
    else if (proc->in >= 0 && proc->out.watch.fd >= 0) /* one descriptor, both ways */
        loop_watch(&proc->keeper->loop, &proc->out.watch, proc->in, EPOLLIN | room);
    if (proc->in_buf.size < CAY_MAX_STDIN / 2)
        release_writers(proc);
}

static void on_input_room(struct watch *watch, uint32_t events)
{
    struct proc *proc = container_of(watch, struct proc, in_watch);
    if (events & (EPOLLERR | EPOLLHUP))
        close_input(proc);
    else
        push_input(proc);
    release_writers(proc);
}

int stdio_input(struct proc *proc, const char *bytes, size_t size, bool eof)
{
    if (proc->in < 0 || proc->in_eof)
        return 0; /* as writing to a closed pipe: the bytes have nowhere to go */
    if (size && buf_add(&proc->in_buf, bytes, size) < 0) {
        proc->in_buf.failed = false;
        return -1;
    }
    proc->in_eof = eof;
    push_input(proc);
    return 0;
}

/* ---- together -------------------------------------------------------------------------------- */

void stdio_init(struct proc *proc)
{
    proc->in = -1;
    proc->in_watch = (struct watch){.fd = -1, .ready = on_input_room};
    proc->in_buf = CAY_BUF(CAY_MAX_STDIN + CAY_MAX_DATA);
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
    struct loop *loop = &proc->keeper->loop;
    if (proc->pty) {
        proc->out.fd = master;
        proc->in = master;
    }
    if (proc->out.fd >= 0)
        loop_watch(loop, &proc->out.watch, proc->out.fd, EPOLLIN);
    if (proc->err.fd >= 0)
        loop_watch(loop, &proc->err.watch, proc->err.fd, EPOLLIN);
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
