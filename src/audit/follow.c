/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Following the log from outside of the daemon, for cay-audit: a watch on the directory says that
 * something may have come, and the journal is read on from where it ended before. seq keeps entries
 * from being given out twice, whatever happened to the files meanwhile.
 */
#include "audit/store.h"

#include "base/err.h"
#include "base/util.h"

#include <string.h>
#include <sys/inotify.h>

struct audit_follow {
    char path[4096];
    int watch;
    uint64_t after;        /* seq of the last entry seen */
    uint64_t file, offset; /* where it ended; file 0: unknown */
};

int audit_follow_open(const char *dir, uint64_t after_seq, struct audit_follow **out,
                      struct cay_error *err)
{
    struct audit_follow *follow = calloc(1, sizeof(*follow));
    if (!follow)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    follow->after = after_seq;
    follow->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (strlen(dir) >= sizeof(follow->path)) {
        audit_follow_close(follow);
        return cay_fail(err, CAY_E_INVALID, "the path of the audit log is too long");
    }
    memcpy(follow->path, dir, strlen(dir) + 1);
    if (follow->watch < 0 ||
        inotify_add_watch(follow->watch, dir, IN_MODIFY | IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) <
            0) {
        int eno = errno;
        audit_follow_close(follow);
        return cay_fail_errno(err, eno, "cannot watch the audit log in %s", dir);
    }
    *out = follow;
    return 0;
}

int audit_follow_fd(const struct audit_follow *follow)
{
    return follow->watch;
}

void audit_follow_close(struct audit_follow *follow)
{
    if (!follow)
        return;
    close_fd(&follow->watch);
    free(follow);
}

/* True if a line starts there: a daemon that recovers may have cut the file and written on. */
static bool starts_line(const struct audit_store *store, size_t file, uint64_t offset)
{
    char before = 0;
    autofd int fd = audit_store_file(store, file);
    return offset == 0 ||
           (fd >= 0 && pread(fd, &before, 1, (off_t)offset - 1) == 1 && before == '\n');
}

/* Where to go on: at the place where we were; else in the file that the next entry must be in. */
static size_t place(const struct audit_follow *follow, const struct audit_store *store,
                    uint64_t *offset)
{
    ssize_t same = follow->file ? audit_store_find(store, follow->file) : -1;
    *offset = same >= 0 && starts_line(store, (size_t)same, follow->offset) ? follow->offset : 0;
    if (same >= 0)
        return (size_t)same;
    size_t i = 0;
    while (i + 1 < store->n && audit_store_first(store, i + 1) &&
           audit_store_first(store, i + 1) <= follow->after + 1)
        i++;
    return i;
}

/* One file from an offset to its end. 1: the callback wants no more. */
static int read_file(struct audit_follow *follow, int fd, const struct audit_query *query,
                     audit_each *each, void *data)
{
    autoreader struct audit_reader reader;
    struct audit_raw raw;
    int got;
    audit_reader_init(&reader, fd, follow->offset);
    while ((got = audit_reader_next(&reader, &raw)) == 1) {
        autoline struct audit_line line = {0};
        follow->offset = raw.end;
        if (audit_line_parse(raw.data, raw.size, &line, NULL) < 0 || line.seq <= follow->after)
            continue;
        follow->after = line.seq;
        if (audit_line_matches(&line, query) && each(raw.data, raw.size, data) != 0)
            return 1;
    }
    return got;
}

int audit_follow_read(struct audit_follow *follow, const struct audit_query *query,
                      audit_each *each, void *data, struct cay_error *err)
{
    char events[4096] __attribute__((aligned(8)));
    while (read(follow->watch, events, sizeof(events)) > 0)
        ; /* one look at the journal answers them all */
    autostore struct audit_store store;
    if (audit_store_open(follow->path, &store, err) < 0)
        return -1;
    uint64_t offset;
    for (size_t i = place(follow, &store, &offset); i < store.n; i++, offset = 0) {
        autofd int fd = audit_store_file(&store, i);
        if (fd < 0 && errno == ENOENT)
            continue;
        follow->file = audit_store_first(&store, i);
        follow->offset = offset;
        int got = fd < 0 ? -1 : read_file(follow, fd, query, each, data);
        if (got < 0)
            return cay_fail_errno(err, errno, "cannot read the audit log");
        if (got == 1)
            break;
    }
    return 0;
}
