/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: no redirect is followed and, without TLS, no proxy is used, so that a token goes to
 * the host that was named and nowhere else; signals stay the caller's (CURLOPT_NOSIGNAL).
 */
#include "remote/http.h"

#include "base/err.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/split.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Seconds until a host counts as not there. */
#define CONNECT_SECONDS 10
/* Handles kept for the next request, each with its open connection. */
#define MAX_IDLE 4
#define HTTP_NO_CONTENT 204

struct http {
    struct host host;
    char *authorization; /* header line, or NULL */
    char *ca;
    pthread_mutex_t lock;
    CURL *idle[MAX_IDLE];
    size_t n_idle;
};

int http_new(const struct host *host, const char *token, const char *ca, struct http **out,
             struct cay_error *err)
{
    struct http *http = calloc(1, sizeof(*http));
    if (!http || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(http);
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    http->host = *host;
    pthread_mutex_init(&http->lock, NULL);
    http->ca = ca ? strdup(ca) : NULL;
    if (token && asprintf(&http->authorization, "Authorization: Bearer %s", token) < 0)
        http->authorization = NULL;
    if ((ca && !http->ca) || (token && !http->authorization)) {
        http_free(http);
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    *out = http;
    return 0;
}

void http_free(struct http *http)
{
    if (!http)
        return;
    for (size_t i = 0; i < http->n_idle; i++)
        curl_easy_cleanup(http->idle[i]);
    pthread_mutex_destroy(&http->lock);
    free(http->authorization);
    free(http->ca);
    free(http);
    curl_global_cleanup();
}

CURL *http_handle(struct http *http)
{
    CURL *easy = NULL;
    pthread_mutex_lock(&http->lock);
    if (http->n_idle)
        easy = http->idle[--http->n_idle];
    pthread_mutex_unlock(&http->lock);
    return easy ? easy : curl_easy_init();
}

static void give_back(struct http *http, CURL *easy)
{
    curl_easy_reset(easy); /* keeps its connection */
    pthread_mutex_lock(&http->lock);
    bool kept = http->n_idle < MAX_IDLE;
    if (kept)
        http->idle[http->n_idle++] = easy;
    pthread_mutex_unlock(&http->lock);
    if (!kept)
        curl_easy_cleanup(easy);
}

/* ---- building a request ---------------------------------------------------------------------- */

static void escape(struct cay_buf *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        strchr(plain, *c) ? buf_add(out, c, 1) : buf_fmt(out, "%%%02X", *c);
}

void ask_init(struct ask *ask, const char *method, const char *path, ...)
{
    va_list ap;
    *ask = (struct ask){.method = method, .path = CAY_BUF(HTTP_MAX_PATH), .seconds = HTTP_SOON};
    va_start(ap, path);
    for (; *path; path++)
        *path == '%' ? escape(&ask->path, va_arg(ap, const char *))
                     : (void)buf_add(&ask->path, path, 1);
    va_end(ap);
}

void ask_done(struct ask *ask)
{
    buf_done(&ask->path);
    json_decref(ask->body);
    ask->body = NULL;
}

void ask_query(struct ask *ask, const char *name, const char *value)
{
    if (!value)
        return;
    buf_fmt(&ask->path, "%c%s=", ask->query ? '&' : '?', name);
    escape(&ask->path, value);
    ask->query = true;
}

void ask_query_num(struct ask *ask, const char *name, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    ask_query(ask, name, digits);
}

void ask_query_bool(struct ask *ask, const char *name, bool value)
{
    ask_query(ask, name, value ? "true" : "false");
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer)
        *list = longer;
    return longer != NULL;
}

static bool make_headers(const struct http *http, const struct ask *ask, struct curl_slist **out)
{
    char accept[128];
    snprintf(accept, sizeof(accept), "Accept: %s", ask->accept ? ask->accept : "application/json");
    const char *type = ask->source || ask->bytes ? "Content-Type: application/octet-stream"
                       : ask->body               ? "Content-Type: application/json"
                                                 : "Content-Type:";
    /* Asking first whether a body is welcome costs more than sending it in vain now and then. */
    return add_header(out, accept) && add_header(out, type) && add_header(out, "Expect:") &&
           (!http->authorization || add_header(out, http->authorization));
}

static bool is_repeatable(const struct ask *ask)
{
    return ask->repeatable || strcmp(ask->method, "GET") == 0;
}

static void set_connection(const struct http *http, CURL *easy, const struct ask *ask)
{
    const struct host *host = &http->host;
    /* When a connection that is used again dies without an answer, curl sends the request once more
     * by itself, although the first one may have been done. */
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, is_repeatable(ask) ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "cay/" CAY_VERSION);
    if (!host->https)
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (host->socket[0])
        curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, host->socket);
    if (http->ca)
        curl_easy_setopt(easy, CURLOPT_CAINFO, http->ca);
}

static size_t read_source(char *buffer, size_t size, size_t n, void *data)
{
    const struct ask *ask = data;
    ssize_t got = ask->source(buffer, size * n, ask->source_data);
    return got < 0 ? (size_t)CURL_READFUNC_ABORT : (size_t)got;
}

static void set_body(CURL *easy, const struct ask *ask, const struct http_run *run)
{
    if (ask->source) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, read_source);
        curl_easy_setopt(easy, CURLOPT_READDATA, ask);
        curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 128L << 10);
    } else if (ask->bytes) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)ask->size);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, ask->bytes);
    } else if (run->body || strcmp(ask->method, "POST") == 0) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, run->body ? (long)strlen(run->body) : 0L);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, run->body ? run->body : "");
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, ask->method);
    if (ask->range[0])
        curl_easy_setopt(easy, CURLOPT_RANGE, ask->range);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, ask->seconds);
}

/* A name of a header, in whatever letters, and what follows it; NULL: it is another one. */
static const char *header_value(const char *line, size_t size, const char *name)
{
    size_t length = strlen(name);
    return size > length && strncasecmp(line, name, length) == 0 ? line + length : NULL;
}

/*
 * curl takes an answer that ends within its headers, or has no stated length and just ends, for a
 * whole one. Cayd ends each with all of its headers, and a body has its length or is chunked.
 */
static size_t on_header(char *line, size_t unit, size_t n, void *data)
{
    struct http_run *run = data;
    size_t size = unit * n;
    if (header_value(line, size, "HTTP/"))
        run->headed = run->framed = false; /* an answer such as 100 may precede the one */
    else if (size <= 2)
        run->headed = true;
    else if (header_value(line, size, "Content-Length:") ||
             header_value(line, size, "Transfer-Encoding:"))
        run->framed = true;
    return size;
}

int http_prepare(struct http *http, CURL *easy, const struct ask *ask, struct http_run *run,
                 struct cay_error *err)
{
    autobuf struct cay_buf url = CAY_BUF(HTTP_MAX_PATH + sizeof(http->host.url) + 16);
    *run = (struct http_run){.easy = easy, .http = http};
    if (buf_failed(&ask->path))
        return cay_fail(err, CAY_E_INVALID, "the path is too long");
    buf_fmt(&url, "%s/api/v1/", http->host.url);
    buf_add(&url, ask->path.data, ask->path.size);
    const char *text = buf_cstr(&url);
    run->body = ask->body ? json_dumps(ask->body, JSON_COMPACT) : NULL;
    if (!text || (ask->body && !run->body) || !make_headers(http, ask, &run->headers)) {
        http_run_done(run);
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    set_connection(http, easy, ask);
    set_body(easy, ask, run);
    curl_easy_setopt(easy, CURLOPT_URL, text);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, run->headers);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, run->why);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, run);
    return 0;
}

void http_run_done(struct http_run *run)
{
    curl_slist_free_all(run->headers);
    free(run->body);
    run->headers = NULL;
    run->body = NULL;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int no_connection(const struct http_run *run, const char *why, struct cay_error *err)
{
    long eno = 0;
    curl_easy_getinfo(run->easy, CURLINFO_OS_ERRNO, &eno);
    const struct host *host = &run->http->host;
    enum cay_code code = eno == EACCES || eno == EPERM ? CAY_E_DENIED : CAY_E_UNAVAILABLE;
    if (host->socket[0] && eno)
        why = strerror((int)eno);
    return cay_fail(err, code, "cannot reach cayd at %s: %s", host->shown, why);
}

int http_lost(const struct http_run *run, CURLcode code, struct cay_error *err)
{
    const char *why = run->why[0] ? run->why : curl_easy_strerror(code);
    const char *shown = run->http->host.shown;
    switch ((int)code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return no_connection(run, why, err);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CONNECT_ERROR:
        return cay_fail(err, CAY_E_DENIED, "cannot trust cayd at %s: %s", shown, why);
    case CURLE_OPERATION_TIMEDOUT:
        return cay_fail(err, CAY_E_TIMEOUT, "no answer from cayd at %s: %s", shown, why);
    default:
        return cay_fail(err, CAY_E_UNAVAILABLE, "lost the connection to cayd at %s: %s", shown,
                        why);
    }
}

CURLcode http_whole(struct http_run *run, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(run->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK)
        return code;
    const char *why = !run->headed || status < 200 ? "its answer was cut off"
                      : !run->framed && status / 100 == 2 && status != HTTP_NO_CONTENT
                          ? "nothing says where its answer ends"
                          : NULL;
    if (!why)
        return code;
    snprintf(run->why, sizeof(run->why), "%s", why);
    return CURLE_PARTIAL_FILE;
}

bool http_is_refusal(long status, CURLcode code, const struct cay_buf *body)
{
    if (status < 300 || code == CURLE_OK)
        return status >= 300;
    /* A daemon that refuses an upload may hang up before it has read all of it. */
    json_t *answer = json_parse(body->data, body->size);
    bool whole = json_is_object(answer);
    json_decref(answer);
    return whole;
}

bool http_is_hung(const struct cay_error *err)
{
    return err->code == CAY_E_UNAVAILABLE && err->sys_errno == ETIMEDOUT;
}

int http_refused(long status, const char *body, size_t size, struct cay_error *err)
{
    json_t *answer = json_parse(body, size);
    json_t *error = json_object_get(answer, "error");
    if (json_is_object(error))
        json_to_error(error, err);
    else
        cay_fail(err, CAY_E_INTERNAL,
                 "the daemon's answer is not one of cayd: HTTP status %ld; is it another server?",
                 status);
    json_decref(answer);
    return -1;
}

/* ---- doing it -------------------------------------------------------------------------------- */

struct transfer {
    const struct ask *ask;
    CURL *easy;
    struct answer *answer;
    bool too_large;
};

static size_t on_body(char *bytes, size_t size, size_t n, void *data)
{
    struct transfer *t = data;
    size_t total = size * n;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->answer->status);
    bool good = t->answer->status >= 200 && t->answer->status < 300;
    if (good && t->ask->sink) {
        t->answer->stopped = t->ask->sink(bytes, total, t->ask->sink_data) != 0;
        return t->answer->stopped ? 0 : total;
    }
    if (!good && t->answer->body.size + total > HTTP_MAX_ERROR)
        return total; /* the start of it is enough */
    t->too_large = buf_add(&t->answer->body, bytes, total) < 0;
    return t->too_large ? 0 : total;
}

/* The daemon may have done what it did not answer, or not to the end. */
static bool in_doubt(const struct transfer *t, CURLcode code)
{
    long sent = 0;
    bool unanswered = code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR ||
                      code == CURLE_PARTIAL_FILE || code == CURLE_OPERATION_TIMEDOUT;
    curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &sent);
    return unanswered && sent > 0 && t->answer->status < 300 && strcmp(t->ask->method, "GET") != 0;
}

static int verdict(const struct transfer *t, const struct http_run *run, CURLcode code,
                   struct cay_error *err)
{
    const struct answer *answer = t->answer;
    if (answer->stopped)
        return 0;
    if (t->too_large)
        return cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is larger than %u bytes",
                        HTTP_MAX_ANSWER);
    if (code == CURLE_ABORTED_BY_CALLBACK && t->ask->source)
        return cay_fail(err, CAY_E_INVALID, "the upload was given up by its source");
    if (http_is_refusal(answer->status, code, &answer->body))
        return http_refused(answer->status, answer->body.data, answer->body.size, err);
    if (code == CURLE_OK)
        return 0;
    http_lost(run, code, err);
    return in_doubt(t, code)
               ? cay_fail_context(err, "the answer was lost, and it may have been done")
               : -1;
}

int http_do(struct http *http, const struct ask *ask, struct answer *out, struct cay_error *err)
{
    struct http_run run;
    *out = (struct answer){.body = CAY_BUF(HTTP_MAX_ANSWER)};
    CURL *easy = http_handle(http);
    if (!easy)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    struct transfer t = {.ask = ask, .easy = easy, .answer = out};
    int result = http_prepare(http, easy, ask, &run, err);
    if (result == 0) {
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, &t);
        CURLcode code = http_whole(&run, curl_easy_perform(easy));
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &out->status);
        result = verdict(&t, &run, code, err);
        http_run_done(&run);
    }
    give_back(http, easy);
    return result;
}

void answer_done(struct answer *answer)
{
    buf_done(&answer->body);
}

int http_order(struct http *http, const struct ask *ask, struct cay_error *err)
{
    autoanswer struct answer answer;
    return http_do(http, ask, &answer, err);
}

int http_object(struct http *http, const struct ask *ask, json_t **out, struct cay_error *err)
{
    autoanswer struct answer answer;
    if (http_do(http, ask, &answer, err) < 0)
        return -1;
    json_t *object = json_parse(answer.body.data, answer.body.size);
    if (!json_is_object(object)) {
        json_decref(object);
        return cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no JSON object");
    }
    *out = object;
    return 0;
}

/* ---- lists and lines ------------------------------------------------------------------------- */

static int on_bytes(const void *bytes, size_t size, void *data)
{
    return split_feed(data, bytes, size);
}

/* The rest of a list may say that it ended before its time. */
static int check_rest(const struct split *split, json_t **rest, struct cay_error *err)
{
    json_t *outer = json_parse(split->rest.data, split->rest.size);
    json_t *error = json_object_get(outer, "error");
    int result = 0;
    if (!json_is_object(outer))
        result = cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no list");
    else if (json_is_object(error))
        result = json_to_error(error, err);
    if (result == 0 && rest)
        *rest = outer;
    else
        json_decref(outer);
    return result;
}

int http_each_text(struct http *http, const struct ask *ask, unsigned at,
                   int (*each)(const char *json, size_t size, void *data), void *data,
                   json_t **rest, struct cay_error *err)
{
    autoanswer struct answer answer;
    struct split split;
    struct ask own = *ask; /* which still owns all of it */
    split_init(&split, at, each, data);
    own.sink = on_bytes;
    own.sink_data = &split;
    int result = http_do(http, &own, &answer, err);
    if (result == 0 && (split.broken || (!answer.stopped && !split_ended(&split))))
        result = cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no list of JSON objects");
    else if (result == 0 && at != SPLIT_LINES && !answer.stopped)
        result = check_rest(&split, rest, err);
    split_done(&split);
    return result;
}

struct elements {
    int (*each)(json_t *object, void *data);
    void *data;
    bool broken;
};

static int on_element(const char *json, size_t size, void *data)
{
    struct elements *e = data;
    json_t *object = json_parse(json, size);
    e->broken = !json_is_object(object);
    int stop = e->broken || e->each(object, e->data) != 0;
    json_decref(object);
    return stop;
}

int http_each(struct http *http, const struct ask *ask, unsigned at,
              int (*each)(json_t *object, void *data), void *data, json_t **rest,
              struct cay_error *err)
{
    struct elements e = {.each = each, .data = data};
    int result = http_each_text(http, ask, at, on_element, &e, rest, err);
    if (result == 0 && e.broken)
        return cay_fail(err, CAY_E_INTERNAL, "the daemon's answer is no list of JSON objects");
    return result;
}
