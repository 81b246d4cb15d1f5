/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sandboxes that are there as the audit log has it: what was told to be created and not to be
 * removed. A daemon that was killed between an act and its entry leaves a difference between the
 * log and the directories; roster.c finds it by this, and tells the rest.
 *
 * A file `known` beside the log says what was so at some entry, so that only what came after has to
 * be read. It may be old or missing, but it is never wrong: it goes and comes with the log.
 */
#ifndef CAY_DAEMON_KNOWN_H
#define CAY_DAEMON_KNOWN_H

#include "base/buf.h"
#include "daemon/daemon.h"

struct known;

struct known_id {
    struct known_id *next;
    bool ended; /* and that was told, too */
    bool found; /* the caller's mark */
    char id[CAY_MAX_ID];
};

struct known *known_new(void);
void known_free(struct known *known);
/* NULL without memory. */
struct known_id *known_add(struct known *known, const char *id, bool ended);
struct known_id *known_find(const struct known *known, const char *id);
void known_each(struct known *known, void (*each)(struct known_id *id, void *data), void *data);

/* Reads the log in `dir`. `whole`: its beginning is there, so that what it does not know is news.
 */
int known_load(struct known *known, const char *dir, uint64_t last_seq, bool *whole,
               struct cay_error *err);
/* Notes what is so at the entry `seq`. */
int known_save(struct known *known, const char *dir, uint64_t seq);

#endif
