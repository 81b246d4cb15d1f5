/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is let in: where the request comes from (Host, Origin), who asks (token), for what (route,
 * scope), on which sandbox (tenant), and whether there is room for one more.
 */
#ifndef CAY_DAEMON_ADMIT_H
#define CAY_DAEMON_ADMIT_H

#include "daemon/request.h"

/* Fills route, who, id and pid. May answer by itself (a browser's preflight). */
int admit(struct request *r, struct cay_error *err);
/* The request is over: gives back what it counted for. */
void admit_over(struct request *r);
/* Headers for a page that may read the answer. */
void admit_cors(struct request *r);

#endif
