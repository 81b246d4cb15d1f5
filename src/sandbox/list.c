/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing: one small read for each sandbox, no question to any keeper, so that a thousand cost
 * little.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* More sandboxes than id ranges cannot be; ended ones add to that. */
#define MAX_LISTED 262144

struct listing {
    struct cay_info *infos;
    size_t n, capacity;
};

static void listing_done(struct listing *listing)
{
    for (size_t i = 0; i < listing->n; i++)
        cay_info_done(&listing->infos[i]);
    free(listing->infos);
}

static bool label_matches(const char *const *labels, const char *wanted)
{
    size_t n = strlen(wanted);
    bool key_only = !strchr(wanted, '=');
    for (; labels && *labels; labels++)
        if (strncmp(*labels, wanted, n) == 0 &&
            ((*labels)[n] == 0 || (key_only && (*labels)[n] == '=')))
            return true;
    return false;
}

static bool matches(const struct status *status, const struct cay_filter *filter)
{
    for (const char *const *l = filter->labels; l && *l; l++)
        if (!label_matches(status->labels, *l))
            return false;
    return true;
}

static int add(struct listing *listing, const struct cay_info *info, struct cay_error *err)
{
    if (listing->n == listing->capacity) {
        size_t capacity = listing->capacity ? listing->capacity * 2 : 16;
        struct cay_info *infos =
            capacity > MAX_LISTED ? NULL : realloc(listing->infos, capacity * sizeof(*infos));
        if (!infos)
            return cay_fail(err, CAY_E_NO_SPACE, "too many sandboxes to list");
        listing->infos = infos;
        listing->capacity = capacity;
    }
    listing->infos[listing->n++] = *info;
    return 0;
}

static int add_record(struct listing *listing, const char *id, const struct cay_buf *buf,
                      const struct cay_filter *filter, struct cay_error *err)
{
    autostatus struct status status = {0};
    struct cay_info info;
    if (status_decode(buf->data, buf->size, &status, NULL) < 0 || !matches(&status, filter))
        return 0;
    if (status.ephemeral && status.state >= CAY_STATE_EXITED)
        return 0; /* on its way out, and leaves no record */
    if (status_to_info(&status, id, &info, err) < 0)
        return -1;
    if (add(listing, &info, err) < 0) {
        cay_info_done(&info);
        return -1;
    }
    return 0;
}

/* The fast way: the status of a sandbox that is kept. 1: taken; 0: look closer. */
static int add_kept(struct cay *cay, struct listing *listing, const char *id,
                    const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err)
{
    char path[CAY_MAX_ID + 8];
    snprintf(path, sizeof(path), "%s/status", id);
    autofd int fd = openat(cay->run, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    buf->size = 0;
    if (fd < 0 || !status_locked(fd) || record_read(fd, buf, NULL) < 0)
        return 0;
    return add_record(listing, id, buf, filter, err) < 0 ? -1 : 1;
}

static int add_any(struct cay *cay, struct listing *listing, const char *id,
                   const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err)
{
    enum life life = sandbox_life(cay, id);
    if (life == LIFE_NONE || (life == LIFE_ENDED && !filter->all))
        return 0;
    buf->size = 0;
    if (sandbox_status(cay, id, buf, NULL) < 0)
        return 0;
    return add_record(listing, id, buf, filter, err);
}

static int scan_run(struct cay *cay, struct listing *listing, const struct cay_filter *filter,
                    struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    const char *id;
    int scan = openat(cay->run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    DIR *stream = scan < 0 ? NULL : fdopendir(scan);
    if (!stream)
        return cay_fail_errno(err, errno, "cannot list %s", cay->run_path);
    for (struct dirent *e; result == 0 && (e = readdir(stream));) {
        if (strcmp(e->d_name, "ids") == 0 || parse_id(e->d_name, &id, NULL) < 0)
            continue;
        if (parse_id_reserved(e->d_name)) {
            (void)sandbox_life(cay, e->d_name); /* nobody's yet; if it is dead it is swept */
            continue;
        }
        int kept = add_kept(cay, listing, e->d_name, filter, &buf, err);
        if (kept < 0)
            result = -1;
        else if (kept == 0)
            /* Being made, or dead: then this look sweeps it, and the record is found below if
             * wanted. */
            result = sandbox_life(cay, e->d_name) == LIFE_KEPT
                         ? add_any(cay, listing, e->d_name, filter, &buf, err)
                         : 0;
    }
    closedir(stream);
    return result;
}

static int scan_ended(struct cay *cay, struct listing *listing, const struct cay_filter *filter,
                      struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    const char *id;
    int scan = openat(cay->sandboxes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    DIR *stream = scan < 0 ? NULL : fdopendir(scan);
    if (!stream)
        return cay_fail_errno(err, errno, "cannot list %s/sandboxes", cay->state_path);
    for (struct dirent *e; result == 0 && (e = readdir(stream));)
        if (parse_id(e->d_name, &id, NULL) == 0 && sandbox_life(cay, e->d_name) == LIFE_ENDED)
            result = add_any(cay, listing, e->d_name, filter, &buf, err);
    closedir(stream);
    return result;
}

static int by_age(const void *a, const void *b)
{
    const struct cay_info *x = a, *y = b;
    if (x->created_ms != y->created_ms)
        return x->created_ms < y->created_ms ? -1 : 1;
    return strcmp(x->id, y->id);
}

int cay_list(struct cay *cay, const struct cay_filter *filter,
             int (*each)(const struct cay_info *info, void *data), void *data,
             struct cay_error *err)
{
    const struct cay_filter none = {0};
    struct listing listing = {0};
    if (!filter)
        filter = &none;
    int result = scan_run(cay, &listing, filter, err);
    if (result == 0 && filter->all)
        result = scan_ended(cay, &listing, filter, err);
    if (result == 0) {
        if (listing.n)
            qsort(listing.infos, listing.n, sizeof(*listing.infos), by_age);
        for (size_t i = 0; i < listing.n; i++)
            if (each(&listing.infos[i], data) != 0)
                break;
    }
    listing_done(&listing);
    return result;
}
