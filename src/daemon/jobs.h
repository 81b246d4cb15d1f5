/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads for what blocks: creating, listing, queries of the journal. `work` runs in a
 * worker and touches nothing but its job (and libcay, which may be used by several threads);
 * `done` runs in the loop's thread afterwards and may free the job.
 *
 * Those that wait are taken in turns, one of each tenant: who asks for much waits longer, and
 * others do not.
 */
#ifndef CAY_DAEMON_JOBS_H
#define CAY_DAEMON_JOBS_H

#include "base/limits.h"
#include "base/loop.h"

#include <cay/cay.h>

struct jobs;

struct job {
    struct job *next;
    void (*work)(struct job *job);
    void (*done)(struct job *job);
    char tenant[CAY_MAX_TENANT]; /* whose turn it takes; "": the operator's */
    uint64_t turn;               /* jobs.c's */
};

int jobs_new(struct loop *loop, struct jobs **out, struct cay_error *err);
/* Waits for jobs at work; those not yet begun are done without work. */
void jobs_free(struct jobs *jobs);
void jobs_add(struct jobs *jobs, struct job *job);

#endif
