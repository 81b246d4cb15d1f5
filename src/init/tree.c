/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals to everything below a process, by reading parents from /proc: for hosts without cgroups
 * only. The tree grows while it is read, so it is read again until a look finds nobody new, a
 * bounded number of times; each process gets the signal once.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Enough for a fork bomb that is losing: each round takes all that the last one left. */
#define MAX_ROUNDS 200

struct node {
    pid_t pid, parent;
};

struct tree {
    struct cay_buf nodes; /* of struct node: all that live, those below the top first */
    struct cay_buf done;  /* of pid_t: those that have the signal */
};

/* "pid (name) S ppid": the name may hold anything, so the last ')' counts. 0 for zombies and the
 * gone. */
static pid_t living_parent(int proc, const char *pid)
{
    char path[32], text[512];
    snprintf(path, sizeof(path), "%.16s/stat", pid);
    autofd int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *end = strrchr(text, ')');
    if (!end || end[1] != ' ' || !end[2] || strchr("ZX", end[2]))
        return 0;
    return atoi(end + 3);
}

static int scan(struct tree *tree)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return -1;
    tree->nodes.size = 0;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        struct node node = {.pid = atoi(entry->d_name),
                            .parent = living_parent(dirfd(proc), entry->d_name)};
        if (node.parent)
            buf_add(&tree->nodes, &node, sizeof(node));
    }
    closedir(proc);
    if (tree->nodes.failed)
        errno = ENOMEM;
    return tree->nodes.failed ? -1 : 0;
}

static bool is_child(const struct proc *procs, pid_t pid)
{
    for (; procs; procs = procs->next)
        if (procs->child == pid)
            return true;
    return false;
}

/* Moves all that descend from `top` to the front, but for those below a process of `but`; returns
 * how many. */
static size_t gather(struct tree *tree, pid_t top, const struct proc *but)
{
    struct node *list = (struct node *)(void *)tree->nodes.data;
    size_t n = tree->nodes.size / sizeof(*list), found = 0, looked = 0;
    for (pid_t parent = top;; parent = list[looked++].pid) {
        for (size_t i = found; i < n; i++) {
            if (list[i].parent != parent || is_child(but, list[i].pid))
                continue;
            struct node child = list[i];
            list[i] = list[found];
            list[found++] = child;
        }
        if (looked == found)
            return found;
    }
}

/* Signals one process unless it has been; true if it was new. */
static bool signal_once(struct tree *tree, pid_t pid, int signal)
{
    const pid_t *done = (const pid_t *)(const void *)tree->done.data;
    for (size_t i = 0; i < tree->done.size / sizeof(pid); i++)
        if (done[i] == pid)
            return false;
    buf_add(&tree->done, &pid, sizeof(pid));
    return kill(pid, signal) == 0;
}

/* One look at the tree: how many were signalled for the first time, or -1. */
static ssize_t round_of(struct tree *tree, pid_t top, bool with_top, const struct proc *but,
                        int signal)
{
    if (scan(tree) < 0)
        return -1;
    ssize_t fresh = with_top && signal_once(tree, top, signal);
    size_t below = gather(tree, top, but);
    const struct node *list = (const struct node *)(const void *)tree->nodes.data;
    for (size_t i = 0; i < below; i++)
        fresh += signal_once(tree, list[i].pid, signal);
    return fresh;
}

static int signal_all(pid_t top, bool with_top, const struct proc *but, int signal,
                      struct cay_error *err)
{
    struct tree tree = {CAY_BUF(CAY_MAX_TREE * sizeof(struct node)),
                        CAY_BUF(CAY_MAX_TREE * sizeof(pid_t))};
    ssize_t fresh = 1;
    /* Who has a signal that kills cannot fork any more: a round without news is the end. */
    for (int round = 0; fresh > 0 && round < MAX_ROUNDS; round++)
        fresh = round_of(&tree, top, with_top, but, signal);
    int eno = errno;
    buf_done(&tree.nodes);
    buf_done(&tree.done);
    if (fresh < 0)
        return cay_fail_errno(err, eno, "cannot read the sandbox's /proc");
    if (fresh > 0)
        return cay_fail(err, CAY_E_UNAVAILABLE,
                        "processes below %d start faster than signals reach them", top);
    return 0;
}

int tree_signal(pid_t top, bool with_top, int signal, struct cay_error *err)
{
    return signal_all(top, with_top, NULL, signal, err);
}

int tree_kill_strays(const struct init *init, struct cay_error *err)
{
    return signal_all(getpid(), false, init->procs, SIGKILL, err);
}
