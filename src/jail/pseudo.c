/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc, /sys and /dev of a sandbox. What describes or steers the host is covered by engine-owned
 * empty objects from the scaffold (never by the sandbox's own /dev/null) or made read-only; the
 * ucount limits that refuse nested namespaces are written here, through a view of /proc/sys from
 * before that.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define HARDENED (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

/* Terminals of one sandbox; the kernel has 4096 for all. */
#define MAX_TERMINALS "64"

/*
 * Covered where it exists: what the sandbox's root could otherwise read of the host. What belongs
 * to the host's root alone (kcore, kmsg, timer_list, sysrq-trigger, everything below irq, ...)
 * needs no cover: no id of the sandbox is that root, and the kernel refuses. /proc/sys is
 * different: some of it belongs to the sandbox's own namespaces, so it is made read-only as a
 * whole. The nested profile leaves /proc as the kernel has it: a namespace inside could not mount
 * its own /proc otherwise.
 */
static const char *const proc_covers[] = {
    "keys",
    "key-users",
    "kallsyms",
    "interrupts",
    "acpi",
    "scsi",
    "asound",
    "sched_debug",
    "latency_stats",
    "pressure",
    /* Locks of open files have no pid that a namespace could hide: those of all sandboxes. */
    "locks",
    /* How the host was started, its disks and its file systems. */
    "cmdline",
    "partitions",
    "diskstats",
    "fs",
    /* How many control groups the host has, which is how many sandboxes. */
    "cgroups",
};

/* All that is shown of /sys: what programs ask to size themselves, and the sandbox's own
 * interfaces. */
static const char *const sys_shown[] = {"devices/system", "devices/virtual/net", "class/net"};

static const struct {
    const char *name;
    unsigned major, minor;
} devices[] = {
    {"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
    {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};

static const struct {
    const char *name, *target;
} dev_links[] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},         {"core", "/proc/kcore"},
};

struct fs_option {
    const char *key, *value;
};

static int make_fs(const char *type, const struct fs_option *options, size_t n, unsigned attributes)
{
    autofd int fs = sys_fsopen(type);
    if (fs < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int done = options[i].value
                       ? sys_fsconfig(fs, FSCONFIG_SET_STRING, options[i].key, options[i].value, 0)
                       : sys_fsconfig(fs, FSCONFIG_SET_FLAG, options[i].key, NULL, 0);
        if (done < 0)
            return -1;
    }
    if (sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return sys_fsmount(fs, attributes);
}

/* A mount point that must be a real directory of the root, not a link to one. */
static int plain_target(int root, const char *name, struct cay_error *err)
{
    if (mkdirat(root, name, 0755) < 0 && errno != EEXIST)
        return cay_fail_errno(err, errno, "cannot make /%s", name);
    int fd = sys_openat2(root, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0,
                         RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
    if (fd < 0)
        return cay_fail_errno(err, errno, "/%s of the image is not a plain directory", name);
    return fd;
}

/* Mounts a copy of `source` over dir/name, read-only. Both ends are descriptors of ours. */
static int cover_with(int source, const char *source_name, int dir, const char *name)
{
    struct mount_attr attr = {.attr_set = HARDENED | MOUNT_ATTR_RDONLY};
    autofd int tree = sys_open_tree(source, source_name, OPEN_TREE_CLONE | AT_RECURSIVE);
    if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0)
        return -1;
    return sys_move_mount(tree, "", dir, name);
}

static int cover_empty(int stage, int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return cover_with(stage, S_ISDIR(st.st_mode) ? "empty.d" : "empty", dir, name);
}

static int make_covers(struct jail_root *root)
{
    return mknodat(root->stage, "empty", S_IFREG | 0444, 0) < 0 ||
                   mkdirat(root->stage, "empty.d", 0555) < 0
               ? -1
               : 0;
}

int jail_meminfo(char *out, size_t size, uint64_t limit, uint64_t used)
{
    unsigned long long total = limit / 1024, free_kib = (limit - CAY_MIN(used, limit)) / 1024;
    return snprintf(
        out, size,
        "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\n"
        "Buffers:               0 kB\nCached:                0 kB\nSwapCached:            0 kB\n"
        "Active:         %8llu kB\nInactive:              0 kB\nSwapTotal:             0 kB\n"
        "SwapFree:              0 kB\nDirty:                 0 kB\nWriteback:             0 kB\n"
        "AnonPages:      %8llu kB\nMapped:                0 kB\nShmem:                 0 kB\n"
        "SReclaimable:          0 kB\nCommitLimit:    %8llu kB\nCommitted_AS:   %8llu kB\n"
        "Hugepagesize:       2048 kB\n",
        total, free_kib, free_kib, total - free_kib, total - free_kib, total, total - free_kib);
}

static int cover_meminfo(const struct jail_plan *plan, struct jail_root *root, int proc)
{
    char text[1024];
    if (plan->memory == 0)
        return 0;
    jail_meminfo(text, sizeof(text), plan->memory, 0);
    autofd int file = openat(root->stage, "meminfo", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0444);
    if (file < 0 || cay_write_all(file, text, strlen(text)) < 0 ||
        cover_with(root->stage, "meminfo", proc, "meminfo") < 0)
        return -1;
    root->meminfo = steal_fd(&file);
    return 0;
}

int pseudo_cpuinfo(int in, int out, uint64_t cpus_milli)
{
    char chunk[4096];
    size_t keep = (cpus_milli + 999) / 1000, seen = 0;
    char last = 0;
    for (ssize_t n; seen < keep && (n = read(in, chunk, sizeof(chunk))) > 0;) {
        ssize_t end = 0;
        for (; end < n && seen < keep; end++) {
            seen += chunk[end] == '\n' && last == '\n';
            last = chunk[end];
        }
        if (cay_write_all(out, chunk, (size_t)end) < 0)
            return -1;
    }
    return 0;
}

static int cover_cpuinfo(const struct jail_plan *plan, struct jail_root *root, int proc)
{
    if (plan->cpus_milli == 0)
        return 0;
    autofd int in = openat(proc, "cpuinfo", O_RDONLY | O_CLOEXEC);
    autofd int out = openat(root->stage, "cpuinfo", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
    if (in < 0 || out < 0 || pseudo_cpuinfo(in, out, plan->cpus_milli) < 0 ||
        cover_with(root->stage, "cpuinfo", proc, "cpuinfo") < 0)
        return -1;
    root->cpuinfo = steal_fd(&out);
    return 0;
}

static int mount_proc(const struct jail_plan *plan, struct jail_root *root, struct cay_error *err)
{
    autofd int target = plain_target(root->root, "proc", err);
    if (target < 0)
        return -1;
    autofd int proc = make_fs("proc", NULL, 0, HARDENED);
    if (proc < 0)
        return cay_fail_errno(err, errno, "cannot mount /proc (is the host's own /proc covered?)");
    /* A second view without covers: the limits are written through it at the very end. */
    root->proc = openat(proc, "sys/user", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (sys_move_mount(proc, "", target, "") < 0)
        return cay_fail_errno(err, errno, "cannot mount /proc");
    if (plan->profile == CAY_PROFILE_NESTED)
        return 0;
    for (size_t i = 0; i < CAY_COUNT(proc_covers); i++)
        if (cover_empty(root->stage, proc, proc_covers[i]) < 0)
            return cay_fail_errno(err, errno, "cannot cover /proc/%s", proc_covers[i]);
    if (cover_with(proc, "sys", proc, "sys") < 0)
        return cay_fail_errno(err, errno, "cannot make /proc/sys read-only");
    if (cover_meminfo(plan, root, proc) < 0 || cover_cpuinfo(plan, root, proc) < 0)
        return cay_fail_errno(err, errno, "cannot cover /proc/meminfo");
    return 0;
}

static int make_dirs(int dir, const char *path)
{
    char part[64];
    for (const char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        snprintf(part, sizeof(part), "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        if (mkdirat(dir, part, 0555) < 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}

/* An empty directory of ours with a few subtrees of sysfs in it. A host whose own /sys is partly
 * covered does not let us mount one: then it stays empty. */
static int mount_sys(const struct jail_root *root, struct cay_error *err)
{
    autofd int target = plain_target(root->root, "sys", err);
    if (target < 0)
        return -1;
    if (mkdirat(root->stage, "sys", 0755) < 0)
        return cay_fail_errno(err, errno, "cannot make /sys");
    autofd int own = openat(root->stage, "sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < CAY_COUNT(sys_shown); i++)
        if (make_dirs(own, sys_shown[i]) < 0)
            return cay_fail_errno(err, errno, "cannot make /sys");
    if (cover_with(root->stage, "sys", root->root, "sys") < 0)
        return cay_fail_errno(err, errno, "cannot mount /sys");
    autofd int sys = make_fs("sysfs", NULL, 0, HARDENED | MOUNT_ATTR_RDONLY);
    if (sys < 0)
        return errno == EPERM ? 0 : cay_fail_errno(err, errno, "cannot mount /sys");
    /* Before Linux 6.15 only what is attached somewhere can be copied in part. */
    if (mkdirat(root->stage, "sysfs", 0755) < 0 ||
        sys_move_mount(sys, "", root->stage, "sysfs") < 0)
        return cay_fail_errno(err, errno, "cannot mount /sys");
    autofd int shown = sys_openat2(root->root, "sys", O_PATH | O_DIRECTORY, 0,
                                   RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS);
    for (size_t i = 0; i < CAY_COUNT(sys_shown); i++)
        if (cover_with(sys, sys_shown[i], shown, sys_shown[i]) < 0 && errno != ENOENT)
            return cay_fail_errno(err, errno, "cannot mount /sys/%s", sys_shown[i]);
    return 0;
}

/*
 * Device nodes cannot be made in a user namespace: the host's are mounted, after a look at what
 * they are. Read-only, as their times would be the host's, and a way to leave word for another
 * sandbox; a device can be written to all the same. Not without exec: memory is made executable by
 * mapping /dev/zero.
 */
static int mount_device(int dev, size_t i)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID};
    char path[32];
    struct stat st;
    snprintf(path, sizeof(path), "/dev/%s", devices[i].name);
    autofd int tree = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | AT_SYMLINK_NOFOLLOW);
    if (tree < 0 || mknodat(dev, devices[i].name, S_IFREG | 0666, 0) < 0 || fstat(tree, &st) < 0)
        return -1;
    if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(devices[i].major, devices[i].minor)) {
        errno = ENODEV;
        return -1;
    }
    if (sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr) < 0)
        return -1;
    return sys_move_mount(tree, "", dev, devices[i].name);
}

static int fill_dev(int dev)
{
    const struct fs_option options[] = {
        {"newinstance", NULL}, {"ptmxmode", "0666"}, {"mode", "0620"}, {"max", MAX_TERMINALS}};
    for (size_t i = 0; i < CAY_COUNT(devices); i++)
        if (mount_device(dev, i) < 0)
            return -1;
    for (size_t i = 0; i < CAY_COUNT(dev_links); i++)
        if (symlinkat(dev_links[i].target, dev, dev_links[i].name) < 0)
            return -1;
    /* Counted as memory and as disk: it lies in the scaffold, as all of /dev does. */
    if (mkdirat(dev, "pts", 0755) < 0 || mkdirat(dev, "shm", 0755) < 0 ||
        fchmodat(dev, "shm", 01777, 0) < 0)
        return -1;
    autofd int pts =
        make_fs("devpts", options, CAY_COUNT(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return pts < 0 ? -1 : sys_move_mount(pts, "", dev, "pts");
}

/* A directory of the scaffold, which is a tmpfs with a cap: another file system would only cost
 * time. */
static int mount_dev(const struct jail_root *root, struct cay_error *err)
{
    autofd int target = plain_target(root->root, "dev", err);
    if (target < 0)
        return -1;
    autofd int dev = mkdirat(root->stage, "dev", 0755) < 0
                         ? -1
                         : sys_open_tree(root->stage, "dev", OPEN_TREE_CLONE);
    if (dev < 0 || sys_move_mount(dev, "", target, "") < 0 || fill_dev(dev) < 0)
        return cay_fail_errno(err, errno, "cannot make /dev");
    return 0;
}

int pseudo_mount(const struct jail_plan *plan, struct jail_root *root, struct cay_error *err)
{
    if (make_covers(root) < 0)
        return cay_fail_errno(err, errno, "cannot make the covers");
    if (mount_proc(plan, root, err) < 0 || mount_sys(root, err) < 0 || mount_dev(root, err) < 0)
        return -1;
    return 0;
}

int pseudo_close(const struct jail_plan *plan, const struct jail_root *root, struct cay_error *err)
{
    /* The other kinds of namespaces need a capability that only a user namespace of one's own could
     * give. */
    if (plan->profile != CAY_PROFILE_NESTED &&
        cay_write_file_at(root->proc, "max_user_namespaces", "0") < 0)
        return cay_fail_errno(err, errno, "cannot forbid nested namespaces");
    return 0;
}
