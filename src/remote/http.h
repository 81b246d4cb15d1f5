/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the daemon. A `struct ask` is built, done once, and freed; its answer is a 2xx or an
 * error as libcay would have given it, since the daemon's errors carry the same code, text and
 * errno.
 *
 *   - Connections are kept by `struct http` and used again; any number of threads may ask at once.
 *   - Bodies go up and down piece by piece. What is collected has a maximum.
 *   - An answer is whole, headers and body, or it is an error.
 *   - stream.c runs requests of its own in a multi handle, and shares http_prepare, http_whole and
 *     the errors.
 */
#ifndef CAY_REMOTE_HTTP_H
#define CAY_REMOTE_HTTP_H

#include "base/buf.h"
#include "remote/host.h"

#include <curl/curl.h>
#include <jansson.h>

/* An answer that is taken as a whole: a spec with all its environment is the largest. */
#define HTTP_MAX_ANSWER (8u << 20)
/* The body of an error. */
#define HTTP_MAX_ERROR (64u << 10)
/* A request without its body: two paths, all of them escaped. */
#define HTTP_MAX_PATH (32u << 10)
/* Seconds for requests that have no reason to take long. */
#define HTTP_SOON 60

struct http;

/* `token` may be NULL; `ca` too: the system's certificates. */
int http_new(const struct host *host, const char *token, const char *ca, struct http **out,
             struct cay_error *err);
void http_free(struct http *http);

struct ask {
    const char *method;
    struct cay_buf path; /* below /api/v1/, with its query */
    bool query;          /* it has one */
    json_t *body;        /* sent as JSON; owned */
    const void *bytes;   /* sent as they are, instead; borrowed */
    size_t size;
    const char *accept;
    char range[48];  /* "5-", "0-99" or "" */
    long seconds;    /* it may take; 0: any time */
    bool repeatable; /* done twice it is done once, as every GET */
    /* Or sent as it comes. */
    cay_source source;
    void *source_data;
    /* Takes the body of a 2xx; NULL: it is collected in the answer. Non-zero ends the request,
     * which is then a success. */
    cay_sink sink;
    void *sink_data;
};

struct answer {
    long status; /* 0: there was none */
    bool stopped;
    struct cay_buf body;
};

/* "sandboxes/%/stats": each '%' is replaced by one of the strings that follow, escaped. */
void ask_init(struct ask *ask, const char *method, const char *path, ...);
void ask_done(struct ask *ask);
#define autoask __attribute__((cleanup(ask_done)))
/* Adds to the query; a NULL value adds nothing. */
void ask_query(struct ask *ask, const char *name, const char *value);
void ask_query_num(struct ask *ask, const char *name, uint64_t value);
void ask_query_bool(struct ask *ask, const char *name, bool value);

void answer_done(struct answer *answer);
#define autoanswer __attribute__((cleanup(answer_done)))

/* 0: a 2xx. -1: an error of the daemon, or no connection to it; answer->status tells them apart. */
int http_do(struct http *http, const struct ask *ask, struct answer *out, struct cay_error *err);
/* The same where the answer has no content. */
int http_order(struct http *http, const struct ask *ask, struct cay_error *err);
/* The same, and the answer is one JSON object: owned, json_decref. */
int http_object(struct http *http, const struct ask *ask, json_t **out, struct cay_error *err);
/*
 * The answer is a list in an object, or lines (`at` of split.h): `each` gets object by object. The
 * rest of a list comes as `rest` (owned; NULL: not wanted), unless `each` ended it.
 */
int http_each(struct http *http, const struct ask *ask, unsigned at,
              int (*each)(json_t *object, void *data), void *data, json_t **rest,
              struct cay_error *err);
/* The same with the text of each object, which may still be no JSON. */
int http_each_text(struct http *http, const struct ask *ask, unsigned at,
                   int (*each)(const char *json, size_t size, void *data), void *data,
                   json_t **rest, struct cay_error *err);

/* ---- for stream.c ---------------------------------------------------------------------------- */

/* A request ready to be run: `easy` and the memory that it needs while it runs. */
struct http_run {
    CURL *easy;
    const struct http *http;
    struct curl_slist *headers;
    char *body;
    bool headed; /* all headers of its answer came */
    bool framed; /* and tell where its body ends */
    char why[CURL_ERROR_SIZE];
};

CURL *http_handle(struct http *http);
int http_prepare(struct http *http, CURL *easy, const struct ask *ask, struct http_run *run,
                 struct cay_error *err);
void http_run_done(struct http_run *run);
/* What curl said of it, or that the answer which it took for whole is not: PARTIAL_FILE. */
CURLcode http_whole(struct http_run *run, CURLcode code);
/* Fills err from what curl said. */
int http_lost(const struct http_run *run, CURLcode code, struct cay_error *err);
/* Whether the daemon refused, and not the connection failed. */
bool http_is_refusal(long status, CURLcode code, const struct cay_buf *body);
/* The daemon waited for the keeper in vain. A silent command has no part in this: its keeper
 * answers for it. */
bool http_is_hung(const struct cay_error *err);
/* Fills err from the body of an answer that is no 2xx. */
int http_refused(long status, const char *body, size_t size, struct cay_error *err);

#endif
