/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User ids for a sandbox: as root a range of 65,536 that no other sandbox has; rootless what
 * /etc/subuid grants the user, or just the user himself.
 */
#ifndef CAY_KEEPER_IDS_H
#define CAY_KEEPER_IDS_H

#include "jail/jail.h"

/* Claims a free range by a link <run>/ids/<n> to `id`. 1 + n, or 0. */
uint64_t ids_claim(int run, const char *id, struct cay_error *err);
void ids_release(int run, uint64_t range);
uint32_t ids_base(uint64_t range);
/* Rootless maps for this user into the plan. */
void ids_rootless(struct jail_plan *plan);
/* The uid and gid that "name", "uid" or "uid:gid" is in the image's own /etc/passwd. */
int ids_of_user(int root, const char *user, uint32_t *uid, uint32_t *gid, struct cay_error *err);

#endif
