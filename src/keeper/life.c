/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a sandbox: its state, its timers, and its end. There is one way out (life_end),
 * whoever asks and whatever happened:
 *
 *   UP -> STOPPING (SIGTERM to all, a grace) -> KILLING (SIGKILL to all) -> init reaped -> gone
 *
 * At the end everything that the kernel does not remove by itself is removed, the record is
 * written, callers get their last answers, and the keeper exits.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"
#include "keeper/keeper.h"
#include "sandbox/record.h"
#include "sandbox/status.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The number of processes in the status record is for people: not written more often than this. */
#define STATUS_DELAY_US 50000
/* That its run directory is still there is looked at this often. A watch would be quicker, but of
 * those a user has 128. */
#define HOME_US 10000000
/* Cgroups empty out asynchronously: look again this often, this many times. */
#define RETRY_US 10000
#define RETRIES 5
/* A caller that takes nothing for this long after the end does not want it. */
#define LAST_WORDS_MS 600000

/* ---- state ----------------------------------------------------------------------------------- */

void life_status(const struct keeper *k, struct cay_buf *out)
{
    const struct status status = {
        .state = k->state,
        .reason = k->reason,
        .image = k->spec.spec.image,
        .boot_id = k->boot_id,
        .created_ms = k->created_ms,
        .ended_ms = k->ended_ms,
        .ttl_deadline_us = k->ttl_deadline_us,
        .keeper_pid = (uint64_t)getpid(),
        .init_pid = k->jail.pid > 0 ? (uint64_t)k->jail.pid : 0,
        .processes = k->running,
        .id_range = k->id_range,
        .ephemeral = k->spec.spec.ephemeral,
        .labels = k->spec.spec.labels,
        .instance = k->instance,
        .log_end = k->ended_ms ? k->log.end : 0,
    };
    status_encode(&status, out);
}

int life_write(struct keeper *k)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    timer_clear(&k->loop, &k->status_timer);
    life_status(k, &buf);
    k->status_us = cay_now_us();
    int written = -1;
    /* What fails once mostly succeeds at once, and until it does, lists are wrong about us. */
    for (int tries = 0; tries < 2 && written < 0 && !buf_failed(&buf); tries++)
        written = record_overwrite(k->status_fd, buf.data, buf.size);
    if (written < 0 && k->status_timer.fire && k->phase == PHASE_UP) {
        int saved = errno;
        timer_set(&k->loop, &k->status_timer, k->status_us + STATUS_DELAY_US);
        errno = saved;
    }
    return written;
}

static void on_status_due(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, status_timer);
    proc_sweep(k);
    if (k->phase == PHASE_UP)
        life_write(k);
    else
        life_check(k);
}

void life_dirty(struct keeper *k)
{
    if (k->status_timer.armed || k->phase != PHASE_UP)
        return;
    if (cay_now_us() - k->status_us > STATUS_DELAY_US)
        life_write(k);
    else
        timer_set(&k->loop, &k->status_timer, k->status_us + STATUS_DELAY_US);
}

/* ---- the run directory -------------------------------------------------------------------------
 */

/* Somebody has removed it: nobody can find us any more. */
static bool is_evicted(const struct keeper *k)
{
    struct stat st;
    return fstat(k->status_fd, &st) == 0 && st.st_nlink == 0;
}

bool life_replaced(const struct keeper *k)
{
    char path[CAY_MAX_PATH];
    if (!is_evicted(k))
        return false;
    snprintf(path, sizeof(path), "%s/%s", k->cay.run_path, k->id);
    return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || !home_absent(errno);
}

static void on_home_due(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, home_timer);
    if (is_evicted(k))
        life_end(k, CAY_STATE_EXITED, "its run directory was removed", 0);
    else if (k->phase < PHASE_KILLING)
        timer_set(&k->loop, timer, cay_now_us() + HOME_US);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The merged output outlives the sandbox, for `cay logs`. What could not be written is missing
 * between the end of the file and the record's `log_end`. */
static void save_log(struct keeper *k, int dir)
{
    char chunk[CAY_MAX_DATA];
    int stream;
    uint64_t offset = k->log.start;
    if (k->log.end == k->log.start)
        return;
    autofd int file =
        openat(dir, "log", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    /* It begins with the offset of its first byte. */
    if (file < 0 || cay_write_all(file, &offset, sizeof(offset)) < 0)
        return;
    for (size_t n; (n = spool_read(&k->log, &offset, chunk, sizeof(chunk), &stream)) > 0;
         offset += n)
        if (cay_write_all(file, chunk, n) < 0)
            return;
}

static void save_record(struct keeper *k)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    if (k->spec.spec.ephemeral || life_replaced(k))
        return;
    if (k->remove) {
        cay_remove_tree_at(k->cay.sandboxes, k->id);
        return;
    }
    autofd int dir = home_open(k->cay.sandboxes, k->id);
    if (dir < 0)
        return;
    save_log(k, dir);
    life_status(k, &buf);
    record_settle_at(dir, "status", buf.data, buf.size, NULL);
}

/* Everything is dead. Last words, record, and out. */
static void conclude(struct keeper *k)
{
    for (struct proc *p = k->procs; p;) {
        if (p->state == PROC_ENDED) {
            p = p->next;
            continue;
        }
        proc_abandoned(p);
        p = k->procs; /* that may have freed any ended one */
    }
    k->ended_ms = cay_wall_ms();
    save_record(k);
    keeper_undo(k);
    for (struct client *c = k->clients; c; c = c->next) {
        if (c->mode == CLIENT_STOP) {
            c->mode = CLIENT_IDLE;
            client_send(c, &(struct msg){.type = MSG_OK, .tag = c->tag}, -1);
        }
    }
    /* Whoever reads slowly still gets everything; nothing of the sandbox is left meanwhile. */
    k->phase = PHASE_OVER;
    timer_set(&k->loop, &k->grace_timer, cay_after_ms(LAST_WORDS_MS));
    clients_over(k);
}

static void on_retry(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, retry_timer);
    bool theirs = !k->instance && life_replaced(k);
    if (!theirs && cgroup_remove(&k->cgroup) < 0 && errno == EBUSY) {
        if (++k->retries < RETRIES) {
            timer_set(&k->loop, &k->retry_timer, cay_now_us() + RETRY_US);
            return;
        }
        /* Never waited for: it is told, and the run directory stays for the next one who looks. */
        k->unkillable = true;
        k->reason = "some of its processes cannot be killed yet";
    }
    cgroup_done(&k->cgroup);
    conclude(k);
}

static void on_init_dead(struct watch *watch, uint32_t events)
{
    struct keeper *k = container_of(watch, struct keeper, pidfd_watch);
    int status = 0;
    (void)events;
    if (waitpid(k->jail.pid, &status, WNOHANG) == 0)
        return;
    loop_forget(&k->loop, &k->pidfd_watch);
    if (k->phase != PHASE_KILLING) {
        bool oom = WIFSIGNALED(status) && oom_took_init(k);
        if (WIFSIGNALED(status))
            snprintf(k->reason_text, sizeof(k->reason_text), "its init was killed by signal %d",
                     WTERMSIG(status));
        else
            snprintf(k->reason_text, sizeof(k->reason_text), "its init exited with code %d",
                     WEXITSTATUS(status));
        if (oom && k->phase == PHASE_UP)
            life_end(k, CAY_STATE_OOM, "out of memory", 0);
        else
            life_end(k, CAY_STATE_EXITED, k->phase == PHASE_UP ? k->reason_text : k->reason, 0);
    }
    on_retry(&k->retry_timer);
}

static void kill_all(struct keeper *k)
{
    timer_clear(&k->loop, &k->ttl_timer);
    timer_clear(&k->loop, &k->idle_timer);
    watch_stop(k);
    k->phase = PHASE_KILLING;
    timer_clear(&k->loop, &k->grace_timer);
    cgroup_kill(&k->cgroup); /* where there are none, the death of init takes all others along */
    sys_pidfd_kill(k->jail.pidfd, SIGKILL);
    /* Dying takes the kernel a while; meanwhile: nobody new may come. */
    loop_forget(&k->loop, &k->listen_watch);
    unlinkat(k->run_dir, "ctl", 0);
}

static void on_grace_over(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, grace_timer);
    if (k->phase == PHASE_OVER)
        k->loop.stop = true;
    else
        kill_all(k);
}

static void ask_to_end(struct keeper *k)
{
    struct cay_error err;
    if (k->state == CAY_STATE_PAUSED)
        cgroup_freeze(&k->cgroup, false);
    for (struct proc *p = k->procs; p; p = p->next) {
        if (p->grouped && p->state != PROC_STARTING) {
            proc_kill_tree(p, SIGTERM);
        } else if (p->state == PROC_RUNNING) {
            const struct msg order = {.type = INIT_SIGNAL,
                                      .tag = ++k->next_tag,
                                      .pid = (uint64_t)p->pid,
                                      .signal = SIGTERM,
                                      .flags = MSG_F_TREE};
            link_send(k, &order, NULL, 0, &err);
        }
    }
}

void life_end(struct keeper *k, enum cay_state state, const char *reason, uint64_t grace_ms)
{
    if (k->phase >= PHASE_KILLING)
        return;
    if (k->phase == PHASE_UP) {
        /* The timers stay: a grace must not be longer than the life that is left. */
        bool paused = k->state == CAY_STATE_PAUSED;
        if (grace_ms)
            ask_to_end(k);
        if (k->phase >= PHASE_KILLING)
            return; /* asking showed that init is gone */
        if (!grace_ms && paused)
            cgroup_freeze(&k->cgroup, false);
        k->state = state;
        k->reason = reason;
        if (paused && grace_ms)
            watch_start(k); /* they run again, to end */
        /* `processes` and the rest stay as they are until the record of the end is written. */
    }
    k->phase = PHASE_STOPPING;
    if (!grace_ms) {
        kill_all(k);
        return;
    }
    uint64_t end = cay_after_ms(grace_ms);
    if (!k->grace_timer.armed || end < k->grace_timer.at_us)
        timer_set(&k->loop, &k->grace_timer, end);
    life_check(k);
}

void life_last(struct keeper *k)
{
    if (k->phase != PHASE_UP)
        return;
    k->state = CAY_STATE_EXITED;
    k->reason = "its command ended";
    life_write(k);
}

/* Stopping is over when no process is left but init. */
void life_check(struct keeper *k)
{
    if (k->phase != PHASE_STOPPING || k->running)
        return;
    proc_sweep(k);
    for (struct proc *p = k->procs; p; p = p->next)
        if (p->lingering) {
            /* Not ours to wait for: nobody reports their end, so look again soon. */
            timer_set(&k->loop, &k->status_timer, cay_now_us() + STATUS_DELAY_US / 5);
            return;
        }
    kill_all(k);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void on_ttl(struct timer *timer)
{
    life_end(container_of(timer, struct keeper, ttl_timer), CAY_STATE_TTL,
             "its time to live is over", 0);
}

void life_set_ttl(struct keeper *k, uint64_t ms)
{
    k->ttl_deadline_us = ms ? cay_after_ms(ms) : 0;
    if (ms)
        timer_set(&k->loop, &k->ttl_timer, k->ttl_deadline_us);
    else
        timer_clear(&k->loop, &k->ttl_timer);
    life_write(k);
}

static bool in_use(struct keeper *k)
{
    proc_sweep(k);
    if (proc_any(k))
        return true;
    for (struct client *c = k->clients; c; c = c->next)
        if (!c->creator || c->mode != CLIENT_IDLE)
            return true;
    return false;
}

static void on_idle(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, idle_timer);
    if (in_use(k))
        k->last_use_us = cay_now_us();
    if (cay_now_us() - k->last_use_us < k->idle_us)
        timer_set(&k->loop, &k->idle_timer, k->last_use_us + k->idle_us);
    else
        life_end(k, CAY_STATE_IDLE, "nobody used it for its idle time", 0);
}

void life_set_idle(struct keeper *k, uint64_t ms)
{
    k->idle_us = ms * 1000;
    k->last_use_us = cay_now_us();
    if (ms)
        timer_set(&k->loop, &k->idle_timer, k->last_use_us + k->idle_us);
    else
        timer_clear(&k->loop, &k->idle_timer);
}

void life_use(struct keeper *k)
{
    if (k->idle_us)
        k->last_use_us = cay_now_us();
}

uint64_t life_clock(const struct keeper *k)
{
    return k->state == CAY_STATE_PAUSED ? k->paused_us : cay_now_us();
}

int life_pause(struct keeper *k, bool paused, struct cay_error *err)
{
    enum cay_state wanted = paused ? CAY_STATE_PAUSED : CAY_STATE_RUNNING;
    if (k->state == wanted)
        return 0;
    if (cgroup_dir(&k->cgroup) < 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "pausing needs cgroups, and this host gives us none");
    if (cgroup_freeze(&k->cgroup, paused) < 0) {
        int eno = errno;
        if (paused)
            cgroup_freeze(&k->cgroup, false);
        return cay_fail_errno(err, eno, "cannot %s the sandbox", paused ? "pause" : "resume");
    }
    k->state = wanted;
    lease_pause(k, paused);
    paused ? watch_stop(k) : watch_start(k);
    uint64_t now = cay_now_us();
    for (struct proc *p = k->procs; p && !paused; p = p->next)
        proc_resumed(p, now - k->paused_us);
    if (!paused)
        flow_resumed(k, now - k->paused_us);
    k->paused_us = now;
    k->reason = paused ? "paused on request" : "up";
    life_write(k);
    return 0;
}

void life_watch(struct keeper *k)
{
    k->status_timer.fire = on_status_due;
    k->ttl_timer.fire = on_ttl;
    k->idle_timer.fire = on_idle;
    k->grace_timer.fire = on_grace_over;
    k->retry_timer.fire = on_retry;
    k->home_timer.fire = on_home_due;
    timer_set(&k->loop, &k->home_timer, cay_now_us() + HOME_US);
    k->pidfd_watch = (struct watch){.fd = -1, .ready = on_init_dead};
    loop_watch(&k->loop, &k->pidfd_watch, k->jail.pidfd, EPOLLIN);
    oom_watch(k);
}

void life_up(struct keeper *k)
{
    k->state = CAY_STATE_RUNNING;
    k->reason = "up";
    loop_watch(&k->loop, &k->listen_watch, k->listen_fd, EPOLLIN);
    if (k->spec.spec.ttl_ms)
        life_set_ttl(k, k->spec.spec.ttl_ms);
    if (k->spec.spec.idle_ms)
        life_set_idle(k, k->spec.spec.idle_ms);
    life_write(k);
}
