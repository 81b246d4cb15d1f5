/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of the operator policy: files that only the operator may write, and what paths of
 * a spec resolve to. This is the I/O that src/policy does not do.
 *
 * The order for a spec that came over the API:
 *     resolve_spec -> operator_check -> resolve_apply -> cay_create
 * and whoever opens a resolved path later allows no symbolic link in it (RESOLVE_NO_SYMLINKS).
 */
#ifndef CAY_DAEMON_RESOLVE_H
#define CAY_DAEMON_RESOLVE_H

#include "base/buf.h"
#include "base/limits.h"
#include "base/opt.h"
#include "policy/operator.h"

/* What an absolute path is once all its symbolic links are followed; it has to exist. */
int operator_resolve(const char *path, char out[CAY_MAX_PATH], struct cay_error *err);

struct resolved_spec {
    struct operator_resolved paths; /* for operator_check */
    struct cay_mount *mounts;       /* the spec's, with what was resolved in place of the sources */
    const char *image;              /* "dir:" and what was resolved; NULL: leave it as it is */
};

/* Resolves the sources of all mounts and a "dir:" image. What cannot be resolved is no failure
 * here: its entry is NULL. All memory is the arena's. Fails only without memory. */
int resolve_spec(const struct cay_spec *spec, struct opt_arena *arena, struct resolved_spec *out,
                 struct cay_error *err);
/* Puts what was resolved into the spec; what was not stays as it was given. */
void resolve_apply(const struct resolved_spec *resolved, struct cay_spec *spec);

/*
 * Reads a file that decides about rights: a plain file of our own user or root, none of the
 * `forbidden` mode bits set, at most `out->max` bytes. 1: read; 0: there is no such file.
 */
int operator_read(const char *path, mode_t forbidden, struct cay_buf *out, struct cay_error *err);
/* The policy at `path`; the built-in rules if there is no such file. A path of a rule that is
 * itself reached through a symbolic link is an error: nothing would ever match it. */
int operator_load(const char *path, struct operator_policy **out, struct cay_error *err);

#endif
