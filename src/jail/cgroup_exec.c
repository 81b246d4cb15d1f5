/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One group for each command: membership and kill on every kind of host, and a memory group, which
 * tells whether it was this command that ran out of memory. On hybrid hosts the latter is a v1
 * group of the same name below the sandbox's own, which the command's process enters by itself.
 */
#include "jail/cgroup_host.h"

#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define PATH_SIZE (CAY_MAX_ID + 48)

static bool exec_ok(const struct cgroup *cg, const char *name)
{
    errno = cg->kind == CGROUP_NONE ? ENOTSUP : EINVAL;
    return cg->kind != CGROUP_NONE && cgroup_name_ok(name);
}

/* Kernels before 4.19 have no such file; nothing that we need elsewhere is that old. */
int cgroup_exec_oom_group(int dir, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/memory.oom.group", name);
    return cay_write_file_at(dir, path, "1");
}

/* Socket buffers are counted for those groups only that were given a limit: here none, for that of
 * the sandbox's own group holds for all below it. */
static int make_memory(int memory, const char *name)
{
    char path[PATH_SIZE];
    if (mkdirat(memory, name, 0755) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/%s", name, CGROUP_SOCKETS);
    if (cay_write_file_at(memory, path, "-1") == 0 || errno == ENOENT)
        return 0;
    int saved = errno;
    unlinkat(memory, name, AT_REMOVEDIR);
    errno = saved;
    return -1;
}

int cgroup_exec_create(struct cgroup *cg, const char *name)
{
    char path[PATH_SIZE];
    if (!exec_ok(cg, name))
        return -1;
    int dir = cg->dir[CGROUP_UNIFIED];
    if (mkdirat(dir, name, 0755) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/cgroup.procs", name);
    int made = cgroup_give_procs(cg, dir, path);
    if (made == 0 && cg->kind == CGROUP_HYBRID)
        made = make_memory(cg->dir[CGROUP_MEMORY], name);
    /* Rootless it comes when memory is given on: cgroup_entered. */
    else if (made == 0 && cg->move < 0)
        made = cgroup_exec_oom_group(dir, name);
    if (made == 0)
        return 0;
    int saved = errno;
    unlinkat(dir, name, AT_REMOVEDIR);
    errno = saved;
    return -1;
}

int cgroup_exec_tasks(const struct cgroup *cg, const char *name)
{
    char path[PATH_SIZE];
    if (!exec_ok(cg, name) || cg->kind != CGROUP_HYBRID)
        return -1;
    snprintf(path, sizeof(path), "%s/tasks", name);
    return openat(cg->dir[CGROUP_MEMORY], path, O_WRONLY | O_CLOEXEC);
}

static int remove_one(int dir, const char *name)
{
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

int cgroup_exec_remove(struct cgroup *cg, const char *name)
{
    if (!exec_ok(cg, name))
        return -1;
    /* The v2 group last: as long as it is there, what is in it can be killed. */
    if (cg->kind == CGROUP_HYBRID && remove_one(cg->dir[CGROUP_MEMORY], name) < 0)
        return -1;
    return remove_one(cg->dir[CGROUP_UNIFIED], name);
}
