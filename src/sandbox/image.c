/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/image.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int open_directory(const char *path, bool no_links, int *out, struct cay_error *err)
{
    if (path[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "image dir:%s: the path must be absolute", path);
    autofd int fd = sys_openat2(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0,
                                no_links ? RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS : 0);
    if (fd < 0 && errno == ENOTDIR)
        return cay_fail(err, CAY_E_INVALID, "image dir:%s is not a directory", path);
    if (fd < 0 && errno == ELOOP && no_links)
        return cay_fail(err, CAY_E_DENIED, "image dir:%s is reached through a symbolic link", path);
    if (fd < 0)
        return cay_fail_errno(err, errno, "image dir:%s", path);
    *out = steal_fd(&fd);
    return 0;
}

int image_check(const char *reference, const char *name, bool no_links, int *dir,
                struct cay_error *err)
{
    *dir = -1;
    if (strcmp(reference, "host") == 0)
        return 0;
    if (strncmp(reference, "dir:", 4) == 0)
        return open_directory(reference + 4, no_links, dir, err);
    return cay_fail(
        err, CAY_E_UNSUPPORTED,
        "image '%s': registry images are not supported yet; use --image host or dir:PATH", name);
}

int image_stamp(int dir, char out[IMAGE_STAMP_SIZE], struct cay_error *err)
{
    struct stat st;
    if (dir < 0) {
        snprintf(out, IMAGE_STAMP_SIZE, "%08x", host_generation());
        return 0;
    }
    if (fstat(dir, &st) < 0)
        return cay_fail_errno(err, errno, "cannot look at the image");
    snprintf(out, IMAGE_STAMP_SIZE, "%llx:%llx", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    return 0;
}

int image_open(const char *state_path, int dir, struct image *out, struct cay_error *err)
{
    autoimage struct image image = {
        .layers = {{-1, -1, "/", false}, {-1, -1, NULL, false}, {-1, -1, NULL, false}},
        .n_layers = 1,
    };
    if (dir < 0 && host_image(state_path, &image, err) < 0)
        return -1;
    if (dir >= 0)
        image.layers[0].lower = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    if (image.layers[0].lower < 0)
        return cay_fail_errno(err, errno, "cannot open the image");
    *out = image;
    image.n_layers = 0;
    return 0;
}

void image_done(struct image *image)
{
    for (size_t i = 0; i < image->n_layers; i++) {
        close_fd(&image->layers[i].lower);
        close_fd(&image->layers[i].cover);
    }
    image->n_layers = 0;
}
