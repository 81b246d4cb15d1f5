/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prepared sandbox is removed by its own keeper when its daemon goes. Three things stay behind: a
 * directory whose keeper was never told of it, since the daemon was killed in between; one whose
 * keeper was killed; and one that a sweep had half removed when its daemon was killed. None of them
 * has a lock, or none for long.
 *
 * Two looks. At the start those that an earlier daemon left: there is one daemon at a time (its
 * lock on the state directory), so nobody is about to take a directory that was there before us,
 * and the time of grace that sandbox_life has for creators is not waited for. It would be in vain
 * if this daemon is stopped before. Later all of them, with that grace, again and again: a keeper
 * that still lives at the start may be killed afterwards. When the run directory was cleared, only
 * cgroups tell of them: those are looked at once, at the start.
 */
#include "daemon/remains.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/jobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* As often as the roster has looked at all of its own. */
#define LOOK_US 4000000
/* More than this many at the start are left to the later looks. */
#define MAX_NAMES 65536

typedef char name_text[CAY_MAX_ID];

struct remains {
    struct daemon *d;
    struct cay alone; /* for the first look; borrows its directories */
    struct job job;
    struct timer timer;
    name_text *names; /* found at the start; NULL: later looks read the directory */
    size_t n;
};

static DIR *open_run(const struct daemon *d)
{
    autofd int fd = openat(d->cay->run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream)
        steal_fd(&fd);
    return stream;
}

static bool is_prepared(const char *name)
{
    const char *id;
    return parse_id_reserved(name) && parse_id(name, &id, NULL) == 0;
}

static void look(struct job *job)
{
    struct remains *remains = container_of(job, struct remains, job);
    struct daemon *d = remains->d;
    DIR *stream = open_run(d);
    for (struct dirent *e; stream && (e = readdir(stream));)
        if (is_prepared(e->d_name) && !sandbox_kept(d->cay, e->d_name))
            (void)sandbox_life(d->cay, e->d_name, NULL);
    if (stream)
        closedir(stream);
}

static void first_look(struct job *job)
{
    struct remains *remains = container_of(job, struct remains, job);
    for (size_t i = 0; i < remains->n; i++)
        (void)sandbox_life(&remains->alone, remains->names[i], NULL);
    sandbox_sweep_prepared(remains->d->cay);
}

static void looked(struct job *job)
{
    struct remains *remains = container_of(job, struct remains, job);
    free(remains->names);
    remains->names = NULL;
    timer_set(&remains->d->loop, &remains->timer, cay_now_us() + LOOK_US);
}

static void on_time(struct timer *timer)
{
    struct remains *remains = container_of(timer, struct remains, timer);
    remains->job.work = look;
    jobs_add(remains->d->jobs, &remains->job);
}

/* Grows by doubling: most daemons find a handful. */
static int note(struct remains *remains, const char *name)
{
    if ((remains->n & (remains->n - 1)) == 0) {
        size_t room = remains->n ? 2 * remains->n : 1;
        name_text *more = reallocarray(remains->names, room, sizeof(*more));
        if (!more)
            return -1;
        remains->names = more;
    }
    snprintf(remains->names[remains->n++], sizeof(name_text), "%s", name);
    return 0;
}

int remains_open(struct daemon *d, struct remains **out, struct cay_error *err)
{
    struct remains *remains = calloc(1, sizeof(*remains));
    if (!remains)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    remains->d = d;
    remains->alone = *d->cay;
    remains->alone.alone = true;
    remains->timer.fire = on_time;
    remains->job = (struct job){.work = first_look, .done = looked};
    DIR *stream = open_run(d);
    for (struct dirent *e; stream && remains->n < MAX_NAMES && (e = readdir(stream));)
        if (is_prepared(e->d_name) && note(remains, e->d_name) < 0)
            break; /* later looks find them */
    if (stream)
        closedir(stream);
    jobs_add(d->jobs, &remains->job);
    *out = remains;
    return 0;
}

void remains_close(struct remains *remains)
{
    if (!remains)
        return;
    timer_clear(&remains->d->loop, &remains->timer);
    free(remains->names);
    free(remains);
}
