/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The children of init: each goes from started (its pipe is open) to answered (SPAWNED, OK or ERROR
 * was sent) to dead (EXITED was sent), in this order whatever the order of events, and is forgotten
 * when init has reaped it. Called by the loop in main.c and by spawn.c.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static const size_t max_of_kind[] = {
    [PROC_COMMAND] = CAY_MAX_PROCS, [PROC_WORKER] = CAY_MAX_CHANNELS};

struct proc *proc_new(struct init *init, enum proc_kind kind, uint32_t tag, struct cay_error *err)
{
    size_t n = 0;
    for (const struct proc *proc = init->procs; proc; proc = proc->next)
        n += proc->kind == kind;
    if (n >= max_of_kind[kind]) {
        cay_fail(err, CAY_E_LIMIT, "this sandbox runs its maximum of %zu %s", max_of_kind[kind],
                 kind == PROC_COMMAND ? "commands" : "file channels");
        return NULL;
    }
    struct proc *proc = calloc(1, sizeof(*proc));
    if (!proc) {
        cay_fail_errno(err, ENOMEM, "cannot start a process");
        return NULL;
    }
    *proc = (struct proc){
        .next = init->procs, .kind = kind, .tag = tag, .status = -1, .report = -1, .master = -1};
    init->procs = proc;
    return proc;
}

void proc_free(struct init *init, struct proc *proc)
{
    for (struct proc **at = &init->procs; *at; at = &(*at)->next) {
        if (*at != proc)
            continue;
        *at = proc->next;
        close_fd(&proc->status);
        close_fd(&proc->report);
        close_fd(&proc->master);
        free(proc);
        return;
    }
}

static void send_exited(struct init *init, struct proc *proc, const struct warden_report *report)
{
    struct msg msg = {.type = INIT_EXITED,
                      .pid = (uint64_t)proc->pid,
                      .number = (uint64_t)(unsigned)report->status,
                      .cpu_us = report->cpu_us,
                      .peak_memory = report->peak_memory};
    if (!proc->dead)
        init_send(init, &msg, NULL, 0);
    proc->dead = true;
}

/* Sends what is owed for the start, once it is known how it went. */
static void answer(struct init *init, struct proc *proc, const struct cay_error *failed)
{
    proc->answered = true;
    if (failed) {
        proc->dead = true;
        init_send_error(init, proc->tag, failed);
    } else if (proc->kind == PROC_WORKER) {
        proc->dead = true;
        init_send_ok(init, proc->tag);
    } else {
        struct msg msg = {.type = INIT_SPAWNED, .tag = proc->tag, .pid = (uint64_t)proc->pid};
        init_send(init, &msg, &proc->master, proc->master >= 0);
    }
    close_fd(&proc->master);
}

/* Reads the start's outcome. It stays open (and nothing is answered) while the child is
 * on its way. */
static void read_status(struct init *init, struct proc *proc)
{
    struct cay_error failed;
    if (proc->status >= 0) {
        ssize_t n = read(proc->status, &failed, sizeof(failed));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        close_fd(&proc->status);
        if (n == sizeof(failed)) {
            failed.text[sizeof(failed.text) - 1] = 0;
            answer(init, proc, &failed);
            return;
        }
    }
    if (!proc->answered && proc->pid)
        answer(init, proc, NULL);
}

static void read_report(struct init *init, struct proc *proc)
{
    struct warden_report report;
    while (proc->report >= 0) {
        ssize_t n = read(proc->report, &report, sizeof(report));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n != sizeof(report)) {
            close_fd(&proc->report);
            return;
        }
        if (!report.ended) {
            proc->pid = report.pid;
            continue;
        }
        read_status(init, proc);
        send_exited(init, proc, &report);
    }
}

void proc_progress(struct init *init)
{
    for (struct proc *proc = init->procs; proc; proc = proc->next) {
        if (proc->report >= 0)
            read_report(init, proc);
        if (proc->status >= 0 || (!proc->answered && proc->pid))
            read_status(init, proc);
    }
}

/*
 * The warden is gone. In the usual case it has reported and had no children left. If it was killed,
 * what it held has become init's own children, among others' that it cannot be told from later: all
 * of it is killed, or a timeout would miss it. The command is reaped here; if that is gone too, its
 * end is made up.
 */
static void warden_ended(struct init *init, struct proc *proc, int status)
{
    struct cay_error err;
    proc->child = 0; /* it is reaped: whoever gets that number is another */
    if (status != 0)
        (void)tree_kill_strays(init, &err);
    read_report(init, proc);
    read_status(init, proc);
    if (!proc->answered) {
        cay_fail(&err, CAY_E_INTERNAL,
                 "the command's warden was killed before the command started");
        answer(init, proc, &err);
    }
    if (!proc->dead) {
        siginfo_t info;
        if (waitid(P_PID, (id_t)proc->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
            proc->child = proc->pid;
            proc->warden = false;
            return;
        }
        send_exited(init, proc, &(struct warden_report){.status = SIGKILL});
    }
    proc_free(init, proc);
}

static void command_ended(struct init *init, struct proc *proc, int status,
                          const struct rusage *usage)
{
    struct warden_report report = {.pid = proc->pid, .status = status};
    rusage_to_report(usage, &report);
    read_status(init, proc);
    send_exited(init, proc, &report);
}

static void child_ended(struct init *init, struct proc *proc, int status,
                        const struct rusage *usage)
{
    if (proc->warden) {
        warden_ended(init, proc, status);
        return;
    }
    command_ended(init, proc, status, usage);
    proc_free(init, proc);
}

void proc_reap(struct init *init)
{
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0)
            return;
        for (struct proc *proc = init->procs; proc; proc = proc->next) {
            if (proc->child == pid) {
                child_ended(init, proc, status, &usage);
                break;
            }
            /* A killed warden's command may be found before the warden itself is. */
            if (proc->warden && proc->report >= 0)
                read_report(init, proc);
            if (proc->warden && !proc->dead && proc->pid == pid) {
                command_ended(init, proc, status, &usage);
                break;
            }
        }
    }
}

int proc_signal(struct init *init, const struct msg *msg, struct cay_error *err)
{
    struct proc *found = NULL;
    bool tree = msg->flags & MSG_F_TREE;
    for (struct proc *proc = init->procs; proc; proc = proc->next) {
        bool fits = proc->kind == PROC_COMMAND && proc->answered && (uint64_t)proc->pid == msg->pid;
        /* A warden's command may have ended while its tree lives on; a living
         * namesake comes first. */
        if (fits && (!proc->dead || (tree && proc->warden && !found)))
            found = proc;
    }
    if (msg->signal >= NSIG)
        return cay_fail(err, CAY_E_INVALID, "no signal %llu", (unsigned long long)msg->signal);
    if (!found || msg->pid <= 1)
        return cay_fail(err, CAY_E_NOT_FOUND, "no running process %llu",
                        (unsigned long long)msg->pid);
    if (tree)
        return tree_signal(found->child, !found->warden, (int)msg->signal, err);
    pid_t target = msg->flags & MSG_F_GROUP ? -found->pid : found->pid;
    if (kill(target, (int)msg->signal) < 0 && errno != ESRCH)
        return cay_fail_errno(err, errno, "cannot send signal %d to process %d", (int)msg->signal,
                              found->pid);
    return 0;
}
