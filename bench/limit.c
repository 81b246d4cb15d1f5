/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare C limit: the least that a sandbox on its own root can cost on this kernel.
 *
 *   limit ROOTFS MOUNTPOINT CMD [ARG...]
 *
 * One clone3 makes all seven namespaces, the parent writes the id maps, the child mounts a tmpfs
 * for the upper layer, an overlay over ROOTFS and proc, pivots and execs. No cgroup, no seccomp,
 * no supervisor, no output capture, no cleanup beyond what the kernel does by itself: nothing that
 * isolates can be cheaper. bench/run times it beside the real programs; both paths must be
 * searchable by everyone, because the child opens them as uid 1000000.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/sched.h>

#define ID_MAP "0 1000000 65536"

static void check(long result, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "limit: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static void write_proc(pid_t pid, const char *name, const char *value)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, path);
    check(write(fd, value, strlen(value)), path);
    close(fd);
}

static void inside(int gate, const char *rootfs, const char *mountpoint, char **argv)
{
    char byte, options[3 * 4096];

    /* Ends with the parent's close, once the id maps are there. */
    check(read(gate, &byte, 1), "wait for the id map");
    check(setresgid(0, 0, 0), "setresgid");
    check(setresuid(0, 0, 0), "setresuid");
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    check(mount("tmpfs", mountpoint, "tmpfs", 0, "mode=755"), "tmpfs");
    check(chdir(mountpoint), "chdir");
    check(mkdir("u", 0755), "mkdir");
    check(mkdir("w", 0755), "mkdir");
    check(mkdir("r", 0755), "mkdir");
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=u,workdir=w,userxattr", rootfs);
    check(mount("overlay", "r", "overlay", 0, options), "overlay");
    check(chdir("r"), "chdir");
    check(mount("proc", "proc", "proc", 0, NULL), "proc");
    check(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    check(umount2(".", MNT_DETACH), "umount");
    execv(argv[0], argv);
    check(-1, argv[0]);
}

int main(int argc, char **argv)
{
    int gate[2], status;
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                 CLONE_NEWUTS | CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
    };

    if (argc < 4) {
        fprintf(stderr, "usage: limit ROOTFS MOUNTPOINT CMD [ARG...]\n");
        return 125;
    }
    check(pipe2(gate, O_CLOEXEC), "pipe2");
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    check(pid, "clone3");
    if (pid == 0) {
        close(gate[1]);
        inside(gate[0], argv[1], argv[2], argv + 3);
    }
    write_proc(pid, "setgroups", "deny");
    write_proc(pid, "uid_map", ID_MAP);
    write_proc(pid, "gid_map", ID_MAP);
    close(gate[1]);
    while (waitpid(pid, &status, 0) < 0)
        check(errno == EINTR ? 0 : -1, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
