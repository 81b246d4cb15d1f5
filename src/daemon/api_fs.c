/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at files and changing them, but for their contents. Three forms of answers: none but the
 * status (remove, mkdir, move), one entry (stat), and streams: an array that is written as the
 * entries come (list, find, grep), or a line for each change (watch).
 */
#include "daemon/api_fs.h"

#include "base/err.h"
#include "base/json.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fs_args.h"
#include "daemon/journal.h"

#include <string.h>
#include <sys/stat.h>

struct op {
    struct channel ch;
    const struct form *form;
    struct fs_args args;
    bool noted; /* changes: told to the journal */
    bool more;  /* arrays: an item was written */
};

/* One of the requests below. */
struct form {
    uint16_t type;  /* of the message */
    unsigned which; /* arguments */
    const struct channel_ops *ops;
    enum audit_action action; /* changes: as the journal names it */
    const char *name;         /* arrays: the member's */
};

static void drop_op(struct request *r)
{
    struct op *op = r->op;
    channel_done(&op->ch);
    free(op);
}

static void start(struct request *r, const struct form *form, void (*drop)(struct request *r))
{
    struct cay_error err;
    struct fs_args args;
    struct op *op = NULL;
    if (fs_args(r, form->which | ARG_USER, &args, &err) == 0 && !(op = calloc(1, sizeof(*op))))
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
    if (!op) {
        reply_error(r, &err);
        return;
    }
    op->form = form;
    op->args = args;
    r->op = op;
    r->drop = drop;
    const struct msg first = {
        .type = form->type,
        .path = args.from ? args.from : args.path,
        .target = args.to,
        .glob = args.glob,
        .pattern = args.pattern,
        .mode = args.mode,
        .number = form->which & ARG_DEPTH ? args.depth : args.limit,
        .size = form->type == FS_LIST ? args.limit : 0,
        .flags = (args.recursive ? MSG_F_RECURSIVE : 0) | (args.follow ? MSG_F_FOLLOW : 0) |
                 (args.literal ? MSG_F_LITERAL : 0) | (args.ignore_case ? MSG_F_IGNORE_CASE : 0),
    };
    channel_open(&op->ch, r, args.user, &first, form->ops);
}

/* ---- changes --------------------------------------------------------------------------------- */

static void note(struct op *op, const struct cay_error *err)
{
    const struct fs_args *args = &op->args;
    const struct audit_detail detail = {
        .path = args->from ? args->from : args->path, .to = args->to, .user = args->user};
    op->noted = true;
    journal_note(op->ch.r, op->form->action, &detail, err);
}

static void drop_change(struct request *r)
{
    struct op *op = r->op;
    struct cay_error err;
    if (!op->noted) {
        cay_fail(&err, CAY_E_UNAVAILABLE,
                 "the client went away before the answer: it may be done, or in part");
        note(op, &err);
    }
    drop_op(r);
}

static void change_done(struct channel *ch, const struct cay_error *err)
{
    struct op *op = container_of(ch, struct op, ch);
    channel_close(ch);
    note(op, err);
    if (err)
        reply_error(ch->r, err);
    else
        reply_empty(ch->r, MHD_HTTP_NO_CONTENT);
}

static const struct channel_ops change_ops = {NULL, change_done, NULL};

void files_delete(struct request *r)
{
    static const struct form form = {.type = FS_REMOVE,
                                     .which = ARG_PATH | ARG_RECURSIVE,
                                     .ops = &change_ops,
                                     .action = AUDIT_REMOVE};
    start(r, &form, drop_change);
}

void fs_mkdir(struct request *r)
{
    static const struct form form = {
        .type = FS_MKDIR, .which = ARG_PATH | ARG_MODE, .ops = &change_ops, .action = AUDIT_MKDIR};
    start(r, &form, drop_change);
}

void fs_move(struct request *r)
{
    static const struct form form = {
        .type = FS_MOVE, .which = ARG_FROM | ARG_TO, .ops = &change_ops, .action = AUDIT_MOVE};
    start(r, &form, drop_change);
}

/* ---- entries --------------------------------------------------------------------------------- */

/* An object for an ENTRY or a MATCH. */
static void write_item(struct cay_buf *out, const struct msg *msg)
{
    buf_str(out, "{");
    fs_json_name(out, msg->type == FS_ENTRY ? "name" : "path", msg->path ? msg->path : "");
    if (msg->type == FS_MATCH) {
        json_num(out, "line", msg->number);
        fs_json_name(out, "text", msg->text ? msg->text : "");
    } else {
        const struct cay_stat st = {
            .type = cay_type_letter((mode_t)msg->mode),
            .mode = (uint32_t)msg->mode & 07777,
            .uid = (uint32_t)msg->uid,
            .gid = (uint32_t)msg->gid,
            .size = msg->size,
            .mtime_ns = (int64_t)msg->mtime_ns,
            .inode = msg->inode,
            .links = msg->links,
        };
        json_stat(out, &st);
        if (msg->target)
            fs_json_name(out, "target", msg->target);
    }
    buf_str(out, "}");
}

static void stat_take(struct channel *ch, const struct msg *msg)
{
    if (msg->type == FS_ENTRY && ch->out.size == 0)
        write_item(&ch->out, msg);
}

static void stat_done(struct channel *ch, const struct cay_error *err)
{
    struct cay_error nothing;
    channel_close(ch);
    if (!err && ch->out.size == 0) {
        cay_fail(&nothing, CAY_E_INTERNAL, "the file worker told nothing");
        err = &nothing;
    }
    if (err) {
        reply_error(ch->r, err);
        return;
    }
    buf_str(&ch->out, "\n");
    reply_json(ch->r, MHD_HTTP_OK, &ch->out);
}

void fs_stat(struct request *r)
{
    static const struct channel_ops ops = {stat_take, stat_done, NULL};
    static const struct form form = {.type = FS_STAT, .which = ARG_PATH | ARG_FOLLOW, .ops = &ops};
    start(r, &form, drop_op);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static void array_begin(struct op *op)
{
    if (op->ch.r->streaming)
        return;
    buf_fmt(&op->ch.out, "{\"%s\":[", op->form->name);
    channel_stream(&op->ch, MHD_HTTP_OK, "application/json", MHD_SIZE_UNKNOWN);
}

static void array_take(struct channel *ch, const struct msg *msg)
{
    if (msg->type != FS_ENTRY && msg->type != FS_MATCH)
        return;
    struct op *op = container_of(ch, struct op, ch);
    array_begin(op);
    if (op->more)
        buf_str(&ch->out, ",");
    op->more = true;
    write_item(&ch->out, msg);
    channel_flow(ch);
}

/* An error after the first entry is the object's last member: the status has been told. */
static void array_done(struct channel *ch, const struct cay_error *err)
{
    if (err && !ch->r->streaming) {
        reply_error(ch->r, err);
        return;
    }
    array_begin(container_of(ch, struct op, ch));
    buf_str(&ch->out, "]");
    if (err) {
        buf_str(&ch->out, ",\"error\":");
        error_json(&ch->out, ch->r, err);
    }
    buf_str(&ch->out, "}\n");
    channel_stop(ch, buf_failed(&ch->out) ? STREAM_BROKEN : STREAM_END);
}

static const struct channel_ops array_ops = {array_take, array_done, NULL};

void fs_list(struct request *r)
{
    static const struct form form = {.type = FS_LIST,
                                     .which = ARG_PATH | ARG_DEPTH | ARG_LIMIT,
                                     .ops = &array_ops,
                                     .name = "entries"};
    start(r, &form, drop_op);
}

void fs_find(struct request *r)
{
    static const struct form form = {.type = FS_FIND,
                                     .which = ARG_PATH | ARG_GLOB | ARG_LIMIT,
                                     .ops = &array_ops,
                                     .name = "entries"};
    start(r, &form, drop_op);
}

void fs_grep(struct request *r)
{
    static const struct form form = {.type = FS_GREP,
                                     .which = ARG_PATH | ARG_PATTERN | ARG_GLOB | ARG_LIMIT |
                                              ARG_LITERAL | ARG_IGNORE_CASE,
                                     .ops = &array_ops,
                                     .name = "matches"};
    start(r, &form, drop_op);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void watch_take(struct channel *ch, const struct msg *msg)
{
    if (msg->type != FS_CHANGE || !ch->r->streaming)
        return;
    buf_str(&ch->out, "{\"type\":\"change\"");
    json_str(&ch->out, "kind", json_change_name((char)msg->number));
    fs_json_name(&ch->out, "path", msg->path ? msg->path : "");
    buf_str(&ch->out, "}\n");
    channel_flow(ch);
}

/* OK comes first here and means that nothing is missed from now on. */
static void watch_done(struct channel *ch, const struct cay_error *err)
{
    if (!ch->r->streaming && err) {
        reply_error(ch->r, err);
        return;
    }
    if (!ch->r->streaming) {
        buf_str(&ch->out, "{\"type\":\"watching\"}\n");
        channel_stream(ch, MHD_HTTP_OK, "application/x-ndjson", MHD_SIZE_UNKNOWN);
        channel_flow(ch);
        return;
    }
    if (err) {
        buf_str(&ch->out, "{\"type\":\"error\",\"error\":");
        error_json(&ch->out, ch->r, err);
        buf_str(&ch->out, "}\n");
    }
    channel_stop(ch, buf_failed(&ch->out) ? STREAM_BROKEN : STREAM_END);
}

void fs_watch(struct request *r)
{
    static const struct channel_ops ops = {watch_take, watch_done, NULL};
    static const struct form form = {
        .type = FS_WATCH, .which = ARG_PATH | ARG_RECURSIVE, .ops = &ops};
    start(r, &form, drop_op);
}
