/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving and removing. A move is a rename; where the kernel cannot (another filesystem, or a
 * directory of a lower overlay layer) it is a copy beside the target, a rename of that, and a
 * removal of the source. Where no directory can be renamed at all, the copy is made in its place.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- remove ---------------------------------------------------------------------------------- */

/* Deeper than this a subtree is moved up to the top first, so that any depth can be removed. */
#define REMOVE_DEPTH (CAY_MAX_DEPTH / 2)

/* One pass over the content of a directory; takes over `fd`. 1: something was moved
 * up, pass again. */
static int remove_content(struct worker *worker, int fd, const char *shown, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    struct stat top;
    int more, again = 0;
    autofd int top_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (top_fd < 0 || fstat(top_fd, &top) < 0) {
        close(fd);
        return cay_fail_errno(err, errno, "cannot remove '%s'", shown);
    }
    if (walk_init(&walk, fd, WALK_STRICT | WALK_LEAVE, err) < 0)
        return -1;
    while ((more = walk_next(&walk, &item, err)) > 0) {
        bool directory = item.leaving || S_ISDIR(item.st.st_mode);
        if (fs_tick(worker, err) < 0)
            return -1;
        if (directory && !item.leaving) {
            if (item.st.st_dev != top.st_dev)
                return cay_fail(err, CAY_E_CONFLICT,
                                "cannot remove '%s/%s': something is mounted there", shown,
                                item.path);
            if (item.depth < REMOVE_DEPTH)
                continue;
            char name[FS_TMP_SIZE];
            fs_tmp_name(name);
            if (renameat(item.dir, item.name, top_fd, name) < 0)
                return cay_fail_errno(err, errno, "cannot remove '%s/%s'", shown, item.path);
            walk_skip(&walk);
            again = 1;
            continue;
        }
        if (unlinkat(item.dir, item.name, directory ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT)
            return cay_fail_errno(err, errno, "cannot remove '%s/%s'", shown, item.path);
    }
    return more < 0 ? -1 : again;
}

int fs_remove_at(struct worker *worker, int dir, const char *name, const char *shown,
                 struct cay_error *err)
{
    int again = 1;
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return cay_fail_errno(err, errno, "cannot remove '%s'", shown);
    while (again) {
        int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return cay_fail_errno(err, errno == ENOTDIR ? EPERM : errno, "cannot remove '%s'",
                                  shown);
        again = remove_content(worker, fd, shown, err);
        if (again < 0)
            return -1;
    }
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0)
        return cay_fail_errno(err, errno, "cannot remove '%s'", shown);
    return 0;
}

/* A copy without the slashes at its end, owned; "/" stays. */
static char *without_slashes(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    return strndup(path, size);
}

int fs_remove(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    autofree char *path = without_slashes(msg->path), *dir = NULL;
    const char *name;
    if (!path)
        return cay_fail_errno(err, ENOMEM, "cannot remove '%s'", msg->path);
    /* "/", "." and ".." would lose their content before the kernel refuses the last step. */
    if (fs_split(path, &dir, &name, err) < 0)
        return -1;
    if (msg->flags & MSG_F_RECURSIVE)
        return fs_remove_at(worker, AT_FDCWD, path, path, err);
    if (unlinkat(AT_FDCWD, path, 0) == 0)
        return 0;
    if ((errno == EISDIR || errno == EPERM) && unlinkat(AT_FDCWD, path, AT_REMOVEDIR) == 0)
        return 0;
    if (errno == ENOTEMPTY)
        return cay_fail_errno(err, errno, "cannot remove '%s' (recursive was not asked for)", path);
    return cay_fail_errno(err, errno == ENOTDIR ? EPERM : errno, "cannot remove '%s'", path);
}

/* ---- move ------------------------------------------------------------------------------------ */

/* Mode, owner and time of the source, as far as the user may set them. */
static int copy_attributes(int fd, const struct stat *st)
{
    struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchown(fd, st->st_uid, st->st_gid) < 0 && errno != EPERM && errno != EINVAL)
        return -1;
    if (fchmod(fd, st->st_mode & 07777) < 0)
        return -1;
    return futimens(fd, times);
}

static int copy_file(struct worker *worker, int from_dir, const char *from, int to_dir,
                     const char *to)
{
    struct stat st;
    autofd int in = fs_open_file(from_dir, from, from, O_NOFOLLOW, &st, NULL);
    if (in < 0)
        return -1;
    autofd int out = openat(to_dir, to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0 || fs_copy_bytes(worker, in, out) < 0)
        return -1;
    return copy_attributes(out, &st);
}

/* Copies one thing that is not a directory; -1 with errno. */
static int copy_one(struct worker *worker, int from_dir, const char *from, const struct stat *st,
                    int to_dir, const char *to)
{
    if (S_ISREG(st->st_mode))
        return copy_file(worker, from_dir, from, to_dir, to);
    if (S_ISLNK(st->st_mode)) {
        autofree char *target = fs_read_link(from_dir, from);
        if (!target || symlinkat(target, to_dir, to) < 0)
            return -1;
    } else if (S_ISFIFO(st->st_mode)) {
        if (mkfifoat(to_dir, to, st->st_mode & 07777) < 0)
            return -1;
    } else {
        errno = EXDEV;
        return -1;
    }
    int owned = fchownat(to_dir, to, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
    return owned < 0 && errno != EPERM && errno != EINVAL ? -1 : 0;
}

static int copy_dir_attributes(int to, const char *path, const struct stat *st)
{
    autofd int fd = openat(to, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -1 : copy_attributes(fd, st);
}

/* Copies the content of a directory below `to`; paths are short enough, or the kernel says so. */
static int copy_content(struct worker *worker, int from, int to, const char *shown,
                        struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    int more;
    if (walk_init(&walk, from, WALK_STRICT | WALK_LEAVE, err) < 0)
        return -1;
    while ((more = walk_next(&walk, &item, err)) > 0) {
        int result;
        if (fs_tick(worker, err) < 0)
            return -1;
        if (item.leaving) {
            struct stat st;
            result = fstatat(item.dir, item.name, &st, AT_SYMLINK_NOFOLLOW);
            if (result == 0)
                result = copy_dir_attributes(to, item.path, &st);
        } else if (S_ISDIR(item.st.st_mode)) {
            result = mkdirat(to, item.path, 0700);
        } else {
            result = copy_one(worker, item.dir, item.name, &item.st, to, item.path);
        }
        if (result < 0)
            return cay_fail_errno(err, errno, "cannot copy '%s/%s'", shown, item.path);
    }
    return more;
}

static int copy_tree(struct worker *worker, const char *from, const struct stat *st, int to_dir,
                     const char *to, struct cay_error *err)
{
    if (!S_ISDIR(st->st_mode)) {
        if (copy_one(worker, AT_FDCWD, from, st, to_dir, to) < 0)
            return cay_fail_errno(err, errno, "cannot copy '%s'", from);
        return 0;
    }
    int source = open(from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (source < 0)
        return cay_fail_errno(err, errno, "cannot copy '%s'", from);
    autofd int target = mkdirat(to_dir, to, 0700) < 0
                            ? -1
                            : openat(to_dir, to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (target < 0) {
        cay_fail_errno(err, errno, "cannot copy '%s'", from);
        close(source);
        return -1;
    }
    if (copy_content(worker, source, target, from, err) < 0)
        return -1;
    if (copy_attributes(target, st) < 0)
        return cay_fail_errno(err, errno, "cannot copy '%s'", from);
    return 0;
}

/* Whether directory `inner` is `outer` or lies in it; a copy into itself would not end. */
static bool lies_in(const char *inner, const char *outer)
{
    autofree char *in = realpath(inner, NULL), *out = realpath(outer, NULL);
    size_t size = out ? strlen(out) : 0;
    return in && out && strncmp(in, out, size) == 0 && (in[size] == '/' || in[size] == 0);
}

/* An overlay without extended attributes (on a tmpfs before Linux 6.6) renames no directory into
 * one that a lower layer has as well: there a copy cannot be made beside its place. */
static bool can_rename_dirs(int dir)
{
    char from[FS_TMP_SIZE], to[FS_TMP_SIZE];
    fs_tmp_name(from);
    fs_tmp_name(to);
    if (mkdirat(dir, from, 0700) < 0)
        return true; /* the copy will say why */
    bool can = renameat(dir, from, dir, to) == 0 || errno != EXDEV;
    unlinkat(dir, to, AT_REMOVEDIR);
    unlinkat(dir, from, AT_REMOVEDIR);
    return can;
}

/* As a rename would: an empty directory is replaced, nothing else. */
static int copy_in_place(struct worker *worker, const char *from, const struct stat *st, int dir,
                         const char *name, const char *to, struct cay_error *err)
{
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return cay_fail_errno(err, errno, "cannot move '%s' to '%s'", from, to);
    if (copy_tree(worker, from, st, dir, name, err) == 0)
        return 0;
    if (err->sys_errno != EEXIST) /* else it is somebody else's */
        fs_remove_at(worker, dir, name, to, NULL);
    return -1;
}

static int copy_beside(struct worker *worker, const char *from, const struct stat *st, int dir,
                       const char *name, const char *to, struct cay_error *err)
{
    char tmp[FS_TMP_SIZE];
    fs_tmp_name(tmp);
    int copied = copy_tree(worker, from, st, dir, tmp, err);
    if (copied == 0 && renameat(dir, tmp, dir, name) == 0)
        return 0;
    if (copied == 0)
        cay_fail_errno(err, errno, "cannot move '%s' to '%s'", from, to);
    fs_remove_at(worker, dir, tmp, tmp, NULL);
    return -1;
}

static int move_by_copy(struct worker *worker, const char *from, const char *to,
                        struct cay_error *err)
{
    struct stat st;
    autofree char *dir = NULL;
    const char *name;
    if (fs_split(to, &dir, &name, err) < 0)
        return -1;
    if (lstat(from, &st) < 0)
        return cay_fail_errno(err, errno, "cannot move '%s'", from);
    if (S_ISDIR(st.st_mode) && lies_in(dir, from))
        return cay_fail(err, CAY_E_INVALID, "cannot move '%s' into itself", from);
    autofd int dir_fd = fs_open_dir(dir, err);
    if (dir_fd < 0)
        return -1;
    bool beside = !S_ISDIR(st.st_mode) || can_rename_dirs(dir_fd);
    if ((beside ? copy_beside : copy_in_place)(worker, from, &st, dir_fd, name, to, err) < 0)
        return -1;
    return fs_remove_at(worker, AT_FDCWD, from, from, err);
}

int fs_move(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    struct stat st;
    if (!msg->target || !*msg->target)
        return cay_fail(err, CAY_E_INVALID, "no target was given");
    autofree char *from = without_slashes(msg->path), *to = without_slashes(msg->target),
                  *dir = NULL;
    const char *name;
    if (!from || !to)
        return cay_fail_errno(err, ENOMEM, "cannot move '%s'", msg->path);
    if (rename(from, to) == 0)
        return 0;
    int eno = errno;
    if (eno == ENOENT && lstat(from, &st) == 0) {
        if (fs_split(to, &dir, &name, err) < 0 || fs_make_dirs(dir, 0755, err) < 0)
            return -1;
        if (rename(from, to) == 0)
            return 0;
        eno = errno;
    }
    if (eno == EXDEV)
        return move_by_copy(worker, from, to, err);
    return cay_fail_errno(err, eno, "cannot move '%s' to '%s'", from, to);
}
