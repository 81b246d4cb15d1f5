/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool.h"

#include "base/err.h"
#include "base/util.h"
#include "daemon/jobs.h"
#include "daemon/log.h"

#include <math.h>
#include <string.h>

/* Kinds of spec that are counted; the least wanted gives way. */
#define MAX_KINDS 32
/* Wishes lose half their weight in this time. */
#define HALF_LIFE_US 60e6
/* Made at once: more would only take CPUs from those who wait for an answer. */
#define AT_ONCE 2
/* After the last create or command, before refilling: in a burst the CPUs belong to it, and who
 * creates a sandbox runs something in it next. */
#define QUIET_US 15000
/* Under a load that never ends, the pool is refilled all the same, a bit at a time. */
#define HUNGRY_US 500000
#define RETRY_US 2000000
/* So many, and as many as were wished for lately, are made as fast as can be; the rest one by one,
 * so that nobody notices. */
#define FIRST 8
#define UNHURRIED_US 40000

/* One kind of spec: everything that cannot be set late is equal. */
struct kind {
    char *key;
    struct cay_spec like; /* a copy of what the key is about */
    char *image;
    double wishes;
    uint64_t wished_us;
    size_t ready, making, target;
    bool hopeless; /* what is made for it does not fit */
};

struct member {
    struct member *next;
    struct pool *pool; /* NULL: it closed while a worker was at it */
    struct prepared *prepared;
    struct kind *kind;
    struct watch watch;
    struct job job; /* starting its keeper takes a millisecond: not on the loop */
    struct cay_spec like;
    struct cay *cay;
    struct cay_error err;
    int started;
    bool at_work, ready;
};

struct pool {
    struct daemon *d;
    struct kind kinds[MAX_KINDS];
    size_t n_kinds;
    struct member *members;
    size_t n_ready, n_making;
    int busy;
    uint64_t quiet_us; /* the last time that nobody was at work */
    struct timer refill;
};

/* ---- kinds ----------------------------------------------------------------------------------- */

static double wishes_now(const struct kind *kind, uint64_t now)
{
    return kind->wishes * exp2(-(double)(now - kind->wished_us) / HALF_LIFE_US);
}

static double wanted(const struct kind *kind, uint64_t now)
{
    return kind->key && !kind->hopeless ? wishes_now(kind, now) : 0;
}

static void kind_done(struct kind *kind)
{
    free(kind->key);
    free(kind->image);
    *kind = (struct kind){0};
}

static int kind_init(struct kind *kind, const char *key, const struct cay_spec *spec)
{
    *kind = (struct kind){.key = strdup(key)};
    if (spec->image)
        kind->image = strdup(spec->image);
    if (!kind->key || (spec->image && !kind->image)) {
        kind_done(kind);
        return -1;
    }
    kind->like = (struct cay_spec){
        .image = kind->image,
        .profile = spec->profile,
        .memory = spec->memory,
        .cpus = spec->cpus,
        .pids = spec->pids,
        .disk = spec->disk,
        .inodes = spec->inodes,
        .fds = spec->fds,
        .no_links = spec->no_links,
    };
    return 0;
}

/* The kind of this key; a new one takes the place of the least wanted that has no members. */
static struct kind *find_kind(struct pool *pool, const char *key, const struct cay_spec *spec)
{
    uint64_t now = cay_now_us();
    struct kind *least = NULL;
    for (size_t i = 0; i < pool->n_kinds; i++) {
        struct kind *kind = &pool->kinds[i];
        if (kind->key && strcmp(kind->key, key) == 0)
            return kind;
        if (kind->ready + kind->making == 0 &&
            (!least || wishes_now(kind, now) < wishes_now(least, now)))
            least = kind;
    }
    if (pool->n_kinds < MAX_KINDS)
        least = &pool->kinds[pool->n_kinds++];
    if (!least)
        return NULL;
    kind_done(least);
    return kind_init(least, key, spec) == 0 ? least : NULL;
}

/* Shares the pool's places among the kinds by how much each is wanted. */
static void share_out(struct pool *pool)
{
    uint64_t now = cay_now_us();
    size_t places = pool->d->settings.pool, given = 0;
    double all = 0;
    struct kind *most = NULL;
    for (size_t i = 0; i < pool->n_kinds; i++) {
        struct kind *kind = &pool->kinds[i];
        double wishes = wanted(kind, now);
        all += wishes;
        if (wishes > 0 && (!most || wishes > wishes_now(most, now)))
            most = kind;
    }
    for (size_t i = 0; i < pool->n_kinds; i++) {
        struct kind *kind = &pool->kinds[i];
        double wishes = wanted(kind, now);
        kind->target = all > 0 ? (size_t)(wishes / all * (double)places) : 0;
        /* Whoever was wished for lately has one at least, while there are places. */
        if (kind->target == 0 && wishes > 0.5 && given < places)
            kind->target = 1;
        given += kind->target;
    }
    if (most)
        most->target += places - CAY_MIN(given, places);
}

/* ---- members --------------------------------------------------------------------------------- */

static void plan_refill(struct pool *pool, uint64_t in_us)
{
    if (!pool->refill.armed)
        timer_set(&pool->d->loop, &pool->refill, cay_now_us() + in_us);
}

/* Whether some kind has less than what is likely to be asked for next. */
static bool in_hurry(const struct pool *pool)
{
    uint64_t now = cay_now_us();
    for (size_t i = 0; i < pool->n_kinds; i++) {
        const struct kind *kind = &pool->kinds[i];
        if (kind->ready < kind->target && (double)kind->ready < wanted(kind, now))
            return true;
    }
    return pool->n_ready < FIRST;
}

/* Out of the pool; what it holds is given back. */
static struct prepared *take_out(struct member *member)
{
    struct pool *pool = member->pool;
    struct prepared *prepared = member->prepared;
    for (struct member **at = &pool->members; *at; at = &(*at)->next) {
        if (*at == member) {
            *at = member->next;
            break;
        }
    }
    loop_forget(&pool->d->loop, &member->watch);
    member->prepared = NULL;
    if (member->ready) {
        pool->n_ready--;
        member->kind->ready--;
    } else {
        pool->n_making--;
        member->kind->making--;
    }
    if (member->at_work)
        member->pool = NULL; /* start_done frees it */
    else
        free(member);
    return prepared;
}

static void on_news(struct watch *watch, uint32_t events)
{
    struct member *member = container_of(watch, struct member, watch);
    struct pool *pool = member->pool;
    struct cay_error err;
    (void)events;
    int ready = prepare_ready(member->prepared, &err);
    if (ready == 0)
        return;
    if (ready > 0) {
        if (member->ready)
            return;
        member->ready = true;
        pool->n_making--;
        member->kind->making--;
        pool->n_ready++;
        member->kind->ready++;
        plan_refill(pool, in_hurry(pool) ? 0 : UNHURRIED_US);
        return;
    }
    log_event(LOG_WARNING, "a sandbox of the pool is lost", "error", err.text);
    prepare_free(take_out(member));
    plan_refill(pool, RETRY_US);
}

static void start_work(struct job *job)
{
    struct member *m = container_of(job, struct member, job);
    m->started = prepare_start(m->cay, &m->like, &m->prepared, &m->err);
}

static void start_done(struct job *job)
{
    struct member *m = container_of(job, struct member, job);
    struct pool *pool = m->pool;
    m->at_work = false;
    if (!pool) {
        prepare_free(m->prepared);
        free(m);
        return;
    }
    /* A key may tell of something that a copy of the spec without its paths does not have. */
    if (m->started == 0 && !prepare_fits(m->prepared, m->kind->key)) {
        m->kind->hopeless = true;
        prepare_free(take_out(m));
        return;
    }
    if (m->started == 0) {
        loop_watch(&pool->d->loop, &m->watch, prepare_fd(m->prepared), EPOLLIN);
        return;
    }
    log_event(LOG_WARNING, "cannot fill the pool", "error", m->err.text);
    take_out(m);
    plan_refill(pool, RETRY_US);
}

static int make_one(struct pool *pool, struct kind *kind)
{
    struct member *m = calloc(1, sizeof(*m));
    if (!m)
        return -1;
    m->pool = pool;
    m->kind = kind;
    m->cay = pool->d->cay;
    m->like = kind->like; /* a kind that has members keeps its strings */
    m->watch = (struct watch){.fd = -1, .ready = on_news};
    /* A tenant of its own, which no token has. */
    m->job = (struct job){.work = start_work, .done = start_done, .tenant = "pool"};
    m->at_work = true;
    m->next = pool->members;
    pool->members = m;
    pool->n_making++;
    kind->making++;
    jobs_add(pool->d->jobs, &m->job);
    return 0;
}

/* One too many, of a kind that is wanted less now. */
static void let_go(struct pool *pool)
{
    for (struct member *m = pool->members; m; m = m->next) {
        if (!m->ready || m->kind->ready <= m->kind->target)
            continue;
        prepare_free(take_out(m));
        return;
    }
}

static struct kind *neediest(struct pool *pool)
{
    struct kind *found = NULL;
    size_t most = 0;
    for (size_t i = 0; i < pool->n_kinds; i++) {
        struct kind *kind = &pool->kinds[i];
        size_t have = kind->ready + kind->making;
        if (kind->target > have && kind->target - have > most) {
            most = kind->target - have;
            found = kind;
        }
    }
    return found;
}

static void on_refill(struct timer *timer)
{
    struct pool *pool = container_of(timer, struct pool, refill);
    if (pool->d->phase >= DAEMON_DRAINING)
        return;
    uint64_t now = cay_now_us();
    size_t at_once = AT_ONCE;
    if (pool->busy > 0 && now - pool->quiet_us < HUNGRY_US) {
        plan_refill(pool, HUNGRY_US);
        return;
    }
    share_out(pool);
    if (pool->busy > 0 || !in_hurry(pool))
        at_once = 1;
    while (pool->n_making < at_once) {
        struct kind *kind = neediest(pool);
        if (!kind)
            break;
        if (pool->n_ready + pool->n_making >= pool->d->settings.pool)
            let_go(pool);
        if (pool->n_ready + pool->n_making >= pool->d->settings.pool)
            break;
        if (make_one(pool, kind) < 0) {
            plan_refill(pool, RETRY_US);
            break;
        }
    }
}

/* ---- for others ------------------------------------------------------------------------------ */

struct prepared *pool_take(struct pool *pool, const char *key, const struct cay_spec *spec)
{
    if (!pool || pool->d->settings.pool == 0 || !key[0])
        return NULL;
    struct kind *kind = find_kind(pool, key, spec);
    if (!kind)
        return NULL;
    uint64_t now = cay_now_us();
    kind->wishes = wishes_now(kind, now) + 1;
    kind->wished_us = now;
    for (struct member *m = pool->members; m; m = m->next)
        if (m->kind == kind && m->ready) {
            pool->d->metrics.pool_hits++;
            return take_out(m);
        }
    pool->d->metrics.pool_misses++;
    return NULL;
}

size_t pool_ready(const struct pool *pool)
{
    return pool ? pool->n_ready : 0;
}

void pool_busy(struct pool *pool, int change)
{
    if (!pool)
        return;
    pool->busy += change;
    if (pool->busy == 0) {
        pool->quiet_us = cay_now_us();
        timer_clear(&pool->d->loop, &pool->refill);
        plan_refill(pool, QUIET_US);
    }
}

int pool_open(struct daemon *d, struct pool **out, struct cay_error *err)
{
    char key[CREATE_KEY_SIZE];
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    pool->d = d;
    pool->refill.fire = on_refill;
    *out = pool;
    /* Until there are wishes, the default is what will be wished for. */
    const struct cay_spec none = {0};
    struct kind *kind =
        create_key(d->cay, &none, key, NULL) == 0 && key[0] ? find_kind(pool, key, &none) : NULL;
    if (kind && d->settings.pool) {
        kind->wishes = 1;
        kind->wished_us = cay_now_us();
        plan_refill(pool, 0);
    }
    return 0;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    timer_clear(&pool->d->loop, &pool->refill);
    while (pool->members)
        prepare_free(take_out(pool->members));
    for (size_t i = 0; i < pool->n_kinds; i++)
        kind_done(&pool->kinds[i]);
    free(pool);
}
