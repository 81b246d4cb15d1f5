/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of routes. `cayd --routes` prints it, and a test holds it against api/openapi.yaml.
 */
#ifndef CAY_DAEMON_ROUTES_H
#define CAY_DAEMON_ROUTES_H

#include "daemon/request.h"

struct route_params {
    char id[CAY_MAX_ID], pid[16];
};

enum route_match {
    ROUTE_NONE,
    ROUTE_FOUND,
    ROUTE_OTHER_METHOD, /* the path is known; `methods` says what can be done with it */
    ROUTE_LATER,        /* a feature that is not there yet */
};

/* The path of a request target, without its query. Escapes of letters, digits and "-._~" are
 * decoded, any other is refused: no route has them, and they are only good for tricks. */
int routes_clean(const char *target, char *out, size_t size);
enum route_match routes_match(const char *method, const char *path, const struct route **route,
                              struct route_params *params, char methods[static 128]);
size_t routes_index(const struct route *route);
/* "GET /api/v1/sandboxes/{id}" of an index, for metrics; NULL beyond the end. */
const struct route *routes_at(size_t index);
void routes_print(struct cay_buf *out);

#endif
