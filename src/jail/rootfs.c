/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sandbox's root: a scaffold tmpfs that only the engine can name, overlays on top of the image,
 * bind mounts, and the pivot. Built by descriptors: every path inside the image is opened once with
 * openat2 (RESOLVE_IN_ROOT, no magic links) and mounts go onto that descriptor, so an image that
 * plants symbolic links at mount targets gets nothing outside of itself.
 *
 * The scaffold:
 *   l<i>        lower layer of overlay i        m<i>  whiteouts for it, if any
 *   u<i>, w<i>  its upper and work directory    d     the disk, when it is not this tmpfs
 *   root        where the sandbox's / is put    dev, sys, empty, meminfo ...  see pseudo.c
 */
#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define IN_ROOT (RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
#define FD_PATH_SIZE 32

static void fd_path(int fd, char out[FD_PATH_SIZE])
{
    snprintf(out, FD_PATH_SIZE, "/proc/self/fd/%d", fd);
}

static int config(int fs, const char *key, const char *value)
{
    return value ? sys_fsconfig(fs, FSCONFIG_SET_STRING, key, value, 0)
                 : sys_fsconfig(fs, FSCONFIG_SET_FLAG, key, NULL, 0);
}

/* The scaffold counts against the sandbox's disk cap when it also holds the upper layers. */
static int mount_stage(const struct jail_plan *plan, struct cay_error *err)
{
    char number[32];
    autofd int fs = sys_fsopen("tmpfs");
    if (fs < 0)
        return cay_fail_errno(err, errno, "cannot make a tmpfs");
    config(fs, "mode", "0755");
    /* It holds the upper layers, unless there is a disk; and /dev/shm, in any case. */
    uint64_t size =
        plan->disk < 0 ? plan->disk_bytes : CAY_MIN(plan->disk_bytes, plan->scratch_bytes);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)size);
    config(fs, "size", number);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)plan->inodes);
    config(fs, "nr_inodes", number);
    if (sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return cay_fail_errno(err, errno, "cannot make a tmpfs");
    autofd int tree = sys_fsmount(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (tree < 0 || sys_move_mount(tree, "", AT_FDCWD, plan->stage) < 0)
        return cay_fail_errno(err, errno, "cannot mount the scaffold at %s", plan->stage);
    if (fchdir(tree) < 0)
        return cay_fail_errno(err, errno, "cannot enter the scaffold");
    return steal_fd(&tree);
}

/*
 * Rootless: the parent's descriptor belongs to the parent's mount namespace and cannot be mounted
 * here. Its path is opened again in ours, without following any link, and must be the very same
 * file.
 */
static int reopen(int source, struct cay_error *err)
{
    char link[FD_PATH_SIZE], path[CAY_MAX_PATH];
    struct stat wanted, found;
    fd_path(source, link);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0 || fstat(source, &wanted) < 0)
        return cay_fail_errno(err, errno, "cannot find the source of a mount");
    path[n] = 0;
    autofd int own = sys_openat2(AT_FDCWD, path, O_PATH, 0, RESOLVE_NO_SYMLINKS);
    if (own < 0 || fstat(own, &found) < 0)
        return cay_fail_errno(err, errno, "cannot mount %s", path);
    if (found.st_dev != wanted.st_dev || found.st_ino != wanted.st_ino)
        return cay_fail(err, CAY_E_CONFLICT, "%s changed while the sandbox was being made", path);
    return steal_fd(&own);
}

/* The lower layers of one overlay: how the kernel is told of them, and the first of them. */
struct lower {
    char names[2 * FD_PATH_SIZE];
    int dir, cover; /* rootless: ours, owned */
};

static void lower_done(struct lower *lower)
{
    close_fd(&lower->dir);
    close_fd(&lower->cover);
}

/*
 * Layers are joined with ':', so a path of somebody's must never be among them: as root they are
 * attached to the scaffold under names of ours, rootless they are named as descriptors.
 */
static int attach_lower(const struct jail_plan *plan, const struct jail_trees *trees, size_t i,
                        struct lower *lower, struct cay_error *err)
{
    const struct jail_overlay *overlay = &plan->overlays[i];
    char dir[FD_PATH_SIZE], cover[FD_PATH_SIZE] = "";
    if (trees->overlays[i] < 0) {
        lower->dir = reopen(overlay->lower, err);
        if (lower->dir < 0)
            return -1;
        fd_path(lower->dir, dir);
        if (overlay->cover >= 0) {
            lower->cover = reopen(overlay->cover, err);
            if (lower->cover < 0)
                return -1;
            fd_path(lower->cover, cover);
        }
    } else {
        snprintf(dir, sizeof(dir), "l%zu", i);
        if (mkdir(dir, 0755) < 0 || sys_move_mount(trees->overlays[i], "", AT_FDCWD, dir) < 0)
            return cay_fail_errno(err, errno, "cannot attach the image's %s", overlay->target);
        if (trees->covers[i] >= 0) {
            snprintf(cover, sizeof(cover), "c%zu", i);
            if (mkdir(cover, 0755) < 0 || sys_move_mount(trees->covers[i], "", AT_FDCWD, cover) < 0)
                return cay_fail_errno(err, errno, "cannot attach the cover of %s", overlay->target);
        }
    }
    snprintf(lower->names, sizeof(lower->names), "%s%s%s", cover, cover[0] ? ":" : "", dir);
    return 0;
}

/* What a user namespace finds mounted must stay where it is, also in a copy; an overlay has no
 * copies of what is mounted in its layers. */
static int overlay_failed(const struct jail_plan *plan, size_t i, struct cay_error *err)
{
    const char *target = plan->overlays[i].target;
    if (errno == EINVAL && !plan->privileged && strcmp(target, "/") != 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "cannot make an overlay over %s: parts of it are mounts of their own, as "
                        "inside of a sandbox or a container; use another image than 'host'",
                        target);
    return cay_fail_errno(err, errno, "cannot make an overlay over the image's %s", target);
}

static int make_overlay(const struct jail_plan *plan, const struct jail_trees *trees, size_t i,
                        struct cay_error *err)
{
    const char *disk = plan->disk < 0 ? "" : "d/";
    __attribute__((cleanup(lower_done))) struct lower lower = {.dir = -1, .cover = -1};
    char upper[16], work[16];
    struct stat st;
    snprintf(upper, sizeof(upper), "%su%zu", disk, i);
    snprintf(work, sizeof(work), "%sw%zu", disk, i);
    if (attach_lower(plan, trees, i, &lower, err) < 0)
        return -1;
    if ((mkdir(upper, 0755) < 0 && errno != EEXIST) || (mkdir(work, 0755) < 0 && errno != EEXIST))
        return cay_fail_errno(err, errno, "cannot make the writable layer");
    /* The merged root shows the upper directory's mode: it must be the image's. */
    if (i == 0 && fstat(plan->overlays[0].lower, &st) == 0 && (st.st_mode & 07777) != 0755)
        chmod(upper, st.st_mode & 07777);

    autofd int fs = sys_fsopen("overlay");
    if (fs < 0)
        return cay_fail_errno(err, errno,
                              "the kernel has no overlayfs; load it with 'modprobe overlay'");
    if (config(fs, "lowerdir", lower.names) < 0 || config(fs, "upperdir", upper) < 0 ||
        config(fs, "workdir", work) < 0 || config(fs, "userxattr", NULL) < 0 ||
        sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return overlay_failed(plan, i, err);
    int tree = sys_fsmount(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    return tree < 0 ? cay_fail_errno(err, errno, "cannot mount an overlay") : tree;
}

int rootfs_build(const struct jail_plan *plan, const struct jail_trees *trees,
                 struct jail_root *root, struct cay_error *err)
{
    root->stage = mount_stage(plan, err);
    if (root->stage < 0)
        return -1;
    if (plan->disk >= 0 &&
        (mkdir("d", 0755) < 0 || sys_move_mount(plan->disk, "", AT_FDCWD, "d") < 0))
        return cay_fail_errno(err, errno, "cannot attach the sandbox's disk");
    root->disk = plan->disk >= 0 ? plan->disk : root->stage;
    if (mkdir("root", 0755) < 0)
        return cay_fail_errno(err, errno, "cannot make the root");
    for (size_t i = 0; i < plan->n_overlays; i++) {
        autofd int tree = make_overlay(plan, trees, i, err);
        if (tree < 0)
            return -1;
        if (i == 0) {
            if (sys_move_mount(tree, "", AT_FDCWD, "root") < 0)
                return cay_fail_errno(err, errno, "cannot mount the root");
            root->root = steal_fd(&tree);
            continue;
        }
        autofd int target = rootfs_target(root->root, plan->overlays[i].target, true, err);
        if (target < 0)
            return -1;
        if (sys_move_mount(tree, "", target, "") < 0)
            return cay_fail_errno(err, errno, "cannot mount %s", plan->overlays[i].target);
    }
    return 0;
}

/* The last component is made beneath its parent's descriptor: file or directory as
 * the source is. */
static int make_target(int root, const char *path, bool directory, struct cay_error *err)
{
    char part[CAY_MAX_PATH];
    snprintf(part, sizeof(part), "%s", path);
    for (char *slash = part + 1;; slash++) {
        slash = strchr(slash, '/');
        bool last = !slash;
        if (slash)
            *slash = 0;
        char *name = strrchr(part, '/') + 1;
        if (*name) {
            char parent_path[CAY_MAX_PATH];
            snprintf(parent_path, sizeof(parent_path), "%.*s", (int)(name - part), part);
            autofd int parent = sys_openat2(root, parent_path, O_PATH | O_DIRECTORY, 0, IN_ROOT);
            if (parent < 0)
                return cay_fail_errno(err, errno, "cannot make the mount target %s", path);
            int made = 0;
            if (last && !directory) {
                autofd int file =
                    openat(parent, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
                made = file;
            } else {
                made = mkdirat(parent, name, 0755);
            }
            if (made < 0 && errno != EEXIST)
                return cay_fail_errno(err, errno, "cannot make the mount target %s", path);
        }
        if (last)
            return 0;
        *slash = '/';
    }
}

int rootfs_target(int root, const char *path, bool directory, struct cay_error *err)
{
    uint64_t flags = O_PATH | (directory ? O_DIRECTORY : 0);
    autofd int target = sys_openat2(root, path, flags, 0, IN_ROOT);
    if (target < 0 && errno == ENOENT) {
        if (make_target(root, path, directory, err) < 0)
            return -1;
        target = sys_openat2(root, path, flags, 0, IN_ROOT);
    }
    struct stat st;
    if (target < 0 || fstat(target, &st) < 0)
        return cay_fail_errno(err, errno, "cannot use %s of the image as a mount target", path);
    if (!directory && !S_ISREG(st.st_mode))
        return cay_fail(err, CAY_E_INVALID, "mount target %s of the image is not a plain file",
                        path);
    return steal_fd(&target);
}

static int reopen_tree(int source, unsigned flags, struct cay_error *err)
{
    autofd int own = reopen(source, err);
    if (own < 0)
        return -1;
    int tree = sys_open_tree(own, "", OPEN_TREE_CLONE | AT_EMPTY_PATH | flags);
    return tree < 0 ? cay_fail_errno(err, errno, "cannot mount a directory of the host") : tree;
}

int rootfs_cgroup(int dir)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                          MOUNT_ATTR_NOEXEC};
    autofd int tree = reopen_tree(dir, 0, NULL);
    if (tree < 0 || sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr) < 0)
        return -1;
    return steal_fd(&tree);
}

static int mount_bind(const struct jail_bind *bind, int given, const struct jail_root *root,
                      struct cay_error *err)
{
    autofd int own = given < 0 ? reopen_tree(bind->source, AT_RECURSIVE, err) : -1;
    int tree = given < 0 ? own : given;
    struct stat st;
    struct mount_attr attr = {
        .attr_set =
            MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (bind->read_only ? MOUNT_ATTR_RDONLY : 0),
        .propagation = 1 << 18, /* MS_PRIVATE */
    };
    if (tree < 0)
        return -1;
    if (fstat(tree, &st) < 0)
        return cay_fail_errno(err, errno, "cannot mount %s", bind->target);
    if (sys_mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0)
        return cay_fail_errno(err, errno, "cannot restrict the mount %s", bind->target);
    autofd int target = rootfs_target(root->root, bind->target, S_ISDIR(st.st_mode), err);
    if (target < 0)
        return -1;
    if (sys_move_mount(tree, "", target, "") < 0)
        return cay_fail_errno(err, errno, "cannot mount %s", bind->target);
    return 0;
}

int rootfs_binds(const struct jail_plan *plan, const struct jail_trees *trees,
                 const struct jail_root *root, struct cay_error *err)
{
    for (size_t i = 0; i < plan->n_binds; i++)
        if (mount_bind(&plan->binds[i], trees->binds[i], root, err) < 0)
            return -1;
    return 0;
}

int rootfs_pivot(const struct jail_root *root, struct cay_error *err)
{
    if (fchdir(root->root) < 0 || sys_pivot_root(".", ".") < 0)
        return cay_fail_errno(err, errno, "cannot pivot into the sandbox's root");
    /* The old root lies on top of the new one now; taking it away leaves no way back. */
    if (sys_umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return cay_fail_errno(err, errno, "cannot detach the host's root");
    return 0;
}
