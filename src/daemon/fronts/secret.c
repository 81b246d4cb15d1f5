/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fronts/key.h"

#include "base/err.h"
#include "base/util.h"
#include "daemon/resolve.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <string.h>

#define NAME "front.key"

static int fill(const char *path, struct cay_error *err)
{
    unsigned char secret[KEY_SECRET];
    autofd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    cay_random(secret, sizeof(secret));
    if (fd < 0 || fchmod(fd, 0600) < 0 || cay_write_all(fd, secret, sizeof(secret)) < 0 ||
        fsync(fd) < 0)
        return cay_fail_errno(err, errno, "cannot write %s", path);
    return 0;
}

/* Whole or not at all; one that is there already stays. */
static int make(const char *state_path, const char *path, struct cay_error *err)
{
    char tmp[CAY_MAX_PATH];
    unsigned char random[8];
    autofd int dir = open(state_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cay_random(random, sizeof(random));
    snprintf(tmp, sizeof(tmp), "%s/." NAME ".%02x%02x%02x%02x%02x%02x%02x%02x", state_path,
             random[0], random[1], random[2], random[3], random[4], random[5], random[6],
             random[7]);
    int result = fill(tmp, err);
    if (result == 0 && link(tmp, path) < 0 && errno != EEXIST)
        result = cay_fail_errno(err, errno, "cannot make %s", path);
    unlink(tmp);
    if (result == 0 && (dir < 0 || fsync(dir) < 0))
        result = cay_fail_errno(err, errno, "cannot write %s to the disk", path);
    return result;
}

int key_secret(const char *state_path, bool can_make, unsigned char out[KEY_SECRET],
               struct cay_error *err)
{
    autobuf struct cay_buf bytes = CAY_BUF(KEY_SECRET + 1);
    char path[CAY_MAX_PATH];
    snprintf(path, sizeof(path), "%s/" NAME, state_path);
    int found = operator_read(path, 0077, &bytes, err);
    if (found == 0 && can_make)
        found = make(state_path, path, err) < 0 ? -1 : operator_read(path, 0077, &bytes, err);
    if (found < 0)
        return -1;
    if (found == 0)
        return cay_fail(err, CAY_E_NOT_FOUND, "%s is not there", path);
    if (bytes.size != KEY_SECRET)
        return cay_fail(err, CAY_E_INTERNAL,
                        "%s is damaged; remove it to have it made anew, which ends all keys", path);
    memcpy(out, bytes.data, KEY_SECRET);
    return 0;
}
