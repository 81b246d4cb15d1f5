/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a spec to a running jail. The order is that of undoing it: ids, cgroup, jail; keeper_undo
 * takes back whatever of it there is.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/disk.h"
#include "jail/sys.h"
#include "keeper/embed.h"
#include "keeper/ids.h"
#include "keeper/keeper.h"
#include "sandbox/image.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What fits into the socket to an init that does not run yet, with room to spare. */
#define EARLY_MAX 65536

/* Debian and Ubuntu give ordinary users and their groups ids from here on. */
#define FIRST_ORDINARY 1000

struct parts {
    struct image image;
    struct jail_overlay overlays[IMAGE_MAX_LAYERS];
    struct jail_bind binds[CAY_MAX_MOUNTS];
    size_t n_binds;
    bool no_setid; /* what it writes into a mount belongs to the host's root, in reach of others */
    char stage[CAY_MAX_PATH];
};

static void parts_done(struct parts *parts)
{
    for (size_t i = 0; i < parts->n_binds; i++)
        close_fd(&parts->binds[i].source);
}

static int by_target(const void *a, const void *b)
{
    return strcmp(((const struct jail_bind *)a)->target, ((const struct jail_bind *)b)->target);
}

/* Sources are resolved once, here; what they resolve to is what is mounted, whatever happens
 * meanwhile. */
/* Whether anybody but root can get at what lies below. Only a parent that is root's, and closed to
 * its group and all others, closes the way (with an access list the group's bits are its mask). The
 * directory itself does not count, as the sandbox may change its mode. */
static bool others_reach(int fd)
{
    char link[32], path[CAY_MAX_PATH];
    struct stat st;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0)
        return true;
    path[n] = 0;
    for (char *slash = strrchr(path, '/'); slash && slash != path; slash = strrchr(path, '/')) {
        *slash = 0;
        if (stat(path, &st) < 0)
            return true;
        if (st.st_uid == 0 && !(st.st_mode & (S_IXGRP | S_IXOTH)))
            return false;
    }
    return true;
}

/* Root and the groups that a distribution gives rights to: a set-id file of theirs is worth having.
 */
static bool is_system(const struct stat *st)
{
    return st->st_uid < FIRST_ORDINARY || st->st_gid < FIRST_ORDINARY;
}

static int open_binds(struct keeper *k, struct parts *parts, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    for (size_t i = 0; i < spec->n_mounts; i++) {
        const struct cay_mount *mount = &spec->mounts[i];
        struct stat st;
        autofd int fd = open(mount->source, O_PATH | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
            return cay_fail_errno(err, errno, "mount source %s", mount->source);
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
            return cay_fail(err, CAY_E_INVALID,
                            "mount source %s is neither a directory nor a plain file",
                            mount->source);
        if (k->cay.privileged && !mount->read_only && is_system(&st) && others_reach(fd))
            parts->no_setid = true;
        parts->binds[parts->n_binds++] = (struct jail_bind){
            .source = steal_fd(&fd),
            .target = mount->target,
            .read_only = mount->read_only,
            .uid = st.st_uid,
            .gid = st.st_gid,
        };
    }
    /* A parent's path is the beginning of its child's, so it sorts first. */
    qsort(parts->binds, parts->n_binds, sizeof(*parts->binds), by_target);
    return 0;
}

static int open_parts(struct keeper *k, struct parts *parts, struct cay_error *err)
{
    if (image_open(k->cay.state_path, k->image, &parts->image, err) < 0 ||
        open_binds(k, parts, err) < 0)
        return -1;
    for (size_t i = 0; i < parts->image.n_layers; i++)
        parts->overlays[i] = (struct jail_overlay){
            .lower = parts->image.layers[i].lower,
            .target = parts->image.layers[i].target,
            .mask = parts->image.layers[i].mask[0] ? parts->image.layers[i].mask : NULL,
        };
    /* The scaffold needs some directory that the child may enter; it covers it in its own mount
     * namespace only. As root it opens no host path after that (layers come as descriptors), and
     * our own directories are closed to its ids; rootless it opens paths, and our directory is its
     * own. */
    if (k->cay.privileged)
        snprintf(parts->stage, sizeof(parts->stage), "/usr");
    else
        snprintf(parts->stage, sizeof(parts->stage), "%s/%s", k->cay.run_path, k->id);
    return 0;
}

static int plan_ids(struct keeper *k, struct jail_plan *plan, struct cay_error *err)
{
    if (!k->cay.privileged) {
        ids_rootless(plan);
        return 0;
    }
    k->id_range = ids_claim(k->cay.run, k->id, err);
    if (!k->id_range)
        return -1;
    plan->uids[0] = plan->gids[0] = (struct jail_map){0, ids_base(k->id_range), JAIL_IDS};
    plan->n_uids = plan->n_gids = 1;
    return 0;
}

static int plan_cgroup(struct keeper *k, struct jail_plan *plan, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    const struct cgroup_limits limits = {
        .memory = spec->memory, .cpus_milli = spec->cpus, .pids = spec->pids};
    char group[HOME_GROUP_SIZE];
    home_group_name(&k->cay, k->id, group);
    int made =
        cgroup_begin(&k->cgroup, group, &limits, plan->uids[0].outside, plan->gids[0].outside, err);
    if (made < 0 && err->code == CAY_E_CONFLICT && cgroup_sweep(group, err) == 0)
        made = cgroup_begin(&k->cgroup, group, &limits, plan->uids[0].outside,
                            plan->gids[0].outside, err);
    if (made < 0)
        return -1;
    plan->cgroup = &k->cgroup;
    if (k->cgroup.kind != CGROUP_NONE)
        return 0;
    /* Defaults are best effort; a limit that somebody asked for is a promise. */
    if (spec->cpus || spec->memory != SPEC_DEFAULT_MEMORY)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "a %s limit needs cgroups, and this host gives us none; "
                        "'cay doctor' says why",
                        spec->cpus ? "cpu" : "memory");
    plan->pids = spec->pids;
    plan->memory = 0;
    return 0;
}

/* In memory while that leaves room for the processes; else, as root, in a file of its own. */
static int plan_disk(struct keeper *k, struct jail_plan *plan, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    plan->disk_bytes = spec->disk;
    plan->inodes = spec->inodes;
    plan->scratch_bytes = spec->memory / 2;
    plan->disk = -1;
    if (!k->cay.privileged || spec->disk <= spec->memory / 2)
        return 0;
    plan->disk = k->disk = disk_make(k->cay.sandboxes, spec->disk, spec->inodes, err);
    return plan->disk < 0 ? -1 : 0;
}

static void plan_programs(struct keeper *k, struct jail_plan *plan)
{
    static const struct {
        const char *start, *end;
    } filters[] = {
        [CAY_PROFILE_DEFAULT] = {cay_seccomp_default, cay_seccomp_default_end},
        [CAY_PROFILE_STRICT] = {cay_seccomp_strict, cay_seccomp_strict_end},
        [CAY_PROFILE_NESTED] = {cay_seccomp_nested, cay_seccomp_nested_end},
    };
    enum cay_profile profile = k->spec.spec.profile;
    plan->profile = profile;
    plan->seccomp = filters[profile].start;
    plan->seccomp_size = (size_t)(filters[profile].end - filters[profile].start);
    plan->init_image = cay_init_image;
    plan->init_size = (size_t)(cay_init_image_end - cay_init_image);
}

/* While the child builds its root. A first command that came along with the spec is sent on to init
 * here: init finds it when it starts. */
static int finish_our_side(void *data, int init, struct cay_error *err)
{
    struct keeper *k = data;
    if (cgroup_finish(&k->cgroup, err) < 0 || client_listen(k, err) < 0)
        return -1;
    link_start(k, init);
    /* If it is large it must wait until init reads: see main.c. */
    if (k->spec.size + k->creator->chan.in.size < EARLY_MAX)
        client_serve(k->creator);
    return 0;
}

static int start(struct keeper *k, struct parts *parts, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    struct jail_plan plan = {
        .hostname = k->id,
        .stage = parts->stage,
        .overlays = parts->overlays,
        .n_overlays = parts->image.n_layers,
        .binds = parts->binds,
        .n_binds = parts->n_binds,
        .memory = spec->memory,
        .cpus_milli = spec->cpus,
        .fds = spec->fds,
        .no_setid = parts->no_setid,
        .privileged = k->cay.privileged,
        .private_fds = {k->creator->chan.sock, k->status_fd},
        .meanwhile = finish_our_side,
        .data = k,
    };
    plan_programs(k, &plan);
    /* A namespace inside would bring back the capability that no_setid takes away. */
    if (plan.no_setid && plan.profile == CAY_PROFILE_NESTED)
        return cay_fail(
            err, CAY_E_UNSUPPORTED,
            "the profile 'nested' cannot have a writable mount that belongs to the system; "
            "mount it :ro, or give the directory to an ordinary user");
    if (parts->n_binds && ids_of_user(parts->image.layers[0].lower, spec->user, &plan.user_uid,
                                      &plan.user_gid, err) < 0)
        return -1;
    if (parts->n_binds && !plan.privileged && plan.user_uid != 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "without root a mount belongs to the sandbox's root; leave out the "
                        "user '%s', or run cay as root",
                        spec->user);
    if (plan_ids(k, &plan, err) < 0 || plan_cgroup(k, &plan, err) < 0 ||
        plan_disk(k, &plan, err) < 0)
        return -1;
    int started = jail_start(&plan, &k->jail, err);
    close_fd(&k->disk);
    return started;
}

int keeper_setup(struct keeper *k, struct cay_error *err)
{
    struct parts parts = {0};
    int result = open_parts(k, &parts, err) < 0 ? -1 : start(k, &parts, err);
    parts_done(&parts);
    return result;
}

void keeper_undo(struct keeper *k)
{
    if (k->cgroup.kind != CGROUP_NONE && cgroup_remove(&k->cgroup) == 0)
        cgroup_done(&k->cgroup);
    if (k->unkillable)
        return;
    ids_release(k->cay.run, k->id_range);
    k->id_range = 0;
    unlinkat(k->run_dir, "ctl", 0);
    unlinkat(k->run_dir, "status", 0);
    if (unlinkat(k->cay.run, k->id, AT_REMOVEDIR) < 0)
        cay_remove_tree_at(k->cay.run, k->id);
}
