/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of one sandbox: its limits, its kill switch, its freezer and its numbers. The
 * keeper owns one `struct cgroup`; the cloned child only calls cgroup_enter_tasks. Callers that
 * find a sandbox whose keeper is dead use cgroup_sweep.
 *
 * Layout, with BASE = "cay" or $CAY_CGROUP. One that the operator made stays when its last sandbox
 * goes; one that we made goes with it:
 *   v2      <parent>/BASE/<id>/          all controllers; <parent> is /sys/fs/cgroup as root, else
 *                                        the nearest delegated ancestor of our own cgroup
 *           <parent>/BASE/<id>/init/     init and its file workers
 *           <parent>/BASE/<id>/<exec>/   memory, without a limit of its own: the kernel kills it as
 *                                        a whole; membership, kill, cpu time
 *   hybrid  /sys/fs/cgroup/unified/BASE/<id>/[<exec>/]   kill, freeze, events, cpu time
 *           /sys/fs/cgroup/<controller>/BASE/<id>/       limits and numbers (memory, pids, cpu,
 *                                                        blkio)
 *           /sys/fs/cgroup/cpu/BASE~<id>/                that of cpu where there is no BASE: to
 * make and remove two groups for each sandbox that is alone costs a tenth of its start
 *           /sys/fs/cgroup/memory/BASE/<id>/<exec>/      whose processes were killed for memory
 *
 * Invariants: the sandbox owns nothing here but the `cgroup.procs` files that init needs for
 * CLONE_INTO_CGROUP below <id>; limits and directories are the keeper's. Every process of the
 * sandbox is in the v2 directory or below it, on every kind of host, so kill and populated are
 * always exact.
 *
 * Unless said otherwise functions return 0, or -1 with errno; on CGROUP_NONE they fail with
 * ENOTSUP.
 */
#ifndef CAY_JAIL_CGROUP_H
#define CAY_JAIL_CGROUP_H

#include "base/limits.h"

#include <cay/cay.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_kind {
    CGROUP_NONE = 0, /* nothing that this process may use: no limit is enforced */
    CGROUP_V2,
    CGROUP_HYBRID, /* v1 controllers, v2 for kill, freeze and events */
};

/* Which directory something is in. On v2 all but the first are the first. */
enum cgroup_part {
    CGROUP_UNIFIED = 0,
    CGROUP_MEMORY,
    CGROUP_PIDS,
    /* Each sandbox is one share, however many sessions it has: the kernel's default weight among
     * its siblings, which are those of BASE or, without one, of all the host. */
    CGROUP_CPU,
    CGROUP_IO,
    CGROUP_PARTS,
};

struct cgroup_limits {
    uint64_t memory, cpus_milli, pids; /* 0: no limit */
};

/* Zeroed is CGROUP_NONE and owns nothing. */
struct cgroup {
    enum cgroup_kind kind;
    char id[CAY_MAX_ID + 16];
    uid_t owner;
    gid_t group;
    struct cgroup_limits limits;
    /* The name of the cpu group in the root of its hierarchy, if it is there; else "". */
    char in_root[2 * (CAY_MAX_ID + 16)];
    int base[CGROUP_PARTS];  /* BASE, or that root, O_PATH; -1: no such part */
    int dir[CGROUP_PARTS];   /* <id> */
    int tasks[CGROUP_PARTS]; /* v1 `tasks`, writable, until cgroup_entered */
    int leaf;                /* v2: <id>/init, O_PATH */
    int space;               /* v2 as root: init's cgroup namespace, until cgroup_entered */
    int move;                /* v2 rootless: `cgroup.procs` of the leaf, until cgroup_entered */
    bool ours[CGROUP_PARTS]; /* cgroup_learn: cay made BASE, and it goes with its last group */
    bool learned;
};

/*
 * Makes the directories and writes the limits that are set. `owner` and `group` are the host ids of
 * the sandbox's root. Where the host offers nothing it succeeds with kind CGROUP_NONE: the caller
 * decides whether a sandbox without limits is acceptable. An id that exists is CAY_E_CONFLICT:
 * sweep it first.
 */
int cgroup_create(struct cgroup *out, const char *id, const struct cgroup_limits *limits,
                  uid_t owner, gid_t group, struct cay_error *err);
/*
 * The same in two halves, because only the first is needed to clone into it: the v2 directory;
 * then, while the child is at work already, v1 directories and limits. If the second fails the
 * first is still there.
 */
int cgroup_begin(struct cgroup *out, const char *id, const struct cgroup_limits *limits,
                 uid_t owner, gid_t group, struct cay_error *err);
int cgroup_finish(struct cgroup *cg, struct cay_error *err);
/* Other limits than it was made with. What had no cpu limit cannot get one, nor lose it. */
int cgroup_adjust(struct cgroup *cg, const struct cgroup_limits *limits, struct cay_error *err);
/* Borrowed: the v2 directory, below which are those of commands; -1 when there is none. */
int cgroup_dir(const struct cgroup *cg);
/* Borrowed: where init is born (CLONE_INTO_CGROUP); -1 when there is none. */
int cgroup_birth(const struct cgroup *cg);
/* Borrowed: the cgroup namespace that init is to be born with; -1: it makes its own. */
int cgroup_space(const struct cgroup *cg);
/*
 * Owned: a read-only view of the v2 directory with no way up, for init. CLONE_INTO_CGROUP works
 * through it and nothing else does: no file opens for writing, `..` is itself. -1 (EPERM) without
 * CAP_SYS_ADMIN.
 */
int cgroup_share(const struct cgroup *cg);
/*
 * In the cloned child, before anything else and before it unshares its cgroup namespace: enters the
 * v1 groups. Only write(). The child moves itself because that is 300 times cheaper than being
 * moved: the kernel needs no lock over all thread groups when `tasks` moves the writer alone.
 */
int cgroup_enter_self(const struct cgroup *cg);
/* The same for a child that was cloned before cgroup_finish: the descriptors are sent to it. */
size_t cgroup_tasks(const struct cgroup *cg, int out[CGROUP_PARTS]);
int cgroup_enter_tasks(const int *tasks, size_t n);
/* In the child, after that: makes its cgroup namespace and moves to where init lives, unless it was
 * born with the one and in the other. */
int cgroup_settle_self(const struct cgroup *cg);
/* In the parent, once the child has settled: closes what only the child needs, and completes what
 * could not be done before. */
int cgroup_entered(struct cgroup *cg, struct cay_error *err);
/* What cgroup_remove must know and a keeper that has given up its rights cannot find out. */
void cgroup_learn(struct cgroup *cg);

/* One group for each exec; `name` is a file name. It can be used again when it is empty. */
int cgroup_exec_create(struct cgroup *cg, const char *name);
int cgroup_exec_remove(struct cgroup *cg,
                       const char *name); /* EBUSY while populated; missing is fine */
/*
 * Owned: `tasks` of its v1 memory group, which the exec's first process enters by writing 0; -1 on
 * v2, where it is born in it. Whoever has this can move processes of his own pid namespace into the
 * group: init could do that anyway, and no limit is in it.
 */
int cgroup_exec_tasks(const struct cgroup *cg, const char *name);
int cgroup_exec_kill(struct cgroup *cg, const char *name);
/* To every process that is in it, at most once each. Processes that come meanwhile
 * may be missed. */
int cgroup_exec_signal(struct cgroup *cg, const char *name, int sig);
/* Both are false if it cannot be read. */
bool cgroup_exec_populated(struct cgroup *cg, const char *name);
bool cgroup_exec_empty(struct cgroup *cg, const char *name);
/* CPU time of the exec's whole tree, also of processes that nobody reaped yet. */
int cgroup_exec_cpu(struct cgroup *cg, const char *name, uint64_t *us);

/* Calls `each` for every thread that we can see; non-zero ends the walk, and is returned. */
int cgroup_each_thread(const struct cgroup *cg, int (*each)(pid_t thread, void *data), void *data);

int cgroup_kill(struct cgroup *cg);
int cgroup_signal(struct cgroup *cg, int sig); /* every process, in execs or not, init too */
/* Returns when all are frozen; ETIMEDOUT after a second, and then they freeze when they can. */
int cgroup_freeze(struct cgroup *cg, bool frozen);
bool cgroup_populated(const struct cgroup *cg);

/* Sets cpu, memory, pids, io and oom fields, leaves the rest; what cannot be read is 0. */
int cgroup_stats(const struct cgroup *cg, struct cay_stats *out);
/* Processes killed for memory: of init and its workers; of an exec. */
uint64_t cgroup_oom_kills(const struct cgroup *cg);
uint64_t cgroup_exec_oom_kills(const struct cgroup *cg, const char *name);
uint64_t cgroup_cpu(const struct cgroup *cg);    /* microseconds of all of it, 0 if unknown */
uint64_t cgroup_memory(const struct cgroup *cg); /* used now, 0 if unknown */
uint64_t cgroup_shmem(const struct cgroup *cg);  /* of that: files in memory, and shared memory */
/*
 * Owned: becomes readable (8 bytes) when the sandbox runs out of memory, right before the kernel
 * kills one process: the keeper then kills the rest of that exec. -1 with ENOTSUP on v2, where
 * memory.oom.group makes the kernel do just that.
 */
int cgroup_oom_eventfd(const struct cgroup *cg);

/* Kills what is left and removes every directory. EBUSY: something does not die;
 * try again later. */
int cgroup_remove(struct cgroup *cg);
/* By name alone. Nothing to remove is success. */
bool cgroup_left(const char *id); /* is there one? True also if that cannot be told */
int cgroup_sweep(const char *id, struct cay_error *err);
int cgroup_sweep_unused(const char *id, struct cay_error *err); /* only if no process is in it */
/* Calls `each` for every sandbox that has a group, perhaps several times for one id; non-zero ends
 * the walk. */
int cgroup_list(int (*each)(const char *id, void *data), void *data);
void cgroup_done(struct cgroup *cg); /* closes; leaves the groups as they are */

/* What this host offers, without changing it. */
struct cgroup_host {
    enum cgroup_kind kind;
    char parent[CGROUP_PARTS][256]; /* directory that holds BASE; "" if there is none */
    char why[160];                  /* of CGROUP_NONE */
};
void cgroup_host_find(struct cgroup_host *out);

#endif
