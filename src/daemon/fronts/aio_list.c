/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sessions that there are: the directories below /tmp/.cay/shell or bash, when they were made
 * and used by the times of their files, and their working directories by what is in those.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fronts/aio.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* More than a client can want; in the order of their names. */
#define MAX_SESSIONS 256

struct session {
    char id[AIO_SESSION];
    const char *cwd; /* the request's */
    uint64_t made_ms, used_ms;
};

struct list {
    struct channel ch;
    const char *root;
    bool bash;     /* an array, and not an object */
    bool contents; /* the second question: what is in the files */
    struct session sessions[MAX_SESSIONS];
    size_t n;
};

static void drop(struct request *r)
{
    channel_done(r->op);
    free(r->op);
}

static void add_time(struct cay_buf *out, const char *name, uint64_t ms)
{
    json_key(out, name);
    buf_str(out, "\"");
    token_print_time(ms, out);
    buf_str(out, "\"");
}

void aio_session_times(struct cay_buf *out, uint64_t made_ms, uint64_t used_ms)
{
    json_str(out, "status", "ready");
    add_time(out, "created_at", made_ms);
    add_time(out, "last_used_at", used_ms);
    buf_str(out, ",\"current_command\":null");
}

static void answer(struct list *list)
{
    autobuf struct cay_buf out = CAY_BUF(MAX_SESSIONS * (6 * CAY_MAX_PATH + 1024u));
    uint64_t now = cay_wall_ms();
    buf_fmt(&out, "{\"success\":true,\"message\":\"%zu sessions\",\"data\":%s", list->n,
            list->bash ? "[" : "{\"sessions\":{");
    for (size_t i = 0; i < list->n; i++) {
        const struct session *s = &list->sessions[i];
        if (list->bash) {
            json_comma(&out);
            buf_str(&out, "{");
            json_str(&out, "session_id", s->id);
        } else {
            json_key(&out, s->id);
            buf_str(&out, "{");
            json_num(&out, "age_seconds", now > s->made_ms ? (now - s->made_ms) / 1000 : 0);
        }
        json_str(&out, "working_dir", s->cwd ? s->cwd : "/");
        aio_session_times(&out, s->made_ms, s->used_ms);
        buf_str(&out, "}");
    }
    buf_str(&out, list->bash ? "],\"hint\":null}\n" : "}},\"hint\":null}\n");
    channel_close(&list->ch);
    reply_json(list->ch.r, MHD_HTTP_OK, &out);
}

/* Of "ID", a directory, and then of "ID/made" and so on. */
static void take_entry(struct list *list, const struct msg *msg)
{
    struct session *last = list->n ? &list->sessions[list->n - 1] : NULL;
    const char *path = msg->path ? msg->path : "", *slash = strchr(path, '/');
    uint64_t ms = (int64_t)msg->mtime_ns < 0 ? 0 : msg->mtime_ns / 1000000;
    if (!slash && S_ISDIR((mode_t)msg->mode) && aio_session_ok(path) && list->n < MAX_SESSIONS) {
        last = &list->sessions[list->n++];
        snprintf(last->id, sizeof(last->id), "%s", path);
        last->made_ms = last->used_ms = ms;
    } else if (slash && last && strlen(last->id) == (size_t)(slash - path) &&
               strncmp(last->id, path, (size_t)(slash - path)) == 0) {
        if (strcmp(slash, "/made") == 0)
            last->made_ms = ms;
        if (strcmp(slash, "/state") == 0)
            last->used_ms = ms;
    }
}

/* The first line of "ID/cwd". */
static void take_match(struct list *list, const struct msg *msg)
{
    const char *path = msg->path ? msg->path : "";
    size_t n = strcspn(path, "/");
    for (size_t i = 0; i < list->n && msg->text; i++) {
        struct session *s = &list->sessions[i];
        if (!s->cwd && strlen(s->id) == n && strncmp(s->id, path, n) == 0)
            s->cwd = opt_strndup(&list->ch.r->arena, msg->text, strlen(msg->text));
    }
}

static void take(struct channel *ch, const struct msg *msg)
{
    struct list *list = container_of(ch, struct list, ch);
    if (msg->type == FS_ENTRY && !list->contents)
        take_entry(list, msg);
    else if (msg->type == FS_MATCH && list->contents)
        take_match(list, msg);
}

static void done(struct channel *ch, const struct cay_error *err)
{
    struct list *list = container_of(ch, struct list, ch);
    bool none = err && !list->contents && err->code == CAY_E_NOT_FOUND;
    if (err && !none && !list->contents) {
        reply_error(ch->r, err);
        return;
    }
    if (err || list->contents) {
        answer(list);
        return;
    }
    list->contents = true;
    channel_send(ch, &(struct msg){.type = FS_GREP,
                                   .path = list->root,
                                   .glob = "*/cwd",
                                   .pattern = "/",
                                   .number = MAX_SESSIONS,
                                   .flags = MSG_F_LITERAL | MSG_F_LENIENT});
}

static const struct channel_ops ops = {take, done, NULL};

static void start(struct request *r, const char *root, bool bash)
{
    struct cay_error err;
    struct list *list = NULL;
    if (input_no_query(r, &err) == 0 && !(list = calloc(1, sizeof(*list))))
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
    if (!list) {
        reply_error(r, &err);
        return;
    }
    list->root = root;
    list->bash = bash;
    r->op = list;
    r->drop = drop;
    channel_open(&list->ch, r, NULL,
                 &(struct msg){.type = FS_LIST, .path = root, .number = 2, .flags = MSG_F_LENIENT},
                 &ops);
}

void aio_shell_list(struct request *r)
{
    start(r, AIO_SESSIONS "/shell", false);
}

void aio_bash_list(struct request *r)
{
    start(r, AIO_SESSIONS "/bash", true);
}
