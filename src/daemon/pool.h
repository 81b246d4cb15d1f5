/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes made ahead, for the kinds of spec that are asked for most. One that is taken belongs to
 * its taker alone: it leaves the pool before anybody else can look. What is not there is made from
 * nothing, as without a pool.
 */
#ifndef CAY_DAEMON_POOL_H
#define CAY_DAEMON_POOL_H

#include "daemon/daemon.h"
#include "sandbox/create.h"

int pool_open(struct daemon *d, struct pool **out, struct cay_error *err);
void pool_close(struct pool *pool);
/* A ready one for specs of this key (create_key), or NULL; counts the wish either way. */
struct prepared *pool_take(struct pool *pool, const char *key, const struct cay_spec *spec);
size_t pool_ready(const struct pool *pool);
/* Creates at work, or (0) something else that should be fast: refilling waits for a quiet moment.
 */
void pool_busy(struct pool *pool, int change);

#endif
