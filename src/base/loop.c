/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop.h"

#include "base/util.h"

#include <limits.h>

int loop_init(struct loop *loop)
{
    *loop = (struct loop){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    return loop->epoll < 0 ? -1 : 0;
}

void loop_done(struct loop *loop)
{
    close_fd(&loop->epoll);
}

int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    int operation = watch->fd >= 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (watch->fd >= 0 && watch->events == events)
        return 0;
    if (epoll_ctl(loop->epoll, operation, fd, &event) < 0)
        return -1;
    watch->fd = fd;
    watch->events = events;
    return 0;
}

void loop_forget(struct loop *loop, struct watch *watch)
{
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
    if (!loop->timers)
        return -1;
    uint64_t now = cay_now_us();
    if (loop->timers->at_us <= now)
        return 0;
    uint64_t ms = (loop->timers->at_us - now + 999) / 1000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
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
        fire_due(loop);
        if (loop->watchdog_s)
            alarm(0);
    }
    return 0;
}
