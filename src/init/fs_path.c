/* SPDX-License-Identifier: Apache-2.0 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define TMP_PREFIX ".cay-"
#define TMP_RANDOM 10
_Static_assert(sizeof(TMP_PREFIX) + TMP_RANDOM == FS_TMP_SIZE, "a temporary name fills its buffer");

void fs_tmp_name(char out[FS_TMP_SIZE])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    unsigned char random[TMP_RANDOM];
    cay_random(random, sizeof(random));
    memcpy(out, TMP_PREFIX, sizeof(TMP_PREFIX) - 1);
    for (size_t i = 0; i < TMP_RANDOM; i++)
        out[sizeof(TMP_PREFIX) - 1 + i] = letters[random[i] % 32];
    out[FS_TMP_SIZE - 1] = 0;
}

bool fs_is_tmp_name(const char *name)
{
    return strlen(name) == FS_TMP_SIZE - 1 &&
           strncmp(name, TMP_PREFIX, sizeof(TMP_PREFIX) - 1) == 0;
}

const char *fs_kind(mode_t mode)
{
    static const struct {
        mode_t type;
        const char *name;
    } kinds[] = {
        {S_IFDIR, "a directory"}, {S_IFIFO, "a fifo"},   {S_IFSOCK, "a socket"},
        {S_IFCHR, "a device"},    {S_IFBLK, "a device"}, {S_IFLNK, "a link"},
    };
    for (size_t i = 0; i < CAY_COUNT(kinds); i++)
        if ((mode & S_IFMT) == kinds[i].type)
            return kinds[i].name;
    return "a file";
}

int fs_open_file(int dir, const char *path, const char *shown, int flags, struct stat *st,
                 struct cay_error *err)
{
    autofd int fd = openat(dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
    if (fd < 0 && errno == ENXIO)
        return cay_fail(err, CAY_E_INVALID, "cannot read '%s': it is a socket or a device", shown);
    if (fd < 0 || fstat(fd, st) < 0)
        return cay_fail_errno(err, errno, "cannot read '%s'", shown);
    if (!S_ISREG(st->st_mode))
        return cay_fail(err, CAY_E_INVALID, "cannot read '%s': it is %s", shown,
                        fs_kind(st->st_mode));
    return steal_fd(&fd);
}

int fs_open_dir(const char *path, struct cay_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOTDIR)
        return cay_fail(err, CAY_E_INVALID, "'%s' is not a directory", path);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot open the directory '%s'", path);
    return fd;
}

/* One directory; an existing one (also behind a link) is fine. 1: made; 0: was there; -1 with
 * errno. */
static int make_one(const char *path, mode_t mode)
{
    struct stat st;
    if (mkdir(path, mode & 0777) == 0)
        return 1;
    if (errno != EEXIST)
        return -1;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    errno = EEXIST;
    return -1;
}

int fs_make_dirs(const char *path, mode_t mode, struct cay_error *err)
{
    int made = make_one(path, mode);
    if (made < 0 && errno == ENOENT) {
        autofree char *copy = strdup(path);
        if (!copy)
            return cay_fail_errno(err, ENOMEM, "cannot make the directory '%s'", path);
        for (size_t size = strlen(copy); size > 1 && copy[size - 1] == '/';)
            copy[--size] = 0;
        for (char *slash = copy; *copy && (slash = strchr(slash + 1, '/'));) {
            *slash = 0;
            if (make_one(copy, 0755) < 0)
                return cay_fail_errno(err, errno, "cannot make the directory '%s'", copy);
            *slash = '/';
        }
        made = make_one(path, mode);
    }
    if (made < 0)
        return cay_fail_errno(err, errno, "cannot make the directory '%s'", path);
    /* The mode is the caller's word, not the umask's. */
    if (made && mode != 0755 && chmod(path, mode) < 0)
        return cay_fail_errno(err, errno, "cannot set the mode of '%s'", path);
    return 0;
}

int fs_split(const char *path, char **dir, const char **name, struct cay_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *last = slash ? slash + 1 : path;
    if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return cay_fail(err, CAY_E_INVALID, "'%s' does not name a file or directory of its own",
                        path);
    *dir = !slash          ? strdup(".")
           : slash == path ? strdup("/")
                           : strndup(path, (size_t)(slash - path));
    if (!*dir)
        return cay_fail_errno(err, ENOMEM, "cannot use the path '%s'", path);
    *name = last;
    return 0;
}

char *fs_read_link(int dir, const char *name)
{
    char target[CAY_MAX_PATH];
    ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);
    if (n < 0)
        return NULL;
    target[n] = 0;
    return strdup(target);
}

int fs_copy_bytes(struct worker *worker, int from, int to)
{
    autofree char *buffer = malloc(CAY_MAX_DATA);
    if (!buffer)
        return -1;
    for (;;) {
        ssize_t n = read(from, buffer, CAY_MAX_DATA);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        if (worker && fs_tick(worker, NULL) < 0) {
            errno = EPIPE;
            return -1;
        }
        if (cay_write_all(to, buffer, (size_t)n) < 0)
            return -1;
    }
}
