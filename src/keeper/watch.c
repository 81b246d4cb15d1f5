/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the sandbox takes more from the host than its share of what no control group counts
 * (budget.h). While commands run, each second: has the sandbox used the CPU at all, for nothing is
 * hoarded without; if so the counter (counter.h) is asked. What ends within the first second, and a
 * sandbox in which nothing runs, cost nothing.
 *
 * A counter that dies, which nobody inside can make it do, is not replaced: the keeper has given up
 * the right to, and a sandbox is not ended for what it did not do.
 */
#include "base/sock.h"
#include "base/util.h"
#include "keeper/counter.h"
#include "keeper/keeper.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LOOK_US 1000000
#define LOOK_SELDOM_US 10000000
/* While a count is being made. */
#define LOOK_SOON_US 250000
/* Without so much of the CPU since the last look there is nothing new to see. */
#define IDLE_CPU_US 10000

static void ask(struct watcher *w)
{
    w->asked = w->answer.fd >= 0 && sock_send(w->answer.fd, "?", 1, NULL, 0) == 1;
}

static void on_look(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, watcher.timer);
    struct watcher *w = &k->watcher;
    w->due_us = 0;
    if (k->phase >= PHASE_KILLING || k->state == CAY_STATE_PAUSED)
        return;
    uint64_t cpu = cgroup_cpu(&k->cgroup), next = cay_now_us() + LOOK_US;
    bool in_use = proc_any(k);
    bool moved = !cpu || cpu - w->cpu_us >= IDLE_CPU_US;
    if (w->asked) {
        /* It is slow: what was used meanwhile is for the next question. */
    } else if (moved || w->counting) {
        w->cpu_us = cpu;
        ask(w);
        /* Without cgroups it cannot be told whether a command left anything behind. */
        if (!cpu && !in_use)
            next += LOOK_SELDOM_US;
    } else if (!in_use) {
        return;
    }
    timer_set(&k->loop, timer, next);
}

static void on_answer(struct watch *watch, uint32_t events)
{
    struct keeper *k = container_of(watch, struct keeper, watcher.answer);
    struct watcher *w = &k->watcher;
    struct counter_answer answer;
    (void)events;
    ssize_t n = recv(watch->fd, &answer, sizeof(answer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    w->asked = false;
    if (n != (ssize_t)sizeof(answer)) {
        int fd = watch->fd;
        loop_forget(&k->loop, watch);
        close(fd);
        waitpid(w->pid, NULL, WNOHANG);
        watch_stop(k);
        return;
    }
    w->counting = answer.counting;
    if (answer.over && k->phase < PHASE_KILLING) {
        answer.reason[sizeof(answer.reason) - 1] = 0;
        snprintf(k->reason_text, sizeof(k->reason_text), "%s", answer.reason);
        life_end(k, CAY_STATE_OOM, k->reason_text, 0);
    } else if (answer.counting && w->timer.armed) {
        timer_set(&k->loop, &w->timer, cay_now_us() + LOOK_SOON_US);
    }
}

int watch_counter(struct keeper *k)
{
    struct watch *watch = &k->watcher.answer;
    int fd = counter_start(k, k->program, &k->watcher.pid);
    if (fd < 0)
        return -1;
    *watch = (struct watch){.fd = -1, .ready = on_answer};
    loop_watch(&k->loop, watch, fd, EPOLLIN);
    return 0;
}

void watch_start(struct keeper *k)
{
    struct timer *timer = &k->watcher.timer;
    uint64_t now = cay_now_us(), at_us = now + LOOK_US;
    /* However often it is paused, the next look does not move away. */
    if (k->watcher.due_us)
        at_us = CAY_MIN(at_us, CAY_MAX(now, k->watcher.due_us));
    if ((timer->armed && timer->at_us <= at_us) || k->phase >= PHASE_KILLING ||
        k->watcher.answer.fd < 0)
        return;
    timer->fire = on_look;
    timer_set(&k->loop, timer, at_us);
}

void watch_stop(struct keeper *k)
{
    if (k->watcher.timer.armed)
        k->watcher.due_us = k->watcher.timer.at_us;
    timer_clear(&k->loop, &k->watcher.timer);
}
