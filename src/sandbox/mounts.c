/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/mounts.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Debian and Ubuntu give ordinary users and their groups ids from here on. */
#define FIRST_ORDINARY 1000

static int by_target(const void *a, const void *b)
{
    return strcmp(((const struct jail_bind *)a)->target, ((const struct jail_bind *)b)->target);
}

/* Whether anybody but root can get at what lies below. Only a parent that is root's, and closed to
 * its group and all others, closes the way (with an access list the group's bits are its mask). The
 * directory itself does not count, as the sandbox may change its mode. */
static bool others_reach(int fd)
{
    char link[32], path[CAY_MAX_PATH];
    struct stat st;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0)
        return true;
    path[n] = 0;
    for (char *slash = strrchr(path, '/'); slash && slash != path; slash = strrchr(path, '/')) {
        *slash = 0;
        if (stat(path, &st) < 0)
            return true;
        if (st.st_uid == 0 && !(st.st_mode & (S_IXGRP | S_IXOTH)))
            return false;
    }
    return true;
}

/* Root and the groups that a distribution gives rights to: a set-id file of theirs is worth having.
 */
static bool is_system(const struct stat *st)
{
    return st->st_uid < FIRST_ORDINARY || st->st_gid < FIRST_ORDINARY;
}

int mounts_open(const struct cay_spec *spec, bool privileged, struct mounts *out,
                struct cay_error *err)
{
    for (size_t i = 0; i < spec->n_mounts; i++) {
        const struct cay_mount *mount = &spec->mounts[i];
        struct stat st;
        uint64_t links = mount->no_links ? RESOLVE_NO_SYMLINKS : 0;
        autofd int fd = sys_openat2(AT_FDCWD, mount->source, O_PATH | O_CLOEXEC, 0, links);
        if (fd < 0 || fstat(fd, &st) < 0)
            return cay_fail_errno(err, errno, "mount source %s", mount->source);
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
            return cay_fail(err, CAY_E_INVALID,
                            "mount source %s is neither a directory nor a plain file",
                            mount->source);
        if (privileged && !mount->read_only && is_system(&st) && others_reach(fd))
            out->no_setid = true;
        out->binds[out->n++] = (struct jail_bind){
            .source = steal_fd(&fd),
            .target = mount->target,
            .read_only = mount->read_only,
            .uid = st.st_uid,
            .gid = st.st_gid,
        };
    }
    /* A parent's path is the beginning of its child's, so it sorts first. */
    qsort(out->binds, out->n, sizeof(*out->binds), by_target);
    return 0;
}

void mounts_done(struct mounts *mounts)
{
    for (size_t i = 0; i < mounts->n; i++)
        close_fd(&mounts->binds[i].source);
    mounts->n = 0;
}
