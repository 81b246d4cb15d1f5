/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that a C library does not have, or has only with more work than a PID 1 wants (musl
 * changes ids in all threads; init has one).
 */
#ifndef CAY_INIT_SYS_H
#define CAY_INIT_SYS_H

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
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

/* Opens a path that may not leave `dir`, step by step, where openat2 is refused: no link is
 * followed. */
static inline int sys_walk_beneath(int dir, const char *path, int flags, mode_t mode)
{
    int at = openat(dir, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        char name[256];
        size_t n = strcspn(path, "/");
        const char *rest = path + n + strspn(path + n, "/");
        if (n >= sizeof(name) || (n == 2 && path[0] == '.' && path[1] == '.')) {
            close(at);
            errno = n == 2 ? EXDEV : ENAMETOOLONG;
            return -1;
        }
        memcpy(name, n ? path : ".", n ? n : 1);
        name[n ? n : 1] = 0;
        int next = *rest ? openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                         : openat(at, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
        int eno = errno;
        close(at);
        errno = eno;
        if (!*rest)
            return next;
        at = next;
        path = rest;
    }
    return -1;
}

/* Opens a path that may not leave `dir`, neither by name nor by link. */
static inline int sys_open_beneath(int dir, const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
    return fd < 0 && errno == ENOSYS ? sys_walk_beneath(dir, path, flags, mode) : fd;
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
