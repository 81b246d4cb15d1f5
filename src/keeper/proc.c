/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes: init forks them, the keeper knows of them. A process is over when its main process
 * exits, even if a child still holds its output: the pipes then stay, and so does its cgroup. Ended
 * ones are kept for their exit code and output until there are too many.
 */
#include "base/err.h"
#include "base/util.h"
#include "keeper/keeper.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define TIMEOUT_CODE 124
/* A command starts in less than a millisecond; from inside it can be kept from that. */
#define START_PATIENCE_MS 30000
/* From the kill of a command to init's word that it is dead. */
#define KILL_PATIENCE_MS 5000

struct proc *proc_find(struct keeper *k, pid_t pid)
{
    struct proc *found = NULL;
    for (struct proc *p = k->procs; p; p = p->next)
        if (p->pid == pid && pid > 0 && (!found || found->state == PROC_ENDED))
            found = p;
    return found;
}

struct proc *proc_of_tag(struct keeper *k, uint32_t tag)
{
    for (struct proc *p = k->procs; p; p = p->next)
        if (p->tag == tag)
            return p;
    return NULL;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void describe(struct proc *proc, const struct msg *request)
{
    size_t used = 0;
    if (request->shell)
        snprintf(proc->command, sizeof(proc->command), "%s", request->shell);
    for (size_t i = 0; request->argv && request->argv[i] && used < sizeof(proc->command); i++) {
        int n = snprintf(proc->command + used, sizeof(proc->command) - used, "%s%s", i ? " " : "",
                         request->argv[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* When somebody must look at it next: the end of its time, or of our patience with init. */
static void arm_timeout(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    uint64_t at = proc->deadline_us ? proc->deadline_us : UINT64_MAX;
    if (proc->killed)
        at = cay_after_ms(KILL_PATIENCE_MS);
    else if (proc->state == PROC_STARTING)
        at = CAY_MIN(at, cay_after_ms(START_PATIENCE_MS));
    if (at == UINT64_MAX)
        timer_clear(&k->loop, &proc->timeout);
    else
        timer_set(&k->loop, &proc->timeout, at);
}

/* Time stood still for it, and for init. */
void proc_resumed(struct proc *proc, uint64_t paused_us)
{
    if (proc->state == PROC_ENDED)
        return;
    if (proc->deadline_us)
        proc->deadline_us += paused_us;
    arm_timeout(proc);
}

/*
 * The time of a command, or of its start, is up. The kill needs no init where there are cgroups. An
 * init that does not report the end soon after is hostile or stopped, and takes its sandbox along;
 * one that is frozen is asked when the sandbox is resumed.
 */
static void on_timeout(struct timer *timer)
{
    struct proc *proc = container_of(timer, struct proc, timeout);
    struct keeper *k = proc->keeper;
    if (proc->state == PROC_ENDED || k->state == CAY_STATE_PAUSED)
        return;
    if (proc->killed || (proc->state == PROC_STARTING && !proc->grouped)) {
        life_end(k, CAY_STATE_EXITED, "its init stopped answering", 0);
        return;
    }
    proc->killed = true;
    proc->timed_out = proc->deadline_us && cay_now_us() >= proc->deadline_us;
    proc_kill_tree(proc, SIGKILL);
    arm_timeout(proc);
}

static struct proc *proc_new(struct keeper *k, const struct msg *request)
{
    struct proc *proc = calloc(1, sizeof(*proc));
    if (!proc)
        return NULL;
    proc->keeper = k;
    proc->tag = ++k->next_tag;
    proc->pty = request->flags & MSG_F_PTY;
    proc->last = (request->flags & MSG_F_LAST) && k->spec.spec.ephemeral;
    proc->timeout.fire = on_timeout;
    proc->awaited = request->flags & MSG_F_HOLD ? 0 : UINT64_MAX;
    stdio_init(proc);
    lease_init(proc, request);
    spool_init(&proc->spool, k->spec.spec.output);
    describe(proc, request);
    struct proc **at = &k->procs;
    while (*at)
        at = &(*at)->next;
    *at = proc;
    return proc;
}

static bool names_variable(const char *entry, const char *other)
{
    size_t n = strcspn(entry, "=");
    return strncmp(entry, other, n + 1) == 0;
}

/* The sandbox's environment with the exec's on top. Owned array of borrowed strings. */
static const char **merge_env(const struct cay_spec *spec, const struct msg *request)
{
    size_t n = 0, m = 0, used = 0;
    while (spec->env && spec->env[n])
        n++;
    while (request->env && request->env[m])
        m++;
    const char **env = calloc(n + m + 1, sizeof(*env));
    for (size_t i = 0; env && i < n; i++) {
        bool hidden = false;
        for (size_t j = 0; j < m && !hidden; j++)
            hidden = names_variable(spec->env[i], request->env[j]);
        if (!hidden)
            env[used++] = spec->env[i];
    }
    for (size_t j = 0; env && j < m; j++)
        env[used++] = request->env[j];
    return env;
}

static int ask_init(struct proc *proc, const struct msg *request, struct cay_error *err)
{
    struct keeper *k = proc->keeper;
    const struct cay_spec *spec = &k->spec.spec;
    int theirs[4] = {-1, -1, -1, -1}; /* standard streams, the memory group; a terminal is init's */
    size_t n = proc->pty ? 0 : 3;
    char name[16];
    autofree const char **env = merge_env(spec, request);
    if (group_take(proc, err) < 0)
        return -1;
    group_name(&proc->group, name);
    if (!env || (!proc->pty && stdio_pipes(proc, request->flags & MSG_F_STDIN, theirs) < 0))
        return cay_fail_errno(err, errno, "cannot make pipes for the command");
    const struct msg spawn = {
        .type = INIT_SPAWN,
        .tag = proc->tag,
        .flags = (proc->pty ? MSG_F_PTY : 0) | (proc->grouped ? 0 : MSG_F_SUBREAPER) |
                 (proc->grouped && proc->group.tasks >= 0 ? MSG_F_TASKS : 0),
        .argv = request->argv,
        .shell = request->shell,
        .env = env,
        .cwd = request->cwd ? request->cwd : spec->cwd,
        .user = request->user ? request->user : spec->user,
        .rows = request->rows,
        .cols = request->cols,
        .name = proc->grouped ? name : NULL,
        .number = spec->fds,
    };
    if (spawn.flags & MSG_F_TASKS)
        theirs[n++] = proc->group.tasks;
    int sent = link_send(k, &spawn, theirs, n, err);
    for (int i = 0; !proc->pty && i < 3; i++)
        close_fd(&theirs[i]);
    return sent;
}

int proc_start(struct keeper *k, const struct msg *request, struct client *client,
               struct cay_error *err)
{
    if (k->running >= CAY_MAX_PROCS)
        return cay_fail(err, CAY_E_LIMIT, "%u commands run in the sandbox already", k->running);
    struct proc *proc = proc_new(k, request);
    if (!proc)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    proc->starter = client;
    proc->started_us = cay_now_us();
    proc->started_ms = cay_wall_ms();
    k->running++;
    if (ask_init(proc, request, err) < 0) {
        k->running--;
        proc->state = PROC_ENDED;
        k->n_ended++;
        proc_free(proc);
        return -1;
    }
    proc->deadline_us = request->timeout_ms ? cay_after_ms(request->timeout_ms) : 0;
    arm_timeout(proc);
    return 0;
}

/*
 * Runs nothing: init forks, and the child finds that a directory is no program. But what both of
 * them and we need for a start is in memory then, and has its pages, when the first command comes.
 */
void proc_warm(struct keeper *k)
{
    const char *const argv[] = {"/", NULL};
    const struct msg request = {.type = OP_EXEC, .argv = argv};
    (void)proc_start(k, &request, NULL, NULL);
}

/* A pid that comes again belongs to a process that is long gone: its record makes room. */
static void forget_namesake(struct proc *proc)
{
    for (struct proc *p = proc->keeper->procs; p; p = p->next) {
        if (p != proc && p->pid == proc->pid && p->state == PROC_ENDED) {
            proc_free(p);
            return;
        }
    }
}

void proc_started(struct proc *proc, pid_t pid, int master)
{
    struct keeper *k = proc->keeper;
    struct client *client = proc->starter;
    proc->pid = pid;
    proc->state = PROC_RUNNING;
    proc->starter = NULL;
    forget_namesake(proc);
    stdio_start(proc, master);
    if (!proc->killed)
        arm_timeout(proc);
    if (k->phase == PHASE_STOPPING)
        proc_kill_tree(proc, SIGTERM); /* the others were asked before it ran */
    if (client) {
        client_send(client,
                    &(struct msg){.type = MSG_STARTED, .tag = client->tag, .pid = (uint64_t)pid},
                    -1);
        client->mode = CLIENT_IDLE;
        if (!client->detach)
            client_stream(client, proc, 0, true);
    }
    if (proc->awaited == 0)
        flow_await(proc, 0, CAY_HOLD_MS);
    lease_started(proc);
    watch_start(k);
    life_dirty(k);
}

void proc_failed(struct proc *proc, const struct cay_error *why)
{
    struct client *client = proc->starter;
    proc->starter = NULL;
    proc->keeper->running--;
    proc->state = PROC_ENDED;
    proc->keeper->n_ended++;
    if (client) {
        client->mode = CLIENT_IDLE;
        client_fail(client, why);
    }
    lease_failed(proc, why);
    struct keeper *k = proc->keeper;
    /* Its child is just dying in there; the next one may have the group. */
    if (group_give(proc, true))
        proc_free(proc);
    else
        proc->lingering = true; /* the sweep removes the group, and then this */
    life_check(k);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void tell_waiters(struct proc *proc)
{
    for (struct client *c = proc->keeper->clients; c; c = c->next) {
        if (c->mode == CLIENT_WAIT && c->proc == proc) {
            client_leave(c);
            client_exit(c, proc);
        }
    }
}

/* What a child that lives on prints later comes after the exit: from this offset on. */
static void end_streams(struct proc *proc)
{
    for (struct client *c = proc->keeper->clients; c; c = c->next)
        if (c->mode == CLIENT_STREAM && c->proc == proc)
            c->until = proc->spool.end;
}

static bool has_reader(const struct keeper *k, const struct proc *proc)
{
    for (const struct client *c = k->clients; c; c = c->next)
        if (c->proc == proc)
            return true;
    return false;
}

/* Ended ones are in the order of their end, at the tail: the oldest of them make room first. */
static void move_to_tail(struct proc *proc)
{
    struct proc **at = &proc->keeper->procs;
    while (*at != proc)
        at = &(*at)->next;
    *at = proc->next;
    while (*at)
        at = &(*at)->next;
    proc->next = NULL;
    *at = proc;
}

/* The oldest ended processes make room; their output leaves memory before that. */
static void trim_ended(struct keeper *k)
{
    size_t memory = 0;
    for (struct proc *p = k->procs; p; p = p->next)
        memory += p->state == PROC_ENDED ? spool_in_memory(&p->spool) : 0;
    for (struct proc *p = k->procs; p && memory > CAY_SPOOL_MEMORY_ALL; p = p->next) {
        if (p->state == PROC_ENDED) {
            memory -= spool_in_memory(&p->spool);
            spool_spill(&p->spool, k->spools);
        }
    }
    for (struct proc *p = k->procs, *next; p && k->n_ended > CAY_MAX_ENDED; p = next) {
        next = p->next;
        if (p->state == PROC_ENDED && !p->lingering && !has_reader(k, p))
            proc_free(p);
    }
}

static void finish(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    stdio_end(proc);
    why_ended(proc);
    lease_done(proc);
    timer_clear(&k->loop, &proc->timeout);
    proc->state = PROC_ENDED;
    move_to_tail(proc);
    proc->ended_us = cay_now_us();
    k->running--;
    k->n_ended++;
    tell_waiters(proc);
    end_streams(proc);
    clients_of(k, proc);
    clients_of(k, NULL);
    flow_check(k, proc);
    /* What nobody waits for comes after the answer. */
    proc->lingering = !group_give(proc, false);
    if (!proc->last)
        group_prepare(k);
    life_dirty(k);
    trim_ended(k);
}

void proc_exited(struct proc *proc, int status, uint64_t cpu_us, uint64_t peak)
{
    struct keeper *k = proc->keeper;
    proc->cpu_us = cpu_us;
    proc->peak_memory = peak;
    proc->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    proc->exit_code = proc->timed_out ? TIMEOUT_CODE
                      : proc->signal  ? 128 + proc->signal
                                      : WEXITSTATUS(status);
    oom_exited(proc);
    bool last = proc->last;
    if (last)
        life_last(k); /* first: once its caller knows of the exit, nobody should see the sandbox */
    finish(proc);
    if (last)
        life_end(k, CAY_STATE_EXITED, k->reason, 0);
    else
        life_check(k);
}

void proc_abandoned(struct proc *proc)
{
    if (proc->state == PROC_STARTING) {
        struct cay_error why;
        cay_fail(&why, CAY_E_GONE, "sandbox '%s' ended before the command started",
                 proc->keeper->id);
        if (proc->starter) {
            proc->starter->mode = CLIENT_IDLE;
            client_fail(proc->starter, &why);
            proc->starter = NULL;
        }
        lease_failed(proc, &why);
    }
    proc->signal = SIGKILL;
    proc->exit_code = proc->timed_out ? TIMEOUT_CODE : 128 + SIGKILL;
    proc->oom |= proc->keeper->state == CAY_STATE_OOM;
    finish(proc);
}

void proc_kill_tree(struct proc *proc, int signal)
{
    struct keeper *k = proc->keeper;
    struct cay_error err;
    char name[16];
    if (proc->grouped) {
        group_name(&proc->group, name);
        proc->group.killed |= signal == SIGKILL;
        if (signal == SIGKILL)
            cgroup_exec_kill(&k->cgroup, name);
        else
            cgroup_exec_signal(&k->cgroup, name, signal);
        return;
    }
    const struct msg msg = {.type = INIT_SIGNAL,
                            .tag = ++k->next_tag,
                            .pid = (uint64_t)proc->pid,
                            .signal = (uint64_t)signal,
                            .flags = MSG_F_TREE};
    link_send(k, &msg, NULL, 0, &err);
}

bool proc_any(const struct keeper *k)
{
    if (k->running)
        return true;
    for (const struct proc *p = k->procs; p; p = p->next)
        if (p->lingering)
            return true;
    return false;
}

void proc_sweep(struct keeper *k)
{
    for (struct proc *p = k->procs, *next; p; p = next) {
        next = p->next;
        if (!p->lingering)
            continue;
        oom_mark(p); /* whoever has the group next starts from this count */
        p->lingering = !group_give(p, false);
        if (!p->lingering && p->pid == 0)
            proc_free(p);
    }
}

void proc_free(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    for (struct proc **at = &k->procs; *at; at = &(*at)->next) {
        if (*at == proc) {
            *at = proc->next;
            break;
        }
    }
    /* Who still reads or waits gets its end, if not all that it printed. */
    for (struct client *c = k->clients; c; c = c->next) {
        if (c->proc != proc)
            continue;
        bool waits = c->mode == CLIENT_STREAM || c->mode == CLIENT_WAIT;
        c->proc = NULL;
        if (waits) {
            client_leave(c);
            client_exit(c, proc);
        }
    }
    group_drop(proc);
    if (proc->state == PROC_ENDED)
        k->n_ended--;
    timer_clear(&k->loop, &proc->timeout);
    flow_forget(proc);
    lease_forget(proc);
    stdio_done(proc);
    free(proc);
}
