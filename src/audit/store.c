/* SPDX-License-Identifier: Apache-2.0 */
#include "audit/store.h"

#include "base/err.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK (64u << 10)

void audit_store_name(uint64_t first, char out[AUDIT_NAME])
{
    snprintf(out, AUDIT_NAME, "audit-%016llu.jsonl", (unsigned long long)first);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int audit_store_list(int dir, struct cay_buf *out, struct cay_error *err)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy < 0 ? NULL : fdopendir(copy);
    if (!stream) {
        int eno = errno;
        if (copy >= 0)
            close(copy);
        return cay_fail_errno(err, eno, "cannot list the audit log");
    }
    for (struct dirent *e; (e = readdir(stream));) {
        char name[AUDIT_NAME];
        unsigned long long first;
        if (sscanf(e->d_name, "audit-%llu.jsonl", &first) != 1)
            continue;
        audit_store_name(first, name);
        if (strcmp(name, e->d_name) == 0)
            buf_add(out, &(uint64_t){first}, sizeof(uint64_t));
    }
    closedir(stream);
    if (buf_failed(out))
        return cay_fail(err, CAY_E_TOO_LARGE, "the audit log has too many files");
    if (out->size)
        qsort(out->data, out->size / sizeof(uint64_t), sizeof(uint64_t), by_number);
    return 0;
}

static size_t rotated(const struct audit_store *store)
{
    return store->list.size / sizeof(uint64_t);
}

uint64_t audit_store_first(const struct audit_store *store, size_t i)
{
    uint64_t first;
    if (i >= rotated(store))
        return store->current_first;
    memcpy(&first, store->list.data + i * sizeof(first), sizeof(first));
    return first;
}

/* What was opened as the current file may have been rotated before the list was made: then it is in
 * there, too, and so may be newer ones. */
static void cut_list(struct audit_store *store)
{
    struct stat current, st;
    if (store->current < 0 || fstat(store->current, &current) < 0)
        return;
    for (size_t i = rotated(store), tries = 0; i > 0 && tries < 16; i--, tries++) {
        char name[AUDIT_NAME];
        audit_store_name(audit_store_first(store, i - 1), name);
        if (fstatat(store->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_ino == current.st_ino && st.st_dev == current.st_dev)
            store->list.size = (i - 1) * sizeof(uint64_t);
    }
}

/* The number of the current file comes from its first good line. A file without one still needs a
 * number of its own. */
static void number_current(struct audit_store *store)
{
    autoreader struct audit_reader reader;
    struct audit_raw raw;
    audit_reader_init(&reader, store->current, 0);
    while (audit_reader_next(&reader, &raw) == 1) {
        autoline struct audit_line line = {0};
        if (audit_line_parse(raw.data, raw.size, &line, NULL) == 0) {
            store->current_first = line.seq;
            return;
        }
        store->current_first =
            rotated(store) ? audit_store_first(store, rotated(store) - 1) + 1 : 1;
    }
}

int audit_store_at(int dir, const char *name)
{
    struct stat st;
    autofd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENXIO))
        errno = EINVAL;
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    if (S_ISREG(st.st_mode))
        return steal_fd(&fd);
    errno = EINVAL;
    return -1;
}

int audit_store_open(const char *path, struct audit_store *out, struct cay_error *err)
{
    *out = (struct audit_store){
        .dir = -1, .current = -1, .list = CAY_BUF(AUDIT_MAX_FILES * sizeof(uint64_t))};
    int n = snprintf(out->path, sizeof(out->path), "%s", path);
    if (n < 0 || (size_t)n >= sizeof(out->path) - 64)
        return cay_fail(err, CAY_E_INVALID, "the path of the audit log is too long");
    out->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->dir < 0)
        return cay_fail_errno(err, errno, "no audit log in %s", path);
    out->current = audit_store_at(out->dir, AUDIT_CURRENT);
    if (out->current < 0 && errno == EINVAL)
        return cay_fail(err, CAY_E_UNAVAILABLE, "%s/%s is not a file", path, AUDIT_CURRENT);
    if (out->current < 0 && errno != ENOENT)
        return cay_fail_errno(err, errno, "cannot open %s/%s", path, AUDIT_CURRENT);
    if (audit_store_list(out->dir, &out->list, err) < 0)
        return -1;
    cut_list(out);
    out->n = rotated(out) + (out->current >= 0);
    if (out->current >= 0)
        number_current(out);
    return 0;
}

void audit_store_close(struct audit_store *store)
{
    close_fd(&store->dir);
    close_fd(&store->current);
    buf_done(&store->list);
}

int audit_store_file(const struct audit_store *store, size_t i)
{
    char name[AUDIT_NAME];
    if (i >= rotated(store))
        return fcntl(store->current, F_DUPFD_CLOEXEC, 3);
    audit_store_name(audit_store_first(store, i), name);
    return audit_store_at(store->dir, name);
}

int audit_store_unread(const struct audit_store *store, size_t i, struct cay_error *err)
{
    char name[AUDIT_NAME] = AUDIT_CURRENT;
    int eno = errno;
    if (i < rotated(store))
        audit_store_name(audit_store_first(store, i), name);
    if (eno == EINVAL)
        return cay_fail(err, CAY_E_UNAVAILABLE, "%s/%s is not a file", store->path, name);
    return cay_fail_errno(err, eno, "cannot open %s/%s", store->path, name);
}

ssize_t audit_store_find(const struct audit_store *store, uint64_t first)
{
    for (size_t i = store->n; i > 0; i--)
        if (audit_store_first(store, i - 1) == first)
            return (ssize_t)(i - 1);
    return -1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

void audit_reader_init(struct audit_reader *reader, int fd, uint64_t offset)
{
    *reader = (struct audit_reader){
        .fd = fd, .offset = offset, .buf = CAY_BUF((size_t)AUDIT_MAX_LINE + 2 * CHUNK)};
}

void audit_reader_done(struct audit_reader *reader)
{
    buf_done(&reader->buf);
}

size_t audit_reader_rest(const struct audit_reader *reader)
{
    return reader->buf.size - reader->at;
}

/* More bytes behind what is buffered; 0 at the end of the file. */
static ssize_t refill(struct audit_reader *reader)
{
    buf_eat(&reader->buf, reader->at);
    reader->at = 0;
    char *room = buf_room(&reader->buf, CHUNK);
    if (!room) {
        errno = ENOMEM;
        return -1;
    }
    ssize_t n;
    do
        n = pread(reader->fd, room, CHUNK, (off_t)(reader->offset + reader->buf.size));
    while (n < 0 && errno == EINTR);
    if (n > 0)
        reader->buf.size += (size_t)n;
    return n;
}

int audit_reader_next(struct audit_reader *reader, struct audit_raw *out)
{
    size_t seen = 0; /* no newline in so many bytes */
    for (;;) {
        size_t have = audit_reader_rest(reader);
        const char *start = have ? reader->buf.data + reader->at : NULL;
        const char *newline = have > seen ? memchr(start + seen, '\n', have - seen) : NULL;
        if (newline) {
            size_t size = (size_t)(newline - start);
            bool skip = reader->skipping || size > AUDIT_MAX_LINE;
            *out = (struct audit_raw){.data = start,
                                      .size = skip ? 0 : size,
                                      .offset = reader->offset,
                                      .end = reader->offset + size + 1};
            reader->skipping = false;
            reader->at += size + 1;
            reader->offset += size + 1;
            return 1;
        }
        if (have > AUDIT_MAX_LINE) {
            reader->skipping = true;
            reader->at += have;
            reader->offset += have;
            have = 0;
        }
        seen = have;
        ssize_t n = refill(reader);
        if (n <= 0)
            return (int)n;
    }
}

/* ---- head ------------------------------------------------------------------------------------ */

bool audit_head_parse(const char *text, size_t size, struct audit_head *out)
{
    struct audit_head head;
    char copy[128], again[128];
    unsigned long long seq;
    if (size == 0 || size >= sizeof(copy) || memchr(text, 0, size))
        return false;
    memcpy(copy, text, size);
    copy[size] = 0;
    if (sscanf(copy, "%llu %64[0-9a-f]", &seq, head.hash) != 2 || strlen(head.hash) != 64 ||
        seq > AUDIT_MAX_SEQ)
        return false;
    head.seq = seq;
    /* One way to write it, so that a change of any byte shows. */
    snprintf(again, sizeof(again), "%llu %s\n", seq, head.hash);
    if (strcmp(copy, again) != 0)
        return false;
    *out = head;
    return true;
}

int audit_head_read(int dir, struct audit_head *out)
{
    char text[128];
    ssize_t n = cay_read_file_at(dir, AUDIT_HEAD, text, sizeof(text));
    if (n < 0)
        return errno == ENOENT ? 0 : -1;
    return audit_head_parse(text, (size_t)n, out) ? 1 : -1;
}

int audit_head_write(int dir, const struct audit_head *head, struct cay_error *err)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "%llu %s\n", (unsigned long long)head->seq, head->hash);
    /* What a crash left, or something that is not a file. */
    cay_remove_tree_at(dir, AUDIT_HEAD ".new");
    autofd int fd = openat(dir, AUDIT_HEAD ".new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || cay_write_all(fd, text, (size_t)n) < 0 ||
        renameat(dir, AUDIT_HEAD ".new", dir, AUDIT_HEAD) < 0)
        return cay_fail_errno(err, errno, "cannot write %s of the audit log", AUDIT_HEAD);
    return 0;
}
