/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sandboxes that are there, as far as this daemon has noticed: what tenants have (for their
 * quotas), what ends by itself (for events), and keepers that died (to be swept). It is a copy of
 * what the directories say, kept up to date by inotify and made anew at every start; nothing that
 * is answered about a sandbox comes from here.
 */
#ifndef CAY_DAEMON_ROSTER_H
#define CAY_DAEMON_ROSTER_H

#include "daemon/daemon.h"
#include "policy/operator.h"

struct tenant {
    struct tenant *next;
    char name[CAY_MAX_TENANT]; /* "": the operator's */
    uint64_t requests;         /* in flight */
    unsigned large_bodies;     /* of these, with a large body */
    uint64_t sandboxes, memory, cpus, disk;
    uint64_t ended; /* records */
    uint64_t execs; /* commands that requests wait for or that were started and still run */
    /* creates of the last minute: a bucket that leaks */
    uint64_t creates_us; /* when the bucket was last looked at */
    double creates;
};

int roster_open(struct daemon *d, struct roster **out, struct cay_error *err);
void roster_close(struct roster *roster);
/* Notes for the next daemon what was told up to the entry `seq` of the log: see known.h. */
void roster_save(struct roster *roster, uint64_t seq);
/* Made on first use; NULL without memory. Lives as long as the roster. */
struct tenant *roster_tenant(struct roster *roster, const char *name);
/* The tenant in an id, copied into `out`; "" if it has none. */
void roster_tenant_of(const char *id, char out[static CAY_MAX_TENANT]);

/*
 * Room for one more sandbox of this spec, held from now on: before it is made. The rule that says
 * no is in `why`. If `held`, then one of the other two.
 */
int roster_reserve(struct daemon *d, const char *tenant, const char *id,
                   const struct cay_spec *spec, bool *held, struct operator_refusal *why,
                   struct cay_error *err);
/* Whether the tenant keeps its quotas with what it has now: a create of an id that was there, and
 * counted, held no room of its own. */
int roster_fits(struct daemon *d, const char *tenant, struct operator_refusal *why,
                struct cay_error *err);
/* It is there; `spec` is what it was made from, NULL: it was there before. */
void roster_confirm(struct roster *roster, const char *id, const struct cay_spec *spec);
/* A create came to its end: whether that is an event, as it was not told yet. What has to be told
 * before it is told here. Before roster_confirm; and if it was written down, roster_told. */
bool roster_news(struct roster *roster, const char *id, bool existed);
void roster_told(struct roster *roster, const char *id);
/* It was not made after all. */
void roster_cancel(struct roster *roster, const char *id);

/* It does not answer: a worker looks at it now, and sweeps it if its keeper is dead. */
void roster_suspect(struct roster *roster, const char *id);
/* A client removes it, and notes that itself. */
void roster_leaving(struct roster *roster, const char *id, bool leaving);
/* Its removal by a client is about to be noted: whether that is an event. */
bool roster_parting(struct roster *roster, const char *id);
/* It was removed, record and all: nobody need wait until that is noticed. */
void roster_removed(struct roster *roster, const char *id);
/* Labels of one that lives; NULL: none known. Borrowed until the next turn of the loop. */
char *const *roster_labels(struct roster *roster, const char *id);
size_t roster_count(const struct roster *roster);
/* Those that live. */
void roster_each(const struct roster *roster,
                 void (*each)(const char *id, struct tenant *tenant, void *data), void *data);
/* For metrics. */
void roster_tenants(const struct roster *roster,
                    void (*each)(const struct tenant *tenant, void *data), void *data);

#endif
