/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/known.h"

#include "audit/store.h"
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BUCKETS 4096
#define NAME "known"
/* More than all sandboxes that a host can have. */
#define MAX_FILE (64u << 20)

struct known {
    struct known_id *buckets[BUCKETS];
    size_t n;
};

/* ---- the set --------------------------------------------------------------------------------- */

static struct known_id **place(const struct known *known, const char *id)
{
    struct known_id *const *at = &known->buckets[cay_crc32(id, strlen(id)) % BUCKETS];
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return (struct known_id **)at;
}

struct known *known_new(void)
{
    return calloc(1, sizeof(struct known));
}

static void forget(struct known *known, struct known_id **at)
{
    struct known_id *old = *at;
    if (!old)
        return;
    *at = old->next;
    known->n--;
    free(old);
}

static void clear(struct known *known)
{
    for (size_t i = 0; i < BUCKETS; i++)
        while (known->buckets[i])
            forget(known, &known->buckets[i]);
}

void known_free(struct known *known)
{
    if (known)
        clear(known);
    free(known);
}

struct known_id *known_find(const struct known *known, const char *id)
{
    return *place(known, id);
}

struct known_id *known_add(struct known *known, const char *id, bool ended)
{
    struct known_id **at = place(known, id);
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        if (!*at)
            return NULL;
        snprintf((*at)->id, sizeof((*at)->id), "%s", id);
        known->n++;
    }
    (*at)->ended = ended;
    return *at;
}

void known_each(struct known *known, void (*each)(struct known_id *id, void *data), void *data)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct known_id *id = known->buckets[i]; id; id = id->next)
            each(id, data);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* "known 1 SEQ", a line "live ID" or "ended ID" for each, "end COUNT". */
static bool take_file(struct known *known, char *text, uint64_t *seq)
{
    unsigned long long at, count = 0;
    int n = 0;
    if (sscanf(text, "known 1 %llu\n%n", &at, &n) != 1 || n == 0)
        return false;
    for (char *line = text + n, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        const char *id = strchr(line, ' ');
        const char *ignored;
        bool ended = strncmp(line, "ended ", 6) == 0;
        if (!id)
            return false;
        if (strncmp(line, "end ", 4) == 0) {
            *seq = at;
            return sscanf(line, "end %llu", &count) == 1 && count == known->n && !end[1];
        }
        if ((!ended && strncmp(line, "live ", 5) != 0) || parse_id(id + 1, &ignored, NULL) < 0 ||
            !known_add(known, id + 1, ended))
            return false;
    }
    return false;
}

static ssize_t read_whole(int fd, struct cay_buf *out)
{
    ssize_t n = 1;
    while (n > 0) {
        char *room = buf_room(out, 65536);
        n = room ? read(fd, room, 65535) : -1;
        if (n > 0)
            out->size += (size_t)n;
    }
    return n == 0 ? buf_add(out, "", 1) : -1;
}

static bool load_file(struct known *known, const char *dir, uint64_t last_seq, uint64_t *seq)
{
    char path[CAY_MAX_PATH + 16];
    autobuf struct cay_buf text = CAY_BUF(MAX_FILE);
    snprintf(path, sizeof(path), "%s/" NAME, dir);
    autofd int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && read_whole(fd, &text) == 0 && take_file(known, text.data, seq) &&
        *seq <= last_seq)
        return true;
    clear(known);
    *seq = 0;
    return false;
}

static void add_line(struct known_id *id, void *data)
{
    buf_fmt(data, "%s %s\n", id->ended ? "ended" : "live", id->id);
}

int known_save(struct known *known, const char *dir, uint64_t seq)
{
    autobuf struct cay_buf text = CAY_BUF(MAX_FILE);
    autofd int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    buf_fmt(&text, "known 1 %llu\n", (unsigned long long)seq);
    known_each(known, add_line, &text);
    buf_fmt(&text, "end %zu\n", known->n);
    if (at < 0 || buf_failed(&text))
        return -1;
    cay_remove_tree_at(at, NAME ".new"); /* what a crash left, or something that is not a file */
    autofd int fd = openat(at, NAME ".new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || cay_write_all(fd, text.data, text.size) < 0)
        return -1;
    return renameat(at, NAME ".new", at, NAME);
}

/* ---- the log --------------------------------------------------------------------------------- */

/* A look at the number before all of it is parsed: most of a large log is older than what is known.
 */
static bool is_older(const struct audit_raw *raw, uint64_t after)
{
    static const char begin[] = "{\"seq\":";
    uint64_t seq = 0;
    size_t at = sizeof(begin) - 1;
    if (raw->size < at || memcmp(raw->data, begin, at) != 0)
        return false;
    for (; at < raw->size && raw->data[at] >= '0' && raw->data[at] <= '9' && seq < AUDIT_MAX_SEQ;
         at++)
        seq = seq * 10 + (uint64_t)(raw->data[at] - '0');
    return seq <= after;
}

static int take_line(struct known *known, const struct audit_raw *raw, uint64_t after)
{
    if (is_older(raw, after))
        return 0;
    autoline struct audit_line line = {0};
    if (audit_line_parse(raw->data, raw->size, &line, NULL) < 0)
        return 0;
    const char *event = audit_line_event(&line);
    if (!event)
        return 0;
    if (strcmp(event, "removed") == 0) {
        forget(known, place(known, line.sandbox));
        return 0;
    }
    return known_add(known, line.sandbox, strcmp(event, "ended") == 0) ? 0 : -1;
}

static int read_log(struct known *known, const struct audit_store *store, size_t i, uint64_t after,
                    struct cay_error *err)
{
    struct audit_raw raw;
    int got = 0, taken = 0;
    autofd int fd = audit_store_file(store, i);
    if (fd < 0)
        return audit_store_unread(store, i, err);
    autoreader struct audit_reader reader;
    audit_reader_init(&reader, fd, 0);
    while (taken == 0 && (got = audit_reader_next(&reader, &raw)) == 1)
        taken = take_line(known, &raw, after);
    if (got < 0)
        return cay_fail_errno(err, errno, "cannot read the audit log");
    return taken < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory") : 0;
}

int known_load(struct known *known, const char *dir, uint64_t last_seq, bool *whole,
               struct cay_error *err)
{
    uint64_t after = 0;
    autostore struct audit_store store;
    bool filed = load_file(known, dir, last_seq, &after);
    if (audit_store_open(dir, &store, err) < 0)
        return -1;
    /* Entries between the file and what is left of the log: then the file says nothing. */
    if (filed && after < last_seq && store.n > 0 && audit_store_first(&store, 0) > after + 1) {
        clear(known);
        after = 0;
        filed = false;
    }
    *whole = filed || last_seq == 0 || (store.n > 0 && audit_store_first(&store, 0) == 1);
    for (size_t i = 0; i < store.n; i++) {
        /* All of it is older than the next one's first. */
        if (i + 1 < store.n && audit_store_first(&store, i + 1) &&
            audit_store_first(&store, i + 1) <= after)
            continue;
        if (read_log(known, &store, i, after, err) < 0)
            return -1;
    }
    return 0;
}
