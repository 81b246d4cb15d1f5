/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a spec to a running jail. The order is that of undoing it: ids, cgroup, jail; keeper_undo
 * takes back whatever of it there is. A prepared sandbox is one of a spec that says only what
 * cannot be changed later, and keeper_bind changes the rest.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "jail/disk.h"
#include "jail/sys.h"
#include "keeper/embed.h"
#include "keeper/ids.h"
#include "keeper/keeper.h"
#include "keeper/rights.h"
#include "sandbox/image.h"
#include "sandbox/mounts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What fits into the socket to an init that does not run yet, with room to spare. */
#define EARLY_MAX 65536

struct parts {
    struct image image;
    struct jail_overlay overlays[IMAGE_MAX_LAYERS];
    struct mounts mounts;
    char stage[CAY_MAX_PATH];
};

static int open_parts(struct keeper *k, struct parts *parts, struct cay_error *err)
{
    /* A creator of a version that sends no directory. */
    if (k->image_dir < 0 && image_check(k->image, k->image, true, &k->image_dir, err) < 0)
        return -1;
    if (image_open(k->cay.state_path, k->image_dir, &parts->image, err) < 0)
        return -1;
    if (mounts_open(&k->spec.spec, k->cay.privileged, &parts->mounts, err) < 0)
        return -1;
    for (size_t i = 0; i < parts->image.n_layers; i++)
        parts->overlays[i] = (struct jail_overlay){
            .lower = parts->image.layers[i].lower,
            .target = parts->image.layers[i].target,
            .cover = parts->image.layers[i].cover,
            .unshifted = parts->image.layers[i].unshifted,
        };
    /* The scaffold needs some directory that the child may enter; it covers it in its own mount
     * namespace only. As root it opens no host path after that (layers come as mounts), and our own
     * directories are closed to its ids; rootless it opens paths, and our directory is its own. */
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
    /* A late plan (keeper_bind) has them already. */
    if (!k->id_range)
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

/*
 * Files in memory that left no room for a process could never be removed again, as that takes one:
 * rootless, where all disks are in memory, the disk is full before that. As root it is half of the
 * memory at most.
 */
static uint64_t disk_bytes(const struct keeper *k, const struct cay_spec *spec)
{
    bool counted = k->cgroup.kind != CGROUP_NONE && spec->memory;
    return counted && !k->cay.privileged ? CAY_MIN(spec->disk, spec->memory / 4 * 3) : spec->disk;
}

/* In memory while that leaves room for the processes; else, as root, in a file of its own. */
static int plan_disk(struct keeper *k, struct jail_plan *plan, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    plan->disk_bytes = disk_bytes(k, spec);
    plan->inodes = spec->inodes;
    plan->scratch_bytes = spec->memory / 2;
    plan->disk = -1;
    if (spec_disk_in_memory(spec, k->cay.privileged))
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
    /* If it is large it must wait until init reads: see main.c. So must the name of a prepared
     * sandbox. */
    if (!k->parked && k->spec.size + k->creator->chan.in.size < EARLY_MAX)
        client_serve(k->creator);
    return 0;
}

/* Bind mounts belong to the sandbox's user, whoever that is in its image. */
static int plan_user(struct keeper *k, const struct cay_spec *spec, const struct image *image,
                     struct jail_plan *plan, struct cay_error *err)
{
    if (!plan->n_binds)
        return 0;
    if (ids_of_user(image->layers[0].lower, spec->user, &plan->user_uid, &plan->user_gid, err) < 0)
        return -1;
    if (!k->cay.privileged && plan->user_uid != 0)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "without root a mount belongs to the sandbox's root; leave out the "
                        "user '%s', or run cay as root",
                        spec->user);
    return 0;
}

static int start(struct keeper *k, struct parts *parts, struct cay_error *err)
{
    const struct cay_spec *spec = &k->spec.spec;
    struct jail_plan plan = {
        .hostname = parse_id_name(k->id),
        .stage = parts->stage,
        .overlays = parts->overlays,
        .n_overlays = parts->image.n_layers,
        .binds = parts->mounts.binds,
        .n_binds = parts->mounts.n,
        .memory = spec->memory,
        .cpus_milli = spec->cpus,
        .fds = spec->fds,
        .no_setid = k->no_setid,
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
    if (plan_user(k, spec, &parts->image, &plan, err) < 0 || plan_ids(k, &plan, err) < 0 ||
        rights_builder(k, !plan.privileged && plan.n_uids > 1, err) < 0 ||
        plan_cgroup(k, &plan, err) < 0 || plan_disk(k, &plan, err) < 0)
        return -1;
    int started = jail_start(&plan, &k->jail, err);
    close_fd(&k->disk);
    return started;
}

int keeper_setup(struct keeper *k, struct cay_error *err)
{
    struct parts parts = {0};
    int result = open_parts(k, &parts, err);
    /* A prepared one is told; others see from their mounts. */
    k->no_setid |= parts.mounts.no_setid;
    if (result == 0)
        result = start(k, &parts, err);
    if (result == 0 && k->parked)
        result = jail_hold(&k->jail, k->cay.privileged, err);
    mounts_done(&parts.mounts);
    image_done(&parts.image);
    if (!k->parked)
        close_fd(&k->image_dir);
    return result;
}

/* ---- a prepared sandbox gets its spec -------------------------------------------------------- */

static int late_limits(struct keeper *k, const struct cay_spec *spec, struct cay_error *err)
{
    const struct cay_spec *old = &k->spec.spec;
    const struct cgroup_limits limits = {
        .memory = spec->memory, .cpus_milli = spec->cpus, .pids = spec->pids};
    /* Without them, the number of processes is a limit of init's own. */
    if (k->cgroup.kind == CGROUP_NONE &&
        (spec->cpus || spec->memory != old->memory || spec->pids != old->pids))
        return cay_fail(err, CAY_E_UNSUPPORTED, "there are no cgroups");
    if (cgroup_adjust(&k->cgroup, &limits, err) < 0)
        return -1;
    if ((spec->memory != old->memory || spec->cpus != old->cpus) &&
        jail_figures(&k->jail, spec->memory, spec->cpus) < 0)
        return cay_fail_errno(err, errno, "cannot tell the sandbox its limits");
    return 0;
}

static int late_jail(struct keeper *k, const struct cay_spec *spec, const struct mounts *mounts,
                     struct cay_error *err)
{
    const struct jail_plan made = {.disk_bytes = disk_bytes(k, &k->spec.spec),
                                   .inodes = k->spec.spec.inodes};
    autoimage struct image image = {0};
    struct jail_plan plan = {
        .hostname = parse_id_name(spec->id),
        .binds = mounts->binds,
        .n_binds = mounts->n,
        .disk_bytes = disk_bytes(k, spec),
        .inodes = spec->inodes,
        .privileged = k->cay.privileged,
    };
    if (plan.n_binds && image_open(k->cay.state_path, k->image_dir, &image, err) < 0)
        return -1;
    if (plan_user(k, spec, &image, &plan, err) < 0 || plan_ids(k, &plan, err) < 0)
        return -1;
    return jail_late(&k->jail, &made, &plan, err);
}

int keeper_bind(struct keeper *k, const struct cay_spec *spec, struct cay_error *err)
{
    const struct cay_spec *old = &k->spec.spec;
    automounts struct mounts mounts = {0};
    bool in_memory = spec_disk_in_memory(spec, k->cay.privileged);
    bool same_disk = in_memory == spec_disk_in_memory(old, k->cay.privileged) &&
                     (in_memory || (spec->disk == old->disk && spec->inodes == old->inodes &&
                                    spec->memory == old->memory));
    /* The creator has compared keys (create_key); this is what would be wrong if it had not. */
    if (spec->profile != old->profile || !same_disk || !spec->cpus != !old->cpus ||
        spec->fds != old->fds || strcmp(spec->network, old->network) != 0)
        return cay_fail(err, CAY_E_CONFLICT, "it was prepared for another spec");
    if (mounts_open(spec, k->cay.privileged, &mounts, err) < 0)
        return -1;
    if (mounts.no_setid != k->no_setid)
        return cay_fail(err, CAY_E_CONFLICT, "it was prepared for other mounts");
    if (late_limits(k, spec, err) < 0 || late_jail(k, spec, &mounts, err) < 0)
        return -1;
    close_fd(&k->image_dir);
    return 0;
}

/* ---- back to nothing ------------------------------------------------------------------------- */

void keeper_undo(struct keeper *k)
{
    bool replaced = life_replaced(k);
    bool theirs = replaced && !k->instance;
    if (k->cgroup.kind != CGROUP_NONE && !theirs && cgroup_remove(&k->cgroup) == 0)
        cgroup_done(&k->cgroup);
    if (k->unkillable)
        return;
    ids_release(k->cay.run, k->id_range);
    k->id_range = 0;
    unlinkat(k->run_dir, "ctl", 0);
    unlinkat(k->run_dir, "status", 0);
    if (!replaced)
        unlinkat(k->cay.run, k->id, AT_REMOVEDIR);
    /* The name that it was prepared under stood for all of this until now. */
    if (k->instance)
        home_remove_run(k->cay.run, k->instance);
}
