/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of `cay doctor` that have to try something: each runs in a child that ends right
 * after, so that namespaces, mounts and filters go with it.
 */
#include "jail/probe.h"

#include "base/util.h"
#include "jail/sys.h"

#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

/* Becomes root of a new user namespace that maps only this user. 0, or -1 with errno
 * and the step. */
static int become_inner_root(int more_flags, const char **step)
{
    char map[64];
    unsigned uid = (unsigned)geteuid(), gid = (unsigned)getegid();
    *step = "unshare";
    if (unshare(CLONE_NEWUSER | more_flags) < 0)
        return -1;
    *step = "uid_map";
    (void)cay_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny");
    snprintf(map, sizeof(map), "0 %u 1", uid);
    if (cay_write_file_at(AT_FDCWD, "/proc/self/uid_map", map) < 0)
        return -1;
    snprintf(map, sizeof(map), "0 %u 1", gid);
    return cay_write_file_at(AT_FDCWD, "/proc/self/gid_map", map);
}

static bool is_zero(long long value)
{
    return value == 0;
}

static bool is_one(long long value)
{
    return value == 1;
}

/* Why user namespaces may be closed to this user: the first setting that says so. */
static const struct {
    const char *path;
    bool (*closed)(long long value);
    const char *advice;
} closed_by[] = {
    {"/proc/sys/user/max_user_namespaces", is_zero,
     "set user.max_user_namespaces above 0 with sysctl"},
    {"/proc/sys/kernel/unprivileged_userns_clone", is_zero,
     "set kernel.unprivileged_userns_clone=1 with sysctl, or run as root"},
    {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", is_one,
     "set kernel.apparmor_restrict_unprivileged_userns=0 with sysctl, install an AppArmor profile "
     "with "
     "`userns,` for the cay programs, or run as root"},
};

void probe_user_namespace(const struct probe_host *host, struct probe_result *out)
{
    const char *step,
        *advice = "the kernel needs CONFIG_USER_NS; inside a container, its seccomp profile "
                  "and capabilities must allow namespaces";
    /* The second unshare shows that capabilities count in there: AppArmor may have taken them. */
    if (become_inner_root(0, &step) == 0) {
        step = "using one";
        if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID |
                    CLONE_NEWCGROUP) == 0) {
            probe_say(out, 0, "", "user, mount, pid, net, ipc, uts and cgroup namespaces work%s",
                      host->root ? "" : " without root");
            return;
        }
    }
    int saved = errno;
    for (size_t i = 0; i < CAY_COUNT(closed_by); i++) {
        long long value = probe_number(closed_by[i].path);
        if (value >= 0 && closed_by[i].closed(value)) {
            advice = closed_by[i].advice;
            break;
        }
    }
    probe_say(out, 2, advice, "no user namespaces (%s): %s", step, strerror(saved));
}

/* A tmpfs over /tmp, seen by nobody but this child. */
static int private_tmpfs(const char **step)
{
    if (become_inner_root(CLONE_NEWNS, step) < 0)
        return -1;
    *step = "tmpfs";
    if (syscall(SYS_mount, "tmpfs", "/tmp", "tmpfs", 0, "mode=0700") < 0)
        return -1;
    return chdir("/tmp");
}

void probe_overlay(const struct probe_host *host, struct probe_result *out)
{
    const char *step;
    (void)host;
    int result = private_tmpfs(&step);
    if (result == 0) {
        step = "overlay";
        result =
            mkdir("lower", 0755) | mkdir("upper", 0755) | mkdir("work", 0755) | mkdir("all", 0755);
        if (result == 0)
            result = (int)syscall(SYS_mount, "overlay", "all", "overlay", 0,
                                  "lowerdir=lower,upperdir=upper,workdir=work,userxattr");
    }
    if (result == 0)
        probe_say(out, 0, "", "overlayfs mounts inside a user namespace");
    else
        probe_say(out, 2, "needs Linux 5.11 and the overlay module: modprobe overlay",
                  "overlayfs inside a user namespace (%s): %s", step, strerror(errno));
}

void probe_tmpfs_xattr(const struct probe_host *host, struct probe_result *out)
{
    const char *step;
    (void)host;
    int result = private_tmpfs(&step);
    if (result == 0) {
        step = "setxattr";
        result = mkdir("x", 0755) < 0 ? -1 : setxattr("x", "user.cay", "1", 1, 0);
    }
    if (result == 0)
        probe_say(out, 0, "", "tmpfs keeps user attributes");
    else
        probe_say(
            out, 1, "needs Linux 6.6 with CONFIG_TMPFS_XATTR",
            "no user attributes on tmpfs (%s): a directory of the image that was removed cannot be "
            "made again",
            step);
}

/* A user namespace with a range of ids, held by a process that waits to be killed. */
static int ranged_namespace(pid_t *holder)
{
    char path[64];
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0)
        return -1;
    *holder = fork();
    if (*holder == 0) {
        char ok = unshare(CLONE_NEWUSER) == 0;
        if (write(ready[1], &ok, 1) == 1)
            pause();
        _exit(0);
    }
    char ok = 0;
    close(ready[1]);
    bool there = *holder > 0 && read(ready[0], &ok, 1) == 1 && ok;
    close(ready[0]);
    if (!there)
        return -1;
    static const char *const maps[] = {"uid_map", "gid_map"};
    for (size_t i = 0; i < CAY_COUNT(maps); i++) {
        snprintf(path, sizeof(path), "/proc/%d/%s", (int)*holder, maps[i]);
        if (cay_write_file_at(AT_FDCWD, path, "0 100000 65536") < 0)
            return -1;
    }
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)*holder);
    return open(path, O_RDONLY | O_CLOEXEC);
}

void probe_idmap(const struct probe_host *host, struct probe_result *out)
{
    const char *paths[] = {"/", "/usr", host->state_dir};
    pid_t holder = -1;
    if (!host->root) {
        probe_say(out, 1, "run as root, or give bind mounts to files that you own",
                  "idmapped mounts need root: files of the host's other users appear as nobody's");
        return;
    }
    autofd int ns = ranged_namespace(&holder);
    for (size_t i = 0; i < CAY_COUNT(paths); i++) {
        struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)ns};
        if (!paths[i])
            continue;
        autofd int tree = sys_open_tree(AT_FDCWD, paths[i], OPEN_TREE_CLONE);
        if (tree < 0 && errno == ENOENT)
            continue;
        if (tree < 0 || ns < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr) < 0) {
            probe_say(out, 1, "needs Linux 5.12 (6.3 for tmpfs) and ext4, xfs, btrfs or tmpfs",
                      "no idmapped mounts of %s (%s): its files appear as nobody's and cannot be "
                      "changed inside",
                      paths[i], strerror(errno));
            goto out;
        }
    }
    probe_say(out, 0, "", "idmapped mounts work");
out:
    if (holder > 0) {
        kill(holder, SIGKILL);
        waitpid(holder, NULL, 0);
    }
}

void probe_seccomp(const struct probe_host *host, struct probe_result *out)
{
    uint32_t action = SECCOMP_RET_KILL_PROCESS;
    (void)host;
    if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0)
        probe_say(out, 0, "", "system call filters work");
    else
        probe_say(out, 2, "the kernel needs CONFIG_SECCOMP_FILTER", "no system call filters: %s",
                  strerror(errno));
}
