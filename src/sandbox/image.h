/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images: from a reference to the directories that a root is laid over. `host` is the host's own
 * /usr below a synthetic root; `dir:PATH` is a directory as it is.
 */
#ifndef CAY_SANDBOX_IMAGE_H
#define CAY_SANDBOX_IMAGE_H

#include "base/limits.h"

#include <cay/cay.h>

#define IMAGE_MAX_LAYERS 2

struct image {
    char reference[CAY_MAX_PATH];
    struct {
        char lower[CAY_MAX_PATH], cover[CAY_MAX_PATH]; /* cover: "" if there is none */
        const char *target;
    } layers[IMAGE_MAX_LAYERS];
    size_t n_layers;
};

/* Checks the reference without making anything. */
int image_check(const char *reference, const char *name, struct cay_error *err);
/* Finds, and for `host` makes if need be, what the reference stands for. */
int image_open(const char *state_path, const char *reference, struct image *out,
               struct cay_error *err);

/*
 * What the reference stands for at this moment, as text without blanks: as long as that is the
 * same, a new root would be the same. Only looks, and makes nothing.
 */
#define IMAGE_STAMP_SIZE 48
int image_stamp(const char *reference, char out[IMAGE_STAMP_SIZE], struct cay_error *err);

/* host.c */
uint32_t host_generation(void);
int host_image(const char *state_path, struct image *out, struct cay_error *err);

#endif
