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

static int add_record(struct listing *listing, const char *id, const struct cay_buf *buf, bool kept,
                      const struct cay_filter *filter, struct cay_error *err)
{
    autostatus struct status status = {0};
    struct cay_info info;
    /* It is there, and is listed. */
    if (status_decode(buf->data, buf->size, &status, NULL) < 0)
        status = (struct status){.state = kept ? CAY_STATE_RUNNING : CAY_STATE_LOST,
                                 .reason = "its status record cannot be read"};
    if (!matches(&status, filter))
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
    autofd int fd = status_open(cay->run, path);
    buf->size = 0;
    if (fd < 0 && !home_absent(errno) && !home_misplaced(errno))
        return cay_fail_errno(err, errno, "cannot list the sandboxes: %s/%s", cay->run_path, path);
    if (fd < 0 || !status_locked(fd) || record_read(fd, buf, NULL) != 0)
        return 0;
    return add_record(listing, id, buf, true, filter, err) < 0 ? -1 : 1;
}

static int add_any(struct cay *cay, struct listing *listing, const char *id, bool kept,
                   const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err)
{
    struct cay_error why;
    buf->size = 0;
    if (sandbox_status(cay, id, buf, &why) < 0)
        /* It went away while we looked, or it could not be looked at. */
        return why.code == CAY_E_NOT_FOUND ? 0
                                           : cay_fail_copy(err, why.code, why.sys_errno, why.text);
    return add_record(listing, id, buf, kept, filter, err);
}

/* One entry of the run directory. */
static int add_running(struct cay *cay, struct listing *listing, const char *id,
                       const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err)
{
    if (strcmp(id, "ids") == 0)
        return 0;
    if (parse_id_reserved(id)) {
        (void)sandbox_life(cay, id, NULL); /* nobody's yet; if it is dead it is swept */
        return 0;
    }
    int kept = add_kept(cay, listing, id, filter, buf, err);
    if (kept != 0)
        return kept < 0 ? -1 : 0;
    /* Being made, or dead: then this look sweeps it, and the record is found below if wanted. */
    enum life life = sandbox_life(cay, id, err);
    if (life == LIFE_KEPT)
        return add_any(cay, listing, id, true, filter, buf, err);
    return life == LIFE_UNKNOWN ? -1 : 0;
}

/* One entry of the records. */
static int add_ended(struct cay *cay, struct listing *listing, const char *id,
                     const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err)
{
    enum life life = sandbox_life(cay, id, err);
    if (life == LIFE_ENDED)
        return add_any(cay, listing, id, false, filter, buf, err);
    return life == LIFE_UNKNOWN ? -1 : 0;
}

typedef int add_fn(struct cay *cay, struct listing *listing, const char *id,
                   const struct cay_filter *filter, struct cay_buf *buf, struct cay_error *err);

/* A part of a list is none: whatever cannot be read is an error. */
static int scan(struct cay *cay, int dir, add_fn *add_entry, struct listing *listing,
                const struct cay_filter *filter, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    const char *id, *path = dir == cay->run ? cay->run_path : cay->state_path;
    const char *below = dir == cay->run ? "" : "/sandboxes";
    autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream)
        return cay_fail_errno(err, errno, "cannot list %s%s", path, below);
    steal_fd(&fd);
    int result = 0;
    errno = 0;
    for (struct dirent *e; result == 0 && (e = readdir(stream)); errno = 0)
        if (parse_id(e->d_name, &id, NULL) == 0)
            result = add_entry(cay, listing, e->d_name, filter, &buf, err);
    if (result == 0 && errno)
        result = cay_fail_errno(err, errno, "cannot list %s%s", path, below);
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
    int result = scan(cay, cay->run, add_running, &listing, filter, err);
    if (result == 0 && filter->all)
        result = scan(cay, cay->sandboxes, add_ended, &listing, filter, err);
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
