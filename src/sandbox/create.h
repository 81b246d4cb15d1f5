/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating with a head start, for a program that makes many sandboxes (src/daemon): a prepared
 * sandbox is one that is up already, root, limits, init and all, but has no name yet and has run
 * nothing. Giving it to somebody means to tell its keeper the spec: host name, mounts, limits and
 * lifetimes are set then, and it is the same as one that was made from nothing.
 *
 * A prepared sandbox belongs to whoever holds its connection: when that closes or dies before the
 * sandbox was given away, it goes without trace. It is never listed and cannot be reached by name.
 *
 * None of these calls is safe to be made by two threads for the same `struct prepared`.
 */
#ifndef CAY_SANDBOX_CREATE_H
#define CAY_SANDBOX_CREATE_H

#include "base/limits.h"

#include <cay/cay.h>

/* Large enough for every key. */
#define CREATE_KEY_SIZE (CAY_MAX_PATH + 256)

struct prepared;

/*
 * What must be the same for a prepared sandbox to become one of this spec: what the image stands
 * for, profile, network, disk, ..., with the config's and the engine's defaults filled in. Specs
 * with equal keys can be given the same prepared sandboxes. An empty key: it cannot be prepared.
 * Fails as cay_create does with a spec that is wrong, or an image that is not there; the id does
 * not matter and may be NULL.
 */
int create_key(struct cay *cay, const struct cay_spec *spec, char out[CREATE_KEY_SIZE],
               struct cay_error *err);

/*
 * Starts to prepare a sandbox for specs like this one, and does not wait. Only what is in the key
 * and the limits are looked at; a spec with other limits fits, too, at the cost of a few system
 * calls.
 */
int prepare_start(struct cay *cay, const struct cay_spec *like, struct prepared **out,
                  struct cay_error *err);
/* To be polled for reading: readable when prepare_ready has news, also later, when it dies. */
int prepare_fd(const struct prepared *prepared);
/* Does not block. 1: ready; 0: not yet; -1: it failed or has died, to be freed. */
int prepare_ready(struct prepared *prepared, struct cay_error *err);
/* The key that it was made for; as long as it lives. */
const char *prepare_key(const struct prepared *prepared);
/* Whether a spec of this key (create_key) can be given it. */
bool prepare_fits(const struct prepared *prepared, const char *key);
/* Lets it go, in whatever state it is; NULL is fine. Does not wait for its end. */
void prepare_free(struct prepared *prepared);

/*
 * cay_create, with a prepared sandbox to use if it fits; NULL: none. It is consumed in any case,
 * and one that does not fit, is not ready or turns out to be dead costs only time: the sandbox is
 * then made from nothing. `existed` (NULL: not wanted) tells that the id was there already with the
 * same spec.
 */
int create_from(struct cay *cay, const struct cay_spec *spec, struct prepared *ready,
                struct cay_sandbox **out, bool *existed, struct cay_error *err);

#endif
