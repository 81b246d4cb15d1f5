/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that a C library does not have, or has only with more work than a PID 1 wants (musl changes
 * ids in all threads; init has one).
 */
#ifndef CAY_INIT_SYS_H
#define CAY_INIT_SYS_H

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* A copy of this process, born inside the cgroup of that directory descriptor unless it is -1. */
static inline pid_t sys_fork_into(int cgroup)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (cgroup >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

static inline int sys_close_from(unsigned first)
{
    return (int)syscall(SYS_close_range, first, ~0u, 0);
}

/* Opens a path that may not leave `dir`, neither by name nor by link. */
static inline int sys_open_beneath(int dir, const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
}

static inline int sys_setgroups(size_t n, const gid_t *groups)
{
    return (int)syscall(SYS_setgroups, n, groups);
}

static inline int sys_setgid_all(gid_t gid)
{
    return (int)syscall(SYS_setresgid, gid, gid, gid);
}

static inline int sys_setuid_all(uid_t uid)
{
    return (int)syscall(SYS_setresuid, uid, uid, uid);
}

#endif
