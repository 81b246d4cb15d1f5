/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file/write and file/replace. Clients of this protocol do not look at "success": what fails here
 * has an HTTP status that says so.
 *
 * The content is a string of the body, as it is or in base64, and the body may be large: a worker
 * thread takes it apart, and the loop only hands on what comes of that. The file is replaced whole
 * or not at all, as all writes are; so appending and replacing read it first.
 */
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/errand.h"
#include "daemon/fronts/aio.h"
#include "daemon/journal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* What is there already, of a file that is appended to or changed. */
#define MAX_OLD (32u << 20)

struct args {
    const char *file, *encoding, *from, *to; /* `from` is replaced by `to`; NULL: it is a write */
    bool append, leading, trailing;
};

struct writing {
    struct channel ch;
    struct args args;
    struct cay_buf old, content; /* what is there, and what is written */
    size_t given;                /* of it, to the worker */
    uint64_t replaced;
    bool reading, begun, ended, noted;
};

/* ---- the answer ------------------------------------------------------------------------------ */

static void note(struct writing *w, const struct cay_error *err)
{
    const uint64_t bytes = w->given;
    const struct audit_detail detail = {.path = w->args.file, .bytes = &bytes};
    w->noted = true;
    journal_note(w->ch.r, AUDIT_WRITE, &detail, err);
}

static void drop(struct request *r)
{
    struct writing *w = r->op;
    struct cay_error err;
    if (!w->noted && w->begun) {
        cay_fail(&err, CAY_E_UNAVAILABLE, "the client went away before the answer");
        note(w, &err);
    }
    channel_done(&w->ch);
    buf_done(&w->old);
    buf_done(&w->content);
    free(w);
}

static void fail(struct writing *w, const struct cay_error *err)
{
    struct cay_error copy = *err;
    channel_close(&w->ch);
    note(w, &copy);
    reply_error(w->ch.r, &copy);
}

static void answer(struct writing *w)
{
    autobuf struct cay_buf out = CAY_BUF(8 * CAY_MAX_PATH);
    channel_close(&w->ch);
    aio_begin(&out, "The file was written");
    json_str(&out, "file", w->args.file);
    if (w->args.from)
        json_num(&out, "replaced_count", w->replaced);
    else
        json_num(&out, "bytes_written", w->given);
    aio_reply(w->ch.r, &out);
}

/* ---- to the worker --------------------------------------------------------------------------- */

static void send_content(struct writing *w)
{
    struct channel *ch = &w->ch;
    while (!w->ended) {
        size_t part = CAY_MIN(w->content.size - w->given, (size_t)CAY_MAX_DATA);
        struct msg msg = {.type = part ? FS_DATA : FS_END};
        if (part)
            msg.data = (struct wire_bytes){w->content.data + w->given, part};
        if (!channel_send(ch, &msg))
            return; /* there will be room */
        w->given += part;
        w->ended = part == 0;
    }
}

static const struct channel_ops write_ops;

static void begin_write(struct writing *w)
{
    const struct msg first = {.type = FS_WRITE, .path = w->args.file};
    w->begun = true;
    if (w->ch.open && channel_send(&w->ch, &first))
        send_content(w);
    else
        channel_open(&w->ch, w->ch.r, NULL, &first, &write_ops);
}

/* ---- changing what is there ------------------------------------------------------------------ */

/* `content` becomes what is there with every `from` replaced. */
static void replace_all(struct writing *w)
{
    const struct cay_buf *old = &w->old;
    const char *at = old->data ? old->data : "", *end = at + old->size, *hit;
    size_t from = strlen(w->args.from);
    while ((hit = memmem(at, (size_t)(end - at), w->args.from, from))) {
        buf_add(&w->content, at, (size_t)(hit - at));
        buf_str(&w->content, w->args.to);
        w->replaced++;
        at = hit + from;
    }
    buf_add(&w->content, at, (size_t)(end - at));
}

static void change(struct writing *w)
{
    struct cay_error err;
    w->reading = false;
    if (w->args.from)
        replace_all(w);
    else if (w->old.size) {
        buf_add(&w->old, w->content.data ? w->content.data : "", w->content.size);
        buf_done(&w->content);
        w->content = w->old;
        w->old = (struct cay_buf){0};
    }
    if (buf_failed(&w->content) || buf_failed(&w->old)) {
        cay_fail(&err, CAY_E_TOO_LARGE, "'%s' is or would be larger than %u bytes", w->args.file,
                 MAX_OLD);
        fail(w, &err);
    } else if (w->args.from && !w->replaced) {
        answer(w);
    } else {
        begin_write(w);
    }
}

static void take(struct channel *ch, const struct msg *msg)
{
    struct writing *w = container_of(ch, struct writing, ch);
    struct cay_error err;
    if (msg->type != FS_DATA || !w->reading ||
        buf_add(&w->old, msg->data.data, msg->data.size) == 0)
        return;
    cay_fail(&err, CAY_E_TOO_LARGE, "'%s' is larger than %u bytes", w->args.file, MAX_OLD);
    fail(w, &err);
}

static void done(struct channel *ch, const struct cay_error *err)
{
    struct writing *w = container_of(ch, struct writing, ch);
    struct cay_error early;
    if (w->reading && (!err || (err->code == CAY_E_NOT_FOUND && !w->args.from))) {
        change(w);
        return;
    }
    if (!err && !w->ended) {
        cay_fail(&early, CAY_E_INTERNAL, "the file worker answered before it had everything");
        err = &early;
    }
    if (err) {
        fail(w, err);
        return;
    }
    note(w, NULL);
    answer(w);
}

static void room(struct channel *ch)
{
    struct writing *w = container_of(ch, struct writing, ch);
    if (w->begun)
        send_content(w);
}

static const struct channel_ops write_ops = {take, done, room};

/* Takes the content over. */
static void start(struct request *r, const struct args *args, struct cay_buf *content)
{
    struct writing *w = calloc(1, sizeof(*w));
    struct cay_error err;
    if (!w) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return;
    }
    w->args = *args;
    w->ch.r = r;
    w->content = *content;
    *content = (struct cay_buf){0};
    w->content.max = MAX_OLD;
    w->old = CAY_BUF(MAX_OLD);
    r->op = w;
    r->drop = drop;
    w->reading = args->append || args->from;
    if (!w->reading)
        begin_write(w);
    else
        channel_open(&w->ch, r, NULL, &(struct msg){.type = FS_READ, .path = args->file},
                     &write_ops);
}

/* ---- write: the body ------------------------------------------------------------------------- */

struct unpacking {
    struct errand errand;
    struct cay_buf body, content;
    json_t *json; /* the rest of it */
};

static int unpack(struct unpacking *u, struct cay_error *err)
{
    int result = input_parse(u->body.data ? u->body.data : "", u->body.size, true, &u->json, err);
    buf_done(&u->body);
    if (result < 0)
        return -1;
    const json_t *content = json_object_get(u->json, "content");
    const char *encoding = json_string_value(json_object_get(u->json, "encoding"));
    bool lead = json_is_true(json_object_get(u->json, "leading_newline"));
    bool trail = json_is_true(json_object_get(u->json, "trailing_newline"));
    if (!json_is_string(content))
        return cay_fail(err, CAY_E_INVALID, "'content' must be a string");
    if (encoding && strcmp(encoding, "base64") == 0) {
        result = base64_decode(json_string_value(content), json_string_length(content), &u->content,
                               err);
        if (result < 0)
            cay_fail_context(err, "content");
    } else {
        if (lead)
            buf_str(&u->content, "\n");
        buf_add(&u->content, json_string_value(content), json_string_length(content));
        if (trail)
            buf_str(&u->content, "\n");
    }
    json_object_del(u->json, "content");
    if (result == 0 && buf_failed(&u->content))
        result = cay_fail(err, CAY_E_TOO_LARGE, "the content is larger than %u bytes", MAX_OLD);
    return result;
}

static void on_work(struct errand *errand)
{
    struct unpacking *u = (struct unpacking *)errand;
    errand->result = unpack(u, &errand->err);
}

#define AT(member) offsetof(struct args, member)

/* On the loop: the content is bytes now, and the rest is small. */
static void unpacked(struct unpacking *u, struct request *r)
{
    static const struct opt table[] = {
        OPT("file", 0, OPT_STR, AT(file), NULL, NULL),
        OPT("encoding", 0, OPT_STR, AT(encoding), NULL, NULL),
        OPT("append", 0, OPT_FLAG, AT(append), NULL, NULL),
        OPT("leading_newline", 0, OPT_FLAG, AT(leading), NULL, NULL),
        OPT("trailing_newline", 0, OPT_FLAG, AT(trailing), NULL, NULL),
    };
    struct args args = {0};
    if (u->errand.result < 0) {
        snprintf(r->field, sizeof(r->field), u->json ? "content" : "body");
        reply_error(r, &u->errand.err);
        return;
    }
    if (input_apply(r, u->json, table, CAY_COUNT(table), &args, true, &u->errand.err) < 0) {
        reply_error(r, &u->errand.err);
        return;
    }
    bool known = !args.encoding || strcmp(args.encoding, "utf-8") == 0 ||
                 strcmp(args.encoding, "base64") == 0;
    if (!known)
        aio_refuse(r, "encoding", "must be utf-8 or base64");
    else if (aio_has_path(r, "file", args.file))
        start(r, &args, &u->content);
}

static void on_done(struct errand *errand)
{
    struct unpacking *u = (struct unpacking *)errand;
    if (errand->r)
        unpacked(u, errand->r);
    json_decref(u->json);
    buf_done(&u->body);
    buf_done(&u->content);
}

void aio_file_write(struct request *r)
{
    struct cay_error err;
    if (input_no_query(r, &err) < 0 || input_is_json(r, &err) < 0) {
        snprintf(r->field, sizeof(r->field), "body");
        reply_error(r, &err);
        return;
    }
    struct unpacking *u = errand_new(r, sizeof(*u), 0, on_work);
    if (!u)
        return;
    u->errand.done = on_done;
    u->body = r->body;
    u->content = CAY_BUF(MAX_OLD);
    r->body = CAY_BUF(0);
    errand_go(&u->errand, r);
}

/* ---- replace --------------------------------------------------------------------------------- */

void aio_file_replace(struct request *r)
{
    static const struct opt table[] = {
        OPT("file", 0, OPT_STR, AT(file), NULL, NULL),
        OPT("old_str", 0, OPT_STR, AT(from), NULL, NULL),
        OPT("new_str", 0, OPT_STR, AT(to), NULL, NULL, .max = 1),
    };
    struct args args = {0};
    struct cay_buf content = CAY_BUF(MAX_OLD);
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "file", args.file))
        return;
    if (!args.from || !args.to)
        aio_refuse(r, args.from ? "new_str" : "old_str", "is missing");
    else
        start(r, &args, &content);
}
