/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bind mounts of a spec, opened on the host: sources are resolved once, and what they resolve
 * to is what is mounted, whatever happens meanwhile. Used by the keeper, which mounts them, and by
 * create_key, which only wants to know what they mean for the sandbox.
 */
#ifndef CAY_SANDBOX_MOUNTS_H
#define CAY_SANDBOX_MOUNTS_H

#include "base/limits.h"
#include "jail/jail.h"

struct mounts {
    struct jail_bind binds[CAY_MAX_MOUNTS]; /* parents before children; borrow from the spec */
    size_t n;
    bool no_setid; /* what it writes into a mount belongs to the host's root, in reach of others */
};

/* Fails with what is opened so far in `out`: mounts_done in any case. */
int mounts_open(const struct cay_spec *spec, bool privileged, struct mounts *out,
                struct cay_error *err);
void mounts_done(struct mounts *mounts);
#define automounts __attribute__((cleanup(mounts_done)))

#endif
