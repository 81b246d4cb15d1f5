/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay cp ID:PATH FILE: brings files of a sandbox to the host; of a tree they come as one archive.
 * What comes is not trusted: names are checked part by part, every directory on the way is opened
 * without following links, links are made as links, hard links only to files that this copy has
 * made, and files are new files that are renamed into place. So nothing is ever written outside of
 * the destination. Set-id bits would make somebody else's program one of the caller's, and owners
 * and special files are not the host's: they stay behind, which is told.
 */
#include "cli/cp.h"

#include "base/limits.h"
#include "wire/tar_tree.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Directories whose mode and time are set at the end. */
#define MAX_MADE (16u << 20)
#define KEPT_BITS 01777u

enum told { TOLD_SETID = 1, TOLD_XATTR = 2, TOLD_TIME = 4 };

struct copy {
    const char *remote, *local; /* for messages */
    int root;                   /* the destination directory */
    int parent; /* of the entry before, with its path: entries come directory by directory */
    struct cp_path parent_path;
    struct tar_in tar;
    struct cp_path path;   /* of the entry at hand, below the root */
    int fd;                /* its file, -1: none */
    char temporary[32];    /* where that is */
    struct cay_buf dirs;   /* path, then struct made_dir */
    struct tar_links made; /* files of this copy */
    unsigned told;         /* enum told */
    struct cay_error err;
    bool failed;
};

struct made_dir {
    uint32_t mode, size;
    struct timespec mtime;
};

/* What cannot be kept is told once, and is no error. */
static void tell(struct copy *c, enum told what, const char *text)
{
    if (!(c->told & what))
        cli_note("%s of %s/%s and maybe others", text, c->local, c->path.text);
    c->told |= what;
}

/* A name in the same directory that nobody else uses. */
static void temporary_name(char name[static 32])
{
    uint64_t random;
    cay_random(&random, sizeof(random));
    snprintf(name, 32, ".cay-%016llx", (unsigned long long)random);
}

/* ---- a single file --------------------------------------------------------------------------- */

static int fetch(struct cay_fs *fs, const char *remote, int fd, const char *shown,
                 struct cay_error *err)
{
    struct cli_stream out = {.fd = fd};
    int r = cay_fs_read(fs, remote, 0, 0, cli_sink, &out, err);
    return out.eno ? cay_fail_errno(err, out.eno, "cannot write %s", shown) : r;
}

struct found {
    char type;
    uint32_t mode;
    int64_t mtime_ns;
};

static struct timespec time_of(int64_t ns)
{
    int64_t part = ns % 1000000000;
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000 - (part < 0)),
                             .tv_nsec = (long)(part < 0 ? part + 1000000000 : part)};
}

/* The file `remote` becomes dir/name: complete or not at all, whatever was there before. */
static int get_file(struct cay_fs *fs, const char *remote, int dir, const char *name,
                    const struct found *found, const char *shown, struct cay_error *err)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, time_of(found->mtime_ns)};
    char temporary[32];
    temporary_name(temporary);
    autofd int fd =
        openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot create %s", shown);
    int r = fetch(fs, remote, fd, shown, err);
    if (r == 0 && (fchmod(fd, found->mode & KEPT_BITS) < 0 || futimens(fd, times) < 0))
        r = cay_fail_errno(err, errno, "cannot set the mode and time of %s", shown);
    if (r == 0 && found->mode & ~KEPT_BITS)
        cli_note("the set-id bits of %s were not copied", shown);
    if (r == 0 && renameat(dir, temporary, dir, name) < 0)
        r = cay_fail_errno(err, errno, "cannot create %s", shown);
    if (r < 0)
        unlinkat(dir, temporary, 0);
    return r;
}

/* ---- a tree ---------------------------------------------------------------------------------- */

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
        return cay_fail(&c->err, CAY_E_INVALID, "path too long: %.100s...", path);
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
    close_fd(&c->parent);
    if (fd < 0)
        return cay_fail_errno(&c->err, errno, "cannot open %s/%.*s", c->local, (int)size, path);
    c->parent = steal_fd(&fd);
    return 0;
}

static int fail_entry(struct copy *c, const char *what)
{
    return cay_fail_errno(&c->err, errno, "cannot create %s %s/%s", what, c->local, c->path.text);
}

static const char *last_name(const struct copy *c)
{
    const char *slash = strrchr(c->path.text, '/');
    return slash ? slash + 1 : c->path.text;
}

static struct timespec mtime_of(const struct tar_entry *entry)
{
    return (struct timespec){.tv_sec = (time_t)entry->mtime, .tv_nsec = (long)entry->mtime_nsec};
}

static void set_xattrs(struct copy *c, int fd)
{
    if (tar_xattrs_set(fd, &c->tar.entry) < 0)
        tell(c, TOLD_XATTR, "cannot set attributes");
}

static uint32_t kept_mode(struct copy *c)
{
    if (c->tar.entry.mode & ~KEPT_BITS && c->tar.entry.type == TAR_FILE)
        tell(c, TOLD_SETID, "not copied: the set-id bits");
    return c->tar.entry.mode & KEPT_BITS;
}

static int begin_file(struct copy *c)
{
    temporary_name(c->temporary);
    c->fd =
        openat(c->parent, c->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return c->fd < 0 ? fail_entry(c, "the file") : 0;
}

/* All of it is here: it takes its place. */
static int end_file(struct copy *c)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, mtime_of(&c->tar.entry)};
    struct stat st;
    if (c->fd < 0)
        return 0;
    set_xattrs(c, c->fd);
    if (fchmod(c->fd, kept_mode(c)) < 0 || futimens(c->fd, times) < 0 || fstat(c->fd, &st) < 0 ||
        renameat(c->parent, c->temporary, c->parent, last_name(c)) < 0)
        return fail_entry(c, "the file");
    close_fd(&c->fd);
    tar_links_add(&c->made, &st, ""); /* without room for it a link to it is refused */
    return 0;
}

/* One that is there stays what it is. */
static int make_dir(struct copy *c)
{
    if (mkdirat(c->parent, last_name(c), 0700) < 0)
        return errno == EEXIST ? 0 : fail_entry(c, "the directory");
    autofd int fd =
        openat(c->parent, last_name(c), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fail_entry(c, "the directory");
    set_xattrs(c, fd);
    struct made_dir made = {kept_mode(c), (uint32_t)c->path.size + 1, mtime_of(&c->tar.entry)};
    if (c->dirs.size + made.size + sizeof(made) > MAX_MADE) {
        tell(c, TOLD_TIME, "too many directories: not copied: the mode and time");
        return 0;
    }
    buf_add(&c->dirs, c->path.text, made.size);
    return buf_add(&c->dirs, &made, sizeof(made)) < 0
               ? cay_fail(&c->err, CAY_E_NO_SPACE, "out of memory")
               : 0;
}

static int make_symlink(struct copy *c)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, mtime_of(&c->tar.entry)};
    temporary_name(c->temporary);
    if (symlinkat(c->tar.entry.link, c->parent, c->temporary) < 0)
        return fail_entry(c, "the link");
    if (utimensat(c->parent, c->temporary, times, AT_SYMLINK_NOFOLLOW) == 0 &&
        renameat(c->parent, c->temporary, c->parent, last_name(c)) == 0)
        return 0;
    fail_entry(c, "the link");
    unlinkat(c->parent, c->temporary, 0);
    return -1;
}

/* To a file that this copy has made, and to no other. */
static int make_hardlink(struct copy *c)
{
    const char *target = c->tar.entry.link, *slash = strrchr(target, '/');
    const char *name = slash ? slash + 1 : target;
    struct stat st;
    if (!is_safe(target) || strlen(target) >= sizeof(c->path.text))
        return cay_fail(&c->err, CAY_E_DENIED,
                        "the sandbox gave a name that is not safe here: '%.100s'", target);
    autofd int here = steal_fd(&c->parent);
    if (open_parent(c, target, slash ? (size_t)(slash - target) : 0) < 0)
        return -1;
    if (fstatat(c->parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_entry(c, "the link");
    if (!S_ISREG(st.st_mode) || !tar_links_find(&c->made, &st))
        return cay_fail(&c->err, CAY_E_DENIED, "'%s/%s' is a link to what was not copied", c->local,
                        c->path.text);
    temporary_name(c->temporary);
    if (linkat(c->parent, name, here, c->temporary, 0) < 0)
        return fail_entry(c, "the link");
    /* A rename onto another name of the same file does nothing, and leaves both. */
    int r = renameat(here, c->temporary, here, last_name(c)) < 0 ? fail_entry(c, "the link") : 0;
    unlinkat(here, c->temporary, 0);
    return r;
}

static int skip(struct copy *c)
{
    cli_note("skipped %s/%s: neither file, directory nor link", c->remote, c->path.text);
    return 0;
}

static int begin_entry(struct copy *c)
{
    static const struct {
        char type;
        int (*make)(struct copy *c);
    } makers[] = {{TAR_FILE, begin_file},
                  {TAR_DIR, make_dir},
                  {TAR_SYMLINK, make_symlink},
                  {TAR_HARDLINK, make_hardlink}};
    const struct tar_entry *entry = &c->tar.entry;
    if (entry->type == TAR_DIR && strcmp(entry->path, "./") == 0)
        return 0; /* carries a note only */
    if (cp_path_set(&c->path, entry->path, &c->err) < 0)
        return -1;
    if (!is_safe(c->path.text))
        return cay_fail(&c->err, CAY_E_DENIED,
                        "the sandbox gave a name that is not safe here: '%.100s'", c->path.text);
    const char *slash = strrchr(c->path.text, '/');
    if (open_parent(c, c->path.text, slash ? (size_t)(slash - c->path.text) : 0) < 0)
        return -1;
    for (size_t i = 0; i < CAY_COUNT(makers); i++)
        if (makers[i].type == entry->type)
            return makers[i].make(c);
    return skip(c);
}

static int on_event(struct copy *c, int event)
{
    switch ((enum tar_event)event) {
    case TAR_ENTRY:
        return begin_entry(c);
    case TAR_DATA:
        return c->fd >= 0 && cli_write(c->fd, c->tar.data, c->tar.data_size) < 0
                   ? cay_fail_errno(&c->err, errno, "cannot write %s/%s", c->local, c->path.text)
                   : 0;
    case TAR_ENTRY_END:
        return end_file(c);
    case TAR_NOTE:
        cli_note("the sandbox %s", c->tar.note);
        return 0;
    case TAR_MORE:
    case TAR_END:
        return 0;
    }
    return 0;
}

/* A cay_sink. */
static int take(const void *bytes, size_t size, void *data)
{
    struct copy *c = data;
    const char *at = bytes, *end = at + size;
    int event = TAR_MORE;
    while (!c->failed && (event = tar_in_next(&c->tar, &at, end, &c->err)) > 0)
        c->failed = on_event(c, event) < 0;
    c->failed |= event < 0;
    return c->failed ? -1 : 0;
}

/* Children before parents: from the end. */
static void finish_dirs(struct copy *c)
{
    size_t at = c->dirs.size;
    while (at >= sizeof(struct made_dir)) {
        struct made_dir made;
        at -= sizeof(made);
        memcpy(&made, c->dirs.data + at, sizeof(made));
        at -= made.size;
        cp_path_set(&c->path, c->dirs.data + at, &c->err);
        const char *slash = strrchr(c->path.text, '/');
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, made.mtime};
        autofd int fd = -1;
        if (open_parent(c, c->path.text, slash ? (size_t)(slash - c->path.text) : 0) == 0)
            fd = openat(c->parent, last_name(c), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || futimens(fd, times) < 0 || fchmod(fd, made.mode) < 0)
            tell(c, TOLD_TIME, "cannot set the mode and time");
    }
}

/* Opens where the tree goes, and makes it if it is not there. */
static int open_root(struct cli *cli, const char *remote, const char *local, bool *made)
{
    char name[256];
    cp_base_name(remote, name);
    int fd = open(local, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && mkdir(local, 0777) == 0) {
        fd = open(local, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        name[0] = 0; /* it is the tree itself */
        *made = true;
    }
    if (fd < 0)
        return cay_fail_errno(&cli->err, errno, "cannot open %s", local);
    if (!name[0])
        return fd;
    int below = -1;
    *made = mkdirat(fd, name, 0777) == 0;
    if (*made || errno == EEXIST)
        below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0)
        cay_fail_errno(&cli->err, errno, "cannot create the directory %s/%s", local, name);
    close(fd);
    return below;
}

/* A file that did not come to its end. */
static void drop_file(struct copy *c)
{
    if (c->fd >= 0)
        unlinkat(c->parent, c->temporary, 0);
    close_fd(&c->fd);
}

static void copy_free(struct copy **owned)
{
    struct copy *c = *owned;
    if (!c)
        return;
    drop_file(c);
    close_fd(&c->root);
    close_fd(&c->parent);
    buf_done(&c->dirs);
    tar_links_done(&c->made);
    tar_in_done(&c->tar);
    free(c);
}

static int get_tree(struct cli *cli, struct cay_fs *fs, const char *remote,
                    const struct found *found, const char *local)
{
    __attribute__((cleanup(copy_free))) struct copy *c = calloc(1, sizeof(*c));
    bool made = false;
    if (!c)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    *c = (struct copy){.remote = remote,
                       .local = local,
                       .parent = -1,
                       .fd = -1,
                       .dirs = CAY_BUF(MAX_MADE),
                       .made = TAR_LINKS,
                       .root = open_root(cli, remote, local, &made)};
    tar_in_init(&c->tar);
    if (c->root < 0)
        return -1;
    int r = cay_fs_tar_out(fs, remote, take, c, &cli->err);
    if (c->failed) {
        cli->err = c->err; /* why we ended the archive, not that it ended */
        r = -1;
    }
    if (r == 0 && !tar_in_complete(&c->tar))
        r = cay_fail(&cli->err, CAY_E_UNAVAILABLE, "the archive of %s is cut short", remote);
    drop_file(c);
    finish_dirs(c);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, time_of(found->mtime_ns)};
    cp_path_cut(&c->path, 0);
    if (made && (futimens(c->root, times) < 0 || fchmod(c->root, found->mode & KEPT_BITS) < 0))
        tell(c, TOLD_TIME, "cannot set the mode and time");
    return r;
}

static int get_single(struct cli *cli, struct cay_fs *fs, const char *remote,
                      const struct found *found, const char *local)
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
    return get_file(fs, remote, dir, name, found, local, &cli->err);
}

static int note_stat(const struct cay_stat *st, void *data)
{
    *(struct found *)data = (struct found){st->type, st->mode, st->mtime_ns};
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
        r = get_tree(cli, fs, remote, &found, local);
    else if (r == 0 && found.type == 'f')
        r = get_single(cli, fs, remote, &found, local);
    else if (r == 0)
        r = cay_fail(&cli->err, CAY_E_INVALID, "%s is neither a file nor a directory", remote);
    cay_fs_close(fs);
    return r;
}
