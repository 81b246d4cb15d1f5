/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon gives up before it serves, for itself, its keepers and all that runs in their
 * sandboxes: capabilities and system calls that none of them ever needs.
 *
 * Not more, as whatever is given up here is gone for keepers too, which mount and make namespaces;
 * they go further by themselves (keeper/rights.h). No Landlock: the directories that clients mount
 * can be anywhere. An ordinary user's daemon has no capabilities to give up, and must be able to
 * run newuidmap, which is set-uid: no no_new_privs then.
 */
#ifndef CAY_DAEMON_DROP_H
#define CAY_DAEMON_DROP_H

#include <cay/cay.h>

/* Before there are threads. */
int drop_rights(struct cay_error *err);

#endif
