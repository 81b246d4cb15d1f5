/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the cgroup module: where on this host a sandbox's groups may be, and what its files share.
 */
#ifndef CAY_JAIL_CGROUP_HOST_H
#define CAY_JAIL_CGROUP_HOST_H

#include "jail/cgroup.h"

/* v1: the limit on socket buffers, of TCP and of every protocol that counts as it does. */
#define CGROUP_SOCKETS "memory.kmem.tcp.limit_in_bytes"

/* A file name of ours: [A-Za-z0-9_~-][A-Za-z0-9._~-]*, shorter than CAY_MAX_ID + 16. */
bool cgroup_name_ok(const char *name);
/* NULL if $CAY_CGROUP is not a name. */
const char *cgroup_base_name(void);
/*
 * As cgroup_host_find, and with an id only a place that has this sandbox; `make`: it will be used,
 * so v2 controllers may be enabled where that is needed.
 */
void cgroup_host_search(struct cgroup_host *out, const char *id, bool make);
/* Opens BASE (O_PATH), making it if asked to. -1 with errno. */
int cgroup_host_base(const struct cgroup_host *host, enum cgroup_part part, bool make);
/* Opens the root of a hierarchy (O_PATH): what BASE is in. -1 with errno. */
int cgroup_host_root(const struct cgroup_host *host, enum cgroup_part part);
bool cgroup_host_ours(int base); /* whether cay made it; asking takes root */
/* Removes BASE if nobody is in it any more. */
void cgroup_host_release(int base);
/* v2: makes every controller available in BASE's children, as far as the host lets us. */
void cgroup_host_enable(const struct cgroup_host *host, int base);
/* Finds " word" in a space-separated list. */
bool cgroup_has_word(const char *list, const char *word);

/* cgroup_control.c, for the other files of the module */

/* Waits until cgroup.events has the line; ETIMEDOUT. A group that is gone counts as having it. */
int cgroup_wait_event(const struct cgroup *cg, const char *line, int timeout_ms);
/* Calls `each` for every subdirectory; goes on after a failure and then fails with
 * the first errno. */
int cgroup_each_child(int dir, int (*each)(int dir, const char *name, void *data), void *data);
/* Lets the sandbox's root put processes into the group whose cgroup.procs is at `path`. */
int cgroup_give_procs(const struct cgroup *cg, int dir, const char *path);

/* cgroup_leaf.c: v2, once the sandbox's group is there; nothing to do on hybrid hosts. */
int cgroup_leaf_make(struct cgroup *cg, const struct cgroup_host *host, struct cay_error *err);
/* cgroup_exec.c: who runs out of memory in the group <name> dies together with all of it. */
int cgroup_exec_oom_group(int dir, const char *name);

#endif
