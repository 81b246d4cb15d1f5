/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log comes in pages, oldest first. Who wants the last entries only gets all pages read and the
 * tail kept, since the log has no end that could be asked for.
 */
#include "remote/audit.h"

#include "base/err.h"
#include "base/util.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "remote/split.h"

#include <stdio.h>
#include <string.h>

/* Asked for at once. */
#define PAGE 1000
/* Entries kept for the last ones. */
#define MAX_KEPT (256u << 20)

struct reader {
    int (*each)(const struct remote_audit_line *line, void *data);
    void *data;
    bool stopped;
    /* the last ones: a ring of `limit` lines, `n` of them seen; NULL: every line is told at once */
    char **kept;
    uint64_t limit, n;
    size_t bytes;
};

/* ---- a line ---------------------------------------------------------------------------------- */

static void add_word(struct cay_buf *out, const char *before, const char *text)
{
    buf_fmt(out, "%s%s%s", out->size ? " " : "", before, text);
}

static void add_argv(struct cay_buf *out, const json_t *argv)
{
    size_t i;
    json_t *value;
    json_array_foreach(argv, i, value)
    {
        const char *text = json_string_value(value);
        if (text && *text && !strpbrk(text, " \t\n'\"\\$`")) {
            add_word(out, "", text);
            continue;
        }
        buf_str(out, out->size ? " " : "");
        buf_json(out, text ? text : "");
    }
}

/* As cay-audit puts it. */
static void add_summary(struct cay_buf *out, const json_t *detail)
{
    static const struct {
        const char *name, *before;
    } parts[] = {
        {"path", ""},           {"to", "to "},         {"image", "image="},
        {"rule", "rule="},      {"state", "state="},   {"reason", ""},
        {"bytes", "bytes="},    {"pid", "pid="},       {"signal", "signal="},
        {"exit_code", "exit="}, {"ttl_ms", "ttl_ms="}, {"idle_ms", "idle_ms="},
        {"from_seq", "from="},  {"to_seq", "to="},
    };
    add_argv(out, json_object_get(detail, "argv"));
    for (size_t i = 0; i < CAY_COUNT(parts); i++) {
        const json_t *value = json_object_get(detail, parts[i].name);
        char digits[24];
        snprintf(digits, sizeof(digits), "%lld", (long long)json_integer_value(value));
        if (json_is_string(value) || json_is_integer(value))
            add_word(out, parts[i].before,
                     json_is_string(value) ? json_string_value(value) : digits);
    }
    if (json_flag(detail, "existed"))
        add_word(out, "", "existed");
    if (json_flag(detail, "truncated"))
        add_word(out, "", "...");
}

static int tell(struct reader *r, const char *json, size_t size)
{
    autobuf struct cay_buf summary = CAY_BUF(SPLIT_MAX_ELEMENT);
    json_t *object = json_parse(json, size);
    add_summary(&summary, json_object_get(object, "detail"));
    const char *words = buf_cstr(&summary);
    const struct remote_audit_line line = {
        .json = json,
        .size = size,
        .time = json_text(object, "time"),
        .who = json_text(object, "who"),
        .tenant = json_text(object, "tenant"),
        .action = json_text(object, "action"),
        .sandbox = json_text(object, "sandbox"),
        .result = json_text(object, "result"),
        .summary = words ? words : "",
    };
    r->stopped = r->each(&line, r->data) != 0;
    json_decref(object);
    return r->stopped;
}

static int on_line(const char *json, size_t size, void *data)
{
    struct reader *r = data;
    if (!r->kept)
        return tell(r, json, size);
    char **place = &r->kept[r->n++ % r->limit];
    r->bytes -= *place ? strlen(*place) : 0;
    free(*place);
    *place = strndup(json, size);
    r->bytes += size;
    return !*place || r->bytes > MAX_KEPT;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* One page after the entry `after`, which becomes the last of it; 0: there is no more. */
static int read_page(struct cay *cay, const struct remote_audit *query, struct reader *r,
                     uint64_t *after, struct cay_error *err)
{
    autoask struct ask ask;
    json_t *rest = NULL;
    ask_init(&ask, "GET", "audit");
    ask_query(&ask, "since", query->since);
    ask_query(&ask, "until", query->until);
    ask_query(&ask, "sandbox", query->sandbox);
    ask_query(&ask, "tenant", query->tenant);
    ask_query(&ask, "label", query->label);
    ask_query(&ask, "action", query->action);
    ask_query_num(&ask, "limit", PAGE);
    if (*after)
        ask_query_num(&ask, "after", *after);
    ask.seconds = 0;
    if (http_each_text(cay->http, &ask, SPLIT_LIST, on_line, r, &rest, err) < 0)
        return -1;
    if (!rest && !r->stopped)
        return cay_fail(err, CAY_E_TOO_LARGE, "the entries do not fit into memory; use --since");
    *after = r->stopped ? 0 : json_u64(rest, "next_after");
    json_decref(rest);
    return 0;
}

static int read_all(struct cay *cay, const struct remote_audit *query, struct reader *r,
                    struct cay_error *err)
{
    uint64_t after = 0;
    do
        if (read_page(cay, query, r, &after, err) < 0)
            return -1;
    while (after);
    return 0;
}

int remote_audit(struct cay *cay, const struct remote_audit *query,
                 int (*each)(const struct remote_audit_line *line, void *data), void *data,
                 struct cay_error *err)
{
    struct reader r = {.each = each, .data = data, .limit = query->limit};
    if (query->limit > REMOTE_AUDIT_MAX_LAST)
        return cay_fail(err, CAY_E_INVALID, "--limit: at most %d", REMOTE_AUDIT_MAX_LAST);
    if (r.limit && !(r.kept = calloc(r.limit, sizeof(*r.kept))))
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    int result = read_all(cay, query, &r, err);
    for (uint64_t i = r.n > r.limit ? r.n - r.limit : 0; r.kept && i < r.n; i++) {
        char *line = r.kept[i % r.limit];
        if (result == 0 && !r.stopped)
            tell(&r, line, strlen(line));
        free(line);
    }
    free(r.kept);
    return result;
}
