/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One event loop for each process: descriptors by epoll, timers by a sorted list. Watches and
 * timers are embedded in what they belong to; the loop owns neither them nor their descriptors.
 */
#ifndef CAY_BASE_LOOP_H
#define CAY_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#define LOOP_BATCH 16

struct watch {
    int fd; /* -1: not watched */
    uint32_t events;
    void (*ready)(struct watch *watch, uint32_t events);
    /* What the kernel had no memory for; tried again until it has. */
    struct watch *next_late;
    int late_fd;
    uint32_t late_events;
    bool late;
};

struct timer {
    uint64_t at_us; /* on the clock of cay_now_us */
    struct timer *next;
    bool armed;
    void (*fire)(struct timer *timer);
};

struct loop {
    int epoll;
    struct timer *timers; /* soonest first */
    struct epoll_event batch[LOOP_BATCH];
    int n_batch;
    struct watch *late;  /* those that wait for memory of the kernel */
    unsigned watchdog_s; /* a turn that takes longer ends the process (SIGALRM); 0: none */
    bool stop;
};

int loop_init(struct loop *loop);
void loop_done(struct loop *loop);
/* Starts, or changes (also to no events). Where the kernel is short of memory for it, it is tried
 * again: no caller need look at a result. */
void loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events);
/* Before its descriptor is closed. Safe inside a callback, for any watch. */
void loop_forget(struct loop *loop, struct watch *watch);
/* Re-arming moves it. */
void timer_set(struct loop *loop, struct timer *timer, uint64_t at_us);
void timer_clear(struct loop *loop, struct timer *timer);
/* Until loop->stop. */
int loop_run(struct loop *loop);

/* The object that a watch or timer is embedded in. */
#define container_of(pointer, type, member) \
    ((type *)(void *)((char *)(pointer) - __builtin_offsetof(type, member)))

#endif
