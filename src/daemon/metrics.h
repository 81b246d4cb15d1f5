/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of the daemon, in Prometheus' text form. Touched by the loop's thread only.
 */
#ifndef CAY_DAEMON_METRICS_H
#define CAY_DAEMON_METRICS_H

#include "base/buf.h"

#define METRICS_ROUTES 96
#define METRICS_NONE (METRICS_ROUTES - 1)  /* no route at all */
#define METRICS_FRONT (METRICS_ROUTES - 2) /* those of fronts/ together */
#define METRICS_BUCKETS 14

enum metrics_class { CLASS_2XX, CLASS_3XX, CLASS_4XX, CLASS_5XX, CLASS_GONE, CLASS_COUNT };

struct metrics {
    uint64_t requests[METRICS_ROUTES][CLASS_COUNT]; /* by index in the route table */
    uint64_t seconds[METRICS_BUCKETS + 1];          /* histogram of answer times */
    uint64_t seconds_count, seconds_sum_us;
    uint64_t in_flight, streams, connections, connections_total, refused_connections;
    uint64_t created, create_failed, pool_hits, pool_misses, execs, ended, sweeps;
    uint64_t bytes_in, bytes_out;
    uint64_t audit_entries, audit_failed;
    uint64_t unauthorized, denied;
};

void metrics_request(struct metrics *m, size_t route, unsigned status, bool gone, uint64_t took_us);

#endif
