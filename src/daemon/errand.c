/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/errand.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

void errand_free(struct errand *errand)
{
    opt_arena_done(&errand->arena);
    buf_done(&errand->out);
    free(errand);
}

static void on_work(struct job *job)
{
    struct errand *errand = container_of(job, struct errand, job);
    errand->work(errand);
}

static void on_done(struct job *job)
{
    struct errand *errand = container_of(job, struct errand, job);
    struct request *r = errand->r;
    if (r)
        r->drop = NULL; /* the errand is ours alone again */
    if (errand->done)
        errand->done(errand);
    else if (r && errand->result < 0)
        reply_error(r, &errand->err);
    else if (r)
        reply_json(r, MHD_HTTP_OK, &errand->out);
    errand_free(errand);
}

static void on_drop(struct request *r)
{
    ((struct errand *)r->op)->r = NULL;
}

void *errand_new(struct request *r, size_t size, size_t max_out,
                 void (*work)(struct errand *errand))
{
    struct errand *errand = calloc(1, size);
    if (!errand) {
        struct cay_error err;
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    errand->job = (struct job){.work = on_work, .done = on_done};
    snprintf(errand->job.tenant, sizeof(errand->job.tenant), "%s", r->who.tenant);
    errand->d = r->d;
    errand->work = work;
    errand->out = CAY_BUF(max_out);
    snprintf(errand->id, sizeof(errand->id), "%s", r->id);
    return errand;
}

void errand_hold(struct errand *errand, struct request *r)
{
    errand->arena = r->arena;
    r->arena = (struct opt_arena){0};
    errand->r = r;
    r->op = errand;
    r->drop = on_drop;
}

void errand_send(struct errand *errand)
{
    jobs_add(errand->d->jobs, &errand->job);
}

void errand_go(struct errand *errand, struct request *r)
{
    errand_hold(errand, r);
    errand_send(errand);
}
