/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay cp ID:PATH FILE: brings files of a sandbox to the host. What comes is not trusted: names are
 * checked part by part, every directory on the way is opened without following links, links are
 * made as links, and files are new files that are renamed into place. So nothing is ever written
 * outside of the destination. Two file channels are used: one lists, the other reads, so that no
 * list is kept in memory.
 */
#include "cli/cp.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct copy {
    struct cay_fs *reader;
    const char *remote; /* of the tree */
    const char *local;  /* for messages */
    int root;           /* the destination directory */
    int parent; /* of the entry before, with its path: entries come directory by directory */
    struct cp_path parent_path;
    struct cay_error *err;
    bool failed;
};

/* A name in the same directory that nobody else uses. */
static void temporary_name(char name[static 32])
{
    uint64_t random;
    cay_random(&random, sizeof(random));
    snprintf(name, 32, ".cay-%016llx", (unsigned long long)random);
}

static int fetch(struct cay_fs *fs, const char *remote, int fd, const char *shown,
                 struct cay_error *err)
{
    struct cli_stream out = {.fd = fd};
    int r = cay_fs_read(fs, remote, 0, 0, cli_sink, &out, err);
    return out.eno ? cay_fail_errno(err, out.eno, "cannot write %s", shown) : r;
}

/* The file `remote` becomes dir/name: complete or not at all, whatever was there before. */
static int get_file(struct cay_fs *fs, const char *remote, int dir, const char *name, uint32_t mode,
                    const char *shown, struct cay_error *err)
{
    char temporary[32];
    temporary_name(temporary);
    autofd int fd =
        openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot create %s", shown);
    int r = fetch(fs, remote, fd, shown, err);
    if (r == 0 && renameat(dir, temporary, dir, name) < 0)
        r = cay_fail_errno(err, errno, "cannot create %s", shown);
    if (r < 0)
        unlinkat(dir, temporary, 0);
    return r;
}

static int get_link(int dir, const char *name, const char *target, const char *shown,
                    struct cay_error *err)
{
    char temporary[32];
    temporary_name(temporary);
    if (symlinkat(target, dir, temporary) < 0)
        return cay_fail_errno(err, errno, "cannot create the link %s", shown);
    if (renameat(dir, temporary, dir, name) == 0)
        return 0;
    cay_fail_errno(err, errno, "cannot create the link %s", shown);
    unlinkat(dir, temporary, 0);
    return -1;
}

/* No "..", no ".", no empty part, not absolute: every part is a plain name. */
static bool is_safe(const char *path)
{
    if (!*path)
        return false;
    for (;;) {
        size_t n = strcspn(path, "/");
        if (n == 0 || n > 255 || (n == 1 && path[0] == '.') ||
            (n == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        if (!path[n])
            return true;
        path += n + 1;
    }
}

/* Opens the directory `path` (its first `size` bytes) below the root, following no link. */
static int open_parent(struct copy *c, const char *path, size_t size)
{
    if (c->parent >= 0 && c->parent_path.size == size &&
        memcmp(c->parent_path.text, path, size) == 0)
        return 0;
    if (size >= sizeof(c->parent_path.text))
        return cay_fail(c->err, CAY_E_INVALID, "path too long: %.100s...", path);
    memcpy(c->parent_path.text, path, size);
    cp_path_cut(&c->parent_path, size);
    autofd int fd = openat(c->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[256];
    for (size_t at = 0, n; fd >= 0 && at < size; at += n + 1) {
        n = strcspn(c->parent_path.text + at, "/");
        memcpy(name, c->parent_path.text + at, n);
        name[n] = 0;
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(fd);
        fd = next;
    }
    if (fd < 0)
        return cay_fail_errno(c->err, errno, "cannot open %s/%.*s", c->local, (int)size, path);
    close_fd(&c->parent);
    c->parent = steal_fd(&fd);
    return 0;
}

static int get_entry(struct copy *c, const struct cay_stat *st)
{
    const char *path = st->name ? st->name : "";
    if (!is_safe(path))
        return cay_fail(c->err, CAY_E_DENIED,
                        "the sandbox gave a name that is not safe here: '%.100s'", path);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (open_parent(c, path, slash ? (size_t)(slash - path) : 0) < 0)
        return -1;
    struct cp_path remote, shown;
    size_t ignored;
    if (cp_path_set(&remote, c->remote, c->err) < 0 ||
        cp_path_add(&remote, path, &ignored, c->err) < 0 ||
        cp_path_set(&shown, c->local, c->err) < 0 ||
        cp_path_add(&shown, path, &ignored, c->err) < 0)
        return -1;
    switch (st->type) {
    case 'f':
        return get_file(c->reader, remote.text, c->parent, name, st->mode, shown.text, c->err);
    case 'd':
        if (mkdirat(c->parent, name, (st->mode & 0777) | 0700) < 0 && errno != EEXIST)
            return cay_fail_errno(c->err, errno, "cannot create the directory %s", shown.text);
        return 0;
    case 'l':
        return get_link(c->parent, name, st->target ? st->target : "", shown.text, c->err);
    default: /* not an enum: a letter from outside */
        cli_note("skipped %s: neither file, directory nor link", remote.text);
        return 0;
    }
}

static int on_entry(const struct cay_stat *st, void *data)
{
    struct copy *c = data;
    c->failed = get_entry(c, st) < 0;
    return c->failed ? -1 : 0;
}

/* Opens where the tree goes, and makes it if it is not there. */
static int open_root(struct cli *cli, const char *remote, const char *local)
{
    char name[256];
    cp_base_name(remote, name);
    int fd = open(local, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && mkdir(local, 0777) == 0) {
        fd = open(local, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        name[0] = 0; /* it is the tree itself */
    }
    if (fd < 0)
        return cay_fail_errno(&cli->err, errno, "cannot open %s", local);
    if (!name[0])
        return fd;
    int below = -1;
    if (mkdirat(fd, name, 0777) == 0 || errno == EEXIST)
        below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0)
        cay_fail_errno(&cli->err, errno, "cannot create the directory %s/%s", local, name);
    close(fd);
    return below;
}

static int get_tree(struct cli *cli, struct cay_fs *lister, const char *remote, const char *local)
{
    struct copy c = {.remote = remote, .local = local, .root = -1, .parent = -1};
    struct cay_error own = {0};
    c.err = &own;
    if (cay_fs_open(cli->sandbox, cli->user, &c.reader, &cli->err) < 0)
        return -1;
    c.root = open_root(cli, remote, local);
    int r = c.root < 0 ? -1 : cay_fs_list(lister, remote, UINT32_MAX, on_entry, &c, &cli->err);
    if (c.failed) {
        cli->err = own; /* why we ended the list, not that it ended */
        r = -1;
    }
    close_fd(&c.root);
    close_fd(&c.parent);
    cay_fs_close(c.reader);
    return r;
}

static int get_single(struct cli *cli, struct cay_fs *fs, const char *remote, uint32_t mode,
                      const char *local)
{
    struct stat st;
    char name[256];
    bool there = stat(local, &st) == 0;
    bool into = (there && S_ISDIR(st.st_mode)) || local[strlen(local) - 1] == '/';
    /* Devices, pipes and names such as /dev/stdout are written to, never replaced. */
    bool special = (there && !S_ISREG(st.st_mode)) || strncmp(local, "/dev/", 5) == 0 ||
                   strncmp(local, "/proc/", 6) == 0;
    if (special && !into) {
        autofd int fd = open(local, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
            return cay_fail_errno(&cli->err, errno, "cannot open %s", local);
        return fetch(fs, remote, fd, local, &cli->err);
    }
    cp_base_name(into ? remote : local, name);
    if (!name[0])
        return cay_fail(&cli->err, CAY_E_INVALID, "expected the name of a file, not '%s'",
                        into ? remote : local);
    struct cp_path parent;
    if (cp_path_set(&parent, local, &cli->err) < 0)
        return -1;
    char *slash = strrchr(parent.text, '/');
    if (!into && slash)
        slash[slash == parent.text] = 0; /* what is left is the directory */
    const char *where = into || slash ? parent.text : ".";
    autofd int dir = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return cay_fail_errno(&cli->err, errno, "cannot open the directory %s", where);
    return get_file(fs, remote, dir, name, mode, local, &cli->err);
}

struct found {
    char type;
    uint32_t mode;
};

static int note_stat(const struct cay_stat *st, void *data)
{
    *(struct found *)data = (struct found){st->type, st->mode};
    return 0;
}

int cp_out(struct cli *cli, const char *remote, const char *local)
{
    struct cay_fs *fs = NULL;
    struct found found = {0};
    if (cay_fs_open(cli->sandbox, cli->user, &fs, &cli->err) < 0)
        return CLI_FAILED;
    int r = cay_fs_stat(fs, remote, true, note_stat, &found, &cli->err);
    if (r == 0 && found.type == 'd')
        r = get_tree(cli, fs, remote, local);
    else if (r == 0 && found.type == 'f')
        r = get_single(cli, fs, remote, found.mode, local);
    else if (r == 0)
        r = cay_fail(&cli->err, CAY_E_INVALID, "%s is neither a file nor a directory", remote);
    cay_fs_close(fs);
    return r;
}
