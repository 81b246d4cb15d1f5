/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory: the command whose process the kernel killed for it dies, all of it, and nothing
 * else. The kernel chooses (the largest process of the sandbox; init is never the first, see
 * init/child.c) and counts in the memory group of the command. On v2 it kills all of that group by
 * itself. On hybrid hosts it kills one process and tells us before; we find out whose it was and
 * kill the rest, mostly while the victim still gives its memory back, which is before its parent
 * can notice.
 *
 * Nothing waits for us: with a keeper that is stopped or dead the kernel frees memory all the same.
 */
#include "base/util.h"
#include "keeper/keeper.h"

#include <signal.h>
#include <stdio.h>

/*
 * From the kernel's notice to its count: look again this often. Mostly the first look finds it, but
 * several that come close together have one notice.
 */
static const struct {
    uint64_t delay_us;
    int times;
} looks[] = {{200, 10}, {2000, 10}, {20000, 10}};

/* What part of the memory files must take to be worth a word: half is the most that they have as
 * root. */
#define FILES_SHARE 4

static uint64_t next_look(int n)
{
    for (size_t i = 0; i < CAY_COUNT(looks); n -= looks[i++].times)
        if (n < looks[i].times)
            return looks[i].delay_us;
    return 0;
}

static bool was_hit(struct proc *proc)
{
    char name[16];
    group_name(&proc->group, name);
    uint64_t kills = cgroup_exec_oom_kills(&proc->keeper->cgroup, name);
    if (kills <= proc->group.oom_kills)
        return false; /* or it could not be read */
    proc->group.oom_kills = kills;
    return true;
}

/* Taken at the end, when what the command itself had is free again: what is left is files. */
static void describe(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    uint64_t files = cgroup_shmem(&k->cgroup), all = k->spec.spec.memory;
    if (files < all / FILES_SHARE)
        snprintf(proc->oom_text, sizeof(proc->oom_text), "out of memory");
    else
        snprintf(proc->oom_text, sizeof(proc->oom_text),
                 "out of memory: files in memory take %llu of %llu MiB",
                 (unsigned long long)(files >> 20), (unsigned long long)(all >> 20));
}

void oom_mark(struct proc *proc)
{
    if (!proc->grouped || !was_hit(proc))
        return;
    proc->keeper->oom_kills += !proc->oom_counted;
    proc->oom_counted = true;
    /* What it left behind is not what its caller was told about. */
    proc->oom |= proc->state != PROC_ENDED;
    proc_kill_tree(proc, SIGKILL);
}

static bool take_notice(struct keeper *k)
{
    uint64_t count;
    return k->oom_fd >= 0 && read(k->oom_fd, &count, sizeof(count)) > 0;
}

static void on_look(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, oom_timer);
    for (struct proc *p = k->procs; p; p = p->next)
        oom_mark(p);
    uint64_t again = next_look(k->oom_looks++);
    if (again && k->phase == PHASE_UP)
        timer_set(&k->loop, timer, cay_now_us() + again);
}

static void on_notice(struct watch *watch, uint32_t events)
{
    struct keeper *k = container_of(watch, struct keeper, oom_watch);
    (void)events;
    if (!take_notice(k)) {
        loop_forget(&k->loop, &k->oom_watch);
        return;
    }
    k->oom_looks = 0;
    on_look(&k->oom_timer);
}

void oom_watch(struct keeper *k)
{
    k->oom_seen = cgroup_oom_kills(&k->cgroup);
    k->oom_fd = cgroup_oom_eventfd(&k->cgroup);
    k->oom_timer.fire = on_look;
    k->oom_watch = (struct watch){.fd = -1, .ready = on_notice};
    if (k->oom_fd >= 0)
        loop_watch(&k->loop, &k->oom_watch, k->oom_fd, EPOLLIN);
}

bool oom_took_init(struct keeper *k)
{
    return cgroup_oom_kills(&k->cgroup) > k->oom_seen;
}

void oom_exited(struct proc *proc)
{
    /* A child of its may have been hit, and the command been quicker than our look. */
    bool news = take_notice(proc->keeper);
    if (news || proc->keeper->oom_timer.armed || proc->signal == SIGKILL)
        oom_mark(proc);
    if (news) {
        proc->keeper->oom_looks = 0;
        on_look(&proc->keeper->oom_timer);
    }
    proc->oom &= !proc->timed_out;
    if (!proc->oom)
        return;
    describe(proc);
    proc->why = proc->oom_text;
    proc->signal = SIGKILL;
    proc->exit_code = 128 + SIGKILL;
}
