/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the index, and asking it. Bringing it up to date: index_fill.c. */
#include "audit/index_db.h"

#include "base/util.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#define INDEX_FILE "index.sqlite"
#define LOCK_FILE "index.lock"
#define BUSY_MS 2000

/* user_version: an index with another one is made anew. 2: version 1 could hold lines without the
 * number of their file, which no query found again. */
#define VERSION 2
static const char schema[] =
    "CREATE TABLE entry(seq INTEGER PRIMARY KEY, file INTEGER NOT NULL, off INTEGER NOT NULL,"
    " len INTEGER NOT NULL, time_ms INTEGER NOT NULL, life INTEGER NOT NULL, action TEXT NOT NULL,"
    " sandbox TEXT, tenant TEXT);"
    "CREATE INDEX entry_sandbox ON entry(sandbox) WHERE sandbox IS NOT NULL;"
    "CREATE INDEX entry_tenant ON entry(tenant);"
    "CREATE INDEX entry_time ON entry(time_ms);"
    "CREATE INDEX entry_action ON entry(action);"
    "CREATE INDEX entry_life ON entry(seq) WHERE life = 1;"
    "CREATE TABLE label(key TEXT NOT NULL, value TEXT NOT NULL, seq INTEGER NOT NULL,"
    " PRIMARY KEY(key, value, seq)) WITHOUT ROWID;"
    "CREATE TABLE pos(id INTEGER PRIMARY KEY CHECK(id = 1), seq INTEGER NOT NULL,"
    " file INTEGER NOT NULL, end INTEGER NOT NULL, last INTEGER NOT NULL, crc INTEGER NOT NULL);"
    "INSERT INTO pos VALUES(1, 0, 0, 0, 0, 0);"
    "PRAGMA user_version = 2;";
_Static_assert(VERSION == 2, "the schema sets another version");

enum audit_index_status audit_index_status_of(int rc)
{
    static const int unusable[] = {SQLITE_BUSY,     SQLITE_LOCKED,   SQLITE_NOMEM, SQLITE_READONLY,
                                   SQLITE_IOERR,    SQLITE_FULL,     SQLITE_PERM,  SQLITE_AUTH,
                                   SQLITE_CANTOPEN, SQLITE_INTERRUPT};
    if (rc == SQLITE_OK || rc == SQLITE_ROW || rc == SQLITE_DONE)
        return INDEX_OK;
    for (size_t i = 0; i < CAY_COUNT(unusable); i++)
        if ((rc & 0xff) == unusable[i])
            return INDEX_UNUSABLE;
    return INDEX_BAD;
}

enum audit_index_status audit_index_run(struct audit_index *index, const char *sql)
{
    return audit_index_status_of(sqlite3_exec(index->db, sql, NULL, NULL, NULL));
}

/* ---- opening --------------------------------------------------------------------------------- */

void audit_index_close(struct audit_index *index)
{
    sqlite3_close_v2(index->db);
    index->db = NULL;
    close_fd(&index->lock);
}

static enum audit_index_status read_version(struct audit_index *index, int *out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(index->db, "PRAGMA user_version", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return rc == SQLITE_ROW ? INDEX_OK : rc == SQLITE_DONE ? INDEX_BAD : audit_index_status_of(rc);
}

/* Two may come to an empty file at once: the second finds the schema made. */
static enum audit_index_status make_schema(struct audit_index *index)
{
    int version = 0;
    enum audit_index_status status = audit_index_run(index, "BEGIN IMMEDIATE");
    if (status != INDEX_OK)
        return status;
    status = read_version(index, &version);
    if (status == INDEX_OK && version == 0)
        status = audit_index_run(index, schema);
    if (status == INDEX_OK)
        status = audit_index_run(index, "COMMIT");
    if (status != INDEX_OK)
        audit_index_run(index, "ROLLBACK");
    return status;
}

/* SQLite does not wait when it changes the mode of its journal. */
static enum audit_index_status use_wal(struct audit_index *index)
{
    enum audit_index_status status;
    for (int i = 0; i < BUSY_MS / 20; i++) {
        status = audit_index_run(index, "PRAGMA journal_mode = WAL");
        if (status != INDEX_UNUSABLE || (sqlite3_errcode(index->db) & 0xff) != SQLITE_BUSY)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return status;
}

static enum audit_index_status open_db(struct audit_index *index, const char *name, int flags)
{
    int version = 0;
    int rc = sqlite3_open_v2(name, &index->db,
                             flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
    enum audit_index_status status = audit_index_status_of(rc);
    if (status != INDEX_OK)
        return status;
    sqlite3_busy_timeout(index->db, BUSY_MS);
    bool writable = flags & SQLITE_OPEN_READWRITE;
    if (writable)
        status = use_wal(index);
    if (status == INDEX_OK)
        status = audit_index_run(index, "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -2048;"
                                        "PRAGMA trusted_schema = OFF");
    if (status == INDEX_OK)
        status = read_version(index, &version);
    if (status == INDEX_OK && version == 0)
        return writable ? make_schema(index) : INDEX_UNUSABLE;
    return status == INDEX_OK && version != VERSION ? INDEX_BAD : status;
}

/* Only where nobody can write: then nobody does, and SQLite needs no lock files. */
static enum audit_index_status open_read_only(const struct audit_store *store,
                                              struct audit_index *index)
{
    char name[sizeof(store->path) + 64];
    bool frozen = faccessat(store->dir, ".", W_OK, 0) < 0 && errno == EROFS;
    for (const char *c = store->path; frozen && *c; c++)
        frozen = !strchr("?#%", *c);
    snprintf(name, sizeof(name), "%s%s/" INDEX_FILE "%s", frozen ? "file:" : "", store->path,
             frozen ? "?immutable=1" : "");
    sqlite3_close_v2(index->db);
    index->db = NULL;
    autofd int fd = audit_store_at(store->dir, INDEX_FILE);
    if (fd < 0)
        return INDEX_UNUSABLE;
    return open_db(index, name, SQLITE_OPEN_READONLY | (frozen ? SQLITE_OPEN_URI : 0));
}

/* Made here, for its mode; SQLite gives its other files the same one. Of what is not a file it must
 * not hear: it waits for pipes, and follows links for ever. */
static enum audit_index_status make_file(const struct audit_store *store)
{
    static const char *const others[] = {INDEX_FILE "-journal", INDEX_FILE "-wal",
                                         INDEX_FILE "-shm"};
    struct stat st;
    autofd int fd = openat(store->dir, INDEX_FILE,
                           O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == ELOOP || errno == ENXIO ? INDEX_BAD : INDEX_UNUSABLE;
    if (fstat(fd, &st) < 0)
        return INDEX_UNUSABLE;
    bool plain = S_ISREG(st.st_mode);
    for (size_t i = 0; i < CAY_COUNT(others) && plain; i++)
        plain = fstatat(store->dir, others[i], &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISREG(st.st_mode);
    return plain ? INDEX_OK : INDEX_BAD;
}

enum audit_index_status audit_index_open(const struct audit_store *store, struct audit_index *out)
{
    char name[sizeof(store->path) + 64];
    *out = (struct audit_index){.lock = -1};
    snprintf(name, sizeof(name), "%s/" INDEX_FILE, store->path);
    out->lock = openat(store->dir, LOCK_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out->lock >= 0 && flock(out->lock, LOCK_SH) < 0)
        close_fd(&out->lock);
    enum audit_index_status status = INDEX_UNUSABLE;
    if (out->lock >= 0)
        status = make_file(store);
    if (status == INDEX_OK)
        status = open_db(out, name, SQLITE_OPEN_READWRITE);
    if (status == INDEX_UNUSABLE) {
        status = open_read_only(store, out);
        if (out->lock < 0 && status == INDEX_BAD)
            status = INDEX_UNUSABLE;
    }
    return status;
}

bool audit_index_reset(const struct audit_store *store, struct audit_index *index)
{
    static const char *const files[] = {INDEX_FILE, INDEX_FILE "-wal", INDEX_FILE "-shm",
                                        INDEX_FILE "-journal"};
    sqlite3_close_v2(index->db);
    index->db = NULL;
    bool mine = false, gone = true;
    for (int i = 0; i < 50 && !mine && index->lock >= 0; i++) {
        mine = flock(index->lock, LOCK_EX | LOCK_NB) == 0;
        if (!mine)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    for (size_t i = 0; i < CAY_COUNT(files) && mine; i++)
        gone &= cay_remove_tree_at(store->dir, files[i]) == 0;
    close_fd(&index->lock);
    return mine && gone;
}

/* ---- reading --------------------------------------------------------------------------------- */

enum audit_index_status audit_index_pos(struct audit_index *index, struct audit_pos *out)
{
    sqlite3_stmt *s = NULL;
    int rc =
        sqlite3_prepare_v2(index->db, "SELECT seq, file, end, last, crc FROM pos", -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        *out = (struct audit_pos){.seq = (uint64_t)sqlite3_column_int64(s, 0),
                                  .file = (uint64_t)sqlite3_column_int64(s, 1),
                                  .end = (uint64_t)sqlite3_column_int64(s, 2),
                                  .last = (uint64_t)sqlite3_column_int64(s, 3),
                                  .crc = (uint32_t)sqlite3_column_int64(s, 4)};
    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? INDEX_OK : rc == SQLITE_DONE ? INDEX_BAD : audit_index_status_of(rc);
}

int audit_index_bind(sqlite3_stmt *s, int at, const char *text)
{
    return text ? sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC) : sqlite3_bind_null(s, at);
}

enum audit_where audit_index_where(const struct audit_store *store, const struct audit_pos *pos,
                                   size_t *file)
{
    struct audit_raw raw;
    *file = 0;
    if (pos->file == 0)
        return INDEX_SAME;
    ssize_t i = audit_store_find(store, pos->file);
    if (i < 0)
        return store->n && pos->file < audit_store_first(store, 0) ? INDEX_PRUNED : INDEX_OTHER;
    autofd int fd = audit_store_file(store, (size_t)i);
    autoreader struct audit_reader reader;
    audit_reader_init(&reader, fd, pos->last);
    if (fd < 0 || audit_reader_next(&reader, &raw) != 1 || raw.end != pos->end ||
        cay_crc32(raw.data, raw.size) != pos->crc)
        return INDEX_OTHER;
    *file = (size_t)i;
    return INDEX_SAME;
}

enum audit_index_status audit_index_begin(struct audit_index *index, struct audit_pos *pos)
{
    enum audit_index_status status = audit_index_run(index, "BEGIN");
    return status == INDEX_OK ? audit_index_pos(index, pos) : status;
}

bool audit_index_locate(const struct audit_store *store, const struct audit_pos *pos, size_t *file,
                        uint64_t *offset)
{
    enum audit_where where = audit_index_where(store, pos, file);
    *offset = where == INDEX_SAME ? pos->end : 0;
    return where != INDEX_OTHER;
}

/* What a query asks, as conditions. Where one names few entries, the planner is kept from starting
 * with another ('+' hides a column from it). */
struct condition {
    bool wanted;
    const char *sql;
    const char *text; /* bound if not NULL; else: */
    uint64_t number;
};

#define CONDITIONS 9

static size_t conditions(const struct audit_query *q, char key[], struct condition out[CONDITIONS])
{
    const char *value = q->label ? strchr(q->label, '=') : NULL;
    bool few = q->sandbox || q->label;
    const struct condition all[CONDITIONS] = {
        {q->sandbox != NULL, "sandbox = ?", q->sandbox, 0},
        {q->label && value, "seq IN (SELECT seq FROM label WHERE key = ? AND value = ?)", key, 0},
        {q->label && !value, "seq IN (SELECT seq FROM label WHERE key = ?)", key, 0},
        {q->tenant && *q->tenant, few ? "+tenant = ?" : "tenant = ?", q->tenant, 0},
        {q->tenant && !*q->tenant, few ? "+tenant IS NULL" : "tenant IS NULL", NULL, 0},
        {q->action != NULL, few ? "+action = ?" : "action = ?", q->action, 0},
        {q->lifecycle_only, "life = 1", NULL, 0},
        {q->since_ms != 0, few ? "+time_ms >= ?" : "time_ms >= ?", NULL, q->since_ms},
        {q->until_ms != 0, few ? "+time_ms <= ?" : "time_ms <= ?", NULL, q->until_ms},
    };
    size_t n = 0;
    for (size_t i = 0; i < CONDITIONS; i++)
        if (all[i].wanted)
            out[n++] = all[i];
    return n;
}

static int bind_conditions(sqlite3_stmt *s, const struct condition *list, size_t n,
                           const struct audit_query *q)
{
    int rc = sqlite3_bind_int64(s, 1, (int64_t)CAY_MIN(q->after_seq, (uint64_t)INT64_MAX));
    int at = 2;
    for (size_t i = 0; i < n && rc == SQLITE_OK; i++) {
        if (!strchr(list[i].sql, '?'))
            continue;
        if (list[i].text)
            rc = audit_index_bind(s, at++, list[i].text);
        else
            rc = sqlite3_bind_int64(s, at++, (int64_t)CAY_MIN(list[i].number, (uint64_t)INT64_MAX));
        if (rc == SQLITE_OK && strstr(list[i].sql, "value = ?"))
            rc = audit_index_bind(s, at++, strchr(q->label, '=') + 1);
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s, at, q->limit && q->limit < INT64_MAX ? (int64_t)q->limit : -1);
    return rc;
}

enum audit_index_status audit_index_select(struct audit_index *index,
                                           const struct audit_query *query, audit_index_each *each,
                                           void *data)
{
    struct condition list[CONDITIONS];
    autofree char *key = query->label ? strndup(query->label, strcspn(query->label, "=")) : NULL;
    autobuf struct cay_buf sql = CAY_BUF(4096);
    sqlite3_stmt *s = NULL;
    if (query->label && !key)
        return INDEX_UNUSABLE;
    size_t n = conditions(query, key, list);
    buf_str(&sql, "SELECT seq, file, off, len FROM entry WHERE seq > ?");
    for (size_t i = 0; i < n; i++)
        buf_fmt(&sql, " AND %s", list[i].sql);
    buf_fmt(&sql, " ORDER BY seq%s LIMIT ?", query->last ? " DESC" : "");
    if (!buf_cstr(&sql))
        return INDEX_UNUSABLE;
    int rc = sqlite3_prepare_v2(index->db, sql.data, -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = bind_conditions(s, list, n, query);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(s);
        if (rc != SQLITE_ROW)
            break;
        const struct audit_hit hit = {.seq = (uint64_t)sqlite3_column_int64(s, 0),
                                      .file = (uint64_t)sqlite3_column_int64(s, 1),
                                      .offset = (uint64_t)sqlite3_column_int64(s, 2),
                                      .size = (uint32_t)sqlite3_column_int64(s, 3)};
        if (each(&hit, data) != 0)
            break;
    }
    sqlite3_finalize(s);
    return audit_index_status_of(rc);
}
