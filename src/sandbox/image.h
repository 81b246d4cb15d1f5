/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images: from a reference to the directories that a root is laid over. `host` is the host's own
 * /usr below a synthetic root; `dir:PATH` is a directory as it is.
 */
#ifndef CAY_SANDBOX_IMAGE_H
#define CAY_SANDBOX_IMAGE_H

#include "base/limits.h"

#include <cay/cay.h>

#define IMAGE_MAX_LAYERS 3

/* Directories by descriptor (O_PATH), owned; -1: none. No path is looked up a second time. */
struct image {
    struct {
        int lower, cover;
        const char *target;
        bool unshifted;
    } layers[IMAGE_MAX_LAYERS];
    size_t n_layers;
};

void image_done(struct image *image);
#define autoimage __attribute__((cleanup(image_done)))

/*
 * Checks the reference without making anything, and opens the directory that it names; -1 in `dir`
 * for `host`. Who opens it here has judged it: the same descriptor is what is mounted.
 * `no_links`: its path must not lead through a symbolic link.
 */
int image_check(const char *reference, const char *name, bool no_links, int *dir,
                struct cay_error *err);
/* The directories of an image: `dir` (borrowed) if there is one, else those of `host`, which are
 * made if need be. */
int image_open(const char *state_path, int dir, struct image *out, struct cay_error *err);

/*
 * What the image is at this moment, as text without blanks: as long as that is the same, a new root
 * would be the same. `dir` is that of image_check.
 */
#define IMAGE_STAMP_SIZE 48
int image_stamp(int dir, char out[IMAGE_STAMP_SIZE], struct cay_error *err);

/* host.c */
uint32_t host_generation(void);
int host_image(const char *state_path, struct image *out, struct cay_error *err);

#endif
