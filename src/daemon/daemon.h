/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cayd: libcay's sandboxes over HTTP. One loop in one thread does all HTTP and talks to all
 * keepers; a few worker threads (jobs.c) make blocking calls of libcay that have no answer within
 * microseconds. What is true is in the keepers and on disk: everything here may be lost at any
 * moment.
 *
 *   main.c      options, start, signals, drain
 *   settings.c  the config file
 *   server.c    listeners and connections: libmicrohttpd on our loop
 *   request.c   one request: who asks, what for, how it is answered
 *   routes.c    the table of routes
 *   input.c     bodies and queries into structs, by option tables
 *   call.c      talking to keepers and file workers without blocking
 *   ask.c       requests that are one question to a keeper
 *   errand.c    requests that a worker answers (jobs.c)
 *   journal.c   the audit log, and the events that are made of it
 *   roster.c    the sandboxes that live, for quotas, metrics and events
 *   recount.c   commands that an earlier daemon started, for quotas
 *   pool.c      sandboxes made ahead
 *   remains.c   what is left of those when their daemon or keeper was killed
 *   api_*.c     the handlers, a family each
 *   fronts/     other products' protocols
 */
#ifndef CAY_DAEMON_DAEMON_H
#define CAY_DAEMON_DAEMON_H

#include "base/loop.h"
#include "daemon/metrics.h"
#include "daemon/settings.h"
#include "sandbox/sandbox.h"

struct server;
struct jobs;
struct pool;
struct remains;
struct roster;
struct journal;
struct tokens;
struct operator_policy;
struct creating;

/* What is no request any more, and wants to know that the daemon ends. */
struct ending {
    struct ending *next, **link;
    void (*end)(struct ending *ending, const struct cay_error *why); /* may free it */
};

enum daemon_phase {
    DAEMON_STARTING, /* not ready yet */
    DAEMON_SERVING,
    DAEMON_DRAINING, /* no new requests; what runs may come to its end */
    DAEMON_CLOSING,  /* connections are cut by us: that is no client that went away */
};

struct daemon {
    struct loop loop;
    struct cay *cay;
    struct cay *looker; /* the same for the loop, which cannot wait for a sweep */
    struct settings settings;
    struct server *server;
    struct jobs *jobs;
    struct pool *pool;
    struct remains *remains;
    struct roster *roster;
    struct journal *journal;
    struct tokens *tokens;
    struct operator_policy *policy;
    struct ending *endings;
    struct creating *creating; /* api_create.c: creates at work, whether or not somebody waits */
    struct metrics metrics;
    enum daemon_phase phase;
    unsigned large_bodies; /* on their way (admit.c) */
    bool upgrade;          /* after the drain: execute ourselves anew with the same listeners */
    uint64_t started_us;
    struct timer drain_timer;
    uint64_t drain_until_us;
};

#endif
