/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and leases. A key makes a start repeatable: a caller that lost its answer (its daemon was
 * restarted, its connection broke) asks again with the same key and finds the process that it has
 * started already, and nothing runs twice. A lease ends a process that nobody stays with: its
 * caller is gone and has not come back in that time.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "keeper/keeper.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define FNV_BASIS (((unsigned __int128)0x6c62272e07bb0142 << 64) | 0x62b821756295c58d)
#define FNV_PRIME (((unsigned __int128)0x0000000001000000 << 64) | 0x000000000000013b)

/* ---- keys ------------------------------------------------------------------------------------ */

/* What follows a text is told from what would be its end. */
static void mix(unsigned __int128 *sum, char kind, const char *text)
{
    *sum = (*sum ^ (unsigned char)kind) * FNV_PRIME;
    for (; text && *text; text++)
        *sum = (*sum ^ (unsigned char)*text) * FNV_PRIME;
    *sum = (*sum ^ (text ? 0u : 255u)) * FNV_PRIME;
}

static void mix_list(unsigned __int128 *sum, char kind, const char *const *list)
{
    for (; list && *list; list++)
        mix(sum, kind, *list);
    mix(sum, kind, NULL);
}

/*
 * Stands for the whole command. Both that are compared come from the one who chose the key, so a
 * hash that could be tricked would trick nobody but its author.
 */
static unsigned __int128 fingerprint(const struct msg *request)
{
    unsigned __int128 sum = FNV_BASIS;
    mix_list(&sum, 'a', request->argv);
    mix_list(&sum, 'e', request->env);
    mix(&sum, 's', request->shell);
    mix(&sum, 'c', request->cwd);
    mix(&sum, 'u', request->user);
    mix(&sum, request->flags & MSG_F_PTY ? 't' : 'p', NULL);
    return sum;
}

/* Of a key alone; 0 stands for none. */
static uint64_t digest(const char *key)
{
    unsigned __int128 sum = FNV_BASIS;
    mix(&sum, 'k', key);
    uint64_t half = (uint64_t)(sum >> 64) ^ (uint64_t)sum;
    return half ? half : 1;
}

static bool is_spent(const struct keeper *k, const char *key)
{
    uint64_t wanted = digest(key);
    for (size_t i = 0; i < CAY_MAX_SPENT && k->spent[i]; i++)
        if (k->spent[i] == wanted)
            return true;
    return false;
}

/* Never a second run: a process that is forgotten leaves its key behind, in memory that is there
 * from the first key on and costs what is used of it. */
static int check_key(struct keeper *k, const char *key, struct cay_error *err)
{
    if (parse_key(key, err) < 0)
        return -1;
    if (!k->spent && !(k->spent = calloc(CAY_MAX_SPENT, sizeof(*k->spent))))
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (is_spent(k, key))
        return cay_fail(
            err, CAY_E_LOST,
            "the command with the key '%s' has run, and its result is not kept any more", key);
    return 0;
}

int lease_check(struct keeper *k, const struct msg *request, struct cay_error *err)
{
    if (request->name && check_key(k, request->name, err) < 0)
        return -1;
    if (request->ttl_ms > CAY_MAX_LEASE_MS)
        return cay_fail(err, CAY_E_INVALID, "a lease of more than a day");
    return 0;
}

struct proc *lease_find(struct keeper *k, const char *key)
{
    for (struct proc *p = k->procs; key && p; p = p->next)
        if (strcmp(p->key, key) == 0)
            return p;
    return NULL;
}

/* It runs, or ran: the caller gets it from where it says. */
static void follow(struct client *client, struct proc *proc)
{
    client_send(client,
                &(struct msg){.type = MSG_STARTED,
                              .tag = client->tag,
                              .pid = (uint64_t)proc->pid,
                              .flags = MSG_F_KNOWN},
                -1);
    client->mode = CLIENT_IDLE;
    client->proc = NULL;
    if (client->detach)
        return;
    client_stream(client, proc, client->offset, true);
    client_pump(client);
    flow_check(proc->keeper, proc);
}

void lease_join(struct client *client, struct proc *proc, const struct msg *request)
{
    struct cay_error err;
    if (proc->fingerprint != fingerprint(request)) {
        cay_fail(&err, CAY_E_CONFLICT, "the key '%s' belongs to another command", proc->key);
        client_fail(client, &err);
        return;
    }
    client->offset = request->offset;
    client->proc = proc;
    client->mode = CLIENT_STARTING;
    if (proc->pid)
        follow(client, proc);
}

void lease_started(struct proc *proc)
{
    for (struct client *c = proc->keeper->clients; c; c = c->next)
        if (c->mode == CLIENT_STARTING && c->proc == proc)
            follow(c, proc);
    lease_set(proc, proc->lease_us / 1000);
}

void lease_failed(struct proc *proc, const struct cay_error *why)
{
    proc->key[0] = 0; /* nothing ran: who asks again gets another try */
    for (struct client *c = proc->keeper->clients; c; c = c->next) {
        if (c->mode != CLIENT_STARTING || c->proc != proc)
            continue;
        c->mode = CLIENT_IDLE;
        c->proc = NULL;
        client_fail(c, why);
    }
}

/* ---- leases ---------------------------------------------------------------------------------- */

static bool is_held(const struct proc *proc)
{
    for (const struct client *c = proc->keeper->clients; c; c = c->next)
        if (c->proc == proc &&
            ((c->mode == CLIENT_WAIT && !c->aloof) || (c->mode == CLIENT_STREAM && c->follow)))
            return true;
    return false;
}

static void arm(struct proc *proc, bool alone)
{
    struct keeper *k = proc->keeper;
    proc->lease_alone = alone;
    proc->lease_left_us = proc->lease_us;
    if (proc->lease_us && proc->state == PROC_RUNNING && k->state != CAY_STATE_PAUSED)
        timer_set(&k->loop, &proc->lease_timer, cay_now_us() + proc->lease_us);
    else
        timer_clear(&k->loop, &proc->lease_timer);
}

static void on_lease(struct timer *timer)
{
    struct proc *proc = container_of(timer, struct proc, lease_timer);
    bool held = is_held(proc);
    if (!held && proc->lease_alone) {
        why_set(proc, WHY_LEASE);
        proc_kill_tree(proc, SIGKILL);
    }
    /* It is looked at as long as it lives, so that no way of leaving it can be forgotten; what
     * could not be killed is killed again. */
    arm(proc, !held);
}

void lease_init(struct proc *proc, const struct msg *request)
{
    proc->lease_timer.fire = on_lease;
    proc->lease_us = request->ttl_ms * 1000;
    if (request->name) {
        snprintf(proc->key, sizeof(proc->key), "%s", request->name);
        proc->fingerprint = fingerprint(request);
    }
}

void lease_let_go(struct client *client)
{
    struct proc *proc = client->proc;
    bool followed = client->mode != CLIENT_WAIT && client->follow;
    if (!proc || (client->mode == CLIENT_WAIT && client->aloof))
        return;
    arm(proc, true);
    /* Who comes back goes on where it was: the process does not run ahead of it. */
    if (followed && proc->lease_us && proc->state == PROC_RUNNING && !is_held(proc))
        flow_await(proc, client->offset, proc->lease_us / 1000);
}

void lease_set(struct proc *proc, uint64_t ms)
{
    proc->lease_us = ms * 1000;
    arm(proc, true);
}

void lease_pause(struct keeper *k, bool paused)
{
    uint64_t now = cay_now_us();
    for (struct proc *p = k->procs; p; p = p->next) {
        if (!p->lease_us || p->state != PROC_RUNNING)
            continue;
        if (paused && p->lease_timer.armed) {
            p->lease_left_us = p->lease_timer.at_us > now ? p->lease_timer.at_us - now : 0;
            timer_clear(&k->loop, &p->lease_timer);
        } else if (!paused) {
            timer_set(&k->loop, &p->lease_timer, now + p->lease_left_us);
        }
    }
}

void lease_done(struct proc *proc)
{
    timer_clear(&proc->keeper->loop, &proc->lease_timer);
}

void lease_forget(struct proc *proc)
{
    struct keeper *k = proc->keeper;
    lease_done(proc);
    if (!proc->key[0] || !proc->pid)
        return;
    k->spent[k->next_spent] = digest(proc->key);
    k->next_spent = (k->next_spent + 1) % CAY_MAX_SPENT;
}
