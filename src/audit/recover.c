/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What audit_open finds. A crash leaves a line without its end, a power failure may leave worse:
 * the log is cut after its last good line, and what was behind is kept in a file torn-SEQ. `head`
 * was written after the lines it speaks of were on disk, so a log that ends before it has lost
 * entries: seq then continues behind the lost ones, and the gap stays to be seen. Either is told by
 * an entry "recovered". Rotated files are never changed.
 */
#include "audit/journal.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK 16384

/* Where the last newline before `end` is; -1 if there is none, -2 with errno. */
static int64_t newline_before(int fd, uint64_t end)
{
    char chunk[CHUNK];
    while (end > 0) {
        size_t size = CAY_MIN(end, sizeof(chunk));
        ssize_t n = pread(fd, chunk, size, (off_t)(end - size));
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)size) {
            errno = n < 0 ? errno : EIO;
            return -2;
        }
        const char *newline = memrchr(chunk, '\n', size);
        if (newline)
            return (int64_t)(end - size) + (newline - chunk);
        end -= size;
    }
    return -1;
}

/* The last good line of a file. */
struct last {
    uint64_t end; /* after its newline; 0: there is none */
    uint64_t seq, time_ms;
    char hash[AUDIT_HASH];
    bool whole; /* nothing but a piece without newline is behind it */
};

static bool good_line(int fd, uint64_t start, uint64_t end, struct cay_buf *buf, struct last *out)
{
    char prev[AUDIT_HASH];
    autoline struct audit_line line = {0};
    size_t size = (size_t)(end - start);
    buf->size = 0;
    char *room = size > AUDIT_MAX_LINE ? NULL : buf_room(buf, size);
    if (!room || pread(fd, room, size, (off_t)start) != (ssize_t)size ||
        !audit_line_sealed(room, size, prev, out->hash) ||
        audit_line_parse(room, size, &line, NULL) < 0)
        return false;
    out->seq = line.seq;
    out->time_ms = line.time_ms;
    return true;
}

static int find_last(int fd, struct last *out, struct cay_error *err)
{
    struct stat st;
    autobuf struct cay_buf buf = CAY_BUF(AUDIT_MAX_LINE);
    struct last last = {.whole = true};
    if (fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot look at the audit log");
    int64_t end = newline_before(fd, (uint64_t)st.st_size);
    while (end >= 0) {
        int64_t before = newline_before(fd, (uint64_t)end);
        if (before == -2)
            break;
        if (good_line(fd, (uint64_t)(before + 1), (uint64_t)end, &buf, &last)) {
            last.end = (uint64_t)end + 1;
            break;
        }
        last.whole = false;
        end = before;
    }
    if (end == -2)
        return cay_fail_errno(err, errno, "cannot read the audit log");
    *out = last;
    return 0;
}

/* The last good line of the newest rotated file that has one. */
static int find_rotated(struct audit *audit, struct last *out, struct cay_error *err)
{
    autobuf struct cay_buf list = CAY_BUF(AUDIT_MAX_FILES * sizeof(uint64_t));
    if (audit_store_list(audit->dir, &list, err) < 0)
        return -1;
    const uint64_t *firsts = (const uint64_t *)(const void *)list.data;
    for (size_t i = list.size / sizeof(uint64_t); i > 0; i--) {
        char name[AUDIT_NAME];
        audit_store_name(firsts[i - 1], name);
        autofd int fd = audit_store_at(audit->dir, name);
        if (fd < 0 && errno == EINVAL)
            return cay_fail(err, CAY_E_UNAVAILABLE, "%s of the audit log is not a file", name);
        if (fd < 0)
            return cay_fail_errno(err, errno, "cannot open %s of the audit log", name);
        if (find_last(fd, out, err) < 0)
            return -1;
        if (out->end)
            return 0;
    }
    return 0;
}

/* Copies everything from `start` on into a new file. */
static int copy_tail(struct audit *audit, int from, uint64_t start, const char *name)
{
    char chunk[CHUNK];
    autofd int to = openat(audit->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n = to < 0 ? -1 : 0;
    for (uint64_t at = start; to >= 0; at += (uint64_t)n) {
        n = pread(from, chunk, sizeof(chunk), (off_t)at);
        if (n <= 0 || cay_write_all(to, chunk, (size_t)n) < 0)
            break;
    }
    if (n == 0 && fsync(to) == 0)
        return 0;
    int eno = errno;
    if (to >= 0)
        unlinkat(audit->dir, name, 0);
    errno = eno;
    return -1;
}

/* Moves what is behind the last good line out of the way. */
static int move_tail(struct audit *audit, int fd, const struct last *last, uint64_t size,
                     struct cay_error *err)
{
    struct audit_pending *told = &audit->recovered;
    *told = (struct audit_pending){.wanted = true,
                                   .action = AUDIT_RECOVERED,
                                   .reason = last->whole ? "torn line" : "damaged lines",
                                   .bytes = size - last->end};
    int done = -1;
    for (unsigned i = 0; i < 1000 && done < 0; i++) {
        snprintf(told->file, sizeof(told->file), i ? "torn-%llu.%u" : "torn-%llu",
                 (unsigned long long)audit->seq + 1, i);
        done = copy_tail(audit, fd, last->end, told->file);
        if (done < 0 && errno != EEXIST)
            break;
    }
    /* A piece of one line, left by a disk that was and is full, was never acknowledged: let it go.
     */
    if (done < 0 && !(last->whole && (errno == ENOSPC || errno == EDQUOT)))
        return cay_fail_errno(err, errno, "cannot keep damaged lines of the audit log");
    if (done < 0)
        told->file[0] = 0;
    if (ftruncate(fd, (off_t)last->end) < 0)
        return cay_fail_errno(err, errno, "cannot mend the audit log");
    return 0;
}

/* The number that the current file gets when it is rotated. */
static uint64_t first_seq(int fd, uint64_t otherwise)
{
    autoreader struct audit_reader reader;
    struct audit_raw raw;
    audit_reader_init(&reader, fd, 0);
    while (audit_reader_next(&reader, &raw) == 1) {
        autoline struct audit_line line = {0};
        if (audit_line_parse(raw.data, raw.size, &line, NULL) == 0)
            return line.seq;
    }
    return otherwise;
}

/* Compares with what head says was there. */
static void check_head(struct audit *audit)
{
    struct audit_head head;
    if (audit_head_read(audit->dir, &head) != 1 || head.seq <= audit->seq)
        return;
    if (audit->seq == 0) /* everything is gone: at least the chain goes on */
        memcpy(audit->hash, head.hash, sizeof(head.hash));
    audit->recovered.wanted = true;
    audit->recovered.action = AUDIT_RECOVERED;
    audit->recovered.reason = "entries are missing";
    audit->recovered.from = audit->seq + 1;
    audit->recovered.to = head.seq;
    audit->seq = head.seq;
}

int audit_recover(struct audit *audit, struct cay_error *err)
{
    struct stat st;
    struct last last = {0}, older = {0};
    autofd int fd = audit_open_current(audit->dir, err);
    if (fd < 0 || find_last(fd, &last, err) < 0)
        return -1;
    if (!last.end && find_rotated(audit, &older, err) < 0)
        return -1;
    const struct last *end = last.end ? &last : &older;
    audit->seq = end->end ? end->seq : 0;
    audit->before_ms = end->end ? end->time_ms : 0;
    memcpy(audit->hash, end->end ? end->hash : AUDIT_NO_HASH, AUDIT_HASH);
    if (fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot look at the audit log");
    if ((uint64_t)st.st_size > last.end &&
        move_tail(audit, fd, &last, (uint64_t)st.st_size, err) < 0)
        return -1;
    audit->size = last.end;
    audit->first = last.end ? first_seq(fd, last.seq) : 0;
    check_head(audit);
    audit->renamed = true; /* its name may be new */
    audit->fd = steal_fd(&fd);
    return 0;
}
