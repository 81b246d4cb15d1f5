/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /events and GET /audit: the journal, read back. What is old comes from the files, by a
 * worker; what is new is handed on as it is written. A follower that is too slow is cut off: it
 * comes back with ?from= and misses nothing.
 */
#include "audit/audit.h"
#include "base/err.h"
#include "base/json.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/errand.h"
#include "daemon/jobs.h"
#include "daemon/journal.h"
#include "daemon/log.h"

#include <stdio.h>
#include <string.h>

#define MAX_ENTRIES 1000
/* One answer of GET /audit: entries are bounded, their number is, too. */
#define MAX_AUDIT (64u << 20)
/* Events that one follower has not taken yet. */
#define MAX_BEHIND (256u << 10)
/* Events read from the files at once. */
#define BATCH 200

static void reply_no_log(struct request *r)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_UNSUPPORTED, "the audit log is switched off (audit in cayd.conf)");
    reply_error(r, &err);
}

/* ---- audit ----------------------------------------------------------------------------------- */

struct reading {
    struct errand errand;
    struct audit_query query;
    const char *dir, *since, *until;
    uint64_t n, last;
    char sandbox[CAY_MAX_ID];
};

static const struct opt audit_parameters[] = {
    OPT("since", 0, OPT_STR, offsetof(struct reading, since), NULL, NULL),
    OPT("until", 0, OPT_STR, offsetof(struct reading, until), NULL, NULL),
    OPT("sandbox", 0, OPT_STR, offsetof(struct reading, query.sandbox), NULL, NULL),
    OPT("tenant", 0, OPT_STR, offsetof(struct reading, query.tenant), NULL, NULL),
    OPT("label", 0, OPT_STR, offsetof(struct reading, query.label), NULL, NULL),
    OPT("action", 0, OPT_STR, offsetof(struct reading, query.action), NULL, NULL),
    OPT("limit", 0, OPT_COUNT, offsetof(struct reading, query.limit), NULL, NULL, .nonzero = true),
    OPT("after", 0, OPT_COUNT, offsetof(struct reading, query.after_seq), NULL, NULL),
    OPT("last", 0, OPT_FLAG, offsetof(struct reading, query.last), NULL, NULL),
};

/* The number that every line begins with; the line itself has no end that sscanf would see. */
static uint64_t seq_of(const char *line, size_t size)
{
    char head[40];
    unsigned long long seq = 0;
    snprintf(head, sizeof(head), "%.*s", (int)CAY_MIN(size, sizeof(head) - 1), line);
    return sscanf(head, "{\"seq\":%20llu", &seq) == 1 ? seq : 0;
}

static int add_line(const char *line, size_t size, void *data)
{
    struct reading *reading = data;
    json_comma(&reading->errand.out);
    buf_add(&reading->errand.out, line, size);
    reading->last = seq_of(line, size);
    reading->n++;
    return buf_failed(&reading->errand.out);
}

static void audit_work(struct errand *e)
{
    struct reading *reading = (struct reading *)e;
    buf_str(&e->out, "{\"entries\":[");
    e->result = audit_query(reading->dir, &reading->query, add_line, reading, &e->err);
    buf_str(&e->out, "],\"next_after\":");
    if (reading->n == reading->query.limit)
        buf_fmt(&e->out, "%llu}\n", (unsigned long long)reading->last);
    else
        buf_str(&e->out, "null}\n");
}

/* "2026-11-15T22:33:44Z", or "15m": so long ago. */
static int take_time(struct request *r, const char *name, const char *text, uint64_t *ms,
                     struct cay_error *err)
{
    uint64_t ago;
    if (!text || audit_time_parse(text, ms, NULL) == 0)
        return 0;
    if (parse_duration(text, &ago, NULL) == 0) {
        uint64_t now = cay_wall_ms();
        *ms = now > ago ? now - ago : 0;
        return 0;
    }
    snprintf(r->field, sizeof(r->field), "%s", name);
    return cay_fail(err, CAY_E_INVALID,
                    "%s '%.64s' is neither a time such as 2026-11-15T22:33:44Z nor a duration such "
                    "as 15m",
                    name, text);
}

/* A tenant sees its own entries and no others, whatever it asks for. */
static int narrow(struct request *r, struct reading *reading, struct cay_error *err)
{
    struct audit_query *q = &reading->query;
    if (q->limit > MAX_ENTRIES) {
        snprintf(r->field, sizeof(r->field), "limit");
        return cay_fail(err, CAY_E_INVALID, "limit must be 1 to %d", MAX_ENTRIES);
    }
    if (q->limit == 0)
        q->limit = MAX_ENTRIES;
    if (!r->is_operator) {
        if (q->tenant && strcmp(q->tenant, r->who.tenant) != 0)
            return cay_fail(err, CAY_E_NOT_FOUND, "no tenant '%.32s'", q->tenant);
        q->tenant = opt_strndup(&r->arena, r->who.tenant, strlen(r->who.tenant));
        if (!q->tenant)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    if (q->sandbox) {
        if (request_full_id(r, q->sandbox, reading->sandbox, err) < 0)
            return -1;
        q->sandbox = reading->sandbox;
    }
    return take_time(r, "since", reading->since, &q->since_ms, err) < 0 ||
                   take_time(r, "until", reading->until, &q->until_ms, err) < 0
               ? -1
               : 0;
}

void audit_get(struct request *r)
{
    struct cay_error err;
    if (!journal_dir(r->d->journal)) {
        reply_no_log(r);
        return;
    }
    struct reading *reading = errand_new(r, sizeof(*reading), MAX_AUDIT, audit_work);
    if (!reading)
        return;
    reading->dir = journal_dir(r->d->journal);
    if (input_query(r, audit_parameters, CAY_COUNT(audit_parameters), reading, &err) < 0 ||
        narrow(r, reading, &err) < 0) {
        errand_free(&reading->errand);
        reply_error(r, &err);
        return;
    }
    errand_go(&reading->errand, r);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct events {
    struct job job;
    struct daemon *d;
    struct request *r;
    struct journal_listener listener;
    const char *dir;
    uint64_t n, seen; /* seen: the last entry that was looked at */
    uint64_t mark;    /* the files are read up to here; what is newer waits in `later` */
    bool follow, live, at_work, more, broken, over;
    bool full, failed; /* of the worker, while it is at work */
    struct cay_error why;
    char tenant[CAY_MAX_TENANT];
    struct cay_buf batch;   /* of the worker, while it is at work */
    struct cay_buf later;   /* written while the files were being read */
    struct cay_buf pending; /* for the client */
    size_t sent;
};

struct events_query {
    uint64_t from;
    bool follow;
};

static const struct opt events_parameters[] = {
    OPT("from", 0, OPT_COUNT, offsetof(struct events_query, from), NULL, NULL),
    OPT("follow", 0, OPT_FLAG, offsetof(struct events_query, follow), NULL, NULL),
};

static void events_free(struct events *e)
{
    buf_done(&e->batch);
    buf_done(&e->later);
    buf_done(&e->pending);
    free(e);
}

static void events_drop(struct request *r)
{
    struct events *e = r->op;
    journal_unlisten(&e->listener);
    e->r = NULL;
    if (!e->at_work)
        events_free(e);
}

static const char *own_tenant(const struct events *e)
{
    return e->tenant[0] ? e->tenant : NULL;
}

static int add_event(const char *line, size_t size, void *data)
{
    struct events *e = data;
    uint64_t seq = seq_of(line, size);
    if (seq > e->mark)
        return 1;
    size_t before = e->batch.size;
    if (audit_event(line, size, own_tenant(e), &e->batch) > 0)
        buf_str(&e->batch, "\n");
    if (buf_failed(&e->batch)) {
        /* Full: this one begins the next batch, unless it is too large for any. */
        e->batch.size = before;
        e->batch.failed = false;
        e->full = before > 0;
        e->failed = before == 0;
        return 1;
    }
    e->seen = seq;
    e->n++;
    return 0;
}

static void events_work(struct job *job)
{
    struct events *e = container_of(job, struct events, job);
    const struct audit_query query = {
        .after_seq = e->seen, .limit = BATCH, .tenant = own_tenant(e), .lifecycle_only = true};
    e->n = 0;
    e->full = false;
    if (audit_query(e->dir, &query, add_event, e, &e->why) < 0)
        e->failed = true; /* a gap that nobody sees is worse than a stream that ends */
}

static void next_batch(struct events *e)
{
    e->at_work = true;
    e->more = false;
    e->mark = journal_last(e->d->journal);
    e->later.size = 0;
    jobs_add(e->d->jobs, &e->job);
}

static void events_done(struct job *job)
{
    struct events *e = container_of(job, struct events, job);
    e->at_work = false;
    if (!e->r) {
        events_free(e);
        return;
    }
    if (e->over)
        return;
    buf_add(&e->pending, e->batch.data, e->batch.size);
    e->batch.size = 0;
    e->more = e->n == BATCH || e->full;
    if (!e->more) {
        buf_add(&e->pending, e->later.data, e->later.size);
        buf_done(&e->later);
        e->live = true;
    }
    if (e->why.code)
        log_event(LOG_WARNING, "events cannot be read", "error", e->why.text);
    e->broken = e->broken || e->failed || buf_failed(&e->pending);
    request_wake(e->r);
}

static void on_line(struct journal_listener *listener, uint64_t seq, const char *line, size_t size)
{
    struct events *e = container_of(listener, struct events, listener);
    autobuf struct cay_buf text = CAY_BUF(MAX_BEHIND);
    (void)seq;
    if (audit_event(line, size, own_tenant(e), &text) <= 0)
        return;
    buf_str(&text, "\n");
    if (buf_failed(&text) || buf_add(e->live ? &e->pending : &e->later, text.data, text.size) < 0)
        e->broken = true;
    request_wake(e->r);
}

static ssize_t events_read(struct request *r, char *buffer, size_t size)
{
    struct events *e = r->op;
    size_t left = e->pending.size - e->sent;
    if (left > 0) {
        size_t n = CAY_MIN(left, size);
        memcpy(buffer, e->pending.data + e->sent, n);
        e->sent += n;
        if (e->sent == e->pending.size)
            e->pending.size = e->sent = 0;
        return (ssize_t)n;
    }
    if (e->broken)
        return STREAM_BROKEN;
    if (e->over)
        return STREAM_END;
    if (e->more && !e->at_work)
        next_batch(e);
    if (e->at_work || e->follow)
        return STREAM_WAIT;
    return STREAM_END;
}

static void events_end(struct request *r, const struct cay_error *why)
{
    struct events *e = r->op;
    journal_unlisten(&e->listener);
    buf_str(&e->pending, "{\"type\":\"error\",\"error\":");
    error_json(&e->pending, r, why);
    buf_str(&e->pending, "}\n");
    e->broken = e->broken || buf_failed(&e->pending);
    e->over = true;
    request_wake(r);
}

void events_get(struct request *r)
{
    struct cay_error err;
    struct events_query query = {0};
    if (input_query(r, events_parameters, CAY_COUNT(events_parameters), &query, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct events *e = journal_dir(r->d->journal) ? calloc(1, sizeof(*e)) : NULL;
    if (!e) {
        reply_no_log(r);
        return;
    }
    e->job = (struct job){.work = events_work, .done = events_done};
    e->d = r->d;
    e->r = r;
    e->dir = journal_dir(r->d->journal);
    e->seen = query.from ? query.from - 1 : 0;
    e->follow = query.follow;
    e->batch = e->later = CAY_BUF(MAX_BEHIND);
    e->pending = CAY_BUF(2 * MAX_BEHIND);
    e->listener.line = on_line;
    snprintf(e->tenant, sizeof(e->tenant), "%s", r->is_operator ? "" : r->who.tenant);
    r->op = e;
    r->drop = events_drop;
    r->read = events_read;
    r->end = events_end;
    if (query.follow)
        journal_listen(r->d->journal, &e->listener);
    next_batch(e);
    reply_stream(r, MHD_HTTP_OK, "application/x-ndjson", UINT64_MAX);
}
