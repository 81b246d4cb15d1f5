/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and removing the control groups of one sandbox. What differs between v2 and hybrid is in
 * tables of file names; the code is the same. cgroup_exec.c makes those of commands, cgroup_leaf.c
 * has what v2 needs for that, cgroup_control.c steers what runs in them, cgroup_stats.c reads
 * numbers, cgroup_host.c looks at the host.
 */
#include "jail/cgroup.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/cgroup_host.h"
#include "jail/sys.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

/* How long a killed sandbox may take to disappear. */
#define WAIT_DEAD_MS 2000
/* Directories below <id>: execs, and nothing below them. */
#define MAX_DEPTH 4
/* Tries to make a group in a BASE that others keep removing. */
#define BASE_TRIES 100
#define CPU_PERIOD_US 100000u

/* Socket buffers on hybrid hosts: so many sandboxes may fill theirs before the host's own limits on
 * them, which are parts of its memory, are felt by others. */
#define SOCKET_SHARE 256
#define SOCKET_MIN (32ull << 20)

enum value { VALUE_MEMORY, VALUE_SOCKETS, VALUE_PIDS, VALUE_QUOTA, VALUE_QUOTA_PERIOD, VALUE_TEXT };

struct limit_file {
    enum cgroup_part part;
    const char *name;
    enum value value;
    const char *text; /* VALUE_TEXT; written when `of` is set, or always if `of` is VALUE_TEXT */
    enum value of;
    bool optional; /* kernels without it exist, and the sandbox is safe without it */
};

static const struct limit_file limits_v2[] = {
    {CGROUP_MEMORY, "memory.max", VALUE_MEMORY, NULL, VALUE_MEMORY, false},
    {CGROUP_MEMORY, "memory.swap.max", VALUE_TEXT, "0", VALUE_MEMORY, true},
    {CGROUP_PIDS, "pids.max", VALUE_PIDS, NULL, VALUE_PIDS, false},
    {CGROUP_CPU, "cpu.max", VALUE_QUOTA_PERIOD, NULL, VALUE_QUOTA, false},
    {CGROUP_UNIFIED, "cgroup.max.descendants", VALUE_TEXT, "4096", VALUE_TEXT, true},
    {CGROUP_UNIFIED, "cgroup.max.depth", VALUE_TEXT, "1", VALUE_TEXT, true},
};

/* memsw counts memory and swap together: the same number means no swap. The cpu period is 100 ms at
 * birth. Socket buffers are no memory here: they have a count of their own. */
static const struct limit_file limits_hybrid[] = {
    {CGROUP_MEMORY, "memory.limit_in_bytes", VALUE_MEMORY, NULL, VALUE_MEMORY, false},
    {CGROUP_MEMORY, "memory.memsw.limit_in_bytes", VALUE_MEMORY, NULL, VALUE_MEMORY, true},
    {CGROUP_MEMORY, CGROUP_SOCKETS, VALUE_SOCKETS, NULL, VALUE_SOCKETS, true},
    {CGROUP_PIDS, "pids.max", VALUE_PIDS, NULL, VALUE_PIDS, false},
    {CGROUP_CPU, "cpu.cfs_quota_us", VALUE_QUOTA, NULL, VALUE_QUOTA, false},
};

static bool limit_set(const struct cgroup_limits *limits, enum value what)
{
    switch (what) {
    case VALUE_MEMORY:
        return limits->memory;
    case VALUE_PIDS:
        return limits->pids;
    case VALUE_QUOTA:
    case VALUE_QUOTA_PERIOD:
        return limits->cpus_milli;
    case VALUE_SOCKETS:
    case VALUE_TEXT:
        return true;
    }
    return false;
}

static uint64_t socket_limit(const struct cgroup_limits *limits)
{
    struct sysinfo host;
    if (sysinfo(&host) < 0)
        return SOCKET_MIN;
    uint64_t share = (uint64_t)host.totalram * host.mem_unit / SOCKET_SHARE;
    share = CAY_MAX(share, SOCKET_MIN);
    return limits->memory ? CAY_MIN(share, limits->memory) : share;
}

static void limit_text(const struct cgroup_limits *limits, const struct limit_file *file,
                       char out[48])
{
    /* The kernel refuses a quota below one millisecond. */
    uint64_t quota = limits->cpus_milli * (CPU_PERIOD_US / 1000);
    quota = CAY_MAX(quota, 1000);
    switch (file->value) {
    case VALUE_MEMORY:
        snprintf(out, 48, "%llu", (unsigned long long)limits->memory);
        break;
    case VALUE_SOCKETS:
        snprintf(out, 48, "%llu", (unsigned long long)socket_limit(limits));
        break;
    case VALUE_PIDS:
        snprintf(out, 48, "%llu", (unsigned long long)limits->pids);
        break;
    case VALUE_QUOTA:
        snprintf(out, 48, "%llu", (unsigned long long)quota);
        break;
    case VALUE_QUOTA_PERIOD:
        snprintf(out, 48, "%llu %u", (unsigned long long)quota, CPU_PERIOD_US);
        break;
    case VALUE_TEXT:
        snprintf(out, 48, "%s", file->text);
        break;
    }
}

/* What is in force already (NULL: nothing) is not written again. 0; or -1 with errno and the file
 * that would not have it. */
static int write_limits(const struct cgroup *cg, const struct cgroup_limits *old,
                        const char **failed)
{
    bool v2 = cg->kind == CGROUP_V2;
    const struct limit_file *table = v2 ? limits_v2 : limits_hybrid;
    size_t n = v2 ? CAY_COUNT(limits_v2) : CAY_COUNT(limits_hybrid);
    /* Memory alone must never be more than memory and swap: the larger one first. */
    bool backwards = old && cg->limits.memory > old->memory;
    for (size_t i = 0; i < n; i++) {
        const struct limit_file *file = &table[backwards ? n - 1 - i : i];
        char text[48], before[48];
        if (!limit_set(&cg->limits, file->of))
            continue;
        limit_text(&cg->limits, file, text);
        if (old) {
            limit_text(old, file, before);
            if (strcmp(text, before) == 0)
                continue;
        }
        *failed = file->name;
        int dir = cg->dir[v2 ? CGROUP_UNIFIED : file->part];
        if (cay_write_file_at(dir, file->name, text) < 0 && !(file->optional && errno == ENOENT))
            return -1;
    }
    return 0;
}

static void forget(struct cgroup *cg)
{
    for (int part = 0; part < CGROUP_PARTS; part++)
        cg->base[part] = cg->dir[part] = cg->tasks[part] = -1;
    cg->leaf = cg->space = cg->move = -1;
}

/* Controllers mounted together share their directory; only the first of them owns it, and has the
 * say whether it is in BASE. */
static int find_twin(const struct cgroup *cg, const struct cgroup_host *host, int part)
{
    struct stat here, there;
    if (part == CGROUP_UNIFIED || stat(host->parent[part], &here) < 0)
        return -1;
    for (int twin = CGROUP_MEMORY; twin < part; twin++)
        if (cg->base[twin] >= 0 && fstat(cg->base[twin], &there) == 0 &&
            there.st_dev == here.st_dev)
            return twin;
    return -1;
}

static void name_in_root(char out[2 * (CAY_MAX_ID + 16)], const char *id)
{
    snprintf(out, 2 * (CAY_MAX_ID + 16), "%s~%s", cgroup_base_name(), id);
}

/* What the part's group is called in base[part]. */
static const char *part_name(const struct cgroup *cg, int part)
{
    return part == CGROUP_CPU && *cg->in_root ? cg->in_root : cg->id;
}

/* For messages. */
static void part_path(const struct cgroup *cg, const struct cgroup_host *host, int part,
                      char out[600])
{
    bool in_root = part == CGROUP_CPU && *cg->in_root;
    snprintf(out, 600, "%s/%s%s%s", host->parent[part], in_root ? "" : cgroup_base_name(),
             in_root ? "" : "/", part_name(cg, part));
}

static int open_part(struct cgroup *cg, int part)
{
    cg->dir[part] =
        openat(cg->base[part], part_name(cg, part), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return cg->dir[part] < 0 ? -1 : 0;
}

/* One that is in the root, from before there was BASE, is a conflict as one in BASE is. */
static int base_for_cpu(struct cgroup *cg, const struct cgroup_host *host)
{
    char in_root[sizeof(cg->in_root)], path[sizeof(in_root) + 3];
    name_in_root(in_root, cg->id);
    snprintf(path, sizeof(path), "../%s", in_root);
    cg->in_root[0] = 0;
    int base = cgroup_host_base(host, CGROUP_CPU, false);
    bool conflict = base >= 0 && faccessat(base, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (!conflict && (base >= 0 || errno != ENOENT))
        return base;
    memcpy(cg->in_root, in_root, sizeof(in_root));
    close_fd(&base);
    if (!conflict)
        return cgroup_host_root(host, CGROUP_CPU);
    errno = EEXIST;
    return -1;
}

static int make_dir(struct cgroup *cg, const struct cgroup_host *host, int part)
{
    cg->base[part] = part == CGROUP_CPU ? base_for_cpu(cg, host)
                                        : cgroup_host_base(host, (enum cgroup_part)part, true);
    return cg->base[part] < 0 ? -1 : mkdirat(cg->base[part], part_name(cg, part), 0755);
}

static int make_part(struct cgroup *cg, const struct cgroup_host *host, int part)
{
    int twin = find_twin(cg, host, part);
    if (twin >= 0) {
        cg->dir[part] = fcntl(cg->dir[twin], F_DUPFD_CLOEXEC, 0);
        return cg->dir[part] < 0 ? -1 : 0;
    }
    int made = make_dir(cg, host, part);
    /* The last one of all took BASE along, between our two steps. */
    for (int i = 0; made < 0 && cg->base[part] >= 0 && errno == ENOENT && i < BASE_TRIES; i++) {
        close_fd(&cg->base[part]);
        made = make_dir(cg, host, part);
    }
    if (made < 0) {
        close_fd(&cg->base[part]); /* not ours: the undo must not remove it */
        return -1;
    }
    if (open_part(cg, part) < 0)
        return -1;
    if (part == CGROUP_UNIFIED)
        return 0;
    cg->tasks[part] = openat(cg->dir[part], "tasks", O_WRONLY | O_CLOEXEC);
    return cg->tasks[part] < 0 ? -1 : 0;
}

/*
 * Without a group of its own, a sandbox would get processor time by the number of its sessions
 * (autogroups): each setsid would be one more share. A real-time process, as its creator may be,
 * cannot enter a group that has no real-time budget.
 */
static bool part_wanted(const struct cgroup *cg, const struct cgroup_host *host, int part)
{
    if (part != CGROUP_CPU || cg->limits.cpus_milli)
        return true;
    int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
    return *host->parent[part] && policy != SCHED_FIFO && policy != SCHED_RR &&
           policy != SCHED_DEADLINE;
}

static int make_parts(struct cgroup *cg, const struct cgroup_host *host, int first, int last,
                      struct cay_error *err)
{
    for (int part = first; part <= last; part++) {
        if (!part_wanted(cg, host, part) || (cg->kind == CGROUP_V2 && part != CGROUP_UNIFIED))
            continue;
        if (make_part(cg, host, part) == 0)
            continue;
        bool spared = part == CGROUP_CPU && !cg->limits.cpus_milli;
        if ((part == CGROUP_IO || spared) && errno != EEXIST)
            continue; /* only numbers come from the one, and the other was not asked for */
        int eno = errno;
        char path[600];
        part_path(cg, host, part, path);
        if (eno == EEXIST)
            return cay_fail(err, CAY_E_CONFLICT, "control group %s exists already", path);
        if (part == CGROUP_CPU && !*host->parent[part])
            return cay_fail(err, CAY_E_UNSUPPORTED,
                            "a cpu limit needs the cpu controller, which is not mounted");
        return cay_fail_errno(err, eno, "cannot make control group %s", path);
    }
    return 0;
}

static int set_limits(struct cgroup *cg, const struct cgroup_host *host, struct cay_error *err)
{
    const char *failed = "";
    if (write_limits(cg, NULL, &failed) == 0)
        return 0;
    if (errno == ENOENT && cg->kind == CGROUP_V2) {
        /* BASE is there without its controllers: someone was stopped in the middle of making it. */
        cgroup_host_enable(host, cg->base[CGROUP_UNIFIED]);
        if (write_limits(cg, NULL, &failed) == 0)
            return 0;
    }
    if (errno == ENOENT)
        return cay_fail(err, CAY_E_UNSUPPORTED, "this host's control groups have no %s", failed);
    return cay_fail_errno(err, errno, "cannot set %s of control group %s", failed, cg->id);
}

int cgroup_begin(struct cgroup *out, const char *id, const struct cgroup_limits *limits,
                 uid_t owner, gid_t group, struct cay_error *err)
{
    struct cgroup cg = {.owner = owner, .group = group, .limits = *limits};
    struct cgroup_host host;
    if (!cgroup_name_ok(id) || !cgroup_base_name())
        return cay_fail(err, CAY_E_INVALID, "not a control group name: %s",
                        cgroup_name_ok(id) ? "CAY_CGROUP" : id);
    cgroup_host_search(&host, NULL, true);
    strcpy(cg.id, id);
    forget(&cg);
    cg.kind = host.kind;
    if (cg.kind == CGROUP_NONE) {
        *out = cg;
        return 0;
    }
    if (make_parts(&cg, &host, CGROUP_UNIFIED, CGROUP_UNIFIED, err) < 0)
        goto undo;
    if (cgroup_give_procs(&cg, cg.dir[CGROUP_UNIFIED], "cgroup.procs") < 0) {
        cay_fail_errno(err, errno, "cannot give control group %s to uid %u", id, (unsigned)owner);
        goto undo;
    }
    if (cgroup_leaf_make(&cg, &host, err) < 0)
        goto undo;
    *out = cg;
    return 0;
undo:
    (void)cgroup_remove(&cg);
    cgroup_done(&cg);
    return -1;
}

int cgroup_finish(struct cgroup *cg, struct cay_error *err)
{
    struct cgroup_host host;
    if (cg->kind == CGROUP_NONE)
        return 0;
    cgroup_host_search(&host, NULL, true);
    if (make_parts(cg, &host, CGROUP_UNIFIED + 1, CGROUP_PARTS - 1, err) < 0)
        return -1;
    return set_limits(cg, &host, err);
}

int cgroup_adjust(struct cgroup *cg, const struct cgroup_limits *limits, struct cay_error *err)
{
    const struct cgroup_limits old = cg->limits;
    const char *failed = "";
    if (!limits->cpus_milli != !old.cpus_milli)
        return cay_fail(err, CAY_E_UNSUPPORTED, "a cpu limit cannot be set or taken away later");
    cg->limits = *limits;
    if (cg->kind == CGROUP_NONE || write_limits(cg, &old, &failed) == 0)
        return 0;
    return cay_fail_errno(err, errno, "cannot set %s of control group %s", failed, cg->id);
}

int cgroup_create(struct cgroup *out, const char *id, const struct cgroup_limits *limits,
                  uid_t owner, gid_t group, struct cay_error *err)
{
    struct cgroup cg;
    if (cgroup_begin(&cg, id, limits, owner, group, err) < 0)
        return -1;
    if (cgroup_finish(&cg, err) < 0) {
        (void)cgroup_remove(&cg);
        cgroup_done(&cg);
        return -1;
    }
    *out = cg;
    return 0;
}

int cgroup_dir(const struct cgroup *cg)
{
    return cg->kind == CGROUP_NONE ? -1 : cg->dir[CGROUP_UNIFIED];
}

int cgroup_share(const struct cgroup *cg)
{
    if (cg->kind == CGROUP_NONE) {
        errno = ENOTSUP;
        return -1;
    }
    autofd int tree = sys_open_tree(cg->dir[CGROUP_UNIFIED], "", OPEN_TREE_CLONE | AT_EMPTY_PATH);
    if (tree < 0)
        return -1;
    struct mount_attr attr = {
        .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
    };
    if (sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr) < 0)
        return -1;
    return steal_fd(
        &tree); /* closing the last descriptor of a detached mount costs an RCU grace period */
}

size_t cgroup_tasks(const struct cgroup *cg, int out[CGROUP_PARTS])
{
    size_t n = 0;
    for (int part = 0; cg->kind != CGROUP_NONE && part < CGROUP_PARTS; part++)
        if (cg->tasks[part] >= 0)
            out[n++] = cg->tasks[part];
    return n;
}

int cgroup_enter_tasks(const int *tasks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (write(tasks[i], "0", 1) != 1)
            return -1;
    return 0;
}

int cgroup_enter_self(const struct cgroup *cg)
{
    int tasks[CGROUP_PARTS];
    return cgroup_enter_tasks(tasks, cgroup_tasks(cg, tasks));
}

/* Does BASE go with its last group? */
static bool base_ours(const struct cgroup *cg, int part)
{
    bool in_root = part == CGROUP_CPU && *cg->in_root;
    if (cg->base[part] < 0 || in_root)
        return false;
    return cg->learned ? cg->ours[part] : cgroup_host_ours(cg->base[part]);
}

void cgroup_learn(struct cgroup *cg)
{
    for (int part = 0; cg->kind != CGROUP_NONE && part < CGROUP_PARTS; part++)
        cg->ours[part] = base_ours(cg, part);
    cg->learned = true;
}

void cgroup_done(struct cgroup *cg)
{
    if (cg->kind == CGROUP_NONE)
        return;
    for (int part = 0; part < CGROUP_PARTS; part++) {
        close_fd(&cg->tasks[part]);
        close_fd(&cg->dir[part]);
        close_fd(&cg->base[part]);
    }
    close_fd(&cg->leaf);
    close_fd(&cg->space);
    close_fd(&cg->move);
    cg->kind = CGROUP_NONE;
}

/* A rootless sandbox may have made groups below its own; MAX_DEPTH ends the walk in any case. */
static int remove_child(int dir, const char *name, void *data)
{
    int depth = *(int *)data + 1;
    if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (depth > MAX_DEPTH)
        return -1;
    autofd int child = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (child >= 0)
        (void)cgroup_each_child(child, remove_child, &depth);
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

static int remove_parts(struct cgroup *cg)
{
    int depth = 0, failed = 0;
    /* The v2 directory last: as long as it is there, a sweep can kill. */
    for (int part = CGROUP_PARTS - 1; part >= 0; part--) {
        if (cg->base[part] < 0)
            continue;
        const char *name = part_name(cg, part);
        if (unlinkat(cg->base[part], name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            continue;
        if ((part == CGROUP_MEMORY || (part == CGROUP_UNIFIED && !failed)) && cg->dir[part] >= 0) {
            (void)cgroup_each_child(cg->dir[part], remove_child, &depth);
            if (unlinkat(cg->base[part], name, AT_REMOVEDIR) == 0 || errno == ENOENT)
                continue;
        }
        failed = errno;
    }
    for (int part = 0; !failed && part < CGROUP_PARTS; part++)
        if (base_ours(cg, part))
            cgroup_host_release(cg->base[part]);
    errno = failed;
    return failed ? -1 : 0;
}

int cgroup_remove(struct cgroup *cg)
{
    if (cg->kind == CGROUP_NONE)
        return 0;
    if (remove_parts(cg) == 0)
        return 0;
    if (cg->dir[CGROUP_UNIFIED] >= 0) {
        (void)cgroup_kill(cg);
        if (cgroup_wait_event(cg, "populated 0", WAIT_DEAD_MS) < 0) {
            errno = EBUSY;
            return -1;
        }
    }
    /* A dying process leaves the hierarchies one after the other: give it a moment. */
    for (int wait_ms = 1; wait_ms <= 128; wait_ms *= 2) {
        if (remove_parts(cg) == 0)
            return 0;
        if (errno != EBUSY)
            return -1;
        poll(NULL, 0, wait_ms);
    }
    return remove_parts(cg);
}

/* None were found: for want of a descriptor to look with? */
static int cgroup_could_look(struct cay_error *err)
{
    autofd int probe = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    return probe >= 0 || errno == ENOENT
               ? 0
               : cay_fail_errno(err, errno, "cannot look for control groups");
}

/* -1 with ENOENT if it has none there. */
static int open_in_root(struct cgroup *cg, const struct cgroup_host *host)
{
    cg->base[CGROUP_CPU] = cgroup_host_root(host, CGROUP_CPU);
    if (cg->base[CGROUP_CPU] < 0)
        return -1;
    name_in_root(cg->in_root, cg->id);
    if (open_part(cg, CGROUP_CPU) == 0)
        return 0;
    cg->in_root[0] = 0;
    close_fd(&cg->base[CGROUP_CPU]);
    return -1;
}

/* Whatever there is of it. */
static int open_left(struct cgroup *cg, const struct cgroup_host *host)
{
    if (open_in_root(cg, host) < 0 && errno != ENOENT)
        return -1;
    for (int part = 0; part < CGROUP_PARTS; part++) {
        if (cg->dir[part] >= 0)
            continue;
        cg->base[part] = cgroup_host_base(host, (enum cgroup_part)part, false);
        if ((cg->base[part] < 0 || open_part(cg, part) < 0) && errno != ENOENT)
            return -1;
    }
    return 0;
}

bool cgroup_left(const char *id)
{
    struct cgroup_host host;
    struct cgroup cg = {0};
    if (!cgroup_name_ok(id) || !cgroup_base_name())
        return false;
    cgroup_host_search(&host, id, false);
    if (host.kind == CGROUP_NONE)
        return cgroup_could_look(NULL) < 0;
    forget(&cg);
    strcpy(cg.id, id);
    cg.kind = host.kind;
    bool left = open_left(&cg, &host) < 0;
    for (int part = 0; part < CGROUP_PARTS; part++)
        left |= cg.dir[part] >= 0;
    cgroup_done(&cg);
    return left;
}

/* `more`: it may have another group for the same part, in BASE. */
static int sweep_once(const struct cgroup_host *host, const char *id, bool unused, bool *more)
{
    struct cgroup cg = {0};
    forget(&cg);
    strcpy(cg.id, id);
    cg.kind = host->kind;
    int result = open_left(&cg, host);
    if (result == 0 && unused && cg.dir[CGROUP_UNIFIED] >= 0 &&
        cgroup_wait_event(&cg, "populated 0", 0) < 0) {
        errno = EBUSY;
        result = -1;
    }
    if (result == 0)
        result = cgroup_remove(&cg);
    *more = *cg.in_root;
    int saved = errno;
    cgroup_done(&cg);
    errno = saved;
    return result;
}

static int sweep(const char *id, bool unused, struct cay_error *err)
{
    struct cgroup_host host;
    bool more;
    if (!cgroup_name_ok(id) || !cgroup_base_name())
        return cay_fail(err, CAY_E_INVALID, "not a control group name: %s",
                        cgroup_name_ok(id) ? "CAY_CGROUP" : id);
    cgroup_host_search(&host, id, false);
    if (host.kind == CGROUP_NONE)
        return cgroup_could_look(err);
    int result = sweep_once(&host, id, unused, &more);
    if (result == 0 && more)
        result = sweep_once(&host, id, unused, &more);
    if (result < 0)
        cay_fail_errno(err, errno, "cannot remove the control groups of %s", id);
    return result;
}

int cgroup_sweep(const char *id, struct cay_error *err)
{
    return sweep(id, false, err);
}

int cgroup_sweep_unused(const char *id, struct cay_error *err)
{
    return sweep(id, true, err);
}

struct list_call {
    const char *prefix; /* of the names that count; the rest of them is the id */
    int (*each)(const char *id, void *data);
    void *data;
    int ended;
};

static int list_one(int dir, const char *name, void *data)
{
    struct list_call *call = data;
    (void)dir;
    size_t skip = strlen(call->prefix);
    if (!call->ended && strncmp(name, call->prefix, skip) == 0)
        call->ended = call->each(name + skip, call->data);
    return 0;
}

int cgroup_list(int (*each)(const char *id, void *data), void *data)
{
    struct cgroup_host host;
    char prefix[sizeof(((struct cgroup *)0)->in_root)];
    struct list_call call = {.prefix = "", .each = each, .data = data};
    cgroup_host_search(&host, NULL, false);
    for (int part = 0; part < CGROUP_PARTS && host.kind != CGROUP_NONE; part++) {
        autofd int base = cgroup_host_base(&host, (enum cgroup_part)part, false);
        if (base >= 0 && cgroup_each_child(base, list_one, &call) < 0)
            return -1;
    }
    if (host.kind != CGROUP_HYBRID)
        return 0;
    name_in_root(prefix, "");
    call.prefix = prefix;
    autofd int root = cgroup_host_root(&host, CGROUP_CPU);
    return root < 0 ? 0 : cgroup_each_child(root, list_one, &call);
}
