/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating a sandbox. Intent first: the locked run directory, then the record, then the keeper is
 * told, which makes everything else. The lock is taken by the creator and shared with the keeper,
 * so from the first moment on somebody alive holds it, and when nobody does the remains may be
 * swept. A prepared sandbox (prepare.c) has its keeper already; the rest is the same.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/sock.h"
#include "base/util.h"
#include "sandbox/config.h"
#include "sandbox/create.h"
#include "sandbox/image.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"
#include "wire/version.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void create_random(char out[13])
{
    unsigned char bytes[6];
    cay_random(bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* ---- the steps ------------------------------------------------------------------------------- */

static int cannot_make(const struct cay *cay, int eno, const char *dir, const char *id,
                       struct cay_error *err)
{
    if (eno == ENOENT && home_check(cay, err) < 0)
        return -1;
    return cay_fail_errno(err, eno, "cannot make %s/%s", dir, id);
}

/* Whatever has the name of a sandbox and is no directory is nobody's, but for sockets: a daemon
 * listens there. */
static void clear_name(const struct cay *cay, const char *id)
{
    struct stat st;
    if (fstatat(cay->run, id, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode) &&
        !S_ISSOCK(st.st_mode))
        unlinkat(cay->run, id, 0);
}

int create_claim(struct cay *cay, const char *id, int *status, struct cay_error *err)
{
    int made = mkdirat(cay->run, id, 0700);
    if (made < 0 && errno == EEXIST) {
        clear_name(cay, id);
        made = mkdirat(cay->run, id, 0700); /* it may also have been removed just now */
    }
    if (made < 0)
        return errno == EEXIST ? 0 : cannot_make(cay, errno, cay->run_path, id, err);
    autofd int dir = home_open(cay->run, id);
    autofd int fd =
        dir < 0 ? -1 : openat(dir, "status", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT)
        return 0; /* whoever cleared up after an earlier one of the name took the new one for it */
    if (fd < 0 || status_lock(fd) < 0) {
        int eno = errno;
        if (fd >= 0)
            unlinkat(dir, "status", 0);
        unlinkat(cay->run, id, AT_REMOVEDIR);
        return cay_fail_errno(err, eno, "cannot make %s/%s", cay->run_path, id);
    }
    *status = steal_fd(&fd);
    return 1;
}

/*
 * The directory of a record. 1: made; 0: there is one; -1 with errno. Whoever removes an older one
 * of the name has locked it, and looks for our run directory (remove_record): what is there when
 * that is done stays.
 */
static int make_place(struct cay *cay, const char *id, int *out)
{
    for (;;) {
        if (mkdirat(cay->sandboxes, id, 0700) < 0)
            return errno == EEXIST ? 0 : -1;
        autofd int dir = home_open(cay->sandboxes, id);
        if (dir < 0 && errno == ENOENT)
            continue;
        if (dir < 0 || flock(dir, LOCK_EX) < 0) {
            int eno = errno;
            cay_remove_tree_at(cay->sandboxes, id);
            errno = eno;
            return -1;
        }
        bool ours = home_is(cay->sandboxes, id, dir);
        flock(dir, LOCK_UN);
        if (ours) {
            *out = steal_fd(&dir);
            return 1;
        }
    }
}

/* The place of the record, which also says that nobody else's is there; -1 in `dir` if it will have
 * none. */
static int make_record(struct cay *cay, const struct spec *spec, int *dir, struct cay_error *err)
{
    const char *id = spec->spec.id;
    bool record = !spec->spec.ephemeral; /* one without a record does not hide another's, either */
    if (!record && faccessat(cay->sandboxes, id, F_OK, 0) < 0)
        return errno == ENOENT ? 0
                               : cay_fail_errno(err, errno, "cannot look for %s/sandboxes/%s",
                                                cay->state_path, id);
    int made = record ? make_place(cay, id, dir) : 0;
    if (made > 0)
        return 0;
    if (made == 0)
        return cay_fail(err, CAY_E_CONFLICT,
                        "sandbox '%s' has ended and its record is still there; "
                        "remove it with 'cay rm %s'",
                        id, id);
    char path[CAY_MAX_PATH];
    int eno = errno;
    snprintf(path, sizeof(path), "%s/sandboxes", cay->state_path);
    return cannot_make(cay, eno, path, id, err);
}

/* Its status at birth keeps the room for the last one. If that cannot be written at all, this one
 * still says what it was. */
static int write_birth(const struct cay_spec *spec, const char *instance, int dir,
                       struct cay_error *err)
{
    char boot_id[40];
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    home_boot_id(boot_id);
    const struct status birth = {
        .state = CAY_STATE_CREATING,
        .reason = "being made",
        .image = spec->image,
        .boot_id = boot_id,
        .created_ms = cay_wall_ms(),
        .labels = spec->labels,
        .instance = instance[0] ? instance : NULL,
    };
    if (status_encode(&birth, &buf) < 0)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    return record_reserve_at(dir, "status", buf.data, buf.size, err);
}

static int write_record(struct cay *cay, const struct spec *spec, const char *instance, int dir,
                        struct cay_error *err)
{
    /* Not synced: no sandbox survives the host. What a power loss leaves of its record is whole, or
     * told to be damaged. */
    if (dir < 0 || (record_write_at(dir, "spec", spec->bytes, spec->size, false, err) == 0 &&
                    write_birth(&spec->spec, instance, dir, err) == 0))
        return 0;
    cay_remove_tree_at(cay->sandboxes, spec->spec.id);
    return -1;
}

/* What is wanted: a sandbox, and perhaps a first command in it, whose request is sent along. */
struct order {
    struct spec spec;
    const char *image; /* what the spec's image stands for; borrowed from the config */
    int image_dir;     /* the directory of that; -1: it is not one */
    const struct cay_exec *exec;
    bool started;              /* the command's request was sent */
    int creator;               /* to a keeper that waits for the spec; -1: none was started yet */
    char instance[CAY_MAX_ID]; /* of a prepared one; "": it was started for this */
    bool existed;
    bool must_kill; /* the keeper did not answer in time, or not as one of this version does */
};

static int too_late(const struct order *order, struct cay_error *err)
{
    return cay_fail(err, CAY_E_UNAVAILABLE, "the keeper did not make sandbox '%s' within %d s",
                    order->spec.spec.id, SANDBOX_PATIENCE_MS / 1000);
}

/* The command's request goes out before the sandbox is up: the keeper finds it waiting. */
static int send_order(struct order *order, const struct msg *create, int status,
                      struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(2 * (CAY_MAX_FRAME + FRAME_HEADER));
    const int fds[] = {status, order->image_dir};
    uint8_t n_fds = order->image_dir < 0 ? 1 : 2;
    if (msg_encode(&buf, create, n_fds) < 0)
        return cay_fail(err, CAY_E_TOO_LARGE, "the spec is too large");
    if (order->exec) {
        struct msg exec = exec_request(order->exec);
        exec.flags |= MSG_F_LAST;
        if (msg_encode(&buf, &exec, 0) < 0)
            return cay_fail(err, CAY_E_TOO_LARGE,
                            "the command (arguments and environment) is larger than %u bytes",
                            CAY_MAX_FRAME);
    }
    /* The locked status file goes along: the lock belongs to the open file, and so to both of us
     * now. */
    for (size_t done = 0; done < buf.size;) {
        ssize_t n = sock_send_within(order->creator, buf.data + done, buf.size - done, fds,
                                     done == 0 ? n_fds : 0, SANDBOX_PATIENCE_MS);
        order->must_kill = n < 0 && errno == EAGAIN;
        if (n < 0)
            return order->must_kill ? too_late(order, err)
                                    : cay_fail_errno(err, errno, "cannot talk to the keeper");
        done += (size_t)n;
    }
    order->started = order->exec != NULL;
    return 0;
}

/* Hands the spec to the keeper. */
static int tell(struct cay *cay, struct order *order, int status, struct cay_error *err)
{
    const struct spec *spec = &order->spec;
    const struct msg request = {
        .type = OP_CREATE,
        .data = {spec->bytes, spec->size},
        .path = cay->state_path,
        .target = cay->run_path,
        .name = order->image,
    };
    return send_order(order, &request, status, err);
}

/* A keeper of another version was installed since we were started, or is looked for elsewhere. */
static int refused(const struct msg *answer, struct cay_error *err)
{
    if (answer->code != CAY_E_VERSION)
        return msg_to_error(answer, err);
    return cay_fail(err, CAY_E_VERSION,
                    "%.200s, this is " WIRE_WHO "; making sandboxes takes programs of one version "
                    "(cayd: start it again)",
                    answer->text ? answer->text : "cay-keeper");
}

/* Waits until the sandbox is up. */
static int await_ready(struct order *order, struct cay_error *err)
{
    struct chan chan;
    automsg struct msg answer = {0};
    chan_init(&chan, order->creator);
    order->must_kill = !sandbox_await(order->creator, SANDBOX_PATIENCE_MS);
    int got = order->must_kill ? -1 : chan_recv_exact(&chan, &answer, err), result = -1;
    chan.sock = -1; /* the caller's, to keep or to close */
    if (order->must_kill)
        too_late(order, err);
    else if (got > 0 && answer.type == MSG_READY)
        result = 0;
    else if (got > 0 && answer.type == MSG_ERROR)
        refused(&answer, err);
    else if (got == 0 || sandbox_misheard(order->spec.spec.id, err) == 0)
        /* Killed by somebody who removes it, mostly. */
        cay_fail(err, CAY_E_UNAVAILABLE, "the keeper died while it made sandbox '%s'",
                 order->spec.spec.id);
    else
        order->must_kill = true;
    chan_done(&chan);
    return result;
}

/* It is up, but has no record: it must not stay. Its keeper removes everything. */
static void take_back(const struct order *order)
{
    struct chan chan;
    automsg struct msg answer = {0};
    chan_init(&chan, order->creator);
    if (chan_send(order->creator, &(struct msg){.type = OP_STOP, .flags = MSG_F_REMOVE}, NULL, 0,
                  NULL) == 0)
        (void)chan_recv(&chan, &answer, NULL);
    chan.sock = -1;
    chan_done(&chan);
}

/*
 * The record is written while the prepared keeper is at work. 0: done; -1: failed; 1: the sandbox
 * was not to be had, it has died, or something that it cannot do was found out late. Then a new
 * keeper waits for us, and must not find what the other left in our directory.
 */
static int bind_prepared(struct cay *cay, struct order *order, int record, int status,
                         struct cay_error *err)
{
    struct cay_error why;
    const char *id = order->spec.spec.id;
    int told = tell(cay, order, status, &why);
    int recorded = write_record(cay, &order->spec, order->instance, record, err);
    int ready = told < 0 ? -1 : await_ready(order, &why);
    if (ready == 0 && recorded < 0)
        take_back(order);
    if (ready == 0 || recorded < 0)
        return recorded;
    char ctl[CAY_MAX_ID + 8];
    snprintf(ctl, sizeof(ctl), "%s/ctl", id);
    close_fd(&order->creator);
    (void)sandbox_life(cay, order->instance, NULL);
    if (unlinkat(cay->run, ctl, 0) < 0 && errno != ENOENT)
        return cay_fail_errno(err, errno, "cannot remove %s/%s", cay->run_path, ctl);
    return launch_keeper(id, &order->creator, err) < 0 ? -1 : 1;
}

static int make_new(struct cay *cay, struct order *order, int record, int status,
                    struct cay_error *err)
{
    int made = 1;
    if (order->instance[0])
        made = bind_prepared(cay, order, record, status, err);
    else if (write_record(cay, &order->spec, order->instance, record, err) < 0)
        made = -1;
    /* A keeper that hangs up in the middle has said why. */
    if (made > 0)
        made = tell(cay, order, status, err) < 0 && err->code != CAY_E_GONE
                   ? -1
                   : await_ready(order, err);
    return made;
}

/* Of a create that failed. Takes no descriptor, of which there may be none left. */
static void drop_record(struct cay *cay, const char *id, int record)
{
    static const char *const files[] = {"spec", "status", "log"};
    struct stat ours, there;
    if (record < 0 || fstat(record, &ours) < 0)
        return;
    for (size_t i = 0; i < CAY_COUNT(files); i++)
        unlinkat(record, files[i], 0);
    /* The keeper may have removed it, and another creator made his. */
    if (fstatat(cay->sandboxes, id, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
        unlinkat(cay->sandboxes, id, AT_REMOVEDIR);
}

static int create_new(struct cay *cay, struct order *order, int status, struct cay_sandbox **out,
                      struct cay_error *err)
{
    const struct spec *spec = &order->spec;
    autofd int locked = status;
    autofd int record = -1;
    struct cay_sandbox *sandbox = sandbox_new(cay, spec->spec.id, err);
    bool begun = sandbox && make_record(cay, spec, &record, err) == 0;
    if (begun && make_new(cay, order, record, locked, err) == 0) {
        sandbox->ephemeral = spec->spec.ephemeral;
        sandbox->owner = true;
        atomic_store(&sandbox->creator, steal_fd(&order->creator));
        *out = sandbox;
        return 0;
    }
    close_fd(&order->creator);
    if (order->must_kill)
        sandbox_kill_maker(cay, spec->spec.id);
    if (begun)
        drop_record(cay, spec->spec.id, record);
    /* A keeper that failed has cleaned up; one that was killed, or never heard of it, has not, and
     * we hold its lock. A record that was there before stays. */
    struct stat st;
    if (!begun)
        home_remove_run(cay->run, spec->spec.id);
    else if (fstat(locked, &st) == 0 && st.st_nlink > 0)
        sandbox_sweep(cay, spec->spec.id, locked);
    sandbox_unref(sandbox);
    return -1;
}

/* The id is taken: the same spec gives the same sandbox. */
static int take_existing(struct cay *cay, const struct spec *wanted, struct cay_sandbox **out,
                         struct cay_error *err)
{
    autospec struct spec found = {0};
    const char *id = wanted->spec.id;
    if (sandbox_spec(cay, id, &found, err) < 0)
        return -1;
    /* An ephemeral one ends with its creator's command: nobody else's may be in it. */
    if (wanted->spec.ephemeral || found.spec.ephemeral)
        return cay_fail(err, CAY_E_CONFLICT,
                        "sandbox '%s' exists already; choose another id or remove it", id);
    const char *field = spec_difference(wanted, &found);
    if (field)
        return cay_fail(err, CAY_E_CONFLICT,
                        "sandbox '%s' exists with another %s; choose another id or remove it", id,
                        field);
    return cay_get(cay, id, out, err);
}

static int claim_or_take(struct cay *cay, struct order *order, struct cay_sandbox **out,
                         struct cay_error *err)
{
    const struct spec *spec = &order->spec;
    int status = -1;
    for (int i = 0; i < 300; i++) {
        int claimed = create_claim(cay, spec->spec.id, &status, err);
        if (claimed < 0)
            return -1;
        if (claimed > 0)
            return create_new(cay, order, status, out, err);
        /* Kept: take it. Otherwise looking at it has swept it, and it is free now or soon. */
        enum life life = sandbox_life(cay, spec->spec.id, err);
        if (life == LIFE_UNKNOWN)
            return -1;
        if (life == LIFE_KEPT) {
            int taken = take_existing(cay, spec, out, err);
            order->existed = taken == 0;
            /* It may have ended while it was asked. */
            if (taken == 0 || !err || (err->code != CAY_E_GONE && err->code != CAY_E_NOT_FOUND))
                return taken;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return cay_fail(err, CAY_E_UNAVAILABLE,
                    "what is left of an earlier sandbox '%s' cannot be removed yet", spec->spec.id);
}

int create_check(struct cay *cay, const struct cay_spec *given, struct config *config,
                 struct spec *out, const char **image, int *dir, struct cay_error *err)
{
    char id[CAY_MAX_ID];
    struct cay_spec wanted = *given;
    if (config_load(cay, config, err) < 0)
        return -1;
    config_apply(config, &wanted);
    if (!wanted.id) {
        create_random(id);
        wanted.id = id;
    }
    if (spec_make(&wanted, out, err) < 0)
        return -1;
    *image = config_image(config, out->spec.image);
    /* An alias is the operator's, and leads where he likes. */
    bool no_links = given->no_links && *image == out->spec.image;
    if (image_check(*image, out->spec.image, no_links, dir, err) == 0)
        return 0;
    spec_done(out);
    return -1;
}

static int create(struct cay *cay, const struct cay_spec *given, struct prepared *ready,
                  struct order *order, struct cay_sandbox **out, struct cay_error *err)
{
    autoconfig struct config config = {0};
    int created = given->id && parse_id_reserved(given->id)
                      ? cay_fail(err, CAY_E_INVALID, "ids with '" PARSE_POOL "' are not for you")
                      : create_check(cay, given, &config, &order->spec, &order->image,
                                     &order->image_dir, err);
    if (created == 0 && ready)
        order->creator = prepare_take(cay, ready, &order->spec.spec, order->image, order->image_dir,
                                      order->instance);
    prepare_free(ready);
    /* The keeper starts while we claim the id, on another CPU if there is one. */
    if (created == 0 && order->creator < 0)
        created = launch_keeper(order->spec.spec.id, &order->creator, err);
    if (created == 0)
        created = claim_or_take(cay, order, out, err);
    close_fd(&order->creator);
    close_fd(&order->image_dir);
    spec_done(&order->spec);
    return created;
}

int create_from(struct cay *cay, const struct cay_spec *spec, struct prepared *ready,
                struct cay_sandbox **out, bool *existed, struct cay_error *err)
{
    struct cay_error own;
    struct order order = {.creator = -1, .image_dir = -1};
    int created = create(cay, spec, ready, &order, out, err ? err : &own);
    if (created == 0 && existed)
        *existed = order.existed;
    return created;
}

int cay_create(struct cay *cay, const struct cay_spec *spec, struct cay_sandbox **out,
               struct cay_error *err)
{
    return create_from(cay, spec, NULL, out, NULL, err);
}

int cay_create_start(struct cay *cay, const struct cay_spec *spec, const struct cay_exec *exec,
                     struct cay_sandbox **out, struct cay_proc **proc, struct cay_error *err)
{
    struct cay_error own;
    struct order order = {.exec = exec, .creator = -1, .image_dir = -1};
    struct cay_sandbox *sandbox = NULL;
    if (!err)
        err = &own;
    if (exec_check(exec, err) < 0 || create(cay, spec, NULL, &order, &sandbox, err) < 0)
        return -1;
    int started =
        order.started ? exec_adopt(sandbox, proc, err) : cay_start(sandbox, exec, proc, err);
    if (started < 0) {
        cay_sandbox_free(sandbox);
        return -1;
    }
    *out = sandbox;
    return 0;
}
