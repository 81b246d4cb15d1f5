/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AIO front's door: its routes, the key that stands for a token, and the form of its answers.
 *
 * An answer is {"success","message","data","hint"}. An error of the request has an HTTP status of
 * its own and "detail" as well, which is where this product's clients look. What goes wrong with a
 * file that is looked at is told with status 200, as that product does; what goes wrong with one
 * that is written is not, as its clients do not look at "success".
 */
#include "daemon/fronts/aio.h"

#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/api_files.h"
#include "daemon/fronts/fronts.h"
#include "daemon/fronts/key.h"
#include "daemon/log.h"
#include "daemon/roster.h"
#include "daemon/server.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "/aio/"
#define FRONT "aio"

static const struct route routes[] = {
    {"GET", "/v1/sandbox", 0, BODY_NONE, aio_context, 0},

    {"POST", "/v1/shell/exec", 0, BODY_JSON, aio_shell_exec, 0},
    {"POST", "/v1/shell/view", 0, BODY_JSON, aio_shell_view, 0},
    {"POST", "/v1/shell/wait", 0, BODY_JSON, aio_shell_wait, 0},
    {"POST", "/v1/shell/kill", 0, BODY_JSON, aio_shell_kill, 0},
    {"GET", "/v1/shell/sessions", 0, BODY_NONE, aio_shell_list, 0},
    {"POST", "/v1/shell/sessions/create", 0, BODY_JSON, aio_shell_create, 0},
    {"DELETE", "/v1/shell/sessions/{session}", 0, BODY_NONE, aio_shell_delete, 0},

    {"POST", "/v1/bash/exec", 0, BODY_JSON, aio_bash_exec, 0},
    {"POST", "/v1/bash/output", 0, BODY_JSON, aio_bash_output, 0},
    {"POST", "/v1/bash/kill", 0, BODY_JSON, aio_bash_kill, 0},
    {"GET", "/v1/bash/sessions", 0, BODY_NONE, aio_bash_list, 0},
    {"POST", "/v1/bash/sessions/create", 0, BODY_JSON, aio_bash_create, 0},
    {"POST", "/v1/bash/sessions/{session}/close", 0, BODY_JSON, aio_bash_close, 0},

    {"POST", "/v1/file/read", 0, BODY_JSON, aio_file_read, 0},
    {"POST", "/v1/file/write", 0, BODY_JSON, aio_file_write, ROUTE_LARGE},
    {"POST", "/v1/file/replace", 0, BODY_JSON, aio_file_replace, 0},
    {"GET", "/v1/file/download", 0, BODY_NONE, files_get, 0},
    {"POST", "/v1/file/find", 0, BODY_JSON, aio_file_find, 0},
    {"POST", "/v1/file/list", 0, BODY_JSON, aio_file_list, 0},
    {"POST", "/v1/file/grep", 0, BODY_JSON, aio_file_grep, 0},
    {"POST", "/v1/file/search", 0, BODY_JSON, aio_file_search, 0},
};

/* ---- who asks, for what ---------------------------------------------------------------------- */

bool fronts_claim(struct request *r)
{
    if (strncmp(r->path, PREFIX, strlen(PREFIX)) != 0)
        return false;
    r->explain = aio_explain;
    r->route_index = METRICS_FRONT;
    return true;
}

static int living(struct daemon *d, const char *id, const unsigned char secret[KEY_SECRET],
                  unsigned char birth[KEY_BIRTH], struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    if (sandbox_status(d->looker, id, &buf, err) < 0 ||
        status_decode(buf.data, buf.size, &status, err) < 0)
        return -1;
    if (status.state == CAY_STATE_CREATING)
        return cay_fail(err, CAY_E_UNAVAILABLE, "the sandbox is being made");
    if (!sandbox_kept(d->looker, id) ||
        (status.state != CAY_STATE_RUNNING && status.state != CAY_STATE_PAUSED))
        return cay_fail(err, CAY_E_GONE, "the sandbox does not run: %s",
                        status.reason ? status.reason : "no reason known");
    return key_birth(secret, &status, birth, err);
}

int fronts_enter(struct request *r, struct cay_error *err)
{
    unsigned char secret[KEY_SECRET], birth[KEY_BIRTH], now[KEY_BIRTH];
    char key[KEY_TEXT], *rest = r->path + strlen(PREFIX);
    size_t n = strcspn(rest, "/");
    bool fits = n < sizeof(key);
    memcpy(key, rest, fits ? n : 0);
    key[fits ? n : 0] = 0;
    memmove(r->path, rest + n, strlen(rest + n) + 1);
    if (!fits || key_secret(r->d->cay->state_path, false, secret, NULL) < 0 ||
        !key_open(secret, FRONT, key, r->id, birth) || living(r->d, r->id, secret, now, NULL) < 0 ||
        !key_same_birth(birth, now)) {
        r->id[0] = 0;
        return cay_fail(err, CAY_E_NOT_FOUND, "no such sandbox, or not by this key");
    }
    /* No token has such a name. */
    snprintf(r->who.name, sizeof(r->who.name), "front:" FRONT);
    roster_tenant_of(r->id, r->who.tenant);
    r->who.scopes = SCOPE_EXEC | SCOPE_FILES;
    r->c->by_token = false;
    return 0;
}

/* One segment stands for the parameter. */
static bool fits(const char *pattern, const char *path)
{
    size_t n = strcspn(pattern, "{");
    if (strncmp(pattern, path, n) != 0)
        return false;
    if (!pattern[n])
        return path[n] == 0;
    size_t segment = strcspn(path + n, "/");
    const char *after = strchr(pattern, '}') + 1;
    return segment > 0 && strcmp(after, path + n + segment) == 0;
}

enum route_match fronts_match(struct request *r, char methods[static 128])
{
    enum route_match found = ROUTE_NONE;
    methods[0] = 0;
    for (size_t i = 0; i < CAY_COUNT(routes); i++) {
        if (!fits(routes[i].path, r->path))
            continue;
        if (strcmp(routes[i].method, r->method) == 0) {
            r->route = &routes[i];
            return ROUTE_FOUND;
        }
        size_t n = strlen(methods);
        snprintf(methods + n, 128 - n, "%s%s", n ? ", " : "", routes[i].method);
        found = ROUTE_OTHER_METHOD;
    }
    return found;
}

/* ---- the native route that gives keys -------------------------------------------------------- */

static int make_key(struct request *r, char out[KEY_TEXT], struct cay_error *err)
{
    unsigned char secret[KEY_SECRET], birth[KEY_BIRTH];
    struct cay_error why;
    if (key_secret(r->d->cay->state_path, true, secret, &why) < 0) {
        log_event(LOG_ERROR, "the secret of the keys cannot be used", "error", why.text);
        return cay_fail(err, CAY_E_INTERNAL, "the daemon can make no keys; its log says why");
    }
    if (living(r->d, r->id, secret, birth, err) < 0)
        return -1;
    return key_print(secret, FRONT, r->id, birth, out, err);
}

void sandbox_aio(struct request *r)
{
    autobuf struct cay_buf body = CAY_BUF(2048);
    char key[KEY_TEXT], path[KEY_TEXT + sizeof(PREFIX)], base[SERVER_URL], url[512];
    struct cay_error err;
    if (input_no_query(r, &err) < 0 || make_key(r, key, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    bool tcp = server_url(r->d->server, base);
    snprintf(path, sizeof(path), PREFIX "%s", key);
    snprintf(url, sizeof(url), "%s%s", base, path);
    buf_str(&body, "{");
    json_str(&body, "path", path);
    json_str(&body, "url", tcp ? url : NULL);
    buf_str(&body, "}\n");
    reply_json(r, MHD_HTTP_OK, &body);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

int aio_input(struct request *r, const struct opt *table, size_t n, void *object)
{
    struct cay_error err;
    if (input_no_query(r, &err) == 0 && input_json_loose(r, table, n, object, &err) == 0)
        return 0;
    if (!r->field[0])
        snprintf(r->field, sizeof(r->field), "body");
    reply_error(r, &err);
    return -1;
}

int aio_refuse(struct request *r, const char *field, const char *why)
{
    struct cay_error err;
    snprintf(r->field, sizeof(r->field), "%s", field);
    cay_fail(&err, CAY_E_INVALID, "'%s' %s", field, why);
    reply_error(r, &err);
    return -1;
}

bool aio_has_path(struct request *r, const char *field, const char *path)
{
    const char *why = !path                          ? "is missing"
                      : strlen(path) >= CAY_MAX_PATH ? "is longer than 4095 bytes"
                      : path[0] != '/'               ? "has to be an absolute path"
                                                     : NULL;
    if (why)
        aio_refuse(r, field, why);
    return !why;
}

/* ---- answers --------------------------------------------------------------------------------- */

void aio_begin(struct cay_buf *out, const char *message)
{
    buf_str(out, "{\"success\":true");
    json_str(out, "message", message);
    json_key(out, "data");
    buf_str(out, "{");
}

void aio_reply(struct request *r, struct cay_buf *out)
{
    buf_str(out, "},\"hint\":null}\n");
    reply_json(r, MHD_HTTP_OK, out);
}

void aio_end(struct cay_buf *out, const char *message)
{
    buf_str(out, "},\"success\":true");
    json_str(out, "message", message);
    buf_str(out, ",\"hint\":null}\n");
}

/* What a body must not be is told as this product's framework does: 422, with the member's name. */
void aio_explain(struct request *r, const struct cay_error *err)
{
    autobuf struct cay_buf out = CAY_BUF(16384);
    bool body = err->code == CAY_E_INVALID && r->field[0];
    buf_str(&out, "{\"success\":false");
    json_str(&out, "message", err->text);
    buf_str(&out, ",\"data\":null,\"hint\":null");
    json_str(&out, "code", cay_code_name(err->code));
    json_key(&out, "detail");
    if (body) {
        buf_str(&out, "[{\"loc\":[\"body\",");
        buf_json(&out, r->field);
        buf_str(&out, "]");
        json_str(&out, "msg", err->text);
        json_str(&out, "type", "value_error");
        buf_str(&out, "}]}\n");
    } else {
        buf_json(&out, err->text);
        buf_str(&out, "}\n");
    }
    reply_json(r, body ? 422u : (unsigned)cay_code_http(err->code), &out);
}

/* What a client can tell apart, from the cause or else from our code. */
static const struct {
    int number;
    enum cay_code code;
    const char *name, *type;
} causes[] = {
    {ENOENT, CAY_E_NOT_FOUND, "ENOENT", "not_found"},
    {EACCES, CAY_E_DENIED, "EACCES", "permission_denied"},
    {EPERM, CAY_E_DENIED, "EPERM", "permission_denied"},
    {ENOTDIR, CAY_E_INVALID, "ENOTDIR", "not_directory"},
    {EISDIR, CAY_E_INVALID, "EISDIR", "is_directory"},
    {EROFS, CAY_E_DENIED, "EROFS", "read_only"},
    {ELOOP, CAY_E_INVALID, "ELOOP", "invalid_path"},
    {ENAMETOOLONG, CAY_E_INVALID, "ENAMETOOLONG", "invalid_path"},
    {EFBIG, CAY_E_TOO_LARGE, "EFBIG", "too_large"},
    {ENOSPC, CAY_E_NO_SPACE, "ENOSPC", "no_space"},
    {EDQUOT, CAY_E_NO_SPACE, "EDQUOT", "no_space"},
    {EIO, CAY_E_INTERNAL, "EIO", "io_error"},
};

static bool by_file(const struct cay_error *err)
{
    switch (err->code) {
    case CAY_E_INVALID:
    case CAY_E_DENIED:
    case CAY_E_NOT_FOUND:
    case CAY_E_TOO_LARGE:
    case CAY_E_NO_SPACE:
    case CAY_E_UNSUPPORTED:
        return true;
    default:
        return err->sys_errno == EIO;
    }
}

void aio_file_error(struct request *r, const char *operation, const char *path,
                    const struct cay_error *err)
{
    autobuf struct cay_buf out = CAY_BUF(6 * CAY_MAX_PATH * 2 + 16384);
    const char *type = NULL, *name = NULL;
    if (!by_file(err)) {
        reply_error(r, err);
        return;
    }
    for (size_t i = 0; i < CAY_COUNT(causes) && !name; i++) {
        if (!type && causes[i].code == err->code && !err->sys_errno)
            type = err->code == CAY_E_INVALID ? "invalid" : causes[i].type;
        if (causes[i].number == err->sys_errno) {
            type = causes[i].type;
            name = causes[i].name;
        }
    }
    buf_str(&out, "{\"success\":false");
    json_str(&out, "message", err->text);
    buf_str(&out, ",\"data\":{");
    json_str(&out, "path", path);
    /* Clients that search file by file go on with the next. */
    if (strcmp(operation, "search") == 0)
        json_str(&out, "file", path);
    json_str(&out, "operation", operation);
    json_str(&out, "error_type",
             type                             ? type
             : err->code == CAY_E_UNSUPPORTED ? "unsupported"
                                              : "other");
    json_bool(&out, "retryable", false);
    json_key(&out, "errno");
    if (err->sys_errno)
        buf_fmt(&out, "%d", err->sys_errno);
    else
        buf_str(&out, "null");
    json_str(&out, "errno_name", name);
    /* Last: a client whose model this does not fit shows the two ends of it. */
    json_str(&out, "message", err->text);
    aio_reply(r, &out);
}

/* ---- sessions -------------------------------------------------------------------------------- */

bool aio_session_ok(const char *id)
{
    static const char alnum[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t n = strlen(id);
    return n > 0 && n < AIO_SESSION && strchr(alnum, id[0]) &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

const char *aio_session_path(struct request *r, const char *family, const char *id)
{
    char path[256];
    snprintf(path, sizeof(path), AIO_SESSIONS "/%s/%s", family, id);
    return opt_strndup(&r->arena, path, strlen(path));
}

void aio_no_session(struct request *r)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_NOT_FOUND, "Session not found");
    reply_error(r, &err);
}
