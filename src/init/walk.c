/* SPDX-License-Identifier: Apache-2.0 */
#include "init/walk.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct walk_level {
    int fd;
    struct cay_buf bytes; /* the names, each with its NUL */
    const char **names;   /* sorted */
    size_t n, at;
    size_t prefix; /* size of the path of this directory */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void level_done(struct walk_level *level)
{
    close_fd(&level->fd);
    buf_done(&level->bytes);
    free(level->names);
    level->names = NULL;
}

/* Reads all names; -1 with errno. */
static int read_names(struct walk_level *level)
{
    int copy = fcntl(level->fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        close_fd(&copy);
        return -1;
    }
    errno = 0;
    for (struct dirent *entry; (entry = readdir(dir)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (buf_add(&level->bytes, entry->d_name, strlen(entry->d_name) + 1) < 0) {
            errno = EFBIG;
            break;
        }
        level->n++;
    }
    int eno = errno;
    closedir(dir);
    errno = eno;
    if (eno)
        return -1;
    level->names = calloc(level->n + 1, sizeof(*level->names));
    if (!level->names)
        return -1;
    const char *at = level->bytes.data;
    for (size_t i = 0; i < level->n; i++, at += strlen(at) + 1)
        level->names[i] = at;
    qsort(level->names, level->n, sizeof(*level->names), by_name);
    return 0;
}

void walk_miss(struct walk *walk, const struct cay_error *err)
{
    if (walk->n_missed++ == 0)
        walk->missed = *err;
}

int walk_verdict(const struct walk *walk, struct cay_error *err)
{
    if (walk->n_missed == 0)
        return 0;
    *err = walk->missed;
    if (walk->n_missed > 1) {
        size_t size = strlen(err->text);
        snprintf(err->text + size, sizeof(err->text) - size, " (and %llu more)",
                 (unsigned long long)walk->n_missed - 1);
    }
    return -1;
}

/* What is missing by now is never an error; what may not be read only for the strict. */
static int tolerate(struct walk *walk, int eno, struct cay_error *err)
{
    bool serious = eno == EMFILE || eno == ENFILE || eno == ENOMEM || eno == EFBIG;
    if (eno == ENOENT || eno == ENOTDIR || eno == ELOOP || eno == ESRCH)
        return 0;
    struct cay_error why;
    const char *path = walk->path.size ? buf_cstr(&walk->path) : ".";
    if (eno == EFBIG)
        cay_fail(&why, CAY_E_TOO_LARGE, "the directory '%s' has too many names", path);
    else
        cay_fail_errno(&why, eno, "cannot read '%s'", path);
    if (!serious && !(walk->flags & WALK_STRICT)) {
        walk_miss(walk, &why);
        return 0;
    }
    *err = why;
    return -1;
}

/* Opens one more level. Takes over fd. 1: done; 0: left out; -1. */
static int push(struct walk *walk, int fd, struct cay_error *err)
{
    if (walk->depth == CAY_MAX_DEPTH) {
        close(fd);
        return cay_fail(err, CAY_E_LIMIT, "the tree is deeper than %d directories", CAY_MAX_DEPTH);
    }
    struct walk_level *levels = realloc(walk->levels, (walk->depth + 1) * sizeof(*levels));
    if (!levels) {
        close(fd);
        return cay_fail_errno(err, ENOMEM, "cannot read a directory");
    }
    walk->levels = levels;
    struct walk_level *level = &levels[walk->depth];
    *level =
        (struct walk_level){.fd = fd, .bytes = CAY_BUF(CAY_MAX_DIR), .prefix = walk->path.size};
    if (read_names(level) < 0) {
        int eno = errno;
        level_done(level);
        return tolerate(walk, eno, err);
    }
    walk->depth++;
    return 1;
}

int walk_init(struct walk *walk, int top, unsigned flags, struct cay_error *err)
{
    *walk = (struct walk){.path = CAY_BUF(CAY_MAX_TREE_PATH), .flags = flags};
    int result = push(walk, top, err);
    return result < 0 ? -1 : 0;
}

void walk_done(struct walk *walk)
{
    while (walk->depth)
        level_done(&walk->levels[--walk->depth]);
    free(walk->levels);
    buf_done(&walk->path);
    walk->levels = NULL;
}

void walk_skip(struct walk *walk)
{
    walk->enter = false;
}

static const char *set_path(struct walk *walk, size_t prefix, const char *name)
{
    walk->path.size = prefix;
    if (prefix)
        buf_str(&walk->path, "/");
    buf_str(&walk->path, name);
    return buf_cstr(&walk->path);
}

static int enter(struct walk *walk, struct cay_error *err)
{
    struct walk_level *level = &walk->levels[walk->depth - 1];
    const char *name = level->names[level->at - 1];
    walk->enter = false;
    int fd = openat(level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? tolerate(walk, errno, err) : push(walk, fd, err);
}

/* The level is used up: 1 with the item of its directory, if asked for; 0: go on above. */
static int leave(struct walk *walk, struct walk_item *out)
{
    level_done(&walk->levels[--walk->depth]);
    if (walk->depth == 0 || !(walk->flags & WALK_LEAVE))
        return 0;
    struct walk_level *level = &walk->levels[walk->depth - 1];
    const char *name = level->names[level->at - 1];
    *out = (struct walk_item){.path = set_path(walk, level->prefix, name),
                              .name = name,
                              .dir = level->fd,
                              .depth = walk->depth - 1,
                              .leaving = true};
    return 1;
}

int walk_next(struct walk *walk, struct walk_item *out, struct cay_error *err)
{
    for (;;) {
        if (walk->enter && enter(walk, err) < 0)
            return -1;
        if (walk->depth == 0)
            return 0;
        struct walk_level *level = &walk->levels[walk->depth - 1];
        if (level->at == level->n) {
            if (leave(walk, out))
                return 1;
            continue;
        }
        const char *name = level->names[level->at++];
        const char *path = set_path(walk, level->prefix, name);
        if (!path)
            return cay_fail(err, CAY_E_TOO_LARGE, "a path in the tree is too long");
        *out = (struct walk_item){
            .path = path, .name = name, .dir = level->fd, .depth = walk->depth - 1};
        if (fstatat(level->fd, name, &out->st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (tolerate(walk, errno, err) < 0)
                return -1;
            continue;
        }
        walk->enter = S_ISDIR(out->st.st_mode);
        return 1;
    }
}
