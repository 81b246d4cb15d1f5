/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/recount.h"

#include "base/err.h"
#include "base/util.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/log.h"
#include "daemon/roster.h"

#include <stdio.h>

/* For all keepers together: one that is stuck must not keep the daemon from serving the others. */
#define LIMIT_MS 2000
#define AT_ONCE 32

struct keeper_asked {
    struct keeper_asked *next;
    struct counting *counting;
    struct tenant *tenant;
    struct call call;
    char id[CAY_MAX_ID];
};

struct counting {
    struct daemon *d;
    struct keeper_asked *waiting, *asked;
    size_t n_asked;
    struct timer limit;
};

static void ask_more(struct counting *counting);

static void answered(struct keeper_asked *one)
{
    struct counting *counting = one->counting;
    for (struct keeper_asked **at = &counting->asked; *at; at = &(*at)->next)
        if (*at == one) {
            *at = one->next;
            break;
        }
    counting->n_asked--;
    call_end(&one->call);
    free(one);
    ask_more(counting);
}

static void on_process(struct call *call, const struct msg *msg)
{
    struct keeper_asked *one = call->data;
    struct cay_error err;
    if (msg->type == MSG_ERROR) /* of another version, say */
        log_event(LOG_WARNING, "its commands are not counted", "sandbox", one->id, "error",
                  msg_to_error(msg, &err) < 0 ? err.text : "");
    if (msg->type != MSG_PROC)
        answered(one); /* the end of the list, or it cannot tell */
    else if ((msg->flags & MSG_F_RUNNING) &&
             exec_slot_adopt(one->counting->d, one->tenant, one->id, (pid_t)msg->pid) < 0)
        log_event(LOG_WARNING, "a command is not counted", "sandbox", one->id, "error",
                  "out of memory");
}

/* Nothing runs in one that has ended meanwhile. */
static void on_lost(struct call *call, const struct cay_error *err)
{
    struct keeper_asked *one = call->data;
    if (err->code != CAY_E_GONE && err->code != CAY_E_NOT_FOUND)
        log_event(LOG_WARNING, "its commands are not counted", "sandbox", one->id, "error",
                  err->text);
    answered(one);
}

static const struct call_ops ops = {.message = on_process, .lost = on_lost};

static void ask_more(struct counting *counting)
{
    struct daemon *d = counting->d;
    while (counting->waiting && counting->n_asked < AT_ONCE) {
        struct keeper_asked *one = counting->waiting;
        counting->waiting = one->next;
        one->next = counting->asked;
        counting->asked = one;
        counting->n_asked++;
        call_start(&one->call, d, one->id, &(struct msg){.type = OP_PROCS}, LIMIT_MS, &ops, one);
    }
    if (!counting->asked)
        d->loop.stop = true;
}

static void on_limit(struct timer *timer)
{
    container_of(timer, struct counting, limit)->d->loop.stop = true;
}

static void add(const char *id, struct tenant *tenant, void *data)
{
    struct counting *counting = data;
    struct daemon *d = counting->d;
    if (operator_quota(d->policy, tenant->name)->execs_max == OPERATOR_NO_LIMIT ||
        !sandbox_kept(d->cay, id))
        return;
    struct keeper_asked *one = calloc(1, sizeof(*one));
    if (!one) {
        log_event(LOG_WARNING, "its commands are not counted", "sandbox", id, "error",
                  "out of memory");
        return;
    }
    one->counting = counting;
    one->tenant = tenant;
    snprintf(one->id, sizeof(one->id), "%s", id);
    one->next = counting->waiting;
    counting->waiting = one;
}

/* Those that are left when the time is over. */
static void give_up(struct keeper_asked *list)
{
    for (struct keeper_asked *one; (one = list);) {
        list = one->next;
        log_event(LOG_WARNING, "its commands are not counted", "sandbox", one->id, "error",
                  "its keeper does not answer");
        call_end(&one->call);
        free(one);
    }
}

int recount(struct daemon *d, struct cay_error *err)
{
    struct counting counting = {.d = d};
    roster_each(d->roster, add, &counting);
    if (!counting.waiting)
        return 0;
    counting.limit.fire = on_limit;
    timer_set(&d->loop, &counting.limit, cay_after_ms(LIMIT_MS));
    ask_more(&counting);
    int result = loop_run(&d->loop);
    if (result < 0)
        cay_fail_errno(err, errno, "the event loop failed");
    d->loop.stop = false;
    timer_clear(&d->loop, &counting.limit);
    give_up(counting.asked);
    give_up(counting.waiting);
    return result;
}
