/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a jail can wait until it is known whose it is: host name, bind mounts, the size of a disk
 * that is a tmpfs, what it is told of its limits. Everything else, the whole confinement of init
 * among it, is in force before; so a jail that was made ahead of time has its init up and waiting,
 * and these few steps are all that is left to do. That is safe because nothing else runs in it yet:
 * init forks when the keeper says so, and the keeper does not before this is done.
 *
 * As root the keeper itself has moved to the UTS namespace, which costs it nothing, and names the
 * host with one call. Mounts, and rootless everything, need to be root inside: a child of the
 * keeper's joins the namespaces for the moment, but not the pid namespace, and is gone before
 * anything else can be there. It is the code of jail_start that mounts, by descriptors.
 */
#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/idmap.h"
#include "jail/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static int open_namespace(const struct jail *jail, const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)jail->pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int jail_hold(struct jail *jail, bool privileged, struct cay_error *err)
{
    jail->users = open_namespace(jail, "user");
    jail->names = open_namespace(jail, "uts");
    if (jail->users < 0 || jail->names < 0 || jail->mounts < 0)
        return cay_fail_errno(err, errno, "cannot hold the sandbox's namespaces");
    if (privileged && setns(jail->names, CLONE_NEWUTS) < 0)
        return cay_fail_errno(err, errno, "cannot enter the sandbox's UTS namespace");
    return 0;
}

/* A tmpfs lets itself be resized; a disk of its own does not, and is not asked to. */
static int resize(const struct jail *jail, const struct jail_plan *plan, struct cay_error *err)
{
    char size[32], inodes[32];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)plan->disk_bytes);
    snprintf(inodes, sizeof(inodes), "%llu", (unsigned long long)plan->inodes);
    autofd int fs = sys_fspick(jail->disk);
    if (fs < 0 || sys_fsconfig(fs, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
        sys_fsconfig(fs, FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) < 0 ||
        sys_fsconfig(fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
        return cay_fail_errno(err, errno, "cannot set the size of the sandbox's disk");
    return 0;
}

/* ---- inside ---------------------------------------------------------------------------------- */

static int work_inside(const struct jail *jail, const struct jail_plan *plan, bool other_size,
                       int *trees, struct cay_error *err)
{
    if (setns(jail->users, CLONE_NEWUSER) < 0 || setns(jail->mounts, CLONE_NEWNS) < 0 ||
        (!plan->privileged && setns(jail->names, CLONE_NEWUTS) < 0))
        return cay_fail_errno(err, errno, "cannot enter the sandbox's namespaces");
    if (become_root(plan, err) < 0)
        return -1;
    if (!plan->privileged && sethostname(plan->hostname, strlen(plan->hostname)) < 0)
        return cay_fail_errno(err, errno, "cannot set the host name");
    if (!plan->privileged && other_size && resize(jail, plan, err) < 0)
        return -1;
    const struct jail_root root = {
        .root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), .stage = -1, .disk = -1};
    if (root.root < 0)
        return cay_fail_errno(err, errno, "cannot open the sandbox's root");
    return rootfs_binds(plan, &(struct jail_trees){.binds = trees}, &root, err);
}

/* A failure comes back in one piece: an error is smaller than what a pipe takes at once. */
static int run_inside(const struct jail *jail, const struct jail_plan *plan, bool other_size,
                      int *trees, struct cay_error *err)
{
    struct cay_error told = {0};
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return cay_fail_errno(err, errno, "cannot make a pipe");
    autofd int in = ends[0], out = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        int done = work_inside(jail, plan, other_size, trees, &told);
        if (done < 0)
            (void)!write(out, &told, sizeof(told));
        _exit(done < 0);
    }
    close_fd(&out);
    if (pid < 0)
        return cay_fail_errno(err, errno, "cannot fork");
    ssize_t n = cay_read_all(in, (char *)&told, sizeof(told));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (n == (ssize_t)sizeof(told))
        return cay_fail_copy(err, told.code, told.sys_errno, told.text);
    return status == 0 ? 0 : cay_fail(err, CAY_E_INTERNAL, "mounting in the sandbox failed");
}

/* ---- outside --------------------------------------------------------------------------------- */

static int late_inside(const struct jail *jail, const struct jail_plan *plan, bool other_size,
                       struct cay_error *err)
{
    int trees[CAY_MAX_MOUNTS];
    size_t n = 0;
    int result = 0;
    for (; result == 0 && n < plan->n_binds; n++) {
        trees[n] = idmap_bind(plan, &plan->binds[n], err);
        if (trees[n] < 0)
            result = -1;
    }
    if (result == 0)
        result = run_inside(jail, plan, other_size, trees, err);
    for (size_t i = 0; i < n; i++)
        close_fd(&trees[i]);
    return result;
}

int jail_late(const struct jail *jail, const struct jail_plan *made, const struct jail_plan *plan,
              struct cay_error *err)
{
    if (plan->n_binds && !plan->privileged)
        return cay_fail(err, CAY_E_UNSUPPORTED, "without root there are no mounts later");
    if (plan->privileged && sethostname(plan->hostname, strlen(plan->hostname)) < 0)
        return cay_fail_errno(err, errno, "cannot set the host name");
    bool other_size = plan->disk_bytes != made->disk_bytes || plan->inodes != made->inodes;
    if (plan->privileged && other_size && resize(jail, plan, err) < 0)
        return -1;
    return plan->privileged && !plan->n_binds ? 0 : late_inside(jail, plan, other_size, err);
}

int jail_figures(const struct jail *jail, uint64_t memory, uint64_t cpus_milli)
{
    char text[1024];
    int n = jail_meminfo(text, sizeof(text), memory, 0);
    if (jail->meminfo >= 0 &&
        (n < 0 || ftruncate(jail->meminfo, 0) < 0 || pwrite(jail->meminfo, text, (size_t)n, 0) < 0))
        return -1;
    if (jail->cpuinfo < 0 || !cpus_milli)
        return 0;
    autofd int in = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    if (in < 0 || ftruncate(jail->cpuinfo, 0) < 0 || lseek(jail->cpuinfo, 0, SEEK_SET) < 0)
        return -1;
    return pseudo_cpuinfo(in, jail->cpuinfo, cpus_milli);
}
