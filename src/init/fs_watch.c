/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watching for changes with inotify, until the caller hangs up (or says END). New directories are
 * followed as they appear; what was in them before their watch began is told as created, so nothing
 * is missed. What inotify then tells of the same is dropped. A file is watched through its
 * directory, because most writers replace it.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>

#define EVENTS \
    (IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF)

struct followed {
    int wd;
    char *path; /* relative to the base; "" is the base itself; owned */
};

struct watch {
    struct worker *worker;
    char *base;       /* the directory that is watched; owned */
    const char *only; /* one file in it; borrowed; NULL: all */
    int fd;
    bool recursive;
    struct followed *list;
    size_t n;
    struct cay_buf announced; /* paths, each with its NUL, that may still come as events */
};

/* Of the paths above; beyond it a change may be told twice. */
#define MAX_ANNOUNCED (1u << 20)
/* In the place of the first byte of a path that is used up: no path begins so. */
#define USED '/'

static void watch_done(struct watch *watch)
{
    for (size_t i = 0; i < watch->n; i++)
        free(watch->list[i].path);
    free(watch->list);
    free(watch->base);
    close_fd(&watch->fd);
    buf_done(&watch->announced);
}

static void announce(struct watch *watch, const char *path)
{
    size_t size = strlen(path) + 1;
    if (watch->announced.size + size <= MAX_ANNOUNCED)
        buf_add(&watch->announced, path, size);
}

/* Whether `path` was announced; from now on it is not. With `below` also all that is in it. */
static bool take_announced(struct watch *watch, const char *path, bool below)
{
    bool found = false;
    size_t size = strlen(path);
    char *at = watch->announced.data, *end = at + watch->announced.size;
    for (; at < end; at += strlen(at) + 1) {
        if (strncmp(at, path, size) != 0 || (at[size] && !(below && at[size] == '/')))
            continue;
        *at = USED;
        found = true;
    }
    return found;
}

/* Once inotify has nothing more to tell, what was announced before cannot come as an event. */
static void forget_announced(struct watch *watch)
{
    int pending = 0;
    if (watch->announced.size && ioctl(watch->fd, FIONREAD, &pending) == 0 && pending == 0)
        buf_done(&watch->announced);
}

static int tell(struct watch *watch, char kind, const char *path, struct cay_error *err)
{
    struct msg msg = {.type = FS_CHANGE, .path = path, .number = (uint64_t)(unsigned char)kind};
    return fs_send(watch->worker, &msg, err);
}

/* dir + "/" + name, owned; NULL when out of memory. */
static char *join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s%s%s", dir, *dir && *name ? "/" : "", name);
    return path;
}

static struct followed *find(struct watch *watch, int wd)
{
    for (size_t i = 0; i < watch->n; i++)
        if (watch->list[i].wd == wd)
            return &watch->list[i];
    return NULL;
}

static void drop(struct watch *watch, struct followed *gone)
{
    free(gone->path);
    *gone = watch->list[--watch->n];
}

/* Follows one directory. -1 with errno: ENOSPC for every limit on their number. */
static int follow(struct watch *watch, const char *path)
{
    autofree char *full = join(watch->base, path), *copy = strdup(path);
    if (!full || !copy)
        return -1;
    if (watch->n == CAY_MAX_WATCHES) {
        errno = ENOSPC;
        return -1;
    }
    int wd = inotify_add_watch(watch->fd, full, EVENTS | IN_ONLYDIR | (*path ? IN_DONT_FOLLOW : 0));
    if (wd < 0)
        return -1;
    struct followed *old = find(watch, wd);
    if (old) {
        free(old->path);
        old->path = steal_ptr(&copy);
        return 0;
    }
    struct followed *list = realloc(watch->list, (watch->n + 1) * sizeof(*list));
    if (!list)
        return -1;
    watch->list = list;
    watch->list[watch->n++] = (struct followed){wd, steal_ptr(&copy)};
    return 0;
}

/* Follows all directories below `path`; `tells` also tells of everything found there. */
static int follow_below(struct watch *watch, const char *path, bool tells, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    autofree char *full = join(watch->base, path);
    int more, top = full ? open(full, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (top < 0)
        return 0; /* gone again */
    if (walk_init(&walk, top, 0, err) < 0)
        return -1;
    while ((more = walk_next(&walk, &item, err)) > 0) {
        autofree char *below = join(path, item.path);
        if (!below || fs_tick(watch->worker, err) < 0)
            return -1;
        if (tells && tell(watch, 'c', below, err) < 0)
            return -1;
        if (tells)
            announce(watch, below);
        if (S_ISDIR(item.st.st_mode) && follow(watch, below) < 0 &&
            (errno == ENOSPC || errno == ENOMEM))
            return cay_fail(err, CAY_E_LIMIT, "too many directories to watch below '%s'",
                            watch->base);
    }
    return more;
}

/* A directory that appears. Where it cannot be followed, the caller is told that it
 * sees no more. */
static int appeared(struct watch *watch, const char *path, bool created, struct cay_error *err)
{
    struct cay_error limit = {0};
    int result = follow(watch, path);
    if (result == 0)
        result = follow_below(watch, path, created, &limit);
    else if (errno == ENOENT || errno == ENOTDIR)
        return 0;
    if (result == 0)
        return 0;
    if (limit.code == CAY_E_GONE) {
        *err = limit;
        return -1;
    }
    return tell(watch, 'o', path, err);
}

/* A directory that was moved away takes its watches along: they are dropped, or their paths would
 * lie. */
static void vanished(struct watch *watch, const char *path)
{
    size_t size = strlen(path);
    for (size_t i = watch->n; i-- > 0;) {
        struct followed *entry = &watch->list[i];
        if (strncmp(entry->path, path, size) != 0 ||
            (entry->path[size] && entry->path[size] != '/'))
            continue;
        inotify_rm_watch(watch->fd, entry->wd);
        drop(watch, entry);
    }
}

static char kind_of(uint32_t mask)
{
    static const struct {
        uint32_t mask;
        char kind;
    } kinds[] = {
        {IN_CREATE, 'c'}, {IN_MOVED_TO, 'r'}, {IN_DELETE | IN_MOVED_FROM, 'd'},
        {IN_MODIFY, 'm'}, {IN_ATTRIB, 'm'},
    };
    for (size_t i = 0; i < CAY_COUNT(kinds); i++)
        if (mask & kinds[i].mask)
            return kinds[i].kind;
    return 0;
}

static int on_event(struct watch *watch, const struct inotify_event *event, struct cay_error *err)
{
    if (event->mask & IN_Q_OVERFLOW) {
        buf_done(&watch->announced);
        return tell(watch, 'o', ".", err);
    }
    struct followed *at = find(watch, event->wd);
    if (!at)
        return 0;
    if (event->mask & IN_IGNORED) {
        drop(watch, at);
        return 0;
    }
    if (event->mask & IN_DELETE_SELF)
        return *at->path ? 0 : tell(watch, 'd', ".", err);
    char kind = kind_of(event->mask);
    /* Our own half-written files are nobody's business. */
    if (!kind || !event->len || fs_is_tmp_name(event->name) ||
        (watch->only && strcmp(watch->only, event->name) != 0))
        return 0;
    autofree char *path = join(at->path, event->name);
    if (!path)
        return cay_fail_errno(err, ENOMEM, "cannot watch");
    /* Its directory is followed already, if it is one: that was before its content was read. */
    bool known = event->mask & (IN_CREATE | IN_DELETE | IN_MOVED_FROM) &&
                 take_announced(watch, path, event->mask & IN_MOVED_FROM);
    if (known && event->mask & IN_CREATE)
        return 0;
    if (tell(watch, kind, path, err) < 0)
        return -1;
    if (!watch->recursive || !(event->mask & IN_ISDIR))
        return 0;
    if (event->mask & IN_MOVED_FROM)
        vanished(watch, path);
    if (event->mask & (IN_CREATE | IN_MOVED_TO))
        return appeared(watch, path, event->mask & IN_CREATE, err);
    return 0;
}

static int read_events(struct watch *watch, struct cay_error *err)
{
    char buffer[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n = read(watch->fd, buffer, sizeof(buffer));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : cay_fail_errno(err, errno, "cannot watch");
    for (const char *at = buffer; at < buffer + n;) {
        const struct inotify_event *event = (const struct inotify_event *)(const void *)at;
        if (on_event(watch, event, err) < 0)
            return -1;
        at += sizeof(*event) + event->len;
    }
    forget_announced(watch);
    return fs_flush(watch->worker, err);
}

static int watch_loop(struct watch *watch, struct cay_error *err)
{
    struct chan *chan = &watch->worker->chan;
    for (;;) {
        automsg struct msg msg = {0};
        struct pollfd polls[] = {{.fd = chan->sock, .events = POLLIN},
                                 {.fd = watch->fd, .events = POLLIN}};
        int popped = chan_pop(chan, &msg, err);
        if (popped)
            return popped > 0 && msg.type == FS_END
                       ? 0
                       : cay_fail(err, CAY_E_INVALID, "only END may follow while watching");
        if (poll(polls, 2, -1) < 0)
            continue;
        if (polls[1].revents && read_events(watch, err) < 0)
            return -1;
        if (polls[0].revents && chan_fill(chan) <= 0)
            return cay_fail(err, CAY_E_GONE, "the caller hung up");
    }
}

int fs_watch(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(watch_done))) struct watch watch = {.worker = worker,
                                                               .recursive =
                                                                   msg->flags & MSG_F_RECURSIVE,
                                                               .fd = -1,
                                                               .announced = CAY_BUF(MAX_ANNOUNCED)};
    struct stat st;
    autofree char *path = strdup(msg->path);
    if (!path)
        return cay_fail_errno(err, ENOMEM, "cannot watch '%s'", msg->path);
    if (stat(path, &st) < 0)
        return cay_fail_errno(err, errno, "cannot watch '%s'", path);
    if (S_ISDIR(st.st_mode))
        watch.base = steal_ptr(&path);
    else if (fs_split(path, &watch.base, &watch.only, err) < 0)
        return -1;
    watch.recursive &= !watch.only;
    watch.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch.fd < 0 || follow(&watch, "") < 0)
        return cay_fail_errno(err, errno == ENOSPC ? EMFILE : errno, "cannot watch '%s'",
                              watch.base);
    if (watch.recursive && follow_below(&watch, "", false, err) < 0)
        return -1;
    struct msg ok = {.type = MSG_OK};
    if (fs_send(worker, &ok, err) < 0 || fs_flush(worker, err) < 0)
        return -1;
    return watch_loop(&watch, err);
}
