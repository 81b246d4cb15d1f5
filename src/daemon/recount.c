/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/recount.h"

#include "base/util.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/log.h"
#include "daemon/roster.h"

#include <stdlib.h>

/* A keeper answers at once; one that does not is not waited for. */
#define PATIENCE_MS 2000

/* What runs in one sandbox. */
struct tally {
    struct call call;
    struct tenant *tenant;
};

static void tally_over(struct tally *tally)
{
    tally->tenant->counting--;
    call_end(&tally->call);
    free(tally);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct tally *tally = call->data;
    if (msg->type != MSG_PROC) {
        tally_over(tally);
        return;
    }
    if (msg->flags & MSG_F_RUNNING)
        exec_slot_adopt(call->d, tally->tenant, call->id, (pid_t)msg->pid);
}

/* Nothing runs in one that has ended meanwhile. */
static void on_lost(struct call *call, const struct cay_error *err)
{
    if (err->code != CAY_E_GONE && err->code != CAY_E_NOT_FOUND)
        log_event(LOG_WARNING, "its commands are not counted", "sandbox", call->id, "error",
                  err->text);
    tally_over(call->data);
}

static void count(const char *id, struct tenant *tenant, void *data)
{
    static const struct call_ops ops = {.message = on_message, .lost = on_lost};
    struct daemon *d = data;
    if (operator_quota(d->policy, tenant->name)->execs_max == OPERATOR_NO_LIMIT)
        return;
    struct tally *tally = calloc(1, sizeof(*tally));
    if (!tally)
        return;
    tally->tenant = tenant;
    tenant->counting++;
    call_start(&tally->call, d, id, &(struct msg){.type = OP_PROCS}, PATIENCE_MS, &ops, tally);
}

void recount(struct daemon *d)
{
    roster_each(d->roster, count, d);
}
