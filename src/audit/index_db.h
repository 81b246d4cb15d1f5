/* SPDX-License-Identifier: Apache-2.0 */
/* What index.c and index_fill.c share. Nobody else includes this. */
#ifndef CAY_AUDIT_INDEX_DB_H
#define CAY_AUDIT_INDEX_DB_H

#include "audit/index.h"

struct sqlite3_stmt;

/* What a result code of SQLite means for us. */
enum audit_index_status audit_index_status_of(int rc);
enum audit_index_status audit_index_run(struct audit_index *index, const char *sql);
/* Text or NULL, borrowed. */
int audit_index_bind(struct sqlite3_stmt *statement, int at, const char *text);
enum audit_index_status audit_index_pos(struct audit_index *index, struct audit_pos *out);

/* Is what was indexed last still where it was? */
enum audit_where {
    INDEX_SAME,
    INDEX_PRUNED, /* its file is gone, and newer ones are there */
    INDEX_OTHER,  /* this is another journal */
};
/* `file`: where to go on, the first one unless SAME. */
enum audit_where audit_index_where(const struct audit_store *store, const struct audit_pos *pos,
                                   size_t *file);

#endif
