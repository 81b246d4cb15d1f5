/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree as a tar stream. Names are relative to the path asked for; of a single file it is its own
 * name. The directory itself has no entry (but where it has to carry a note), so that unpacking
 * never changes the directory it is unpacked into. A file with several names comes once, and then
 * as links to the first of them. Attributes of users (user.*) come along. Sockets and devices are
 * left out, and a note in the archive says so. A file that grows meanwhile keeps the size of its
 * header; one that becomes shorter than that, or that cannot be read, ends the archive with an
 * error: no byte is ever made up.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/walk.h"
#include "wire/tar_tree.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Of what was left out; more than these are not named. */
#define MAX_NOTES (64u << 10)

struct packer {
    struct worker *worker;
    struct cay_buf buf; /* not yet sent */
    struct tar_links links;
    struct cay_buf xattrs; /* of the current entry */
    struct cay_buf notes;  /* texts with their NULs */
};

static void packer_done(struct packer *packer)
{
    buf_done(&packer->buf);
    tar_links_done(&packer->links);
    buf_done(&packer->xattrs);
    buf_done(&packer->notes);
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

/* Something that the archive does not have. It is kept for the next entry: readers such as Python's
 * take a global header without one behind it for damage. */
static void note(struct packer *packer, const char *what, const char *path)
{
    char text[CAY_MAX_PATH + 100];
    size_t size = (size_t)snprintf(text, sizeof(text), "%s '%s'", what, path) + 1;
    if (packer->notes.size + CAY_MIN(size, sizeof(text)) <= MAX_NOTES)
        buf_add(&packer->notes, text, CAY_MIN(size, sizeof(text)));
}

static int put_entry(struct packer *packer, const struct tar_entry *entry, struct cay_error *err)
{
    size_t sent = 0;
    for (; sent < packer->notes.size; sent += strlen(packer->notes.data + sent) + 1) {
        tar_put_note(&packer->buf, packer->notes.data + sent);
        if (drain(packer, false, err) < 0)
            return -1;
    }
    packer->notes.size = 0;
    tar_put(&packer->buf, entry);
    return drain(packer, false, err);
}

/* ---- content --------------------------------------------------------------------------------- */

/* Reads the attributes of a file or directory for its entry. */
static int take_xattrs(struct packer *packer, int fd, struct tar_entry *entry,
                       struct cay_error *err)
{
    int left_out = tar_xattrs_of(fd, &packer->xattrs);
    if (left_out < 0)
        return cay_fail_errno(err, ENOMEM, "cannot make the archive");
    if (left_out)
        note(packer, "left out an attribute of", entry->path);
    entry->xattrs = packer->xattrs.size ? packer->xattrs.data : NULL;
    entry->xattrs_size = packer->xattrs.size;
    return 0;
}

static int fail_read(int eno, const char *path, struct cay_error *err)
{
    /* Not "not found", which means that there is nothing to pack. */
    return cay_fail_errno(err, eno == ENOENT || eno == ESRCH ? EIO : eno, "cannot read '%s'", path);
}

/* Up to `want` bytes into the buffer; less only at the end of the file. */
static ssize_t take_piece(struct packer *packer, int fd, size_t want)
{
    size_t have = 0;
    char *room = buf_room(&packer->buf, want);
    if (!room) {
        errno = ENOMEM;
        return -1;
    }
    while (have < want) {
        ssize_t n = read(fd, room + have, want - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    packer->buf.size += have;
    return (ssize_t)have;
}

/* The rest of the content, which the header has promised. */
static int pack_rest(struct packer *packer, int fd, uint64_t left, const char *path,
                     struct cay_error *err)
{
    while (left) {
        size_t want = (size_t)CAY_MIN(left, (uint64_t)CAY_MAX_DATA);
        ssize_t n = take_piece(packer, fd, want);
        if (n < 0)
            return fail_read(errno, path, err);
        if ((size_t)n < want)
            return cay_fail(err, CAY_E_UNAVAILABLE, "'%s' became shorter while it was read", path);
        left -= want;
        if (drain(packer, false, err) < 0)
            return -1;
    }
    return 0;
}

/* How much there is to read of a file that tells no size (procfs): it is read twice. */
static int count_bytes(struct packer *packer, int fd, const char *path, uint64_t *out,
                       struct cay_error *err)
{
    size_t before = packer->buf.size;
    ssize_t n;
    *out = 0;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return fail_read(errno, path, err);
    do {
        n = take_piece(packer, fd, CAY_MAX_DATA);
        packer->buf.size = before;
        if (n < 0)
            return fail_read(errno, path, err);
        *out += (uint64_t)n;
        if (fs_tick(packer->worker, err) < 0)
            return -1;
    } while (n == CAY_MAX_DATA);
    return lseek(fd, 0, SEEK_SET) < 0 ? fail_read(errno, path, err) : 0;
}

/*
 * The size that the header gets. What st_size says is believed of large files only: sysfs says 4096
 * of a few bytes, procfs says 0 of many. Small files are read once to see.
 */
static int measure(struct packer *packer, int fd, uint64_t told, const char *path, uint64_t *out,
                   struct cay_error *err)
{
    size_t before = packer->buf.size, want = told ? (size_t)told : CAY_MAX_DATA;
    *out = told;
    if (told > CAY_MAX_DATA)
        return 0;
    ssize_t n = take_piece(packer, fd, want);
    packer->buf.size = before;
    if (n < 0)
        return fail_read(errno, path, err);
    *out = (uint64_t)n;
    if (!told && (size_t)n == want)
        return count_bytes(packer, fd, path, out, err);
    return n && lseek(fd, 0, SEEK_SET) < 0 ? fail_read(errno, path, err) : 0;
}

static int pack_file(struct packer *packer, int dir, const char *name, struct tar_entry *entry,
                     struct cay_error *err)
{
    static const char zeros[TAR_BLOCK];
    struct stat st;
    autofd int fd = fs_open_file(dir, name, entry->path, O_NOFOLLOW, &st, err);
    if (fd < 0 || measure(packer, fd, (uint64_t)st.st_size, entry->path, &entry->size, err) < 0 ||
        take_xattrs(packer, fd, entry, err) < 0)
        return -1;
    if (put_entry(packer, entry, err) < 0 ||
        pack_rest(packer, fd, entry->size, entry->path, err) < 0)
        return -1;
    buf_add(&packer->buf, zeros, tar_padding(entry->size));
    if (drain(packer, false, err) < 0)
        return -1;
    if (st.st_nlink > 1 && tar_links_add(&packer->links, &st, entry->path) < 0)
        note(packer, "too many hard links: other names are copies of", entry->path);
    return 0;
}

static int pack_dir(struct packer *packer, int dir, const char *name, struct tar_entry *entry,
                    struct cay_error *err)
{
    size_t size = strlen(entry->path);
    autofree char *slashed = malloc(size + 2);
    autofd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (!slashed)
        return cay_fail_errno(err, ENOMEM, "cannot make the archive");
    /* One that cannot be opened fails where its content is asked for. */
    if (fd >= 0 && take_xattrs(packer, fd, entry, err) < 0)
        return -1;
    memcpy(slashed, entry->path, size);
    memcpy(slashed + size, "/", 2);
    entry->path = slashed;
    return put_entry(packer, entry, err);
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
                              .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
                              .path = path,
                              .link = ""};
    autofree char *link = NULL;
    const char *first =
        entry.type == TAR_FILE && st->st_nlink > 1 ? tar_links_find(&packer->links, st) : NULL;
    if (first) {
        entry.type = TAR_HARDLINK;
        entry.link = first;
    }
    if (entry.type == TAR_FILE)
        return pack_file(packer, dir, name, &entry, err);
    if (entry.type == TAR_DIR)
        return pack_dir(packer, dir, name, &entry, err);
    if (entry.type == 0) {
        note(packer, S_ISSOCK(st->st_mode) ? "left out the socket" : "left out the device", path);
        return 0;
    }
    if (entry.type == TAR_SYMLINK) {
        entry.link = link = fs_read_link(dir, name);
        if (!link)
            return errno == ENOENT ? 0
                                   : cay_fail_errno(err, errno, "cannot read the link '%s'", path);
    }
    return put_entry(packer, &entry, err);
}

static int pack_tree(struct packer *packer, int top, struct cay_error *err)
{
    autowalk struct walk walk = {0};
    struct walk_item item;
    int more;
    autofd int self = fcntl(top, F_DUPFD_CLOEXEC, 3);
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
    if (more == 0 && packer->notes.size) {
        struct stat st;
        /* No entry is left to go behind the notes but that of the directory itself. */
        if (fstat(self, &st) < 0)
            return cay_fail_errno(err, errno, "cannot make the archive");
        return pack_one(packer, self, ".", ".", &st, err);
    }
    return more;
}

int fs_tar_out(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(packer_done))) struct packer packer = {
        .worker = worker,
        .buf = CAY_BUF(2 * CAY_MAX_DATA + CAY_MAX_PAX + 4 * TAR_BLOCK),
        .links = TAR_LINKS,
        .xattrs = CAY_BUF(TAR_MAX_XATTRS),
        .notes = CAY_BUF(MAX_NOTES)};
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
