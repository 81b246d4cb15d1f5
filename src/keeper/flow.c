/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output between a process and those who follow it. A follower holds the process back as the reader
 * of a pipe does: while one of them lags, the output of the process is not read, and its pipes
 * fill. What nobody follows is drained, and the newest of it kept. A follower that takes nothing
 * for its stall limit while it holds the process back is cut, and told so.
 *
 * Draining what nobody follows costs processor time that no limit of the sandbox counts: there is a
 * rate, far above what programs print, beyond which such output is not read for a moment.
 *
 * What is kept of all processes has one budget for the sandbox: the oldest of those that have ended
 * gives up its output first. So has the memory for where the stream changes between the two.
 */
#include "base/err.h"
#include "base/util.h"
#include "keeper/keeper.h"

/* Output that waits for a follower; beyond it the process waits, too. A few pipes' worth: enough to
 * keep both sides at work. */
#define WINDOW (512u << 10)

/* Of all output of a sandbox that nobody follows, a second; so much may come at once, too. */
#define ALONE_RATE (64u << 20)
#define ALONE_TICK_US 50000
/* What the merged log may always keep of the budget: a quarter. */
#define LOG_SHARE 4

static bool follows(const struct client *client, const struct proc *proc)
{
    return client->mode == CLIENT_STREAM && client->follow && client->proc == proc;
}

static const struct spool *spool_of(const struct client *client)
{
    return client->proc ? &client->proc->spool : &client->keeper->log;
}

static bool is_behind(const struct keeper *k, const struct spool *spool, uint64_t offset)
{
    uint64_t behind = offset < spool->end ? spool->end - offset : 0;
    return behind >= WINDOW ||
           (behind && (spool_crowded(spool) || k->switches > CAY_SWITCH_MEMORY_ALL));
}

static bool lags(const struct client *client)
{
    return is_behind(client->keeper, spool_of(client), client->offset);
}

uint64_t flow_floor(const struct keeper *k, const struct proc *proc)
{
    uint64_t floor = proc ? proc->awaited : UINT64_MAX;
    for (const struct client *c = k->clients; c; c = c->next)
        if (follows(c, proc))
            floor = CAY_MIN(floor, c->offset);
    return floor;
}

static void on_stall(struct timer *timer)
{
    struct client *client = container_of(timer, struct client, timer);
    struct keeper *k = client->keeper;
    struct proc *proc = client->proc;
    struct cay_error err;
    uint64_t end = client->progress_us + client->stall_ms * 1000;
    if (k->state == CAY_STATE_PAUSED) { /* flow_resumed says when; it stays armed until then */
        timer_set(&k->loop, timer, UINT64_MAX);
        return;
    }
    if (client->mode != CLIENT_STREAM || !lags(client))
        return;
    if (cay_now_us() < end) {
        timer_set(&k->loop, timer, end);
        return;
    }
    cay_fail(
        &err, CAY_E_STALLED,
        "the reader took nothing for %llu s and was cut off at offset %llu; the process goes on",
        (unsigned long long)(client->stall_ms / 1000), (unsigned long long)client->offset);
    client_leave(client);
    client_fail(client, &err);
    flow_check(k, proc);
}

static void arm_stall(struct client *client)
{
    client->timer.fire = on_stall;
    timer_set(&client->keeper->loop, &client->timer, client->progress_us + client->stall_ms * 1000);
}

/* From when it lags on, the time until it takes something is limited. */
static void limit_stall(struct client *client)
{
    if (client->timer.armed || client->stall_ms == UINT64_MAX)
        return;
    client->progress_us = life_clock(client->keeper);
    arm_stall(client);
}

static bool has_laggard(struct keeper *k, const struct proc *proc)
{
    bool found = proc && is_behind(k, &proc->spool, proc->awaited);
    for (struct client *c = k->clients; c; c = c->next) {
        if (follows(c, proc) && lags(c)) {
            limit_stall(c);
            found = true;
        }
    }
    return found;
}

static bool is_followed(const struct keeper *k, const struct proc *proc)
{
    return flow_floor(k, proc) != UINT64_MAX || flow_floor(k, NULL) != UINT64_MAX;
}

static void set_stopped(struct proc *proc, bool stopped)
{
    if (proc->stopped == stopped)
        return;
    proc->stopped = stopped;
    stopped ? proc->keeper->n_stopped++ : proc->keeper->n_stopped--;
    stdio_watch(proc);
}

static bool must_stop(struct keeper *k, const struct proc *proc, bool all)
{
    return all || has_laggard(k, proc) || (k->alone_spent && !is_followed(k, proc));
}

static void trim(struct keeper *k, struct spool *spool, uint64_t bytes);

/* What a follower that has gone still needed, and that is beyond the maximum. */
static void drop_unneeded(struct keeper *k, struct proc *proc)
{
    struct spool *spool = &proc->spool;
    spool->floor = flow_floor(k, proc);
    if (spool_size(spool) > spool->max)
        trim(k, spool, spool_size(spool) - spool->max);
}

void flow_check(struct keeper *k, struct proc *proc)
{
    bool all = has_laggard(k, NULL);
    if (proc)
        drop_unneeded(k, proc);
    bool every = !proc || all != k->log_stopped;
    k->log_stopped = all;
    if (!every)
        set_stopped(proc, must_stop(k, proc, all));
    else if (all || k->alone_spent || k->n_stopped)
        for (struct proc *p = k->procs; p; p = p->next)
            set_stopped(p, must_stop(k, p, all));
}

static void on_alone_refill(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, alone_timer);
    k->alone_spent = false;
    flow_check(k, NULL);
}

/* So much was read for nobody. */
static void spend_alone(struct keeper *k, size_t size)
{
    k->alone_left -= (int64_t)size;
    if (k->alone_left > 0)
        return;
    uint64_t now = cay_now_us(), passed = CAY_MIN(now - k->alone_us, (uint64_t)1000000);
    k->alone_us = now;
    k->alone_left += (int64_t)(passed * ALONE_RATE / 1000000);
    if (k->alone_left > 0)
        return;
    k->alone_spent = true;
    k->alone_timer.fire = on_alone_refill;
    timer_set(&k->loop, &k->alone_timer, now + ALONE_TICK_US);
    flow_check(k, NULL);
}

static void on_hold_over(struct timer *timer)
{
    struct proc *proc = container_of(timer, struct proc, hold);
    if (proc->keeper->state != CAY_STATE_PAUSED)
        flow_met(proc);
}

void flow_await(struct proc *proc, uint64_t offset, uint64_t ms)
{
    proc->awaited = offset;
    proc->hold.fire = on_hold_over;
    timer_set(&proc->keeper->loop, &proc->hold, life_clock(proc->keeper) + ms * 1000);
    flow_check(proc->keeper, proc);
}

void flow_met(struct proc *proc)
{
    timer_clear(&proc->keeper->loop, &proc->hold);
    proc->awaited = UINT64_MAX;
    flow_check(proc->keeper, proc);
}

void flow_resumed(struct keeper *k, uint64_t paused_us)
{
    uint64_t now = cay_now_us();
    for (struct proc *p = k->procs; p; p = p->next)
        if (p->awaited != UINT64_MAX && p->hold.fire)
            timer_set(&k->loop, &p->hold, p->hold.at_us + paused_us);
    for (struct client *c = k->clients; c; c = c->next) {
        if (c->mode != CLIENT_STREAM || !c->timer.armed)
            continue;
        c->progress_us = CAY_MIN(c->progress_us + paused_us, now);
        arm_stall(c);
    }
}

/* ---- the budget ------------------------------------------------------------------------------ */

/* What the budgets are about, of one spool before it is changed. */
struct weight {
    uint64_t size;
    size_t switches;
};

static struct weight weigh(const struct spool *spool)
{
    return (struct weight){spool_size(spool), spool_switch_memory(spool)};
}

static void count(struct keeper *k, const struct spool *spool, struct weight before)
{
    k->kept += spool_size(spool) - before.size;
    k->switches += spool_switch_memory(spool) - before.switches;
}

static void trim(struct keeper *k, struct spool *spool, uint64_t bytes)
{
    struct weight before = weigh(spool);
    spool_trim(spool, spool->start + CAY_MIN(bytes, before.size));
    count(k, spool, before);
}

static void shed(struct keeper *k, struct spool *spool, size_t switches)
{
    struct weight before = weigh(spool);
    spool_shed(spool, switches);
    count(k, spool, before);
}

static void keep_budget(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    uint64_t most = spec_kept_output(&k->spec.spec);
    for (struct proc *p = k->procs; p && k->kept > most; p = p->next) {
        if (p->state != PROC_ENDED || p == proc)
            continue;
        p->spool.floor = flow_floor(k, p);
        trim(k, &p->spool, k->kept - most);
    }
    /* A small disk: the log has the same bytes once more, and must not take the place of all. */
    if (k->kept > most && spool_size(&k->log) > most / LOG_SHARE)
        trim(k, &k->log, CAY_MIN(k->kept - most, spool_size(&k->log) - most / LOG_SHARE));
    if (k->kept > most)
        trim(k, &proc->spool, k->kept - most);
}

/* In memory, whatever becomes of the output: the same, for where the stream changes. */
static void keep_memory(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    for (struct proc *p = k->procs; p && k->switches > CAY_SWITCH_MEMORY_ALL; p = p->next) {
        if (p->state != PROC_ENDED || p == proc || p->spool.n_switches <= CAY_ENDED_SWITCHES)
            continue;
        p->spool.floor = flow_floor(k, p);
        shed(k, &p->spool, CAY_ENDED_SWITCHES);
    }
    if (k->switches > CAY_SWITCH_MEMORY_ALL)
        shed(k, &proc->spool, CAY_MAX(proc->spool.n_switches / 4, (size_t)1));
}

static void store(struct keeper *k, struct spool *spool, const struct proc *of, int stream,
                  const char *bytes, size_t size)
{
    struct weight before = weigh(spool);
    spool->floor = flow_floor(k, of);
    spool_append(spool, k->spools, stream, bytes, size);
    count(k, spool, before);
}

void flow_store(struct proc *proc, int stream, const char *bytes, size_t size)
{
    struct keeper *k = proc->keeper;
    store(k, &proc->spool, proc, stream, bytes, size);
    store(k, &k->log, NULL, stream, bytes, size);
    /* What both have just found out: does anybody need what is in them? */
    if (proc->spool.floor == UINT64_MAX && k->log.floor == UINT64_MAX)
        spend_alone(k, size);
    if (k->kept > spec_kept_output(&k->spec.spec))
        keep_budget(proc);
    if (k->switches > CAY_SWITCH_MEMORY_ALL)
        keep_memory(proc);
}

void flow_forget(struct proc *proc)
{
    timer_clear(&proc->keeper->loop, &proc->hold);
    set_stopped(proc, false);
    proc->keeper->kept -= spool_size(&proc->spool);
    proc->keeper->switches -= spool_switch_memory(&proc->spool);
    spool_done(&proc->spool);
}
