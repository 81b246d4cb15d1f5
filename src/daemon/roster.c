/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/roster.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/jobs.h"
#include "daemon/journal.h"
#include "daemon/known.h"
#include "daemon/log.h"
#include "sandbox/record.h"
#include "sandbox/spec.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>

/* Tokens name tenants, and of those there are at most this many; one more for the operator. */
#define MAX_TENANTS (OPERATOR_MAX_TENANTS + 4097)
#define BUCKETS 4096
/* Dead keepers are noticed within about this time, a slice of all sandboxes at each look. */
#define LOOK_US 500000
#define LOOK_SLICES 8

/* What the audit log says of it. */
enum told {
    TOLD_NOT,
    TOLD_THERE,
    TOLD_ENDED,
};

static const char without_made[] = "made without the daemon";
static const char without_removed[] = "removed without the daemon";

struct entry {
    struct entry *next;
    struct tenant *tenant;
    uint64_t memory, cpus, disk;
    char **labels;   /* "K=V"; owned; NULL: none */
    bool ended;      /* only its record is left, and counts as that */
    unsigned makers; /* creates at work on it: until one succeeds, its directory is no news */
    bool made;       /* one of them has */
    bool leaving;    /* being removed by a client, who will be noted for it */
    bool vanished;   /* and nothing of it is left */
    bool parted;     /* it was removed, and told to be, while it still had makers */
    enum told told;
    bool suspect; /* a job looks whether it still lives, or removes its record */
    uint64_t ended_ms;
    char id[CAY_MAX_ID];
};

struct roster {
    struct daemon *d;
    struct entry *buckets[BUCKETS];
    size_t n;
    struct tenant *tenants;
    size_t n_tenants;
    struct watch watch;
    int fd; /* inotify */
    int run_watch, ended_watch;
    struct timer look;
    size_t slice;
    bool rescan; /* a scan failed, and is to be done again */
    bool ready;  /* all that is there is in it */
};

/* ---- tenants --------------------------------------------------------------------------------- */

struct tenant *roster_tenant(struct roster *roster, const char *name)
{
    struct tenant **at = &roster->tenants;
    for (; *at; at = &(*at)->next)
        if (strcmp((*at)->name, name) == 0) {
            /* Whoever is asked for often is found first. */
            struct tenant *found = *at;
            *at = found->next;
            found->next = roster->tenants;
            return roster->tenants = found;
        }
    struct tenant *tenant = roster->n_tenants < MAX_TENANTS ? calloc(1, sizeof(*tenant)) : NULL;
    if (!tenant)
        return NULL;
    snprintf(tenant->name, sizeof(tenant->name), "%s", name);
    tenant->next = roster->tenants;
    roster->tenants = tenant;
    roster->n_tenants++;
    return tenant;
}

void roster_tenants(const struct roster *roster,
                    void (*each)(const struct tenant *tenant, void *data), void *data)
{
    for (const struct tenant *t = roster->tenants; t; t = t->next)
        each(t, data);
}

void roster_tenant_of(const char *id, char out[static CAY_MAX_TENANT])
{
    const char *mark = strchr(id, '~');
    size_t n = mark ? (size_t)(mark - id) : 0;
    n = CAY_MIN(n, (size_t)CAY_MAX_TENANT - 1);
    memcpy(out, id, n);
    out[n] = 0;
}

/* ---- entries --------------------------------------------------------------------------------- */

static struct entry **find(struct roster *roster, const char *id)
{
    struct entry **at = &roster->buckets[cay_crc32(id, strlen(id)) % BUCKETS];
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return at;
}

static void free_labels(char **labels)
{
    for (char **at = labels; at && *at; at++)
        free(*at);
    free(labels);
}

static char **copy_labels(const char *const *labels)
{
    size_t n = 0;
    while (labels && labels[n])
        n++;
    char **copy = n ? calloc(n + 1, sizeof(*copy)) : NULL;
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = strdup(labels[i]);
    return copy;
}

/* Of the host: what it may write, and what is kept of its output. Where nothing was said there is
 * no quota either. */
static uint64_t disk_of(const struct cay_spec *spec)
{
    return spec->disk ? spec->disk + spec_kept_output(spec) : 0;
}

static struct entry *add(struct roster *roster, const char *id, const struct cay_spec *spec)
{
    char tenant[CAY_MAX_TENANT];
    struct entry **at = find(roster, id), *there = *at;
    if (there)
        return there;
    roster_tenant_of(id, tenant);
    struct entry *entry = calloc(1, sizeof(*entry));
    struct tenant *owner = entry ? roster_tenant(roster, tenant) : NULL;
    if (!owner) {
        free(entry);
        return NULL;
    }
    snprintf(entry->id, sizeof(entry->id), "%s", id);
    entry->tenant = owner;
    if (spec) {
        entry->memory = spec->memory;
        entry->cpus = spec->cpus;
        entry->disk = disk_of(spec);
        entry->labels = copy_labels(spec->labels);
    }
    owner->sandboxes++;
    owner->memory += entry->memory;
    owner->cpus += entry->cpus;
    owner->disk += entry->disk;
    roster->n++;
    return *at = entry;
}

/* It is there, whether or not somebody else still tries to make it. */
static bool settled(const struct entry *entry)
{
    return entry->made || !entry->makers;
}

/* It takes nothing of its tenant's any more. */
static void let_go(struct roster *roster, struct entry *entry)
{
    struct tenant *owner = entry->tenant;
    if (entry->ended)
        return;
    owner->sandboxes--;
    owner->memory -= entry->memory;
    owner->cpus -= entry->cpus;
    owner->disk -= entry->disk;
    roster->n--;
}

static void drop(struct roster *roster, struct entry **at)
{
    struct entry *entry = *at;
    let_go(roster, entry);
    if (entry->ended)
        entry->tenant->ended--;
    *at = entry->next;
    free_labels(entry->labels);
    free(entry);
}

/* It takes of its tenant's again: somebody makes it anew, or tries to. */
static void revive(struct roster *roster, struct entry *entry)
{
    struct tenant *owner = entry->tenant;
    if (!entry->ended)
        return;
    entry->ended = false;
    owner->ended--;
    owner->sandboxes++;
    owner->memory += entry->memory;
    owner->cpus += entry->cpus;
    owner->disk += entry->disk;
    roster->n++;
}

/* What was a sandbox is now the record of one. */
static void mark_ended(struct roster *roster, struct entry *entry)
{
    if (entry->ended)
        return;
    let_go(roster, entry);
    entry->ended = true;
    entry->ended_ms = cay_wall_ms();
    entry->tenant->ended++;
    free_labels(entry->labels);
    entry->labels = NULL;
}

/* One that somebody else made: its own record says what it takes. */
static struct entry *add_found(struct roster *roster, const char *id)
{
    struct entry *there = *find(roster, id);
    if (there)
        return there;
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD);
    autospec struct spec spec = {0};
    autofd int dir = home_open(roster->d->cay->sandboxes, id);
    bool known = dir >= 0 && record_read_at(dir, "spec", &buf, NULL) == 0 &&
                 spec_read(buf.data, buf.size, &spec, NULL) == 0;
    return add(roster, id, known ? &spec.spec : NULL);
}

static bool is_ours(const char *name)
{
    const char *id;
    return parse_id(name, &id, NULL) == 0 && strncmp(name, "pool~", 5) != 0 &&
           strcmp(name, "ids") != 0;
}

/* ---- quotas ---------------------------------------------------------------------------------- */

/* A bucket of as many as a minute allows, which leaks at that rate. */
static int check_rate(const struct operator_policy *policy, struct tenant *tenant,
                      struct operator_refusal *why, struct cay_error *err)
{
    uint64_t rate = operator_quota(policy, tenant->name)->create_rate, now = cay_now_us();
    if (rate == OPERATOR_NO_LIMIT)
        return 0;
    tenant->creates -= (double)(now - tenant->creates_us) * (double)rate / 60e6;
    if (tenant->creates < 0)
        tenant->creates = 0;
    tenant->creates_us = now;
    if (operator_check_quota(policy, tenant->name, "create_rate", (uint64_t)tenant->creates, 1, why,
                             err) < 0)
        return -1;
    tenant->creates += 1;
    return 0;
}

static uint64_t beyond(uint64_t wanted, uint64_t had)
{
    return wanted > had ? wanted - had : 0;
}

/* What it takes of its tenant's, from now on. */
static void count(struct entry *entry, uint64_t memory, uint64_t cpus, uint64_t disk)
{
    struct tenant *owner = entry->tenant;
    owner->memory += memory - entry->memory;
    owner->cpus += cpus - entry->cpus;
    owner->disk += disk - entry->disk;
    entry->memory = memory;
    entry->cpus = cpus;
    entry->disk = disk;
}

/* Of one that is there. Should it go meanwhile and come again, that is no news to us. */
static void hold(struct entry *entry, bool *held)
{
    entry->makers++;
    entry->made = true;
    *held = true;
}

/* Of one whose record has gone without our noticing yet. */
static void renew(struct roster *roster, struct entry *entry, const struct cay_spec *spec)
{
    entry->memory = spec->memory;
    entry->cpus = spec->cpus;
    entry->disk = disk_of(spec);
    entry->made = false;
    revive(roster, entry);
}

static bool has_record(const struct roster *roster, const char *id)
{
    return faccessat(roster->d->cay->sandboxes, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int roster_fits(struct daemon *d, const char *tenant, struct operator_refusal *why,
                struct cay_error *err)
{
    const struct tenant *owner = roster_tenant(d->roster, tenant);
    if (!owner)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    const struct {
        const char *key;
        uint64_t used;
    } quotas[] = {
        {"sandboxes_max", owner->sandboxes},
        {"memory_total", owner->memory},
        {"cpus_total", owner->cpus},
        {"disk_total", owner->disk},
    };
    for (size_t i = 0; i < CAY_COUNT(quotas); i++)
        if (operator_check_quota(d->policy, tenant, quotas[i].key, quotas[i].used, 0, why, err) < 0)
            return -1;
    return 0;
}

int roster_reserve(struct daemon *d, const char *tenant, const char *id,
                   const struct cay_spec *spec, bool *held, struct operator_refusal *why,
                   struct cay_error *err)
{
    struct tenant *owner = roster_tenant(d->roster, tenant);
    struct entry **at = find(d->roster, id);
    if (!owner)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    struct entry *there = *at;
    if (there && there->leaving)
        return cay_fail(err, CAY_E_UNAVAILABLE, "'%s' is being removed; try again", id);
    /* A record that is in the way must not let anybody past the quotas, should it go meanwhile. */
    if (there && there->ended && has_record(d->roster, id))
        return cay_fail(err, CAY_E_CONFLICT,
                        "sandbox '%s' has ended and its record is still there; "
                        "remove it with 'cay rm %s'",
                        id, id);
    if (there && !there->ended && !there->makers) {
        hold(there, held); /* it is there, and counted */
        return 0;
    }
    /* Several may be at work on one id, with different specs: room for the largest is held. */
    const struct entry *shared = there && !there->ended && there->makers ? there : NULL;
    const struct {
        const char *key;
        uint64_t used, more;
    } quotas[] = {
        {"sandboxes_max", owner->sandboxes, !shared},
        {"ended_max", owner->ended, !shared},
        {"memory_total", owner->memory, beyond(spec->memory, shared ? shared->memory : 0)},
        {"cpus_total", owner->cpus, beyond(spec->cpus, shared ? shared->cpus : 0)},
        {"disk_total", owner->disk, beyond(disk_of(spec), shared ? shared->disk : 0)},
    };
    for (size_t i = 0; i < CAY_COUNT(quotas); i++)
        if (operator_check_quota(d->policy, tenant, quotas[i].key, quotas[i].used, quotas[i].more,
                                 why, err) < 0)
            return -1;
    if (check_rate(d->policy, owner, why, err) < 0)
        return -1;
    if (there && there->ended)
        renew(d->roster, there, spec);
    struct entry *entry = there ? there : add(d->roster, id, spec);
    if (!entry)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    count(entry, CAY_MAX(entry->memory, spec->memory), CAY_MAX(entry->cpus, spec->cpus),
          CAY_MAX(entry->disk, disk_of(spec)));
    entry->makers++;
    *held = true;
    return 0;
}

static void was_removed(struct roster *roster, struct entry **at);

void roster_leaving(struct roster *roster, const char *id, bool leaving)
{
    struct entry **at = find(roster, id);
    if (!*at)
        return;
    (*at)->leaving = leaving;
    if (!leaving && (*at)->vanished)
        was_removed(roster, at);
}

void roster_removed(struct roster *roster, const char *id)
{
    struct entry **at = find(roster, id);
    if (!*at)
        return;
    (*at)->told = TOLD_NOT;
    (*at)->leaving = (*at)->vanished = false;
    if (!(*at)->makers) {
        drop(roster, at);
        return;
    }
    revive(roster, *at);
    (*at)->made = false;
    (*at)->parted = true;
}

/* ---- what the log has to say ----------------------------------------------------------------- */

static void tell_made(struct roster *roster, struct entry *entry)
{
    if (journal_engine(roster->d, AUDIT_CREATE, entry->id,
                       &(struct audit_detail){.reason = without_made}, entry->labels) == 0)
        entry->told = TOLD_THERE;
}

static void tell_removed(struct roster *roster, struct entry *entry)
{
    if (entry->told != TOLD_NOT)
        journal_engine(roster->d, AUDIT_DELETE, entry->id,
                       &(struct audit_detail){.reason = without_removed}, entry->labels);
    entry->told = TOLD_NOT;
}

static bool runs(const struct roster *roster, const char *id)
{
    return faccessat(roster->d->cay->run, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

bool roster_news(struct roster *roster, const char *id, bool existed)
{
    struct entry *entry = *find(roster, id);
    bool parted = entry && entry->parted;
    if (!entry)
        return true;
    entry->parted = false;
    if (parted && !runs(roster, id))
        return false; /* that it was made has been told with its end */
    if (!existed) {
        /* What was there before went, and inotify has yet to say so. */
        tell_removed(roster, entry);
        revive(roster, entry);
    }
    return entry->told == TOLD_NOT;
}

void roster_told(struct roster *roster, const char *id)
{
    struct entry *entry = add_found(roster, id);
    if (entry)
        entry->told = TOLD_THERE;
}

bool roster_parting(struct roster *roster, const char *id)
{
    struct entry *entry = *find(roster, id);
    /* It goes before its maker could tell that it was made. */
    if (entry && entry->told == TOLD_NOT && entry->makers)
        tell_made(roster, entry);
    return entry && entry->told != TOLD_NOT;
}

void roster_confirm(struct roster *roster, const char *id, const struct cay_spec *spec)
{
    struct entry *entry = *find(roster, id);
    if (!entry || !entry->makers)
        return;
    entry->makers--;
    if (spec && !entry->ended) {
        count(entry, spec->memory, spec->cpus, disk_of(spec));
        free_labels(entry->labels);
        entry->labels = copy_labels(spec->labels);
    }
    entry->made = true;
}

void roster_cancel(struct roster *roster, const char *id)
{
    struct entry **at = find(roster, id);
    if (*at && (*at)->makers && --(*at)->makers == 0 && !(*at)->made) {
        tell_removed(roster, *at);
        drop(roster, at);
    }
}

char *const *roster_labels(struct roster *roster, const char *id)
{
    struct entry *entry = *find(roster, id);
    return entry ? entry->labels : NULL;
}

void roster_each(const struct roster *roster,
                 void (*each)(const char *id, struct tenant *tenant, void *data), void *data)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct entry *entry = roster->buckets[i]; entry; entry = entry->next)
            if (!entry->ended)
                each(entry->id, entry->tenant, data);
}

size_t roster_count(const struct roster *roster)
{
    return roster->n;
}

/* ---- what happens by itself ------------------------------------------------------------------ */

/* Nothing is left of it. A client of ours has that noted itself. */
static void was_removed(struct roster *roster, struct entry **at)
{
    struct entry *entry = *at;
    if (entry->leaving) {
        entry->vanished = true;
        return;
    }
    tell_removed(roster, entry);
    if (!entry->makers) {
        drop(roster, at);
        return;
    }
    revive(roster, entry);
    entry->made = entry->vanished = false;
}

/* It has ended, and its record says how; or it left none. */
static void has_ended(struct roster *roster, struct entry **at)
{
    struct daemon *d = roster->d;
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    struct cay_error why = {0};
    autofd int dir = home_open(d->cay->sandboxes, (*at)->id);
    if (dir < 0) {
        /* Short of descriptors, say: the round looks again. */
        if (home_absent(errno))
            was_removed(roster, at);
        return;
    }
    if (record_read_at(dir, "status", &buf, &why) < 0 ||
        status_decode(buf.data, buf.size, &status, &why) < 0) {
        if (why.code == CAY_E_NOT_FOUND || why.code == CAY_E_INVALID)
            mark_ended(roster, *at); /* its record is damaged, and is still there */
        return;
    }
    /* Its end could not be written down, or the host restarted: this is how it was born. */
    bool unwritten = status.state < CAY_STATE_EXITED;
    mark_ended(roster, *at);
    if (!unwritten)
        (*at)->ended_ms = status.ended_ms;
    if ((*at)->told != TOLD_THERE)
        return;
    const struct audit_detail detail = {
        .state = cay_state_name(unwritten ? CAY_STATE_LOST : (enum cay_state)status.state),
        .reason = unwritten ? "its end could not be written down" : status.reason};
    d->metrics.ended++;
    if (journal_engine(d, AUDIT_ENDED, (*at)->id, &detail, (char *const *)status.labels) == 0)
        (*at)->told = TOLD_ENDED;
}

static void on_run(struct roster *roster, const struct inotify_event *event)
{
    struct entry **at = find(roster, event->name);
    if (event->mask & IN_CREATE) {
        struct entry *entry =
            !*at && (event->mask & IN_ISDIR) ? add_found(roster, event->name) : NULL;
        if (entry)
            tell_made(roster, entry);
    } else if (*at && settled(*at) && !(*at)->ended && !runs(roster, event->name)) {
        has_ended(roster, at);
    }
}

static void on_event(struct roster *roster, const struct inotify_event *event)
{
    if (event->len == 0 || !is_ours(event->name))
        return;
    struct entry **at = find(roster, event->name);
    if (event->wd == roster->run_watch)
        on_run(roster, event);
    else if (*at && (*at)->ended)
        was_removed(roster, at);
}

static void scan_again(struct roster *roster);

static void on_inotify(struct watch *watch, uint32_t events)
{
    struct roster *roster = container_of(watch, struct roster, watch);
    char buffer[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
    (void)events;
    ssize_t n = read(watch->fd, buffer, sizeof(buffer));
    for (char *at = buffer; n > 0 && at < buffer + n;) {
        const struct inotify_event *event = (const void *)at;
        if (event->mask & IN_Q_OVERFLOW)
            scan_again(roster);
        else
            on_event(roster, event);
        at += sizeof(*event) + event->len;
    }
}

/* ---- keepers that died ----------------------------------------------------------------------- */

struct look {
    struct job job;
    struct daemon *d;
    bool failed;
    char id[CAY_MAX_ID];
};

static void look_work(struct job *job)
{
    struct look *look = container_of(job, struct look, job);
    (void)sandbox_life(look->d->cay, look->id, NULL);
}

/* The sweep removed its run directory, and inotify tells. If it could not, look again. */
static void look_done(struct job *job)
{
    struct look *look = container_of(job, struct look, job);
    struct roster *roster = look->d->roster;
    struct entry **at = find(roster, look->id);
    if (*at)
        (*at)->suspect = false;
    /* It may have gone before we knew that it was made: then inotify has told it already. */
    if (*at && settled(*at) && !(*at)->ended && !runs(roster, look->id))
        has_ended(roster, at);
    look->d->metrics.sweeps++;
    free(look);
}

static void send_worker(struct roster *roster, struct entry *entry, void (*work)(struct job *),
                        void (*done)(struct job *))
{
    struct look *look = calloc(1, sizeof(*look));
    if (!look)
        return;
    entry->suspect = true;
    look->job = (struct job){.work = work, .done = done};
    look->d = roster->d;
    snprintf(look->id, sizeof(look->id), "%s", entry->id);
    jobs_add(roster->d->jobs, &look->job);
}

static void look_at(struct roster *roster, struct entry *entry)
{
    if (!entry->ended && settled(entry) && !entry->suspect &&
        !sandbox_kept(roster->d->cay, entry->id))
        send_worker(roster, entry, look_work, look_done);
}

void roster_suspect(struct roster *roster, const char *id)
{
    struct entry **at = find(roster, id);
    if (*at)
        look_at(roster, *at);
}

/* ---- records that were kept long enough ------------------------------------------------------ */

static void forget_work(struct job *job)
{
    struct look *look = container_of(job, struct look, job);
    look->failed = cay_remove(look->d->cay, look->id, false, NULL) < 0;
}

static void forget_done(struct job *job)
{
    struct look *look = container_of(job, struct look, job);
    struct roster *roster = look->d->roster;
    struct entry **at = find(roster, look->id);
    if (*at)
        (*at)->suspect = false;
    if (look->failed) {
        roster_leaving(roster, look->id, false);
    } else {
        if (roster_parting(roster, look->id))
            journal_engine(look->d, AUDIT_DELETE, look->id,
                           &(struct audit_detail){.reason = "it ended long ago (keep_ended)"},
                           NULL);
        roster_removed(roster, look->id);
    }
    free(look);
}

static void forget_old(struct roster *roster, struct entry *entry)
{
    uint64_t keep = roster->d->settings.keep_ended_ms;
    if (!keep || !entry->ended || entry->suspect || entry->leaving || !settled(entry) ||
        entry->ended_ms + keep > cay_wall_ms())
        return;
    entry->leaving = true; /* noted when it is done */
    send_worker(roster, entry, forget_work, forget_done);
}

/* ---- the round ------------------------------------------------------------------------------- */

static void on_look(struct timer *timer)
{
    struct roster *roster = container_of(timer, struct roster, look);
    if (roster->rescan)
        scan_again(roster);
    roster->slice = (roster->slice + 1) % LOOK_SLICES;
    for (size_t i = roster->slice; i < BUCKETS; i += LOOK_SLICES)
        for (struct entry *entry = roster->buckets[i]; entry; entry = entry->next) {
            look_at(roster, entry);
            forget_old(roster, entry);
        }
    timer_set(&roster->d->loop, timer, cay_now_us() + LOOK_US);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* What the log knew before the directories were looked at. */
struct before {
    struct known *known;
    bool whole; /* what it does not know is news */
};

/* One that is there and was not in the roster: what of it is in the log? */
static void compare(struct roster *roster, struct entry *entry, const struct before *before,
                    bool ended)
{
    const struct known_id *known = known_find(before->known, entry->id);
    entry->told = known && known->ended ? TOLD_ENDED : TOLD_THERE;
    if (!known && !before->whole) {
        entry->told = ended ? TOLD_ENDED : TOLD_THERE;
        return;
    }
    if (known && known->ended && !ended)
        tell_removed(roster, entry); /* this is another one of that name */
    if (!known || entry->told == TOLD_NOT) {
        entry->told = TOLD_NOT;
        tell_made(roster, entry);
    }
}

static int scan_dir(struct roster *roster, int dir, bool ended, const struct before *before)
{
    autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream)
        return -1;
    steal_fd(&fd);
    errno = 0;
    for (struct dirent *e; (e = readdir(stream)); errno = 0) {
        if (!is_ours(e->d_name) || e->d_type == DT_SOCK)
            continue;
        struct entry *entry = *find(roster, e->d_name);
        /* One that has a run directory lives, or is looked at and swept. */
        if (!entry && (entry = add_found(roster, e->d_name))) {
            compare(roster, entry, before, ended);
            if (ended)
                has_ended(roster, find(roster, e->d_name));
        }
        struct known_id *known = known_find(before->known, e->d_name);
        if (known)
            known->found = true;
    }
    int failed = errno ? -1 : 0;
    closedir(stream);
    return failed;
}

static void tell_missing(struct known_id *id, void *data)
{
    struct roster *roster = data;
    if (!id->found)
        journal_engine(roster->d, AUDIT_DELETE, id->id,
                       &(struct audit_detail){.reason = without_removed}, NULL);
}

/* Everything that is there and was not told, and that was told and is not there. */
static int scan(struct roster *roster, const struct before *before)
{
    roster->rescan = scan_dir(roster, roster->d->cay->run, false, before) < 0 ||
                     scan_dir(roster, roster->d->cay->sandboxes, true, before) < 0;
    if (roster->rescan)
        return -1;
    known_each(before->known, tell_missing, roster);
    return 0;
}

static struct known *known_now(const struct roster *roster)
{
    struct known *known = known_new();
    for (size_t i = 0; known && i < BUCKETS; i++)
        for (const struct entry *entry = roster->buckets[i]; entry; entry = entry->next)
            if (entry->told != TOLD_NOT &&
                !known_add(known, entry->id, entry->told == TOLD_ENDED)) {
                known_free(known);
                return NULL;
            }
    return known;
}

/* Events of inotify were lost: look at everything. */
static void scan_again(struct roster *roster)
{
    struct before before = {.known = known_now(roster), .whole = true};
    if (!before.known)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct entry **at = &roster->buckets[i]; *at;) {
            struct known_id *known = known_find(before.known, (*at)->id);
            bool dead = (*at)->ended || !sandbox_kept(roster->d->cay, (*at)->id);
            if (settled(*at) && !(*at)->makers && !(*at)->leaving && dead) {
                drop(roster, at);
                continue;
            }
            /* Who makes or removes it tells what becomes of it. */
            if (known && ((*at)->makers || (*at)->leaving))
                known->found = true;
            at = &(*at)->next;
        }
    if (scan(roster, &before) < 0)
        log_event(LOG_WARNING, "the sandboxes cannot be listed; trying again", "error",
                  strerror(errno));
    known_free(before.known);
}

void roster_save(struct roster *roster, uint64_t seq)
{
    const char *dir = journal_dir(roster->d->journal);
    struct known *known = dir && roster->ready ? known_now(roster) : NULL;
    if (known && known_save(known, dir, seq) < 0)
        log_event(LOG_WARNING, "cannot write what the audit log knows; the next start reads it",
                  "error", strerror(errno));
    known_free(known);
}

/* At the start: what the daemon before us had no time to write down, and what happened since. */
static int scan_first(struct roster *roster, struct cay_error *err)
{
    const char *dir = journal_dir(roster->d->journal);
    struct before before = {.known = known_new()};
    struct cay_error why;
    if (!before.known)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (dir &&
        known_load(before.known, dir, journal_last(roster->d->journal), &before.whole, &why) < 0) {
        log_event(LOG_WARNING, "the audit log cannot be compared with the sandboxes", "error",
                  why.text);
        known_free(before.known);
        before = (struct before){.known = known_new()};
        if (!before.known)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    int scanned = scan(roster, &before);
    int eno = errno;
    known_free(before.known);
    if (scanned < 0)
        return cay_fail_errno(err, eno, "cannot list the sandboxes in %s",
                              roster->d->cay->run_path);
    roster->ready = true;
    roster_save(roster, journal_last(roster->d->journal));
    return 0;
}

static int watch_dir(int inotify, int dir, uint32_t mask)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", dir);
    return inotify_add_watch(inotify, path, mask | IN_ONLYDIR);
}

int roster_open(struct daemon *d, struct roster **out, struct cay_error *err)
{
    struct roster *roster = calloc(1, sizeof(*roster));
    autofd int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (!roster || fd < 0) {
        free(roster);
        return cay_fail_errno(err, errno, "cannot watch the run directory");
    }
    roster->d = d;
    roster->watch = (struct watch){.fd = -1, .ready = on_inotify};
    roster->look.fire = on_look;
    /* First the watch, then the look: nothing falls between the two. */
    roster->run_watch = watch_dir(fd, d->cay->run, IN_CREATE | IN_DELETE);
    roster->ended_watch = watch_dir(fd, d->cay->sandboxes, IN_DELETE);
    if (roster->run_watch < 0 || roster->ended_watch < 0) {
        free(roster);
        return cay_fail_errno(err, errno, "cannot watch the run directory");
    }
    roster->fd = steal_fd(&fd);
    loop_watch(&d->loop, &roster->watch, roster->fd, EPOLLIN);
    d->roster = roster; /* entries of the journal look for labels in it */
    if (scan_first(roster, err) < 0)
        return -1; /* closed with the other parts */
    timer_set(&d->loop, &roster->look, cay_now_us() + LOOK_US);
    *out = roster;
    return 0;
}

void roster_close(struct roster *roster)
{
    if (!roster)
        return;
    int fd = roster->fd;
    roster_save(roster, journal_last(roster->d->journal));
    loop_forget(&roster->d->loop, &roster->watch);
    timer_clear(&roster->d->loop, &roster->look);
    close_fd(&fd);
    for (size_t i = 0; i < BUCKETS; i++)
        while (roster->buckets[i])
            drop(roster, &roster->buckets[i]);
    for (struct tenant *t; (t = roster->tenants);) {
        roster->tenants = t->next;
        free(t);
    }
    free(roster);
}
