/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a keeper at work may call, as data for seccomp-gen.c: src/keeper/rights.c loads the program
 * when the sandbox is up. Everything that is not named here is EPERM: starting programs and
 * processes, sockets, mounts, namespaces, ids, debugging, modules, io_uring and the rest.
 *
 * Calls that change a file by its name and that Landlock does not look at (chmod, chown, setxattr,
 * utimes, link, mount, connect) are missing on purpose: a keeper of root is uid 0, and owns most
 * files of the host. By descriptor they are harmless, as Landlock decides what can be opened.
 */
#ifndef CAY_TOOLS_SECCOMP_KEEPER_H
#define CAY_TOOLS_SECCOMP_KEEPER_H

#include "seccomp-table.h"

static const struct set keeper_sets[] = {
    /* records, log, spools, control groups */
    {"read write readv writev pread64 pwrite64 close open openat lseek fstat stat lstat newfstatat "
     "statx fstatfs fcntl dup ftruncate fallocate fsync fdatasync fchown fchmod getdents64 access "
     "faccessat faccessat2 mkdirat unlink unlinkat rmdir rename renameat renameat2",
     EVERY(OK)},
    /* callers and init */
    {"sendmsg recvmsg recvfrom accept4 shutdown getsockopt pipe2 pipe poll ppoll epoll_ctl "
     "epoll_wait epoll_pwait",
     EVERY(OK)},
    /* memory, time, its own end */
    {"mmap munmap mremap mprotect brk madvise clock_gettime gettimeofday nanosleep "
     "clock_nanosleep getrandom alarm setitimer rt_sigaction rt_sigprocmask rt_sigreturn getpid "
     "gettid getuid geteuid getgid getegid futex restart_syscall sched_yield wait4 waitid exit "
     "exit_group",
     EVERY(OK)},
    /* signals go to processes that it was shown by its own control group; which others it may reach
       is Landlock's to say (rights.c) */
    {"pidfd_open", EVERY(OK)},
    {"pidfd_send_signal ioctl socketpair", EVERY(NO(EPERM))},
};

static const struct check keeper_checks[] = {
    /* Nothing that was written becomes code. */
    {"mmap", {ANY(2, 0x4)}, EVERY(NO(EPERM))}, /* PROT_EXEC */
    {"mprotect", {ANY(2, 0x4)}, EVERY(NO(EPERM))},
    /* A datagram socket could send to names; a stream needs connect. AF_UNIX, SOCK_STREAM. */
    {"socketpair", {IS(0, 1), MASKED(1, 0xf, 1)}, EVERY(OK)},
    {"ioctl", {IS(1, 0x5414)}, EVERY(OK)},                  /* TIOCSWINSZ */
    {"ioctl", {IS(1, 0x5413)}, EVERY(OK)},                  /* TIOCGWINSZ: musl's isatty */
    {"ioctl", {IS(1, 0x541b)}, EVERY(OK)},                  /* FIONREAD */
    {"pidfd_send_signal", {IS(2, 0), IS(3, 0)}, EVERY(OK)}, /* no made-up siginfo */
};

/* What its counter may call (src/keeper/counter.c): it reads /proc, and answers. */
static const struct set budget_sets[] = {
    {"read readv pread64 close lseek fstat stat newfstatat statx getdents64 fcntl kcmp sysinfo "
     "recvfrom sendto",
     EVERY(OK)},
    {"mmap munmap mremap mprotect brk madvise clock_gettime gettimeofday getrandom getpid gettid "
     "futex restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn exit exit_group",
     EVERY(OK)},
    {"open openat", EVERY(NO(EPERM))},
};

/* For reading, and files that are there. O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE. */
#define ONLY_READS (03 | 0100 | 01000 | 020000000)

static const struct check budget_checks[] = {
    {"open", {MASKED(1, ONLY_READS, 0)}, EVERY(OK)},
    {"openat", {MASKED(2, ONLY_READS, 0)}, EVERY(OK)},
    {"mmap", {ANY(2, 0x4)}, EVERY(NO(EPERM))}, /* PROT_EXEC */
    {"mprotect", {ANY(2, 0x4)}, EVERY(NO(EPERM))},
};

#endif
