/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay-init: set-up, the poll loop and the dispatch of the keeper's requests. See init.h.
 * Contract of the exec (by the keeper's setup child): fd 3 is the keeper's socket, fd 4 the
 * sandbox's cgroup directory if argv[1] contains "cgroup", fds 0 to 2 are /dev/null, all else is
 * closed.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

static int on_signal(struct init *init, const struct msg *msg, struct cay_error *err)
{
    if (proc_signal(init, msg, err) < 0)
        return -1;
    init_send_ok(init, msg->tag);
    return 0;
}

static const struct {
    uint16_t type;
    int (*handle)(struct init *init, const struct msg *msg, struct cay_error *err);
} requests[] = {
    {INIT_SPAWN, spawn_command},
    {INIT_SIGNAL, on_signal},
    {INIT_FS, spawn_worker},
};

static void dispatch(struct init *init, const struct msg *msg)
{
    struct cay_error err = {0};
    for (size_t i = 0; i < CAY_COUNT(requests); i++) {
        if (requests[i].type != msg->type)
            continue;
        if (requests[i].handle(init, msg, &err) < 0)
            init_send_error(init, msg->tag, &err);
        return;
    }
    cay_fail(&err, CAY_E_INVALID, "init does not know request %u", msg->type);
    init_send_error(init, msg->tag, &err);
}

static void read_requests(struct init *init)
{
    ssize_t n = chan_fill(&init->keeper);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        _exit(0); /* the keeper is gone: the kernel ends the sandbox with its PID 1 */
    for (;;) {
        struct msg msg;
        int popped = chan_pop(&init->keeper, &msg, NULL);
        if (popped < 0)
            _exit(1);
        if (popped == 0)
            break;
        dispatch(init, &msg);
        msg_done(&msg);
    }
    /* An idle init keeps no buffer: most of its life it is idle. */
    if (init->keeper.in.size == init->keeper.eaten) {
        buf_done(&init->keeper.in);
        init->keeper.eaten = 0;
    }
}

static void drain_signals(struct init *init)
{
    struct signalfd_siginfo info[4];
    while (read(init->signals, info, sizeof(info)) > 0)
        continue;
}

static size_t count_pipes(const struct init *init)
{
    size_t n = 0;
    for (const struct proc *proc = init->procs; proc; proc = proc->next)
        n += (size_t)(proc->status >= 0) + (size_t)(proc->report >= 0);
    return n;
}

/* One turn: sleep until something happens, then do all of it. */
static void turn(struct init *init)
{
    size_t n_pipes = count_pipes(init), n = 2;
    struct pollfd few[8], *polls = few;
    autofree struct pollfd *many = NULL;
    if (n_pipes + n > CAY_COUNT(few)) {
        many = calloc(n_pipes + n, sizeof(*many));
        if (many)
            polls = many;
        else
            n_pipes = 0; /* out of memory: children are heard when they end */
    }
    short events = (short)((init_may_read(init) ? POLLIN : 0) | (init->waiting ? POLLOUT : 0));
    polls[0] = (struct pollfd){.fd = init->keeper.sock, .events = events};
    polls[1] = (struct pollfd){.fd = init->signals, .events = POLLIN};
    for (const struct proc *proc = init->procs; n_pipes && proc; proc = proc->next) {
        if (proc->status >= 0)
            polls[n++] = (struct pollfd){.fd = proc->status, .events = POLLIN};
        if (proc->report >= 0)
            polls[n++] = (struct pollfd){.fd = proc->report, .events = POLLIN};
    }
    int ready = poll(polls, n, -1);
    if (ready <= 0)
        return;
    bool asked = polls[0].revents, reap = polls[1].revents;
    /* Starts are told before ends, and both before new requests are taken. */
    if (ready > asked + reap)
        proc_progress(init);
    if (reap) {
        drain_signals(init);
        proc_reap(init);
    }
    if (asked && init->waiting)
        init_flush(init);
    if (polls[0].revents & ~POLLOUT)
        read_requests(init);
}

static int set_up(struct init *init, const char *options)
{
    sigset_t all;
    prctl(PR_SET_DUMPABLE, 0);
    fcntl(INIT_KEEPER_FD, F_SETFD, FD_CLOEXEC);
    fcntl(INIT_KEEPER_FD, F_SETFL, O_RDWR | O_NONBLOCK);
    chan_init(&init->keeper, INIT_KEEPER_FD);
    if (strstr(options, "cgroup")) {
        init->cgroup = INIT_CGROUP_FD;
        fcntl(INIT_CGROUP_FD, F_SETFD, FD_CLOEXEC);
    }
    /* Once for all children: they inherit default dispositions and only lift the mask. */
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP)
            signal(number, SIG_DFL);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    init->signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    return init->signals < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct init init = {.cgroup = -1, .signals = -1};
    if (set_up(&init, argc > 1 ? argv[1] : "") < 0)
        return 1;
    init_send(&init, &(struct msg){.type = INIT_READY}, NULL, 0);
    /* A child may have been left to us before signals were watched. */
    proc_reap(&init);
    for (;;)
        turn(&init);
}
