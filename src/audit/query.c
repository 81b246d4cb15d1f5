/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries: first what the index knows, then the part of the journal that it does not know yet, line
 * by line. When the index is of no use, that part is the whole journal; when it fails half way, it
 * is what comes after the last entry given out. So an answer is complete with or without an index.
 */
#include "audit/index.h"

#include "base/err.h"
#include "base/util.h"

#include <string.h>

/* One query under way. */
struct ask {
    struct audit_query query; /* after_seq and limit move on with what was given out */
    struct audit_store *store;
    audit_each *each;
    void *data;
    bool stop;  /* enough, or the callback wants no more */
    bool stale; /* the index points to something else */
    struct cay_error *err;
    bool failed;
    /* the file that was read last */
    int fd;
    uint64_t file;
    struct cay_buf line;
    /* query.last: what to give out at the end, a ring of `limit` places */
    struct audit_hit *ring;
    size_t count, room;
};

static void ask_done(struct ask *ask)
{
    close_fd(&ask->fd);
    buf_done(&ask->line);
    free(ask->ring);
    ask->ring = NULL;
}

static void give(struct ask *ask, uint64_t seq, const char *line, size_t size)
{
    ask->query.after_seq = seq;
    ask->stop = ask->each(line, size, ask->data) != 0;
    if (ask->query.limit && --ask->query.limit == 0)
        ask->stop = true;
}

/* Its places are made as they are needed: a limit is often larger than what there is. */
static void keep(struct ask *ask, const struct audit_hit *hit)
{
    size_t limit = (size_t)ask->query.limit;
    if (ask->count < limit && ask->count == ask->room) {
        size_t room = CAY_MIN(CAY_MAX(ask->room * 2, (size_t)64), limit);
        struct audit_hit *ring = realloc(ask->ring, room * sizeof(*ring));
        if (!ring) {
            ask->failed = ask->stop = true;
            cay_fail(ask->err, CAY_E_NO_SPACE, "out of memory");
            return;
        }
        ask->ring = ring;
        ask->room = room;
    }
    ask->ring[ask->count++ % limit] = *hit;
}

/* Reads the line that a hit points to. 1; 0: its file was pruned; -1: something else is there. */
static int fetch(struct ask *ask, const struct audit_hit *hit)
{
    if (ask->fd < 0 || ask->file != hit->file) {
        ssize_t i = audit_store_find(ask->store, hit->file);
        close_fd(&ask->fd);
        ask->fd = i < 0 ? -1 : audit_store_file(ask->store, (size_t)i);
        ask->file = hit->file;
        if (ask->fd < 0)
            return 0;
    }
    ask->line.size = 0;
    size_t size = (size_t)hit->size + 1; /* with its newline */
    char *room = hit->size > AUDIT_MAX_LINE ? NULL : buf_room(&ask->line, size);
    if (!room || pread(ask->fd, room, size, (off_t)hit->offset) != (ssize_t)size ||
        room[size - 1] != '\n')
        return -1;
    ask->line.size = size - 1;
    return 1;
}

/* The index is only a hint: the line itself decides. */
static int give_hit(const struct audit_hit *hit, void *data)
{
    struct ask *ask = data;
    autoline struct audit_line line = {0};
    int got = fetch(ask, hit);
    if (got == 0)
        return 0;
    if (got < 0 || audit_line_parse(ask->line.data, ask->line.size, &line, NULL) < 0 ||
        line.seq != hit->seq || !audit_line_matches(&line, &ask->query)) {
        ask->stale = true;
        return 1;
    }
    give(ask, hit->seq, ask->line.data, ask->line.size);
    return ask->stop;
}

static int keep_hit(const struct audit_hit *hit, void *data)
{
    struct ask *ask = data;
    keep(ask, hit);
    return ask->stop;
}

/* They came backwards. */
static void turn_ring(struct ask *ask)
{
    for (size_t i = 0, j = ask->count; i + 1 < j; i++) {
        struct audit_hit hit = ask->ring[i];
        ask->ring[i] = ask->ring[--j];
        ask->ring[j] = hit;
    }
}

static void give_ring(struct ask *ask)
{
    size_t limit = (size_t)ask->query.limit, n = CAY_MIN(ask->count, limit);
    size_t start = ask->count > limit ? ask->count % limit : 0;
    uint64_t after = ask->query.after_seq;
    for (size_t i = 0; i < n && !ask->stop; i++) {
        const struct audit_hit *hit = &ask->ring[(start + i) % limit];
        autoline struct audit_line line = {0};
        ask->query.after_seq = after;
        if (fetch(ask, hit) == 1 &&
            audit_line_parse(ask->line.data, ask->line.size, &line, NULL) == 0 &&
            audit_line_matches(&line, &ask->query))
            give(ask, hit->seq, ask->line.data, ask->line.size);
    }
}

/* ---- line by line ---------------------------------------------------------------------------- */

/* Reads on from a place in the journal to its end. Lines that are no entries are passed over, as
 * the index does. `file`, `offset`: where to go on next time. */
static int scan(struct ask *ask, size_t *file, uint64_t *offset, struct cay_error *err)
{
    for (; *file < ask->store->n && !ask->stop; ++*file, *offset = 0) {
        struct audit_raw raw;
        int got = 0;
        autofd int fd = audit_store_file(ask->store, *file);
        autoreader struct audit_reader reader;
        audit_reader_init(&reader, fd, *offset);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return audit_store_unread(ask->store, *file, err);
        while (!ask->stop && (got = audit_reader_next(&reader, &raw)) == 1) {
            autoline struct audit_line line = {0};
            *offset = raw.end;
            if (audit_line_parse(raw.data, raw.size, &line, NULL) < 0 ||
                !audit_line_matches(&line, &ask->query))
                continue;
            if (ask->query.last)
                keep(ask, &(struct audit_hit){.seq = line.seq,
                                              .file = audit_store_first(ask->store, *file),
                                              .offset = raw.offset,
                                              .size = (uint32_t)raw.size});
            else
                give(ask, line.seq, raw.data, raw.size);
        }
        if (got < 0)
            return cay_fail_errno(err, errno, "cannot read the audit log");
        if (*file + 1 == ask->store->n)
            break;
    }
    return ask->failed ? -1 : 0;
}

/* ---- with the index -------------------------------------------------------------------------- */

/* What the index knows of the answer. False: of no use; otherwise the store is open, and `file` and
 * `offset` are where to go on. */
static bool ask_index(struct ask *ask, struct audit_index *index, size_t *file, uint64_t *offset,
                      enum audit_index_status *status)
{
    struct audit_pos pos;
    *status = audit_index_update(index, ask->store->path);
    if (*status == INDEX_BAD)
        return false;
    *status = audit_index_begin(index, &pos);
    if (*status != INDEX_OK)
        return false;
    char path[sizeof(ask->store->path)];
    memcpy(path, ask->store->path, sizeof(path));
    audit_store_close(ask->store);
    *status = INDEX_UNUSABLE;
    if (audit_store_open(path, ask->store, ask->err) < 0) {
        ask->failed = ask->stop = true;
        return false;
    }
    if (!audit_index_locate(ask->store, &pos, file, offset))
        return false;
    uint64_t after = ask->query.after_seq;
    const struct audit_query asked = ask->query;
    *status = audit_index_select(index, &asked, asked.last ? keep_hit : give_hit, ask);
    if (ask->stale)
        *status = INDEX_BAD;
    if (*status != INDEX_OK)
        return false;
    turn_ring(ask);
    /* Entries that the index has must not come again from the journal, should it have moved. */
    if (!asked.last && !ask->stop)
        ask->query.after_seq = CAY_MAX(after, pos.seq);
    return true;
}

static int ask_all(struct ask *ask, struct cay_error *err)
{
    size_t file = 0;
    uint64_t offset = 0;
    bool answered = false;
    for (int try = 0; try < 2 && !answered && !ask->query.no_index && !ask->stop; try++) {
        autoindex struct audit_index index;
        enum audit_index_status status = audit_index_open(ask->store, &index);
        if (status == INDEX_OK)
            answered = ask_index(ask, &index, &file, &offset, &status);
        if (!answered) {
            file = offset = ask->count = 0;
            ask->stale = false;
        }
        if (status == INDEX_UNUSABLE ||
            (status == INDEX_BAD && !audit_index_reset(ask->store, &index)))
            break;
    }
    if (!ask->stop && scan(ask, &file, &offset, err) < 0)
        return -1;
    if (ask->failed)
        return -1;
    if (ask->query.last)
        give_ring(ask);
    return 0;
}

int audit_query(const char *dir, const struct audit_query *query, audit_each *each, void *data,
                struct cay_error *err)
{
    autostore struct audit_store store;
    if (audit_store_open(dir, &store, err) < 0)
        return -1;
    struct ask ask __attribute__((cleanup(ask_done))) = {.query = *query,
                                                         .store = &store,
                                                         .each = each,
                                                         .data = data,
                                                         .err = err,
                                                         .fd = -1,
                                                         .line = CAY_BUF(AUDIT_MAX_LINE + 1)};
    if (!query->limit)
        ask.query.last = false;
    else if (query->last)
        ask.query.limit = CAY_MIN(query->limit, (uint64_t)AUDIT_MAX_LAST);
    return ask_all(&ask, err);
}
