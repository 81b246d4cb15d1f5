/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at sandboxes and steering their lives: a question to the keeper, or a look at what it
 * wrote down. What takes a worker: lists, and removing.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/call.h"
#include "daemon/jobs.h"
#include "daemon/journal.h"
#include "daemon/roster.h"

#include <stdio.h>
#include <string.h>

#define MAX_LIST 1000
/* A thousand sandboxes with many labels each. */
#define MAX_LIST_BYTES (64u << 20)
#define DEFAULT_GRACE_MS 10000
#define PATIENCE_MS 10000

/* ---- objects --------------------------------------------------------------------------------- */

static void add_sandbox(struct cay_buf *out, bool full, const struct cay_info *info)
{
    struct cay_info shown = *info;
    char tenant[CAY_MAX_TENANT];
    const char *name = strchr(info->id, '~');
    roster_tenant_of(info->id, tenant);
    if (!full) {
        /* Host pids are nobody's business but the operator's. */
        shown.keeper_pid = shown.init_pid = 0;
        if (name)
            snprintf(shown.id, sizeof(shown.id), "%s", name + 1);
    }
    json_comma(out);
    buf_str(out, "{");
    json_info(out, &shown);
    if (full && tenant[0])
        json_str(out, "tenant", tenant);
    buf_str(out, "}");
}

void api_sandbox_json(struct request *r, struct cay_buf *out, const struct cay_info *info)
{
    add_sandbox(out, r->is_operator, info);
    buf_str(out, "\n");
}

static int look(struct request *r, struct cay_info *out, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (sandbox_status(r->d->cay, r->id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    return status_to_info(&status, r->id, out, err);
}

void api_reply_sandbox(struct request *r, unsigned status)
{
    autobuf struct cay_buf body = CAY_BUF(CAY_MAX_STATUS * 8);
    struct cay_info info;
    struct cay_error err;
    if (look(r, &info, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    api_sandbox_json(r, &body, &info);
    cay_info_done(&info);
    reply_json(r, status, &body);
}

void sandbox_get(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0)
        reply_error(r, &err);
    else
        api_reply_sandbox(r, MHD_HTTP_OK);
}

/* ---- orders: one question, one answer -------------------------------------------------------- */

struct order {
    struct call call;
    struct request *r;
    enum audit_action action;
    struct cay_lifetime lifetime;
    bool audited;
    void (*done)(struct order *order, const struct msg *answer);
};

static void order_drop(struct request *r)
{
    struct order *order = r->op;
    call_end(&order->call);
    free(order);
}

static void order_fail(struct order *order, const struct cay_error *err)
{
    struct request *r = order->r;
    if (order->audited)
        journal_note(r, order->action, NULL, err);
    reply_error(r, err);
}

static void order_message(struct call *call, const struct msg *msg)
{
    struct order *order = call->data;
    struct cay_error err;
    if (msg->type == MSG_ERROR) {
        msg_to_error(msg, &err);
        order_fail(order, &err);
        return;
    }
    order->done(order, msg);
}

/* Stopping what has ended already is what was asked for. */
static void order_lost(struct call *call, const struct cay_error *err)
{
    struct order *order = call->data;
    bool ends = order->action == AUDIT_STOP || order->action == AUDIT_KILL;
    if (order->audited && ends && err->code == CAY_E_GONE)
        order->done(order, NULL);
    else
        order_fail(order, err);
}

static const struct call_ops order_ops = {.message = order_message, .lost = order_lost};

static struct order *order_new(struct request *r,
                               void (*done)(struct order *order, const struct msg *answer))
{
    struct order *order = calloc(1, sizeof(*order));
    struct cay_error err;
    if (!order) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    order->r = r;
    order->done = done;
    r->op = order;
    r->drop = order_drop;
    return order;
}

static void done_empty(struct order *order, const struct msg *answer)
{
    (void)answer;
    if (order->audited)
        journal_note(order->r, order->action, NULL, NULL);
    reply_empty(order->r, MHD_HTTP_NO_CONTENT);
}

struct stop_body {
    uint64_t grace_ms;
    bool has_grace;
};

static const struct opt stop_fields[] = {
    OPT("grace", 0, OPT_DURATION, offsetof(struct stop_body, grace_ms), NULL, NULL,
        .extra = offsetof(struct stop_body, has_grace)),
};

/* pause, resume, stop and kill differ in a message and a word. */
static void steer(struct request *r, enum audit_action action, struct msg *request)
{
    struct cay_error err;
    struct stop_body body = {.grace_ms = DEFAULT_GRACE_MS};
    size_t n = action == AUDIT_STOP ? CAY_COUNT(stop_fields) : 0;
    if (input_no_query(r, &err) < 0 || input_json(r, stop_fields, n, &body, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct order *order = order_new(r, done_empty);
    if (!order)
        return;
    order->action = action;
    order->audited = true;
    if (action == AUDIT_STOP)
        request->timeout_ms = body.grace_ms;
    call_start(&order->call, r->d, r->id, request, PATIENCE_MS + request->timeout_ms, &order_ops,
               order);
}

void sandbox_pause(struct request *r)
{
    steer(r, AUDIT_PAUSE, &(struct msg){.type = OP_PAUSE});
}

void sandbox_resume(struct request *r)
{
    steer(r, AUDIT_RESUME, &(struct msg){.type = OP_RESUME});
}

void sandbox_stop(struct request *r)
{
    steer(r, AUDIT_STOP, &(struct msg){.type = OP_STOP});
}

void sandbox_kill(struct request *r)
{
    steer(r, AUDIT_KILL, &(struct msg){.type = OP_STOP});
}

struct patch_body {
    uint64_t ttl_ms, idle_ms;
    bool has_ttl, has_idle;
};

static const struct opt patch_fields[] = {
    OPT("ttl", 0, OPT_DURATION, offsetof(struct patch_body, ttl_ms), NULL, NULL,
        .extra = offsetof(struct patch_body, has_ttl)),
    OPT("idle", 0, OPT_DURATION, offsetof(struct patch_body, idle_ms), NULL, NULL,
        .extra = offsetof(struct patch_body, has_idle)),
};

static void done_patch(struct order *order, const struct msg *answer)
{
    const struct cay_lifetime *l = &order->lifetime;
    const struct audit_detail detail = {.ttl_ms = l->set_ttl ? &l->ttl_ms : NULL,
                                        .idle_ms = l->set_idle ? &l->idle_ms : NULL};
    (void)answer;
    journal_note(order->r, AUDIT_PATCH, &detail, NULL);
    api_reply_sandbox(order->r, MHD_HTTP_OK);
}

void sandbox_patch(struct request *r)
{
    struct cay_error err;
    struct patch_body body = {0};
    struct operator_refusal why = {0};
    if (input_no_query(r, &err) < 0 ||
        input_json(r, patch_fields, CAY_COUNT(patch_fields), &body, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    const struct cay_lifetime l = {.set_ttl = body.has_ttl,
                                   .set_idle = body.has_idle,
                                   .ttl_ms = body.ttl_ms,
                                   .idle_ms = body.idle_ms};
    if (operator_check_lifetime(r->d->policy, r->who.tenant, &l, &why, &err) < 0) {
        snprintf(r->rule, sizeof(r->rule), "%s", why.rule);
        journal_note(r, AUDIT_REFUSED, NULL, &err);
        reply_error(r, &err);
        return;
    }
    struct order *order = order_new(r, done_patch);
    if (!order)
        return;
    order->action = AUDIT_PATCH;
    order->audited = true;
    order->lifetime = l;
    const struct msg request = {
        .type = OP_LIFETIME,
        .flags = (l.set_ttl ? MSG_F_SET_TTL : 0) | (l.set_idle ? MSG_F_SET_IDLE : 0),
        .ttl_ms = l.ttl_ms,
        .idle_ms = l.idle_ms,
    };
    call_start(&order->call, r->d, r->id, &request, PATIENCE_MS, &order_ops, order);
}

static void done_stats(struct order *order, const struct msg *answer)
{
    autobuf struct cay_buf body = CAY_BUF(8192);
    struct request *r = order->r;
    struct cay_stats stats;
    if (answer->type != MSG_STATS || answer->data.size != sizeof(stats)) {
        struct cay_error err;
        cay_fail(&err, CAY_E_INTERNAL, "the keeper of '%s' gave no numbers", r->id);
        reply_error(r, &err);
        return;
    }
    memcpy(&stats, answer->data.data, sizeof(stats));
    buf_str(&body, "{");
    json_stats(&body, request_shown_id(r, r->id), &stats);
    buf_str(&body, "}\n");
    reply_json(r, MHD_HTTP_OK, &body);
}

void sandbox_stats(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct order *order = order_new(r, done_stats);
    if (order)
        call_start(&order->call, r->d, r->id, &(struct msg){.type = OP_STATS}, PATIENCE_MS,
                   &order_ops, order);
}

/* ---- workers: list, spec, remove ------------------------------------------------------------- */

struct errand {
    struct job job;
    struct daemon *d;
    struct request *r; /* NULL: its client went away */
    struct journal_actor actor;
    struct opt_arena arena;
    char id[CAY_MAX_ID], tenant[CAY_MAX_TENANT];
    struct cay_error err;
    int result;
    struct cay_buf out;
    bool is_operator;
    /* list */
    const char *const *labels;
    const char *state, *cursor, *force;
    uint64_t limit, listed;
    uint64_t after_ms;
    char after_id[CAY_MAX_ID], last[CAY_MAX_ID + 32];
    bool more;
};

static void errand_free(struct errand *e)
{
    opt_arena_done(&e->arena);
    buf_done(&e->out);
    free(e);
}

static void errand_drop(struct request *r)
{
    ((struct errand *)r->op)->r = NULL;
}

static struct errand *errand_new(struct request *r, void (*work)(struct job *job),
                                 void (*done)(struct job *job))
{
    struct errand *e = calloc(1, sizeof(*e));
    if (!e) {
        struct cay_error err;
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    e->job = (struct job){.work = work, .done = done};
    e->d = r->d;
    e->is_operator = r->is_operator;
    e->out = CAY_BUF(MAX_LIST_BYTES);
    snprintf(e->id, sizeof(e->id), "%s", r->id);
    snprintf(e->tenant, sizeof(e->tenant), "%s", r->who.tenant);
    return e;
}

static void errand_go(struct errand *e, struct request *r)
{
    e->arena = r->arena;
    r->arena = (struct opt_arena){0};
    e->r = r;
    r->op = e;
    r->drop = errand_drop;
    jobs_add(r->d->jobs, &e->job);
}

static void done_json(struct job *job)
{
    struct errand *e = container_of(job, struct errand, job);
    if (e->r) {
        e->r->drop = NULL;
        if (e->result < 0)
            reply_error(e->r, &e->err);
        else
            reply_json(e->r, MHD_HTTP_OK, &e->out);
    }
    errand_free(e);
}

static const struct opt list_fields[] = {
    OPT("label", 0, OPT_STRV, offsetof(struct errand, labels), NULL, NULL, .max = CAY_MAX_LABELS),
    OPT("state", 0, OPT_STR, offsetof(struct errand, state), NULL, NULL),
    OPT("limit", 0, OPT_COUNT, offsetof(struct errand, limit), NULL, NULL, .nonzero = true),
    OPT("cursor", 0, OPT_STR, offsetof(struct errand, cursor), NULL, NULL),
};

static bool state_matches(const struct errand *e, enum cay_state state)
{
    if (!e->state || strcmp(e->state, "all") == 0)
        return true;
    if (strcmp(e->state, "live") == 0)
        return state < CAY_STATE_EXITED;
    return strcmp(e->state, cay_state_name(state)) == 0;
}

static int add_listed(const struct cay_info *info, void *data)
{
    struct errand *e = data;
    char tenant[CAY_MAX_TENANT];
    roster_tenant_of(info->id, tenant);
    if ((!e->is_operator && strcmp(tenant, e->tenant) != 0) || !state_matches(e, info->state))
        return 0;
    if (e->cursor && (info->created_ms < e->after_ms ||
                      (info->created_ms == e->after_ms && strcmp(info->id, e->after_id) <= 0)))
        return 0;
    if (e->listed == e->limit) {
        e->more = true;
        return 1;
    }
    e->listed++;
    add_sandbox(&e->out, e->is_operator, info);
    snprintf(e->last, sizeof(e->last), "%llu.%s", (unsigned long long)info->created_ms, info->id);
    return 0;
}

static void list_work(struct job *job)
{
    struct errand *e = container_of(job, struct errand, job);
    bool live = !e->state || strcmp(e->state, "live") == 0;
    const struct cay_filter filter = {.all = !live, .labels = e->labels};
    if (live)
        e->state = "live";
    buf_str(&e->out, "{\"sandboxes\":[");
    e->result = cay_list(e->d->cay, &filter, add_listed, e, &e->err);
    buf_str(&e->out, "]");
    json_str(&e->out, "next_cursor", e->more ? e->last : NULL);
    buf_str(&e->out, "}\n");
}

static bool known_state(const char *state)
{
    if (!state || strcmp(state, "all") == 0 || strcmp(state, "live") == 0)
        return true;
    for (int i = CAY_STATE_CREATING; i <= CAY_STATE_LOST; i++)
        if (strcmp(state, cay_state_name((enum cay_state)i)) == 0)
            return true;
    return false;
}

static int check_list(struct request *r, struct errand *e, struct cay_error *err)
{
    unsigned long long after;
    int n = 0;
    if (e->limit == 0 || e->limit > MAX_LIST) {
        if (e->limit > MAX_LIST) {
            snprintf(r->field, sizeof(r->field), "limit");
            return cay_fail(err, CAY_E_INVALID, "limit must be 1 to %d", MAX_LIST);
        }
        e->limit = MAX_LIST;
    }
    if (!known_state(e->state)) {
        snprintf(r->field, sizeof(r->field), "state");
        return cay_fail(err, CAY_E_INVALID, "no state is called '%.32s'", e->state);
    }
    if (e->cursor) {
        if (sscanf(e->cursor, "%20llu.%n", &after, &n) != 1 || n == 0 ||
            strlen(e->cursor + n) >= sizeof(e->after_id)) {
            snprintf(r->field, sizeof(r->field), "cursor");
            return cay_fail(err, CAY_E_INVALID, "the cursor is not one that was given out");
        }
        e->after_ms = after;
        snprintf(e->after_id, sizeof(e->after_id), "%s", e->cursor + n);
    }
    return 0;
}

void sandbox_list(struct request *r)
{
    struct cay_error err;
    struct errand *e = errand_new(r, list_work, done_json);
    if (!e)
        return;
    if (input_query(r, list_fields, CAY_COUNT(list_fields), e, &err) < 0 ||
        check_list(r, e, &err) < 0) {
        errand_free(e);
        reply_error(r, &err);
        return;
    }
    errand_go(e, r);
}

static void spec_work(struct job *job)
{
    struct errand *e = container_of(job, struct errand, job);
    struct cay_sandbox *sandbox = NULL;
    autofree char *json = NULL;
    e->result = cay_get(e->d->cay, e->id, &sandbox, &e->err);
    if (e->result == 0)
        e->result = cay_inspect(sandbox, &json, &e->err);
    if (e->result == 0)
        buf_fmt(&e->out, "%s\n", json);
    cay_sandbox_free(sandbox);
}

void sandbox_get_spec(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct errand *e = errand_new(r, spec_work, done_json);
    if (e)
        errand_go(e, r);
}

struct delete_query {
    bool force, has_force;
};

static const struct opt delete_fields[] = {
    OPT("force", 0, OPT_FLAG, offsetof(struct delete_query, force), NULL, NULL),
};

static void delete_work(struct job *job)
{
    struct errand *e = container_of(job, struct errand, job);
    /* With force a missing one would be fine: here it is not, or ids could be guessed at. */
    e->result = 0;
    if (sandbox_life(e->d->cay, e->id) == LIFE_NONE)
        e->result = cay_fail(&e->err, CAY_E_NOT_FOUND, "no sandbox '%s'", e->id);
    else
        e->result = cay_remove(e->d->cay, e->id, e->force != NULL, &e->err);
}

static void delete_done(struct job *job)
{
    struct errand *e = container_of(job, struct errand, job);
    struct request *r = e->r;
    if (e->result == 0 || e->err.code != CAY_E_NOT_FOUND)
        journal_note_for(&e->actor, AUDIT_DELETE, NULL, e->result < 0 ? &e->err : NULL);
    if (e->result == 0)
        roster_removed(e->d->roster, e->id);
    else
        roster_leaving(e->d->roster, e->id, false);
    if (r) {
        r->drop = NULL;
        if (e->result < 0)
            reply_error(r, &e->err);
        else
            reply_empty(r, MHD_HTTP_NO_CONTENT);
    }
    errand_free(e);
}

void sandbox_delete(struct request *r)
{
    struct cay_error err;
    struct delete_query query = {.force = true};
    if (input_query(r, delete_fields, CAY_COUNT(delete_fields), &query, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct errand *e = errand_new(r, delete_work, delete_done);
    if (!e)
        return;
    e->force = query.force ? "yes" : NULL;
    journal_actor(&e->actor, r);
    roster_leaving(r->d->roster, r->id, true);
    errand_go(e, r);
}
