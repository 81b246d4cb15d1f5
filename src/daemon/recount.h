/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that an earlier daemon started and that still run, for execs_max. */
#ifndef CAY_DAEMON_RECOUNT_H
#define CAY_DAEMON_RECOUNT_H

#include "daemon/daemon.h"

/*
 * Asks the keepers of all tenants that have such a limit, and returns when they have answered, or
 * did not for too long. Runs the loop meanwhile: before anybody is served, so that no request can
 * be permitted that the count would have refused.
 */
int recount(struct daemon *d, struct cay_error *err);

#endif
