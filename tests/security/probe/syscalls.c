/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single system calls that a sandbox must not have. Where a call would do harm if it were
 * permitted, its arguments are wrong on purpose and the permission check comes first in the kernel
 * (judge_reached).
 */
#include "probe.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <termios.h>
#include <time.h>

static long sys_io_uring(void)
{
    uint32_t params[30] = {0};

    return syscall(425, 4, params);
}

static long sys_bpf(void)
{
    /* BPF_MAP_CREATE of an array with one element. */
    struct {
        uint32_t type, key, value, entries, flags, pad[16];
    } attr = {2, 4, 4, 1, 0, {0}};

    return syscall(SYS_bpf, 0, &attr, sizeof(attr));
}

static long sys_perf(void)
{
    struct {
        uint32_t type, size;
        uint64_t config, rest[14];
    } attr = {1 /* software */, sizeof(attr), 0 /* cpu clock */, {0}};

    /* All processes of one CPU: what a spy wants. */
    return syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0);
}

static long sys_userfaultfd(void)
{
    return syscall(SYS_userfaultfd, O_CLOEXEC);
}

static long sys_add_key(void)
{
    return syscall(SYS_add_key, "user", "cay-probe", "x", 1, -1 /* thread keyring */);
}

static long sys_keyctl(void)
{
    return syscall(SYS_keyctl, 0 /* get keyring id */, -3 /* session */, 1);
}

static long sys_request_key(void)
{
    return syscall(SYS_request_key, "user", "cay-none", NULL, 0); /* ENOKEY where it is permitted */
}

static long sys_reboot(void)
{
    return syscall(SYS_reboot, 0, 0, 0, NULL); /* wrong magic: EINVAL where it is permitted */
}

static long sys_settimeofday(void)
{
    int zone[2] = {10000, 0}; /* out of range: EINVAL where it is permitted */

    return syscall(SYS_settimeofday, NULL, zone);
}

static long sys_adjtimex(void)
{
    struct timex tx = {.modes = ADJ_TICK, .tick = 1}; /* out of range */

    return adjtimex(&tx);
}

static long sys_sethostname(void)
{
    return syscall(SYS_sethostname, "", -1); /* EINVAL where it is permitted */
}

static long sys_setdomainname(void)
{
    return syscall(SYS_setdomainname, "", -1);
}

static long sys_swapon(void)
{
    return syscall(SYS_swapon, "/cay-no-such-file", 0x7fffffff);
}

static long sys_swapoff(void)
{
    return syscall(SYS_swapoff, "/cay-no-such-file");
}

static long sys_quotactl(void)
{
    return syscall(SYS_quotactl, 0x80000200 /* Q_QUOTAON, user */, NULL, 0, NULL);
}

static long sys_syslog(void)
{
    char text[128];

    return syscall(SYS_syslog, 3 /* read all */, text, sizeof(text));
}

static long sys_acct(void)
{
    return syscall(SYS_acct, "/cay-no-such-file");
}

static long sys_fanotify(void)
{
    return syscall(SYS_fanotify_init, 0x4 /* FAN_CLASS_CONTENT */, O_RDONLY);
}

static long sys_fifo_scheduler(void)
{
    struct sched_param param = {.sched_priority = 1};

    return syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &param);
}

static long sys_nice(void)
{
    return setpriority(PRIO_PROCESS, 0, -20);
}

static long sys_move_host_clock(void)
{
    struct timex tx = {.modes = ADJ_TICK, .tick = 1};

    return syscall(SYS_clock_adjtime, CLOCK_REALTIME, &tx);
}

static long sys_handle(void)
{
    struct {
        unsigned bytes;
        int type;
        unsigned char data[128];
    } handle = {.bytes = 128};
    int mount_id, root = open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    /* "shocker": a file handle is a number that anyone can write down; opening by it ignores every
     * path. */
    if (syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &handle, &mount_id, 0) < 0) {
        handle.bytes = 8;
        handle.type = 1;
        memcpy(handle.data, "\2\0\0\0\0\0\0\0", 8); /* inode 2: the root of an ext4 */
    }
    return syscall(SYS_open_by_handle_at, root, &handle, O_RDONLY);
}

static long sys_setuid_unmapped(void)
{
    return syscall(SYS_setresuid, 4000000, 4000000, 4000000);
}

static long sys_capset(void)
{
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } data[2];

    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    data[0].effective |= 1u << 21; /* CAP_SYS_ADMIN */
    data[0].permitted |= 1u << 21;
    data[0].inheritable |= 1u << 21;
    return syscall(SYS_capset, &header, data);
}

static long sys_seccomp_off(void)
{
    /* A filter is for ever: prctl cannot go back to mode 0, and no_new_privs cannot be unset. */
    return prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 ? 0
           : prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)    ? -1
                                                       : 0;
}

static struct sock_filter allow_all[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
static struct sock_fprog one_filter = {1, allow_all};

static long sys_filter_by_seccomp(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -1
                                                      : syscall(SYS_seccomp, 1, 0, &one_filter);
}

static long sys_filter_by_prctl(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0
               ? -1
               : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &one_filter, 0, 0);
}

static const struct {
    const char *name;
    long (*call)(void);
    int reached; /* judge_reached instead of judge */
} calls[] = {
    {"io_uring_setup", sys_io_uring, 0},
    {"bpf", sys_bpf, 0},
    {"perf_event_open", sys_perf, 0},
    {"userfaultfd", sys_userfaultfd, 0},
    {"add_key", sys_add_key, 0},
    {"keyctl", sys_keyctl, 0},
    {"request_key", sys_request_key, 1},
    {"reboot", sys_reboot, 1},
    {"settimeofday", sys_settimeofday, 1},
    {"adjtimex", sys_adjtimex, 1},
    {"clock_adjtime", sys_move_host_clock, 1},
    {"sethostname", sys_sethostname, 1},
    {"setdomainname", sys_setdomainname, 1},
    {"swapon", sys_swapon, 1},
    {"swapoff", sys_swapoff, 1},
    {"quotactl", sys_quotactl, 1},
    {"syslog", sys_syslog, 0},
    {"acct", sys_acct, 1},
    {"fanotify_init", sys_fanotify, 0},
    {"sched_fifo", sys_fifo_scheduler, 0},
    {"nice", sys_nice, 0},
    {"open_by_handle_at", sys_handle, 0},
    {"setuid-unmapped", sys_setuid_unmapped, 0},
    {"capset", sys_capset, 0},
    {"no-new-privs-off", sys_seccomp_off, 0},
    {"filter-by-seccomp", sys_filter_by_seccomp, 0},
    {"filter-by-prctl", sys_filter_by_prctl, 0},
};

static int one_call(void *data)
{
    size_t i = *(size_t *)data;
    long result = calls[i].call();

    /* ENOSYS where the kernel has the call is a refusal; the control shows that it has it. */
    return calls[i].reached && !(result < 0 && errno == ENOSYS)
               ? judge_reached(result, calls[i].name)
               : judge(result, calls[i].name);
}

static int call(int argc, char **argv)
{
    (void)argc;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (strcmp(calls[i].name, argv[0]) == 0)
            return in_child(one_call, &i);
    }
    return untried("no such call");
}

/* The 32-bit entry: another table of numbers, which a filter for the 64-bit one does not see. */
static int call_int80(void *data)
{
    long number = *(long *)data, result;

    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(0x10000000L), "c"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    if (result < 0) {
        errno = (int)-result;
        return refused("int 0x80");
    }
    return won("int 0x80 gave %ld", result);
}

static int int80(int argc, char **argv)
{
    long number = atol(argv[0]); /* 20: getpid, 310: unshare(CLONE_NEWUSER) */

    (void)argc;
    return in_child(call_int80, &number);
}

/* tty REQUEST HIGH: on a terminal of our own; HIGH are bits above the 32 that the
 * kernel looks at. */
static int tty(int argc, char **argv)
{
    static const struct {
        const char *name;
        unsigned request;
        int reached;
    } requests[] = {
        {"TIOCSTI", 0x5412, 0},
        {"TIOCLINUX", 0x541c, 1},
        {"TIOCSETD", 0x5423, 0},
    };
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), unlock = 0, slave = -1, discipline = 0;
    char name[32], value[8] = "x";
    void *argument = value;
    unsigned number;
    long result;

    (void)argc;
    if (master < 0 || ioctl(master, 0x40045431 /* TIOCSPTLCK */, &unlock) < 0 ||
        ioctl(master, 0x80045430 /* TIOCGPTN */, &number) < 0)
        return untried("/dev/ptmx");
    snprintf(name, sizeof(name), "/dev/pts/%u", number);
    setsid();
    slave = open(name, O_RDWR);
    if (slave < 0)
        return untried(name);
    ioctl(slave, 0x540e /* TIOCSCTTY */, 0);
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(requests[i].name, argv[0]) != 0)
            continue;
        if (requests[i].request == 0x5423)
            argument = &discipline;
        result = syscall(SYS_ioctl, slave,
                         requests[i].request | (uint64_t)strtoul(argv[1], NULL, 0) << 32, argument);
        return requests[i].reached ? judge_reached(result, argv[0]) : judge(result, argv[0]);
    }
    return untried("no such request");
}

/* mknod DIR c|b MAJOR MINOR: make and, if it is a character device, open it. */
static int make_node(int argc, char **argv)
{
    dev_t device = (dev_t)((atol(argv[2]) << 8) | atol(argv[3]));
    char path[4096];
    long result;
    int fd;

    (void)argc;
    snprintf(path, sizeof(path), "%s/cay-node", argv[0]);
    unlink(path);
    result = mknod(path, (argv[1][0] == 'c' ? S_IFCHR : S_IFBLK) | 0600, device);
    if (result == 0 && argv[1][0] == 'c') {
        fd = open(path, O_RDWR | O_CLOEXEC);
        result = fd;
    }
    fd = errno;
    unlink(path);
    errno = fd;
    return judge(result, "mknod and open");
}

/* caps MASK: any capability beyond the mask in any set (bounding too)? */
static int caps(int argc, char **argv)
{
    static const char *const sets[] = {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};
    unsigned long long allowed = strtoull(argv[0], NULL, 16), value;
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];

    (void)argc;
    while (file && fgets(line, sizeof(line), file)) {
        for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
            if (strncmp(line, sets[i], 7) != 0)
                continue;
            value = strtoull(line + 7, NULL, 16);
            /* inheritable and ambient must be empty, whatever is allowed */
            if (value & ~(i == 0 || i == 4 ? 0 : allowed))
                return won("%s %llx", sets[i], value);
        }
    }
    if (!file)
        return untried("/proc/self/status");
    fclose(file);
    return refused_by("no capability beyond %llx", allowed);
}

/* powers: as an ordinary user, after the exec of a set-uid or file-capability program: anything
 * gained? */
static int powers(int argc, char **argv)
{
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long long value = 0;
    char line[256];

    (void)argc;
    (void)argv;
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "CapEff:", 7) == 0)
            value = strtoull(line + 7, NULL, 16);
    }
    if (!file)
        return untried("/proc/self/status");
    fclose(file);
    if (getuid() == 0)
        return untried("run as an ordinary user");
    if (geteuid() == 0 || getegid() == 0 || value)
        return won("effective uid %d gid %d capabilities %llx", (int)geteuid(), (int)getegid(),
                   value);
    return refused_by("nothing gained");
}

/* status-has KEY VALUE-THAT-IS-SAFE: e.g. Seccomp 2 */
static int status_lacks(int argc, char **argv)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256], value[64] = "";
    size_t n = strlen(argv[0]);

    (void)argc;
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, argv[0], n) == 0 && line[n] == ':')
            sscanf(line + n + 1, " %63s", value);
    }
    if (!file || !value[0])
        return untried(argv[0]);
    fclose(file);
    if (strcmp(value, argv[1]) != 0)
        return won("%s is %s, not %s", argv[0], value, argv[1]);
    return refused_by("%s is %s", argv[0], value);
}

const struct attack syscall_attacks[] = {
    {"call", call, 1},
    {"int80", int80, 1},
    {"tty", tty, 2},
    {"mknod", make_node, 4},
    {"caps", caps, 1},
    {"powers", powers, 0},
    {"status-lacks", status_lacks, 2},
    {NULL, NULL, 0},
};
