/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a daemon is, as people write it: "unix:PATH", "http://HOST[:PORT]", "https://HOST[:PORT]".
 * A pure parser, used by open.c.
 */
#ifndef CAY_REMOTE_HOST_H
#define CAY_REMOTE_HOST_H

#include <cay/cay.h>

#define HOST_DEFAULT_PORT 7733

struct host {
    char shown[320];  /* as messages name it */
    char url[320];    /* scheme and authority, no slash at the end; of a socket a fixed one */
    char socket[108]; /* path of the socket, or "" */
    bool https;
    bool loopback; /* this machine, by its address or as "localhost"; sockets always */
};

int host_parse(const char *text, struct host *out, struct cay_error *err);

#endif
