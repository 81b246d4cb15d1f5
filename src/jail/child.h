/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cloned child's part of jail_start, cut by concern. All of it runs between clone and the exec
 * of init, in the new namespaces, before anything untrusted exists; it is single-threaded and
 * reports failures through the error object, which start.c sends to the parent.
 */
#ifndef CAY_JAIL_CHILD_H
#define CAY_JAIL_CHILD_H

#include "jail/jail.h"

/* Mount descriptors that the parent made; -1 where the child must open the source itself
 * (rootless). */
struct jail_trees {
    int overlays[JAIL_MAX_OVERLAYS], covers[JAIL_MAX_OVERLAYS];
    int *binds;
};

/* The root under construction. */
struct jail_root {
    int stage;   /* scaffold: engine-owned objects, not reachable after the pivot */
    int root;    /* the sandbox's / */
    int meminfo; /* writable descriptor of what covers /proc/meminfo */
    int cpuinfo; /* the same for /proc/cpuinfo */
    int disk;    /* the file system that holds what is written */
    int proc;    /* its /proc as it was before anything was covered; for pseudo_close */
};

/* start.c: of the user namespace that we are in */
int become_root(const struct jail_plan *plan, struct cay_error *err);

/* rootfs.c */
int rootfs_build(const struct jail_plan *plan, const struct jail_trees *trees,
                 struct jail_root *root, struct cay_error *err);
int rootfs_binds(const struct jail_plan *plan, const struct jail_trees *trees,
                 const struct jail_root *root, struct cay_error *err);
int rootfs_pivot(const struct jail_root *root, struct cay_error *err);
/* Rootless: the read-only view of the cgroup for init that the parent has no right to make; -1 if
 * not. */
int rootfs_cgroup(int dir);
/* Opens (makes, if need be) a mount target in the root: O_PATH, links are resolved inside only. */
int rootfs_target(int root, const char *path, bool directory, struct cay_error *err);

/* pseudo.c: /proc, /sys, /dev */
/* Copies the host's /proc/cpuinfo, up to as many processors as the cap lets run at once. */
int pseudo_cpuinfo(int in, int out, uint64_t cpus_milli);
int pseudo_mount(const struct jail_plan *plan, struct jail_root *root, struct cay_error *err);
/* No namespaces from here on. Last, because a detached mount counts as a namespace, too. */
int pseudo_close(const struct jail_plan *plan, const struct jail_root *root, struct cay_error *err);

/* confine.c: what init may do, from here on for ever */
int confine(const struct jail_plan *plan, struct cay_error *err);

#endif
