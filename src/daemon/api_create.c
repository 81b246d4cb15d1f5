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

struct creating {
    struct job job;
    struct daemon *d;
    struct request *r; /* NULL: its client went away */
    struct opt_arena arena;
    struct cay_spec spec;
    struct prepared *prepared;
    struct cay_sandbox *sandbox;
    struct cay_info info;
    struct cay_error err;
    char id[CAY_MAX_ID];
    bool named, existed, undo;
    int result;
};

static void creating_free(struct creating *c)
{
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

static void create_work(struct job *job)
{
    struct creating *c = container_of(job, struct creating, job);
    if (c->undo) {
        cay_remove(c->d->cay, c->id, true, NULL);
        return;
    }
    c->result = create_from(c->d->cay, &c->spec, c->prepared, &c->sandbox, &c->existed, &c->err);
    if (c->result == 0)
        c->result = cay_info(c->sandbox, &c->info, &c->err);
}

/* Made, but nobody may have it: it could not be written down, or nobody knows its id. */
static void undo(struct creating *c)
{
    c->undo = true;
    c->r = NULL;
    jobs_add(c->d->jobs, &c->job);
}

static int write_down(struct creating *c)
{
    const struct cay_spec *spec = &c->spec;
    const struct audit_detail detail = {
        .image = c->info.image,
        .env = spec->env,
        .user = spec->user,
        .ttl_ms = spec->ttl_ms ? &spec->ttl_ms : NULL,
        .idle_ms = spec->idle_ms ? &spec->idle_ms : NULL,
        .existed = c->existed,
    };
    return journal_must(c->r, AUDIT_CREATE, &detail, &c->err);
}

static void create_done(struct job *job)
{
    struct creating *c = container_of(job, struct creating, job);
    struct daemon *d = c->d;
    struct request *r = c->r;
    if (c->undo) {
        creating_free(c);
        return;
    }
    pool_busy(d->pool, -1);
    if (c->result < 0) {
        roster_cancel(d->roster, c->id);
        d->metrics.create_failed++;
        if (r) {
            journal_note(r, AUDIT_CREATE, NULL, &c->err);
            r->drop = NULL;
            reply_error(r, &c->err);
        }
        creating_free(c);
        return;
    }
    roster_confirm(d->roster, c->id);
    d->metrics.created += !c->existed;
    bool written = r && write_down(c) == 0;
    if (r) {
        autobuf struct cay_buf body = CAY_BUF(CAY_MAX_STATUS * 8);
        r->drop = NULL;
        if (written) {
            api_sandbox_json(r, &body, &c->info);
            reply_json(r, c->existed ? MHD_HTTP_OK : MHD_HTTP_CREATED, &body);
        } else {
            reply_error(r, &c->err);
        }
    }
    if (!c->existed && (r ? !written : !c->named))
        undo(c);
    else
        creating_free(c);
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

static int check_policy(struct request *r, struct creating *c, struct cay_error *err)
{
    struct resolved_spec resolved;
    struct operator_refusal why = {0};
    int result = resolve_spec(&c->spec, &r->arena, &resolved, err);
    if (result == 0)
        result = operator_check(r->d->policy, r->who.tenant, &c->spec, &resolved.paths, &why, err);
    if (result == 0) {
        resolve_apply(&resolved, &c->spec);
        /* A default image borrows from the policy, which may be replaced while this one is made. */
        if (c->spec.image)
            c->spec.image = opt_strndup(&r->arena, c->spec.image, strlen(c->spec.image));
        result = roster_reserve(r->d, r->who.tenant, c->id, &c->spec, &why, err);
    }
    if (result < 0) {
        snprintf(r->rule, sizeof(r->rule), "%s", why.rule);
        if (why.field)
            snprintf(r->field, sizeof(r->field), "%s", why.field);
        journal_note(r, AUDIT_REFUSED, NULL, err);
    }
    return result;
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
    if (take_fields(r, &c->spec, &err) < 0 || take_id(r, c, &err) < 0 ||
        check_policy(r, c, &err) < 0) {
        creating_free(c);
        reply_error(r, &err);
        return;
    }
    /* The worker needs what the request allocated, also if the client goes. */
    c->arena = r->arena;
    r->arena = (struct opt_arena){0};
    c->job = (struct job){.work = create_work, .done = create_done};
    c->prepared = pool_take(r->d->pool, &c->spec);
    c->r = r;
    r->op = c;
    r->drop = on_drop;
    pool_busy(r->d->pool, 1);
    jobs_add(r->d->jobs, &c->job);
}
