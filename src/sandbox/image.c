/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/image.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int check_directory(const char *path, struct cay_error *err)
{
    struct stat st;
    if (path[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "image dir:%s: the path must be absolute", path);
    if (stat(path, &st) < 0)
        return cay_fail_errno(err, errno, "image dir:%s", path);
    if (!S_ISDIR(st.st_mode))
        return cay_fail(err, CAY_E_INVALID, "image dir:%s is not a directory", path);
    return 0;
}

int image_check(const char *reference, const char *name, struct cay_error *err)
{
    if (strcmp(reference, "host") == 0)
        return 0;
    if (strncmp(reference, "dir:", 4) == 0)
        return check_directory(reference + 4, err);
    return cay_fail(
        err, CAY_E_UNSUPPORTED,
        "image '%s': registry images are not supported yet; use --image host or dir:PATH", name);
}

int image_stamp(const char *reference, char out[IMAGE_STAMP_SIZE], struct cay_error *err)
{
    struct stat st;
    if (strncmp(reference, "dir:", 4) != 0) {
        snprintf(out, IMAGE_STAMP_SIZE, "%08x", host_generation());
        return 0;
    }
    if (stat(reference + 4, &st) < 0)
        return cay_fail_errno(err, errno, "image %s", reference);
    snprintf(out, IMAGE_STAMP_SIZE, "%llx:%llx", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    return 0;
}

int image_open(const char *state_path, const char *reference, struct image *out,
               struct cay_error *err)
{
    struct image image = {.n_layers = 1};
    if (image_check(reference, reference, err) < 0)
        return -1;
    snprintf(image.reference, sizeof(image.reference), "%s", reference);
    image.layers[0].target = "/";
    if (strncmp(reference, "dir:", 4) == 0) {
        char resolved[CAY_MAX_PATH];
        if (!realpath(reference + 4, resolved))
            return cay_fail_errno(err, errno, "image %s", reference);
        snprintf(image.layers[0].lower, sizeof(image.layers[0].lower), "%s", resolved);
    } else {
        if (host_image(state_path, &image, err) < 0)
            return -1;
    }
    *out = image;
    return 0;
}
