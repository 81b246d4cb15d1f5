/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ask.h"

#include "base/err.h"
#include "daemon/journal.h"

#include <stdlib.h>

static void ask_free(struct ask *ask)
{
    call_end(&ask->call);
    buf_done(&ask->out);
    free(ask);
}

/* Nobody waits for the answer any more. */
static void orphan_over(struct ask *ask, const struct cay_error *err)
{
    if (ask->audited)
        journal_note_for(&ask->actor, ask->action, &ask->detail, err);
    ask_free(ask);
}

/* What is asked for happens whether or not somebody waits for it, and is written down. */
static void on_drop(struct request *r)
{
    struct ask *ask = r->op;
    bool wanted = (ask->audited || ask->settle) && ask->call.d && !ask->answered;
    ask->r = NULL;
    if (!wanted) {
        ask_free(ask);
    } else if (ask->pieces) {
        struct cay_error err;
        cay_fail(&err, CAY_E_UNAVAILABLE, "the client went away in the middle");
        orphan_over(ask, &err);
    }
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct ask *ask = call->data;
    ask->answered = true;
    if (ask->settle)
        ask->settle(ask, NULL);
    if (!ask->r) {
        orphan_over(ask, err);
        return;
    }
    if (ask->forgive && ask->forgive(ask, err))
        return;
    if (ask->audited)
        journal_note(ask->r, ask->action, &ask->detail, err);
    reply_error(ask->r, err);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct ask *ask = call->data;
    struct cay_error err;
    if (msg->type == MSG_ERROR) {
        msg_to_error(msg, &err);
        on_lost(call, &err);
        return;
    }
    if (ask->settle)
        ask->settle(ask, msg);
    if (ask->r) {
        ask->message(ask, msg);
    } else {
        orphan_over(ask, NULL);
    }
}

/* Only a body that comes in pieces waits for room. */
static void on_room(struct call *call)
{
    struct ask *ask = call->data;
    if (ask->r)
        request_wake(ask->r);
}

static const struct call_ops ops = {.message = on_message, .lost = on_lost, .room = on_room};

void *ask_new(struct request *r, size_t size, size_t max_out,
              void (*message)(struct ask *ask, const struct msg *msg))
{
    struct ask *ask = calloc(1, size);
    if (!ask) {
        struct cay_error err;
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    ask->r = r;
    ask->message = message;
    ask->out = CAY_BUF(max_out);
    ask->pid = (uint64_t)r->pid;
    if (r->pid)
        ask->detail.pid = &ask->pid;
    r->op = ask;
    r->drop = on_drop;
    return ask;
}

void ask_go(struct ask *ask, const struct msg *request, uint64_t patience_ms)
{
    if (ask->audited)
        journal_actor(&ask->actor, ask->r);
    call_start(&ask->call, ask->r->d, ask->r->id, request, patience_ms, &ops, ask);
}

struct request *ask_release(struct ask *ask)
{
    struct request *r = ask->r;
    r->op = NULL;
    r->drop = NULL;
    ask_free(ask);
    return r;
}

void ask_done(struct ask *ask, const struct msg *msg)
{
    (void)msg;
    ask->answered = true;
    if (ask->audited)
        journal_note(ask->r, ask->action, &ask->detail, NULL);
    reply_empty(ask->r, MHD_HTTP_NO_CONTENT);
}
