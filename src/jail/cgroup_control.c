/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steering what runs in a sandbox's control groups: events, signals, kill, freeze, one group per
 * exec. All of it is in the v2 directory, on every kind of host.
 */
#include "jail/cgroup_host.h"

#include "base/util.h"
#include "jail/sys.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* How long a frozen sandbox may take to stand still. */
#define WAIT_FROZEN_MS 1000
/* Groups of commands, and what a rootless sandbox may have made below them. */
#define MAX_DEPTH 4

/*
 * Lets the sandbox's root put processes into the group. Rootless we cannot give files away; opening
 * cgroup.procs to all is as safe, for the kernel also asks for the common ancestor, which stays
 * closed.
 */
int cgroup_give_procs(const struct cgroup *cg, int dir, const char *path)
{
    if (cg->owner == geteuid())
        return 0;
    /* By descriptor: a keeper at work has no call left that changes owners by name. */
    autofd int procs = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (procs < 0)
        return -1;
    if (fchown(procs, cg->owner, cg->group) == 0)
        return 0;
    return errno == EPERM ? fchmod(procs, 0666) : -1;
}

/* "<exec>/<file>" or, without an exec, "<file>". */
static const char *file_of(const char *name, const char *file, char out[CAY_MAX_ID + 32])
{
    snprintf(out, CAY_MAX_ID + 32, "%s%s%s", name ? name : "", name ? "/" : "", file);
    return out;
}

static bool exec_ok(const struct cgroup *cg, const char *name)
{
    errno = cg->kind == CGROUP_NONE ? ENOTSUP : EINVAL;
    return cg->kind != CGROUP_NONE && (!name || cgroup_name_ok(name));
}

/* 1: cgroup.events has the line; 0: not; -1 with errno. */
static int read_event(int events, const char *line)
{
    char text[256];
    ssize_t n = pread(events, text, sizeof(text) - 1, 0);
    if (n < 0)
        return -1;
    text[n] = 0;
    return strstr(text, line) != NULL;
}

/* Waits until cgroup.events says so. A group that is gone is neither populated nor frozen. */
int cgroup_wait_event(const struct cgroup *cg, const char *line, int timeout_ms)
{
    autofd int events = openat(cg->dir[CGROUP_UNIFIED], "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (events < 0)
        return errno == ENOENT ? 0 : -1;
    uint64_t end = cay_now_us() + (uint64_t)timeout_ms * 1000;
    for (;;) {
        int seen = read_event(events, line);
        if (seen != 0)
            return seen > 0 || errno == ENODEV ? 0 : -1;
        uint64_t now = cay_now_us();
        if (now >= end)
            break;
        struct pollfd poll_fd = {.fd = events, .events = POLLPRI};
        /* The kernel coalesces notices, so look again now and then. */
        int left = (int)((end - now + 999) / 1000);
        if (poll(&poll_fd, 1, CAY_MIN(left, 50)) < 0 && errno != EINTR)
            return -1;
    }
    errno = ETIMEDOUT;
    return -1;
}

static bool says(const struct cgroup *cg, const char *name, const char *line)
{
    char path[CAY_MAX_ID + 32];
    if (!exec_ok(cg, name))
        return false;
    autofd int events =
        openat(cg->dir[CGROUP_UNIFIED], file_of(name, "cgroup.events", path), O_RDONLY | O_CLOEXEC);
    return events >= 0 && read_event(events, line) > 0;
}

bool cgroup_populated(const struct cgroup *cg)
{
    return says(cg, NULL, "populated 1");
}

bool cgroup_exec_populated(struct cgroup *cg, const char *name)
{
    return says(cg, name, "populated 1");
}

bool cgroup_exec_empty(struct cgroup *cg, const char *name)
{
    return says(cg, name, "populated 0");
}

/* The next pid of cgroup.procs; 0 at the end. */
static pid_t next_pid(FILE *procs)
{
    char line[32];
    while (fgets(line, sizeof(line), procs)) {
        long pid = strtol(line, NULL, 10);
        if (pid > 0) /* 0: a process of a pid namespace that we do not see */
            return (pid_t)pid;
    }
    return 0;
}

static FILE *open_procs(int dir, const char *path)
{
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file && fd >= 0)
        close(fd);
    return file;
}

struct target {
    pid_t pid;
    int pidfd;
    bool member;
};

/*
 * A pidfd is opened by number, and only then the number is looked for in the group again: a number
 * that is still there names a member, and if that is not the process of the pidfd, then the latter
 * is dead.
 */
static int signal_batch(int dir, const char *path, int sig, struct target *targets, size_t n)
{
    for (size_t i = 0; i < n; i++)
        targets[i].pidfd = sys_pidfd_open(targets[i].pid);
    FILE *again = open_procs(dir, path);
    for (pid_t pid; again && (pid = next_pid(again));)
        for (size_t i = 0; i < n; i++)
            targets[i].member |= targets[i].pid == pid;
    if (again)
        fclose(again);
    int result = 0;
    for (size_t i = 0; i < n; i++) {
        if (targets[i].pidfd < 0)
            continue;
        if (targets[i].member && sys_pidfd_kill(targets[i].pidfd, sig) < 0 && errno != ESRCH)
            result = -1;
        close_fd(&targets[i].pidfd);
    }
    return result;
}

static int signal_group(int dir, const char *path, int sig)
{
    struct target targets[64];
    size_t n = 0;
    int result = 0;
    FILE *procs = open_procs(dir, path);
    if (!procs)
        return errno == ENOENT ? 0 : -1;
    for (pid_t pid; (pid = next_pid(procs));) {
        targets[n++] = (struct target){.pid = pid, .pidfd = -1};
        if (n < CAY_COUNT(targets))
            continue;
        result |= signal_batch(dir, path, sig, targets, n);
        n = 0;
    }
    fclose(procs);
    return result | signal_batch(dir, path, sig, targets, n);
}

int cgroup_exec_signal(struct cgroup *cg, const char *name, int sig)
{
    char path[CAY_MAX_ID + 32];
    if (!exec_ok(cg, name))
        return -1;
    return signal_group(cg->dir[CGROUP_UNIFIED], file_of(name, "cgroup.procs", path), sig);
}

/* Calls `each` for every subdirectory; the first failure is remembered and the walk goes on. */
int cgroup_each_child(int dir, int (*each)(int dir, const char *name, void *data), void *data)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        close_fd(&fd);
        return errno == ENOENT ? 0 : -1;
    }
    int failed = 0;
    for (struct dirent *e; (e = readdir(stream));)
        if (e->d_type == DT_DIR && e->d_name[0] != '.' && each(dir, e->d_name, data) < 0 && !failed)
            failed = errno;
    closedir(stream);
    errno = failed;
    return failed ? -1 : 0;
}

static int signal_child(int dir, const char *name, void *data)
{
    char path[CAY_MAX_ID + 32];
    return signal_group(dir, file_of(name, "cgroup.procs", path), *(int *)data);
}

int cgroup_signal(struct cgroup *cg, int sig)
{
    if (!exec_ok(cg, NULL))
        return -1;
    int dir = cg->dir[CGROUP_UNIFIED];
    int below = cgroup_each_child(dir, signal_child, &sig);
    int here = signal_group(dir, "cgroup.procs", sig);
    return below < 0 || here < 0 ? -1 : 0;
}

struct walk {
    int (*each)(pid_t pid, void *data);
    void *data;
    int result, depth;
};

static int walk_threads(int parent, const char *name, void *data)
{
    struct walk *walk = data;
    autofd int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    FILE *procs = dir < 0 || walk->result ? NULL : open_procs(dir, "cgroup.threads");
    for (pid_t pid; procs && !walk->result && (pid = next_pid(procs));)
        walk->result = walk->each(pid, walk->data);
    if (procs)
        fclose(procs);
    if (dir >= 0 && !walk->result && walk->depth < MAX_DEPTH) {
        walk->depth++;
        (void)cgroup_each_child(dir, walk_threads, walk);
        walk->depth--;
    }
    return 0;
}

int cgroup_each_thread(const struct cgroup *cg, int (*each)(pid_t pid, void *data), void *data)
{
    struct walk walk = {.each = each, .data = data};
    if (exec_ok(cg, NULL))
        (void)walk_threads(cg->dir[CGROUP_UNIFIED], ".", &walk);
    return walk.result;
}

/* Before Linux 5.14 there is no cgroup.kill: freeze so that nothing forks, then one by one. */
static int kill_slowly(struct cgroup *cg, const char *name)
{
    char path[CAY_MAX_ID + 32];
    int dir = cg->dir[CGROUP_UNIFIED];
    (void)cay_write_file_at(dir, file_of(name, "cgroup.freeze", path), "1");
    int result = name ? cgroup_exec_signal(cg, name, SIGKILL) : cgroup_signal(cg, SIGKILL);
    (void)cay_write_file_at(dir, file_of(name, "cgroup.freeze", path), "0");
    return result;
}

static int kill_group(struct cgroup *cg, const char *name)
{
    char path[CAY_MAX_ID + 32];
    if (!exec_ok(cg, name))
        return -1;
    int dir = cg->dir[CGROUP_UNIFIED];
    if (cay_write_file_at(dir, file_of(name, "cgroup.kill", path), "1") == 0)
        return 0;
    if (errno == ENODEV)
        return 0; /* removed meanwhile */
    if (errno != ENOENT)
        return -1;
    /* The file is missing, or the whole group. */
    if (faccessat(dir, file_of(name, "cgroup.procs", path), F_OK, 0) < 0)
        return 0;
    return kill_slowly(cg, name);
}

int cgroup_exec_kill(struct cgroup *cg, const char *name)
{
    return kill_group(cg, name);
}

int cgroup_kill(struct cgroup *cg)
{
    return kill_group(cg, NULL);
}

int cgroup_freeze(struct cgroup *cg, bool frozen)
{
    if (!exec_ok(cg, NULL))
        return -1;
    if (cay_write_file_at(cg->dir[CGROUP_UNIFIED], "cgroup.freeze", frozen ? "1" : "0") < 0)
        return -1;
    return cgroup_wait_event(cg, frozen ? "frozen 1" : "frozen 0", WAIT_FROZEN_MS);
}
