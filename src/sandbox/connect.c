/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a keeper: connect, ask, take the answer; and saying clearly why that was not possible.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/sock.h"
#include "base/util.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"
#include "wire/version.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

/* A keeper that was found alive but does not listen yet is being made: wait for it this long. */
#define READY_TRIES 1000
#define READY_PAUSE_NS 10000000
/* A keeper answers in microseconds, or when what it was asked to wait for has come. One that takes
 * this much longer is stopped, or its host is in trouble. */
#define PATIENCE_MS SANDBOX_ANSWER_MS

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
    if (status.state < CAY_STATE_EXITED)
        return cay_fail(err, CAY_E_UNAVAILABLE,
                        "sandbox '%s' is there again: somebody else has made it meanwhile", id);
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

int sandbox_misheard(const char *id, struct cay_error *err)
{
    if (err->code == CAY_E_INVALID)
        cay_fail(err, CAY_E_VERSION,
                 "the keeper of sandbox '%s' is of a version of cay that " WIRE_WHO
                 " does not understand; " MSG_VERSION_ADVICE,
                 id);
    else if (err->code == CAY_E_VERSION)
        cay_fail_context(err, "the keeper of sandbox '%s'", id);
    return err->code == CAY_E_VERSION || err->code == CAY_E_UNSUPPORTED ? -1 : 0;
}

/* False only if something else has its name. A link could lead to the keeper of another sandbox. */
static bool is_socket(const struct cay *cay, const char *id)
{
    struct stat st;
    char path[CAY_MAX_ID + 8];
    snprintf(path, sizeof(path), "%s/ctl", id);
    return fstatat(cay->run, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISSOCK(st.st_mode);
}

/* 1: connected; 0: not now, it is being made or has no room for one more caller (a
 * connection that blocks would wait for that without an end); -1: never again. */
static int try_connect(struct cay *cay, const char *id, int *out, struct cay_error *err)
{
    struct sockaddr_un address;
    autofd int hold = -1;
    autofd int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return cay_fail_errno(err, errno, "cannot make a socket");
    if (home_ctl_address(cay, id, &address, &hold, err) < 0)
        return -1;
    int connected = connect(sock, (struct sockaddr *)&address, sizeof(address)), eno = errno;
    if (!is_socket(cay, id))
        return cay_fail(err, CAY_E_CONFLICT, /* waiting would not help */
                        "cannot reach sandbox '%s': %s/%s/ctl is not the socket of its keeper; "
                        "'cay rm -f %s' ends it",
                        id, cay->run_path, id, id);
    if (connected == 0) {
        *out = steal_fd(&sock);
        return 1;
    }
    errno = eno;
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
    int connected =
        parse_id_reserved(id) ? explain(cay, id, LIFE_NONE, err) : try_connect(cay, id, sock, err);
    if (connected == 0)
        return cay_fail(err, CAY_E_UNAVAILABLE, "sandbox '%s' is being made", id);
    return connected < 0 ? -1 : 0;
}

int sandbox_connect(struct cay_sandbox *sandbox, struct chan *out, struct cay_error *err)
{
    for (int i = 0; i < READY_TRIES; i++) {
        int sock;
        int connected = try_connect(sandbox->cay, sandbox->id, &sock, err);
        if (connected < 0)
            return -1;
        if (connected > 0) {
            if (fcntl(sock, F_SETFL, O_RDWR) < 0) {
                cay_fail_errno(err, errno, "cannot wait for sandbox '%s'", sandbox->id);
                close_fd(&sock);
                return -1;
            }
            chan_init(out, sock);
            return 0;
        }
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_NS}, NULL);
    }
    return cay_fail(err, CAY_E_UNAVAILABLE, "the keeper of sandbox '%s' does not answer",
                    sandbox->id);
}

bool sandbox_await(int sock, uint64_t ms)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    bool forever = ms > INT_MAX / 2;
    uint64_t end = cay_after_ms(forever ? 0 : ms);
    for (;;) {
        uint64_t now = cay_now_us();
        int left = now >= end ? 0 : (int)((end - now) / 1000) + 1;
        int ready = poll(&p, 1, forever ? -1 : left);
        if (ready >= 0 || errno != EINTR)
            return ready > 0;
    }
}

int sandbox_unsent(struct chan *chan, struct cay_error *err)
{
    struct cay_error lost;
    automsg struct msg answer = {0};
    if (err->code == CAY_E_GONE && chan_recv(chan, &answer, &lost) > 0 && answer.type == MSG_ERROR)
        msg_to_error(&answer, err);
    return -1;
}

int sandbox_check(struct cay *cay, const char *id, int sock, struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    struct cay_error why;
    struct cay_sandbox sandbox = {.cay = cay};
    memcpy(sandbox.id, id, strlen(id) + 1);
    if (sandbox_call(&sandbox, &(struct msg){.type = OP_STATS}, &chan, &answer, &why) == 0) {
        msg_done(&answer);
        chan_done(&chan);
        return 0;
    }
    if (why.code != CAY_E_UNAVAILABLE || (sock >= 0 && sandbox_await(sock, 0)))
        return 0;
    return cay_fail_copy(err, why.code, why.sys_errno, why.text);
}

int sandbox_send_parts(const struct msg *msg,
                       ssize_t (*part)(void *peer, const char *bytes, size_t size,
                                       struct cay_error *err),
                       void *peer, struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER);
    if (msg_encode(&buf, msg, 0) < 0)
        return cay_fail(err, CAY_E_TOO_LARGE, "the message is larger than %u bytes", CAY_MAX_FRAME);
    for (size_t done = 0; done < buf.size;) {
        ssize_t n = part(peer, buf.data + done, buf.size - done, err);
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

struct keeper_peer {
    struct cay *cay;
    const char *id;
    int sock;
};

static ssize_t send_to_keeper(void *data, const char *bytes, size_t size, struct cay_error *err)
{
    const struct keeper_peer *peer = data;
    for (;;) {
        ssize_t n = sock_send_within(peer->sock, bytes, size, NULL, 0, SANDBOX_CHECK_MS);
        if (n >= 0)
            return n;
        if (errno != EAGAIN)
            return cay_fail_errno(err, errno, "cannot send to the peer");
        if (sandbox_check(peer->cay, peer->id, -1, err) < 0)
            return -1;
    }
}

int sandbox_send(struct cay *cay, const char *id, int sock, const struct msg *msg,
                 struct cay_error *err)
{
    struct keeper_peer peer = {cay, id, sock};
    return sandbox_send_parts(msg, send_to_keeper, &peer, err);
}

/* Until the answer comes. Of one that may take long, the keeper is asked now and then. */
static bool await_answer(const struct cay_sandbox *sandbox, int sock, uint64_t ms)
{
    struct cay_error err;
    for (; ms > SANDBOX_PATIENCE_MS; ms -= ms > INT_MAX / 2 ? 0 : SANDBOX_CHECK_MS) {
        if (sandbox_await(sock, SANDBOX_CHECK_MS))
            return true;
        if (sandbox_check(sandbox->cay, sandbox->id, sock, &err) < 0)
            return false;
    }
    return sandbox_await(sock, ms);
}

int sandbox_call(struct cay_sandbox *sandbox, const struct msg *request, struct chan *chan,
                 struct msg *answer, struct cay_error *err)
{
    struct cay_error own;
    if (!err)
        err = &own;
    if (sandbox_connect(sandbox, chan, err) < 0)
        return -1;
    int got = chan_send(chan->sock, request, NULL, 0, err) < 0 ? sandbox_unsent(chan, err) : 1;
    bool refused = got < 0 && err->code != CAY_E_GONE; /* it hung up, and has said why */
    if (got > 0 && !await_answer(sandbox, chan->sock,
                                 CAY_MIN(request->timeout_ms, (uint64_t)INT_MAX) + PATIENCE_MS)) {
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
    } else if (got == 0 || (sandbox_misheard(sandbox->id, err) == 0 && !refused)) {
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
