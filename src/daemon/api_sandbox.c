/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at sandboxes and steering their lives: a question to the keeper, or a look at what it
 * wrote down. What takes a worker: lists, and removing.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/ask.h"
#include "daemon/errand.h"
#include "daemon/journal.h"
#include "daemon/roster.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_LIST 1000
/* A thousand sandboxes with many labels each. */
#define MAX_LIST_BYTES (64u << 20)
#define DEFAULT_GRACE_MS 10000
#define MAX_GRACE_MS 600000

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

static int look(struct cay *cay, const char *id, struct cay_info *out, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (sandbox_status(cay, id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    return status_to_info(&status, id, out, err);
}

void api_reply_sandbox(struct request *r, unsigned status)
{
    autobuf struct cay_buf body = CAY_BUF(CAY_MAX_STATUS * 8);
    struct cay_info info;
    struct cay_error err;
    if (look(r->d->looker, r->id, &info, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    api_sandbox_json(r, &body, &info);
    cay_info_done(&info);
    reply_json(r, status, &body);
}

/* Its keeper was killed, and nobody has swept it yet. */
static bool is_dead(struct request *r)
{
    return !sandbox_kept(r->d->cay, r->id) &&
           faccessat(r->d->cay->run, r->id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

struct get_errand {
    struct errand errand;
    bool is_operator;
};

static void sweep_and_look(struct errand *errand)
{
    struct get_errand *get = container_of(errand, struct get_errand, errand);
    struct cay_info info;
    errand->result = look(errand->d->cay, errand->id, &info, &errand->err);
    if (errand->result < 0)
        return;
    add_sandbox(&errand->out, get->is_operator, &info);
    buf_str(&errand->out, "\n");
    cay_info_done(&info);
}

static void get_dead(struct request *r)
{
    struct get_errand *get = errand_new(r, sizeof(*get), CAY_MAX_STATUS * 8, sweep_and_look);
    if (!get)
        return;
    get->is_operator = r->is_operator;
    errand_go(&get->errand, r);
}

void sandbox_get(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0)
        reply_error(r, &err);
    else if (is_dead(r))
        get_dead(r);
    else
        api_reply_sandbox(r, MHD_HTTP_OK);
}

/* ---- orders: one question, one answer -------------------------------------------------------- */

/* A keeper that does not understand even a stop, as it is of another version, or that has no place
 * left for a caller who kills its sandbox, is killed. */
struct killing {
    struct errand errand;
    struct journal_actor actor;
    enum audit_action action;
};

static void kill_work(struct errand *e)
{
    e->result = sandbox_kill_keeper(e->d->cay, e->id, &e->err);
}

static void kill_done(struct errand *e)
{
    const struct killing *killing = (struct killing *)e;
    journal_note_for(&killing->actor, killing->action, NULL, e->result < 0 ? &e->err : NULL);
    if (e->r && e->result < 0)
        reply_error(e->r, &e->err);
    else if (e->r)
        reply_empty(e->r, MHD_HTTP_NO_CONTENT);
}

static void kill_instead(struct ask *ask)
{
    enum audit_action action = ask->action;
    struct request *r = ask_release(ask);
    struct killing *killing = errand_new(r, sizeof(*killing), 0, kill_work);
    if (!killing)
        return;
    killing->action = action;
    killing->errand.done = kill_done;
    journal_actor(&killing->actor, r);
    errand_go(&killing->errand, r);
}

/* Stopping what has ended already is what was asked for. */
static bool forgive_ended(struct ask *ask, const struct cay_error *err)
{
    if (err->code == CAY_E_GONE)
        ask_done(ask, NULL);
    else if (err->code == CAY_E_VERSION || err->code == CAY_E_UNSUPPORTED ||
             (ask->action == AUDIT_KILL && sandbox_is_crowded(err)))
        kill_instead(ask);
    else
        return false;
    return true;
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
    int result = input_no_query(r, &err);
    if (result == 0)
        result = input_json(r, stop_fields, n, &body, &err);
    if (result == 0 && body.grace_ms > MAX_GRACE_MS) {
        snprintf(r->field, sizeof(r->field), "grace");
        result = cay_fail(&err, CAY_E_INVALID, "a grace is 10 minutes at most");
    }
    if (result < 0) {
        reply_error(r, &err);
        return;
    }
    struct ask *ask = ask_new(r, sizeof(*ask), 0, ask_done);
    if (!ask)
        return;
    ask->action = action;
    ask->audited = true;
    if (action == AUDIT_STOP || action == AUDIT_KILL)
        ask->forgive = forgive_ended;
    if (action == AUDIT_STOP)
        request->timeout_ms = body.grace_ms;
    ask_go(ask, request, ASK_PATIENCE_MS + request->timeout_ms);
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

static void done_patch(struct ask *ask, const struct msg *answer)
{
    (void)answer;
    ask->answered = true;
    journal_note(ask->r, AUDIT_PATCH, &ask->detail, NULL);
    api_reply_sandbox(ask->r, MHD_HTTP_OK);
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
    struct ask *ask = ask_new(r, sizeof(*ask), 0, done_patch);
    if (!ask)
        return;
    ask->action = AUDIT_PATCH;
    ask->audited = true;
    ask->numbers[0] = l.ttl_ms;
    ask->numbers[1] = l.idle_ms;
    ask->detail.ttl_ms = l.set_ttl ? &ask->numbers[0] : NULL;
    ask->detail.idle_ms = l.set_idle ? &ask->numbers[1] : NULL;
    const struct msg request = {
        .type = OP_LIFETIME,
        .flags = (l.set_ttl ? MSG_F_SET_TTL : 0) | (l.set_idle ? MSG_F_SET_IDLE : 0),
        .ttl_ms = l.ttl_ms,
        .idle_ms = l.idle_ms,
    };
    ask_go(ask, &request, ASK_PATIENCE_MS);
}

static void done_stats(struct ask *ask, const struct msg *answer)
{
    autobuf struct cay_buf body = CAY_BUF(8192);
    struct request *r = ask->r;
    struct cay_stats stats;
    struct cay_error err;
    if (msg_stats(answer, &stats, &err) < 0) {
        reply_error(r, &err);
        return;
    }
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
    struct ask *ask = ask_new(r, sizeof(*ask), 0, done_stats);
    if (ask)
        ask_go(ask, &(struct msg){.type = OP_STATS}, ASK_PATIENCE_MS);
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct listing {
    struct errand errand;
    const char *const *labels;
    const char *state, *cursor;
    uint64_t limit, listed, after_ms;
    char after_id[CAY_MAX_ID], last[CAY_MAX_ID + 32], tenant[CAY_MAX_TENANT];
    bool is_operator, more;
};

static const struct opt list_fields[] = {
    OPT("label", 0, OPT_STRV, offsetof(struct listing, labels), NULL, NULL, .max = CAY_MAX_LABELS),
    OPT("state", 0, OPT_STR, offsetof(struct listing, state), NULL, NULL),
    OPT("limit", 0, OPT_COUNT, offsetof(struct listing, limit), NULL, NULL, .nonzero = true),
    OPT("cursor", 0, OPT_STR, offsetof(struct listing, cursor), NULL, NULL),
};

static bool state_matches(const struct listing *e, enum cay_state state)
{
    if (!e->state || strcmp(e->state, "all") == 0)
        return true;
    if (strcmp(e->state, "live") == 0)
        return state < CAY_STATE_EXITED;
    return strcmp(e->state, cay_state_name(state)) == 0;
}

static int add_listed(const struct cay_info *info, void *data)
{
    struct listing *e = data;
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
    add_sandbox(&e->errand.out, e->is_operator, info);
    snprintf(e->last, sizeof(e->last), "%llu.%s", (unsigned long long)info->created_ms, info->id);
    return 0;
}

static void list_work(struct errand *errand)
{
    struct listing *e = (struct listing *)errand;
    bool live = !e->state || strcmp(e->state, "live") == 0;
    const struct cay_filter filter = {.all = !live, .labels = e->labels};
    if (live)
        e->state = "live";
    buf_str(&errand->out, "{\"sandboxes\":[");
    errand->result = cay_list(errand->d->cay, &filter, add_listed, e, &errand->err);
    buf_str(&errand->out, "]");
    json_str(&errand->out, "next_cursor", e->more ? e->last : NULL);
    buf_str(&errand->out, "}\n");
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

static int check_list(struct request *r, struct listing *e, struct cay_error *err)
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
    struct listing *e = errand_new(r, sizeof(*e), MAX_LIST_BYTES, list_work);
    if (!e)
        return;
    e->is_operator = r->is_operator;
    snprintf(e->tenant, sizeof(e->tenant), "%s", r->who.tenant);
    if (input_query(r, list_fields, CAY_COUNT(list_fields), e, &err) < 0 ||
        check_list(r, e, &err) < 0) {
        errand_free(&e->errand);
        reply_error(r, &err);
        return;
    }
    errand_go(&e->errand, r);
}

/* ---- spec, remove ---------------------------------------------------------------------------- */

struct spec_errand {
    struct errand errand;
    bool values; /* of the environment: for who could print them inside */
};

static void spec_work(struct errand *e)
{
    autospec struct spec spec = {0};
    const char *names[CAY_MAX_FIELDS];
    size_t n = 0;
    e->result = sandbox_spec(e->d->cay, e->id, &spec, &e->err);
    if (e->result < 0)
        return;
    if (!((struct spec_errand *)e)->values) {
        for (const char *const *v = spec.spec.env; v && *v && n + 1 < CAY_COUNT(names); v++)
            names[n++] = opt_strndup(&e->arena, *v, strcspn(*v, "="));
        names[n] = NULL;
        spec.spec.env = names;
    }
    buf_str(&e->out, "{");
    spec_json(&spec.spec, &e->out);
    buf_str(&e->out, "}\n");
}

void sandbox_get_spec(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct spec_errand *e = errand_new(r, sizeof(*e), MAX_LIST_BYTES, spec_work);
    if (!e)
        return;
    e->values = r->who.scopes & SCOPE_EXEC;
    errand_go(&e->errand, r);
}

/* Between two looks whether creates are over that were there first. */
#define DELETE_LOOK_US 5000

struct removal {
    struct errand errand;
    struct journal_actor actor; /* it is written down also if the client does not wait */
    struct timer timer;
    uint64_t until_us;
    bool force;
};

static const struct opt delete_fields[] = {
    OPT("force", 0, OPT_FLAG, offsetof(struct removal, force), NULL, NULL),
};

static void delete_work(struct errand *e)
{
    /* With force a missing one would be fine for the engine. A client is told. */
    enum life life = sandbox_life(e->d->cay, e->id, &e->err);
    if (life == LIFE_UNKNOWN)
        e->result = -1;
    else if (life == LIFE_NONE)
        e->result = cay_fail(&e->err, CAY_E_NOT_FOUND, "no sandbox '%s'", e->id);
    else
        e->result = cay_remove(e->d->cay, e->id, ((struct removal *)e)->force, &e->err);
}

static void delete_done(struct errand *e)
{
    const struct removal *removal = (struct removal *)e;
    bool failed = e->result < 0;
    /* Of two who remove it at once, one does. */
    const struct audit_detail detail = {.existed = !failed && !roster_parting(e->d->roster, e->id)};
    if (!failed || e->err.code != CAY_E_NOT_FOUND)
        journal_note_for(&removal->actor, AUDIT_DELETE, &detail, failed ? &e->err : NULL);
    if (failed)
        roster_leaving(e->d->roster, e->id, false);
    else
        roster_removed(e->d->roster, e->id);
    if (e->r && failed)
        reply_error(e->r, &e->err);
    else if (e->r)
        reply_empty(e->r, MHD_HTTP_NO_CONTENT);
}

/*
 * What was asked for before must not come into being afterwards: of a create whose client went away
 * nobody knows when it is done. New ones are refused meanwhile.
 */
static void on_delete_due(struct timer *timer)
{
    struct removal *removal = container_of(timer, struct removal, timer);
    struct errand *e = &removal->errand;
    uint64_t now = cay_now_us();
    if (now < removal->until_us && create_at_work(e->d, e->id))
        timer_set(&e->d->loop, timer, now + DELETE_LOOK_US);
    else
        errand_send(e);
}

void sandbox_delete(struct request *r)
{
    struct cay_error err;
    struct removal *removal = errand_new(r, sizeof(*removal), 0, delete_work);
    if (!removal)
        return;
    removal->force = true;
    removal->errand.done = delete_done;
    if (input_query(r, delete_fields, CAY_COUNT(delete_fields), removal, &err) < 0) {
        errand_free(&removal->errand);
        reply_error(r, &err);
        return;
    }
    journal_actor(&removal->actor, r);
    roster_leaving(r->d->roster, r->id, true);
    removal->timer.fire = on_delete_due;
    removal->until_us = cay_after_ms(SANDBOX_PATIENCE_MS);
    errand_hold(&removal->errand, r);
    on_delete_due(&removal->timer);
}
