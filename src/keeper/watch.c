/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the sandbox takes more from the host than its share of what no control group counts
 * (budget.h). While commands run, each second: has the sandbox used the CPU at all, for nothing is
 * hoarded without; then, is the host short of something; and only then, how much of it is this
 * sandbox's. What ends within the first second, and a sandbox in which nothing runs, cost nothing.
 */
#include "base/util.h"
#include "keeper/keeper.h"

#include <stdio.h>
#include <sys/sysinfo.h>

#define LOOK_US 1000000
#define LOOK_SELDOM_US 10000000
/* While a count is being made, and how much of that time its slow part may take. */
#define LOOK_SOON_US 250000
#define SLICE_US 75000
#define QUICK_US 200000
/* Without so much of the CPU since the last look there is nothing new to see. */
#define IDLE_CPU_US 10000

static bool is_in_use(const struct keeper *k)
{
    if (k->running)
        return true;
    for (const struct proc *p = k->procs; p; p = p->next)
        if (p->lingering)
            return true;
    return false;
}

static void begin(struct watcher *w, struct keeper *k)
{
    struct sysinfo host;
    uint64_t ram = sysinfo(&host) < 0 ? 0 : (uint64_t)host.totalram * host.mem_unit;
    w->begun = true;
    w->share = budget_share(k->spec.spec.memory, ram);
    w->own_filters = holdings_filters(k->jail.pid);
    /* The base is nothing: what was taken before this first look is counted once. */
    holdings_limits(&w->now);
}

/* Memory that others have given back is not ours to use. */
static void lower_base(struct watcher *w)
{
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++)
        w->base.used[kind] = CAY_MIN(w->base.used[kind], w->now.used[kind]);
}

/* Counts on; true if it is too much. */
static bool count(struct keeper *k, unsigned kinds)
{
    struct watcher *w = &k->watcher;
    struct holdings *quick = &w->quick, *deep = &w->deep;
    const struct holdings_of of = {.cgroup = &k->cgroup,
                                   .init = k->jail.pid,
                                   .kinds = kinds,
                                   .fds = k->spec.spec.fds,
                                   .own_filters = w->own_filters};
    uint64_t now = cay_now_us();
    if (!w->counting)
        w->started = w->now;
    bool all = holdings_quick(quick, &of, now + QUICK_US);
    bool deep_all = holdings_deep(deep, &of, cay_now_us() + SLICE_US);
    struct budget_held held = deep->held;
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++)
        held.of[kind] += quick->held.of[kind];
    bool over =
        budget_over(&held, &w->now, kinds, w->share, k->reason_text, sizeof(k->reason_text));
    if (all)
        *quick = (struct holdings){0};
    if (deep_all) {
        *deep = (struct holdings){0};
        w->base = w->started; /* what there was then is not this sandbox's, or not too much */
    }
    w->counting = !all || !deep_all;
    return over;
}

static void on_look(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, watcher.timer);
    struct watcher *w = &k->watcher;
    if (k->phase >= PHASE_KILLING || k->state == CAY_STATE_PAUSED)
        return;
    uint64_t cpu = cgroup_cpu(&k->cgroup), next = cay_now_us() + LOOK_US;
    bool in_use = is_in_use(k);
    bool moved = !cpu || cpu - w->cpu_us >= IDLE_CPU_US;
    if (!moved && !w->counting) {
        if (in_use)
            timer_set(&k->loop, timer, next);
        return;
    }
    /* Without cgroups it cannot be told whether a command left anything behind. */
    if (!cpu && !in_use)
        next += LOOK_SELDOM_US;
    w->cpu_us = cpu;
    if (!w->begun)
        begin(w, k);
    holdings_host(&w->now);
    lower_base(w);
    unsigned kinds = budget_short(&w->now, &w->base, w->share);
    if (w->counting)
        kinds |= w->kinds;
    w->kinds = kinds;
    if (kinds && count(k, kinds)) {
        life_end(k, CAY_STATE_OOM, k->reason_text, 0);
        return;
    }
    timer_set(&k->loop, timer, w->counting ? cay_now_us() + LOOK_SOON_US : next);
}

void watch_start(struct keeper *k)
{
    struct timer *timer = &k->watcher.timer;
    uint64_t at_us = cay_now_us() + LOOK_US;
    if ((timer->armed && timer->at_us <= at_us) || k->phase >= PHASE_KILLING)
        return;
    timer->fire = on_look;
    timer_set(&k->loop, timer, at_us);
}

void watch_stop(struct keeper *k)
{
    timer_clear(&k->loop, &k->watcher.timer);
}
