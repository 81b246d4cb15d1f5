/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that a worker thread answers, because it blocks: lists, records, queries. The errand
 * owns all that its work needs, so that a client may go away in the middle.
 */
#ifndef CAY_DAEMON_ERRAND_H
#define CAY_DAEMON_ERRAND_H

#include "daemon/jobs.h"
#include "daemon/request.h"

struct errand {
    struct job job;
    struct daemon *d;
    struct request *r; /* NULL: its client went away. Not for `work` */
    struct opt_arena arena;
    /* In a worker: fills `out`, or `err` and result -1. */
    void (*work)(struct errand *errand);
    /* On the loop, with or without a client; NULL: answer 200 with `out`, or the error. */
    void (*done)(struct errand *errand);
    struct cay_buf out;
    struct cay_error err;
    int result;
    char id[CAY_MAX_ID]; /* r->id */
};

/* `size` of an object that begins with a struct errand; NULL: there was no memory, and that was
 * answered. Give it to errand_go, or back to errand_free. */
void *errand_new(struct request *r, size_t size, size_t max_out,
                 void (*work)(struct errand *errand));
/* Takes over what the request has allocated, and sends it off. */
void errand_go(struct errand *errand, struct request *r);
/* The same in two steps, for one that has to wait first. */
void errand_hold(struct errand *errand, struct request *r);
void errand_send(struct errand *errand);
void errand_free(struct errand *errand);

#endif
