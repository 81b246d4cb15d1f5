/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the run and the state directory, and makes sure that they are cay's: what is in them is
 * listed, swept and removed, and a wrong $CAY_RUN_DIR must not turn somebody's files into the
 * remains of sandboxes. A directory that cay made, or found empty, carries a marker. One without it
 * is taken only when everything in it is what cay puts there, as in the directories of versions
 * before the marker.
 */
#include "base/err.h"
#include "base/util.h"
#include "sandbox/home.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MARKER ".cay"

/* A service manager, or whoever else listens there, may come before us. */
static bool is_socket(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode);
}

/* Is it a sandbox of the run directory? One whose creator died early is empty. */
static bool is_sandbox(int dir, const char *name)
{
    struct stat st;
    autofd int fd = home_open(dir, name);
    if (fd < 0)
        return false;
    if (fstatat(fd, "status", &st, AT_SYMLINK_NOFOLLOW) == 0)
        return S_ISREG(st.st_mode);
    return home_empty(fd);
}

/* `proof`: enough to tell that cay made the directory. */
struct part {
    const char *name;
    mode_t type;
    bool proof;
};

static const struct part run_parts[] = {
    {"ids", S_IFDIR, true},
    {"lost+found", S_IFDIR, false},
};

static const struct part state_parts[] = {
    {"sandboxes", S_IFDIR, true},   {"spools", S_IFDIR, false},    {"images", S_IFDIR, false},
    {"audit", S_IFDIR, false},      {"cayd.lock", S_IFREG, false}, {"front.key", S_IFREG, false},
    {"lost+found", S_IFDIR, false},
};

static const struct part *find_part(enum home_kind kind, int dir, const char *name)
{
    const struct part *parts = kind == HOME_RUN ? run_parts : state_parts;
    size_t n = kind == HOME_RUN ? CAY_COUNT(run_parts) : CAY_COUNT(state_parts);
    struct stat st;
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, parts[i].name) == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            (st.st_mode & S_IFMT) == parts[i].type)
            return &parts[i];
    return NULL;
}

/* 1: all of it is cay's, or there is nothing; 0: not, and `stranger` is in it; -1. */
static int looks_ours(enum home_kind kind, int dir, char stranger[CAY_MAX_ID])
{
    autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream)
        return -1;
    steal_fd(&fd);
    bool proven = false;
    stranger[0] = 0;
    errno = 0;
    for (struct dirent *e; !proven && (e = readdir(stream)); errno = 0) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        const struct part *part = find_part(kind, dir, e->d_name);
        proven = part && part->proof;
        bool passes = kind == HOME_RUN && (is_socket(dir, e->d_name) || is_sandbox(dir, e->d_name));
        if (!part && !passes)
            snprintf(stranger, CAY_MAX_ID, "%s", e->d_name);
    }
    int failed = proven ? 0 : errno;
    closedir(stream);
    errno = failed;
    return failed ? -1 : proven || !stranger[0];
}

static bool is_marked(int dir)
{
    struct stat st;
    return fstatat(dir, MARKER, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

static int claim(enum home_kind kind, int dir, const char *path, struct cay_error *err)
{
    static const char text[] = "cay keeps sandboxes here, and removes what is left of them.\n";
    char stranger[CAY_MAX_ID];
    int ours = looks_ours(kind, dir, stranger);
    if (ours < 0)
        return cay_fail_errno(err, errno, "cannot look into %s", path);
    /* Whoever marked it meanwhile has begun to fill it. */
    if (!ours && !is_marked(dir))
        return cay_fail(
            err, CAY_E_DENIED,
            "%s is not a directory of cay's: '%s' is in it; give $%s an empty directory, or make a "
            "file '" MARKER "' in this one if it is meant",
            path, stranger, kind == HOME_RUN ? "CAY_RUN_DIR" : "CAY_STATE_DIR");
    /* Without room for it the next one looks again. */
    autofd int fd = openat(dir, MARKER, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        (void)!write(fd, text, sizeof(text) - 1);
    return 0;
}

/* A link to another disk is the administrator's or our own; in /tmp anybody can make one. */
static bool is_trusted_link(const struct stat *st)
{
    return S_ISLNK(st->st_mode) && (st->st_uid == 0 || st->st_uid == geteuid());
}

int home_own(enum home_kind kind, const char *path, struct cay_error *err)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    struct stat st;
    autofd int fd = open(path, flags | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        if (cay_mkdir_all(path, 0700) < 0)
            return cay_fail_errno(err, errno, "cannot make %s", path);
        fd = open(path, flags | O_NOFOLLOW);
    }
    bool link = fd < 0 && lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    if (link && !is_trusted_link(&st))
        return cay_fail(err, CAY_E_DENIED,
                        "%s is somebody else's symbolic link; give $%s the directory itself", path,
                        kind == HOME_RUN ? "CAY_RUN_DIR" : "CAY_STATE_DIR");
    if (link)
        fd = open(path, flags);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot open %s", path);
    /* Whoever else could write there could pose as a keeper. */
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return cay_fail(err, CAY_E_DENIED, "%s belongs to somebody else or is writable by others",
                        path);
    if (!is_marked(fd) && claim(kind, fd, path, err) < 0)
        return -1;
    return steal_fd(&fd);
}
