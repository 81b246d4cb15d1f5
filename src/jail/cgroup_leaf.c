/* SPDX-License-Identifier: Apache-2.0 */
/*
 * v2 only: the sandbox's group gives its memory controller on to its commands' groups, so that the
 * kernel kills the one command that has run out of memory, with all it started, and counts whose it
 * was. A group that does so must not have processes of its own: init lives in a leaf beside them.
 *
 * Init clones into groups beside its own, which on hosts with `nsdelegate` the kernel allows only
 * if its cgroup namespace shows both, so the root of that must be the sandbox's group, where init
 * is not. As root a helper that lives there for a moment makes the namespace (leaf_space), and init
 * is born with it (start.c). Rootless init is born in the sandbox's group, makes its namespace and
 * then moves into the leaf (cgroup_settle_self): dearer, as moving waits for the whole machine.
 */
#include "jail/cgroup_host.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LEAF "init"
/* A process that has been waited for may still be on its way out of its group. */
#define TRIES 50

/* Owned: a cgroup namespace whose root is the sandbox's group; -1 where we have no right to it. */
static int leaf_space(const struct cgroup *cg)
{
    autofd int space = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct sys_clone_args args = {
        .flags = CLONE_INTO_CGROUP | CLONE_FILES,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)cg->dir[CGROUP_UNIFIED],
    };
    int status = -1;
    pid_t pid = space < 0 ? -1 : sys_clone3(&args);
    if (pid == 0) {
        /* Descriptors are shared: ours takes the place of the one that waits for it. */
        int made =
            unshare(CLONE_NEWCGROUP) < 0 ? -1 : open("/proc/self/ns/cgroup", O_RDONLY | O_CLOEXEC);
        int put = made < 0 ? -1 : dup3(made, space, O_CLOEXEC);
        close_fd(&made);
        _exit(put < 0);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status == 0 ? steal_fd(&space) : -1;
}

static int give_memory_on(const struct cgroup *cg)
{
    for (int i = 0;; i++) {
        if (cay_write_file_at(cg->dir[CGROUP_UNIFIED], "cgroup.subtree_control", "+memory") == 0)
            return 0;
        if (errno != EBUSY || i == TRIES)
            return -1;
        poll(NULL, 0, 1);
    }
}

int cgroup_leaf_make(struct cgroup *cg, const struct cgroup_host *host, struct cay_error *err)
{
    int dir = cg->dir[CGROUP_UNIFIED];
    if (cg->kind != CGROUP_V2)
        return 0;
    if (mkdirat(dir, LEAF, 0755) < 0 ||
        (cg->leaf = openat(dir, LEAF, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
        return cay_fail_errno(err, errno, "cannot make control group %s/%s", cg->id, LEAF);
    cg->space = leaf_space(cg);
    if (cg->space < 0) {
        cg->move = openat(cg->leaf, "cgroup.procs", O_WRONLY | O_CLOEXEC);
        return cg->move >= 0 ? 0 : cay_fail_errno(err, errno, "cannot open %s/%s", cg->id, LEAF);
    }
    int given = give_memory_on(cg);
    if (given < 0 && errno == ENOENT) {
        /* BASE is there without its controllers: someone was stopped in the middle of making it. */
        cgroup_host_enable(host, cg->base[CGROUP_UNIFIED]);
        given = give_memory_on(cg);
    }
    if (given < 0 && errno == ENOENT)
        return cay_fail(err, CAY_E_UNSUPPORTED, "this host's control groups count no memory");
    return given == 0 ? 0 : cay_fail_errno(err, errno, "cannot count memory in group %s", cg->id);
}

int cgroup_birth(const struct cgroup *cg)
{
    return cg->kind != CGROUP_NONE && cg->space >= 0 ? cg->leaf : cgroup_dir(cg);
}

int cgroup_space(const struct cgroup *cg)
{
    return cg->kind == CGROUP_NONE ? -1 : cg->space;
}

int cgroup_settle_self(const struct cgroup *cg)
{
    if (cgroup_space(cg) >= 0)
        return 0;
    if (unshare(CLONE_NEWCGROUP) < 0)
        return -1;
    return cg->kind == CGROUP_V2 && write(cg->move, "0", 1) != 1 ? -1 : 0;
}

static int group_kills(int dir, const char *name, void *data)
{
    (void)data;
    return strcmp(name, LEAF) == 0 ? 0 : cgroup_exec_oom_group(dir, name);
}

int cgroup_entered(struct cgroup *cg, struct cay_error *err)
{
    if (cg->kind == CGROUP_NONE)
        return 0;
    bool moved = cg->move >= 0;
    for (int part = 0; part < CGROUP_PARTS; part++)
        close_fd(&cg->tasks[part]);
    close_fd(&cg->space);
    close_fd(&cg->move);
    if (!moved)
        return 0;
    /* A first command may be there already, in a group that counts from now on. */
    if (give_memory_on(cg) < 0 || cgroup_each_child(cg->dir[CGROUP_UNIFIED], group_kills, NULL) < 0)
        return cay_fail_errno(err, errno, "cannot count memory in control group %s", cg->id);
    return 0;
}
