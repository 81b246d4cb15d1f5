/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cgroups of commands. One that is empty again is kept for the next command: making and
 * removing them is work for the whole machine, and a memory group that was removed stays in the
 * kernel, unseen, for as long as a file in memory was charged to it.
 *
 * Invariant: a group that was given back is nobody's. The process that had it does not name it any
 * more (proc->grouped), so that no signal for that one can meet the next.
 */
#include "base/err.h"
#include "base/util.h"
#include "keeper/keeper.h"

#include <stdio.h>

void group_name(const struct group *group, char out[16])
{
    snprintf(out, 16, "x%u", group->number);
}

static int make(struct keeper *k, struct group *out)
{
    struct group group = {.number = k->next_group, .tasks = -1};
    char name[16];
    group_name(&group, name);
    if (cgroup_exec_create(&k->cgroup, name) < 0)
        return -1;
    group.tasks = cgroup_exec_tasks(&k->cgroup, name);
    if (group.tasks < 0 && k->cgroup.kind == CGROUP_HYBRID) {
        int saved = errno;
        cgroup_exec_remove(&k->cgroup, name);
        errno = saved;
        return -1;
    }
    k->next_group++;
    *out = group;
    return 0;
}

void group_prepare(struct keeper *k)
{
    bool thawed = k->state == CAY_STATE_RUNNING || k->parked;
    if (k->n_spare || k->phase != PHASE_UP || !thawed || cgroup_dir(&k->cgroup) < 0)
        return;
    if (make(k, &k->spare[0]) == 0)
        k->n_spare = 1;
}

int group_take(struct proc *proc, struct cay_error *err)
{
    struct keeper *k = proc->keeper;
    if (cgroup_dir(&k->cgroup) < 0)
        return 0;
    if (k->n_spare)
        proc->group = k->spare[--k->n_spare];
    else if (make(k, &proc->group) < 0)
        return cay_fail_errno(err, errno, "cannot make a cgroup for the command");
    proc->grouped = true;
    return 0;
}

bool group_give(struct proc *proc, bool dying)
{
    struct keeper *k = proc->keeper;
    char name[16];
    if (!proc->grouped)
        return true;
    group_name(&proc->group, name);
    /* Linux 6.14 and later kill whatever is cloned into a group that was ever killed. */
    bool keep = k->n_spare < CAY_COUNT(k->spare) && k->phase == PHASE_UP && !proc->group.killed;
    if (keep ? !dying && !cgroup_exec_empty(&k->cgroup, name)
             : cgroup_exec_remove(&k->cgroup, name) < 0)
        return false;
    if (keep)
        k->spare[k->n_spare++] = proc->group;
    else
        close_fd(&proc->group.tasks);
    proc->grouped = false;
    return true;
}

void group_drop(struct proc *proc)
{
    char name[16];
    if (!proc->grouped)
        return;
    group_name(&proc->group, name);
    cgroup_exec_remove(&proc->keeper->cgroup, name);
    close_fd(&proc->group.tasks);
    proc->grouped = false;
}
