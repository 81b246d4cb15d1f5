/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /sandboxes: what is asked for, held against the operator's policy and the tenant's quota,
 * then made by a worker: from the pool if there is one that fits, else from nothing.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/jobs.h"
#include "daemon/journal.h"
#include "daemon/pool.h"
#include "daemon/resolve.h"
#include "daemon/roster.h"

#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct cay_spec, member)
static const struct opt fields[] = {
    OPT("id", 0, OPT_STR, AT(id), NULL, NULL),
    OPT("image", 0, OPT_STR, AT(image), NULL, NULL),
    OPT("user", 0, OPT_STR, AT(user), NULL, NULL),
    OPT("cwd", 0, OPT_STR, AT(cwd), NULL, NULL),
    OPT("network", 0, OPT_STR, AT(network), NULL, NULL),
    OPT("profile", 0, OPT_PROFILE, AT(profile), NULL, NULL),
    OPT("memory", 0, OPT_SIZE, AT(memory), NULL, NULL, .nonzero = true),
    OPT("cpus", 0, OPT_CPUS, AT(cpus), NULL, NULL, .nonzero = true),
    OPT("pids", 0, OPT_COUNT, AT(pids), NULL, NULL, .nonzero = true),
    OPT("disk", 0, OPT_SIZE, AT(disk), NULL, NULL, .nonzero = true),
    OPT("inodes", 0, OPT_COUNT, AT(inodes), NULL, NULL, .nonzero = true),
    OPT("fds", 0, OPT_COUNT, AT(fds), NULL, NULL, .nonzero = true),
    OPT("output", 0, OPT_SIZE, AT(output), NULL, NULL, .nonzero = true),
    OPT("ttl", 0, OPT_DURATION, AT(ttl_ms), NULL, NULL),
    OPT("idle", 0, OPT_DURATION, AT(idle_ms), NULL, NULL),
    OPT("env", 0, OPT_ENV, AT(env), NULL, NULL),
    OPT("labels", 0, OPT_LABELS, AT(labels), NULL, NULL, .max = CAY_MAX_LABELS),
    OPT("mounts", 0, OPT_MOUNTS, AT(mounts), NULL, NULL, .extra = AT(n_mounts),
        .max = CAY_MAX_MOUNTS),
};

/* Part of the design, not of this version: said so instead of "unknown". */
static const char *const later[] = {"secrets", "workspace", "from", "ports"};

/* What the worker does next. */
enum step {
    STEP_RESOLVE, /* the host's paths that the spec names; left out if it names none */
    STEP_KEY,     /* what kind of spec it is, for the pool; the same */
    STEP_MAKE,
    STEP_UNDO, /* made, but nobody may have it */
};

struct creating {
    struct creating *next, **link; /* of all that are at work */
    struct job job;
    enum step step;
    struct daemon *d;
    struct request *r; /* NULL: its client went away */
    struct journal_actor actor;
    struct opt_arena arena;
    struct cay_spec spec;
    struct resolved_spec resolved;
    struct prepared *prepared;
    struct cay_sandbox *sandbox;
    struct cay_info info;
    struct cay_error err;
    char id[CAY_MAX_ID], key[CREATE_KEY_SIZE];
    bool named, existed, held, busy;
    int result;
};

bool create_at_work(const struct daemon *d, const char *id)
{
    for (const struct creating *c = d->creating; c; c = c->next)
        if (strcmp(c->id, id) == 0)
            return true;
    return false;
}

static void creating_free(struct creating *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    if (c->held)
        roster_cancel(c->d->roster, c->id);
    if (c->busy)
        pool_busy(c->d->pool, -1);
    cay_sandbox_free(c->sandbox);
    cay_info_done(&c->info);
    opt_arena_done(&c->arena);
    free(c);
}

static void on_drop(struct request *r)
{
    struct creating *c = r->op;
    c->r = NULL; /* the worker is at it; its end finds nobody */
}

static void make(struct creating *c)
{
    c->result = create_from(c->d->cay, &c->spec, c->prepared, &c->sandbox, &c->existed, &c->err);
    /* Made is made, also if it cannot be looked at. */
    if (c->result == 0 && cay_info(c->sandbox, &c->info, NULL) < 0) {
        snprintf(c->info.id, sizeof(c->info.id), "%s", c->id);
        c->info.state = CAY_STATE_RUNNING;
        c->info.created_ms = cay_wall_ms();
    }
}

static void create_work(struct job *job)
{
    struct creating *c = container_of(job, struct creating, job);
    switch (c->step) {
    case STEP_RESOLVE:
        c->result = resolve_spec(&c->spec, &c->arena, &c->resolved, &c->err);
        break;
    case STEP_KEY:
        c->result = create_key(c->d->cay, &c->spec, c->key, &c->err);
        break;
    case STEP_MAKE:
        make(c);
        break;
    case STEP_UNDO:
        cay_remove(c->d->cay, c->id, true, NULL);
        break;
    }
}

static void go_on(struct creating *c, enum step step)
{
    c->step = step;
    jobs_add(c->d->jobs, &c->job);
}

/* ---- the end of it --------------------------------------------------------------------------- */

/*
 * The engine's errors do not carry a field. Network and image are the two whose values this version
 * may not support at all: one that is not given came from the config and is not the caller's, and
 * what fails later, while it is made, is for reasons of the host.
 */
static void name_unsupported(struct creating *c)
{
    const struct cay_spec *spec = &c->spec;
    bool network = spec->network && strcmp(spec->network, "deny-all") != 0;
    if (c->step != STEP_MAKE && c->r && c->err.code == CAY_E_UNSUPPORTED &&
        (network || spec->image))
        snprintf(c->r->field, sizeof(c->r->field), "%s", network ? "network" : "image");
}

static void fail(struct creating *c, enum audit_action action)
{
    c->d->metrics.create_failed++;
    name_unsupported(c);
    journal_note_for(&c->actor, action, &(struct audit_detail){.rule = c->actor.rule}, &c->err);
    if (c->r) {
        c->r->drop = NULL;
        reply_error(c->r, &c->err);
    }
    creating_free(c);
}

static int write_down(struct creating *c, bool news)
{
    const struct cay_spec *spec = &c->spec;
    const struct audit_detail detail = {
        .image = c->info.image,
        .env = spec->env,
        .user = spec->user,
        .ttl_ms = spec->ttl_ms ? &spec->ttl_ms : NULL,
        .idle_ms = spec->idle_ms ? &spec->idle_ms : NULL,
        .existed = !news,
    };
    return journal_must_for(&c->actor, AUDIT_CREATE, &detail, &c->err);
}

/* One that was to be found was removed, and then made instead: it takes room that nobody held. */
static int check_room(struct creating *c)
{
    struct operator_refusal why = {0};
    if (c->existed || roster_fits(c->d, c->actor.who.tenant, &why, &c->err) == 0)
        return 0;
    snprintf(c->actor.rule, sizeof(c->actor.rule), "%s", why.rule);
    if (c->r)
        snprintf(c->r->rule, sizeof(c->r->rule), "%s", why.rule);
    journal_note_for(&c->actor, AUDIT_REFUSED, &(struct audit_detail){.rule = c->actor.rule},
                     &c->err);
    return -1;
}

static void made(struct creating *c)
{
    struct daemon *d = c->d;
    struct request *r = c->r;
    bool news = roster_news(d->roster, c->id, c->existed);
    if (c->held)
        roster_confirm(d->roster, c->id, c->existed ? NULL : &c->spec);
    c->held = false;
    d->metrics.created += !c->existed;
    bool written = check_room(c) == 0 && write_down(c, news) == 0;
    if (written && news)
        roster_told(d->roster, c->id);
    if (r) {
        autobuf struct cay_buf body = CAY_BUF(CAY_MAX_STATUS * 8);
        r->drop = NULL;
        c->r = NULL;
        if (written) {
            api_sandbox_json(r, &body, &c->info);
            reply_json(r, c->existed ? MHD_HTTP_OK : MHD_HTTP_CREATED, &body);
        } else {
            reply_error(r, &c->err);
        }
    }
    /* It could not be written down, or nobody knows its id: nobody may have it. */
    if (!c->existed && (!written || (!r && !c->named)))
        go_on(c, STEP_UNDO);
    else
        creating_free(c);
}

/* ---- between the steps, on the loop ---------------------------------------------------------- */

static void take_from_pool(struct creating *c)
{
    c->prepared = pool_take(c->d->pool, c->key, &c->spec);
    go_on(c, STEP_MAKE);
}

static int check_policy(struct creating *c)
{
    struct operator_refusal why = {0};
    const char *tenant = c->actor.who.tenant;
    int result = operator_check(c->d->policy, tenant, &c->spec, &c->resolved.paths, &why, &c->err);
    if (result == 0) {
        resolve_apply(&c->resolved, &c->spec);
        /* A default image borrows from the policy, which may be replaced while this one is made. */
        if (c->spec.image)
            c->spec.image = opt_strndup(&c->arena, c->spec.image, strlen(c->spec.image));
        /* What was judged is what is opened. Without a tenant, cay.conf may have a default that is
         * a link. */
        c->spec.no_links = *tenant || c->spec.image;
        result = roster_reserve(c->d, tenant, c->id, &c->spec, &c->held, &why, &c->err);
    }
    if (result < 0) {
        snprintf(c->actor.rule, sizeof(c->actor.rule), "%s", why.rule);
        if (c->r)
            snprintf(c->r->rule, sizeof(c->r->rule), "%s", why.rule);
        if (c->r && why.field)
            snprintf(c->r->field, sizeof(c->r->field), "%s", why.field);
    }
    return result;
}

/* Whether looking at the spec means to open paths of the host, which may take any time. */
static bool names_paths(const struct cay_spec *spec)
{
    return spec->n_mounts > 0 || (spec->image && strncmp(spec->image, "dir:", 4) == 0);
}

static void judged(struct creating *c)
{
    if (check_policy(c) < 0) {
        fail(c, AUDIT_REFUSED);
        return;
    }
    if (names_paths(&c->spec)) {
        go_on(c, STEP_KEY);
        return;
    }
    if (create_key(c->d->cay, &c->spec, c->key, &c->err) < 0)
        fail(c, AUDIT_CREATE);
    else
        take_from_pool(c);
}

static void create_done(struct job *job)
{
    struct creating *c = container_of(job, struct creating, job);
    if (c->step == STEP_UNDO)
        creating_free(c);
    else if (c->result < 0)
        fail(c, AUDIT_CREATE);
    else if (c->step == STEP_RESOLVE)
        judged(c);
    else if (c->step == STEP_KEY)
        take_from_pool(c);
    else
        made(c);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

static int take_fields(struct request *r, struct cay_spec *spec, struct cay_error *err)
{
    if (input_no_query(r, err) < 0)
        return -1;
    if (input_json(r, fields, CAY_COUNT(fields), spec, err) == 0)
        return 0;
    for (size_t i = 0; i < CAY_COUNT(later); i++)
        if (strcmp(r->field, later[i]) == 0)
            return cay_fail(err, CAY_E_UNSUPPORTED, "'%s' is not part of this version", later[i]);
    return -1;
}

static int take_id(struct request *r, struct creating *c, struct cay_error *err)
{
    char name[16] = "";
    unsigned char bytes[6];
    c->named = c->spec.id != NULL;
    if (!c->named) {
        cay_random(bytes, sizeof(bytes));
        for (size_t i = 0; i < sizeof(bytes); i++)
            snprintf(name + 2 * i, 3, "%02x", bytes[i]);
    }
    if (request_full_id(r, c->named ? c->spec.id : name, c->id, err) < 0) {
        snprintf(r->field, sizeof(r->field), "id");
        return -1;
    }
    c->spec.id = c->id;
    snprintf(r->id, sizeof(r->id), "%s", c->id);
    return 0;
}

void sandbox_create(struct request *r)
{
    struct cay_error err;
    struct creating *c = calloc(1, sizeof(*c));
    if (!c) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    c->d = r->d;
    c->next = r->d->creating;
    c->link = &r->d->creating;
    if (c->next)
        c->next->link = &c->next;
    r->d->creating = c;
    if (take_fields(r, &c->spec, &err) < 0 || take_id(r, c, &err) < 0) {
        creating_free(c);
        reply_error(r, &err);
        return;
    }
    /* The worker needs what the request allocated, also if the client goes. */
    c->arena = r->arena;
    r->arena = (struct opt_arena){0};
    c->job = (struct job){.work = create_work, .done = create_done};
    journal_actor(&c->actor, r);
    snprintf(c->job.tenant, sizeof(c->job.tenant), "%s", c->actor.who.tenant);
    c->r = r;
    r->op = c;
    r->drop = on_drop;
    c->busy = true;
    pool_busy(r->d->pool, 1);
    if (names_paths(&c->spec))
        go_on(c, STEP_RESOLVE);
    else
        judged(c);
}
