/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that libc has no (portable) wrapper for. Raw, thin, in one place: glibc's
 * <sys/mount.h> and the kernel's <linux/mount.h> cannot be included together, so jail code includes
 * only this.
 */
#ifndef CAY_JAIL_SYS_H
#define CAY_JAIL_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef MNT_DETACH
#define MNT_DETACH 2
#endif
/* Ubuntu 22.04's musl does not know it. */
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

/* The kernel's struct clone_args; <linux/sched.h> clashes with musl's <sched.h>. */
struct sys_clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

static inline pid_t sys_clone3(const struct sys_clone_args *args)
{
    return (pid_t)syscall(SYS_clone3, args, sizeof(*args));
}

static inline int sys_open_tree(int dir, const char *path, unsigned flags)
{
    return (int)syscall(SYS_open_tree, dir, path, flags | O_CLOEXEC);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path)
{
    unsigned flags =
        (*from_path ? 0u : MOVE_MOUNT_F_EMPTY_PATH) | (*to_path ? 0u : MOVE_MOUNT_T_EMPTY_PATH);
    return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_fsopen(const char *type)
{
    return (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
}

/* For a change of the file system that the descriptor, the root of a mount, is of. */
static inline int sys_fspick(int fd)
{
    return (int)syscall(SYS_fspick, fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
}

static inline int sys_fsconfig(int fs, unsigned command, const char *key, const void *value,
                               int aux)
{
    return (int)syscall(SYS_fsconfig, fs, command, key, value, aux);
}

static inline int sys_fsmount(int fs, unsigned attributes)
{
    return (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes);
}

static inline int sys_mount_setattr(int dir, const char *path, unsigned flags,
                                    struct mount_attr *attr)
{
    return (int)syscall(SYS_mount_setattr, dir, path, flags, attr, sizeof(*attr));
}

static inline int sys_pivot_root(const char *new_root, const char *put_old)
{
    return (int)syscall(SYS_pivot_root, new_root, put_old);
}

static inline int sys_umount2(const char *target, int flags)
{
    return (int)syscall(SYS_umount2, target, flags);
}

static inline int sys_openat2(int dir, const char *path, uint64_t flags, uint64_t mode,
                              uint64_t resolve)
{
    struct open_how how = {.flags = flags | O_CLOEXEC, .mode = mode, .resolve = resolve};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
}

static inline int sys_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static inline int sys_pidfd_kill(int pidfd, int signal)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

static inline int sys_close_range(unsigned first, unsigned last)
{
    return (int)syscall(SYS_close_range, first, last, 0);
}

#endif
