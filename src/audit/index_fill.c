/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing the index up to date: reads the journal on from where the index ends, in transactions of
 * a bounded number of lines. Where the journal is not the one that was indexed, it starts anew.
 */
#include "audit/index_db.h"

#include "base/util.h"

#include <errno.h>
#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>

/* Lines in one transaction: others get their turn in between. */
#define BATCH 10000

static int bind_all(sqlite3_stmt *s, const int64_t *values, int n)
{
    int rc = SQLITE_OK;
    for (int i = 0; i < n && rc == SQLITE_OK; i++)
        rc = sqlite3_bind_int64(s, i + 1, values[i]);
    return rc;
}

static int step_once(sqlite3_stmt *s)
{
    int rc = sqlite3_step(s);
    sqlite3_reset(s);
    return rc;
}

static enum audit_index_status save_pos(struct audit_index *index, const struct audit_pos *pos)
{
    sqlite3_stmt *s = NULL;
    const int64_t values[] = {(int64_t)pos->seq, (int64_t)pos->file, (int64_t)pos->end,
                              (int64_t)pos->last, (int64_t)pos->crc};
    int rc = sqlite3_prepare_v2(index->db,
                                "UPDATE pos SET seq = ?1, file = ?2, end = ?3, last = ?4, crc = ?5",
                                -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = bind_all(s, values, (int)CAY_COUNT(values));
    if (rc == SQLITE_OK)
        rc = step_once(s);
    sqlite3_finalize(s);
    return audit_index_status_of(rc);
}

struct filler {
    struct audit_index *index;
    sqlite3_stmt *entry, *label;
};

static int add_labels(struct filler *f, const struct audit_line *line)
{
    const char *key;
    json_t *value;
    int rc = SQLITE_DONE;
    json_object_foreach(line->labels, key, value)
    {
        const char *text = json_string_value(value);
        if (!text)
            continue;
        if (audit_index_bind(f->label, 1, key) != SQLITE_OK ||
            audit_index_bind(f->label, 2, text) != SQLITE_OK ||
            sqlite3_bind_int64(f->label, 3, (int64_t)line->seq) != SQLITE_OK)
            return SQLITE_NOMEM;
        rc = step_once(f->label);
        if (rc != SQLITE_DONE)
            break;
    }
    return rc;
}

/* A line that is no entry (somebody changed it) is left out. */
static int add_line(struct filler *f, uint64_t file, const struct audit_raw *raw,
                    struct audit_pos *pos)
{
    autoline struct audit_line line = {0};
    if (audit_line_parse(raw->data, raw->size, &line, NULL) < 0)
        return SQLITE_DONE;
    const int64_t numbers[] = {(int64_t)line.seq,     (int64_t)file,
                               (int64_t)raw->offset,  (int64_t)raw->size,
                               (int64_t)line.time_ms, audit_line_event(&line) != NULL};
    if (bind_all(f->entry, numbers, (int)CAY_COUNT(numbers)) != SQLITE_OK ||
        audit_index_bind(f->entry, 7, line.action) != SQLITE_OK ||
        audit_index_bind(f->entry, 8, line.sandbox) != SQLITE_OK ||
        audit_index_bind(f->entry, 9, line.tenant) != SQLITE_OK)
        return SQLITE_NOMEM;
    int rc = step_once(f->entry);
    if (rc == SQLITE_DONE)
        rc = add_labels(f, &line);
    pos->seq = CAY_MAX(pos->seq, line.seq);
    return rc;
}

/* Reads on from `pos`, BATCH lines at most, through as many files as that takes. A current file
 * that was empty when the store was opened has no number to find its lines by, so lines that came
 * into it since are left to the next update. */
static enum audit_index_status fill(struct filler *f, const struct audit_store *store, size_t file,
                                    struct audit_pos *pos, size_t *count)
{
    uint64_t from = pos->end;
    for (; file < store->n && *count < BATCH; file++, from = 0) {
        struct audit_raw raw;
        uint64_t number = audit_store_first(store, file);
        if (number == 0)
            break;
        autofd int fd = audit_store_file(store, file);
        autoreader struct audit_reader reader;
        audit_reader_init(&reader, fd, from);
        int got = fd < 0 && errno == ENOENT ? 0 : fd < 0 ? -1 : 1;
        while (got == 1 && *count < BATCH && (got = audit_reader_next(&reader, &raw)) == 1) {
            int rc = add_line(f, number, &raw, pos);
            if (rc != SQLITE_DONE)
                return audit_index_status_of(rc);
            pos->file = number;
            pos->end = raw.end;
            pos->last = raw.offset;
            pos->crc = cay_crc32(raw.data, raw.size);
            ++*count;
        }
        if (got < 0)
            return INDEX_UNUSABLE;
    }
    return INDEX_OK;
}

static enum audit_index_status fill_prepared(struct audit_index *index,
                                             const struct audit_store *store, size_t file,
                                             struct audit_pos *pos, size_t *count)
{
    struct filler f = {.index = index};
    enum audit_index_status status = audit_index_status_of(sqlite3_prepare_v2(
        index->db, "INSERT OR IGNORE INTO entry VALUES(?,?,?,?,?,?,?,?,?)", -1, &f.entry, NULL));
    if (status == INDEX_OK)
        status = audit_index_status_of(sqlite3_prepare_v2(
            index->db, "INSERT OR IGNORE INTO label VALUES(?,?,?)", -1, &f.label, NULL));
    if (status == INDEX_OK)
        status = fill(&f, store, file, pos, count);
    sqlite3_finalize(f.entry);
    sqlite3_finalize(f.label);
    return status;
}

/* Entries of files that are gone. */
static enum audit_index_status forget(struct audit_index *index, uint64_t below)
{
    char sql[160];
    snprintf(sql, sizeof(sql),
             "DELETE FROM entry WHERE seq < %llu; DELETE FROM label WHERE seq < %llu",
             (unsigned long long)below, (unsigned long long)below);
    return audit_index_run(index, sql);
}

static bool has_older(struct audit_index *index, uint64_t than)
{
    sqlite3_stmt *s = NULL;
    bool older = false;
    if (sqlite3_prepare_v2(index->db, "SELECT min(seq) FROM entry", -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW && sqlite3_column_type(s, 0) == SQLITE_INTEGER)
        older = (uint64_t)sqlite3_column_int64(s, 0) < than;
    sqlite3_finalize(s);
    return older;
}

/* Nothing to read, nothing to forget: no lock is taken for that. */
static bool is_fresh(struct audit_index *index, const char *path)
{
    struct audit_pos pos;
    struct audit_raw raw;
    size_t file;
    if (audit_index_pos(index, &pos) != INDEX_OK)
        return false;
    autostore struct audit_store store;
    if (audit_store_open(path, &store, NULL) < 0 ||
        audit_index_where(&store, &pos, &file) != INDEX_SAME || file + 1 < store.n ||
        has_older(index, audit_store_first(&store, 0)))
        return false;
    if (store.n == 0)
        return true;
    autofd int fd = audit_store_file(&store, file);
    autoreader struct audit_reader reader;
    audit_reader_init(&reader, fd, pos.end);
    return fd >= 0 && audit_reader_next(&reader, &raw) == 0;
}

/* The files are listed inside of the transaction: nobody can have indexed what we do not see. */
static enum audit_index_status batch(struct audit_index *index, const char *path, size_t *count)
{
    struct audit_pos pos;
    size_t file;
    enum audit_index_status status = audit_index_pos(index, &pos);
    if (status != INDEX_OK)
        return status;
    autostore struct audit_store store;
    if (audit_store_open(path, &store, NULL) < 0)
        return INDEX_UNUSABLE;
    switch (audit_index_where(&store, &pos, &file)) {
    case INDEX_SAME:
        if (store.n && has_older(index, audit_store_first(&store, 0)))
            status = forget(index, audit_store_first(&store, 0));
        break;
    case INDEX_PRUNED:
    case INDEX_OTHER:
        status = audit_index_run(index, "DELETE FROM entry; DELETE FROM label");
        pos = (struct audit_pos){0};
        break;
    }
    if (status == INDEX_OK)
        status = fill_prepared(index, &store, file, &pos, count);
    return status == INDEX_OK ? save_pos(index, &pos) : status;
}

enum audit_index_status audit_index_update(struct audit_index *index, const char *path)
{
    if (sqlite3_db_readonly(index->db, "main") == 1 || is_fresh(index, path))
        return INDEX_OK;
    for (size_t count = BATCH; count >= BATCH;) {
        count = 0;
        enum audit_index_status status = audit_index_run(index, "BEGIN IMMEDIATE");
        if (status != INDEX_OK)
            return status;
        status = batch(index, path, &count);
        if (status == INDEX_OK)
            status = audit_index_run(index, "COMMIT");
        if (status != INDEX_OK) {
            audit_index_run(index, "ROLLBACK");
            return status;
        }
    }
    return INDEX_OK;
}
