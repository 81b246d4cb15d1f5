/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/early.h"

#include "base/buf.h"
#include "base/util.h"
#include "daemon/server.h"

#include <gnutls/gnutls.h>
#include <sys/socket.h>

/* This much, or what comes in this time, is read before the answer: the connection can go on. */
#define POLITE_BYTES (1u << 20)
#define POLITE_US 1000000
/* How long a client may go on sending after it was answered. One that looks stops at once; one that
 * sends all before it looks gets through what a fast network takes in this time, and finds the
 * answer all the same. */
#define LINGER_US 20000000
/* ... and where no large body belongs. */
#define LINGER_SMALL_US 3000000
/* What an answer and its headers may be. */
#define MAX_ANSWER (16u << 10)

static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    (void)kind;
    buf_fmt(cls, "%s: %s\r\n", name, value);
    return MHD_YES;
}

static void write_answer(struct request *r, struct cay_buf *out)
{
    const char *phrase = MHD_get_reason_phrase_for(r->status);
    buf_fmt(out, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Length: %zu\r\n", r->status,
            phrase ? phrase : "", r->text_size);
    MHD_del_response_header(r->response, "Connection", "close");
    MHD_get_response_headers(r->response, add_header, out);
    buf_str(out, "\r\n");
    buf_add(out, r->text, r->text_size);
}

/* All at once or not at all: nothing else is on its way to this client, so there is room. */
static bool send_all(struct request *r, const struct cay_buf *out)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (info && info->tls_session) {
        gnutls_session_t tls = info->tls_session;
        return gnutls_record_send(tls, out->data, out->size) == (ssize_t)out->size &&
               gnutls_bye(tls, GNUTLS_SHUT_WR) == GNUTLS_E_SUCCESS;
    }
    return send(r->c->fd, out->data, out->size, MSG_NOSIGNAL | MSG_DONTWAIT) ==
               (ssize_t)out->size &&
           shutdown(r->c->fd, SHUT_WR) == 0;
}

static bool send_early(struct request *r)
{
    autobuf struct cay_buf out = CAY_BUF(MAX_ANSWER);
    /* What is not a whole answer is a stream, and those wait for the body. */
    if (r->streaming)
        return false;
    write_answer(r, &out);
    r->early = !buf_failed(&out) && send_all(r, &out);
    return r->early;
}

static uint64_t linger_us(const struct request *r)
{
    return r->route && r->route->body == BODY_STREAM ? LINGER_US : LINGER_SMALL_US;
}

bool early_swallow(struct request *r, size_t size)
{
    uint64_t waited = cay_now_us() - r->answered_us;
    r->swallowed += size;
    if (r->early)
        return waited < linger_us(r);
    if (r->swallowed <= POLITE_BYTES && waited < POLITE_US)
        return true;
    return send_early(r);
}
