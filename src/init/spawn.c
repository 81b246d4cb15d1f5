/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent's side of INIT_SPAWN and INIT_FS: takes the descriptors that came with the request,
 * opens the terminal, makes the status pipe, forks. All that may fail because of the sandbox's
 * files fails in the child, which tells so through the pipe.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/util.h"
#include "init/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

/* Of one request: standard streams and a memory group. */
#define MAX_FDS 4

static int open_terminal(const struct msg *msg, struct cay_error *err)
{
    int number, unlock = 0;
    struct winsize size = {.ws_row = msg->rows ? (unsigned short)msg->rows : 24,
                           .ws_col = msg->cols ? (unsigned short)msg->cols : 80};
    /* The sandbox may have put something else there: never wait for it, and ask it what it is. */
    autofd int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0 || ioctl(master, TIOCGPTN, &number) < 0 ||
        ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0)
        return cay_fail_errno(err, errno, "cannot open a terminal at /dev/ptmx in the sandbox");
    return steal_fd(&master);
}

/* Takes `want` descriptors that came with the request; all are closed again if some are missing. */
static int take_fds(struct init *init, int *fds, size_t want, struct cay_error *err)
{
    for (size_t i = 0; i < want; i++)
        fds[i] = chan_take_fd(&init->keeper);
    if (want && fds[want - 1] < 0)
        return cay_fail(err, CAY_E_INVALID, "a request came without its descriptors");
    return 0;
}

static int new_pipe(int *read_end, int *write_end, struct cay_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return cay_fail_errno(err, errno, "cannot start a process");
    *read_end = ends[0];
    *write_end = ends[1];
    return 0;
}

/* Where the kernel cannot make a process inside its cgroup, the child moves itself before it does
 * more. */
static void enter_cgroup(int cgroup, int status)
{
    if (cay_write_file_at(cgroup, "cgroup.procs", "0") == 0)
        return;
    struct cay_error err;
    cay_fail_errno(&err, errno, "cannot enter the command's cgroup");
    child_fail(status, &err);
}

static pid_t fork_child(struct init *init, const char *cgroup_name, int status,
                        struct cay_error *err)
{
    autofd int cgroup = -1;
    if (cgroup_name) {
        cgroup = openat(init->cgroup, cgroup_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (cgroup < 0)
            return cay_fail_errno(err, errno, "cannot open the command's cgroup '%s'", cgroup_name);
    }
    pid_t pid = sys_fork_into(cgroup);
    if (pid < 0 && (errno == ENOSYS || errno == E2BIG || errno == EINVAL)) {
        pid = fork();
        if (pid == 0 && cgroup >= 0)
            enter_cgroup(cgroup, status);
    }
    if (pid < 0 && errno == EAGAIN)
        return cay_fail(err, CAY_E_LIMIT,
                        "cannot start a process: the sandbox is at its process limit");
    if (pid < 0)
        return cay_fail_errno(err, errno, "cannot start a process");
    return pid;
}

static void close_all(int (*fds)[MAX_FDS])
{
    for (size_t i = 0; i < MAX_FDS; i++)
        close_fd(&(*fds)[i]);
}

static int start(struct init *init, struct proc *proc, struct child *child, struct cay_error *err)
{
    const struct msg *msg = child->msg;
    autofd int status = -1, report = -1;
    proc->warden = proc->kind == PROC_COMMAND && msg->flags & MSG_F_SUBREAPER;
    if (new_pipe(&proc->status, &status, err) < 0)
        return -1;
    if (proc->warden && new_pipe(&proc->report, &report, err) < 0)
        return -1;
    child->status = status;
    child->master = proc->master;
    pid_t pid = fork_child(init, proc->kind == PROC_COMMAND ? msg->name : NULL, status, err);
    if (pid < 0)
        return -1;
    if (pid == 0) {
        if (proc->kind == PROC_WORKER)
            worker_run(msg, child->stdio[0], status);
        if (proc->warden)
            warden_run(child, report);
        child_run(child);
    }
    proc->child = pid;
    proc->pid = proc->warden ? 0 : pid;
    return 0;
}

static int spawn(struct init *init, enum proc_kind kind, const struct msg *msg, size_t n_fds,
                 struct cay_error *err)
{
    struct child child = {.msg = msg, .stdio = {-1, -1, -1}, .tasks = -1};
    __attribute__((cleanup(close_all))) int fds[MAX_FDS] = {-1, -1, -1, -1};
    bool tasks = kind == PROC_COMMAND && msg->flags & MSG_F_TASKS;
    if (take_fds(init, fds, n_fds + tasks, err) < 0)
        return -1;
    memcpy(child.stdio, fds, n_fds * sizeof(*fds));
    if (tasks)
        child.tasks = fds[n_fds];
    struct proc *proc = proc_new(init, kind, msg->tag, err);
    if (!proc)
        return -1;
    if (kind == PROC_COMMAND && msg->flags & MSG_F_PTY &&
        (proc->master = open_terminal(msg, err)) < 0)
        goto fail;
    if (start(init, proc, &child, err) == 0)
        return 0;
fail:
    proc_free(init, proc);
    return -1;
}

int spawn_command(struct init *init, const struct msg *msg, struct cay_error *err)
{
    init_name_host(init);
    return spawn(init, PROC_COMMAND, msg, msg->flags & MSG_F_PTY ? 0 : 3, err);
}

int spawn_worker(struct init *init, const struct msg *msg, struct cay_error *err)
{
    init_name_host(init);
    return spawn(init, PROC_WORKER, msg, 1, err);
}
