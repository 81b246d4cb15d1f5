/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An answer that is ready before the body has come: an upload that failed.
 *
 * libmicrohttpd takes no answer between the headers and the end of a body, and closing a connection
 * on a client that still sends destroys what the client has not read. So a little of the rest is
 * read and thrown away, and the connection goes on as if nothing had been. If there is more, the
 * answer is written here, past libmicrohttpd; the client has time to notice it while its body is
 * still taken, and then the connection ends.
 */
#ifndef CAY_DAEMON_EARLY_H
#define CAY_DAEMON_EARLY_H

#include "daemon/request.h"

/* More of the body has come (0: time has passed) and the answer is there. False: hang up. */
bool early_swallow(struct request *r, size_t size);

#endif
