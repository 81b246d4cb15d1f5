/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file/find, list, grep and search: what a file worker finds, item by item, as an array in JSON
 * that is written as the items come. The worker's own limits do not count here: what is left out by
 * names and kinds is left out in this process, which hangs up when it has enough.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/util.h"
#include "daemon/channel.h"
#include "daemon/fronts/aio.h"
#include "daemon/fronts/regex.h"
#include "daemon/token.h"
#include "wire/glob.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FOUND 10000u
#define MAX_PATTERN 4096u

struct args {
    const char *path, *glob, *pattern, *type, *sort_by;
    const char *const *include, *const *exclude, *const *file_types;
    uint64_t max_results, max_file_size, max_depth, offset, before, after;
    bool recursive, hidden, sizes, permissions, ignore_case, literal, multiline, descending;
};

struct look;

/* One of the four. */
struct form {
    const char *operation, *message;
    const char *array; /* the member that the items are in */
    void (*begin)(struct look *look, struct cay_buf *out);
    bool (*wants)(struct look *look, const struct msg *msg);
    void (*print)(struct look *look, const struct msg *msg, struct cay_buf *out);
    void (*end)(struct look *look, struct cay_buf *out); /* may be NULL */
};

struct look {
    struct channel ch;
    const struct form *form;
    struct args args;
    struct msg second; /* search: after the look at what it is */
    uint64_t n, directories, files, skipped, max;
    bool truncated;
    char *pattern;          /* in the worker's form; owned */
    struct cay_buf numbers; /* search: the second array */
    char last[256];         /* grep: the end of the file's name that the last match was in */
};

static void drop(struct request *r)
{
    struct look *look = r->op;
    channel_done(&look->ch);
    buf_done(&look->numbers);
    free(look->pattern);
    free(look);
}

/* ---- the array ------------------------------------------------------------------------------- */

static void begin(struct look *look)
{
    struct cay_buf *out = &look->ch.out;
    if (look->ch.r->streaming)
        return;
    buf_str(out, "{\"data\":{");
    look->form->begin(look, out);
    json_key(out, look->form->array);
    buf_str(out, "[");
    channel_stream(&look->ch, MHD_HTTP_OK, "application/json", MHD_SIZE_UNKNOWN);
}

static void finish(struct look *look)
{
    struct cay_buf *out = &look->ch.out;
    begin(look);
    buf_str(out, "]");
    if (look->form->end)
        look->form->end(look, out);
    json_bool(out, "truncated", look->truncated);
    aio_end(out, look->form->message);
    channel_stop(&look->ch, buf_failed(out) ? STREAM_BROKEN : STREAM_END);
}

static void take(struct channel *ch, const struct msg *msg)
{
    struct look *look = container_of(ch, struct look, ch);
    if ((msg->type != FS_ENTRY && msg->type != FS_MATCH) || !msg->path || look->second.type ||
        !look->form->wants(look, msg))
        return;
    begin(look);
    if (look->n == look->max) {
        look->truncated = true;
        finish(look);
        return;
    }
    if (look->n++)
        buf_str(&ch->out, ",");
    look->form->print(look, msg, &ch->out);
    channel_flow(ch);
}

/* After the first item the status has been told: the connection is cut. */
static void done(struct channel *ch, const struct cay_error *err)
{
    struct look *look = container_of(ch, struct look, ch);
    if (err && ch->r->streaming) {
        channel_stop(ch, STREAM_BROKEN);
    } else if (err) {
        aio_file_error(ch->r, look->form->operation, look->args.path, err);
    } else if (look->second.type) {
        const struct msg second = look->second;
        look->second.type = 0;
        channel_send(ch, &second);
    } else {
        finish(look);
    }
}

static const struct channel_ops ops = {take, done, NULL};

/* ---- names ----------------------------------------------------------------------------------- */

/* A name that begins with a dot, anywhere in it. */
static bool is_hidden(const char *path)
{
    return path[0] == '.' || strstr(path, "/.");
}

static bool any_glob(const char *const *globs, const char *path)
{
    for (; globs && *globs; globs++)
        if (glob_match_path(*globs, path))
            return true;
    return false;
}

/* Also by the name of a directory that it is in. */
static bool is_excluded(const char *const *globs, const char *path)
{
    char part[CAY_MAX_PATH];
    for (size_t n = strcspn(path, "/"); globs && *globs && n < sizeof(part);
         n += 1 + strcspn(path + n + 1, "/")) {
        memcpy(part, path, n);
        part[n] = 0;
        if (any_glob(globs, part))
            return true;
        if (!path[n])
            break;
    }
    return false;
}

/* What the worker tells is below the path that was asked for, or that path itself. */
static void add_full_path(struct cay_buf *out, const char *name, const struct look *look,
                          const char *path)
{
    autobuf struct cay_buf full = CAY_BUF(CAY_MAX_PATH + CAY_MAX_TREE_PATH);
    size_t n = strlen(look->args.path);
    if (path[0] != '/') {
        buf_str(&full, look->args.path);
        if (n && look->args.path[n - 1] != '/')
            buf_str(&full, "/");
    }
    buf_str(&full, path);
    if (name)
        json_key(out, name);
    buf_json_n(out, full.data ? full.data : "", full.size);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void begin_path(struct look *look, struct cay_buf *out)
{
    json_str(out, "path", look->args.path);
}

/* ---- starting -------------------------------------------------------------------------------- */

static struct look *look_new(struct request *r, const struct form *form, const struct args *args)
{
    struct look *look = calloc(1, sizeof(*look));
    struct cay_error err;
    if (!look) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        reply_error(r, &err);
        return NULL;
    }
    look->form = form;
    look->args = *args;
    look->max = args->max_results ? CAY_MIN(args->max_results, MAX_FOUND) : MAX_FOUND;
    look->numbers = CAY_BUF(MAX_FOUND * 24u);
    r->op = look;
    r->drop = drop;
    return look;
}

static void go(struct look *look, struct request *r, const struct msg *first)
{
    channel_open(&look->ch, r, NULL, first, &ops);
}

#define AT(member) offsetof(struct args, member)

/* ---- find ------------------------------------------------------------------------------------ */

/* As Python's glob: a pattern without a slash is for this directory alone, and stars find no hidden
 * names. Files only. */
static bool find_wants(struct look *look, const struct msg *msg)
{
    const char *glob = look->args.glob;
    return !S_ISDIR((mode_t)msg->mode) && glob_match(glob, msg->path) &&
           (!is_hidden(msg->path) || is_hidden(glob));
}

static void find_print(struct look *look, const struct msg *msg, struct cay_buf *out)
{
    add_full_path(out, NULL, look, msg->path);
}

void aio_file_find(struct request *r)
{
    static const struct form form = {.operation = "find",
                                     .message = "The search is done",
                                     .array = "files",
                                     .begin = begin_path,
                                     .wants = find_wants,
                                     .print = find_print};
    static const struct opt table[] = {
        OPT("path", 0, OPT_STR, AT(path), NULL, NULL),
        OPT("glob", 0, OPT_STR, AT(glob), NULL, NULL),
    };
    struct args args = {0};
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "path", args.path))
        return;
    if (!args.glob || strlen(args.glob) >= CAY_MAX_PATH) {
        aio_refuse(r, "glob", "is missing, or longer than 4095 bytes");
        return;
    }
    struct look *look = look_new(r, &form, &args);
    bool parts = strchr(args.glob, '/');
    if (look && (parts || strstr(args.glob, "**")))
        go(look, r,
           &(struct msg){.type = FS_FIND,
                         .path = args.path,
                         .glob = parts ? args.glob : NULL,
                         .flags = MSG_F_LENIENT});
    else if (look)
        go(look, r, &(struct msg){.type = FS_LIST, .path = args.path, .number = 1});
}

/* ---- list ------------------------------------------------------------------------------------ */

static bool has_type(const struct args *args, const char *name)
{
    size_t n = strlen(name);
    if (!args->file_types)
        return true;
    for (const char *const *type = args->file_types; *type; type++) {
        size_t m = strlen(*type);
        if (n >= m && strcmp(name + n - m, *type) == 0)
            return true;
    }
    return false;
}

static bool list_wants(struct look *look, const struct msg *msg)
{
    return (look->args.hidden || !is_hidden(msg->path)) &&
           (S_ISDIR((mode_t)msg->mode) || has_type(&look->args, msg->path));
}

static void list_print(struct look *look, const struct msg *msg, struct cay_buf *out)
{
    bool directory = S_ISDIR((mode_t)msg->mode);
    const char *name = base_of(msg->path), *dot = strrchr(name, '.');
    look->directories += directory;
    look->files += !directory;
    buf_str(out, "{");
    json_str(out, "name", name);
    add_full_path(out, "path", look, msg->path);
    json_bool(out, "is_directory", directory);
    if (look->args.sizes && !directory)
        json_num(out, "size", msg->size);
    json_key(out, "modified_time");
    buf_str(out, "\"");
    token_print_time((int64_t)msg->mtime_ns < 0 ? 0 : msg->mtime_ns / 1000000, out);
    buf_str(out, "\"");
    if (look->args.permissions) {
        json_key(out, "permissions");
        buf_fmt(out, "\"%03o\"", (unsigned)msg->mode & 07777);
    }
    json_str(out, "extension", dot && dot > name && !directory ? dot : NULL);
    buf_str(out, "}");
}

static void list_end(struct look *look, struct cay_buf *out)
{
    json_num(out, "total_count", look->n);
    json_num(out, "directory_count", look->directories);
    json_num(out, "file_count", look->files);
}

void aio_file_list(struct request *r)
{
    static const struct form form = {.operation = "list",
                                     .message = "The directory was listed",
                                     .array = "files",
                                     .begin = begin_path,
                                     .wants = list_wants,
                                     .print = list_print,
                                     .end = list_end};
    static const struct opt table[] = {
        OPT("path", 0, OPT_STR, AT(path), NULL, NULL),
        OPT("recursive", 0, OPT_FLAG, AT(recursive), NULL, NULL),
        OPT("show_hidden", 0, OPT_FLAG, AT(hidden), NULL, NULL),
        OPT("file_types", 0, OPT_STRV, AT(file_types), NULL, NULL),
        OPT("max_depth", 0, OPT_COUNT, AT(max_depth), NULL, NULL),
        OPT("include_size", 0, OPT_FLAG, AT(sizes), NULL, NULL),
        OPT("include_permissions", 0, OPT_FLAG, AT(permissions), NULL, NULL),
        OPT("sort_by", 0, OPT_STR, AT(sort_by), NULL, NULL),
        OPT("sort_desc", 0, OPT_FLAG, AT(descending), NULL, NULL),
    };
    struct args args = {.sizes = true};
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "path", args.path))
        return;
    if ((args.sort_by && strcmp(args.sort_by, "name") != 0) || args.descending) {
        aio_refuse(r, args.descending ? "sort_desc" : "sort_by", "can only be by name, upwards");
        return;
    }
    struct look *look = look_new(r, &form, &args);
    uint64_t depth = !args.recursive ? 1 : args.max_depth ? args.max_depth : UINT32_MAX;
    if (look)
        go(look, r,
           &(struct msg){
               .type = FS_LIST, .path = args.path, .number = depth, .flags = MSG_F_LENIENT});
}

/* ---- grep ------------------------------------------------------------------------------------ */

static void grep_begin(struct look *look, struct cay_buf *out)
{
    json_str(out, "path", look->args.path);
    json_str(out, "pattern", look->args.pattern);
}

static bool grep_wants(struct look *look, const struct msg *msg)
{
    const struct args *args = &look->args;
    bool below = msg->path[0] != '/'; /* and not the file that was asked for */
    if ((below && !args->recursive && strchr(msg->path, '/')) ||
        (below && args->include && !any_glob(args->include, msg->path)) ||
        (below && is_excluded(args->exclude, msg->path)))
        return false;
    if (look->skipped < args->offset) {
        look->skipped++;
        return false;
    }
    return true;
}

static void grep_print(struct look *look, const struct msg *msg, struct cay_buf *out)
{
    size_t n = strlen(msg->path);
    const char *end = n < sizeof(look->last) ? msg->path : msg->path + n - sizeof(look->last) + 1;
    look->files += strcmp(look->last, end) != 0;
    snprintf(look->last, sizeof(look->last), "%s", end);
    buf_str(out, "{");
    add_full_path(out, "file", look, msg->path);
    json_num(out, "line_number", msg->number);
    json_str(out, "line_content", msg->text ? msg->text : "");
    buf_str(out, ",\"context_before\":[],\"context_after\":[]}");
}

static void grep_end(struct look *look, struct cay_buf *out)
{
    json_num(out, "match_count", look->n);
    json_num(out, "files_matched", look->files);
}

/* The pattern as the worker wants it, and the request to it. -1: answered. */
static int grep_request(struct look *look, struct request *r, const char *field, struct msg *out)
{
    const struct args *args = &look->args;
    autobuf struct cay_buf posix = CAY_BUF(16 * MAX_PATTERN);
    bool ignore_case = args->ignore_case;
    struct cay_error err;
    if (!args->pattern || strlen(args->pattern) >= MAX_PATTERN)
        return aio_refuse(r, field, "is missing, or longer than 4095 bytes");
    if (args->literal)
        buf_str(&posix, args->pattern);
    else if (regex_to_posix(args->pattern, &posix, &ignore_case, &err) < 0) {
        aio_file_error(r, look->form->operation, args->path, &err);
        return -1;
    }
    size_t size;
    look->pattern = buf_steal(&posix, &size);
    bool one = args->include && !args->include[1];
    *out = (struct msg){.type = FS_GREP,
                        .path = args->path,
                        .pattern = look->pattern,
                        .glob = one ? args->include[0] : NULL,
                        .size = args->max_file_size,
                        .flags = MSG_F_LENIENT | (args->literal ? MSG_F_LITERAL : 0) |
                                 (ignore_case ? MSG_F_IGNORE_CASE : 0)};
    return 0;
}

void aio_file_grep(struct request *r)
{
    static const struct form form = {.operation = "grep",
                                     .message = "The search is done",
                                     .array = "matches",
                                     .begin = grep_begin,
                                     .wants = grep_wants,
                                     .print = grep_print,
                                     .end = grep_end};
    static const struct opt table[] = {
        OPT("path", 0, OPT_STR, AT(path), NULL, NULL),
        OPT("pattern", 0, OPT_STR, AT(pattern), NULL, NULL),
        OPT("include", 0, OPT_STRV, AT(include), NULL, NULL),
        OPT("exclude", 0, OPT_STRV, AT(exclude), NULL, NULL),
        OPT("case_insensitive", 0, OPT_FLAG, AT(ignore_case), NULL, NULL),
        OPT("fixed_strings", 0, OPT_FLAG, AT(literal), NULL, NULL),
        OPT("max_results", 0, OPT_COUNT, AT(max_results), NULL, NULL),
        OPT("max_file_size", 0, OPT_SIZE, AT(max_file_size), NULL, NULL),
        OPT("offset", 0, OPT_COUNT, AT(offset), NULL, NULL),
        OPT("recursive", 0, OPT_FLAG, AT(recursive), NULL, NULL),
        OPT("context_before", 0, OPT_COUNT, AT(before), NULL, NULL),
        OPT("context_after", 0, OPT_COUNT, AT(after), NULL, NULL),
        OPT("multiline", 0, OPT_FLAG, AT(multiline), NULL, NULL),
        OPT("type", 0, OPT_STR, AT(type), NULL, NULL),
    };
    struct args args = {.recursive = true};
    struct msg first;
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "path", args.path))
        return;
    const char *not_here = args.before || args.after ? "context_before"
                           : args.multiline          ? "multiline"
                           : args.type               ? "type"
                                                     : NULL;
    if (not_here) {
        aio_refuse(r, not_here, "is not supported");
        return;
    }
    struct look *look = look_new(r, &form, &args);
    if (look && grep_request(look, r, "pattern", &first) == 0)
        go(look, r, &first);
}

/* ---- search ---------------------------------------------------------------------------------- */

static void search_begin(struct look *look, struct cay_buf *out)
{
    json_str(out, "file", look->args.path);
}

static bool search_wants(struct look *look, const struct msg *msg)
{
    (void)look;
    return msg->type == FS_MATCH;
}

static void search_print(struct look *look, const struct msg *msg, struct cay_buf *out)
{
    buf_fmt(&look->numbers, "%s%llu", look->numbers.size ? "," : "",
            (unsigned long long)msg->number);
    buf_json(out, msg->text ? msg->text : "");
}

static void search_end(struct look *look, struct cay_buf *out)
{
    json_key(out, "line_numbers");
    buf_str(out, "[");
    if (look->numbers.size)
        buf_add(out, look->numbers.data, look->numbers.size);
    buf_str(out, "]");
}

/* One file. A directory is none: so what it is comes first. */
void aio_file_search(struct request *r)
{
    static const struct form form = {.operation = "search",
                                     .message = "The search is done",
                                     .array = "matches",
                                     .begin = search_begin,
                                     .wants = search_wants,
                                     .print = search_print,
                                     .end = search_end};
    static const struct opt table[] = {
        OPT("file", 0, OPT_STR, AT(path), NULL, NULL),
        OPT("regex", 0, OPT_STR, AT(pattern), NULL, NULL),
    };
    struct args args = {0};
    if (aio_input(r, table, CAY_COUNT(table), &args) < 0 || !aio_has_path(r, "file", args.path))
        return;
    struct look *look = look_new(r, &form, &args);
    /* Reading nothing of it fails for what is no file. */
    if (look && grep_request(look, r, "regex", &look->second) == 0)
        go(look, r, &(struct msg){.type = FS_READ, .path = args.path, .number = 1});
}
