/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User and group ids: the map of a sandbox's user namespace, and mounts whose owners are shifted.
 */
#ifndef CAY_JAIL_IDMAP_H
#define CAY_JAIL_IDMAP_H

#include "jail/jail.h"

/* Writes the plan's maps for the new namespace of `pid`: directly, or through newuidmap and
 * newgidmap. */
int idmap_write(pid_t pid, const struct jail_plan *plan, struct cay_error *err);
/* A user namespace that exists only to shift owners on a mount: one uid, one gid. A descriptor or
 * -1. */
int idmap_single(uint32_t uid, uint32_t to_uid, uint32_t gid, uint32_t to_gid,
                 struct cay_error *err);
/* Shifts a detached mount. -1 with errno: EINVAL where the file system cannot. */
int idmap_tree(int tree, int userns);

/* A copy of a bind mount's source, detached, whose owner is the sandbox's user. As root only. */
int idmap_bind(const struct jail_plan *plan, const struct jail_bind *bind, struct cay_error *err);

#endif
