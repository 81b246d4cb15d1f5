/* SPDX-License-Identifier: Apache-2.0 */
/* Reading lines: their members, what a query asks of them, the lifecycle events that they are. */
#include "audit/line.h"

#include "base/err.h"
#include "base/util.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

/* ---- times ----------------------------------------------------------------------------------- */

/* Exactly `n` digits; -1 if there are others. */
static int digits(const char **p, int n)
{
    int value = 0;
    for (int i = 0; i < n; i++, (*p)++) {
        if (**p < '0' || **p > '9')
            return -1;
        value = value * 10 + (**p - '0');
    }
    return value;
}

static bool eat(const char **p, const char *any)
{
    if (!**p || !strchr(any, **p))
        return false;
    (*p)++;
    return true;
}

/* ".5", ".123456": milliseconds, rounded down. Anything up to nine digits. */
static bool fraction(const char **p, uint64_t *ms)
{
    uint64_t value = 0, place = 100;
    int n = 0;
    if (!eat(p, "."))
        return true;
    for (; **p >= '0' && **p <= '9' && n < 9; (*p)++, n++, place /= 10)
        value += (uint64_t)(**p - '0') * place;
    *ms = value;
    return n > 0;
}

/* "Z" or "+01:00": seconds east of UTC. */
static bool zone(const char **p, int64_t *seconds)
{
    if (eat(p, "Zz"))
        return true;
    bool west = **p == '-';
    if (!eat(p, "+-"))
        return false;
    int hours = digits(p, 2), minutes = eat(p, ":") ? digits(p, 2) : -1;
    *seconds = (west ? -1 : 1) * (hours * 3600 + minutes * 60);
    return hours >= 0 && hours < 24 && minutes >= 0 && minutes < 60;
}

static bool read_time(const char *p, uint64_t *ms)
{
    struct tm tm = {0};
    int64_t east = 0;
    uint64_t part = 0;
    bool ok = (tm.tm_year = digits(&p, 4)) >= 1970 && eat(&p, "-") &&
              (tm.tm_mon = digits(&p, 2)) >= 1 && eat(&p, "-") &&
              (tm.tm_mday = digits(&p, 2)) >= 1 && eat(&p, "Tt ") &&
              (tm.tm_hour = digits(&p, 2)) >= 0 && eat(&p, ":") &&
              (tm.tm_min = digits(&p, 2)) >= 0 && eat(&p, ":") &&
              (tm.tm_sec = digits(&p, 2)) >= 0 && fraction(&p, &part) && zone(&p, &east) && !*p;
    if (!ok || tm.tm_mon > 12 || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    if (tm.tm_sec == 60) /* a leap second, which the clock does not have */
        tm.tm_sec = 59;
    int day = tm.tm_mday;
    int64_t seconds = timegm(&tm);
    if (tm.tm_mday != day) /* the 31st of February */
        return false;
    seconds -= east;
    if (seconds < 0)
        return false;
    *ms = (uint64_t)seconds * 1000 + part;
    return true;
}

int audit_time_parse(const char *text, uint64_t *ms, struct cay_error *err)
{
    if (!read_time(text, ms))
        return cay_fail(err, CAY_E_INVALID,
                        "bad time '%.64s': expected one such as 2026-11-15T22:33:44Z", text);
    return 0;
}

/* ---- members --------------------------------------------------------------------------------- */

static const char *text_of(const json_t *root, const char *name)
{
    return json_string_value(json_object_get(root, name));
}

/* A string or null, and it is there. */
static bool text_or_null(const json_t *root, const char *name, const char **out)
{
    const json_t *value = json_object_get(root, name);
    *out = json_string_value(value);
    return json_is_string(value) || json_is_null(value);
}

int audit_line_parse(const char *line, size_t size, struct audit_line *out, struct cay_error *err)
{
    json_error_t why;
    autoline struct audit_line l = {.root = json_loadb(line, size, JSON_REJECT_DUPLICATES, &why)};
    if (!l.root)
        return cay_fail(err, CAY_E_INVALID, "not JSON: %s", why.text);
    const json_t *seq = json_object_get(l.root, "seq");
    l.labels = json_object_get(l.root, "labels");
    l.detail = json_object_get(l.root, "detail");
    l.time = text_of(l.root, "time");
    l.who = text_of(l.root, "who");
    l.action = text_of(l.root, "action");
    l.result = text_of(l.root, "result");
    if (!json_is_integer(seq) || json_integer_value(seq) <= 0 || !json_is_object(l.labels) ||
        !json_is_object(l.detail) || !l.time || !l.who || !l.action || !l.result ||
        !text_or_null(l.root, "tenant", &l.tenant) || !text_or_null(l.root, "sandbox", &l.sandbox))
        return cay_fail(err, CAY_E_INVALID, "a member is missing or of another type");
    if (!read_time(l.time, &l.time_ms))
        return cay_fail(err, CAY_E_INVALID, "the time is none");
    l.seq = (uint64_t)json_integer_value(seq);
    *out = l;
    l.root = NULL;
    return 0;
}

void audit_line_done(struct audit_line *line)
{
    json_decref(line->root);
    *line = (struct audit_line){0};
}

const char *audit_line_text(const struct audit_line *line, const char *name)
{
    return text_of(line->detail, name);
}

bool audit_line_number(const struct audit_line *line, const char *name, uint64_t *out)
{
    const json_t *value = json_object_get(line->detail, name);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* ---- queries --------------------------------------------------------------------------------- */

const char *audit_line_event(const struct audit_line *line)
{
    bool none = strcmp(line->result, "ok") != 0 || !line->sandbox ||
                json_is_true(json_object_get(line->detail, "existed"));
    return none ? NULL : audit_action_event(line->action);
}

static bool has_label(const json_t *labels, const char *label)
{
    size_t key = strcspn(label, "=");
    const char *name, *have;
    json_t *value;
    json_object_foreach((json_t *)labels, name, value)
    {
        if (strncmp(name, label, key) != 0 || name[key])
            continue;
        have = json_string_value(value);
        return !label[key] || (have && strcmp(have, label + key + 1) == 0);
    }
    return false;
}

static bool same(const char *want, const char *have)
{
    return !want || (have && strcmp(want, have) == 0);
}

bool audit_line_matches(const struct audit_line *line, const struct audit_query *query)
{
    return line->seq > query->after_seq && line->time_ms >= query->since_ms &&
           (!query->until_ms || line->time_ms <= query->until_ms) &&
           same(query->sandbox, line->sandbox) && same(query->action, line->action) &&
           (query->tenant && !*query->tenant ? !line->tenant : same(query->tenant, line->tenant)) &&
           (!query->label || has_label(line->labels, query->label)) &&
           (!query->lifecycle_only || audit_line_event(line));
}

/* ---- events ---------------------------------------------------------------------------------- */

static void add_or_null(struct cay_buf *out, const char *name, const char *text)
{
    buf_fmt(out, ",\"%s\":", name);
    if (text)
        buf_json(out, text);
    else
        buf_str(out, "null");
}

/* What a sandbox is after an event, where the line does not say. */
static const char *state_after(const char *event)
{
    static const struct {
        const char *event, *state;
    } states[] = {
        {"created", "running"}, {"paused", "paused"}, {"resumed", "running"}, {"ended", "exited"}};
    for (size_t i = 0; i < CAY_COUNT(states); i++)
        if (strcmp(states[i].event, event) == 0)
            return states[i].state;
    return NULL;
}

int audit_event(const char *line, size_t size, const char *tenant, struct cay_buf *out)
{
    autoline struct audit_line l = {0};
    if (audit_line_parse(line, size, &l, NULL) < 0)
        return 0;
    const char *event = audit_line_event(&l), *id = l.sandbox, *name, *comma = "";
    if (!event || (tenant && (!l.tenant || strcmp(l.tenant, tenant) != 0)))
        return 0;
    size_t prefix = tenant ? strlen(tenant) : 0;
    if (tenant && strncmp(id, tenant, prefix) == 0 && id[prefix] == '~')
        id += prefix + 1;
    const char *state = audit_line_text(&l, "state");
    buf_fmt(out, "{\"seq\":%llu,\"time_ms\":%llu", (unsigned long long)l.seq,
            (unsigned long long)l.time_ms);
    add_or_null(out, "type", event);
    add_or_null(out, "sandbox", id);
    add_or_null(out, "state", state ? state : state_after(event));
    add_or_null(out, "reason", audit_line_text(&l, "reason"));
    buf_str(out, ",\"labels\":{");
    json_t *value;
    json_object_foreach(l.labels, name, value)
    {
        const char *text = json_string_value(value);
        buf_str(out, comma);
        buf_json(out, name);
        buf_str(out, ":");
        buf_json(out, text ? text : "");
        comma = ",";
    }
    buf_str(out, "}}");
    return 1;
}
