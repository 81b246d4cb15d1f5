/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/journal.h"

#include "base/err.h"
#include "base/util.h"
#include "daemon/jobs.h"
#include "daemon/log.h"
#include "daemon/roster.h"
#include "daemon/server.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Entries are in the kernel's hands at once, and on the disk after at most this. */
#define SYNC_US 1000000

struct journal {
    struct daemon *d;
    struct audit *audit;
    char dir[CAY_MAX_PATH];
    struct journal_listener *listeners;
    uint64_t last;
    bool failed; /* the last entry could not be written */
    bool syncing;
    struct timer timer;
    struct job job;
};

/* ---- writing to the disk --------------------------------------------------------------------- */

static void sync_work(struct job *job)
{
    struct journal *journal = container_of(job, struct journal, job);
    audit_sync(journal->audit, NULL);
}

static void sync_done(struct job *job)
{
    container_of(job, struct journal, job)->syncing = false;
}

static void on_timer(struct timer *timer)
{
    struct journal *journal = container_of(timer, struct journal, timer);
    if (journal->syncing) {
        timer_set(&journal->d->loop, timer, cay_now_us() + SYNC_US);
        return;
    }
    journal->syncing = true;
    jobs_add(journal->d->jobs, &journal->job);
}

/* ---- entries --------------------------------------------------------------------------------- */

static int append(struct daemon *d, const struct audit_entry *entry, struct cay_error *err)
{
    struct journal *journal = d->journal;
    struct audit_added added;
    struct cay_error own;
    if (!journal || !journal->audit)
        return 0;
    bool before = journal->failed;
    journal->failed = audit_append(journal->audit, entry, &added, &own) < 0;
    if (journal->failed) {
        d->metrics.audit_failed++;
        if (!before)
            log_event(LOG_ERROR, "the audit log cannot be written", "error", own.text, "directory",
                      journal->dir);
        cay_fail_context(&own, "the audit log in %s", journal->dir);
        return cay_fail_copy(err, own.code, own.sys_errno, own.text);
    }
    if (before)
        log_event(LOG_INFO, "the audit log can be written again");
    d->metrics.audit_entries++;
    /* What the files that go now told is kept, up to the entry before: whoever writes this one has
     * yet to mark it as told. */
    if (added.rotated && d->roster)
        roster_save(d->roster, added.before);
    journal->last = added.seq;
    for (struct journal_listener *l = journal->listeners, *next; l; l = next) {
        next = l->next;
        l->line(l, added.seq, added.line, added.size);
    }
    if (!journal->timer.armed)
        timer_set(&d->loop, &journal->timer, cay_now_us() + SYNC_US);
    return 0;
}

/* Where the request came from, for the log. */
static void peer_of(const struct request *r, char out[96])
{
    struct sockaddr_storage address;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    struct ucred user;
    char host[INET6_ADDRSTRLEN] = "";
    socklen_t size = sizeof(user);
    out[0] = 0;
    if (r->c->local) {
        if (getsockopt(r->c->fd, SOL_SOCKET, SO_PEERCRED, &user, &size) == 0)
            snprintf(out, 96, "unix:uid=%u", (unsigned)user.uid);
        return;
    }
    size = sizeof(address);
    if (getpeername(r->c->fd, (struct sockaddr *)&address, &size) < 0)
        return;
    bool is_v4 = address.ss_family == AF_INET;
    if (is_v4)
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
    else
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    snprintf(out, 96, is_v4 ? "%s:%u" : "[%s]:%u", host,
             ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
}

void journal_actor(struct journal_actor *out, const struct request *r)
{
    *out = (struct journal_actor){.d = r->d, .who = r->who};
    snprintf(out->id, sizeof(out->id), "%s", r->id);
    peer_of(r, out->peer);
}

static int note(const struct journal_actor *actor, enum audit_action action,
                const struct audit_detail *detail, const struct cay_error *failed,
                struct cay_error *err)
{
    struct daemon *d = actor->d;
    const char *id = actor->id[0] ? actor->id : NULL;
    /* The tenant whose sandbox it is, also when the operator does it. */
    char tenant[CAY_MAX_TENANT] = "";
    if (id)
        roster_tenant_of(id, tenant);
    else
        snprintf(tenant, sizeof(tenant), "%s", actor->who.tenant);
    struct audit_entry entry = {
        .who = actor->who.name[0] ? actor->who.name : "unknown",
        .tenant = tenant[0] ? tenant : NULL,
        .action = action,
        .sandbox = id,
        .labels = id ? (const char *const *)roster_labels(d->roster, id) : NULL,
        .result = failed ? failed->code : CAY_OK,
        .detail = detail ? *detail : (struct audit_detail){0},
    };
    entry.detail.peer = actor->peer[0] ? actor->peer : NULL;
    if (entry.detail.rule && !entry.detail.rule[0])
        entry.detail.rule = NULL;
    return append(d, &entry, err);
}

int journal_note_for(const struct journal_actor *actor, enum audit_action action,
                     const struct audit_detail *detail, const struct cay_error *failed)
{
    if (!actor->d->journal || !actor->d->journal->audit)
        return 0;
    return note(actor, action, detail, failed, NULL);
}

int journal_must_for(const struct journal_actor *actor, enum audit_action action,
                     const struct audit_detail *detail, struct cay_error *err)
{
    if (!actor->d->journal || !actor->d->journal->audit)
        return 0;
    return note(actor, action, detail, NULL, err);
}

static int note_request(struct request *r, enum audit_action action,
                        const struct audit_detail *detail, const struct cay_error *failed,
                        struct cay_error *err)
{
    struct journal_actor actor;
    struct audit_detail ruled = detail ? *detail : (struct audit_detail){0};
    if (!r->d->journal || !r->d->journal->audit)
        return 0;
    journal_actor(&actor, r);
    if (failed && r->rule[0])
        ruled.rule = r->rule;
    return note(&actor, action, &ruled, failed, err);
}

int journal_note(struct request *r, enum audit_action action, const struct audit_detail *detail,
                 const struct cay_error *failed)
{
    return note_request(r, action, detail, failed, NULL);
}

int journal_must(struct request *r, enum audit_action action, const struct audit_detail *detail,
                 struct cay_error *err)
{
    return note_request(r, action, detail, NULL, err);
}

int journal_engine(struct daemon *d, enum audit_action action, const char *id,
                   const struct audit_detail *detail, char *const *labels)
{
    char tenant[CAY_MAX_TENANT] = "";
    if (id)
        roster_tenant_of(id, tenant);
    const struct audit_entry entry = {
        .who = "engine",
        .tenant = tenant[0] ? tenant : NULL,
        .action = action,
        .sandbox = id,
        .labels = (const char *const *)labels,
        .detail = detail ? *detail : (struct audit_detail){0},
    };
    return append(d, &entry, NULL);
}

int journal_ready(struct daemon *d, bool removes, struct cay_error *err)
{
    struct journal *journal = d->journal;
    const struct audit_entry entry = {
        .who = "engine",
        .action = AUDIT_RECOVERED,
        .detail = {.reason = "the log could not be written for a while"}};
    struct cay_error why;
    if (home_check(d->cay, err) < 0)
        return cay_fail_context(err, "nothing is changed");
    if (!journal || !journal->audit)
        return 0;
    if (audit_room(journal->audit, removes, &why) < 0) {
        cay_fail_context(&why, "nothing is changed in %s", journal->dir);
        return cay_fail_copy(err, why.code, why.sys_errno, why.text);
    }
    /* A removal on a full disk needs what room is left for itself. */
    if (!journal->failed || (removes && audit_room(journal->audit, false, NULL) < 0) ||
        append(d, &entry, err) == 0)
        return 0;
    return cay_fail_context(err, "nothing is changed");
}

/* ---- followers ------------------------------------------------------------------------------- */

void journal_listen(struct journal *journal, struct journal_listener *listener)
{
    listener->next = journal->listeners;
    listener->link = &journal->listeners;
    if (listener->next)
        listener->next->link = &listener->next;
    journal->listeners = listener;
}

void journal_unlisten(struct journal_listener *listener)
{
    if (!listener->link)
        return;
    *listener->link = listener->next;
    if (listener->next)
        listener->next->link = listener->link;
    listener->link = NULL;
}

const char *journal_dir(const struct journal *journal)
{
    return journal && journal->audit ? journal->dir : NULL;
}

uint64_t journal_last(const struct journal *journal)
{
    return journal ? journal->last : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

int journal_open(struct daemon *d, struct journal **out, struct cay_error *err)
{
    struct journal *journal = calloc(1, sizeof(*journal));
    if (!journal)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    journal->d = d;
    journal->timer.fire = on_timer;
    journal->job = (struct job){.work = sync_work, .done = sync_done};
    snprintf(journal->dir, sizeof(journal->dir), "%s/audit", d->cay->state_path);
    const struct audit_options options = {.rotate_bytes = d->settings.audit_size,
                                          .keep = (uint32_t)d->settings.audit_keep};
    if (d->settings.audit && audit_open(journal->dir, &options, &journal->audit, err) < 0) {
        free(journal);
        return -1;
    }
    uint64_t before_ms;
    if (journal->audit)
        journal->last = audit_last(journal->audit, &before_ms);
    *out = journal;
    return 0;
}

void journal_close(struct journal *journal)
{
    if (!journal)
        return;
    timer_clear(&journal->d->loop, &journal->timer);
    audit_close(journal->audit);
    free(journal);
}
