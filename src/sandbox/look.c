/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is written down of a sandbox, wherever that is now: in the run directory by its keeper, in
 * the records when it has ended. A record that still says what it said at birth is that of a
 * sandbox whose end nobody could write down.
 */
#include "base/err.h"
#include "base/util.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"
#include "wire/version.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* A sandbox changes places only once, when it ends. */
#define LOOKS 3
/* A record that is being removed has gone by then. */
#define REMOVAL_NS 1000000

static int put(const struct status *status, struct cay_buf *out, struct cay_error *err)
{
    out->size = 0;
    return status_encode(status, out) < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory") : 0;
}

/* Its keeper lives, and has said nothing yet, or nothing that can be read. */
static int kept_status(bool damaged, struct cay_buf *out, struct cay_error *err)
{
    const struct status kept = {
        .state = damaged ? CAY_STATE_RUNNING : CAY_STATE_CREATING,
        .reason = damaged ? "its status record is damaged" : "being made",
    };
    return put(&kept, out, err);
}

/* Written by another major version: what can be read of it, as this one would have written it. */
static int foreign_status(bool kept, struct cay_buf *out, struct cay_error *err)
{
    char reason[160];
    autobuf struct cay_buf all = CAY_BUF(CAY_MAX_STATUS); /* the old one borrows from `out` */
    autostatus struct status status = status_foreign(out->data, out->size, kept, reason);
    if (put(&status, &all, err) < 0)
        return -1;
    out->size = 0;
    return buf_add(out, all.data, all.size) < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory")
                                                : 0;
}

static uint64_t changed_ms(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000 + (uint64_t)st.st_mtim.tv_nsec / 1000000;
}

/* What its spec says of one without a status record that can be read. Borrows from `spec`. */
static struct status from_spec(int dir, struct spec *spec)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD);
    if (dir < 0 || record_read_at(dir, "spec", &buf, NULL) != 0 ||
        spec_read(buf.data, buf.size, spec, NULL) < 0)
        return (struct status){0};
    return (struct status){.image = spec->spec.image,
                           .labels = spec->spec.labels,
                           .created_ms = changed_ms(dir, "spec")};
}

/* A time of the end that is the same at each look: not before the last thing that is known. */
static int lost_status(const struct status *birth, int dir, const char *reason, struct cay_buf *out,
                       struct cay_error *err)
{
    struct status lost = *birth;
    bool rebooted = home_rebooted(birth->boot_id);
    uint64_t last = changed_ms(dir, "status"), boot = rebooted ? home_boot_ms() : 0;
    lost.state = CAY_STATE_LOST;
    lost.reason = rebooted ? "the host restarted" : reason;
    lost.processes = 0;
    lost.ended_ms = CAY_MAX(CAY_MAX(last, boot), birth->created_ms);
    if (!lost.ended_ms)
        lost.ended_ms = cay_wall_ms();
    autobuf struct cay_buf all = CAY_BUF(CAY_MAX_STATUS); /* the old one borrows from `out` */
    if (put(&lost, &all, err) < 0)
        return -1;
    out->size = 0;
    return buf_add(out, all.data, all.size) < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory")
                                                : 0;
}

/* Its record cannot say how it ended. */
static int unsaid(struct cay *cay, const char *id, int dir, bool damaged, struct cay_buf *out,
                  struct cay_error *err)
{
    autospec struct spec spec = {0};
    const struct status birth = from_spec(dir, &spec);
    autofd int left = home_open(cay->run, id);
    return lost_status(&birth, dir,
                       damaged     ? "its status record is damaged"
                       : left >= 0 ? "its processes cannot be killed yet"
                                   : "its end could not be written down",
                       out, err);
}

/* 1: `out` says how it ended; 0: it says how it was born. What cannot be read is for the caller. */
static int says_end(const struct cay_buf *out)
{
    autostatus struct status status = {0};
    return status_decode(out->data, out->size, &status, NULL) < 0 ||
           status.state >= CAY_STATE_EXITED;
}

static int unwritten(struct cay *cay, const char *id, int dir, struct cay_buf *out,
                     struct cay_error *err)
{
    autostatus struct status birth = {0};
    if (status_decode(out->data, out->size, &birth, err) < 0)
        return -1;
    autofd int left = home_open(cay->run, id);
    return lost_status(&birth, dir,
                       left >= 0 ? "its processes cannot be killed yet"
                                 : "its end could not be written down",
                       out, err);
}

/* Where its status is now. -1: nowhere, or told in `err`; `dir` may be -1 when it went away. */
static int find(struct cay *cay, const char *id, enum life *life, int *dir, struct cay_error *err)
{
    *life = sandbox_life(cay, id, err);
    if (*life == LIFE_NONE)
        return cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'; 'cay ps -a' lists them", id);
    if (*life == LIFE_UNKNOWN)
        return -1;
    close_fd(dir);
    *dir = home_open(*life == LIFE_KEPT ? cay->run : cay->sandboxes, id);
    if (*dir < 0 && !home_absent(errno))
        return cay_fail_errno(err, errno, "cannot look at sandbox '%s'", id);
    return 0;
}

int sandbox_status(struct cay *cay, const char *id, struct cay_buf *out, struct cay_error *err)
{
    struct cay_error why = {0};
    enum life life = LIFE_NONE;
    autofd int dir = -1;
    bool damaged = false;
    for (int i = 0; i < LOOKS; i++) {
        out->size = 0;
        if (find(cay, id, &life, &dir, err) < 0)
            return -1;
        if (dir < 0)
            continue; /* it ended between the two looks: its record is elsewhere now */
        struct stat st;
        int read = record_read_at(dir, "status", out, &why);
        if (read > 0 && foreign_status(life == LIFE_KEPT, out, err) < 0)
            return -1;
        if (read >= 0) {
            if (life == LIFE_KEPT || says_end(out))
                return 0;
            if (i > 0) /* else it may be of one that was made between the two looks */
                return unwritten(cay, id, dir, out, err);
            continue;
        }
        bool empty = why.code == CAY_E_NOT_FOUND && fstatat(dir, "status", &st, 0) == 0;
        damaged = why.code == CAY_E_INVALID || (empty && life == LIFE_ENDED);
        if (!damaged && why.code != CAY_E_NOT_FOUND)
            return cay_fail_copy(err, why.code, why.sys_errno, why.text);
        if (life == LIFE_KEPT || damaged)
            break;
        nanosleep(&(struct timespec){.tv_nsec = REMOVAL_NS}, NULL);
    }
    return life == LIFE_KEPT ? kept_status(damaged, out, err)
                             : unsaid(cay, id, dir, damaged, out, err);
}

static int load_spec(const char *bytes, size_t size, const char *id, struct spec *out,
                     struct cay_error *err)
{
    if (spec_read(bytes, size, out, err) < 0)
        return -1;
    if (strcmp(out->spec.id, id) == 0)
        return 0;
    cay_fail(err, CAY_E_INVALID, "sandbox '%s': its spec is that of '%s'", id, out->spec.id);
    spec_done(out);
    *out = (struct spec){0};
    return -1;
}

int sandbox_spec(struct cay *cay, const char *id, struct spec *out, struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    enum life life = sandbox_life(cay, id, err);
    if (life == LIFE_UNKNOWN)
        return -1;
    if (life == LIFE_KEPT) {
        struct cay_sandbox *sandbox = sandbox_new(cay, id, err);
        const struct msg request = {.type = OP_SPEC};
        int asked = sandbox ? sandbox_call(sandbox, &request, &chan, &answer, err) : -1;
        cay_sandbox_free(sandbox);
        if (asked < 0)
            return -1;
        int loaded = load_spec(answer.data.data, answer.data.size, id, out, err);
        msg_done(&answer);
        chan_done(&chan);
        return loaded;
    }
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD);
    autofd int dir = home_open(cay->sandboxes, id);
    if (dir < 0 && home_absent(errno))
        return sandbox_explain(cay, id, err);
    if (dir < 0)
        return cay_fail_errno(err, errno, "cannot look at the record of sandbox '%s'", id);
    int read = record_read_at(dir, "spec", &buf, err);
    if (read < 0)
        return cay_fail_context(err, "sandbox '%s'", id);
    if (read > 0)
        return cay_fail(err, CAY_E_VERSION,
                        "the spec of sandbox '%s' was written by another version of cay, this "
                        "is " WIRE_WHO "; 'cay rm %s' removes it",
                        id, id);
    return load_spec(buf.data, buf.size, id, out, err);
}
