/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay-keeper ID: started by libcay (src/sandbox/create.c) with descriptor 3 = the creator's
 * connection. Takes the spec and the locked status file from the creator, makes the sandbox,
 * answers READY when init is up, and keeps it until its end. A prepared one (OP_PREPARE) waits,
 * when it is ready, for the sandbox that it is to be. It has no standard streams, no working
 * directory on anybody's file system and no parent that waits for it.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/sys.h"
#include "keeper/keeper.h"
#include "keeper/rights.h"
#include "wire/version.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define CREATOR_FD 3
/* No turn of the loop takes a tenth of this. */
#define WATCHDOG_S 30

/*
 * What a sandbox can do must not depend on the shell that it was made from: the caller's soft
 * limits become its hard ones, for us (three pipes for each command) and for all that runs in it.
 * Hard limits are the operator's. The stack keeps a size: programs take it for that of their
 * threads.
 */
static const struct {
    int resource;
    rlim_t soft;
} limits[] = {
    {RLIMIT_NOFILE, RLIM_INFINITY}, {RLIMIT_AS, RLIM_INFINITY},    {RLIMIT_DATA, RLIM_INFINITY},
    {RLIMIT_FSIZE, RLIM_INFINITY},  {RLIMIT_CPU, RLIM_INFINITY},   {RLIMIT_RSS, RLIM_INFINITY},
    {RLIMIT_NPROC, RLIM_INFINITY},  {RLIMIT_LOCKS, RLIM_INFINITY}, {RLIMIT_STACK, 8u << 20},
};

static void raise_limits(void)
{
    struct rlimit limit;
    for (size_t i = 0; i < CAY_COUNT(limits); i++) {
        if (getrlimit(limits[i].resource, &limit) < 0)
            continue;
        rlim_t soft = CAY_MIN(limits[i].soft, limit.rlim_max);
        if (soft == limit.rlim_cur)
            continue;
        limit.rlim_cur = soft;
        setrlimit(limits[i].resource, &limit);
    }
}

static int detach_from_caller(void)
{
    sigset_t none;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
        return -1;
    sys_close_range(CREATOR_FD + 1, ~0u);
    if (fcntl(CREATOR_FD, F_SETFD, FD_CLOEXEC) < 0 || chdir("/") < 0)
        return -1;
    /* Terminals and job control of the caller are none of our business; SIGTERM is: it ends the
     * sandbox. */
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a caller's limit on file sizes must not kill us over a spool */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    raise_limits();
    umask(022); /* init must be able to enter its cgroups; our own files say their modes */
    return 0;
}

static int open_or_make(const char *path)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0 && errno == ENOENT && (mkdir(path, 0700) == 0 || errno == EEXIST))
        dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return dir;
}

static int open_home(struct keeper *k, const struct msg *msg, struct cay_error *err)
{
    char path[CAY_MAX_PATH];
    if (!msg->path || !msg->target || !msg->name ||
        strlen(msg->path) >= sizeof(k->cay.state_path) ||
        strlen(msg->target) >= sizeof(k->cay.run_path) || strlen(msg->name) >= sizeof(k->image))
        return cay_fail(err, CAY_E_INVALID, "malformed request to the keeper");
    strcpy(k->cay.state_path, msg->path);
    strcpy(k->cay.run_path, msg->target);
    strcpy(k->image, msg->name);
    snprintf(path, sizeof(path), "%s/sandboxes", msg->path);
    k->cay.privileged = home_privileged();
    k->cay.run = open(msg->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    k->cay.sandboxes = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A directory of their own: whoever may make files in it sees nobody else's. */
    snprintf(path, sizeof(path), "%s/spools", msg->path);
    k->spools = open_or_make(path);
    k->run_dir = k->cay.run < 0 ? -1 : home_open(k->cay.run, k->id);
    if (k->cay.run < 0 || k->cay.sandboxes < 0 || k->run_dir < 0 || k->spools < 0)
        return cay_fail_errno(err, errno, "cannot open the directories of the sandbox");
    return 0;
}

/* The creator's one message, read before there is a loop. */
static int take_spec(struct keeper *k, struct chan *creator, struct cay_error *err)
{
    automsg struct msg msg = {0};
    int got = chan_recv(creator, &msg, err);
    if (got < 0 && err->code == CAY_E_VERSION)
        return cay_fail(err, CAY_E_VERSION, "the keeper that was started for '%s' is " WIRE_WHO,
                        k->id);
    if (got <= 0 || (msg.type != OP_CREATE && msg.type != OP_PREPARE))
        return got < 0 ? -1 : cay_fail(err, CAY_E_INVALID, "the creator went away");
    k->status_fd = chan_take_fd(creator);
    if (k->status_fd < 0)
        return cay_fail(err, CAY_E_INVALID, "the creator sent no status file");
    if (spec_load(msg.data.data, msg.data.size, &k->spec, err) < 0)
        return -1;
    k->parked = msg.type == OP_PREPARE;
    k->no_setid = msg.flags & MSG_F_NO_SETID;
    k->image_dir = chan_take_fd(creator);
    /* The creator's hangup ends an ephemeral one, and so a parked one. */
    if (strcmp(k->spec.spec.id, k->id) != 0 || (k->parked && !k->spec.spec.ephemeral))
        return cay_fail(err, CAY_E_INVALID, "the spec is of another sandbox");
    return open_home(k, &msg, err);
}

static int make(struct keeper *k, struct chan *creator, struct cay_error *err)
{
    if (loop_init(&k->loop) < 0)
        return cay_fail_errno(err, errno, "cannot make an event loop");
    if (take_spec(k, creator, err) < 0)
        return -1;
    k->creator = client_new(k, creator, true);
    if (!k->creator)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    k->state = CAY_STATE_CREATING;
    k->reason = "being made";
    k->created_ms = cay_wall_ms();
    home_boot_id(k->boot_id);
    if (life_write(k) < 0)
        return cay_fail_errno(err, errno, "cannot write the sandbox's status");
    spool_init(&k->log, CAY_MAX_LOG);
    if (keeper_setup(k, err) < 0 || link_await(k, err) < 0) {
        /* The record first: once the run directory is gone, the id is anybody's. */
        if (!k->spec.spec.ephemeral)
            cay_remove_tree_at(k->cay.sandboxes, k->id);
        keeper_undo(k);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct keeper keeper; /* zeroed, and too large for a stack */
    struct keeper *k = &keeper;
    struct chan creator;
    struct cay_error err = {0};
    if (argc != 2 || detach_from_caller() < 0)
        return 1;
    k->id = argv[1];
    k->program = argv[0];
    k->status_fd = k->cay.run = k->cay.sandboxes = k->run_dir = k->spools = k->disk = k->oom_fd =
        k->listen_fd = k->instance_fd = k->image_dir = k->watcher.answer.fd = -1;
    k->jail = JAIL_NONE;
    chan_init(&creator, CREATOR_FD);
    if (make(k, &creator, &err) < 0) {
        const struct msg msg = {.type = MSG_ERROR,
                                .code = err.code,
                                .sys_errno = (uint64_t)err.sys_errno,
                                .text = err.text};
        chan_send(CREATOR_FD, &msg, NULL, 0, NULL);
        return 1;
    }
    /* Not earlier: a clone of a process that is not dumpable has a /proc entry that only root may
     * write, and rootless the id map is written there by us. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    life_watch(k);
    if (k->parked)
        (void)life_write(k);
    else
        life_up(k);
    client_send(k->creator, &(struct msg){.type = MSG_READY, .pid = (uint64_t)k->jail.pid}, -1);
    if (!k->parked && rights_server(k, &err) < 0)
        life_end(k, CAY_STATE_EXITED, "its keeper could not give up its rights", 0);
    link_resume(k);
    client_serve(k->creator); /* a first command that was too large to be sent ahead */
    if (!k->procs)
        group_prepare(k);
    if (k->parked)
        proc_warm(k);
    /* A descriptor that init sent may block us after all, however it was looked at: rather lost
     * than stuck. */
    k->loop.watchdog_s = WATCHDOG_S;
    return loop_run(&k->loop) < 0;
}
