/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking a tar stream below one directory, and never anywhere else: names lose their leading
 * slashes,
 * `..` is refused, and every parent is opened with openat2(RESOLVE_BENEATH), so a link that the
 * archive (or somebody meanwhile) put in the way leads to an error, not out. Links are made as they
 * are stored but not followed. Devices are refused. Files appear whole, by rename. Memory is
 * bounded whatever the archive has.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "init/sys.h"
#include "wire/tar_tree.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct unpacker {
    struct worker *worker;
    struct tar_in tar;
    int dest;
    char path[CAY_MAX_PATH];   /* of the current entry, cleaned */
    char parent[CAY_MAX_PATH]; /* of parent_fd */
    int parent_fd;             /* the last parent, because neighbours come together; -1: none */
    int fd;                    /* the file being written, -1: none */
    char tmp[FS_TMP_SIZE];
    struct cay_buf dirs;   /* whose mode and time are set at the end: path, then struct made_dir */
    struct cay_error lost; /* the first attribute that could not be set */
    uint64_t n_lost;
};

struct made_dir {
    uint32_t mode, size;
    struct timespec mtime;
};

/* Of `dirs`. */
#define MAX_MADE (16u << 20)

static void unpacker_free(struct unpacker **owned)
{
    struct unpacker *un = *owned;
    if (!un)
        return;
    if (un->fd >= 0)
        unlinkat(un->parent_fd, un->tmp, 0);
    close_fd(&un->fd);
    close_fd(&un->parent_fd);
    close_fd(&un->dest);
    buf_done(&un->dirs);
    tar_in_done(&un->tar);
    free(un);
}

/* "/a/./b//c/" -> "a/b/c". "" is the directory itself. */
static int clean(const char *name, char out[CAY_MAX_PATH], struct cay_error *err)
{
    size_t size = 0;
    for (const char *at = name; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 2 && at[0] == '.' && at[1] == '.')
            return cay_fail(err, CAY_E_INVALID, "the archive names '%s', which has '..' in it",
                            name);
        if (size + n + 2 > CAY_MAX_PATH)
            return cay_fail_errno(err, ENAMETOOLONG, "cannot unpack '%.64s...'", name);
        if (n && !(n == 1 && at[0] == '.')) {
            if (size)
                out[size++] = '/';
            memcpy(out + size, at, n);
            size += n;
        }
        at += n;
        at += *at == '/';
    }
    out[size] = 0;
    return 0;
}

static int fail_entry(struct unpacker *un, int eno, struct cay_error *err)
{
    if (eno == EXDEV)
        return cay_fail(err, CAY_E_DENIED,
                        "cannot unpack '%s': a link in its path leads out of the directory",
                        un->path);
    return cay_fail_errno(err, eno, "cannot unpack '%s'", un->path);
}

/* Opens a directory below the destination, making what is missing of it. -1 with errno. */
static int open_parent(struct unpacker *un, const char *path)
{
    char part[CAY_MAX_PATH];
    if (!*path)
        return fcntl(un->dest, F_DUPFD_CLOEXEC, 3);
    int fd = sys_open_beneath(un->dest, path, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    autofd int above = fcntl(un->dest, F_DUPFD_CLOEXEC, 3);
    for (const char *at = path; above >= 0 && *at;) {
        size_t n = strcspn(at, "/"), upto = (size_t)(at - path) + n;
        memcpy(part, path, upto);
        part[upto] = 0;
        if (mkdirat(above, part + (at - path), 0755) < 0 && errno != EEXIST)
            return -1;
        close_fd(&above);
        above = sys_open_beneath(un->dest, part, O_PATH | O_DIRECTORY, 0);
        at += n + (at[n] == '/');
    }
    return steal_fd(&above);
}

/* Makes parent_fd the parent of `path`; the last name, or NULL with errno. */
static const char *enter_parent(struct unpacker *un, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t size = slash ? (size_t)(slash - path) : 0;
    const char *name = slash ? slash + 1 : path;
    if (un->parent_fd >= 0 && strncmp(un->parent, path, size) == 0 && un->parent[size] == 0)
        return name;
    close_fd(&un->parent_fd);
    memcpy(un->parent, path, size);
    un->parent[size] = 0;
    un->parent_fd = open_parent(un, un->parent);
    return un->parent_fd < 0 ? NULL : name;
}

/* Everything else is unpacked first; that this is missing is told at the end. */
static void lose(struct unpacker *un, const char *what, int eno)
{
    if (un->n_lost++ == 0)
        cay_fail_errno(&un->lost, eno, "unpacked, but cannot set %s of '%s'", what, un->path);
}

static struct timespec mtime_of(const struct tar_entry *entry)
{
    return (struct timespec){.tv_sec = (time_t)entry->mtime, .tv_nsec = (long)entry->mtime_nsec};
}

static void set_xattrs(struct unpacker *un, int fd)
{
    if (tar_xattrs_set(fd, &un->tar.entry) < 0)
        lose(un, "an attribute", errno);
}

static mode_t allowed_mode(const struct tar_entry *entry)
{
    /* Set-id bits only from root to root, as tar does it. */
    return geteuid() == 0 ? entry->mode & 07777 : entry->mode & 0777;
}

/* Owner (where this user may give files away) and mode. */
static int set_attributes(int fd, const struct tar_entry *entry, mode_t mode)
{
    if (geteuid() == 0 && fchown(fd, (uid_t)entry->uid, (gid_t)entry->gid) < 0 && errno != EPERM &&
        errno != EINVAL)
        return -1;
    return fchmod(fd, mode);
}

static int begin_file(struct unpacker *un, const char *name, struct cay_error *err)
{
    (void)name;
    fs_tmp_name(un->tmp);
    un->fd =
        openat(un->parent_fd, un->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return un->fd < 0 ? fail_entry(un, errno, err) : 0;
}

static int make_dir(struct unpacker *un, const char *name, struct cay_error *err)
{
    const struct tar_entry *entry = &un->tar.entry;
    mode_t mode = allowed_mode(entry);
    if (mkdirat(un->parent_fd, name, 0700) < 0 && errno != EEXIST)
        return fail_entry(un, errno, err);
    autofd int fd = sys_open_beneath(un->dest, un->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    if (fd < 0 && errno == ENOTDIR)
        return cay_fail(err, CAY_E_CONFLICT,
                        "cannot unpack the directory '%s': something else has its name", un->path);
    int set = fd < 0 ? -1 : set_attributes(fd, entry, mode | 0700);
    if (set < 0 && fd >= 0 && errno == EPERM) {
        lose(un, "the mode", EPERM); /* it was there, and is another's */
        return 0;
    }
    if (set < 0)
        return fail_entry(un, errno, err);
    set_xattrs(un, fd);
    /* Its content is still to come: its time, and a mode that would be in the way, are set last. */
    struct made_dir made = {mode, (uint32_t)strlen(un->path) + 1, mtime_of(entry)};
    if (un->dirs.size + made.size + sizeof(made) > MAX_MADE ||
        buf_add(&un->dirs, un->path, made.size) < 0) {
        lose(un, "the mode and time", ENOMEM);
        return 0;
    }
    return buf_add(&un->dirs, &made, sizeof(made)) < 0 ? fail_entry(un, ENOMEM, err) : 0;
}

/* Children before parents: from the end. */
static void finish_dirs(struct unpacker *un)
{
    size_t at = un->dirs.size;
    while (at >= sizeof(struct made_dir)) {
        struct made_dir made;
        at -= sizeof(made);
        memcpy(&made, un->dirs.data + at, sizeof(made));
        at -= made.size;
        memcpy(un->path, un->dirs.data + at, made.size);
        autofd int fd = sys_open_beneath(un->dest, un->path, O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0)
            continue; /* somebody has removed it */
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, made.mtime};
        if (futimens(fd, times) < 0)
            lose(un, "the time", errno);
        if ((made.mode & 0700) != 0700 && fchmod(fd, made.mode) < 0)
            lose(un, "the mode", errno);
    }
}

/* What a link or fifo replaces; a directory is not replaced. */
static int make_way(struct unpacker *un, const char *name, struct cay_error *err)
{
    if (unlinkat(un->parent_fd, name, 0) < 0 && errno != ENOENT)
        return fail_entry(un, errno, err);
    return 0;
}

/* Owner (not ours to give: it stays the writer's) and time of a link or fifo. */
static void dress(struct unpacker *un, const char *name)
{
    const struct tar_entry *entry = &un->tar.entry;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, mtime_of(entry)};
    int owned = geteuid() ? 0
                          : fchownat(un->parent_fd, name, (uid_t)entry->uid, (gid_t)entry->gid,
                                     AT_SYMLINK_NOFOLLOW);
    if (owned < 0 && errno != EPERM && errno != EINVAL)
        lose(un, "the owner", errno);
    if (utimensat(un->parent_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0)
        lose(un, "the time", errno);
}

static int make_symlink(struct unpacker *un, const char *name, struct cay_error *err)
{
    if (make_way(un, name, err) < 0)
        return -1;
    if (symlinkat(un->tar.entry.link, un->parent_fd, name) < 0)
        return fail_entry(un, errno, err);
    dress(un, name);
    return 0;
}

static int make_fifo(struct unpacker *un, const char *name, struct cay_error *err)
{
    if (make_way(un, name, err) < 0)
        return -1;
    /* The mode is the archive's word, not the umask's. */
    mode_t mode = allowed_mode(&un->tar.entry), before = umask(0);
    int made = mkfifoat(un->parent_fd, name, mode), eno = errno;
    umask(before);
    if (made < 0)
        return fail_entry(un, eno, err);
    dress(un, name);
    return 0;
}

static int make_hardlink(struct unpacker *un, const char *name, struct cay_error *err)
{
    char target[CAY_MAX_PATH];
    if (clean(un->tar.entry.link, target, err) < 0)
        return -1;
    if (strcmp(target, un->path) == 0)
        return 0;
    char *slash = strrchr(target, '/');
    if (slash)
        *slash = 0;
    autofd int dir = slash ? sys_open_beneath(un->dest, target, O_PATH | O_DIRECTORY, 0)
                           : fcntl(un->dest, F_DUPFD_CLOEXEC, 3);
    if (dir < 0)
        return fail_entry(un, errno, err);
    if (make_way(un, name, err) < 0)
        return -1;
    if (linkat(dir, slash ? slash + 1 : target, un->parent_fd, name, 0) < 0)
        return cay_fail_errno(err, errno, "cannot unpack '%s' as a link to '%s'", un->path,
                              un->tar.entry.link);
    return 0;
}

static int refuse_device(struct unpacker *un, const char *name, struct cay_error *err)
{
    (void)name;
    return cay_fail(err, CAY_E_UNSUPPORTED,
                    "cannot unpack '%s': it is a device, which a sandbox cannot make", un->path);
}

static int begin_entry(struct unpacker *un, struct cay_error *err)
{
    static const struct {
        char type;
        int (*make)(struct unpacker *un, const char *name, struct cay_error *err);
    } makers[] = {
        {TAR_FILE, begin_file},        {TAR_DIR, make_dir},   {TAR_SYMLINK, make_symlink},
        {TAR_HARDLINK, make_hardlink}, {TAR_FIFO, make_fifo}, {TAR_CHAR, refuse_device},
        {TAR_BLOCKDEV, refuse_device},
    };
    const struct tar_entry *entry = &un->tar.entry;
    if (clean(entry->path, un->path, err) < 0 || fs_tick(un->worker, err) < 0)
        return -1;
    if (!un->path[0])
        return entry->type == TAR_DIR
                   ? 0
                   : cay_fail(err, CAY_E_INVALID, "the archive has an entry without a name");
    for (size_t i = 0; i < CAY_COUNT(makers); i++) {
        if (makers[i].type != entry->type)
            continue;
        const char *name = enter_parent(un, un->path);
        return name ? makers[i].make(un, name, err) : fail_entry(un, errno, err);
    }
    return cay_fail(err, CAY_E_UNSUPPORTED, "cannot unpack '%s': unknown kind of entry '%c'",
                    un->path, entry->type >= 0x20 ? entry->type : '?');
}

/* An archive without owners (-1, as chown has it) leaves a file that it replaces to its owner. */
static void keep_owner(struct unpacker *un, const char *name)
{
    struct tar_entry *entry = &un->tar.entry;
    struct stat old;
    if ((uid_t)entry->uid != (uid_t)-1 || (gid_t)entry->gid != (gid_t)-1 ||
        fstatat(un->parent_fd, name, &old, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(old.st_mode))
        return;
    entry->uid = old.st_uid;
    entry->gid = old.st_gid;
}

static int end_entry(struct unpacker *un, struct cay_error *err)
{
    const struct tar_entry *entry = &un->tar.entry;
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of(entry)};
    if (un->fd < 0)
        return 0;
    const char *slash = strrchr(un->path, '/'), *name = slash ? slash + 1 : un->path;
    set_xattrs(un, un->fd);
    keep_owner(un, name);
    if (set_attributes(un->fd, entry, allowed_mode(entry)) < 0)
        return fail_entry(un, errno, err);
    if (futimens(un->fd, times) < 0)
        lose(un, "the time", errno);
    if (renameat(un->parent_fd, un->tmp, un->parent_fd, name) < 0) {
        /* A mount of its own: see fs_write.c. */
        if (errno != EBUSY || fs_overwrite(un->worker, un->fd, un->parent_fd, name) < 0)
            return fail_entry(un, errno, err);
        unlinkat(un->parent_fd, un->tmp, 0);
    }
    close_fd(&un->fd);
    return 0;
}

static int feed(struct unpacker *un, const struct wire_bytes *bytes, struct cay_error *err)
{
    const char *at = bytes->data, *end = at + bytes->size;
    for (;;) {
        int result = 0, event = tar_in_next(&un->tar, &at, end, err);
        if (event < 0)
            return -1;
        switch ((enum tar_event)event) {
        case TAR_MORE:
            return 0;
        case TAR_ENTRY:
            result = begin_entry(un, err);
            break;
        case TAR_DATA:
            if (un->fd >= 0 && cay_write_all(un->fd, un->tar.data, un->tar.data_size) < 0)
                result = fail_entry(un, errno, err);
            break;
        case TAR_ENTRY_END:
            result = end_entry(un, err);
            break;
        case TAR_NOTE:
        case TAR_END:
            break;
        }
        if (result < 0)
            return -1;
    }
}

int fs_tar_in(struct worker *worker, const struct msg *msg, struct cay_error *err)
{
    __attribute__((cleanup(unpacker_free))) struct unpacker *un = calloc(1, sizeof(*un));
    struct wire_bytes bytes;
    int more;
    if (!un)
        return cay_fail_errno(err, ENOMEM, "cannot unpack");
    *un = (struct unpacker){
        .worker = worker, .dest = -1, .parent_fd = -1, .fd = -1, .dirs = CAY_BUF(MAX_MADE)};
    tar_in_init(&un->tar);
    if (fs_make_dirs(msg->path, 0755, err) < 0 || (un->dest = fs_open_dir(msg->path, err)) < 0)
        return -1;
    while ((more = fs_recv_data(worker, &bytes, err)) > 0)
        if (feed(un, &bytes, err) < 0)
            return -1;
    if (more < 0)
        return -1;
    if (!tar_in_complete(&un->tar))
        return cay_fail(err, CAY_E_INVALID, "the archive is cut short");
    finish_dirs(un);
    if (un->n_lost)
        *err = un->lost;
    return un->n_lost ? -1 : 0;
}
