/* SPDX-License-Identifier: Apache-2.0 */
/* At the start: what runs already takes its place in the quotas, as it did before. */
#ifndef CAY_DAEMON_RECOUNT_H
#define CAY_DAEMON_RECOUNT_H

#include "daemon/daemon.h"

/* Asks the keepers; a tenant's `counting` tells how many have not answered. */
void recount(struct daemon *d);

#endif
