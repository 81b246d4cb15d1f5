/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay cp FILE ID:PATH: walks the host's tree by descriptors and sends it as one archive, which is
 * made as it is asked for, in constant memory. So modes, times, hard links, links, fifos and user.*
 * attributes arrive. Owners do not: the ids of the host mean nothing in there. New files belong to
 * the user who copies, replaced ones to whom they belonged. Sockets and devices are skipped.
 */
#include "cli/cp.h"

#include "base/limits.h"
#include "wire/tar_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct level {
    DIR *dir;
    size_t name, local; /* what the paths were before this directory */
};

struct copy {
    struct cp_path name;  /* in the archive */
    struct cp_path local; /* for messages only */
    struct level *levels;
    size_t depth;
    int fd;        /* the file whose content is being sent, -1: none */
    uint64_t left; /* of that content */
    size_t padding;
    struct cay_buf out; /* not yet asked for */
    size_t sent;        /* of it */
    struct tar_links links;
    struct cay_buf xattrs;
    bool ended;
    bool told_xattrs;
    struct cay_error err; /* why the source gave up */
};

static void copy_done(struct copy *c)
{
    while (c->depth)
        closedir(c->levels[--c->depth].dir);
    free(c->levels);
    close_fd(&c->fd);
    buf_done(&c->out);
    buf_done(&c->xattrs);
    tar_links_done(&c->links);
}

static int fail_read(struct copy *c, const char *what)
{
    return cay_fail_errno(&c->err, errno, "cannot %s %s", what, c->local.text);
}

/* ---- one entry ------------------------------------------------------------------------------- */

static struct tar_entry entry_of(const struct copy *c, const struct stat *st, char type)
{
    return (struct tar_entry){.type = type,
                              .mode = st->st_mode & 07777,
                              .uid = (uid_t)-1, /* as chown has it: not to be changed */
                              .gid = (gid_t)-1,
                              .mtime = st->st_mtim.tv_sec,
                              .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
                              .path = c->name.text,
                              .link = ""};
}

static int put(struct copy *c, struct tar_entry *entry)
{
    return tar_put(&c->out, entry) < 0 ? cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory") : 0;
}

static int add_xattrs(struct copy *c, int fd, struct tar_entry *entry)
{
    int left_out = tar_xattrs_of(fd, &c->xattrs);
    if (left_out < 0)
        return cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory");
    if (left_out && !c->told_xattrs)
        cli_note("attributes of %s and maybe others were not copied", c->local.text);
    c->told_xattrs |= left_out > 0;
    entry->xattrs = c->xattrs.size ? c->xattrs.data : NULL;
    entry->xattrs_size = c->xattrs.size;
    return 0;
}

/* Reads up to `want` bytes behind what is in c->out; fewer only at the end of the file. */
static ssize_t read_piece(struct copy *c, int fd, size_t want)
{
    size_t have = 0;
    char *room = buf_room(&c->out, want);
    while (room && have < want) {
        ssize_t n = read(fd, room + have, want - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_read(c, "read");
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return room ? (ssize_t)have : cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory");
}

/* What st_size says is believed of large files only: others, as those of procfs, are read to see.
 */
static int measure(struct copy *c, int fd, const struct stat *st, uint64_t *size)
{
    ssize_t n;
    *size = (uint64_t)st->st_size;
    if (*size > CAY_MAX_DATA)
        return 0;
    *size = 0;
    do {
        if ((n = read_piece(c, fd, CAY_MAX_DATA)) < 0)
            return -1;
        *size += (uint64_t)n;
    } while (n == CAY_MAX_DATA);
    return *size && lseek(fd, 0, SEEK_SET) < 0 ? fail_read(c, "read") : 0;
}

/* The header; its content follows piece by piece. Takes the descriptor. */
static int put_file(struct copy *c, int *fd, const struct stat *st)
{
    struct tar_entry entry = entry_of(c, st, TAR_FILE);
    const char *first = st->st_nlink > 1 ? tar_links_find(&c->links, st) : NULL;
    if (first) {
        entry.type = TAR_HARDLINK;
        entry.link = first;
        return put(c, &entry);
    }
    if (measure(c, *fd, st, &entry.size) < 0 || add_xattrs(c, *fd, &entry) < 0 ||
        put(c, &entry) < 0)
        return -1;
    if (st->st_nlink > 1 && tar_links_add(&c->links, st, c->name.text) < 0)
        cli_note("too many hard links: other names of %s are copied", c->local.text);
    c->fd = steal_fd(fd);
    c->left = entry.size;
    c->padding = tar_padding(entry.size);
    return 0;
}

static int put_link(struct copy *c, int dir, const char *name, const struct stat *st)
{
    char target[4096];
    ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);
    if (n < 0)
        return fail_read(c, "read");
    target[n] = 0;
    struct tar_entry entry = entry_of(c, st, TAR_SYMLINK);
    entry.link = target;
    return put(c, &entry);
}

/* Takes the descriptor. The paths are those of the directory. */
static int enter(struct copy *c, int *fd, size_t name, size_t local)
{
    struct level *levels = realloc(c->levels, (c->depth + 1) * sizeof(*levels));
    if (!levels)
        return cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory");
    c->levels = levels;
    DIR *dir = fdopendir(*fd);
    if (!dir)
        return fail_read(c, "read the directory");
    steal_fd(fd);
    levels[c->depth++] = (struct level){dir, name, local};
    return 0;
}

static int put_dir(struct copy *c, int fd, const struct stat *st)
{
    struct tar_entry entry = entry_of(c, st, TAR_DIR);
    char slashed[CAY_MAX_PATH + 1];
    snprintf(slashed, sizeof(slashed), "%s/", c->name.text);
    entry.path = slashed;
    return add_xattrs(c, fd, &entry) < 0 ? -1 : put(c, &entry);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* One name of a directory; its paths are set, and cut back by the caller unless it is entered. 1:
 * entered. */
static int put_entry(struct copy *c, int dir, const char *name, size_t before, size_t local)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail_read(c, "read");
    if (S_ISLNK(st.st_mode))
        return put_link(c, dir, name, &st);
    if (S_ISFIFO(st.st_mode)) {
        struct tar_entry entry = entry_of(c, &st, TAR_FIFO);
        return put(c, &entry);
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        cli_note("skipped %s: a socket or device", c->local.text);
        return 0;
    }
    /* Not following and not blocking: it may have become a link or a pipe since. */
    autofd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_read(c, "open");
    if (S_ISREG(st.st_mode))
        return put_file(c, &fd, &st);
    if (!S_ISDIR(st.st_mode))
        return cay_fail(&c->err, CAY_E_CONFLICT, "%s changed while it was copied", c->local.text);
    if (put_dir(c, fd, &st) < 0 || enter(c, &fd, before, local) < 0)
        return -1;
    return 1;
}

/* The next name of the innermost directory. */
static int step(struct copy *c)
{
    struct level *level = &c->levels[c->depth - 1];
    size_t before = c->name.size, local;
    errno = 0;
    struct dirent *e = readdir(level->dir);
    if (!e && errno)
        return fail_read(c, "read the directory");
    if (!e) {
        cp_path_cut(&c->name, level->name);
        cp_path_cut(&c->local, level->local);
        closedir(level->dir);
        c->depth--;
        return 0;
    }
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
        return 0;
    /* No slash at the front: the top has no name. */
    if ((before ? cp_path_add(&c->name, e->d_name, &before, &c->err)
                : cp_path_set(&c->name, e->d_name, &c->err)) < 0 ||
        cp_path_add(&c->local, e->d_name, &local, &c->err) < 0)
        return -1;
    int r = put_entry(c, dirfd(level->dir), e->d_name, before, local);
    if (r == 0 && c->fd < 0) {
        cp_path_cut(&c->name, before);
        cp_path_cut(&c->local, local);
    }
    return r < 0 ? -1 : 0;
}

/* The next piece of the file at hand. */
static int continue_file(struct copy *c)
{
    size_t want = (size_t)CAY_MIN(c->left, (uint64_t)CAY_MAX_DATA);
    ssize_t n = want ? read_piece(c, c->fd, want) : 0;
    if (n < 0)
        return -1;
    if ((size_t)n < want)
        return cay_fail(&c->err, CAY_E_UNAVAILABLE, "%s became shorter while it was read",
                        c->local.text);
    c->out.size += (size_t)n;
    c->left -= (uint64_t)n;
    if (c->left)
        return 0;
    static const char zeros[TAR_BLOCK];
    close_fd(&c->fd);
    if (c->depth) {
        char *slash = strrchr(c->name.text, '/');
        cp_path_cut(&c->name, slash ? (size_t)(slash - c->name.text) : 0);
        cp_path_cut(&c->local, (size_t)(strrchr(c->local.text, '/') - c->local.text));
    }
    return buf_add(&c->out, zeros, c->padding) < 0
               ? cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory")
               : 0;
}

/* A cay_source. */
static ssize_t source(void *buffer, size_t size, void *data)
{
    struct copy *c = data;
    while (c->sent == c->out.size) {
        int r = 0;
        c->out.size = c->sent = 0;
        if (c->fd >= 0)
            r = continue_file(c);
        else if (c->depth)
            r = step(c);
        else if (c->ended)
            return 0;
        else
            c->ended = (r = tar_put_end(&c->out)) == 0;
        if (r < 0)
            return -1;
    }
    size_t n = CAY_MIN(size, c->out.size - c->sent);
    memcpy(buffer, c->out.data + c->sent, n);
    c->sent += n;
    return (ssize_t)n;
}

static int send_archive(struct cli *cli, struct cay_fs *fs, struct copy *c, const char *where)
{
    int r = cay_fs_tar_in(fs, where, source, c, &cli->err);
    if (c->err.code)
        cli->err = c->err; /* why the archive has no end, not that it has none */
    return c->err.code ? -1 : r;
}

/* ---- what was named -------------------------------------------------------------------------- */

/* Makes the last name of `remote` the first of the archive, and `remote` the directory it is in. */
static int split(struct cli *cli, struct copy *c, struct cp_path *remote)
{
    char name[256];
    cp_base_name(remote->text, name);
    char *slash = strrchr(remote->text, '/');
    if (!name[0])
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "'%s' does not name a file or directory of its own", remote->text);
    if (slash)
        cp_path_cut(remote, (size_t)(slash - remote->text) + (slash == remote->text));
    return cp_path_set(&c->name, name, &cli->err) < 0
               ? -1
               : (slash ? 0 : cp_path_set(remote, ".", &cli->err));
}

/* A file that is not there, or is a file, is an archive of one entry. */
static int send_file(struct cli *cli, struct cay_fs *fs, struct copy *c, struct cp_path *remote,
                     int *fd, const struct stat *st)
{
    if (split(cli, c, remote) < 0)
        return -1;
    if (put_file(c, fd, st) < 0) {
        cli->err = c->err;
        return -1;
    }
    return send_archive(cli, fs, c, remote->text);
}

/* What is no file, such as /dev/stdin, or goes through a link or onto what is no file. */
static int send_bytes(struct cli *cli, struct cay_fs *fs, const struct copy *c, const char *remote,
                      int fd, const struct stat *st)
{
    struct cli_stream in = {.fd = fd};
    uint32_t mode = S_ISREG(st->st_mode) ? st->st_mode & 07777 : 0644;
    int r = cay_fs_write(fs, remote, CAY_MODE_GIVEN | mode, cli_source, &in, &cli->err);
    return in.eno ? cay_fail_errno(&cli->err, in.eno, "cannot read %s", c->local.text) : r;
}

/* A directory that is there keeps what it is; a new one becomes what the source is. */
static int send_tree(struct cli *cli, struct cay_fs *fs, struct copy *c, struct cp_path *remote,
                     bool exists, int *fd, const struct stat *st)
{
    cp_path_cut(&c->name, 0);
    if (!exists && split(cli, c, remote) < 0)
        return -1;
    if ((!exists && put_dir(c, *fd, st) < 0) || enter(c, fd, 0, c->local.size) < 0) {
        cli->err = c->err;
        return -1;
    }
    return send_archive(cli, fs, c, remote->text);
}

static int note_type(const struct cay_stat *st, void *data)
{
    *(char *)data = st->type;
    return 0;
}

/* What is at `path`: its letter, or 0: nothing. -1 with cli->err. */
static int type_at(struct cli *cli, struct cay_fs *fs, const char *path, bool follow)
{
    char type = 0;
    int r = cay_fs_stat(fs, path, follow, note_type, &type, &cli->err);
    return r < 0 && cli->err.code != CAY_E_NOT_FOUND ? -1 : type;
}

static int copy_to(struct cli *cli, struct cay_fs *fs, struct copy *c, struct cp_path *remote,
                   bool into_new, int *fd, const struct stat *st)
{
    char name[256];
    size_t ignored;
    int type = type_at(cli, fs, remote->text, true);
    cp_base_name(c->local.text, name);
    if (type < 0)
        return -1;
    if ((type == 'd' || (type == 0 && into_new)) && name[0]) {
        if (cp_path_add(remote, name, &ignored, &cli->err) < 0)
            return -1;
        type = type_at(cli, fs, remote->text, true);
    }
    if (type < 0)
        return -1;
    if (S_ISDIR(st->st_mode))
        return send_tree(cli, fs, c, remote, type == 'd', fd, st);
    int itself = type_at(cli, fs, remote->text, false);
    if (itself < 0)
        return -1;
    if (S_ISREG(st->st_mode) && (itself == 0 || itself == 'f'))
        return send_file(cli, fs, c, remote, fd, st);
    return send_bytes(cli, fs, c, remote->text, *fd, st);
}

int cp_in(struct cli *cli, const char *local, const char *remote)
{
    __attribute__((cleanup(copy_done))) struct copy c = {
        .fd = -1,
        .out = CAY_BUF(2 * CAY_MAX_DATA + 2 * CAY_MAX_PAX),
        .links = TAR_LINKS,
        .xattrs = CAY_BUF(TAR_MAX_XATTRS)};
    struct cp_path target;
    struct cay_fs *fs = NULL;
    struct stat st;
    /* What the user named is followed and may block, as with cp(1). */
    autofd int fd = open(local, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(&cli->err, errno, "cannot open %s", local);
    if (cp_path_set(&target, remote, &cli->err) < 0 ||
        cp_path_set(&c.local, local, &cli->err) < 0 ||
        cay_fs_open(cli->sandbox, cli->user, &fs, &cli->err) < 0)
        return CLI_FAILED;
    bool into_new = remote[strlen(remote) - 1] == '/' && !S_ISDIR(st.st_mode);
    int r = copy_to(cli, fs, &c, &target, into_new, &fd, &st);
    cay_fs_close(fs);
    return r;
}
