/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET attach: a process on a WebSocket. Binary messages are its bytes, both ways; text messages
 * are JSON about it (resize, eof; exit, error). After the upgrade the socket is ours: what comes
 * from the keeper is read only while the client has room, and the other way round.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/api.h"
#include "daemon/call.h"
#include "daemon/exec_body.h"
#include "daemon/journal.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "wire/ws.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

/* One message of the keeper with its header, and the few small frames that may follow it. */
#define MAX_OUT (CAY_MAX_DATA + 16384)
#define READ_SIZE 16384
/* A client that does not take its pongs gets no more: output has to fit behind them. */
#define MAX_PONGS 8192
#define PATIENCE_MS 10000
/* A ping now and then: proxies cut connections that are quiet, and a dead client is noticed. */
#define PING_US 30000000

struct terminal {
    struct daemon *d;
    struct ending ending;
    struct call call;
    struct MHD_UpgradeResponseHandle *handle;
    struct watch watch;
    struct timer ping;
    struct ws_in in;
    struct cay_buf out;  /* frames for the client */
    struct cay_buf read; /* bytes of the client, not yet understood */
    int sock;
    uint64_t pid, stall_ms;
    uint64_t from; /* offset of the byte that comes next; CAY_FROM_KEPT: whichever comes first */
    char id[CAY_MAX_ID], accept[WS_ACCEPT_SIZE + 1];
    struct request *r; /* until the upgrade */
    bool closing;      /* a close frame is the last in `out` */
};

static void terminal_free(struct terminal *t)
{
    call_end(&t->call);
    loop_forget(&t->d->loop, &t->watch);
    timer_clear(&t->d->loop, &t->ping);
    ws_in_done(&t->in);
    buf_done(&t->out);
    buf_done(&t->read);
    *t->ending.link = t->ending.next;
    if (t->ending.next)
        t->ending.next->link = t->ending.link;
    t->d->metrics.streams--;
    MHD_upgrade_action(t->handle, MHD_UPGRADE_ACTION_CLOSE);
    free(t);
}

static void update(struct terminal *t)
{
    /* While the keeper has no room for what the client typed, the client is not read. */
    bool hear = !call_full(&t->call) && !t->closing;
    loop_watch(&t->d->loop, &t->watch, t->sock,
               (hear ? EPOLLIN : 0) | (t->out.size ? EPOLLOUT : 0));
}

/* False: it is over, and freed. */
static bool flush(struct terminal *t)
{
    while (t->out.size) {
        ssize_t n = send(t->sock, t->out.data, t->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            terminal_free(t);
            return false;
        }
        buf_eat(&t->out, (size_t)n);
    }
    if (t->out.size == 0 && t->closing) {
        terminal_free(t);
        return false;
    }
    update(t);
    return true;
}

static bool close_with(struct terminal *t, unsigned code, const char *reason)
{
    if (!t->closing)
        ws_out_close(&t->out, code, reason, NULL);
    t->closing = true;
    call_end(&t->call);
    return flush(t);
}

static void tell(struct terminal *t, const struct cay_buf *json)
{
    ws_out(&t->out, WS_OP_TEXT, json->data, json->size, NULL);
}

/* ---- from the keeper ------------------------------------------------------------------------- */

static void tell_exit(struct terminal *t, const struct msg *msg)
{
    autobuf struct cay_buf json = CAY_BUF(4096);
    const struct cay_exit e = msg_exit(msg);
    buf_str(&json, "{");
    json_str(&json, "type", "exit");
    json_num(&json, "offset", msg->offset);
    json_key(&json, "exit");
    buf_str(&json, "{");
    json_exit(&json, &e);
    buf_str(&json, "}}");
    tell(t, &json);
    close_with(t, WS_NORMAL, "");
}

static void tell_error(struct terminal *t, const struct cay_error *err, unsigned code)
{
    autobuf struct cay_buf json = CAY_BUF(4096);
    buf_str(&json, "{");
    json_str(&json, "type", "error");
    json_key(&json, "error");
    buf_str(&json, "{");
    json_str(&json, "code", cay_code_name(err->code));
    json_str(&json, "message", err->text);
    buf_str(&json, "}}");
    tell(t, &json);
    close_with(t, code, "");
}

/* Bytes that are missing before `offset`. */
static void tell_gap(struct terminal *t, const struct msg *msg)
{
    uint64_t offset = msg->offset;
    autobuf struct cay_buf json = CAY_BUF(256);
    if (t->from == CAY_FROM_KEPT || offset <= t->from)
        return;
    json_gap(&json, t->from, offset, (enum cay_code)msg->code);
    tell(t, &json);
}

static void on_message(struct call *call, const struct msg *msg)
{
    struct terminal *t = call->data;
    struct cay_error err;
    switch (msg->type) {
    case MSG_OUTPUT:
        tell_gap(t, msg);
        t->from = msg->offset + msg->data.size;
        ws_out(&t->out, WS_OP_BINARY, msg->data.data, msg->data.size, NULL);
        /* The next one is read when this one is gone. */
        if (flush(t) && t->out.size)
            call_pause(call);
        return;
    case MSG_EXIT:
        tell_gap(t, msg);
        tell_exit(t, msg);
        return;
    default:
        msg_to_error(msg, &err);
    }
    tell_error(t, &err, WS_NORMAL);
}

static void on_lost(struct call *call, const struct cay_error *err)
{
    struct cay_error why = *err;
    tell_error(call->data, &why, WS_NORMAL);
}

static bool understand(struct terminal *t);

/* Frames that were read before the keeper was full wait here, and no event tells of them. */
static void on_room(struct call *call)
{
    struct terminal *t = call->data;
    if (understand(t))
        update(t);
}

static const struct call_ops ops = {.message = on_message, .lost = on_lost, .room = on_room};

/* ---- from the client ------------------------------------------------------------------------- */

/* {"type":"resize","rows":24,"cols":80} or {"type":"eof"} */
static bool on_text(struct terminal *t, const char *text, size_t size)
{
    const char *type = NULL;
    json_int_t rows = 0, cols = 0;
    struct msg msg = {.pid = t->pid};
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    int good = json ? json_unpack_ex(json, NULL, JSON_STRICT, "{s:s,s?I,s?I}", "type", &type,
                                     "rows", &rows, "cols", &cols)
                    : -1;
    if (good == 0 && strcmp(type, "resize") == 0 && rows > 0 && cols > 0 && rows <= UINT16_MAX &&
        cols <= UINT16_MAX) {
        msg.type = OP_RESIZE;
        msg.rows = (uint64_t)rows;
        msg.cols = (uint64_t)cols;
    } else if (good == 0 && strcmp(type, "eof") == 0) {
        msg.type = OP_STDIN;
        msg.flags = MSG_F_EOF;
    }
    json_decref(json);
    if (msg.type == 0)
        return close_with(t, WS_POLICY, "expected {\"type\":\"resize\",...} or {\"type\":\"eof\"}");
    call_send(&t->call, &msg);
    return true;
}

/* False: it is over, and freed. */
static bool on_frame(struct terminal *t, int event)
{
    switch (event) {
    case WS_TEXT:
        return on_text(t, t->in.data, t->in.size);
    case WS_BINARY:
        if (t->in.size)
            call_send(
                &t->call,
                &(struct msg){.type = OP_STDIN, .pid = t->pid, .data = {t->in.data, t->in.size}});
        return true;
    case WS_PING:
        if (t->out.size < MAX_PONGS)
            ws_out(&t->out, WS_OP_PONG, t->in.data, t->in.size, NULL);
        return flush(t);
    case WS_CLOSE:
        return close_with(t, WS_NORMAL, "");
    default:
        return true;
    }
}

/* What was read, frame by frame; stops where the keeper has no room. */
static bool understand(struct terminal *t)
{
    struct cay_error err;
    while (t->read.size && !call_full(&t->call) && !t->closing) {
        const char *at = t->read.data;
        int event = ws_in_next(&t->in, &at, t->read.data + t->read.size, &err);
        if (event < 0)
            return close_with(t, t->in.close_code, err.text);
        buf_eat(&t->read, (size_t)(at - t->read.data));
        if (event == WS_MORE)
            break;
        if (!on_frame(t, event))
            return false;
    }
    return true;
}

static void on_ready(struct watch *watch, uint32_t events)
{
    struct terminal *t = container_of(watch, struct terminal, watch);
    if (events & EPOLLOUT) {
        if (!flush(t))
            return;
        if (t->out.size == 0 && t->call.paused)
            call_resume(&t->call);
        return;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    char *room = buf_room(&t->read, READ_SIZE);
    ssize_t n = room ? recv(t->sock, room, READ_SIZE, MSG_DONTWAIT) : 0;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        terminal_free(t);
        return;
    }
    if (n > 0)
        t->read.size += (size_t)n;
    if (understand(t))
        update(t);
}

static void on_ping(struct timer *timer)
{
    struct terminal *t = container_of(timer, struct terminal, ping);
    timer_set(&t->d->loop, timer, cay_now_us() + PING_US);
    if (t->out.size == 0)
        ws_out(&t->out, WS_OP_PING, "", 0, NULL);
    flush(t);
}

static void on_end(struct ending *ending, const struct cay_error *why)
{
    struct terminal *t = container_of(ending, struct terminal, ending);
    if (!t->closing)
        tell_error(t, why, WS_GOING_AWAY);
}

/* ---- the handshake --------------------------------------------------------------------------- */

static void on_upgraded(void *cls, struct MHD_Connection *mhd, void *state, const char *extra,
                        size_t extra_size, MHD_socket sock,
                        struct MHD_UpgradeResponseHandle *handle)
{
    struct request *r = cls;
    struct terminal *t = r->op;
    (void)mhd;
    (void)state;
    r->drop = NULL; /* it lives on without its request */
    t->handle = handle;
    t->sock = sock;
    fcntl(sock, F_SETFL, O_RDWR | O_NONBLOCK);
    /* libmicrohttpd has turned it off, and sends what goes over TLS in small pieces. */
    setsockopt(r->c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    t->d->metrics.streams++;
    t->ending = (struct ending){t->d->endings, &t->d->endings, on_end};
    if (t->ending.next)
        t->ending.next->link = &t->ending.next;
    t->d->endings = &t->ending;
    buf_add(&t->read, extra, extra_size);
    const struct msg request = {.type = OP_ATTACH,
                                .pid = t->pid,
                                .offset = t->from,
                                .idle_ms = t->stall_ms,
                                .flags = MSG_F_FOLLOW};
    call_start(&t->call, t->d, t->id, &request, 0, &ops, t);
    timer_set(&t->d->loop, &t->ping, cay_now_us() + PING_US);
    if (understand(t))
        update(t);
}

static void on_drop(struct request *r)
{
    struct terminal *t = r->op;
    call_end(&t->call);
    ws_in_done(&t->in);
    free(t);
}

/* Is there such a process? Once the protocol is switched, an answer has no status any more. */
static void probe_message(struct call *call, const struct msg *msg)
{
    struct terminal *t = call->data;
    struct request *r = t->r;
    struct cay_error err;
    if (msg->type == MSG_ERROR && msg_to_error(msg, &err) < 0 && err.code != CAY_E_TIMEOUT) {
        reply_error(r, &err);
        return;
    }
    call_end(call);
    if (journal_must(r, AUDIT_STDIN, &(struct audit_detail){.pid = &t->pid, .reason = "attached"},
                     &err) < 0) {
        reply_error(r, &err);
        return;
    }
    reply_upgrade(r, "websocket", t->accept, on_upgraded);
}

static void probe_lost(struct call *call, const struct cay_error *err)
{
    struct terminal *t = call->data;
    reply_error(t->r, err);
}

static const struct call_ops probe_ops = {.message = probe_message, .lost = probe_lost};

static bool has_token(const char *list, const char *token)
{
    size_t n = strlen(token);
    for (const char *at = list; at && *at;) {
        at += strspn(at, " \t,");
        size_t part = strcspn(at, " \t,");
        if (part == n && strncasecmp(at, token, n) == 0)
            return true;
        at += part;
    }
    return false;
}

static int handshake(struct request *r, char accept[WS_ACCEPT_SIZE + 1], struct cay_error *err)
{
    char input[WS_ACCEPT_INPUT_SIZE + 1];
    unsigned char digest[20];
    const char *key = request_header(r, "Sec-WebSocket-Key");
    const char *version = request_header(r, "Sec-WebSocket-Version");
    if (!has_token(request_header(r, "Upgrade"), "websocket") ||
        !has_token(request_header(r, "Connection"), "Upgrade"))
        return cay_fail(err, CAY_E_INVALID, "this is a WebSocket: send 'Upgrade: websocket'");
    if (!version || strcmp(version, "13") != 0)
        return cay_fail(err, CAY_E_INVALID, "the WebSocket version must be 13");
    if (!key || ws_accept_input(key, input, err) < 0)
        return cay_fail(err, CAY_E_INVALID, "Sec-WebSocket-Key is missing or malformed");
    if (gnutls_hash_fast(GNUTLS_DIG_SHA1, input, strlen(input), digest) < 0)
        return cay_fail(err, CAY_E_INTERNAL, "cannot hash the WebSocket key");
    ws_accept_value(digest, accept);
    return 0;
}

struct attach_query {
    uint64_t from, stall_ms;
    bool has_from;
};

static const struct opt parameters[] = {
    OPT("from", 0, OPT_COUNT, offsetof(struct attach_query, from), NULL, NULL,
        .extra = offsetof(struct attach_query, has_from)),
    OPT("stall", 0, OPT_DURATION, offsetof(struct attach_query, stall_ms), NULL, NULL,
        .nonzero = true, .most = CAY_MAX_STALL_MS),
};

void terminal_attach(struct request *r)
{
    struct cay_error err;
    struct attach_query query = {0};
    char accept[WS_ACCEPT_SIZE + 1];
    struct terminal *t = NULL;
    int result = input_query(r, parameters, CAY_COUNT(parameters), &query, &err);
    if (result == 0)
        result = handshake(r, accept, &err);
    if (result == 0)
        result = journal_ready(r->d, false, &err);
    if (result == 0 && !(t = calloc(1, sizeof(*t))))
        result = cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
    if (result < 0) {
        reply_error(r, &err);
        return;
    }
    t->d = r->d;
    t->pid = (uint64_t)r->pid;
    t->from = query.has_from ? query.from : CAY_FROM_KEPT;
    t->stall_ms = query.stall_ms;
    t->out = CAY_BUF(MAX_OUT);
    t->read = CAY_BUF(WS_MAX_MESSAGE + READ_SIZE + 64);
    t->watch = (struct watch){.fd = -1, .ready = on_ready};
    t->ping.fire = on_ping;
    snprintf(t->id, sizeof(t->id), "%s", r->id);
    ws_in_init(&t->in, WS_PEER_CLIENT);
    r->op = t;
    r->drop = on_drop;
    t->r = r;
    memcpy(t->accept, accept, sizeof(t->accept));
    call_start(&t->call, r->d, r->id, &(struct msg){.type = OP_WAIT, .pid = t->pid}, PATIENCE_MS,
               &probe_ops, t);
}
