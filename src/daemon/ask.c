/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ask.h"

#include "base/err.h"
#include "daemon/journal.h"

#include <stdlib.h>

static void on_drop(struct request *r)
{
    struct ask *ask = r->op;
    call_end(&ask->call);
    buf_done(&ask->out);
    free(ask);
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct ask *ask = call->data;
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
    if (msg->type != MSG_ERROR) {
        ask->message(ask, msg);
        return;
    }
    msg_to_error(msg, &err);
    on_lost(call, &err);
}

/* Only a body that comes in pieces waits for room. */
static void on_room(struct call *call)
{
    struct ask *ask = call->data;
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
    call_start(&ask->call, ask->r->d, ask->r->id, request, patience_ms, &ops, ask);
}

void ask_done(struct ask *ask, const struct msg *msg)
{
    (void)msg;
    if (ask->audited)
        journal_note(ask->r, ask->action, &ask->detail, NULL);
    reply_empty(ask->r, MHD_HTTP_NO_CONTENT);
}
