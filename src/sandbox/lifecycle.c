/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting, looking at, stopping and removing sandboxes. Each call is one question to the keeper, or
 * a look at the record where there is no keeper any more.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

/* A run directory without a lock is taken for one that is being made, for two seconds. */
#define BARE_TRIES 300
#define BARE_PAUSE_NS 10000000
/* A keeper that hung up, sooner than one that does not answer is given up, has ended: the next one
 * of the name is asked, too, before it is killed. */
#define FORCE_TRIES 4
#define HUNG_UP_US 1000000

int cay_get(struct cay *cay, const char *id, struct cay_sandbox **out, struct cay_error *err)
{
    const char *checked;
    if (parse_id(id, &checked, err) < 0)
        return -1;
    enum life life = parse_id_reserved(id) ? LIFE_NONE : sandbox_life(cay, id, err);
    if (life == LIFE_UNKNOWN)
        return -1;
    if (life == LIFE_NONE)
        return cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'; 'cay ps -a' lists them", id);
    struct cay_sandbox *sandbox = sandbox_new(cay, id, err);
    if (!sandbox)
        return -1;
    *out = sandbox;
    return 0;
}

void cay_sandbox_free(struct cay_sandbox *sandbox)
{
    if (!sandbox)
        return;
    atomic_store(&sandbox->closed, true);
    /* Wait until nothing is left: a caller who frees it may look for leaks at once. */
    if (sandbox->owner && sandbox->ephemeral && !atomic_load(&sandbox->ending))
        sandbox_order(sandbox, &(struct msg){.type = OP_STOP, .flags = MSG_F_REMOVE}, NULL);
    sandbox_unref(sandbox);
}

int cay_info(struct cay_sandbox *sandbox, struct cay_info *out, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (sandbox_status(sandbox->cay, sandbox->id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    return status_to_info(&status, sandbox->id, out, err);
}

int cay_inspect(struct cay_sandbox *sandbox, char **json, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(4 * CAY_MAX_RECORD);
    autospec struct spec spec = {0};
    struct cay_error own;
    if (!err)
        err = &own;
    /* One that ends while it is asked has its record in place when it says so. */
    if (sandbox_spec(sandbox->cay, sandbox->id, &spec, err) < 0 &&
        (err->code != CAY_E_GONE || sandbox_spec(sandbox->cay, sandbox->id, &spec, err) < 0))
        return -1;
    buf_str(&buf, "{");
    spec_json(&spec.spec, &buf);
    buf_str(&buf, "}");
    char *text = buf_steal(&buf, NULL);
    if (!text)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    *json = text;
    return 0;
}

int cay_stats(struct cay_sandbox *sandbox, struct cay_stats *out, struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    const struct msg request = {.type = OP_STATS};
    if (sandbox_call(sandbox, &request, &chan, &answer, err) < 0)
        return -1;
    int result = msg_stats(&answer, out, err);
    msg_done(&answer);
    chan_done(&chan);
    return result;
}

int cay_pause(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return sandbox_order(sandbox, &(struct msg){.type = OP_PAUSE}, err);
}

int cay_resume(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return sandbox_order(sandbox, &(struct msg){.type = OP_RESUME}, err);
}

/* Ending what has ended already is what was asked for. A keeper that does not understand even this,
 * or has no place left for who would kill its sandbox, is killed. */
static int end(struct cay_sandbox *sandbox, uint64_t grace_ms, uint64_t flags,
               struct cay_error *err)
{
    struct cay_error why;
    const struct msg request = {.type = OP_STOP, .timeout_ms = grace_ms, .flags = flags};
    if (sandbox_order(sandbox, &request, &why) == 0 || why.code == CAY_E_GONE)
        return 0;
    if (why.code == CAY_E_VERSION || why.code == CAY_E_UNSUPPORTED ||
        (sandbox_is_crowded(&why) && !grace_ms))
        return sandbox_kill_keeper(sandbox->cay, sandbox->id, err);
    return cay_fail_copy(err, why.code, why.sys_errno, why.text);
}

int cay_stop(struct cay_sandbox *sandbox, uint64_t grace_ms, struct cay_error *err)
{
    return end(sandbox, grace_ms, 0, err);
}

int cay_kill(struct cay_sandbox *sandbox, struct cay_error *err)
{
    return end(sandbox, 0, 0, err);
}

/* A keeper that does not do it, whatever it says, is killed. It is not at fault for a shortage
 * here.
 */
static int end_by_force(struct cay *cay, const char *id, struct cay_error *err)
{
    struct cay_error why = {0};
    struct cay_sandbox *sandbox = sandbox_new(cay, id, err);
    if (!sandbox)
        return -1;
    int ended = -1;
    for (int i = 0; i < FORCE_TRIES && ended < 0; i++) {
        uint64_t start = cay_now_us();
        ended = end(sandbox, 0, MSG_F_REMOVE, &why);
        if (why.code != CAY_E_UNAVAILABLE || cay_now_us() - start > HUNG_UP_US)
            break;
    }
    cay_sandbox_free(sandbox);
    if (ended == 0 || why.code == CAY_E_NOT_FOUND)
        return 0;
    if (why.code == CAY_E_LIMIT || why.code == CAY_E_NO_SPACE || why.code == CAY_E_DENIED)
        return cay_fail_copy(err, why.code, why.sys_errno, why.text);
    return sandbox_kill_keeper(cay, id, err);
}

static int there_again(const char *id, struct cay_error *err)
{
    return cay_fail(err, CAY_E_UNAVAILABLE,
                    "sandbox '%s' is there again: somebody else has made it meanwhile", id);
}

/* One without a lock may be about to get it, or have lost its status file: the next looks tell. */
static enum life life_at_last(struct cay *cay, const char *id, struct cay_error *err)
{
    enum life life = sandbox_life(cay, id, err);
    for (int i = 0; i < BARE_TRIES && life == LIFE_KEPT && !sandbox_kept(cay, id); i++) {
        nanosleep(&(struct timespec){.tv_nsec = BARE_PAUSE_NS}, NULL);
        life = sandbox_life(cay, id, err);
    }
    return life;
}

/*
 * The record of one that has ended. Its name may be given to the record of a new sandbox at any
 * time, whose creator has a run directory by then: that is looked for while the record is locked,
 * as whoever makes one does (create.c).
 */
static int remove_record(struct cay *cay, const char *id, bool claimed, struct cay_error *err)
{
    struct stat st;
    autofd int dir = home_open(cay->sandboxes, id);
    if (dir >= 0 && flock(dir, LOCK_EX) < 0)
        return cay_fail_errno(err, errno, "cannot lock the record of sandbox '%s'", id);
    if (dir >= 0 && !home_is(cay->sandboxes, id, dir))
        return 0; /* somebody else has removed it */
    if (!claimed && fstatat(cay->run, id, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return there_again(id, err);
    if (cay_remove_tree_at(cay->sandboxes, id) < 0)
        return cay_fail_errno(err, errno, "cannot remove the record of sandbox '%s'", id);
    return 0;
}

int cay_remove(struct cay *cay, const char *id, bool force, struct cay_error *err)
{
    const char *checked;
    if (parse_id(id, &checked, err) < 0)
        return -1;
    enum life life = parse_id_reserved(id) ? LIFE_NONE : sandbox_life(cay, id, err);
    if (life == LIFE_UNKNOWN)
        return -1;
    if (life == LIFE_NONE)
        return force
                   ? 0
                   : cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'; 'cay ps -a' lists them", id);
    if (life == LIFE_KEPT && !force)
        return cay_fail(err, CAY_E_CONFLICT,
                        "sandbox '%s' is running; stop it first, or use 'cay rm -f %s'", id, id);
    if (life == LIFE_KEPT && end_by_force(cay, id, err) < 0)
        return -1;
    life = life_at_last(cay, id, err);
    if (life == LIFE_UNKNOWN)
        return -1; /* nothing is deleted on a guess */
    if (life == LIFE_KEPT)
        return there_again(id, err);
    if (life == LIFE_NONE)
        return 0; /* its keeper has removed it, record and all */
    int claim;
    if (sandbox_sweep_groups(cay, id, &claim, err) < 0)
        return -1;
    int result = remove_record(cay, id, claim >= 0, err);
    /* The run directory was cleared: that of others as well. */
    if (claim >= 0)
        sandbox_sweep_prepared(cay);
    sandbox_unclaim(cay, id, &claim);
    return result;
}

int cay_set_lifetime(struct cay_sandbox *sandbox, const struct cay_lifetime *lifetime,
                     struct cay_error *err)
{
    const struct msg request = {
        .type = OP_LIFETIME,
        .flags =
            (lifetime->set_ttl ? MSG_F_SET_TTL : 0) | (lifetime->set_idle ? MSG_F_SET_IDLE : 0),
        .ttl_ms = lifetime->ttl_ms,
        .idle_ms = lifetime->idle_ms,
    };
    return sandbox_order(sandbox, &request, err);
}
