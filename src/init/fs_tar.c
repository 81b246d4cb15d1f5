/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree as a tar stream. Names are relative to the path asked for; of a single file it is its own
 * name. The directory itself has no entry, so that unpacking never changes the directory it is
 * unpacked into. Sockets and devices are left out. A file that grows or shrinks meanwhile keeps the
 * size of its header.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"
#include "wire/tar.h"

#include <fcntl.h>
#include <string.h>

struct packer {
    struct worker *worker;
    struct cay_buf buf; /* not yet sent */
};

static void packer_done(struct packer *packer)
{
    buf_done(&packer->buf);
}

/* Sends full pieces; with `all` also the rest. */
static int drain(struct packer *packer, bool all, struct cay_error *err)
{
    if (packer->buf.failed)
        return cay_fail_errno(err, ENOMEM, "cannot make the archive");
    while (packer->buf.size >= CAY_MAX_DATA || (all && packer->buf.size)) {
        size_t n = CAY_MIN(packer->buf.size, (size_t)CAY_MAX_DATA);
        if (fs_send_data(packer->worker, packer->buf.data, n, err) < 0)
            return -1;
        buf_eat(&packer->buf, n);
    }
    return 0;
}

static int pack_zeros(struct packer *packer, uint64_t size, struct cay_error *err)
{
    while (size) {
        size_t n = (size_t)CAY_MIN(size, (uint64_t)CAY_MAX_DATA);
        char *room = buf_room(&packer->buf, n);
        if (room) {
            memset(room, 0, n);
            packer->buf.size += n;
        }
        size -= n;
        if (drain(packer, false, err) < 0)
            return -1;
    }
    return 0;
}

static int pack_content(struct packer *packer, int fd, uint64_t size, struct cay_error *err)
{
    uint64_t left = size;
    while (left) {
        size_t want = (size_t)CAY_MIN(left, (uint64_t)CAY_MAX_DATA);
        char *room = buf_room(&packer->buf, want);
        ssize_t n = room ? read(fd, room, want) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break; /* shorter than it was, or unreadable: the rest is zeros */
        packer->buf.size += (size_t)n;
        left -= (uint64_t)n;
        if (drain(packer, false, err) < 0)
            return -1;
    }
    return pack_zeros(packer, left + tar_padding(size), err);
}

static int pack_file(struct packer *packer, int dir, const char *name, struct tar_entry *entry,
                     struct cay_error *err)
{
    struct stat st;
    autofd int fd = fs_open_file(dir, name, entry->path, O_NOFOLLOW, &st, err);
    if (fd < 0)
        return -1;
    entry->size = (uint64_t)st.st_size;
    tar_put(&packer->buf, entry);
    if (drain(packer, false, err) < 0)
        return -1;
    return pack_content(packer, fd, entry->size, err);
}

static char type_of(mode_t mode)
{
    static const struct {
        mode_t mode;
        char type;
    } types[] = {
        {S_IFREG, TAR_FILE}, {S_IFDIR, TAR_DIR}, {S_IFLNK, TAR_SYMLINK}, {S_IFIFO, TAR_FIFO}};
    for (size_t i = 0; i < CAY_COUNT(types); i++)
        if ((mode & S_IFMT) == types[i].mode)
            return types[i].type;
    return 0;
}

static int pack_one(struct packer *packer, int dir, const char *name, const char *path,
                    const struct stat *st, struct cay_error *err)
{
    struct tar_entry entry = {.type = type_of(st->st_mode),
                              .mode = st->st_mode & 07777,
                              .uid = st->st_uid,
                              .gid = st->st_gid,
                              .mtime = st->st_mtim.tv_sec,
                              .path = path,
                              .link = ""};
    autofree char *link = NULL, *slashed = NULL;
    if (entry.type == TAR_FILE)
        return pack_file(packer, dir, name, &entry, err);
    if (entry.type == 0)
        return 0;
    if (entry.type == TAR_SYMLINK) {
        entry.link = link = fs_read_link(dir, name);
        if (!link)
            return errno == ENOENT ? 0
                                   : cay_fail_errno(err, errno, "cannot read the link '%s'", path);
    }
    if (entry.type == TAR_DIR) {
        size_t size = strlen(path);
        entry.path = slashed = malloc(size + 2);
        if (!slashed)
            return cay_fail_errno(err, ENOMEM, "cannot make the archive");
        memcpy(slashed, path, size);
        memcpy(slashed + size, "/", 2);
    }
    tar_put(&packer->buf, &entry);
    return drain(packer, false, err);
}

static int pack_tree(struct packer *packer, int top, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    int more;
    if (walk_init(&walk, top, WALK_STRICT, err) < 0)
        return -1;
    while ((more = walk_next(&walk, &item, err)) > 0) {
        struct cay_error failed = {0};
        if (fs_tick(packer->worker, err) < 0)
            return -1;
        if (pack_one(packer, item.dir, item.name, item.path, &item.st, &failed) == 0)
            continue;
        if (failed.code == CAY_E_NOT_FOUND)
            continue; /* removed since it was listed */
        *err = failed;
        return -1;
    }
    return more;
}

int fs_tar_out(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(packer_done))) struct packer packer = {
        .worker = worker, .buf = CAY_BUF(2 * CAY_MAX_DATA + CAY_MAX_PAX + 4 * TAR_BLOCK)};
    struct stat st;
    if (stat(msg->path, &st) < 0)
        return cay_fail_errno(err, errno, "cannot archive '%s'", msg->path);
    if (S_ISDIR(st.st_mode)) {
        int top = fs_open_dir(msg->path, err);
        if (top < 0 || pack_tree(&packer, top, err) < 0)
            return -1;
    } else {
        const char *slash = strrchr(msg->path, '/');
        autofree char *real = realpath(msg->path, NULL);
        if (!S_ISREG(st.st_mode))
            return cay_fail(err, CAY_E_INVALID, "cannot archive '%s': it is %s", msg->path,
                            fs_kind(st.st_mode));
        if (!real)
            return cay_fail_errno(err, errno, "cannot archive '%s'", msg->path);
        if (pack_one(&packer, AT_FDCWD, real, slash ? slash + 1 : msg->path, &st, err) < 0)
            return -1;
    }
    tar_put_end(&packer.buf);
    return drain(&packer, true, err);
}
