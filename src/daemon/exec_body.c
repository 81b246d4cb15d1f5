/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/exec_body.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/call.h"
#include "daemon/journal.h"
#include "daemon/pool.h"
#include "daemon/roster.h"
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct exec_body, member)
/* Common to both first: POST exec takes those and the first tail, POST processes the second. */
#define COMMON                                                                                   \
    OPT("argv", 0, OPT_STRV, AT(argv), NULL, NULL), OPT("env", 0, OPT_ENV, AT(env), NULL, NULL), \
        OPT("shell", 0, OPT_STR, AT(shell), NULL, NULL),                                         \
        OPT("cwd", 0, OPT_STR, AT(cwd), NULL, NULL),                                             \
        OPT("user", 0, OPT_STR, AT(user), NULL, NULL),                                           \
        OPT("key", 0, OPT_STR, AT(key), NULL, NULL),                                             \
        OPT("kill_on_disconnect", 0, OPT_FLAG, AT(kill_on_disconnect), NULL, NULL),              \
        OPT("timeout", 0, OPT_DURATION, AT(timeout_ms), NULL, NULL, .extra = AT(has_timeout))

static const struct opt run_fields[] = {
    COMMON,
    OPT("input", 0, OPT_STR, AT(input), NULL, NULL, .max = 1),
    OPT("input_base64", 0, OPT_STR, AT(input_base64), NULL, NULL, .max = 1),
    OPT("encoding", 0, OPT_STR, AT(encoding), NULL, NULL),
};

static const struct opt start_fields[] = {
    COMMON,
    OPT("stdin", 0, OPT_FLAG, AT(want_stdin), NULL, NULL),
    OPT("hold", 0, OPT_FLAG, AT(hold), NULL, NULL),
    OPT("known", 0, OPT_FLAG, AT(known), NULL, NULL),
    OPT("pty", 0, OPT_FLAG, AT(pty), NULL, NULL),
    OPT("rows", 0, OPT_COUNT, AT(rows), NULL, NULL, .nonzero = true),
    OPT("cols", 0, OPT_COUNT, AT(cols), NULL, NULL, .nonzero = true),
};

static int at_fault(struct request *r, const char *field, const char *text, struct cay_error *err)
{
    snprintf(r->field, sizeof(r->field), "%s", field);
    return cay_fail(err, CAY_E_INVALID, "%s", text);
}

int exec_body(struct request *r, bool background, struct exec_body *out, struct cay_error *err)
{
    struct exec_body body = {0};
    if ((background ? input_json(r, start_fields, CAY_COUNT(start_fields), &body, err)
                    : input_json(r, run_fields, CAY_COUNT(run_fields), &body, err)) < 0)
        return -1;
    const struct cay_exec exec = {
        .argv = body.argv, .shell = body.shell, .env = body.env, .cwd = body.cwd};
    if (exec_check(&exec, err) < 0)
        return -1;
    if (body.key && parse_key(body.key, err) < 0) {
        snprintf(r->field, sizeof(r->field), "key");
        return -1;
    }
    if (body.known && !body.key)
        return at_fault(r, "known", "'known' asks for a process by its key: give the key", err);
    if (body.argv && !body.argv[0][0])
        return at_fault(r, "argv", "the first argument must not be empty", err);
    if (body.has_timeout && body.timeout_ms == 0)
        return at_fault(r, "timeout", "a timeout of 0 is none; leave it out", err);
    if (body.rows > UINT16_MAX || body.cols > UINT16_MAX)
        return at_fault(r, body.rows > UINT16_MAX ? "rows" : "cols",
                        "a terminal has 65535 rows and columns at most", err);
    if (body.input && body.input_base64)
        return at_fault(r, "input_base64", "give the input once: input or input_base64", err);
    if (body.encoding && strcmp(body.encoding, "utf8") != 0 && strcmp(body.encoding, "base64") != 0)
        return at_fault(r, "encoding", "the encoding must be utf8 or base64", err);
    *out = body;
    return 0;
}

struct msg exec_message(const struct exec_body *body, const struct exec_slot *slot)
{
    bool input = body->want_stdin || body->input || body->input_base64;
    return (struct msg){
        .type = OP_EXEC,
        .flags = (body->pty ? MSG_F_PTY : 0) | (input ? MSG_F_STDIN : 0) |
                 (body->hold ? MSG_F_HOLD : 0) | (slot->full || body->known ? MSG_F_KNOWN : 0),
        .argv = body->shell ? NULL : body->argv,
        .shell = body->shell,
        .env = body->env,
        .cwd = body->cwd,
        .user = body->user,
        .rows = body->rows,
        .cols = body->cols,
        .timeout_ms = body->timeout_ms,
        .name = body->key,
        .ttl_ms = body->kill_on_disconnect ? EXEC_LEASE_MS : 0,
    };
}

/* ---- counting what runs in the background ---------------------------------------------------- */

/* A keeper that cannot be asked now, as it has too many callers or does not answer, is asked again.
 */
#define VIGIL_RETRY_MS 1000

struct vigil {
    struct call call;
    struct timer retry;
    struct exec_slot slot;
    pid_t pid;
};

static void vigil_ask(struct vigil *vigil);

static void on_retry(struct timer *timer)
{
    vigil_ask(container_of(timer, struct vigil, retry));
}

/* The process is over, or nobody will ever tell; what may pass is waited for. */
static void vigil_heard(struct vigil *vigil, const struct cay_error *err)
{
    bool later = err && (err->code == CAY_E_LIMIT || err->code == CAY_E_UNAVAILABLE ||
                         err->code == CAY_E_NO_SPACE || err->code == CAY_E_TIMEOUT);
    struct daemon *d = vigil->slot.d;
    call_end(&vigil->call);
    if (later && d->phase != DAEMON_CLOSING) {
        timer_set(&d->loop, &vigil->retry, cay_after_ms(VIGIL_RETRY_MS));
        return;
    }
    vigil->slot.vigil = NULL; /* it is freed here */
    exec_slot_free(&vigil->slot);
    free(vigil);
}

static void vigil_message(struct call *call, const struct msg *msg)
{
    struct cay_error err;
    if (msg->type == MSG_ERROR)
        msg_to_error(msg, &err);
    vigil_heard(call->data, msg->type == MSG_ERROR ? &err : NULL);
}

static void vigil_lost(struct call *call, const struct cay_error *err)
{
    vigil_heard(call->data, err);
}

static const struct call_ops vigil_ops = {.message = vigil_message, .lost = vigil_lost};

static void vigil_ask(struct vigil *vigil)
{
    const struct msg wait = {.type = OP_WAIT,
                             .pid = (uint64_t)vigil->pid,
                             .timeout_ms = UINT64_MAX,
                             .flags = MSG_F_ALOOF};
    call_start(&vigil->call, vigil->slot.d, vigil->slot.id, &wait, 0, &vigil_ops, vigil);
}

/* A place comes with all that is needed to watch it: that must not fail once the process runs. */
static int slot_take(struct exec_slot *slot, struct daemon *d, struct tenant *tenant,
                     const char *id)
{
    struct vigil *vigil = calloc(1, sizeof(*vigil));
    if (!vigil)
        return -1;
    vigil->retry.fire = on_retry;
    *slot = (struct exec_slot){.d = d, .tenant = tenant, .vigil = vigil};
    snprintf(slot->id, sizeof(slot->id), "%s", id);
    tenant->execs++;
    return 0;
}

void exec_slot_free(struct exec_slot *slot)
{
    if (slot->tenant)
        slot->tenant->execs--;
    slot->tenant = NULL;
    free(slot->vigil);
    slot->vigil = NULL;
}

void exec_slot_watch(struct exec_slot *slot, pid_t pid)
{
    struct vigil *vigil = slot->vigil;
    if (!slot->tenant || slot->d->phase == DAEMON_CLOSING) {
        exec_slot_free(slot);
        return;
    }
    vigil->slot = *slot;
    vigil->pid = pid;
    slot->tenant = NULL;
    slot->vigil = NULL;
    vigil_ask(vigil);
}

void exec_slot_lost(struct exec_slot *slot, pid_t pid, const struct cay_error *err)
{
    if (pid && err->code != CAY_E_GONE && err->code != CAY_E_NOT_FOUND)
        exec_slot_watch(slot, pid);
    else
        exec_slot_free(slot);
}

void exec_slot_started(struct exec_slot *slot, const struct msg *started)
{
    if (started->flags & MSG_F_KNOWN)
        exec_slot_free(slot);
    else
        exec_slot_watch(slot, (pid_t)started->pid);
}

int exec_slot_adopt(struct daemon *d, struct tenant *tenant, const char *id, pid_t pid)
{
    struct exec_slot slot;
    if (slot_take(&slot, d, tenant, id) < 0)
        return -1;
    exec_slot_watch(&slot, pid);
    return 0;
}

/* ---- permission ------------------------------------------------------------------------------ */

static bool over_quota(struct request *r, struct cay_error *err)
{
    struct operator_refusal why = {0};
    if (!r->tenant || operator_check_quota(r->d->policy, r->who.tenant, "execs_max",
                                           r->tenant->execs, 1, &why, err) == 0)
        return false;
    snprintf(r->rule, sizeof(r->rule), "%s", why.rule);
    return true;
}

/* What is not there is told apart before its command line is written down: the log must not grow by
 * what anybody makes up. */
static int is_there(struct request *r, enum audit_action action, struct cay_error *err)
{
    if (faccessat(r->d->cay->run, r->id, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
        return 0;
    (void)sandbox_explain(r->d->looker, r->id, err);
    if (err->code == CAY_E_UNAVAILABLE)
        return 0; /* it is there now */
    journal_note(r, action, NULL, err);
    return -1;
}

int exec_permit(struct request *r, const struct exec_body *body, bool background,
                struct exec_slot *slot, struct cay_error *err)
{
    const char *const shell[] = {"sh", "-c", body->shell, NULL};
    const struct audit_detail detail = {
        .argv = body->shell ? shell : body->argv, .env = body->env, .user = body->user};
    enum audit_action action = background ? AUDIT_START : AUDIT_EXEC;
    *slot = (struct exec_slot){0};
    if (is_there(r, action, err) < 0)
        return -1;
    if (body->known)
        return 0;
    if (over_quota(r, err)) {
        slot->full = body->key != NULL;
        if (!slot->full)
            journal_note(r, AUDIT_REFUSED, &detail, err);
        return slot->full ? 0 : -1;
    }
    if (r->tenant && operator_quota(r->d->policy, r->who.tenant)->execs_max != OPERATOR_NO_LIMIT &&
        slot_take(slot, r->d, r->tenant, r->id) < 0)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (journal_must(r, action, &detail, err) < 0) {
        exec_slot_free(slot);
        return -1;
    }
    r->d->metrics.execs++;
    pool_busy(r->d->pool, 0);
    return 0;
}

void exec_slot_explain(struct request *r, const struct exec_slot *slot, struct cay_error *err)
{
    if (!slot->full || err->code != CAY_E_NOT_FOUND)
        return;
    if (over_quota(r, err))
        journal_note(r, AUDIT_REFUSED, NULL, err);
    else
        cay_fail(err, CAY_E_UNAVAILABLE, "all places for commands were taken; try again");
}
