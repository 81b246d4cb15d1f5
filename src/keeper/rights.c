/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/rights.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/shed.h"
#include "jail/sys.h"
#include "keeper/embed.h"

#include <linux/capability.h>
#include <stdio.h>

/* ---- builder --------------------------------------------------------------------------------- */

/*
 * Namespaces, mounts, control groups, loop devices (SYS_ADMIN, SYS_CHROOT), ids and owners of files
 * (SETUID, SETGID, SETFCAP, CHOWN, FOWNER, FSETID, DAC_*), /proc of a child that is not dumpable
 * (SYS_PTRACE), the disk's device node (MKNOD), and what is needed to give all this up (SETPCAP).
 */
static const uint64_t building =
    SHED_CAP(CAP_SYS_ADMIN) | SHED_CAP(CAP_SYS_CHROOT) | SHED_CAP(CAP_SETUID) |
    SHED_CAP(CAP_SETGID) | SHED_CAP(CAP_SETFCAP) | SHED_CAP(CAP_CHOWN) | SHED_CAP(CAP_FOWNER) |
    SHED_CAP(CAP_FSETID) | SHED_CAP(CAP_DAC_OVERRIDE) | SHED_CAP(CAP_DAC_READ_SEARCH) |
    SHED_CAP(CAP_SYS_PTRACE) | SHED_CAP(CAP_MKNOD) | SHED_CAP(CAP_SETPCAP) | SHED_CAP(CAP_KILL) |
    SHED_CAP(CAP_SYS_RESOURCE);

/* What programs could gain by being executed. A root without CAP_SETPCAP cannot change that, and
 * with no_new_privs they gain nothing anyway. */
static int shed_gains(int result)
{
    return result < 0 && errno == EPERM ? 0 : result;
}

static int drop_builder(bool privileged)
{
    if (shed_new_privs() < 0)
        return -1;
    if (privileged && (shed_gains(shed_root_magic()) < 0 || shed_caps(building) < 0))
        return -1;
    return shed_signals() < 0 && errno != ENOTSUP ? -1 : 0;
}

int rights_builder(const struct keeper *k, bool helpers, struct cay_error *err)
{
    if (helpers)
        return 0;
    return drop_builder(k->cay.privileged) == 0
               ? 0
               : cay_fail_errno(err, errno, "the keeper cannot give up its rights");
}

/* ---- server ---------------------------------------------------------------------------------- */

/*
 * KILL: commands have ids of the sandbox. CHOWN: they get their control group and their pipes.
 * SYS_RESOURCE: all sandboxes of root share root's budget of pipe pages and of descriptors in
 * flight, and would get slow.
 */
static const uint64_t serving =
    SHED_CAP(CAP_KILL) | SHED_CAP(CAP_CHOWN) | SHED_CAP(CAP_SYS_RESOURCE);

/* The group of all sandboxes lies in a directory that nobody may write, and goes with the last of
 * them; or this sandbox's group lies there. Landlock says what can be overridden. */
static uint64_t serving_with(const struct cgroup *cg)
{
    bool ours = *cg->in_root;
    for (int part = 0; part < CGROUP_PARTS; part++)
        ours |= cg->ours[part];
    return serving | (ours ? SHED_CAP(CAP_DAC_OVERRIDE) : 0);
}

#define OWN (SHED_READ | SHED_WRITE | SHED_MAKE | SHED_REMOVE_FILE | SHED_REMOVE_DIR)
/* Of each part: the sandbox's group, what it is in (BASE, or the root of the hierarchy), and what
 * BASE is in (it goes with the last sandbox). */
#define MAX_PATHS (7 + 3 * CGROUP_PARTS)

/* What is opened here is closed again. */
struct reach {
    struct shed_path paths[MAX_PATHS];
    bool opened[MAX_PATHS];
    size_t n;
    bool failed;
};

static void reach_add(struct reach *reach, int dir, unsigned rights)
{
    if (dir >= 0 && reach->n < MAX_PATHS)
        reach->paths[reach->n++] = (struct shed_path){dir, rights};
}

/* One that is not there is none of ours. */
static void reach_open(struct reach *reach, int parent, const char *name, unsigned rights)
{
    int dir = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0) {
        reach->failed |= errno != ENOENT;
        return;
    }
    if (reach->n == MAX_PATHS) {
        close(dir);
        reach->failed = true;
        errno = EOVERFLOW;
        return;
    }
    reach->opened[reach->n] = true;
    reach_add(reach, dir, rights);
}

static void reach_done(struct reach *reach)
{
    for (size_t i = 0; i < reach->n; i++)
        if (reach->opened[i])
            close_fd(&reach->paths[i].dir);
}

static void reach_groups(struct reach *reach, const struct cgroup *cg)
{
    for (int part = 0; cg->kind != CGROUP_NONE && part < CGROUP_PARTS; part++) {
        /* Parts that are mounted together share a directory, and one base. */
        if (cg->base[part] < 0)
            continue;
        reach_add(reach, cg->dir[part], OWN);
        reach_add(reach, cg->base[part], SHED_REMOVE_DIR);
        if (cg->ours[part])
            reach_open(reach, cg->base[part], "..", SHED_REMOVE_DIR);
    }
}

static int confine_paths(const struct keeper *k)
{
    struct reach reach = {0};
    reach_add(&reach, k->run_dir, OWN);
    reach_add(&reach, k->cay.run, SHED_REMOVE_DIR);
    if (k->instance)
        reach_open(&reach, k->cay.run, k->instance, OWN);
    if (k->id_range)
        reach_open(&reach, k->cay.run, "ids", SHED_REMOVE_FILE);
    reach_add(&reach, k->cay.sandboxes, SHED_REMOVE_DIR);
    if (!k->spec.spec.ephemeral)
        reach_open(&reach, k->cay.sandboxes, k->id, OWN);
    reach_add(&reach, k->spools, SHED_READ | SHED_WRITE | SHED_MAKE | SHED_REMOVE_FILE);
    reach_groups(&reach, &k->cgroup);
    int result = reach.failed ? -1 : shed_paths(reach.paths, reach.n);
    int saved = errno;
    reach_done(&reach);
    errno = saved;
    return result < 0 && errno != ENOTSUP ? -1 : 0;
}

static int drop_server(struct keeper *k)
{
    size_t size = (size_t)(cay_seccomp_keeper_end - cay_seccomp_keeper);
    cgroup_learn(&k->cgroup);
    /* Rootless this may be the first time; Landlock and the filter want it. */
    if (shed_new_privs() < 0 || watch_counter(k) < 0 || confine_paths(k) < 0)
        return -1;
    if (k->cay.privileged &&
        (shed_gains(shed_bounding(0)) < 0 || shed_caps(serving_with(&k->cgroup)) < 0))
        return -1;
    return shed_calls((const struct sock_filter *)cay_seccomp_keeper,
                      size / sizeof(struct sock_filter));
}

int rights_server(struct keeper *k, struct cay_error *err)
{
    return drop_server(k) == 0 ? 0
                               : cay_fail_errno(err, errno, "the keeper cannot give up its rights");
}
