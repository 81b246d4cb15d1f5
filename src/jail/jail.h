/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jail: namespaces, root file system, capabilities, seccomp, and init started in the middle of
 * it. The keeper fills a plan, calls jail_start once, and gets back init's pidfd and socket.
 * Everything that the kernel keeps for the jail (mounts, namespaces) dies with init; only cgroups
 * outlive it.
 *
 * Root and rootless take the same path. They differ in three places only, all in start.c: who
 * writes the id map, whether mounts can be idmapped, and therefore whether the parent or the child
 * opens the sources.
 */
#ifndef CAY_JAIL_JAIL_H
#define CAY_JAIL_JAIL_H

#include "jail/cgroup.h"

#include <cay/cay.h>

#define JAIL_MAX_OVERLAYS 4
#define JAIL_IDS 65536u

/* One overlay of the root: the host image has "/", "/usr" and "/usr/local", others have one. */
struct jail_overlay {
    int lower; /* O_PATH descriptor of a host directory, borrowed */
    int cover; /* laid over `lower`: whiteouts hide parts of it, files add to it; -1: none */
    const char *target; /* "/" first, then below it; must be a directory of the root */
    bool unshifted;     /* `lower` keeps its owners: the sandbox may read what everybody may */
};

struct jail_bind {
    int source;         /* O_PATH descriptor on the host side, borrowed */
    const char *target; /* absolute */
    bool read_only;
    uint32_t uid, gid; /* owner on the host; appears inside as plan.user_uid/gid */
};

struct jail_map {
    uint32_t inside, outside, count;
};

struct jail_plan {
    const char *hostname;
    const char *stage; /* an empty directory of ours: mount point of the scaffold in the child's own
                          mount ns */
    enum cay_profile profile;
    const struct jail_overlay *overlays;
    size_t n_overlays;
    const struct jail_bind *binds; /* parents before children */
    size_t n_binds;
    int disk; /* detached mount that holds what is written; -1: a tmpfs of disk_bytes */
    uint64_t disk_bytes, inodes;
    uint64_t scratch_bytes; /* of the scaffold's tmpfs when there is a disk: /dev/shm lies there */
    uint64_t memory;        /* for /proc/meminfo and /dev/shm */
    uint64_t cpus_milli;    /* for /proc/cpuinfo */
    uint64_t fds, pids;     /* rlimits; pids only where there is no cgroup */
    uint32_t user_uid, user_gid; /* inside: who owns bind mounts */
    struct jail_map uids[3], gids[3];
    size_t n_uids, n_gids;
    bool no_setid;         /* nothing may be made set-uid, set-gid or get file capabilities */
    bool privileged;       /* root on the host: maps written directly, idmapped mounts */
    struct cgroup *cgroup; /* borrowed; begun, not finished */
    /* Called while the child builds its root, on another CPU if there is one: finishes the cgroup,
     * and whatever else the caller has to do before the sandbox is ready. What is written to `init`
     * (borrowed) is what init finds when it starts. */
    int (*meanwhile)(void *data, int init, struct cay_error *err);
    void *data;
    int private_fds[2];               /* the caller's own: the child closes them first; -1: none */
    const void *init_image, *seccomp; /* seccomp: array of struct sock_filter */
    size_t init_size, seccomp_size;
};

struct jail {
    pid_t pid; /* of init, on the host; meaningful while pidfd is open */
    int pidfd;
    int sock;         /* to init */
    int meminfo;      /* to rewrite /proc/meminfo; -1 if there is none */
    int cpuinfo;      /* the same for /proc/cpuinfo */
    int disk;         /* the file system that holds what is written, for its numbers only */
    int mounts;       /* holds the mount namespace; see start.c */
    int users, names; /* user and UTS namespace, for jail_late; -1: not asked for */
};

#define JAIL_NONE                 \
    ((struct jail){.pid = -1,     \
                   .pidfd = -1,   \
                   .sock = -1,    \
                   .meminfo = -1, \
                   .cpuinfo = -1, \
                   .disk = -1,    \
                   .mounts = -1,  \
                   .users = -1,   \
                   .names = -1})

/* Returns when init runs, or fails with everything undone. */
int jail_start(const struct jail_plan *plan, struct jail *out, struct cay_error *err);
void jail_done(struct jail *jail); /* closes; the jail itself dies with init */

/*
 * For a jail that is made before it is known whose it is. jail_hold, once init runs, makes the
 * caller ready for jail_late; that sets, of the plan, the host name, the bind mounts and the
 * size of a disk that is a tmpfs, as jail_start would have. Nothing but
 * init may run in the jail until then. `made` is the plan, as far as those fields go, that it was
 * started with. Binds need root.
 */
int jail_hold(struct jail *jail, bool privileged, struct cay_error *err);
int jail_late(const struct jail *jail, const struct jail_plan *made, const struct jail_plan *plan,
              struct cay_error *err);

/* Rewrites what covers /proc/meminfo and /proc/cpuinfo, where they are covered, for other limits.
 */
int jail_figures(const struct jail *jail, uint64_t memory, uint64_t cpus_milli);
/* The text of /proc/meminfo for a sandbox that uses `used` of `limit` bytes. */
int jail_meminfo(char *out, size_t size, uint64_t limit, uint64_t used);

#endif
