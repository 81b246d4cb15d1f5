/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system call filters say, as data. seccomp-gen.c turns it into one BPF program for each
 * profile.
 *
 * Three layers, the first that speaks decides:
 *   checks[]  calls whose arguments matter, in order; only the low 32 bits of an argument are
 *             compared, because that is what the kernel reads of an int
 *   sets[]    whole calls, by name, with one answer for each profile
 *   default   ENOSYS: programs take a call that is refused like this for one that is too new
 * A refusal that a program should see as one is EPERM.
 */
#ifndef CAY_TOOLS_SECCOMP_TABLE_H
#define CAY_TOOLS_SECCOMP_TABLE_H

#include <errno.h>
#include <linux/seccomp.h>
#include <stdint.h>

enum profile { STRICT, DEFAULT, NESTED, PROFILES };

#define OK SECCOMP_RET_ALLOW
#define NO(eno) (SECCOMP_RET_ERRNO | (eno))
#define EVERY(action)          \
    {                          \
        action, action, action \
    }

/* (argument & mask) == value, or with `any` (argument & mask) != 0. mask 0: no test. */
struct test {
    uint32_t arg, mask, value;
    int any;
};

#define IS(n, v)                         \
    {                                    \
        n, 0xffffffffu, (uint32_t)(v), 0 \
    }
#define MASKED(n, m, v) \
    {                   \
        n, m, v, 0      \
    }
#define ANY(n, m)  \
    {              \
        n, m, 0, 1 \
    }

struct check {
    const char *name;
    struct test tests[3];
    uint32_t action[PROFILES];
};

/* Calls newer than the libseccomp of supported distributions; x86_64 and aarch64 share these
 * numbers. */
static const struct {
    const char *name;
    int number;
} new_calls[] = {
    {"cachestat", 451},     {"fchmodat2", 452},        {"map_shadow_stack", 453},
    {"futex_wake", 454},    {"futex_wait", 455},       {"futex_requeue", 456},
    {"statmount", 457},     {"listmount", 458},        {"mseal", 462},
    {"setxattrat", 463},    {"getxattrat", 464},       {"listxattrat", 465},
    {"removexattrat", 466}, {"open_tree_attr", 467},   {"set_mempolicy_home_node", 450},
    {"futex_waitv", 449},   {"process_mrelease", 448}, {"memfd_secret", 447},
    {"quotactl_fd", 443},
};

/* Everything but exotic: what editors, compilers, interpreters, servers and
 * package managers call. */
static const char everyday[] =
    /* files */
    "read write open close stat fstat lstat lseek pread64 pwrite64 readv writev preadv pwritev "
    "preadv2 "
    "pwritev2 "
    "access faccessat faccessat2 openat openat2 creat close_range dup dup2 dup3 fcntl flock fsync "
    "fdatasync "
    "sync "
    "syncfs sync_file_range truncate ftruncate fallocate fadvise64 readahead getdents getdents64 "
    "getcwd "
    "chdir "
    "fchdir chroot rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat "
    "symlink "
    "symlinkat "
    "readlink readlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat umask mknod "
    "mknodat "
    "utime "
    "utimes utimensat futimesat newfstatat statx statfs fstatfs setxattr lsetxattr fsetxattr "
    "getxattr "
    "lgetxattr "
    "fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr setxattrat "
    "getxattrat "
    "listxattrat removexattrat name_to_handle_at copy_file_range sendfile splice tee vmsplice "
    "cachestat "
    "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch "
    /* no native AIO (io_setup ...): its budget is the whole host's, and programs do without */
    "ioprio_get ioprio_set "
    /* memory */
    "mmap mprotect munmap brk mremap msync mincore madvise process_madvise mlock mlock2 munlock "
    "mlockall "
    "munlockall remap_file_pages memfd_create memfd_secret pkey_mprotect pkey_alloc pkey_free "
    "mseal "
    "map_shadow_stack get_mempolicy membarrier "
    /* processes, threads, signals */
    "clone clone3 fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill "
    "rt_sigaction "
    "rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo "
    "rt_sigsuspend "
    "sigaltstack restart_syscall pause pidfd_open pidfd_send_signal process_mrelease getpid "
    "getppid gettid "
    "getpgid "
    "getpgrp setpgid getsid setsid getuid geteuid getgid getegid setuid setgid setreuid setregid "
    "getresuid "
    "setresuid getresgid setresgid setfsuid setfsgid getgroups setgroups capget capset prctl "
    "arch_prctl "
    "seccomp "
    "landlock_create_ruleset landlock_add_rule landlock_restrict_self getrlimit setrlimit "
    "prlimit64 "
    "getrusage "
    "getpriority setpriority sched_yield sched_setparam sched_getparam sched_setscheduler "
    "sched_getscheduler "
    "sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_setaffinity "
    "sched_getaffinity "
    "sched_setattr sched_getattr getcpu set_tid_address set_robust_list get_robust_list "
    "set_thread_area "
    "get_thread_area rseq futex futex_waitv futex_wake futex_wait futex_requeue unshare "
    /* time */
    "nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times alarm getitimer "
    "setitimer "
    "timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create "
    "timerfd_settime "
    "timerfd_gettime adjtimex "
    /* waiting and talking */
    "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait "
    "epoll_pwait2 "
    "eventfd "
    "eventfd2 signalfd signalfd4 pipe pipe2 ioctl connect accept accept4 bind listen sendto "
    "recvfrom sendmsg "
    "recvmsg sendmmsg recvmmsg shutdown getsockname getpeername setsockopt getsockopt shmget shmat "
    "shmctl "
    "shmdt "
    "semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend "
    "mq_timedreceive "
    "mq_notify mq_getsetattr "
    /* the rest */
    "uname sysinfo getrandom";

/* Looking into other processes: agents debug. */
static const char debugging[] = "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp";

/* For agents that bring their own sandbox; the user namespace decides what comes of it. */
static const char nesting[] = "setns mount umount2 pivot_root open_tree open_tree_attr move_mount "
                              "fsopen fsconfig fsmount fspick "
                              "mount_setattr statmount listmount sethostname setdomainname";

/* Never. personality is here for what checks[] does not allow of it. */
static const char refused[] =
    "io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key bpf "
    "perf_event_open "
    "userfaultfd "
    "kexec_load kexec_file_load init_module finit_module delete_module create_module query_module "
    "reboot "
    "swapon "
    "swapoff acct quotactl quotactl_fd open_by_handle_at lookup_dcookie settimeofday clock_settime "
    "clock_adjtime "
    "iopl ioperm vhangup nfsservctl syslog fanotify_init fanotify_mark modify_ldt mbind "
    "set_mempolicy "
    "set_mempolicy_home_node migrate_pages move_pages uselib sysfs personality";

struct set {
    const char *names;
    uint32_t action[PROFILES];
};

static const struct set sets[] = {
    {everyday, EVERY(OK)},
    {debugging, {NO(EPERM), OK, OK}},
    {nesting, {NO(EPERM), NO(EPERM), OK}},
    {refused, EVERY(NO(EPERM))},
    {"socket socketpair", EVERY(NO(EAFNOSUPPORT))},
};

/* CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET; and TIME, which in clone() is part of the exit
 * signal. */
#define CLONE_NEW_ANY 0x7e020000u
#define CLONE_NEW_TIME 0x00000080u

#define INET(family, icmp)                                                                        \
    {"socket", {IS(0, family), MASKED(1, 0xf, 1), IS(2, 0)}, EVERY(OK)},      /* stream */        \
        {"socket", {IS(0, family), MASKED(1, 0xf, 1), IS(2, 6)}, EVERY(OK)},  /* stream, TCP */   \
        {"socket", {IS(0, family), MASKED(1, 0xf, 2), IS(2, 0)}, EVERY(OK)},  /* datagram */      \
        {"socket", {IS(0, family), MASKED(1, 0xf, 2), IS(2, 17)}, EVERY(OK)}, /* datagram, UDP */ \
        {"socket", {IS(0, family), MASKED(1, 0xf, 2), IS(2, icmp)}, EVERY(OK)}, /* ping */        \
        {"socket", {IS(0, family), MASKED(1, 0xf, 3)}, EVERY(NO(EPERM))},       /* raw */         \
    {                                                                                             \
        "socket", {IS(0, family)},                                                                \
            EVERY(NO(EPROTONOSUPPORT)) /* SCTP, MPTCP, L2TP ...: as if not built in */            \
    }

static const struct check checks[] = {
    {"clone", {ANY(0, CLONE_NEW_ANY)}, {NO(EPERM), NO(EPERM), OK}},
    {"unshare", {ANY(0, CLONE_NEW_ANY | CLONE_NEW_TIME)}, {NO(EPERM), NO(EPERM), OK}},

    {"socket", {IS(0, 1)}, EVERY(OK)}, /* AF_UNIX */
    INET(2, 1),
    INET(10, 58),
    /* AF_NETLINK: ROUTE only. libaudit gives up cleanly on EPROTONOSUPPORT, and useradd fails on
       EPERM. */
    {"socket", {IS(0, 16), IS(2, 0)}, {NO(EPERM), OK, OK}},
    {"socket", {IS(0, 16)}, EVERY(NO(EPROTONOSUPPORT))},
    {"socketpair", {IS(0, 1)}, EVERY(OK)},

    /* Layers of the network stack that write to pages they were lent, or rewrite a connection's
       state. */
    {"setsockopt", {IS(1, 6), IS(2, 31)}, EVERY(NO(EPERM))}, /* SOL_TCP TCP_ULP */
    {"setsockopt", {IS(1, 6), IS(2, 19)}, EVERY(NO(EPERM))}, /* SOL_TCP TCP_REPAIR */
    {"setsockopt", {IS(1, 282)}, EVERY(NO(EPERM))},          /* SOL_TLS */
    {"setsockopt",
     {IS(1, 17), IS(2, 100)},
     EVERY(NO(EPERM))}, /* SOL_UDP UDP_ENCAP: ESP and L2TP in UDP */
    {"setsockopt", {IS(1, 0), IS(2, 16)}, EVERY(NO(EPERM))},  /* SOL_IP IP_IPSEC_POLICY */
    {"setsockopt", {IS(1, 0), IS(2, 17)}, EVERY(NO(EPERM))},  /* SOL_IP IP_XFRM_POLICY */
    {"setsockopt", {IS(1, 41), IS(2, 34)}, EVERY(NO(EPERM))}, /* SOL_IPV6 IPV6_IPSEC_POLICY */
    {"setsockopt", {IS(1, 41), IS(2, 35)}, EVERY(NO(EPERM))}, /* SOL_IPV6 IPV6_XFRM_POLICY */
    {"setsockopt",
     {IS(1, 0), MASKED(2, 0xffffffc0u, 64)},
     EVERY(NO(EPERM))}, /* iptables, arptables */
    {"setsockopt", {IS(1, 0), MASKED(2, 0xffffffc0u, 128)}, EVERY(NO(EPERM))},   /* ebtables */
    {"setsockopt", {IS(1, 0), MASKED(2, 0xffffff80u, 0x480)}, EVERY(NO(EPERM))}, /* ipvs */
    {"setsockopt", {IS(1, 41), MASKED(2, 0xfffffffeu, 64)}, EVERY(NO(EPERM))},   /* ip6tables */

    /* Compiled BPF has one budget for the whole host (net.core.bpf_jit_limit), which no control
       group counts, and without which nobody can load a filter: neither a new sandbox nor a
       service. */
    {"setsockopt", {IS(1, 1), IS(2, 26)}, EVERY(NO(EPERM))}, /* SOL_SOCKET SO_ATTACH_FILTER */
    {"setsockopt", {IS(1, 1), MASKED(2, 0xfffffffeu, 50)}, EVERY(NO(EPERM))}, /* ... _BPF, _CBPF */
    {"setsockopt", {IS(1, 1), IS(2, 52)}, EVERY(NO(EPERM))}, /* SO_ATTACH_REUSEPORT_EBPF */
    /* As a kernel without filters answers: programs that would like one go on without it. A sandbox
       inside of the sandbox cannot. PR_SET_SECCOMP, SECCOMP_SET_MODE_FILTER: */
    {"prctl", {IS(0, 22), IS(1, 2)}, {NO(EINVAL), NO(EINVAL), OK}},
    {"seccomp", {IS(0, 1)}, {NO(EINVAL), NO(EINVAL), OK}},

    {"ioctl",
     {IS(1, 0x5412)},
     EVERY(NO(EPERM))}, /* TIOCSTI: types for whoever reads the terminal */
    {"ioctl", {IS(1, 0x541c)}, EVERY(NO(EPERM))}, /* TIOCLINUX: so does its paste */
    {"ioctl", {IS(1, 0x5423)}, EVERY(NO(EPERM))}, /* TIOCSETD: line disciplines */

    {"personality", {IS(0, 0)}, EVERY(OK)},
    {"personality", {IS(0, 0xffffffffu)}, EVERY(OK)}, /* asks */
    /* PER_LINUX32, ADDR_NO_RANDOMIZE (gdb, setarch -R), both, UNAME26, UNAME26 | PER_LINUX32 */
    {"personality", {IS(0, 0x8)}, {NO(EPERM), OK, OK}},
    {"personality", {IS(0, 0x40000)}, {NO(EPERM), OK, OK}},
    {"personality", {IS(0, 0x40008)}, {NO(EPERM), OK, OK}},
    {"personality", {IS(0, 0x20000)}, {NO(EPERM), OK, OK}},
    {"personality", {IS(0, 0x20008)}, {NO(EPERM), OK, OK}},
};

#endif
