/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop.h"

#include "base/util.h"

#include <limits.h>

/* Between two tries of what the kernel had no memory for. */
#define LATE_MS 20

int loop_init(struct loop *loop)
{
    *loop = (struct loop){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    return loop->epoll < 0 ? -1 : 0;
}

void loop_done(struct loop *loop)
{
    close_fd(&loop->epoll);
}

static int try_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    int operation = watch->fd >= 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll, operation, fd, &event) < 0)
        return -1;
    watch->fd = fd;
    watch->events = events;
    return 0;
}

static void drop_late(struct loop *loop, struct watch *watch)
{
    for (struct watch **at = &loop->late; watch->late && *at; at = &(*at)->next_late) {
        if (*at == watch) {
            *at = watch->next_late;
            break;
        }
    }
    watch->late = false;
}

static void add_late(struct loop *loop, struct watch *watch, int fd, uint32_t events)
{
    watch->late_fd = fd;
    watch->late_events = events;
    watch->next_late = loop->late;
    watch->late = true;
    loop->late = watch;
}

void loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events)
{
    drop_late(loop, watch);
    if (watch->fd >= 0 && watch->events == events)
        return;
    if (try_watch(loop, watch, fd, events) < 0)
        add_late(loop, watch, fd, events);
}

static void try_late(struct loop *loop)
{
    struct watch *list = loop->late;
    loop->late = NULL;
    for (struct watch *watch = list, *next; watch; watch = next) {
        next = watch->next_late;
        watch->late = false;
        loop_watch(loop, watch, watch->late_fd, watch->late_events);
    }
}

void loop_forget(struct loop *loop, struct watch *watch)
{
    drop_late(loop, watch);
    if (watch->fd < 0)
        return;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->fd = -1;
    /* Its event may wait in the batch that is being handled now. */
    for (int i = 0; i < loop->n_batch; i++)
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
}

void timer_clear(struct loop *loop, struct timer *timer)
{
    if (!timer->armed)
        return;
    for (struct timer **at = &loop->timers; *at; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->armed = false;
}

void timer_set(struct loop *loop, struct timer *timer, uint64_t at_us)
{
    timer_clear(loop, timer);
    struct timer **at = &loop->timers;
    while (*at && (*at)->at_us <= at_us)
        at = &(*at)->next;
    timer->at_us = at_us;
    timer->next = *at;
    timer->armed = true;
    *at = timer;
}

/* Rounded up: a timer never fires early, and the loop never spins on the last fraction. */
static int until_next(const struct loop *loop)
{
    int most = loop->late ? LATE_MS : -1;
    if (!loop->timers)
        return most;
    uint64_t now = cay_now_us();
    if (loop->timers->at_us <= now)
        return 0;
    uint64_t ms = (loop->timers->at_us - now + 999) / 1000;
    return (int)CAY_MIN(ms, most < 0 ? (uint64_t)INT_MAX : (uint64_t)most);
}

static void fire_due(struct loop *loop)
{
    uint64_t now = loop->timers ? cay_now_us() : 0;
    while (!loop->stop && loop->timers && loop->timers->at_us <= now) {
        struct timer *timer = loop->timers;
        timer_clear(loop, timer);
        timer->fire(timer);
    }
}

int loop_run(struct loop *loop)
{
    while (!loop->stop) {
        int n = epoll_wait(loop->epoll, loop->batch, LOOP_BATCH, until_next(loop));
        if (n < 0 && errno != EINTR)
            return -1;
        loop->n_batch = n < 0 ? 0 : n;
        if (loop->watchdog_s)
            alarm(loop->watchdog_s);
        for (int i = 0; i < loop->n_batch && !loop->stop; i++) {
            struct watch *watch = loop->batch[i].data.ptr;
            if (watch)
                watch->ready(watch, loop->batch[i].events);
        }
        loop->n_batch = 0;
        if (loop->late)
            try_late(loop);
        fire_due(loop);
        if (loop->watchdog_s)
            alarm(0);
    }
    return 0;
}
