/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/metrics.h"

#include "base/util.h"
#include "daemon/api.h"
#include "daemon/daemon.h"
#include "daemon/pool.h"
#include "daemon/roster.h"
#include "daemon/routes.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXT (4u << 20)
#define METRICS_TYPE "text/plain; version=0.0.4"

/* Upper ends of the histogram's buckets. */
static const uint64_t bounds_us[METRICS_BUCKETS] = {250,    500,     1000,    2500,    5000,
                                                    10000,  25000,   50000,   100000,  250000,
                                                    500000, 1000000, 5000000, 30000000};

static const char *const class_names[CLASS_COUNT] = {"2xx", "3xx", "4xx", "5xx", "gone"};

static enum metrics_class class_of(unsigned status, bool gone)
{
    if (status == 0 || (gone && status < 400))
        return CLASS_GONE;
    return status < 300   ? CLASS_2XX
           : status < 400 ? CLASS_3XX
           : status < 500 ? CLASS_4XX
                          : CLASS_5XX;
}

void metrics_request(struct metrics *m, size_t route, unsigned status, bool gone, uint64_t took_us)
{
    size_t bucket = 0;
    m->requests[route][class_of(status, gone)]++;
    while (bucket < METRICS_BUCKETS && took_us > bounds_us[bucket])
        bucket++;
    m->seconds[bucket]++;
    m->seconds_count++;
    m->seconds_sum_us += took_us;
}

/* One line for each plain number. */
static const struct {
    const char *name, *type, *help;
    size_t offset;
} plain[] = {
#define ROW(name, type, member, help)                             \
    {                                                             \
        "cay_" name, type, help, offsetof(struct metrics, member) \
    }
    ROW("requests_in_flight", "gauge", in_flight, "requests at work, streams among them"),
    ROW("streams", "gauge", streams, "answers that are being streamed"),
    ROW("connections", "gauge", connections, "open connections of clients"),
    ROW("connections_total", "counter", connections_total, "connections since the start"),
    ROW("sandboxes_created_total", "counter", created, "sandboxes made"),
    ROW("sandboxes_failed_total", "counter", create_failed, "sandboxes that could not be made"),
    ROW("sandboxes_ended_total", "counter", ended, "sandboxes seen to end"),
    ROW("sweeps_total", "counter", sweeps, "looks at sandboxes whose keeper seemed dead"),
    ROW("pool_hits_total", "counter", pool_hits, "sandboxes given from the pool"),
    ROW("pool_misses_total", "counter", pool_misses, "sandboxes made from nothing"),
    ROW("execs_total", "counter", execs, "commands started"),
    ROW("bytes_received_total", "counter", bytes_in, "bytes of bodies from clients"),
    ROW("bytes_sent_total", "counter", bytes_out, "bytes of streamed answers"),
    ROW("audit_entries_total", "counter", audit_entries, "entries written to the audit log"),
    ROW("audit_failures_total", "counter", audit_failed, "entries that could not be written"),
    ROW("unauthorized_total", "counter", unauthorized, "requests without a valid token"),
    ROW("denied_total", "counter", denied, "requests refused by host, origin or scope"),
#undef ROW
};

static void head(struct cay_buf *out, const char *name, const char *type, const char *help)
{
    buf_fmt(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_plain(struct cay_buf *out, const struct metrics *m)
{
    for (size_t i = 0; i < CAY_COUNT(plain); i++) {
        uint64_t value;
        memcpy(&value, (const char *)m + plain[i].offset, sizeof(value));
        head(out, plain[i].name, plain[i].type, plain[i].help);
        buf_fmt(out, "%s %llu\n", plain[i].name, (unsigned long long)value);
    }
}

static void add_requests(struct cay_buf *out, const struct metrics *m)
{
    head(out, "cay_requests_total", "counter", "requests by route and result");
    for (size_t i = 0; i < METRICS_ROUTES; i++) {
        const struct route *route = routes_at(i);
        if (!route && i < METRICS_FRONT)
            continue;
        const char *path = route ? route->path : i == METRICS_FRONT ? "/aio/{key}" : "none";
        for (size_t j = 0; j < CLASS_COUNT; j++)
            if (m->requests[i][j])
                buf_fmt(out, "cay_requests_total{method=\"%s\",route=\"%s\",result=\"%s\"} %llu\n",
                        route ? route->method : "", path, class_names[j],
                        (unsigned long long)m->requests[i][j]);
    }
    uint64_t sum = 0;
    head(out, "cay_request_seconds", "histogram", "time from the request to the end of its answer");
    for (size_t i = 0; i < METRICS_BUCKETS; i++) {
        sum += m->seconds[i];
        buf_fmt(out, "cay_request_seconds_bucket{le=\"%g\"} %llu\n", (double)bounds_us[i] / 1e6,
                (unsigned long long)sum);
    }
    buf_fmt(out, "cay_request_seconds_bucket{le=\"+Inf\"} %llu\n",
            (unsigned long long)m->seconds_count);
    buf_fmt(out, "cay_request_seconds_sum %.6f\ncay_request_seconds_count %llu\n",
            (double)m->seconds_sum_us / 1e6, (unsigned long long)m->seconds_count);
}

static void add_tenant(const struct tenant *t, void *data)
{
    struct cay_buf *out = data;
    if (!t)
        return;
    buf_fmt(out, "cay_tenant_sandboxes{tenant=\"%s\"} %llu\n", t->name,
            (unsigned long long)t->sandboxes);
}

static void add_memory(struct cay_buf *out)
{
    char text[128];
    unsigned long pages = 0;
    if (cay_read_file_at(AT_FDCWD, "/proc/self/statm", text, sizeof(text)) > 0)
        sscanf(text, "%*u %lu", &pages);
    head(out, "process_resident_memory_bytes", "gauge", "memory of the daemon");
    buf_fmt(out, "process_resident_memory_bytes %llu\n",
            (unsigned long long)pages * (unsigned long long)sysconf(_SC_PAGESIZE));
}

void metrics_get(struct request *r)
{
    autobuf struct cay_buf out = CAY_BUF(MAX_TEXT);
    struct cay_error err;
    if (input_no_query(r, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    /* What a tenant may know: how much it has itself. */
    if (!r->is_operator) {
        head(&out, "cay_tenant_sandboxes", "gauge", "sandboxes that live, by tenant");
        add_tenant(roster_tenant(r->d->roster, r->who.tenant), &out);
        reply_text(r, MHD_HTTP_OK, METRICS_TYPE, &out);
        return;
    }
    head(&out, "cay_info", "gauge", "the version of the daemon");
    buf_fmt(&out, "cay_info{version=\"%s\"} 1\n", cay_version());
    head(&out, "cay_sandboxes", "gauge", "sandboxes that live");
    buf_fmt(&out, "cay_sandboxes %zu\n", roster_count(r->d->roster));
    head(&out, "cay_pool_ready", "gauge", "sandboxes made ahead that wait");
    buf_fmt(&out, "cay_pool_ready %zu\n", pool_ready(r->d->pool));
    add_plain(&out, &r->d->metrics);
    add_requests(&out, &r->d->metrics);
    head(&out, "cay_tenant_sandboxes", "gauge", "sandboxes that live, by tenant");
    roster_tenants(r->d->roster, add_tenant, &out);
    add_memory(&out);
    reply_text(r, MHD_HTTP_OK, METRICS_TYPE, &out);
}
