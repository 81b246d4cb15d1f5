/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of prepared sandboxes whose daemon or keeper was killed. The roster knows nothing of
 * them, as nobody has them yet: without this they would stay until somebody lists all sandboxes.
 */
#ifndef CAY_DAEMON_REMAINS_H
#define CAY_DAEMON_REMAINS_H

#include "daemon/daemon.h"

struct remains;

/* Before the pool makes its first: all that is there now is of an earlier daemon. */
int remains_open(struct daemon *d, struct remains **out, struct cay_error *err);
/* After the workers' end. */
void remains_close(struct remains *remains);

#endif
