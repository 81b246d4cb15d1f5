/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `cay doctor`: the table of checks, how one is run, and those that only have to look.
 */
#include "jail/probe.h"

#include "base/util.h"
#include "jail/cgroup.h"
#include "jail/shed.h"
#include "jail/sys.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>

/* A check that takes longer is stuck in the kernel, or in a file system that does not answer. */
#define CHECK_MS 5000
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_WRITE 8
#endif

void probe_say(struct probe_result *out, int level, const char *advice, const char *fmt, ...)
{
    va_list args;
    out->level = level;
    snprintf(out->advice, sizeof(out->advice), "%s", advice);
    va_start(args, fmt);
    vsnprintf(out->finding, sizeof(out->finding), fmt, args);
    va_end(args);
}

long long probe_number(const char *path)
{
    char text[64], *end;
    if (cay_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        return -1;
    long long value = strtoll(text, &end, 10);
    return end == text ? -1 : value;
}

/* ---- looking --------------------------------------------------------------------------------- */

static void check_kernel(const struct probe_host *host, struct probe_result *out)
{
    int version = host->major * 1000 + host->minor;
    struct utsname name;
    uname(&name);
    if (version >= 5014)
        probe_say(out, 0, "", "Linux %s on %s", name.release, name.machine);
    else if (version >= 5012)
        probe_say(out, 1, "Linux 5.14 or newer has everything",
                  "Linux %s: no cgroup.kill, so killing a tree is slower", name.release);
    else
        probe_say(out, 2, "install Linux 5.14 or newer", "Linux %s is too old: 5.12 is needed",
                  name.release);
}

/* Calls that the engine cannot do without; each returns 0 when the kernel has it. */
static int try_openat2(void)
{
    int fd = sys_openat2(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0, RESOLVE_IN_ROOT);
    return fd < 0 ? -1 : close(fd);
}

static int try_pidfd(void)
{
    int fd = sys_pidfd_open(getpid());
    int result = fd < 0 ? -1 : sys_pidfd_kill(fd, 0);
    close_fd(&fd);
    return result;
}

/* Asked for a group that is no descriptor: a kernel that knows the flag says so. */
static int try_clone_into_cgroup(void)
{
    struct sys_clone_args args = {
        .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = INT32_MAX};
    pid_t pid = sys_clone3(&args);
    if (pid == 0)
        _exit(0);
    return pid < 0 && errno == EBADF ? 0 : -1;
}

static int try_close_range(void)
{
    return sys_close_range(~0u, ~0u);
}

static int try_open_tree(void)
{
    int fd = sys_open_tree(AT_FDCWD, "/", 0);
    return fd < 0 ? -1 : close(fd);
}

static void check_calls(const struct probe_host *host, struct probe_result *out)
{
    static const struct {
        const char *name;
        int (*try)(void);
    } calls[] = {
        {"openat2", try_openat2},         {"pidfd_open", try_pidfd},
        {"close_range", try_close_range}, {"clone3 with CLONE_INTO_CGROUP", try_clone_into_cgroup},
        {"open_tree", try_open_tree},
    };
    (void)host;
    for (size_t i = 0; i < CAY_COUNT(calls); i++) {
        if (calls[i].try() == 0)
            continue;
        probe_say(out, 2,
                  "install Linux 5.14 or newer; inside a container, its seccomp profile must allow "
                  "the call",
                  "%s does not work: %s", calls[i].name, strerror(errno));
        return;
    }
    probe_say(out, 0, "", "openat2, pidfd, close_range, clone3 into a cgroup, open_tree");
}

static void check_memfd(const struct probe_host *host, struct probe_result *out)
{
    (void)host;
    autofd int fd = (int)syscall(SYS_memfd_create, "cay-probe", 3u /* CLOEXEC, ALLOW_SEALING */);
    if (fd < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0)
        probe_say(out, 2, "the kernel needs CONFIG_MEMFD_CREATE", "no sealed memory files: %s",
                  strerror(errno));
    else if (probe_number("/proc/sys/vm/memfd_noexec") == 2)
        probe_say(out, 2, "set vm.memfd_noexec to 0 or 1 with sysctl",
                  "vm.memfd_noexec forbids running init from one");
    else
        probe_say(out, 0, "", "sealed memory files work and can be run");
}

static void check_cgroup(const struct probe_host *host, struct probe_result *out)
{
    struct cgroup_host cg;
    cgroup_host_find(&cg);
    switch (cg.kind) {
    case CGROUP_V2:
        probe_say(out, 0, "", "cgroup v2 below %s: memory, pids, cpu, io, freeze, kill",
                  cg.parent[0]);
        return;
    case CGROUP_HYBRID:
        probe_say(out, *cg.parent[CGROUP_CPU] ? 0 : 1,
                  *cg.parent[CGROUP_CPU] ? "" : "mount the cpu controller",
                  "hybrid: v1 memory, pids%s%s; v2 freeze, kill",
                  *cg.parent[CGROUP_CPU] ? ", cpu" : "",
                  *cg.parent[CGROUP_IO] ? ", io numbers" : "");
        return;
    case CGROUP_NONE:
        break;
    }
    probe_say(
        out, host->root ? 2 : 1,
        host->root
            ? "mount cgroup2 at /sys/fs/cgroup; inside a container, give it a writable cgroup of "
              "its own"
            : "start it with `systemd-run --user --scope -p Delegate=yes cay ...`, or run as root",
        "no memory, pids and cpu limits: %.120s", cg.why);
}

/* The name of a user id, from /etc/passwd alone: static programs have no NSS. */
static bool user_name(unsigned uid, char *out, size_t size)
{
    char line[1024];
    FILE *file = fopen("/etc/passwd", "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof(line), file)) {
        char *save, *name = strtok_r(line, ":", &save), *password = strtok_r(NULL, ":", &save);
        char *id = strtok_r(NULL, ":", &save);
        found = name && password && id && strtoul(id, NULL, 10) == uid;
        if (found)
            snprintf(out, size, "%s", name);
    }
    if (file)
        fclose(file);
    return found;
}

/* How many ids "/etc/subuid" gives to this user, by name or number. */
static unsigned long long sub_ids(const char *path, unsigned uid)
{
    char line[512], name[128] = "", number[16];
    unsigned long long most = 0;
    user_name(uid, name, sizeof(name));
    snprintf(number, sizeof(number), "%u", uid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        char *save, *who = strtok_r(line, ":", &save), *first = strtok_r(NULL, ":", &save);
        char *count = strtok_r(NULL, ":", &save);
        if (who && first && count && (strcmp(who, name) == 0 || strcmp(who, number) == 0))
            most = CAY_MAX(most, strtoull(count, NULL, 10));
    }
    if (file)
        fclose(file);
    return most;
}

static void check_sub_ids(const struct probe_host *host, struct probe_result *out)
{
    if (host->root) {
        probe_say(out, 0, "", "each sandbox gets its own 65536 ids (root)");
        return;
    }
    unsigned long long uids = sub_ids("/etc/subuid", (unsigned)geteuid());
    unsigned long long gids = sub_ids("/etc/subgid", (unsigned)geteuid());
    bool tools = access("/usr/bin/newuidmap", X_OK) == 0 && access("/usr/bin/newgidmap", X_OK) == 0;
    if (tools && uids >= 65536 && gids >= 65536)
        probe_say(out, 0, "", "newuidmap and %llu sub-ids: sandboxes have users and groups",
                  CAY_MIN(uids, gids));
    else
        probe_say(out, 1,
                  "install the package uidmap, and as root: usermod --add-subuids 100000-165535 "
                  "--add-subgids 100000-165535 USER",
                  "%s: sandboxes have a single user id, so changing user and apt do not work",
                  tools ? "fewer than 65536 sub-ids in /etc/subuid or /etc/subgid"
                        : "no newuidmap");
}

static void check_loop(const struct probe_host *host, struct probe_result *out)
{
    if (host->root && access("/dev/loop-control", R_OK | W_OK) == 0)
        probe_say(out, 0, "", "loop devices can be used");
    else
        probe_say(out, 1, host->root ? "modprobe loop" : "",
                  "no loop devices%s: a disk is always a tmpfs, which costs memory",
                  host->root ? "" : " without root");
}

/* Super block options of the mount that holds `path`; false if it is not found. */
static bool mount_options(const char *path, char *type, char *options, size_t size)
{
    struct stat st;
    char line[4096], device[32];
    if (stat(path, &st) < 0)
        return false;
    snprintf(device, sizeof(device), " %u:%u ", major(st.st_dev), minor(st.st_dev));
    FILE *file = fopen("/proc/self/mountinfo", "re");
    bool found = false;
    while (file && fgets(line, sizeof(line), file)) {
        char *rest = strstr(line, " - "), *save;
        if (!rest || !strstr(line, device))
            continue;
        char *kind = strtok_r(rest + 3, " ", &save), *source = strtok_r(NULL, " ", &save);
        char *super = strtok_r(NULL, " \n", &save);
        if (!kind || !source || !super)
            continue;
        snprintf(type, 32, "%s", kind);
        snprintf(options, size, ",%s,", super);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

static void check_quota(const struct probe_host *host, struct probe_result *out)
{
    char type[32], options[1024];
    const char *path =
        host->state_dir && access(host->state_dir, F_OK) == 0 ? host->state_dir : "/var/lib";
    if (!mount_options(path, type, options, sizeof(options)))
        probe_say(out, 1, "", "cannot tell what file system %s is on", path);
    else if (strstr(options, ",prjquota,") || strstr(options, ",pquota,"))
        probe_say(out, 0, "", "project quota is on at %s (%s)", path, type);
    else
        probe_say(out, 0, "", "%s is on %s without project quota; disks do not use it", path, type);
}

static void check_state(const struct probe_host *host, struct probe_result *out)
{
    struct statvfs fs;
    if (!host->state_dir)
        probe_say(out, 0, "", "none given");
    else if (statvfs(host->state_dir, &fs) < 0 && errno == ENOENT)
        probe_say(out, 0, "", "%s will be made", host->state_dir);
    else if (faccessat(AT_FDCWD, host->state_dir, R_OK | W_OK | X_OK, AT_EACCESS) < 0)
        probe_say(out, 2, "choose another with CAY_STATE_DIR, or run as its owner", "%s: %s",
                  host->state_dir, strerror(errno));
    else {
        unsigned long long mib = (unsigned long long)fs.f_bavail * fs.f_frsize >> 20;
        probe_say(out, mib < 256, mib < 256 ? "make room, or set CAY_STATE_DIR" : "",
                  "%s, %llu MiB free", host->state_dir, mib);
    }
}

static void check_landlock(const struct probe_host *host, struct probe_result *out)
{
    (void)host;
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1u);
    if (abi > 0)
        probe_say(out, 0, "", "ABI %ld, for programs that confine themselves", abi);
    else
        probe_say(out, 0, "",
                  "not in this kernel; programs that confine themselves with it go without");
}

/* What a keeper can be held to once its sandbox is up: see keeper/rights.h. */
static void check_keeper(const struct probe_host *host, struct probe_result *out)
{
    int abi = shed_landlock();
    if (abi >= SHED_SIGNALS_ABI)
        probe_say(out, 0, "", "confined to its own files%s, and to few system calls",
                  host->root ? " and signals, a few capabilities" : "");
    else if (abi > 0)
        probe_say(out, 0, "",
                  "confined to its own files and to few system calls; signals are not "
                  "(Linux 6.12)");
    else
        probe_say(out, 1,
                  "build the kernel with CONFIG_SECURITY_LANDLOCK, and have landlock in lsm=",
                  "few system calls, but any file of its user: no Landlock");
}

static void check_ptrace(const struct probe_host *host, struct probe_result *out)
{
    (void)host;
    long long scope = probe_number("/proc/sys/kernel/yama/ptrace_scope");
    if (scope >= 2)
        probe_say(out, 1, "set kernel.yama.ptrace_scope to 0 or 1 with sysctl",
                  "kernel.yama.ptrace_scope is %lld: gdb and strace do not work in sandboxes",
                  scope);
    else
        probe_say(out, 0, "", "gdb and strace work in sandboxes (not in the strict profile)");
}

static void check_kvm(const struct probe_host *host, struct probe_result *out)
{
    (void)host;
    bool there = access("/dev/kvm", R_OK | W_OK) == 0;
    probe_say(out, 0, "",
              there ? "/dev/kvm is usable; nothing needs it" : "no /dev/kvm; nothing needs it");
}

static long long available_mib(void)
{
    char text[4096];
    if (cay_read_file_at(AT_FDCWD, "/proc/meminfo", text, sizeof(text)) < 0)
        return -1;
    const char *line = strstr(text, "MemAvailable:");
    return line ? strtoll(line + 13, NULL, 10) / 1024 : -1;
}

/* Which limit of the host is reached first by idle sandboxes: keeper + init, 1 MiB, one of each
 * namespace. */
static void check_capacity(const struct probe_host *host, struct probe_result *out)
{
    static const struct {
        const char *path, *name;
        int each;
    } limits[] = {
        {"/proc/sys/kernel/pid_max", "kernel.pid_max", 3},
        {"/proc/sys/kernel/threads-max", "kernel.threads-max", 3},
        {"/proc/sys/user/max_user_namespaces", "user.max_user_namespaces", 1},
        {"/proc/sys/user/max_mnt_namespaces", "user.max_mnt_namespaces", 1},
        {"/proc/sys/user/max_pid_namespaces", "user.max_pid_namespaces", 1},
        {"/proc/sys/user/max_net_namespaces", "user.max_net_namespaces", 1},
        {"/proc/sys/fs/file-max", "fs.file-max", 64},
        {"/proc/sys/net/core/bpf_jit_limit", "net.core.bpf_jit_limit", 32 << 10},
    };
    long long best = host->root ? 65535 - 2 : 1 << 20; /* ranges of 65536 ids among 2^32 */
    const char *name = host->root ? "id ranges" : "nothing";
    for (size_t i = 0; i < CAY_COUNT(limits); i++) {
        long long value = probe_number(limits[i].path) / limits[i].each;
        if (value > 0 && value < best) {
            best = value;
            name = limits[i].name;
        }
    }
    long long mib = available_mib();
    if (mib >= 0 && mib < best) {
        best = mib;
        name = "free memory";
    }
    probe_say(out, best < 100, best < 100 ? "raise that limit" : "",
              "about %lld idle sandboxes, then %s ends it", best, name);
}

/* ---- running --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    probe_check *check;
    bool forked; /* it changes its own process or may hang */
} checks[] = {
    {"kernel", check_kernel, false},
    {"system calls", check_calls, true},
    {"user namespaces", probe_user_namespace, true},
    {"user id ranges", check_sub_ids, false},
    {"overlayfs", probe_overlay, true},
    {"idmapped mounts", probe_idmap, true},
    {"tmpfs attributes", probe_tmpfs_xattr, true},
    {"cgroups", check_cgroup, false},
    {"seccomp", probe_seccomp, true},
    {"memfd", check_memfd, false},
    {"debuggers", check_ptrace, false},
    {"state directory", check_state, true},
    {"project quota", check_quota, true},
    {"loop devices", check_loop, false},
    {"landlock", check_landlock, false},
    {"keepers", check_keeper, false},
    {"kvm", check_kvm, false},
    {"uncounted memory", probe_uncounted, false},
    {"open files", probe_files, false},
    {"terminals", probe_terminals, false},
    {"processes", probe_processes, false},
    {"compiled filters", probe_filters, false},
    {"capacity", check_capacity, false},
};

_Static_assert(CAY_COUNT(checks) <= PROBE_MAX, "PROBE_MAX is too small");

/* The child sends its whole result with one write: smaller than PIPE_BUF, so it comes whole or not
 * at all. */
static void run_forked(probe_check *check, const struct probe_host *host, struct probe_result *out)
{
    int ends[2];
    struct probe_result got;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        probe_say(out, 2, "", "cannot make a pipe: %s", strerror(errno));
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        check(host, out);
        _exit(write(ends[1], out, sizeof(*out)) == (ssize_t)sizeof(*out) ? 0 : 1);
    }
    close(ends[1]);
    struct pollfd wait_fd = {.fd = ends[0], .events = POLLIN};
    if (pid > 0 && poll(&wait_fd, 1, CHECK_MS) == 1 &&
        read(ends[0], &got, sizeof(got)) == (ssize_t)sizeof(got)) {
        got.name = out->name;
        *out = got;
    } else {
        probe_say(out, 2, "", "the check %s",
                  pid < 0 ? "could not be started" : "did not end, or was killed");
    }
    close(ends[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

size_t probe_all(const char *state_dir, struct probe_result *out, size_t max)
{
    struct probe_host host = {.state_dir = state_dir, .root = geteuid() == 0};
    struct utsname name;
    uname(&name);
    sscanf(name.release, "%d.%d", &host.major, &host.minor);
    size_t n = CAY_MIN(max, CAY_COUNT(checks));
    for (size_t i = 0; i < n; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        out[i].name = checks[i].name;
        if (checks[i].forked)
            run_forked(checks[i].check, &host, &out[i]);
        else
            checks[i].check(&host, &out[i]);
    }
    return n;
}
