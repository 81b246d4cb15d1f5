/* SPDX-License-Identifier: Apache-2.0 */
/* New namespaces, other namespaces, and the mount table. */
#include "probe.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

static const struct {
    const char *name;
    int flag;
} kinds[] = {
    {"user", 0x10000000}, {"mnt", 0x00020000}, {"pid", 0x20000000},    {"net", 0x40000000},
    {"ipc", 0x08000000},  {"uts", 0x04000000}, {"cgroup", 0x02000000}, {"time", 0x00000080},
};

static int kind(const char *name)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].flag;
    }
    return 0;
}

static int do_unshare(void *data)
{
    return judge(unshare(*(int *)data), "unshare");
}

static int new_namespace(int argc, char **argv)
{
    int flag = kind(argv[0]);

    (void)argc;
    return flag ? in_child(do_unshare, &flag) : untried("no such namespace");
}

/* clone|clone3 KIND */
static int clone_namespace(int argc, char **argv)
{
    uint64_t args[8] = {(uint64_t)kind(argv[1]), 0, 0, 0, SIGCHLD};
    int status;
    long pid;

    (void)argc;
    fflush(stdout);
    if (strcmp(argv[0], "clone3") == 0)
        pid = syscall(SYS_clone3, args, sizeof(args));
    else
        pid = syscall(SYS_clone, args[0] | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return refused(argv[0]);
    waitpid((pid_t)pid, &status, 0);
    return won("%s made a namespace", argv[0]);
}

/* setns KIND: joins a namespace again, through /proc/1/ns; our own where `self` is given. */
static int join(int argc, char **argv)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%s/ns/%s", argc > 1 ? argv[1] : "1", argv[0]);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refused(path);
    return judge(setns(fd, 0), "setns");
}

static int mount_one(int argc, char **argv)
{
    const char *what = argv[0], *where = argv[1];
    long result;

    if (strcmp(what, "bind") == 0)
        result = mount("/", where, NULL, MS_BIND | MS_REC, NULL);
    else if (strcmp(what, "remount-rw") == 0)
        result = mount(NULL, where, NULL, MS_REMOUNT | MS_BIND, NULL);
    else if (strcmp(what, "cgroup") == 0)
        result = mount("none", where, "cgroup", 0, argc > 2 ? argv[2] : "pids");
    else
        result = mount("none", where, what, 0, NULL);
    return judge(result, what);
}

static int unmount(int argc, char **argv)
{
    (void)argc;
    return judge(umount2(argv[0], MNT_DETACH), "umount2");
}

/* mount-api fsopen|open_tree|move_mount|mount_setattr PATH */
static int mount_api(int argc, char **argv)
{
    uint64_t attr[4] = {0, 1 /* clear read-only */, 0, 0};
    int tree;

    (void)argc;
    if (strcmp(argv[0], "fsopen") == 0)
        return judge(syscall(430, "tmpfs", 0), "fsopen");
    if (strcmp(argv[0], "open_tree") == 0)
        return judge(syscall(428, AT_FDCWD, argv[1], 1 /* clone */), "open_tree");
    if (strcmp(argv[0], "mount_setattr") == 0)
        return judge(syscall(442, AT_FDCWD, argv[1], 0, attr, sizeof(attr)), "mount_setattr");
    tree = (int)syscall(428, AT_FDCWD, argv[1], 0);
    if (tree < 0)
        tree = open(argv[1], O_PATH | O_CLOEXEC);
    if (tree < 0)
        return untried(argv[1]);
    return judge(syscall(429, tree, "", AT_FDCWD, argv[2], 4 /* from an empty path */),
                 "move_mount");
}

static int do_pivot(void *data)
{
    /* EINVAL or EBUSY, since no new root is ready; but permitted */
    return judge_reached(syscall(SYS_pivot_root, data, data), "pivot_root");
}

static int pivot(int argc, char **argv)
{
    (void)argc;
    return in_child(do_pivot, argv[0]);
}

/* The classic: chroot deeper while holding a directory that is then outside, and walk up. */
static int do_chroot_escape(void *data)
{
    char **args = data, path[4096], line[64] = "";
    int fd, root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    snprintf(path, sizeof(path), "%s/cay-deeper", args[0]);
    if (root < 0 || (mkdir(path, 0700) < 0 && errno != EEXIST))
        return untried("mkdir");
    if (chroot(path) < 0)
        return refused("chroot");
    if (fchdir(root) < 0)
        return refused("fchdir");
    for (int i = 0; i < 64; i++) {
        if (chdir("..") < 0)
            return refused("chdir");
    }
    if (chroot(".") < 0)
        return refused("chroot .");
    fd = open(args[1], O_RDONLY | O_CLOEXEC);
    rmdir(path);
    if (fd < 0)
        return refused("the marker from the top");
    if (read(fd, line, sizeof(line) - 1) < 0 || !strstr(line, args[2]))
        return refused_by("another file is there");
    return won("read %s", args[1]);
}

static int chroot_escape(int argc, char **argv)
{
    (void)argc;
    return in_child(do_chroot_escape, argv);
}

/* In a user and mount namespace of our own: a fresh proc or sysfs without masks, or a mask taken
 * away. */
static int do_nested(void *data)
{
    char **args = data;
    int status;
    pid_t pid;

    if (unshare(kind("user") | kind("mnt") | kind("pid") | kind("net")) < 0)
        return untried("unshare (this needs a profile that allows it)");
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (strcmp(args[0], "umount") == 0)
            _exit(unmount(1, args + 1));
        if (strcmp(args[0], "remount-rw") == 0)
            _exit(mount_one(2, args));
        _exit(judge(mount("none", args[1], args[0], 0, NULL), "mount"));
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return untried("fork");
    return WEXITSTATUS(status);
}

static int nested(int argc, char **argv)
{
    (void)argc;
    return in_child(do_nested, argv);
}

const struct attack namespace_attacks[] = {
    {"unshare", new_namespace, 1},
    {"clone", clone_namespace, 2},
    {"setns", join, 1},
    {"mount", mount_one, 2},
    {"umount", unmount, 1},
    {"mount-api", mount_api, 2},
    {"pivot-root", pivot, 1},
    {"chroot-escape", chroot_escape, 3},
    {"nested", nested, 2},
    {NULL, NULL, 0},
};
