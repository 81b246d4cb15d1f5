/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fronts: the wire protocols of other products, for clients that know nothing of ours. Each has a
 * first path segment of its own and speaks its product's JSON, errors and statuses; below that it
 * is served by the same calls, quotas and audit log as the native API.
 *
 *   /aio/KEY/v1/...   the all-in-one sandbox's REST API, as DeerFlow's client uses it (aio.c)
 *
 * This is all that the rest of the daemon knows of them.
 */
#ifndef CAY_DAEMON_FRONTS_FRONTS_H
#define CAY_DAEMON_FRONTS_FRONTS_H

#include "daemon/routes.h"

/* True if the request is for a front; its errors then look like that product's. */
bool fronts_claim(struct request *r);
/*
 * The key in the path says who asks, and for which one sandbox: fills who and id, and takes the key
 * out of the path, so that nothing can show it later. NOT_FOUND in the same words whatever is wrong
 * with it.
 */
int fronts_enter(struct request *r, struct cay_error *err);
/* After that: the route, as routes_match has it. */
enum route_match fronts_match(struct request *r, char methods[static 128]);

/* GET /api/v1/sandboxes/{id}/aio: where the sandbox can be reached by that protocol. */
void sandbox_aio(struct request *r);

#endif
