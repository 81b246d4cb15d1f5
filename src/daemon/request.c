/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a request, between libmicrohttpd (which calls, and wants to be called back only from
 * its own callbacks) and the handlers (which answer whenever they can). A request that waits is a
 * suspended connection; waking it makes libmicrohttpd call again, and then the answer is there.
 */
#include "daemon/request.h"

#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/admit.h"
#include "daemon/early.h"
#include "daemon/routes.h"
#include "daemon/server.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Of a body that a request cannot have, this much is read in politeness. */
#define MAX_SWALLOW (1u << 20)
/* After this time a body must be whole, or a stream of at least so many bytes in a second. */
#define CRAWL_S 30
#define CRAWL_RATE 256
/* More than any request has. */
#define MAX_PARAMETERS 128
/* Pieces of a streamed answer. */
#define PIECE (32u << 10)

/* ---- waiting and waking ---------------------------------------------------------------------- */

static void drop(struct request *r)
{
    if (r->drop)
        r->drop(r);
    r->drop = NULL;
    r->op = NULL;
    r->read = NULL;
    r->write = NULL;
    r->finish = NULL;
    r->end = NULL;
}

void request_wake(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    loop_forget(&r->d->loop, &r->watch);
    MHD_resume_connection(r->mhd);
    connection_stir(r->c);
}

/* libmicrohttpd does not look at suspended connections: we do, or a client that went away would be
 * waited for for ever. */
static void on_client(struct watch *watch, uint32_t events)
{
    struct request *r = container_of(watch, struct request, watch);
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        request_abandon(r);
}

void request_abandon(struct request *r)
{
    r->gone = true;
    drop(r);
    request_wake(r);
}

static void suspend(struct request *r)
{
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
    loop_watch(&r->d->loop, &r->watch, r->c->fd, EPOLLRDHUP);
}

/* ---- answers --------------------------------------------------------------------------------- */

void reply_header(struct request *r, const char *name, const char *value)
{
    if (r->response)
        MHD_add_response_header(r->response, name, value);
}

static void answer(struct request *r, unsigned status, struct MHD_Response *response)
{
    if (r->response || r->gone) {
        MHD_destroy_response(response);
        return;
    }
    r->response = response;
    r->status = status;
    r->answered_us = cay_now_us();
    reply_header(r, "Cache-Control", "no-store");
    reply_header(r, "X-Content-Type-Options", "nosniff");
    if ((r->last || r->d->phase >= DAEMON_DRAINING) && status != MHD_HTTP_SWITCHING_PROTOCOLS)
        reply_header(r, "Connection", "close");
    admit_cors(r);
    request_wake(r);
}

void reply_text(struct request *r, unsigned status, const char *type, struct cay_buf *body)
{
    size_t size;
    char *text = buf_steal(body, &size);
    if (!text) {
        struct cay_error err;
        cay_fail(&err, CAY_E_TOO_LARGE, "the answer is too large, or there is no memory for it");
        reply_error(r, &err);
        return;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    MHD_add_response_header(response, "Content-Type", type);
    if (!r->response && !r->gone) {
        r->text = text;
        r->text_size = size;
    }
    answer(r, status, response);
}

void reply_json(struct request *r, unsigned status, struct cay_buf *body)
{
    reply_text(r, status, "application/json", body);
}

void reply_empty(struct request *r, unsigned status)
{
    answer(r, status, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
}

void error_json(struct cay_buf *out, const struct request *r, const struct cay_error *err)
{
    buf_str(out, "{");
    json_str(out, "code", cay_code_name(err->code));
    json_str(out, "message", err->text);
    if (r->rule[0] || r->field[0] || err->sys_errno || r->exit) {
        json_key(out, "detail");
        buf_str(out, "{");
        if (r->rule[0])
            json_str(out, "rule", r->rule);
        if (r->field[0])
            json_str(out, "field", r->field);
        if (err->sys_errno)
            json_num(out, "errno", (uint64_t)err->sys_errno);
        if (r->exit) {
            json_key(out, "exit");
            buf_str(out, "{");
            json_exit(out, r->exit);
            buf_str(out, "}");
        }
        buf_str(out, "}");
    }
    buf_str(out, "}");
}

void reply_error(struct request *r, const struct cay_error *err)
{
    autobuf struct cay_buf body = CAY_BUF(4096);
    unsigned status = (unsigned)cay_code_http(err->code);
    if (r->explain) {
        r->explain(r, err);
        return;
    }
    buf_str(&body, "{\"error\":");
    error_json(&body, r, err);
    buf_str(&body, "}\n");
    if (buf_failed(&body)) {
        reply_empty(r, status);
        return;
    }
    reply_json(r, status, &body);
    if (err->code == CAY_E_UNAUTHORIZED)
        reply_header(r, "WWW-Authenticate", "Bearer");
}

static ssize_t on_read(void *cls, uint64_t at, char *buffer, size_t max)
{
    struct request *r = cls;
    (void)at;
    if (r->gone || !r->read)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    ssize_t n = r->read(r, buffer, max);
    if (n == STREAM_END)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == STREAM_WAIT)
        suspend(r);
    r->d->metrics.bytes_out += (uint64_t)n;
    return n;
}

int request_streams(const struct request *r, const char *type, struct cay_error *err)
{
    /* Half of a JSON document is none, and is noticed. */
    if (!r->old || strcmp(r->method, "HEAD") == 0 ||
        (type && strcmp(type, "application/json") == 0))
        return 0;
    return cay_fail(err, CAY_E_UNSUPPORTED,
                    "use HTTP/1.1: a stream that breaks off looks whole in HTTP/1.0");
}

void reply_stream(struct request *r, unsigned status, const char *type, uint64_t size)
{
    struct cay_error err;
    if (size == UINT64_MAX && request_streams(r, type, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(size, r->piece ? r->piece : PIECE, on_read, r, NULL);
    if (type)
        MHD_add_response_header(response, "Content-Type", type);
    r->streaming = true;
    r->d->metrics.streams++;
    answer(r, status, response);
}

void reply_upgrade(struct request *r, const char *protocol, const char *accept,
                   MHD_UpgradeHandler upgraded)
{
    struct MHD_Response *response = MHD_create_response_for_upgrade(upgraded, r);
    MHD_add_response_header(response, "Upgrade", protocol);
    MHD_add_response_header(response, "Sec-WebSocket-Accept", accept);
    answer(r, MHD_HTTP_SWITCHING_PROTOCOLS, response);
}

/* ---- what handlers ask ----------------------------------------------------------------------- */

const char *request_header(struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name);
}

bool request_accepts(struct request *r, const char *type)
{
    const char *accept = request_header(r, "Accept");
    return accept && strstr(accept, type);
}

const char *request_shown_id(const struct request *r, const char *id)
{
    const char *name = strchr(id, '~');
    return r->is_operator || !name ? id : name + 1;
}

bool request_ask(struct request *r)
{
    const char *expect = request_header(r, "Expect");
    r->asking = expect && strcasecmp(expect, "100-continue") == 0;
    return r->asking;
}

/* Its body comes so slowly that it can only be meant to keep us busy. */
bool request_crawls(const struct request *r)
{
    uint64_t took_s = (cay_now_us() - r->began_us) / 1000000;
    if (r->stage != REQUEST_READING || r->suspended || took_s < CRAWL_S)
        return false;
    return r->route && r->route->body == BODY_STREAM ? r->body_size < took_s * CRAWL_RATE : true;
}

bool request_tick(struct request *r)
{
    if (request_crawls(r))
        return false;
    return r->stage != REQUEST_READING || r->suspended || !r->response || early_swallow(r, 0);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

void *request_begin(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct daemon *d = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct request *r = calloc(1, sizeof(*r));
    if (!r || !info || !info->socket_context) {
        free(r);
        return NULL;
    }
    r->d = d;
    r->c = info->socket_context;
    request_forgotten(r->c);
    r->mhd = mhd;
    r->body = CAY_BUF(REQUEST_MAX_JSON);
    r->watch = (struct watch){.fd = -1, .ready = on_client};
    r->began_us = cay_now_us();
    r->c->request = r;
    r->route_index = METRICS_NONE;
    d->metrics.in_flight++;
    /* Each takes memory of the connection, and libmicrohttpd has no good answer when that is gone.
     */
    size_t parameters = 0;
    for (const char *at = uri; (at = strchr(at, '&')); at++)
        parameters++;
    if (parameters > MAX_PARAMETERS)
        connection_cut(r->c);
    if (routes_clean(uri, r->path, sizeof(r->path)) < 0)
        r->path[0] = 0; /* matches no route */
    return r;
}

static enum MHD_Result send_answer(struct request *r)
{
    struct MHD_Response *response = steal_ptr(&r->response);
    enum MHD_Result queued = MHD_queue_response(r->mhd, r->status, response);
    MHD_destroy_response(response);
    return queued;
}

/* The body is there, or there is none: let the handler work. */
static enum MHD_Result serve(struct request *r)
{
    if (r->stage == REQUEST_READING && !r->response) {
        r->stage = REQUEST_WORKING;
        if (r->route->body != BODY_STREAM)
            r->route->handle(r);
        else if (r->finish)
            r->finish(r);
    }
    if (r->gone || r->early)
        return MHD_NO;
    if (r->response)
        return send_answer(r);
    suspend(r);
    return MHD_YES;
}

static void too_large(struct request *r, size_t max)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_TOO_LARGE, "the body is larger than %zu bytes", max);
    reply_error(r, &err);
}

static enum MHD_Result take_body(struct request *r, const char *data, size_t *size)
{
    ssize_t taken = 0;
    if (r->gone)
        return MHD_NO;
    r->d->metrics.bytes_in += *size;
    r->body_size += *size;
    if (r->response) {
        bool stay = early_swallow(r, *size);
        *size = 0;
        return stay ? MHD_YES : MHD_NO;
    }
    if (r->route->body == BODY_NONE) {
        r->swallowed += *size;
        *size = 0;
        if (r->swallowed > MAX_SWALLOW)
            too_large(r, MAX_SWALLOW);
        return MHD_YES;
    }
    if (r->route->body == BODY_JSON) {
        buf_add(&r->body, data, *size);
        *size = 0;
        if (buf_failed(&r->body))
            too_large(r, r->body.max);
        return MHD_YES;
    }
    if (r->write)
        taken = r->write(r, data, *size);
    if (taken < 0)
        return MHD_NO;
    *size -= (size_t)taken;
    if (taken == 0 && !r->response)
        suspend(r);
    return MHD_YES;
}

/* The headers are there, and nothing of the body. */
static enum MHD_Result let_in(struct request *r)
{
    struct cay_error err;
    r->stage = REQUEST_READING;
    r->c->quiet_since_us = 0; /* its headers are whole */
    if (admit(r, &err) < 0)
        reply_error(r, &err);
    else if (!r->response && r->route->body == BODY_STREAM)
        r->route->handle(r);
    if (r->asking && !r->response) {
        suspend(r);
        return MHD_YES;
    }
    r->asking = false;
    /* An answer before the body cuts the connection, and a client that is still sending may
     * never see it: only one that waits to be asked is answered at once. */
    return r->response && request_header(r, "Expect") ? send_answer(r) : MHD_YES;
}

enum MHD_Result request_access(void *cls, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *size, void **state)
{
    struct request *r = *state;
    (void)cls;
    (void)mhd;
    (void)url;
    if (!r)
        return MHD_NO;
    if (r->stage == REQUEST_NEW) {
        snprintf(r->method, sizeof(r->method), "%s", method);
        r->old = strcasecmp(version, MHD_HTTP_VERSION_1_1) != 0;
        return let_in(r);
    }
    /* Woken: the target is fine, or it is not. */
    if (r->asking) {
        r->asking = false;
        if (r->gone)
            return MHD_NO;
        return r->response ? send_answer(r) : MHD_YES;
    }
    if (*size > 0)
        return take_body(r, upload, size);
    return serve(r);
}

static void request_free(struct request *r, bool gone)
{
    gone = (gone || r->gone) && !r->early;
    drop(r);
    loop_forget(&r->d->loop, &r->watch);
    admit_over(r);
    if (r->response)
        MHD_destroy_response(r->response);
    if (r->streaming)
        r->d->metrics.streams--;
    r->d->metrics.in_flight--;
    metrics_request(&r->d->metrics, r->route_index, r->status, gone, cay_now_us() - r->began_us);
    r->c->quiet_since_us = cay_now_us();
    r->c->request = NULL;
    buf_done(&r->body);
    opt_arena_done(&r->arena);
    free(r);
}

void request_over(void *cls, struct MHD_Connection *mhd, void **state,
                  enum MHD_RequestTerminationCode why)
{
    struct request *r = *state;
    (void)cls;
    (void)mhd;
    if (r)
        request_free(r, why != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    *state = NULL;
}

void request_forgotten(struct connection *c)
{
    if (c->request)
        request_free(c->request, true);
}
