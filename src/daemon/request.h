/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP request, as the handlers see it.
 *
 * A handler is called once, when the request has been let in and (BODY_JSON) its body is whole. It
 * answers with one of the reply_ functions, at once or later from a callback; until then the
 * connection sleeps. What it needs meanwhile is its `op`, freed by `drop` when the request is over
 * for whatever reason: answered, or its client gone.
 *
 * Streams out: after reply_stream, `read` is asked for bytes whenever the client has room. Streams
 * in (BODY_STREAM): the handler is called when the headers are there; `write` then gets the body
 * piece by piece, and `finish` is called at its end. Each may say "not now" (0) and call
 * request_wake later: so the client waits for the sandbox and the sandbox never for the client, and
 * nothing is held here but one piece.
 */
#ifndef CAY_DAEMON_REQUEST_H
#define CAY_DAEMON_REQUEST_H

#include "base/buf.h"
#include "base/opt.h"
#include "daemon/daemon.h"
#include "daemon/token.h"

#include <microhttpd.h>

struct request;
struct connection;
struct tenant;

enum body_kind {
    BODY_NONE,
    BODY_JSON,   /* an object; none at all is an empty one */
    BODY_STREAM, /* bytes, handed on as they come */
};

enum route_flag {
    ROUTE_OPEN = 1 << 0,    /* needs no token */
    ROUTE_UNBOUND = 1 << 1, /* does not count as a request in flight: health, metrics */
    ROUTE_LARGE = 1 << 2,   /* BODY_JSON: the content of a file may be in it */
    ROUTE_REMOVES = 1 << 3, /* makes room: done also when the disk is full */
};

struct route {
    const char *method, *path; /* "/api/v1/sandboxes/{id}": parameters in braces */
    uint32_t scope;            /* bits of enum scope, all of them needed; 0: any token */
    enum body_kind body;
    void (*handle)(struct request *r);
    uint32_t flags;
};

/* A JSON body: a spec with its environment and labels, a command with its input; and with
 * ROUTE_LARGE. */
#define REQUEST_MAX_JSON (1u << 20)
#define REQUEST_MAX_LARGE (32u << 20)

/* What `read` may answer besides a number of bytes. */
#define STREAM_WAIT 0
#define STREAM_END (-1)
#define STREAM_BROKEN (-2) /* cut the connection: the client must notice */

enum request_stage {
    REQUEST_NEW,     /* its headers are there */
    REQUEST_READING, /* let in; its body comes */
    REQUEST_WORKING, /* the handler has all of it */
};

struct request {
    struct daemon *d;
    struct connection *c;
    struct MHD_Connection *mhd;
    enum request_stage stage;
    const struct route *route;
    size_t route_index;
    char method[12];
    bool old;       /* HTTP/1.0: it cannot tell the end of a stream from one that broke off */
    char path[512]; /* decoded where that is harmless */
    struct identity who;
    bool is_operator;       /* sees every tenant's */
    struct tenant *tenant;  /* counts this request; NULL: it does not count */
    bool large;             /* its body is one of the few large ones */
    char id[CAY_MAX_ID];    /* {id}: as the engine knows it, with its tenant */
    pid_t pid;              /* {pid} */
    struct cay_buf body;    /* BODY_JSON */
    struct opt_arena arena; /* what input_json and input_query allocate */
    uint64_t began_us;
    uint64_t body_size; /* bytes of the body so far */
    uint64_t swallowed; /* bytes of a body that nobody wants any more */

    /* the handler's */
    void *op;
    void (*drop)(struct request *r);
    ssize_t (*read)(struct request *r, char *buffer, size_t size);
    ssize_t (*write)(struct request *r, const char *data, size_t size); /* taken; 0: not now */
    void (*finish)(struct request *r);
    /* The daemon ends: the stream says why and comes to its end. NULL: it is cut. */
    void (*end)(struct request *r, const struct cay_error *why);
    /* How an error is told, where that is not our own way (fronts/). */
    void (*explain)(struct request *r, const struct cay_error *err);
    char rule[96];               /* the operator's rule that refused it */
    char field[64];              /* the field at fault */
    const struct cay_exit *exit; /* of the command whose result is the error */

    /* the answer */
    struct MHD_Response *response;
    unsigned status;
    const char *text; /* its body, if it is whole: the response's */
    size_t text_size;
    uint64_t answered_us; /* when it was there */
    bool early;           /* it was sent while the body still came: see early.h */
    bool asking;    /* the handler looks at the target before the client is told to send (Expect) */
    size_t piece;   /* of a stream, asked for at once; 0: the default */
    bool streaming; /* the answer is given by `read` */
    bool suspended;
    bool last;          /* the connection ends with its answer */
    bool gone;          /* the client went away */
    struct watch watch; /* on the client's socket while suspended: libmicrohttpd does not look */
};

/* ---- answers, each once ---------------------------------------------------------------------- */

/* Takes over the buffer's bytes. A buffer that failed becomes an error. */
void reply_json(struct request *r, unsigned status, struct cay_buf *body);
void reply_text(struct request *r, unsigned status, const char *type, struct cay_buf *body);
void reply_empty(struct request *r, unsigned status);
void reply_error(struct request *r, const struct cay_error *err);
/* `size` UINT64_MAX: unknown (chunked). r->read gives the bytes. Becomes an error where
 * request_streams says so. */
void reply_stream(struct request *r, unsigned status, const char *type, uint64_t size);
/* The socket goes to `upgraded` after 101 with these headers. */
void reply_upgrade(struct request *r, const char *protocol, const char *accept,
                   MHD_UpgradeHandler upgraded);
/* A header for the answer; after reply_ and before the handler returns or wakes. */
void reply_header(struct request *r, const char *name, const char *value);

/* `read` or `write` said "not now": ask again. */
void request_wake(struct request *r);

/*
 * -1: its client cannot be given a stream of unknown size and of this type. For handlers that
 * change something before they answer with one; the others leave it to reply_stream.
 */
int request_streams(const struct request *r, const char *type, struct cay_error *err);
/* A request header, or NULL. Borrowed. */
const char *request_header(struct request *r, const char *name);
/* True if the client would rather have this type than the default one. */
bool request_accepts(struct request *r, const char *type);
/* True: the client waits to be told before it sends the body. It is told after the next
 * request_wake, or answered without. For handlers of BODY_STREAM. */
bool request_ask(struct request *r);

/* {"error":{...}} */
void error_json(struct cay_buf *out, const struct request *r, const struct cay_error *err);

/* The id as this client knows it: without its own tenant. Borrowed from `id`. */
const char *request_shown_id(const struct request *r, const char *id);
/* The engine's id of a name that this client gives. */
int request_full_id(const struct request *r, const char *name, char out[CAY_MAX_ID],
                    struct cay_error *err);

/* ---- for server.c ---------------------------------------------------------------------------- */

/* Nobody waits for it any more: what it holds is given back, and its connection wakes up. */
void request_abandon(struct request *r);
bool request_crawls(const struct request *r);
/* Time has passed. False: its connection is to be cut. */
bool request_tick(struct request *r);
enum MHD_Result request_access(void *cls, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *size, void **state);
/* A request whose headers turned out to be too large is never told to be over: its connection is,
 * or has begun another. */
void request_forgotten(struct connection *c);
void *request_begin(void *cls, const char *uri, struct MHD_Connection *mhd);
void request_over(void *cls, struct MHD_Connection *mhd, void **state,
                  enum MHD_RequestTerminationCode why);

#endif
