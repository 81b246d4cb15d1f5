/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of the journal: made, sealed, checked, parsed, matched. No I/O. Used by all of
 * src/audit, and by cay-audit to show lines.
 *
 * A line ends with ,"prev":"<64 hex>","hash":"<64 hex>"} where hash is the SHA-256 of all bytes
 * before ,"hash": and prev is the hash of the line before it.
 */
#ifndef CAY_AUDIT_LINE_H
#define CAY_AUDIT_LINE_H

#include "audit/audit.h"

/* The prev of the very first line. */
#define AUDIT_NO_HASH "0000000000000000000000000000000000000000000000000000000000000000"

/* What the journal adds to an entry. */
struct audit_stamp {
    uint64_t seq, wall_us, mono_us;
    const char *boot, *prev;
};

/* Puts the whole line into `out`, without newline, and its hash into `hash`. */
int audit_line_make(struct cay_buf *out, const struct audit_entry *entry,
                    const struct audit_stamp *stamp, char hash[AUDIT_HASH]);
/* True if the line has the right end and its hash is that of its bytes. */
bool audit_line_sealed(const char *line, size_t size, char prev[AUDIT_HASH], char hash[AUDIT_HASH]);

struct json_t;

/* Everything is borrowed from the root. */
struct audit_line {
    struct json_t *root, *labels, *detail;
    uint64_t seq, time_ms;
    const char *time, *who, *tenant, *action, *sandbox, *result; /* tenant, sandbox: may be NULL */
};

/* The members that readers use must be there and of the right type; others are ignored. */
int audit_line_parse(const char *line, size_t size, struct audit_line *out, struct cay_error *err);
void audit_line_done(struct audit_line *line);
#define autoline __attribute__((cleanup(audit_line_done)))

/* A string of detail, or NULL. */
const char *audit_line_text(const struct audit_line *line, const char *name);
/* A number of detail; false if there is none. */
bool audit_line_number(const struct audit_line *line, const char *name, uint64_t *out);
/* The type of lifecycle event that an action may be, or NULL. */
const char *audit_action_event(const char *name);
/* The type of lifecycle event that the line is, or NULL. */
const char *audit_line_event(const struct audit_line *line);
/* Everything that a query asks of a line, but for limits. */
bool audit_line_matches(const struct audit_line *line, const struct audit_query *query);

#endif
