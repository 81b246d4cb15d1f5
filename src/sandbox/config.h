/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The config file: image aliases, and defaults of the spec.
 */
#ifndef CAY_SANDBOX_CONFIG_H
#define CAY_SANDBOX_CONFIG_H

#include "base/opt.h"
#include "sandbox/home.h"

struct config {
    struct opt_arena arena;
    struct cay_spec defaults;
    const char *const *aliases; /* "name=reference" */
};

/* A missing file is an empty one. */
int config_load(const struct cay *cay, struct config *out, struct cay_error *err);
void config_done(struct config *config);
#define autoconfig __attribute__((cleanup(config_done)))

/* What an image name stands for: the alias's reference, or the name itself. Borrowed. */
const char *config_image(const struct config *config, const char *name);
/* Fills fields that were not given from the config's defaults. */
void config_apply(const struct config *config, struct cay_spec *spec);

#endif
