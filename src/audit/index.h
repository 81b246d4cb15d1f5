/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.sqlite: where in the journal the entries of a sandbox, a tenant, a label, a time are.
 * Derived and never believed: a line that it points to is read and matched again. Used by query.c
 * alone.
 *
 *   - Brought up to date by whoever asks, in transactions of their own; two at once take turns.
 *   - index.lock is held shared by all who have the index open, and exclusively by who removes a
 *     damaged one, so that nobody is left with half of the old files.
 */
#ifndef CAY_AUDIT_INDEX_H
#define CAY_AUDIT_INDEX_H

#include "audit/store.h"

struct sqlite3;

struct audit_index {
    struct sqlite3 *db;
    int lock; /* -1: the directory cannot be written, and neither can the index */
};

enum audit_index_status {
    INDEX_OK = 0,
    INDEX_BAD,      /* damaged, or of another version or another journal: to be made anew */
    INDEX_UNUSABLE, /* not now: busy, no space, no rights */
};

/* Up to where the journal is indexed. */
struct audit_pos {
    uint64_t seq;       /* highest indexed */
    uint64_t file, end; /* number of the file, offset of the first line that is not indexed */
    uint64_t last;      /* offset of the line before that; and its checksum, to know it again: */
    uint32_t crc;
};

/* A line of the journal. */
struct audit_hit {
    uint64_t seq, file, offset;
    uint32_t size;
};

enum audit_index_status audit_index_open(const struct audit_store *store, struct audit_index *out);
void audit_index_close(struct audit_index *index);
#define autoindex __attribute__((cleanup(audit_index_close)))
/* Removes the files of the index; true if they are gone. The index is closed afterwards. */
bool audit_index_reset(const struct audit_store *store, struct audit_index *index);

/* Adds what the journal has and the index has not. UNUSABLE leaves it as it was, and of use. */
enum audit_index_status audit_index_update(struct audit_index *index, const char *path);

/*
 * Starts to read: up to where does the index know the journal? A store that is opened after this,
 * and not before, has all files that the index speaks of, unless they were pruned since.
 */
enum audit_index_status audit_index_begin(struct audit_index *index, struct audit_pos *pos);
/* The file of `store` in which to go on behind what is indexed; false if that is nowhere. */
bool audit_index_locate(const struct audit_store *store, const struct audit_pos *pos, size_t *file,
                        uint64_t *offset);

/* Returns non-zero to stop. */
typedef int audit_index_each(const struct audit_hit *hit, void *data);

/* Hits in order of seq, or for query->last backwards, at most query->limit. */
enum audit_index_status audit_index_select(struct audit_index *index,
                                           const struct audit_query *query, audit_index_each *each,
                                           void *data);

#endif
