/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who did what: the daemon's end of the audit log, and the lifecycle events that clients follow,
 * which are the same entries seen from another side.
 */
#ifndef CAY_DAEMON_JOURNAL_H
#define CAY_DAEMON_JOURNAL_H

#include "audit/audit.h"
#include "daemon/request.h"

struct journal;

/* Without an audit log (settings) everything here does nothing and succeeds. */
int journal_open(struct daemon *d, struct journal **out, struct cay_error *err);
void journal_close(struct journal *journal);

/* Whether entries can be written: what cannot be written down is not done. Tries, if the last one
 * failed. */
int journal_ready(struct daemon *d, bool removes, struct cay_error *err);
/* An action of a client on r->id. detail may be NULL; failed: NULL if it was done. -1 if it could
 * not be written; the error may be NULL. */
int journal_note(struct request *r, enum audit_action action, const struct audit_detail *detail,
                 const struct cay_error *failed);
int journal_must(struct request *r, enum audit_action action, const struct audit_detail *detail,
                 struct cay_error *err);
/* The same for an action that outlives its request: take down who it was while it is there. */
struct journal_actor {
    struct daemon *d;
    struct identity who;
    char id[CAY_MAX_ID], peer[96], rule[96];
};
void journal_actor(struct journal_actor *out, const struct request *r);
int journal_note_for(const struct journal_actor *actor, enum audit_action action,
                     const struct audit_detail *detail, const struct cay_error *failed);
int journal_must_for(const struct journal_actor *actor, enum audit_action action,
                     const struct audit_detail *detail, struct cay_error *err);
/* What the engine or the daemon did by itself. id and labels may be NULL. */
int journal_engine(struct daemon *d, enum audit_action action, const char *id,
                   const struct audit_detail *detail, char *const *labels);

/* Followers of events: called for every finished line. */
struct journal_listener {
    struct journal_listener *next, **link;
    void (*line)(struct journal_listener *listener, uint64_t seq, const char *line, size_t size);
};
void journal_listen(struct journal *journal, struct journal_listener *listener);
void journal_unlisten(struct journal_listener *listener);
/* Where it is; NULL: there is none. */
const char *journal_dir(const struct journal *journal);
/* The last entry's number. */
uint64_t journal_last(const struct journal *journal);

#endif
