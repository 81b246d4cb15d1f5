/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that change nothing: read, stat, list, find.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"
#include "wire/glob.h"

#include <fcntl.h>
#include <string.h>

static int send_entry(struct worker *worker, int dir, const char *name, const char *shown,
                      const struct stat *st, struct cay_error *err)
{
    autofree char *target = S_ISLNK(st->st_mode) ? fs_read_link(dir, name) : NULL;
    struct msg msg = {
        .type = FS_ENTRY,
        .path = shown,
        .target = target,
        .mode = st->st_mode,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .size = (uint64_t)st->st_size,
        /* before 1970 it is negative, as a two's complement */
        .mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec,
        .inode = st->st_ino,
        .links = st->st_nlink,
    };
    return fs_send(worker, &msg, err);
}

int fs_read(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    struct stat st;
    autofd int fd = fs_open_file(AT_FDCWD, msg->path, msg->path, 0, &st, err);
    if (fd < 0)
        return -1;
    if (msg->offset > INT64_MAX)
        return cay_fail(err, CAY_E_INVALID, "cannot read '%s' so far behind its end", msg->path);
    if (msg->offset && lseek(fd, (off_t)msg->offset, SEEK_SET) < 0)
        return cay_fail_errno(err, errno, "cannot read '%s'", msg->path);
    if (msg->flags & MSG_F_FOLLOW &&
        send_entry(worker, AT_FDCWD, msg->path, msg->path, &st, err) < 0)
        return -1;
    autofree char *buffer = malloc(CAY_MAX_DATA);
    if (!buffer)
        return cay_fail_errno(err, ENOMEM, "cannot read '%s'", msg->path);
    /* Until the end as read() sees it: the size may change, and /proc has none. */
    uint64_t left = msg->number ? msg->number : UINT64_MAX;
    while (left) {
        ssize_t n = read(fd, buffer, (size_t)CAY_MIN(left, (uint64_t)CAY_MAX_DATA));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cay_fail_errno(err, errno, "cannot read '%s'", msg->path);
        if (n == 0)
            break;
        left -= (uint64_t)n;
        if (fs_send_data(worker, buffer, (size_t)n, err) < 0)
            return -1;
    }
    return 0;
}

int fs_stat(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    struct stat st;
    int flags = msg->flags & MSG_F_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW;
    if (fstatat(AT_FDCWD, msg->path, &st, flags) < 0)
        return cay_fail_errno(err, errno, "cannot stat '%s'", msg->path);
    return send_entry(worker, AT_FDCWD, msg->path, msg->path, &st, err);
}

/* All that could be read has been sent; what could not be is the answer's end. */
static int end_walk(const struct walk *walk, const struct msg *msg, int result,
                    struct cay_error *err)
{
    return result < 0 || msg->flags & MSG_F_LENIENT ? result : walk_verdict(walk, err);
}

int fs_list(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    uint64_t left = msg->size ? msg->size : UINT64_MAX;
    int top = fs_open_dir(msg->path, err), more = 0;
    if (top < 0 || walk_init(&walk, top, 0, err) < 0)
        return -1;
    while (left && (more = walk_next(&walk, &item, err)) > 0) {
        if (item.depth + 1 >= msg->number)
            walk_skip(&walk);
        left--;
        if (send_entry(worker, item.dir, item.name, item.path, &item.st, err) < 0)
            return -1;
    }
    return end_walk(&walk, msg, left ? more : 0, err);
}

int fs_find(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    uint64_t left = msg->number ? msg->number : UINT64_MAX;
    int top = fs_open_dir(msg->path, err), more = 0;
    if (top < 0 || walk_init(&walk, top, 0, err) < 0)
        return -1;
    while (left && (more = walk_next(&walk, &item, err)) > 0) {
        if (fs_tick(worker, err) < 0)
            return -1;
        if (msg->glob && *msg->glob && !glob_match_path(msg->glob, item.path))
            continue;
        left--;
        if (send_entry(worker, item.dir, item.name, item.path, &item.st, err) < 0)
            return -1;
    }
    return end_walk(&walk, msg, left ? more : 0, err);
}
