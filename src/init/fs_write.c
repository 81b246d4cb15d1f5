/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a file: into a new file beside it, then renamed over it, so that a reader sees the old or
 * the new and a lost caller leaves the old. Links are followed to the file they name, as a shell's
 * `>` does. A file that is a mount of its own is the exception: it is written in place, and gets
 * its old bytes back when that fails.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define MAX_LINKS 40 /* as the kernel */

struct upload {
    char *path; /* the final target, all links resolved; owned */
    char *dir;  /* owned */
    const char *name;
    int dir_fd, fd;
    char tmp[FS_TMP_SIZE]; /* "" when there is none to remove */
    struct stat old;
    bool replaces;
};

static void upload_done(struct upload *up)
{
    if (up->tmp[0])
        unlinkat(up->dir_fd, up->tmp, 0);
    close_fd(&up->fd);
    close_fd(&up->dir_fd);
    free(up->path);
    free(up->dir);
}

/* Replaces up->path, a link, by what it points to. */
static int follow(struct upload *up, const char *shown, struct cay_error *err)
{
    autofree char *target = fs_read_link(AT_FDCWD, up->path);
    if (!target)
        return cay_fail_errno(err, errno, "cannot follow the link '%s'", shown);
    const char *slash = strrchr(up->path, '/');
    size_t keep = target[0] == '/' || !slash ? 0 : (size_t)(slash - up->path) + 1;
    if (keep + strlen(target) >= CAY_MAX_PATH)
        return cay_fail_errno(err, ENAMETOOLONG, "cannot follow the link '%s'", shown);
    char *path = malloc(keep + strlen(target) + 1);
    if (!path)
        return cay_fail_errno(err, ENOMEM, "cannot follow the link '%s'", shown);
    memcpy(path, up->path, keep);
    memcpy(path + keep, target, strlen(target) + 1);
    free(up->path);
    up->path = path;
    return 0;
}

/* Finds out what is to be written, and what is there now. */
static int find_target(struct upload *up, const char *path, struct cay_error *err)
{
    up->path = strdup(path);
    if (!up->path)
        return cay_fail_errno(err, ENOMEM, "cannot write '%s'", path);
    for (int links = 0; lstat(up->path, &up->old) == 0; links++) {
        if (S_ISREG(up->old.st_mode)) {
            up->replaces = true;
            break;
        }
        if (!S_ISLNK(up->old.st_mode))
            return cay_fail(err, CAY_E_INVALID, "cannot write '%s': it is %s", path,
                            fs_kind(up->old.st_mode));
        if (links == MAX_LINKS)
            return cay_fail_errno(err, ELOOP, "cannot write '%s'", path);
        if (follow(up, path, err) < 0)
            return -1;
    }
    return fs_split(up->path, &up->dir, &up->name, err);
}

static int open_tmp(struct upload *up, const char *path, struct cay_error *err)
{
    up->dir_fd = open(up->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (up->dir_fd < 0 && errno == ENOENT) {
        if (fs_make_dirs(up->dir, 0755, err) < 0)
            return -1;
        up->dir_fd = open(up->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    if (up->dir_fd < 0)
        return cay_fail_errno(err, errno, "cannot write '%s'", path);
    char tmp[FS_TMP_SIZE];
    fs_tmp_name(tmp);
    up->fd = openat(up->dir_fd, tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (up->fd < 0)
        return cay_fail_errno(err, errno, "cannot write '%s'", path);
    memcpy(up->tmp, tmp, sizeof(tmp));
    return 0;
}

/* A copy of the old bytes in a file without a name; -1 with errno. */
static int save_old(struct worker *worker, int dir, int old)
{
    char tmp[FS_TMP_SIZE];
    fs_tmp_name(tmp);
    autofd int fd = openat(dir, tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    unlinkat(dir, tmp, 0);
    return fs_copy_bytes(worker, old, fd) < 0 ? -1 : steal_fd(&fd);
}

/* All of `from` becomes all of `to`, which is cut only at the end: what it had of room stays its
 * own until then, so that the way back needs none. */
static int put_bytes(struct worker *worker, int from, int to)
{
    if (lseek(from, 0, SEEK_SET) < 0 || lseek(to, 0, SEEK_SET) < 0 ||
        fs_copy_bytes(worker, from, to) < 0)
        return -1;
    off_t size = lseek(to, 0, SEEK_CUR);
    return size < 0 ? -1 : ftruncate(to, size);
}

/* Whether there is room for the new bytes, as far as the file system can say. -1 with errno. */
static int reserve(int to, off_t old_size, off_t size)
{
    if (size <= old_size || fallocate(to, FALLOC_FL_KEEP_SIZE, 0, size) == 0)
        return 0;
    int eno = errno;
    if (eno != ENOSPC && eno != EDQUOT && eno != EFBIG)
        return 0;
    ftruncate(to, old_size); /* gives back what was reserved in part */
    errno = eno;
    return -1;
}

int fs_overwrite(struct worker *worker, int fd, int dir, const char *name)
{
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    struct stat old, new;
    autofd int to = openat(dir, name, O_WRONLY | flags);
    autofd int from = openat(dir, name, O_RDONLY | flags);
    if (to < 0 || fstat(to, &old) < 0 || fstat(fd, &new) < 0)
        return -1;
    /* Who may write it and not read it cannot have it back; room is asked for all the same. */
    autofd int saved = from < 0 ? -1 : save_old(worker, dir, from);
    if ((from >= 0 && saved < 0) || reserve(to, old.st_size, new.st_size) < 0)
        return -1;
    if (put_bytes(worker, fd, to) == 0)
        return 0;
    int eno = errno;
    ftruncate(to, old.st_size);
    if (saved >= 0)
        put_bytes(NULL, saved, to);
    errno = eno;
    return -1;
}

static int commit(struct worker *worker, struct upload *up, mode_t mode)
{
    /* The owner first: changing it clears set-id bits. Where it may not be kept, it is the
     * writer's. */
    bool other = up->replaces && (up->old.st_uid != geteuid() || up->old.st_gid != getegid());
    if (other && fchown(up->fd, up->old.st_uid, up->old.st_gid) < 0 && errno != EPERM &&
        errno != EINVAL)
        return -1;
    if (mode == 0) /* not given; a mode of no bits has CAY_MODE_GIVEN */
        mode = up->replaces ? up->old.st_mode & 07777 : 0644;
    if (fchmod(up->fd, mode & 07777) < 0)
        return -1;
    if (renameat(up->dir_fd, up->tmp, up->dir_fd, up->name) == 0) {
        up->tmp[0] = 0;
        return 0;
    }
    return errno == EBUSY ? fs_overwrite(worker, up->fd, up->dir_fd, up->name) : -1;
}

int fs_write(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(upload_done))) struct upload up = {.dir_fd = -1, .fd = -1};
    /* The message is gone once data comes. */
    autofree char *path = strdup(msg->path);
    mode_t mode = (mode_t)msg->mode;
    struct wire_bytes data;
    int more;
    if (!path)
        return cay_fail_errno(err, ENOMEM, "cannot write a file");
    if (find_target(&up, path, err) < 0 || open_tmp(&up, path, err) < 0)
        return -1;
    while ((more = fs_recv_data(worker, &data, err)) > 0)
        if (cay_write_all(up.fd, data.data, data.size) < 0)
            return cay_fail_errno(err, errno, "cannot write '%s'", path);
    if (more < 0)
        return -1;
    if (commit(worker, &up, mode) < 0)
        return cay_fail_errno(err, errno, "cannot write '%s'", path);
    return 0;
}

int fs_mkdir(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    (void)worker;
    return fs_make_dirs(msg->path, msg->mode ? (mode_t)msg->mode & 07777 : 0755, err);
}
