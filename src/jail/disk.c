/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/disk.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <linux/loop.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

/* Others may take a free loop device between our finding it and our using it. */
#define LOOP_TRIES 64

extern char **environ;

static int make_fs(int file, uint64_t inodes, struct cay_error *err)
{
    char path[32], count[32];
    int status;
    pid_t child;
    posix_spawn_file_actions_t actions;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", 9);
    snprintf(count, sizeof(count), "%llu", (unsigned long long)inodes);
    /* No journal: what a sandbox wrote does not outlive it. */
    char *argv[] = {"mkfs.ext4",
                    "-q",
                    "-F",
                    "-m",
                    "0",
                    "-O",
                    "^has_journal,^resize_inode",
                    "-E",
                    "lazy_itable_init=1,nodiscard,root_owner=0:0",
                    "-N",
                    count,
                    path,
                    NULL};
    char *env[] = {"PATH=/usr/sbin:/sbin:/usr/bin:/bin", NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, file, 9);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    int failed = posix_spawnp(&child,
                              access("/usr/sbin/mkfs.ext4", X_OK) == 0 ? "/usr/sbin/mkfs.ext4"
                                                                       : "/sbin/mkfs.ext4",
                              &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    if (failed)
        return cay_fail(
            err, CAY_E_UNSUPPORTED,
            "a disk larger than half of the memory needs mkfs.ext4 (package e2fsprogs): %s",
            strerror(failed));
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return cay_fail_errno(err, errno, "cannot wait for mkfs.ext4");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return cay_fail(err, CAY_E_NO_SPACE,
                        "mkfs.ext4 cannot make the sandbox's disk; is the host's disk full?");
    return 0;
}

static int attach_loop(int file, char path[32], struct cay_error *err)
{
    autofd int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return cay_fail_errno(err, errno,
                              "no loop devices; choose a disk of at most half of the memory");
    for (int i = 0; i < LOOP_TRIES; i++) {
        struct loop_config config = {.fd = (uint32_t)file,
                                     .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
        int n = ioctl(control, LOOP_CTL_GET_FREE);
        if (n < 0)
            return cay_fail_errno(err, errno, "no free loop device");
        snprintf(path, 32, "/dev/loop%d", n);
        autofd int loop = open(path, O_RDWR | O_CLOEXEC);
        if (loop >= 0 && ioctl(loop, LOOP_CONFIGURE, &config) == 0)
            return steal_fd(&loop);
        if (loop >= 0 && errno != EBUSY)
            return cay_fail_errno(err, errno, "cannot set up %s", path);
    }
    return cay_fail(err, CAY_E_UNAVAILABLE, "no free loop device");
}

int disk_make(int dir, uint64_t bytes, uint64_t inodes, struct cay_error *err)
{
    char path[32];
    autofd int file = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return cay_fail_errno(err, errno, "cannot make a file for the sandbox's disk");
    if (ftruncate(file, (off_t)bytes) < 0)
        return cay_fail_errno(err, errno, "cannot make a disk of %llu bytes",
                              (unsigned long long)bytes);
    if (make_fs(file, inodes, err) < 0)
        return -1;
    autofd int loop = attach_loop(file, path, err);
    if (loop < 0)
        return -1;
    autofd int fs = sys_fsopen("ext4");
    if (fs < 0 || sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", path, 0) < 0 ||
        sys_fsconfig(fs, FSCONFIG_SET_FLAG, "discard", NULL, 0) < 0 ||
        sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return cay_fail_errno(err, errno, "cannot mount the sandbox's disk");
    autofd int tree = sys_fsmount(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (tree < 0)
        return cay_fail_errno(err, errno, "cannot mount the sandbox's disk");
    return steal_fd(&tree);
}
