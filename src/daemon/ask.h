/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that is one question to the keeper: send a message, answer with what comes back. What
 * fails on the way is answered here, and written down if the action is one that is audited.
 */
#ifndef CAY_DAEMON_ASK_H
#define CAY_DAEMON_ASK_H

#include "audit/audit.h"
#include "daemon/call.h"
#include "daemon/journal.h"
#include "daemon/request.h"

/* A keeper answers in microseconds; one that takes this much longer is stopped or in trouble. */
#define ASK_PATIENCE_MS 10000

struct ask {
    struct call call;
    struct request *r; /* NULL: its client went away */
    /* Every message but ERROR. */
    void (*message)(struct ask *ask, const struct msg *msg);
    /* An error that is none for this question: true, and it was answered. NULL: none is. */
    bool (*forgive)(struct ask *ask, const struct cay_error *err);
    /* The outcome, once, with or without a client: NULL is a failure. May be NULL. */
    void (*settle)(struct ask *ask, const struct msg *msg);
    bool audited;               /* also if the client goes before the answer */
    struct journal_actor actor; /* who asked, for that case */
    enum audit_action action;
    struct audit_detail detail;
    bool answered;
    bool pieces;              /* a body that comes in pieces: it ends with its client */
    bool idle;                /* ... and none of them is on its way */
    uint64_t pid, numbers[2]; /* for `detail` to point to */
    struct cay_buf out;
};

/* `size` of an object that begins with a struct ask and becomes the request's op; NULL: there was
 * no memory, and that was answered. Borrowed: it goes with the request. */
void *ask_new(struct request *r, size_t size, size_t max_out,
              void (*message)(struct ask *ask, const struct msg *msg));
/* patience_ms 0: as long as it takes. */
void ask_go(struct ask *ask, const struct msg *request, uint64_t patience_ms);
/* The request without its question, which is freed: for a `forgive` that has another way. */
struct request *ask_release(struct ask *ask);
/* A `message` for questions whose answer is just "done": 204. */
void ask_done(struct ask *ask, const struct msg *msg);

#endif
