/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admit.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/fronts/fronts.h"
#include "daemon/journal.h"
#include "daemon/log.h"
#include "daemon/roster.h"
#include "daemon/routes.h"
#include "daemon/server.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bodies above REQUEST_MAX_JSON at once: of all clients together, and of one tenant. */
#define MAX_LARGE 8
#define MAX_LARGE_TENANT 4

/* ---- where it comes from --------------------------------------------------------------------- */

static bool listed(const char *const *list, const char *value)
{
    for (; list && *list; list++)
        if (strcasecmp(*list, value) == 0)
            return true;
    return false;
}

/* The name in a Host header, without port and brackets; false if it is no host and port. */
static bool host_name(const char *host, char out[256])
{
    bool bracket = host[0] == '[';
    const char *name = host + bracket;
    size_t n = strcspn(name, bracket ? "]" : ":");
    const char *rest = name + n + (bracket && name[n]);
    if (n == 0 || n >= 256 || (bracket && name[n] != ']') ||
        strspn(name, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_:") < n)
        return false;
    if (*rest && (*rest != ':' || strspn(rest + 1, "0123456789") != strlen(rest + 1)))
        return false;
    memcpy(out, name, n);
    out[n] = 0;
    return true;
}

/* What a request says about its own form, counted over all headers. */
struct form {
    unsigned hosts, lengths, encodings;
    bool odd; /* a header that readers understand differently */
};

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                      size_t name_size, const char *value, size_t size)
{
    struct form *form = cls;
    (void)kind;
    form->hosts += strcasecmp(name, "Host") == 0;
    form->lengths += strcasecmp(name, "Content-Length") == 0;
    form->encodings += strcasecmp(name, "Transfer-Encoding") == 0;
    if (strlen(name) != name_size || strcspn(name, " \t\r\n:") != name_size)
        form->odd = true;
    for (size_t i = 0; i < size; i++)
        if (((unsigned char)value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f)
            form->odd = true;
    return MHD_YES;
}

/*
 * Where a proxy in front of us might see another request than we do, there is none: two lengths, a
 * length and an encoding, control characters. The connection ends with the answer, so that what
 * follows is never taken for a request.
 */
static int check_form(struct request *r, struct cay_error *err)
{
    struct form form = {0};
    MHD_get_connection_values_n(r->mhd, MHD_HEADER_KIND, look_at_header, &form);
    const char *encoding = request_header(r, "Transfer-Encoding");
    const char *wrong = form.hosts > 1                   ? "more than one Host header"
                        : form.lengths > 1               ? "more than one Content-Length"
                        : form.encodings && form.lengths ? "both a length and an encoding"
                        : form.encodings && r->old       ? "an encoding that HTTP/1.0 does not have"
                        : form.encodings > 1 || (encoding && strcasecmp(encoding, "chunked") != 0)
                            ? "an unknown Transfer-Encoding"
                        : form.odd ? "a malformed header"
                                   : NULL;
    if (!wrong)
        return 0;
    r->last = true;
    return cay_fail(err, CAY_E_INVALID, "the request has %s", wrong);
}

/*
 * A page that made its own name point to this machine (DNS rebinding) still sends that name: only
 * addresses, "localhost" and names that the operator listed are ours. The unix socket is out of any
 * browser's reach.
 */
static int check_host(struct request *r, struct cay_error *err)
{
    unsigned char address[16];
    char name[256];
    if (r->c->local)
        return 0;
    const char *host = request_header(r, "Host");
    if (!host || !host_name(host, name))
        return cay_fail(err, CAY_E_INVALID, "the request has no Host header, or a malformed one");
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1 ||
        inet_pton(AF_INET6, name, address) == 1 || listed(r->d->settings.hosts, name))
        return 0;
    return cay_fail(err, CAY_E_DENIED,
                    "this daemon is not called '%s'; add it to 'hosts' in cayd.conf", name);
}

/* A browser says which page a request is from. None may call unless it is listed. */
static int check_origin(struct request *r, struct cay_error *err)
{
    const char *origin = request_header(r, "Origin"), *site = request_header(r, "Sec-Fetch-Site");
    if (origin && !listed(r->d->settings.origins, origin))
        return cay_fail(err, CAY_E_DENIED,
                        "pages of '%.128s' may not call this daemon; add it to 'origins' in "
                        "cayd.conf",
                        origin);
    if (!origin && site && strcmp(site, "none") != 0 && strcmp(site, "same-origin") != 0)
        return cay_fail(err, CAY_E_DENIED, "other sites may not call this daemon");
    return 0;
}

void admit_cors(struct request *r)
{
    const char *origin = request_header(r, "Origin");
    if (!origin || !listed(r->d->settings.origins, origin))
        return;
    reply_header(r, "Access-Control-Allow-Origin", origin);
    reply_header(r, "Access-Control-Expose-Headers",
                 "Content-Range, X-Cay-Mode, X-Cay-Mtime-Ns, X-Cay-Pid, X-Cay-Type");
    reply_header(r, "Vary", "Origin");
}

static bool is_preflight(struct request *r)
{
    return strcmp(r->method, "OPTIONS") == 0 && request_header(r, "Origin") &&
           request_header(r, "Access-Control-Request-Method");
}

/* ---- who asks -------------------------------------------------------------------------------- */

/* At the other end of the unix socket: our own user, or root. Its mode says so; this is the second
 * lock on the same door. */
static bool is_owner(const struct connection *c)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    return c->local && getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static int identify(struct request *r, struct cay_error *err)
{
    static const char scheme[] = "Bearer ";
    struct cay_error why;
    const char *header = request_header(r, "Authorization");
    r->c->by_token = false;
    if (!header && is_owner(r->c)) {
        /* The socket is its owner's alone: who can open it can do all of this without us. */
        snprintf(r->who.name, sizeof(r->who.name), "operator");
        r->who.scopes = SCOPE_ALL;
        r->is_operator = true;
        return 0;
    }
    if (!header)
        return cay_fail(err, CAY_E_UNAUTHORIZED,
                        "a token is needed: send 'Authorization: Bearer ...'; 'cayd token add' "
                        "makes one");
    if (strncasecmp(header, scheme, strlen(scheme)) != 0)
        return cay_fail(err, CAY_E_UNAUTHORIZED, "the Authorization header is not 'Bearer TOKEN'");
    /* A token that was taken back ends at once. A file that cannot be read leaves the old ones. */
    if (tokens_refresh(r->d->settings.tokens, &r->d->tokens, &why) < 0)
        log_event(LOG_WARNING, "the tokens cannot be read again", "error", why.text);
    if (tokens_find(r->d->tokens, header + strlen(scheme), cay_wall_ms(), &r->who, err) < 0)
        return -1;
    r->is_operator = r->who.tenant[0] == 0;
    r->c->by_token = token_hash(header + strlen(scheme), r->c->token, err) == 0;
    return r->c->by_token ? 0 : -1;
}

static int check_scope(struct request *r, struct cay_error *err)
{
    uint32_t missing = r->route->scope & ~r->who.scopes;
    const char *first = scope_name(missing & -missing);
    if (!missing)
        return 0;
    snprintf(r->rule, sizeof(r->rule), "scope.%s", first);
    return cay_fail(err, CAY_E_DENIED, "the token '%s' lacks the scope '%s'", r->who.name, first);
}

/* ---- on what --------------------------------------------------------------------------------- */

int request_full_id(const struct request *r, const char *name, char out[CAY_MAX_ID],
                    struct cay_error *err)
{
    const char *id;
    if (parse_id(name, &id, err) < 0)
        return -1;
    if (parse_id_reserved(name))
        return cay_fail(err, CAY_E_INVALID, "the id '%s' is the engine's own", name);
    if (!r->is_operator && strchr(name, '~'))
        return cay_fail(err, CAY_E_INVALID, "the id '%s' must not have a '~'", name);
    int n = r->is_operator ? snprintf(out, CAY_MAX_ID, "%s", name)
                           : snprintf(out, CAY_MAX_ID, "%s~%s", r->who.tenant, name);
    return n < CAY_MAX_ID ? 0 : cay_fail(err, CAY_E_INVALID, "the id '%s' is too long", name);
}

/* What cannot be the id of anything is not found, like any other id that is not there. */
static int take_params(struct request *r, const struct route_params *params, struct cay_error *err)
{
    if (params->id[0] && request_full_id(r, params->id, r->id, NULL) < 0)
        return cay_fail(err, CAY_E_NOT_FOUND, "no sandbox '%s'", params->id);
    if (params->pid[0] && parse_pid(params->pid, &r->pid, NULL) < 0)
        return cay_fail(err, CAY_E_NOT_FOUND, "no process '%s'", params->pid);
    return 0;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* A large body is held in memory: a few at once are all that is needed. One that does not say how
 * large it is may be. */
static int check_large(struct request *r, struct cay_error *err)
{
    const char *length = request_header(r, "Content-Length");
    uint64_t size = UINT64_MAX;
    if (!(r->route->flags & ROUTE_LARGE) ||
        (length && parse_count(length, &size, NULL) == 0 && size <= REQUEST_MAX_JSON))
        return 0;
    if (r->d->large_bodies >= MAX_LARGE || r->tenant->large_bodies >= MAX_LARGE_TENANT)
        return cay_fail(err, CAY_E_UNAVAILABLE,
                        "too many bodies above %u bytes are on their way; try again",
                        REQUEST_MAX_JSON);
    r->d->large_bodies++;
    r->tenant->large_bodies++;
    r->large = true;
    r->body.max = REQUEST_MAX_LARGE;
    return 0;
}

static int check_room(struct request *r, struct cay_error *err)
{
    struct operator_refusal why = {0};
    if (r->route->flags & ROUTE_UNBOUND)
        return 0;
    /* An upgrade serves whom it has; nobody is to notice it. */
    if (r->d->phase >= DAEMON_DRAINING && !r->d->upgrade)
        return cay_fail(err, CAY_E_UNAVAILABLE, "the daemon is about to end; try again");
    struct tenant *tenant = roster_tenant(r->d->roster, r->who.tenant);
    if (!tenant)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (operator_check_quota(r->d->policy, r->who.tenant, "requests_max", tenant->requests, 1, &why,
                             err) < 0) {
        snprintf(r->rule, sizeof(r->rule), "%s", why.rule);
        return -1;
    }
    tenant->requests++;
    r->tenant = tenant;
    return check_large(r, err);
}

void admit_over(struct request *r)
{
    if (r->large) {
        r->d->large_bodies--;
        r->tenant->large_bodies--;
    }
    r->large = false;
    if (r->tenant)
        r->tenant->requests--;
    r->tenant = NULL;
}

static int not_allowed(struct request *r, const char *methods, struct cay_error *err)
{
    cay_fail(err, CAY_E_INVALID, "%s is not possible on %s; %s is", r->method, r->path, methods);
    reply_error(r, err);
    r->status = MHD_HTTP_METHOD_NOT_ALLOWED;
    reply_header(r, "Allow", methods);
    return 0;
}

/* Who asks and for which route: by a token, or by the key in the path of a front. */
static int find_route(struct request *r, struct route_params *params, enum route_match *match,
                      char methods[static 128], struct cay_error *err)
{
    if (fronts_claim(r)) {
        *params = (struct route_params){0};
        if (fronts_enter(r, err) < 0)
            return -1;
        *match = fronts_match(r, methods);
        return 0;
    }
    *match = routes_match(r->method, r->path, &r->route, params, methods);
    if (*match == ROUTE_FOUND)
        r->route_index = routes_index(r->route);
    bool open = *match == ROUTE_FOUND && (r->route->flags & ROUTE_OPEN);
    return open ? 0 : identify(r, err);
}

int admit(struct request *r, struct cay_error *err)
{
    struct route_params params;
    enum route_match match;
    char methods[128];
    if (check_form(r, err) < 0 || check_host(r, err) < 0 || check_origin(r, err) < 0) {
        r->d->metrics.denied++;
        return -1;
    }
    if (is_preflight(r)) {
        reply_empty(r, MHD_HTTP_NO_CONTENT);
        reply_header(r, "Access-Control-Allow-Methods", "GET, HEAD, PUT, POST, PATCH, DELETE");
        reply_header(r, "Access-Control-Allow-Headers", "Authorization, Content-Type, Range");
        reply_header(r, "Access-Control-Max-Age", "600");
        return 0;
    }
    if (find_route(r, &params, &match, methods, err) < 0) {
        r->d->metrics.unauthorized++;
        return -1;
    }
    if (match == ROUTE_LATER)
        return cay_fail(err, CAY_E_UNSUPPORTED, "%s is not part of this version", r->path);
    if (match == ROUTE_OTHER_METHOD)
        return not_allowed(r, methods, err);
    if (match == ROUTE_NONE)
        return cay_fail(err, CAY_E_NOT_FOUND, "no such path%s",
                        r->explain ? "" : "; 'GET /api/v1/version' is one");
    if (check_scope(r, err) < 0) {
        r->d->metrics.denied++;
        journal_note(r, AUDIT_REFUSED, &(struct audit_detail){.rule = r->rule}, err);
        return -1;
    }
    if (check_room(r, err) < 0 || take_params(r, &params, err) < 0)
        return -1;
    bool looks = strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
    return looks ? 0 : journal_ready(r->d, r->route->flags & ROUTE_REMOVES, err);
}
