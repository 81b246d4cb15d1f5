/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a keeper: connect, ask, take the answer; and saying clearly why that was not possible.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "jail/sys.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

/* A keeper that was found alive but does not listen yet is being made: wait for it this long. */
#define READY_TRIES 1000
#define READY_PAUSE_NS 10000000
/* A sandbox changes places only once, when it ends. */
#define LOOKS 3
/* A keeper answers in microseconds, or when what it was asked to wait for has come. One that takes
 * this much longer is stopped, or its host is in trouble. */
#define PATIENCE_MS 10000

struct cay_sandbox *sandbox_new(struct cay *cay, const char *id, struct cay_error *err)
{
    struct cay_sandbox *sandbox = calloc(1, sizeof(*sandbox));
    if (!sandbox) {
        cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        return NULL;
    }
    sandbox->cay = cay;
    atomic_init(&sandbox->creator, -1);
    atomic_init(&sandbox->parked, -1);
    atomic_init(&sandbox->refs, 1);
    memcpy(sandbox->id, id, CAY_MIN(strlen(id), sizeof(sandbox->id) - 1));
    return sandbox;
}

void sandbox_unref(struct cay_sandbox *sandbox)
{
    if (!sandbox || atomic_fetch_sub(&sandbox->refs, 1) != 1)
        return;
    int creator = atomic_load(&sandbox->creator), parked = atomic_load(&sandbox->parked);
    close_fd(&creator);
    close_fd(&parked);
    free(sandbox);
}

const char *cay_sandbox_id(const struct cay_sandbox *sandbox)
{
    return sandbox->id;
}

/* Why nobody answers: never there, or ended and how. */
static int explain(struct cay *cay, const char *id, enum life life, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (life == LIFE_UNKNOWN)
        return -1; /* told already */
    if (life == LIFE_NONE)
        return cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'; 'cay ps -a' lists them", id);
    if (sandbox_status(cay, id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    return cay_fail(err, CAY_E_GONE, "sandbox '%s' has ended: %s (%s)", id,
                    cay_state_name((enum cay_state)status.state),
                    status.reason ? status.reason : "no reason known");
}

int sandbox_explain(struct cay *cay, const char *id, struct cay_error *err)
{
    enum life life = sandbox_life(cay, id, err);
    if (life != LIFE_KEPT)
        return explain(cay, id, life, err);
    return cay_fail(err, CAY_E_UNAVAILABLE, "the keeper of sandbox '%s' hung up", id);
}

/* 1: connected; 0: not now, it is being made or has no room for one more caller; -1: never again.
 */
static int try_connect(struct cay *cay, const char *id, int flags, int *out, struct cay_error *err)
{
    struct sockaddr_un address;
    autofd int hold = -1;
    autofd int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (sock < 0)
        return cay_fail_errno(err, errno, "cannot make a socket");
    if (home_ctl_address(cay, id, &address, &hold, err) < 0)
        return -1;
    if (connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0) {
        *out = steal_fd(&sock);
        return 1;
    }
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN)
        return cay_fail_errno(err, errno, "cannot reach sandbox '%s'", id);
    enum life life = sandbox_life(cay, id, err);
    return life == LIFE_KEPT ? 0 : explain(cay, id, life, err);
}

int sandbox_dial(struct cay *cay, const char *id, int *sock, struct cay_error *err)
{
    const char *checked;
    if (parse_id(id, &checked, err) < 0)
        return -1;
    int connected = parse_id_reserved(id) ? explain(cay, id, LIFE_NONE, err)
                                          : try_connect(cay, id, SOCK_NONBLOCK, sock, err);
    if (connected == 0)
        return cay_fail(err, CAY_E_UNAVAILABLE, "sandbox '%s' is being made", id);
    return connected < 0 ? -1 : 0;
}

int sandbox_connect(struct cay_sandbox *sandbox, struct chan *out, struct cay_error *err)
{
    for (int i = 0; i < READY_TRIES; i++) {
        int sock;
        int connected = try_connect(sandbox->cay, sandbox->id, 0, &sock, err);
        if (connected < 0)
            return -1;
        if (connected > 0) {
            chan_init(out, sock);
            return 0;
        }
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_NS}, NULL);
    }
    return cay_fail(err, CAY_E_UNAVAILABLE, "the keeper of sandbox '%s' does not answer",
                    sandbox->id);
}

/* 1: an answer is there; 0: the keeper did not answer in time. */
static int await_answer(const struct chan *chan, const struct msg *request)
{
    struct pollfd p = {.fd = chan->sock, .events = POLLIN};
    uint64_t patience = PATIENCE_MS + request->timeout_ms;
    if (request->timeout_ms > INT_MAX / 2)
        patience = INT_MAX;
    uint64_t end = cay_after_ms(patience);
    for (;;) {
        uint64_t now = cay_now_us();
        int ready = poll(&p, 1,
                         request->timeout_ms > INT_MAX / 2 ? -1
                         : now >= end                      ? 0
                                                           : (int)((end - now) / 1000) + 1);
        if (ready >= 0 || errno != EINTR)
            return ready > 0;
    }
}

int sandbox_call(struct cay_sandbox *sandbox, const struct msg *request, struct chan *chan,
                 struct msg *answer, struct cay_error *err)
{
    if (sandbox_connect(sandbox, chan, err) < 0)
        return -1;
    int got = chan_send(chan->sock, request, NULL, 0, err) < 0 ? -1 : 1;
    if (got > 0 && !await_answer(chan, request)) {
        chan_done(chan);
        return cay_fail(err, CAY_E_UNAVAILABLE,
                        "the keeper of sandbox '%s' does not answer; 'cay rm -f %s' ends it",
                        sandbox->id, sandbox->id);
    }
    got = got < 0 ? -1 : chan_recv(chan, answer, err);
    if (got > 0 && answer->type != MSG_ERROR)
        return 0;
    if (got > 0) {
        msg_to_error(answer, err);
        msg_done(answer);
    } else {
        /* It died between our question and its answer. */
        sandbox_explain(sandbox->cay, sandbox->id, err);
    }
    chan_done(chan);
    return -1;
}

int sandbox_order(struct cay_sandbox *sandbox, const struct msg *request, struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    if (sandbox_call(sandbox, request, &chan, &answer, err) < 0)
        return -1;
    msg_done(&answer);
    chan_done(&chan);
    return 0;
}

void sandbox_kill_keeper(struct cay_sandbox *sandbox)
{
    struct chan chan;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    /* Who listens there is the keeper, whatever a record says; the pidfd pins it before we look
     * again. */
    if (sandbox_connect(sandbox, &chan, NULL) < 0)
        return;
    int asked = getsockopt(chan.sock, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    autofd int pidfd = asked < 0 ? -1 : sys_pidfd_open(peer.pid);
    if (pidfd >= 0 && sandbox_life(sandbox->cay, sandbox->id, NULL) == LIFE_KEPT)
        sys_pidfd_kill(pidfd, SIGKILL);
    chan_done(&chan);
    for (int i = 0; i < READY_TRIES && sandbox_life(sandbox->cay, sandbox->id, NULL) == LIFE_KEPT;
         i++)
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_NS}, NULL);
}

static int lost_status(const char *reason, struct cay_buf *out, struct cay_error *err)
{
    const struct status lost = {
        .state = CAY_STATE_LOST, .reason = reason, .ended_ms = cay_wall_ms()};
    return status_encode(&lost, out) < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory") : 0;
}

/* Its keeper lives, and has said nothing yet, or nothing that can be read. */
static int kept_status(bool damaged, struct cay_buf *out, struct cay_error *err)
{
    const struct status kept = {
        .state = damaged ? CAY_STATE_RUNNING : CAY_STATE_CREATING,
        .reason = damaged ? "its status record is damaged" : "being made",
    };
    return status_encode(&kept, out) < 0 ? cay_fail(err, CAY_E_NO_SPACE, "out of memory") : 0;
}

int sandbox_status(struct cay *cay, const char *id, struct cay_buf *out, struct cay_error *err)
{
    struct cay_error why;
    enum life life = LIFE_NONE;
    autofd int dir = -1;
    for (int i = 0; i < LOOKS; i++) {
        life = sandbox_life(cay, id, err);
        if (life == LIFE_NONE || life == LIFE_UNKNOWN)
            return explain(cay, id, life, err);
        close_fd(&dir);
        dir = home_open(life == LIFE_KEPT ? cay->run : cay->sandboxes, id);
        if (dir < 0 && !home_absent(errno))
            return cay_fail_errno(err, errno, "cannot look at sandbox '%s'", id);
        if (dir >= 0 && record_read_at(dir, "status", out, &why) == 0)
            return 0;
        if (dir >= 0)
            break;
        /* It ended between the two looks: its record is elsewhere now. */
    }
    bool damaged = dir >= 0 && why.code == CAY_E_INVALID;
    if (dir >= 0 && !damaged && why.code != CAY_E_NOT_FOUND)
        return cay_fail_copy(err, why.code, why.sys_errno, why.text);
    if (life == LIFE_KEPT)
        return kept_status(damaged, out, err);
    if (damaged)
        return lost_status("its status record is damaged", out, err);
    autofd int left = home_open(cay->run, id);
    return lost_status(left >= 0 ? "its processes cannot be killed yet" : "the host restarted", out,
                       err);
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
        int loaded = spec_load(answer.data.data, answer.data.size, out, err);
        msg_done(&answer);
        chan_done(&chan);
        return loaded;
    }
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD);
    autofd int dir = home_open(cay->sandboxes, id);
    if (dir < 0 && home_absent(errno))
        return explain(cay, id, LIFE_NONE, err);
    if (dir < 0)
        return cay_fail_errno(err, errno, "cannot look at the record of sandbox '%s'", id);
    if (record_read_at(dir, "spec", &buf, err) < 0)
        return cay_fail_context(err, "sandbox '%s'", id);
    return spec_load(buf.data, buf.size, out, err);
}
