/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files: what is one long-lived channel at home is a request each here. Contents and archives are
 * streamed both ways, listings come entry by entry; nothing is held in memory as a whole.
 */
#include "base/err.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "remote/split.h"

#include <stdio.h>
#include <string.h>

#define HTTP_PART 206
#define HTTP_RANGE_EMPTY 416

struct cay_fs {
    struct http *http;
    char id[CAY_MAX_ID];
    char *user; /* NULL: the sandbox's own */
};

/* Paths start at the root directory, and the API wants that said. */
struct rooted {
    char text[CAY_MAX_PATH + 1];
};

static const char *rooted(const char *path, struct rooted *out)
{
    if (path[0] == '/' || strlen(path) >= CAY_MAX_PATH)
        return path;
    snprintf(out->text, sizeof(out->text), "/%s", path);
    return out->text;
}

int cay_fs_open(struct cay_sandbox *sandbox, const char *user, struct cay_fs **out,
                struct cay_error *err)
{
    struct cay_fs *fs = calloc(1, sizeof(*fs));
    if (!fs || (user && !(fs->user = strdup(user)))) {
        free(fs);
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    fs->http = sandbox->cay->http;
    memcpy(fs->id, sandbox->id, sizeof(fs->id));
    *out = fs;
    return 0;
}

void cay_fs_close(struct cay_fs *fs)
{
    if (!fs)
        return;
    free(fs->user);
    free(fs);
}

/* NULL where the default is meant. */
static const char *octal_text(uint32_t mode, char out[static 16])
{
    snprintf(out, 16, "%o", (unsigned)mode & 07777);
    return mode ? out : NULL;
}

/* A request about a path. It may take as long as there are files. */
static void ask_path(struct ask *ask, const struct cay_fs *fs, const char *method, const char *what,
                     const char *path)
{
    struct rooted root;
    ask_init(ask, method, what, fs->id);
    ask_query(ask, "path", rooted(path, &root));
    ask_query(ask, "user", fs->user);
    ask->seconds = 0;
}

/* ---- contents -------------------------------------------------------------------------------- */

/* The part of a file that was asked for. */
struct part {
    const struct answer *answer; /* whose status is known when the first byte comes */
    uint64_t skip, left;
    cay_sink sink;
    void *data;
};

/* Files that the kernel makes up have no ranges: all of them comes, and the part is cut out here.
 */
static int take_part(const void *bytes, size_t size, void *data)
{
    struct part *part = data;
    if (part->answer->status == HTTP_PART)
        return part->sink(bytes, size, part->data);
    size_t skip = (size_t)CAY_MIN(part->skip, (uint64_t)size);
    size_t n = (size_t)CAY_MIN(part->left, (uint64_t)(size - skip));
    part->skip -= skip;
    part->left -= n;
    if (n && part->sink((const char *)bytes + skip, n, part->data) != 0)
        return -1;
    return part->left == 0;
}

int cay_fs_read(struct cay_fs *fs, const char *path, uint64_t offset, uint64_t size, cay_sink sink,
                void *data, struct cay_error *err)
{
    autoask struct ask ask;
    autoanswer struct answer answer;
    struct part part = {&answer, offset, size ? size : UINT64_MAX, sink, data};
    uint64_t most = INT64_MAX; /* of what HTTP libraries count with */
    ask_path(&ask, fs, "GET", "sandboxes/%/files", path);
    ask.accept = "*/*";
    ask.sink = take_part;
    ask.sink_data = &part;
    if (offset > most)
        offset = most;
    if (size)
        snprintf(ask.range, sizeof(ask.range), "%llu-%llu", (unsigned long long)offset,
                 (unsigned long long)(size > most - offset ? most : offset + size - 1));
    else if (offset)
        snprintf(ask.range, sizeof(ask.range), "%llu-", (unsigned long long)offset);
    if (http_do(fs->http, &ask, &answer, err) == 0)
        return 0;
    /* Nothing is beyond the end of a file: that is no error. */
    return answer.status == HTTP_RANGE_EMPTY ? 0 : -1;
}

int cay_fs_write(struct cay_fs *fs, const char *path, uint32_t mode, cay_source source, void *data,
                 struct cay_error *err)
{
    autoask struct ask ask;
    char octal[16];
    ask_path(&ask, fs, "PUT", "sandboxes/%/files", path);
    ask_query(&ask, "mode", octal_text(mode, octal));
    ask.source = source;
    ask.source_data = data;
    return http_order(fs->http, &ask, err);
}

int cay_fs_tar_out(struct cay_fs *fs, const char *path, cay_sink sink, void *data,
                   struct cay_error *err)
{
    autoask struct ask ask;
    autoanswer struct answer answer;
    ask_path(&ask, fs, "GET", "sandboxes/%/archive", path);
    ask.accept = "application/x-tar";
    ask.sink = sink;
    ask.sink_data = data;
    return http_do(fs->http, &ask, &answer, err);
}

int cay_fs_tar_in(struct cay_fs *fs, const char *path, cay_source source, void *data,
                  struct cay_error *err)
{
    autoask struct ask ask;
    ask_path(&ask, fs, "PUT", "sandboxes/%/archive", path);
    ask.source = source;
    ask.source_data = data;
    return http_order(fs->http, &ask, err);
}

/* ---- changes --------------------------------------------------------------------------------- */

int cay_fs_mkdir(struct cay_fs *fs, const char *path, uint32_t mode, struct cay_error *err)
{
    autoask struct ask ask;
    struct rooted root;
    char octal[16];
    ask_init(&ask, "POST", "sandboxes/%/fs/mkdir", fs->id);
    ask.body = json_object();
    if (json_set_str(ask.body, "path", rooted(path, &root), err) < 0 ||
        json_set_str(ask.body, "mode", octal_text(mode, octal), err) < 0 ||
        json_set_str(ask.body, "user", fs->user, err) < 0)
        return -1;
    return http_order(fs->http, &ask, err);
}

int cay_fs_move(struct cay_fs *fs, const char *from, const char *to, struct cay_error *err)
{
    autoask struct ask ask;
    struct rooted root_from, root_to;
    ask_init(&ask, "POST", "sandboxes/%/fs/move", fs->id);
    ask.body = json_object();
    ask.seconds = 0;
    if (json_set_str(ask.body, "from", rooted(from, &root_from), err) < 0 ||
        json_set_str(ask.body, "to", rooted(to, &root_to), err) < 0 ||
        json_set_str(ask.body, "user", fs->user, err) < 0)
        return -1;
    return http_order(fs->http, &ask, err);
}

int cay_fs_remove(struct cay_fs *fs, const char *path, bool recursive, struct cay_error *err)
{
    autoask struct ask ask;
    ask_path(&ask, fs, "DELETE", "sandboxes/%/files", path);
    ask_query_bool(&ask, "recursive", recursive);
    return http_order(fs->http, &ask, err);
}

/* ---- listings -------------------------------------------------------------------------------- */

struct taker {
    union {
        int (*stat)(const struct cay_stat *st, void *data);
        int (*match)(const struct cay_match *match, void *data);
        int (*change)(const struct cay_change *change, void *data);
    };
    void *data;
    struct cay_error *err;
    int failed; /* an error ended it, not the caller */
};

/* The first letter of a type's name is its letter, but for these. */
static char type_letter(const char *type)
{
    static const char known[] = "fdlpscb";
    return *type && strchr(known, *type) ? *type : '?';
}

static int no_name(struct taker *t)
{
    t->failed = cay_fail(t->err, CAY_E_INTERNAL, "the daemon's answer has an entry without a name");
    return -1;
}

static int on_entry(json_t *object, void *data)
{
    struct taker *t = data;
    autofree char *name = json_bytes(object, "name"), *target = json_bytes(object, "target");
    const struct cay_stat st = {
        .type = type_letter(json_text(object, "type")),
        .mode = (uint32_t)json_u64(object, "mode") & 07777,
        .uid = (uint32_t)json_u64(object, "uid"),
        .gid = (uint32_t)json_u64(object, "gid"),
        .size = json_u64(object, "size"),
        .mtime_ns = (int64_t)json_integer_value(json_object_get(object, "mtime_ns")),
        .inode = json_u64(object, "inode"),
        .links = json_u64(object, "links"),
        .name = name,
        .target = target,
    };
    return name ? t->stat(&st, t->data) : no_name(t);
}

static int on_match(json_t *object, void *data)
{
    struct taker *t = data;
    autofree char *path = json_bytes(object, "path"), *text = json_bytes(object, "text");
    const struct cay_match match = {path, json_u64(object, "line"), text ? text : ""};
    return path ? t->match(&match, t->data) : no_name(t);
}

static int on_change(json_t *object, void *data)
{
    struct taker *t = data;
    const char *type = json_text(object, "type");
    if (strcmp(type, "error") == 0) {
        t->failed = json_to_error(json_object_get(object, "error"), t->err);
        return -1;
    }
    if (strcmp(type, "change") != 0)
        return 0;
    /* created, modified, deleted, renamed, overflow */
    autofree char *path = json_bytes(object, "path");
    const struct cay_change change = {*json_text(object, "kind"), path ? path : ""};
    return t->change(&change, t->data);
}

static int take_all(struct cay_fs *fs, const struct ask *ask, unsigned at,
                    int (*each)(json_t *object, void *data), struct taker *t)
{
    int result = http_each(fs->http, ask, at, each, t, NULL, t->err);
    return t->failed ? -1 : result;
}

int cay_fs_stat(struct cay_fs *fs, const char *path, bool follow,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    autoask struct ask ask;
    struct taker t = {.stat = each, .data = data, .err = err};
    json_t *object;
    ask_path(&ask, fs, "GET", "sandboxes/%/fs/stat", path);
    ask_query_bool(&ask, "follow", follow);
    if (http_object(fs->http, &ask, &object, err) < 0)
        return -1;
    on_entry(object, &t);
    json_decref(object);
    return t.failed;
}

int cay_fs_list(struct cay_fs *fs, const char *path, uint32_t depth,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    autoask struct ask ask;
    struct taker t = {.stat = each, .data = data, .err = err};
    ask_path(&ask, fs, "GET", "sandboxes/%/fs/list", path);
    ask_query_num(&ask, "depth", depth ? depth : 1);
    return take_all(fs, &ask, SPLIT_LIST, on_entry, &t);
}

int cay_fs_find(struct cay_fs *fs, const char *path, const char *glob, uint64_t limit,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    autoask struct ask ask;
    struct taker t = {.stat = each, .data = data, .err = err};
    ask_path(&ask, fs, "GET", "sandboxes/%/fs/find", path);
    ask_query(&ask, "glob", glob);
    if (limit)
        ask_query_num(&ask, "limit", limit);
    return take_all(fs, &ask, SPLIT_LIST, on_entry, &t);
}

int cay_fs_grep(struct cay_fs *fs, const char *path, const char *pattern, bool literal,
                bool ignore_case, const char *glob, uint64_t limit,
                int (*each)(const struct cay_match *match, void *data), void *data,
                struct cay_error *err)
{
    autoask struct ask ask;
    struct taker t = {.match = each, .data = data, .err = err};
    ask_path(&ask, fs, "GET", "sandboxes/%/fs/grep", path);
    ask_query(&ask, "pattern", pattern);
    ask_query_bool(&ask, "literal", literal);
    ask_query_bool(&ask, "ignore_case", ignore_case);
    ask_query(&ask, "glob", glob);
    if (limit)
        ask_query_num(&ask, "limit", limit);
    return take_all(fs, &ask, SPLIT_LIST, on_match, &t);
}

int cay_fs_watch(struct cay_fs *fs, const char *path, bool recursive,
                 int (*each)(const struct cay_change *change, void *data), void *data,
                 struct cay_error *err)
{
    autoask struct ask ask;
    struct taker t = {.change = each, .data = data, .err = err};
    ask_path(&ask, fs, "GET", "sandboxes/%/fs/watch", path);
    ask_query_bool(&ask, "recursive", recursive);
    ask.accept = "application/x-ndjson";
    return take_all(fs, &ask, SPLIT_LINES, on_change, &t);
}
