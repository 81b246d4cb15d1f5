/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the keeper gives up, and when. Init and all that it says is hostile from the moment that
 * the first command runs, and the keeper is what it talks to: if a bug let it take the keeper
 * over, this is what it would have. Callers do not matter here, they may do all this anyway.
 *
 *   RIGHTS_ALL      From its start: what its user may. It reads the spec, opens the image and the
 *                   directories to mount, which can be anywhere on the host.
 *   RIGHTS_BUILDER  Before the first process of the sandbox exists. As root: capabilities that
 *                   no sandbox needs to be made are gone, no program can gain any (uid 0 means
 *                   nothing to an exec, no_new_privs), and signals reach only what was started
 *                   since, which is the sandbox (Landlock ABI 6). As an ordinary user this comes
 *                   only if ids are mapped without newuidmap, which is a set-uid program.
 *   RIGHTS_SERVER   When the creator has its READY, and before anything of init's is read: no
 *                   capability but those of `serving`, an allow list of system calls, its own
 *                   directories. A prepared sandbox stays a builder until it is given away:
 *                   mounts are made then. Nothing but our init runs in it before.
 *
 * Not earlier, because READY is what everybody waits for; the command runs meanwhile.
 */
#ifndef CAY_KEEPER_RIGHTS_H
#define CAY_KEEPER_RIGHTS_H

#include "keeper/keeper.h"

/* `helpers`: set-uid programs are still to be run. */
int rights_builder(const struct keeper *k, bool helpers, struct cay_error *err);
/* Not for a parked one. One that cannot give them up has to end. */
int rights_server(struct keeper *k, struct cay_error *err);

#endif
