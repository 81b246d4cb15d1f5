/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes in and out. A download holds one piece that the client has not taken yet; an upload hands
 * on each piece as it comes, when the worker has taken the one before. An upload that does not come
 * to its end, for whatever reason, leaves the file as it was: the worker replaces it only after the
 * END, which is sent only after the whole body has come.
 */
#include "daemon/api_files.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fs_args.h"
#include "daemon/journal.h"
#include "wire/range.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define BYTES "application/octet-stream"

/* Makes the handler's object, with a struct channel first, or answers. */
static void *new_op(struct request *r, size_t size, void (*drop)(struct request *r))
{
    struct cay_error err;
    r->op = calloc(1, size);
    if (!r->op) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    r->drop = drop;
    return r->op;
}

static void drop_download(struct request *r)
{
    channel_done(r->op);
    free(r->op);
}

/* ---- GET and HEAD .../files ------------------------------------------------------------------ */

enum get_stage {
    GET_LOOKING, /* FS_STAT: what is it, and how large? */
    GET_READING, /* FS_READ: nothing has been answered */
    GET_SENDING, /* the answer has begun */
};

struct get {
    struct channel ch;
    enum get_stage stage;
    const char *path;
    uint64_t mode, size;
    int64_t mtime_ns;
    uint64_t first, left; /* what is asked for; `left` counts down as it comes */
    bool part;
    bool endless; /* no size is known: until the end */
};

static void get_headers(struct get *get)
{
    struct request *r = get->ch.r;
    char text[80];
    snprintf(text, sizeof(text), "%03o", (unsigned)get->mode & 07777);
    reply_header(r, "X-Cay-Mode", text);
    snprintf(text, sizeof(text), "%lld", (long long)get->mtime_ns);
    reply_header(r, "X-Cay-Mtime-Ns", text);
    reply_header(r, "X-Cay-Type", "file");
    reply_header(r, "Accept-Ranges", "bytes");
    if (!get->part)
        return;
    snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)get->first,
             (unsigned long long)(get->first + get->left - 1), (unsigned long long)get->size);
    reply_header(r, "Content-Range", text);
}

/* Begins the answer with what has come so far. */
static void get_begin(struct get *get)
{
    struct cay_buf *out = &get->ch.out;
    /* More than the file had a moment ago: another has taken its place, or it grows. */
    if (!get->part && out->size > get->left)
        get->endless = true;
    get->stage = GET_SENDING;
    channel_stream(&get->ch, get->part ? 206 : 200, BYTES,
                   get->endless ? MHD_SIZE_UNKNOWN : get->left);
    get_headers(get);
    if (get->endless)
        return;
    out->size = (size_t)CAY_MIN(out->size, get->left);
    get->left -= out->size;
}

static void get_refuse_range(struct get *get)
{
    struct request *r = get->ch.r;
    struct cay_error err;
    autobuf struct cay_buf body = CAY_BUF(8192);
    char text[40];
    cay_fail(&err, CAY_E_INVALID, "nothing of that range exists: the file has %llu bytes",
             (unsigned long long)get->size);
    buf_str(&body, "{\"error\":");
    error_json(&body, r, &err);
    buf_str(&body, "}\n");
    reply_json(r, MHD_HTTP_RANGE_NOT_SATISFIABLE, &body);
    snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)get->size);
    reply_header(r, "Content-Range", text);
}

/* It is known what the path is: asks for the bytes, or answers without. */
static void get_looked(struct get *get)
{
    struct request *r = get->ch.r;
    struct cay_error err;
    uint64_t last = 0;
    bool head = strcmp(r->method, "HEAD") == 0;
    if (!S_ISREG((mode_t)get->mode)) {
        cay_fail(&err, CAY_E_INVALID, "cannot read '%s': it is %s", get->path,
                 S_ISDIR((mode_t)get->mode) ? "a directory" : "no regular file");
        channel_close(&get->ch);
        reply_error(r, &err);
        return;
    }
    get->left = get->size;
    /* Files that the kernel makes up say 0 and have something to read all the same. */
    get->endless = get->size == 0;
    if (head && !get->endless) {
        channel_close(&get->ch);
        get_begin(get);
        return;
    }
    enum range range = get->endless
                           ? RANGE_ALL
                           : range_parse(request_header(r, "Range"), get->size, &get->first, &last);
    if (range == RANGE_NONE) {
        channel_close(&get->ch);
        get_refuse_range(get);
        return;
    }
    get->part = range == RANGE_PART;
    if (get->part)
        get->left = last - get->first + 1;
    get->stage = GET_READING;
    channel_send(&get->ch, &(struct msg){.type = FS_READ,
                                         .path = get->path,
                                         .offset = get->first,
                                         .number = get->part ? get->left : 0,
                                         .flags = MSG_F_FOLLOW});
}

/* The worker has read to the end. */
static void get_read(struct get *get)
{
    struct cay_error err;
    if (get->stage == GET_SENDING) {
        channel_stop(&get->ch, get->left && !get->endless ? STREAM_BROKEN : STREAM_END);
        return;
    }
    /* All of it is here, and its size is what came and not what the file had a moment ago. */
    uint64_t came = get->ch.out.size;
    channel_close(&get->ch);
    get->ch.end = STREAM_END;
    if (get->part && came < get->left) {
        cay_fail(&err, CAY_E_UNAVAILABLE, "'%s' became shorter while it was read", get->path);
        reply_error(get->ch.r, &err);
        return;
    }
    get->endless = false;
    if (!get->part)
        get->left = came;
    get_begin(get);
}

static void get_done(struct channel *ch, const struct cay_error *err)
{
    struct get *get = container_of(ch, struct get, ch);
    if (err && get->stage == GET_SENDING)
        channel_stop(ch, STREAM_BROKEN);
    else if (err)
        reply_error(ch->r, err);
    else if (get->stage == GET_LOOKING)
        get_looked(get);
    else
        get_read(get);
}

/* Once of the path, and once of the file that was opened: another may have taken its place between
 * the two, and then its size is what counts. */
static void get_entry(struct get *get, const struct msg *msg)
{
    get->mode = msg->mode;
    get->size = msg->size;
    get->mtime_ns = (int64_t)msg->mtime_ns;
    if (get->stage != GET_READING || get->part)
        return;
    get->left = get->size;
    get->endless = get->size == 0;
}

static void get_take(struct channel *ch, const struct msg *msg)
{
    struct get *get = container_of(ch, struct get, ch);
    if (msg->type == FS_ENTRY && get->stage != GET_SENDING)
        get_entry(get, msg);
    if (msg->type != FS_DATA || get->stage == GET_LOOKING)
        return;
    size_t n = msg->data.size;
    if (get->stage == GET_SENDING && !get->endless) {
        /* A file that has grown meanwhile: its first bytes are what was promised. */
        n = (size_t)CAY_MIN(n, get->left);
        get->left -= n;
    }
    buf_add(&ch->out, msg->data.data, n);
    if (get->stage == GET_READING) {
        /* A small file is answered when all of it is here. */
        if (ch->out.size < CAY_MAX_DATA && !buf_failed(&ch->out))
            return;
        get_begin(get);
    }
    if (get->left == 0 && !get->endless && !buf_failed(&ch->out))
        channel_stop(ch, STREAM_END);
    else
        channel_flow(ch);
}

static const struct channel_ops get_ops = {get_take, get_done, NULL};

void files_get(struct request *r)
{
    struct cay_error err;
    struct fs_args args;
    if (fs_args(r, ARG_PATH | ARG_USER, &args, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct get *get = new_op(r, sizeof(*get), drop_download);
    if (!get)
        return;
    get->path = args.path;
    channel_open(&get->ch, r, args.user,
                 &(struct msg){.type = FS_STAT, .path = args.path, .flags = MSG_F_FOLLOW},
                 &get_ops);
}

/* ---- GET .../archive ------------------------------------------------------------------------- */

static void tar_begin(struct channel *ch)
{
    if (!ch->r->streaming)
        channel_stream(ch, 200, "application/x-tar", MHD_SIZE_UNKNOWN);
}

static void tar_take(struct channel *ch, const struct msg *msg)
{
    if (msg->type != FS_DATA)
        return;
    buf_add(&ch->out, msg->data.data, msg->data.size);
    tar_begin(ch);
    channel_flow(ch);
}

static void tar_done(struct channel *ch, const struct cay_error *err)
{
    if (err && !ch->r->streaming) {
        reply_error(ch->r, err);
        return;
    }
    tar_begin(ch);
    channel_stop(ch, err ? STREAM_BROKEN : STREAM_END);
}

static const struct channel_ops tar_ops = {tar_take, tar_done, NULL};

void archive_get(struct request *r)
{
    struct cay_error err;
    struct fs_args args;
    if (fs_args(r, ARG_PATH | ARG_USER, &args, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct channel *ch = new_op(r, sizeof(*ch), drop_download);
    if (ch)
        channel_open(ch, r, args.user, &(struct msg){.type = FS_TAR_OUT, .path = args.path},
                     &tar_ops);
}

/* ---- PUT ------------------------------------------------------------------------------------- */

struct put {
    struct channel ch;
    enum audit_action action;
    const char *path, *user;
    uint64_t bytes;
    uint64_t mode;  /* that it is to get */
    bool looking;   /* FS_STAT: may that be written at all? */
    uint64_t there; /* the mode of what is there */
    bool whole;     /* the body has come to its end */
    bool ended;     /* and END was sent */
    bool answered;  /* and noted */
};

static void put_note(struct put *put, const struct cay_error *err)
{
    const struct audit_detail detail = {.path = put->path, .user = put->user, .bytes = &put->bytes};
    put->answered = true;
    journal_note(put->ch.r, put->action, &detail, err);
}

static void drop_put(struct request *r)
{
    struct put *put = r->op;
    struct cay_error err;
    if (!put->answered) {
        cay_fail(&err, CAY_E_INVALID, "the client went away before the end");
        put_note(put, &err);
    }
    channel_done(&put->ch);
    free(put);
}

static void put_end(struct put *put)
{
    if (put->whole && !put->ended)
        put->ended = channel_send(&put->ch, &(struct msg){.type = FS_END});
}

static ssize_t put_write(struct request *r, const char *data, size_t size)
{
    struct put *put = r->op;
    size_t n = CAY_MIN(size, (size_t)CAY_MAX_DATA);
    if (!channel_send(&put->ch, &(struct msg){.type = FS_DATA, .data = {data, n}}))
        return 0;
    put->bytes += n;
    return (ssize_t)n;
}

static void put_finish(struct request *r)
{
    struct put *put = r->op;
    put->whole = true;
    put_end(put);
}

static void put_room(struct channel *ch)
{
    struct put *put = container_of(ch, struct put, ch);
    if (put->looking)
        return;
    put_end(put);
    request_wake(ch->r);
}

static void put_fail(struct put *put, const struct cay_error *err)
{
    put_note(put, err);
    reply_error(put->ch.r, err);
}

static const struct channel_ops put_ops;

/* A client waits to be told whether to send: what is there is known, or that nothing is. */
static void put_looked(struct put *put, const struct cay_error *err)
{
    struct request *r = put->ch.r;
    const struct msg write = {.type = FS_WRITE, .path = put->path, .mode = put->mode};
    struct cay_error own;
    put->looking = false;
    if (err && err->code == CAY_E_NOT_FOUND) {
        channel_open(&put->ch, r, put->user, &write, &put_ops);
        return;
    }
    if (err) {
        put_fail(put, err);
        return;
    }
    if (S_ISREG((mode_t)put->there) && channel_send(&put->ch, &write)) {
        request_wake(r);
        return;
    }
    channel_close(&put->ch);
    cay_fail(&own, CAY_E_INVALID, "cannot write '%s': it is %s", put->path,
             S_ISDIR((mode_t)put->there) ? "a directory" : "no regular file");
    put_fail(put, &own);
}

static void put_take(struct channel *ch, const struct msg *msg)
{
    if (msg->type == FS_ENTRY)
        container_of(ch, struct put, ch)->there = msg->mode;
}

/* An answer before the end of the body is an error: the rest of the body is not asked for. */
static void put_done(struct channel *ch, const struct cay_error *err)
{
    struct put *put = container_of(ch, struct put, ch);
    struct cay_error early;
    if (put->looking) {
        put_looked(put, err);
        return;
    }
    channel_close(ch);
    if (!err && !put->ended) {
        cay_fail(&early, CAY_E_INTERNAL, "the file worker answered before it had everything");
        err = &early;
    }
    if (err) {
        put_fail(put, err);
        return;
    }
    put_note(put, NULL);
    reply_empty(ch->r, MHD_HTTP_NO_CONTENT);
}

static const struct channel_ops put_ops = {put_take, put_done, put_room};

static void start_put(struct request *r, unsigned which, uint16_t type, enum audit_action action)
{
    struct cay_error err;
    struct fs_args args;
    if (fs_args(r, which, &args, &err) < 0) {
        reply_error(r, &err);
        return;
    }
    struct put *put = new_op(r, sizeof(*put), drop_put);
    if (!put)
        return;
    put->action = action;
    put->path = args.path;
    put->user = args.user;
    put->mode = args.mode;
    r->write = put_write;
    r->finish = put_finish;
    /* An archive's client is told when the sandbox answers; a file's, when the file may be one. */
    put->looking = request_ask(r) && type == FS_WRITE;
    const struct msg look = {.type = FS_STAT, .path = args.path, .flags = MSG_F_FOLLOW};
    const struct msg work = {.type = type, .path = args.path, .mode = args.mode};
    channel_open(&put->ch, r, args.user, put->looking ? &look : &work, &put_ops);
}

void files_put(struct request *r)
{
    start_put(r, ARG_PATH | ARG_USER | ARG_MODE, FS_WRITE, AUDIT_WRITE);
}

void archive_put(struct request *r)
{
    start_put(r, ARG_PATH | ARG_USER, FS_TAR_IN, AUDIT_ARCHIVE);
}
