/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resolve.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- paths ----------------------------------------------------------------------------------- */

/*
 * The kernel says where a descriptor is, and is then asked whether the way that it names leads
 * there without a single link. That also refuses what has no path (deleted, in another mount
 * namespace) and what was exchanged meanwhile.
 */
int operator_resolve(const char *path, char out[CAY_MAX_PATH], struct cay_error *err)
{
    char link[32], found[CAY_MAX_PATH];
    struct stat was, is;
    if (path[0] != '/' || strlen(path) >= CAY_MAX_PATH)
        return cay_fail(err, CAY_E_INVALID, "'%.200s' is not an absolute path", path);
    autofd int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return cay_fail_errno(err, errno, "%.300s", path);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, found, sizeof(found));
    if (n <= 0 || (size_t)n >= sizeof(found))
        return cay_fail_errno(err, n < 0 ? errno : ENAMETOOLONG, "%.300s", path);
    found[n] = 0;
    autofd int again = found[0] == '/' ? sys_openat2(AT_FDCWD, found, O_PATH | O_CLOEXEC, 0,
                                                     RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
                                       : -1;
    if (again < 0 || fstat(fd, &was) < 0 || fstat(again, &is) < 0 || was.st_dev != is.st_dev ||
        was.st_ino != is.st_ino)
        return cay_fail(err, CAY_E_UNAVAILABLE, "%.300s changed while it was looked up", path);
    memcpy(out, found, (size_t)n + 1);
    return 0;
}

static const char *resolve_copy(struct opt_arena *arena, const char *path, bool *no_memory)
{
    char found[CAY_MAX_PATH];
    if (!path || operator_resolve(path, found, NULL) < 0)
        return NULL;
    const char *copy = opt_strndup(arena, found, strlen(found));
    *no_memory |= !copy;
    return copy;
}

int resolve_spec(const struct cay_spec *spec, struct opt_arena *arena, struct resolved_spec *out,
                 struct cay_error *err)
{
    struct resolved_spec result = {0};
    bool no_memory = false;
    if (spec->n_mounts > CAY_MAX_MOUNTS)
        return cay_fail(err, CAY_E_TOO_LARGE, "%zu mounts are more than %d", spec->n_mounts,
                        CAY_MAX_MOUNTS);
    const char **sources = opt_alloc(arena, (spec->n_mounts + 1) * sizeof(*sources));
    result.mounts = opt_alloc(arena, (spec->n_mounts + 1) * sizeof(*result.mounts));
    if (!sources || !result.mounts)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    for (size_t i = 0; i < spec->n_mounts; i++) {
        sources[i] = resolve_copy(arena, spec->mounts[i].source, &no_memory);
        result.mounts[i] = spec->mounts[i];
        if (sources[i])
            result.mounts[i].source = sources[i];
        /* What is judged is what is opened, whatever a sandbox puts in its way meanwhile. */
        result.mounts[i].no_links = true;
    }
    if (spec->image && strncmp(spec->image, "dir:", 4) == 0)
        result.paths.image = resolve_copy(arena, spec->image + 4, &no_memory);
    if (result.paths.image) {
        size_t n = strlen(result.paths.image);
        char *image = opt_alloc(arena, n + 5);
        no_memory |= !image;
        if (image)
            snprintf(image, n + 5, "dir:%s", result.paths.image);
        result.image = image;
    }
    if (no_memory)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    result.paths.sources = sources;
    *out = result;
    return 0;
}

void resolve_apply(const struct resolved_spec *resolved, struct cay_spec *spec)
{
    if (spec->n_mounts)
        spec->mounts = resolved->mounts;
    if (resolved->image)
        spec->image = resolved->image;
}

/* ---- the operator's files -------------------------------------------------------------------- */

int operator_read(const char *path, mode_t forbidden, struct cay_buf *out, struct cay_error *err)
{
    struct stat st;
    /* Not to hang on a pipe, and not to get a terminal, that somebody put there. */
    autofd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot read %s", path);
    if (!S_ISREG(st.st_mode))
        return cay_fail(err, CAY_E_INVALID, "%s is not a plain file", path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return cay_fail(err, CAY_E_DENIED,
                        "%s belongs to user %u, who could change it; it has to belong to root or "
                        "to user %u: chown it",
                        path, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & forbidden)
        return cay_fail(
            err, CAY_E_DENIED, "%s has mode %04o, which gives others access: chmod %o %s", path,
            (unsigned)(st.st_mode & 07777), (unsigned)(st.st_mode & 0777 & ~forbidden), path);
    size_t size = (size_t)st.st_size;
    char *room = size <= out->max ? buf_room(out, size + 1) : NULL;
    if (!room)
        return cay_fail(err, CAY_E_TOO_LARGE, "%s is larger than %zu bytes", path, out->max - 1);
    ssize_t n = cay_read_all(fd, room, size);
    if (n < 0)
        return cay_fail_errno(err, errno, "cannot read %s", path);
    out->size += (size_t)n;
    return 1;
}

struct path_check {
    const char *name;
    struct cay_error *err;
};

static int check_path(const char *path, const char *rule, void *data)
{
    const struct path_check *check = data;
    char found[CAY_MAX_PATH];
    if (operator_resolve(path, found, NULL) < 0 || strcmp(path, found) == 0)
        return 0; /* what is not there yet matches nothing yet */
    return cay_fail(check->err, CAY_E_INVALID,
                    "%s: %s: '%.150s' is a way through a symbolic link; write '%.150s'",
                    check->name, rule, path, found);
}

int operator_load(const char *path, struct operator_policy **out, struct cay_error *err)
{
    autobuf struct cay_buf text = CAY_BUF(CAY_MAX_CONFIG + 1);
    struct operator_policy *policy;
    if (operator_read(path, S_IWGRP | S_IWOTH, &text, err) < 0 ||
        operator_parse(path, text.data, text.size, &policy, err) < 0)
        return -1;
    if (operator_each_path(policy, check_path, &(struct path_check){path, err}) != 0) {
        operator_free(policy);
        return -1;
    }
    *out = policy;
    return 0;
}
