/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/idmap.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define MAX_ARGS 16

static int write_map(pid_t pid, const char *name, const struct jail_map *maps, size_t n)
{
    char path[64], text[256];
    int used = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    for (size_t i = 0; i < n; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%u %u %u\n", maps[i].inside,
                         maps[i].outside, maps[i].count);
    return cay_write_file_at(AT_FDCWD, path, text);
}

/* Several ranges need the setuid helpers: they check the ranges against /etc/subuid and
 * /etc/subgid. */
static int run_helper(const char *program, pid_t pid, const struct jail_map *maps, size_t n,
                      struct cay_error *err)
{
    char numbers[MAX_ARGS][16], *argv[MAX_ARGS + 2];
    size_t used = 0;
    int status;
    pid_t child;
    snprintf(numbers[used++], sizeof(*numbers), "%d", (int)pid);
    for (size_t i = 0; i < n; i++) {
        snprintf(numbers[used++], sizeof(*numbers), "%u", maps[i].inside);
        snprintf(numbers[used++], sizeof(*numbers), "%u", maps[i].outside);
        snprintf(numbers[used++], sizeof(*numbers), "%u", maps[i].count);
    }
    argv[0] = (char *)program;
    for (size_t i = 0; i < used; i++)
        argv[i + 1] = numbers[i];
    argv[used + 1] = NULL;
    char *env[] = {"PATH=/usr/bin:/bin:/usr/sbin:/sbin", NULL};
    int failed = posix_spawnp(&child, program, NULL, NULL, argv, env);
    if (failed)
        return cay_fail_errno(err, failed, "cannot run %s (package uidmap)", program);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return cay_fail_errno(err, errno, "cannot wait for %s", program);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return cay_fail(err, CAY_E_DENIED,
                        "%s refused the id range; look at /etc/subuid and /etc/subgid", program);
    return 0;
}

int idmap_write(pid_t pid, const struct jail_plan *plan, struct cay_error *err)
{
    char path[64];
    if (!plan->privileged && plan->n_uids > 1) {
        if (run_helper("newuidmap", pid, plan->uids, plan->n_uids, err) < 0)
            return -1;
        return run_helper("newgidmap", pid, plan->gids, plan->n_gids, err);
    }
    if (!plan->privileged) {
        /* A map of one's own gid without a helper is only allowed once setgroups is given up. */
        snprintf(path, sizeof(path), "/proc/%d/setgroups", (int)pid);
        if (cay_write_file_at(AT_FDCWD, path, "deny") < 0)
            return cay_fail_errno(err, errno, "cannot write the id map");
    }
    if (write_map(pid, "uid_map", plan->uids, plan->n_uids) < 0 ||
        write_map(pid, "gid_map", plan->gids, plan->n_gids) < 0)
        return cay_fail_errno(err, errno, "cannot write the id map");
    return 0;
}

int idmap_single(uint32_t uid, uint32_t to_uid, uint32_t gid, uint32_t to_gid,
                 struct cay_error *err)
{
    char path[64];
    const struct jail_map uids = {uid, to_uid, 1}, gids = {gid, to_gid, 1};
    const struct sys_clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    pid_t pid = sys_clone3(&args);
    if (pid == 0)
        for (;;)
            pause();
    if (pid < 0)
        return cay_fail_errno(err, errno, "cannot make a user namespace");
    int fd = -1, failed = 0;
    if (write_map(pid, "uid_map", &uids, 1) < 0 || write_map(pid, "gid_map", &gids, 1) < 0)
        failed = errno;
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    if (!failed && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        failed = errno;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return failed ? cay_fail_errno(err, failed, "cannot make an id map for a mount") : fd;
}

int idmap_tree(int tree, int userns)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    return sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr);
}

int idmap_bind(const struct jail_plan *plan, const struct jail_bind *bind, struct cay_error *err)
{
    /* Flat: a mount below the source would bring its own owners, and cannot always be shifted. */
    autofd int tree = sys_open_tree(bind->source, "", OPEN_TREE_CLONE | AT_EMPTY_PATH);
    if (tree < 0)
        return cay_fail_errno(err, errno, "cannot mount %s", bind->target);
    autofd int userns = idmap_single(bind->uid, plan->uids[0].outside + plan->user_uid, bind->gid,
                                     plan->gids[0].outside + plan->user_gid, err);
    if (userns < 0)
        return -1;
    if (idmap_tree(tree, userns) < 0 && !bind->read_only)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "the file system of the mount %s cannot shift owners (idmapped mounts): "
                        "%s; mount it :ro",
                        bind->target, strerror(errno));
    return steal_fd(&tree);
}
