/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/input.h"

#include "base/err.h"
#include "base/util.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Deeper than anything we take by far; the parser recurses. */
#define MAX_DEPTH 32

/* ---- from JSON values to the text that options are made of ----------------------------------- */

static int wrong_type(struct request *r, const struct opt *opt, const char *wanted,
                      struct cay_error *err)
{
    snprintf(r->field, sizeof(r->field), "%s", opt->name);
    return cay_fail(err, CAY_E_INVALID, "'%s' must be %s", opt->name, wanted);
}

static int set_text(struct request *r, const struct opt *opt, void *object, const char *text,
                    struct cay_error *err)
{
    /* A string of nothing is a value: an empty standard input, say. Where it is none, whoever uses
     * it says so. */
    if (opt->type == OPT_STR && !*text && opt->max) {
        *(const char **)(void *)((char *)object + opt->offset) = "";
        return 0;
    }
    char *copy = opt_strndup(&r->arena, text, strlen(text));
    if (!copy)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (opt_set(&r->arena, opt, object, copy, false, err) == 0)
        return 0;
    snprintf(r->field, sizeof(r->field), "%s", opt->name);
    return -1;
}

static int set_number(struct request *r, const struct opt *opt, void *object, const json_t *value,
                      struct cay_error *err)
{
    char text[64];
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    else
        snprintf(text, sizeof(text), "%.9f", json_real_value(value));
    /* So little that it would be nothing, and nothing often means "for ever". */
    if (json_real_value(value) > 0 && strtod(text, NULL) == 0)
        snprintf(text, sizeof(text), "0.001");
    return set_text(r, opt, object, text, err);
}

static int set_list(struct request *r, const struct opt *opt, void *object, const json_t *value,
                    struct cay_error *err)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item))
            return wrong_type(r, opt, "an array of strings", err);
        const char **at = (const char **)((char *)object + opt->offset);
        char *copy = opt_strndup(&r->arena, json_string_value(item), json_string_length(item));
        if (!copy)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        /* Straight into the list: an argument may be empty, an option's value may not. */
        if (opt_append(&r->arena, (const char *const **)(void *)at, copy,
                       opt->max ? opt->max : OPT_MAX_LIST, err) < 0)
            return -1;
    }
    return 0;
}

static int set_pairs(struct request *r, const struct opt *opt, void *object, json_t *value,
                     struct cay_error *err)
{
    const char *key;
    json_t *item;
    json_object_foreach(value, key, item)
    {
        if (!json_is_string(item))
            return wrong_type(r, opt, "an object of strings", err);
        size_t size = strlen(key) + json_string_length(item) + 2;
        char *text = opt_alloc(&r->arena, size);
        if (!text)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        if (strchr(key, '='))
            return wrong_type(r, opt, "an object whose names have no '='", err);
        snprintf(text, size, "%s=%s", key, json_string_value(item));
        if (opt_set(&r->arena, opt, object, text, false, err) < 0) {
            snprintf(r->field, sizeof(r->field), "%s", opt->name);
            return -1;
        }
    }
    return 0;
}

static int set_mounts(struct request *r, const struct opt *opt, void *object, const json_t *value,
                      struct cay_error *err)
{
    static const char wanted[] =
        "an array of {\"source\":\"/...\",\"target\":\"/...\",\"read_only\":true}";
    size_t n = json_array_size(value), max = opt->max ? opt->max : 64;
    struct cay_mount *mounts = opt_alloc(&r->arena, (n + 1) * sizeof(*mounts));
    if (n > max)
        return wrong_type(r, opt, "an array of 64 at most", err);
    if (!mounts)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *source = NULL, *target = NULL;
        int read_only = 0;
        json_t *item = json_array_get(value, i);
        if (!json_is_object(item) ||
            json_unpack_ex(item, NULL, JSON_STRICT, "{s:s,s:s,s?b}", "source", &source, "target",
                           &target, "read_only", &read_only) < 0)
            return wrong_type(r, opt, wanted, err);
        mounts[i].source = opt_strndup(&r->arena, source, strlen(source));
        mounts[i].target = opt_strndup(&r->arena, target, strlen(target));
        mounts[i].read_only = read_only;
        if (!mounts[i].source || !mounts[i].target)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    *(struct cay_mount **)(void *)((char *)object + opt->offset) = mounts;
    *(size_t *)(void *)((char *)object + opt->extra) = n;
    return 0;
}

/* One line for each type of option: what JSON it takes, and how that is set. */
static int set_value(struct request *r, const struct opt *opt, void *object, json_t *value,
                     struct cay_error *err)
{
    bool text = json_is_string(value), number = json_is_number(value);
    if (text && strlen(json_string_value(value)) != json_string_length(value))
        return wrong_type(r, opt, "without zero bytes", err);
    switch (opt->type) {
    case OPT_FLAG:
        if (!json_is_boolean(value))
            return wrong_type(r, opt, "true or false", err);
        return set_text(r, opt, object, json_is_true(value) ? "true" : "false", err);
    case OPT_STR:
    case OPT_ID:
    case OPT_PROFILE:
    case OPT_MODE:
        if (!text)
            return wrong_type(r, opt, "a string", err);
        return set_text(r, opt, object, json_string_value(value), err);
    case OPT_COUNT:
        if (!json_is_integer(value))
            return wrong_type(r, opt, "a whole number", err);
        return set_number(r, opt, object, value, err);
    case OPT_SIZE:
        if (!json_is_integer(value) && !text)
            return wrong_type(r, opt, "a number of bytes, or a string such as \"512M\"", err);
        return text ? set_text(r, opt, object, json_string_value(value), err)
                    : set_number(r, opt, object, value, err);
    case OPT_DURATION:
    case OPT_CPUS:
    case OPT_SIGNAL:
        if (!number && !text)
            return wrong_type(r, opt, "a number or a string", err);
        return text ? set_text(r, opt, object, json_string_value(value), err)
                    : set_number(r, opt, object, value, err);
    case OPT_STRV:
        if (!json_is_array(value))
            return wrong_type(r, opt, "an array of strings", err);
        return set_list(r, opt, object, value, err);
    case OPT_LABELS:
    case OPT_ENV:
        if (!json_is_object(value))
            return wrong_type(r, opt, "an object of strings", err);
        return set_pairs(r, opt, object, value, err);
    case OPT_MOUNTS:
        if (!json_is_array(value))
            return wrong_type(r, opt, "an array", err);
        return set_mounts(r, opt, object, value, err);
    }
    return cay_fail(err, CAY_E_INTERNAL, "an option of no type");
}

/* ---- whole bodies ---------------------------------------------------------------------------- */

static const struct opt *find(const struct opt *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static int unknown(struct request *r, const struct opt *table, size_t n, const char *what,
                   const char *name, struct cay_error *err)
{
    struct opt_near near = {.word = name};
    for (size_t i = 0; i < n; i++)
        opt_near_try(&near, table[i].name);
    const char *best = opt_near_best(&near);
    snprintf(r->field, sizeof(r->field), "%s", name);
    if (best)
        return cay_fail(err, CAY_E_INVALID, "unknown %s '%.64s'; did you mean '%s'?", what, name,
                        best);
    return cay_fail(err, CAY_E_INVALID, "unknown %s '%.64s'", what, name);
}

/* Before the parser, which calls itself for every level. */
static bool too_deep(const char *text, size_t size)
{
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '[') && ++depth > MAX_DEPTH)
            return true;
        else if (!quoted && (c == '}' || c == ']') && depth > 0)
            depth--;
    }
    return false;
}

/* A form of another site cannot send this type without asking first. */
static bool is_json_type(const char *type)
{
    static const char wanted[] = "application/json";
    size_t n = strlen(wanted);
    return type && strncasecmp(type, wanted, n) == 0 &&
           (type[n] == 0 || type[n] == ';' || type[n] == ' ');
}

int input_is_json(struct request *r, struct cay_error *err)
{
    if (is_json_type(request_header(r, "Content-Type")))
        return 0;
    return cay_fail(err, CAY_E_INVALID, "the body must have Content-Type: application/json");
}

int input_parse(const char *text, size_t size, bool zeros, json_t **out, struct cay_error *err)
{
    json_error_t why;
    if (too_deep(text, size))
        return cay_fail(err, CAY_E_INVALID, "the body is nested deeper than %d levels", MAX_DEPTH);
    size_t flags = JSON_REJECT_DUPLICATES | (zeros ? JSON_ALLOW_NUL : 0);
    json_t *body = json_loadb(text, size, flags, &why);
    if (!body && json_error_code(&why) == json_error_null_character)
        return cay_fail(err, CAY_E_INVALID,
                        "an argument, name or other text must not contain NUL (\\u0000)");
    if (!body)
        return cay_fail(err, CAY_E_INVALID, "the body is not JSON: %.120s (line %d, column %d)",
                        why.text, why.line, why.column);
    if (!json_is_object(body)) {
        json_decref(body);
        return cay_fail(err, CAY_E_INVALID, "the body must be a JSON object");
    }
    *out = body;
    return 0;
}

int input_apply(struct request *r, json_t *body, const struct opt *table, size_t n, void *object,
                bool loose, struct cay_error *err)
{
    json_t *value;
    const char *name;
    json_object_foreach(body, name, value)
    {
        const struct opt *opt = find(table, n, name);
        if (!opt && !loose)
            return unknown(r, table, n, "field", name, err);
        if (opt && !json_is_null(value) && set_value(r, opt, object, value, err) < 0)
            return -1;
    }
    return 0;
}

static int take_body(struct request *r, const struct opt *table, size_t n, void *object, bool loose,
                     struct cay_error *err)
{
    json_t *body;
    if (r->body.size == 0)
        return 0;
    if (input_is_json(r, err) < 0 || input_parse(r->body.data, r->body.size, false, &body, err) < 0)
        return -1;
    int result = input_apply(r, body, table, n, object, loose, err);
    json_decref(body);
    return result;
}

int input_json(struct request *r, const struct opt *table, size_t n, void *object,
               struct cay_error *err)
{
    return take_body(r, table, n, object, false, err);
}

int input_json_loose(struct request *r, const struct opt *table, size_t n, void *object,
                     struct cay_error *err)
{
    return take_body(r, table, n, object, true, err);
}

/* ---- queries --------------------------------------------------------------------------------- */

struct query {
    struct request *r;
    const struct opt *table;
    size_t n;
    void *object;
    struct cay_error *err;
    int result;
    uint64_t seen; /* bits of the table */
};

static int set_parameter(struct query *q, const char *name, size_t name_size, const char *value,
                         size_t size)
{
    struct request *r = q->r;
    const struct opt *opt = find(q->table, q->n, name);
    if (strlen(name) != name_size || (value && strlen(value) != size))
        return cay_fail(q->err, CAY_E_INVALID, "the query has a zero byte");
    if (!opt)
        return unknown(r, q->table, q->n, "parameter", name, q->err);
    uint64_t bit = 1ull << (opt - q->table);
    if ((q->seen & bit) && opt->type < OPT_STRV) {
        snprintf(r->field, sizeof(r->field), "%s", name);
        return cay_fail(q->err, CAY_E_INVALID, "the parameter '%s' is given twice", name);
    }
    q->seen |= bit;
    return set_text(r, opt, q->object, value ? value : opt->type == OPT_FLAG ? "true" : "", q->err);
}

static enum MHD_Result on_parameter(void *cls, enum MHD_ValueKind kind, const char *name,
                                    size_t name_size, const char *value, size_t size)
{
    struct query *q = cls;
    (void)kind;
    if (q->result == 0)
        q->result = set_parameter(q, name, name_size, value, size);
    return q->result == 0 ? MHD_YES : MHD_NO;
}

int input_query(struct request *r, const struct opt *table, size_t n, void *object,
                struct cay_error *err)
{
    struct query q = {.r = r, .table = table, .n = n, .object = object, .err = err};
    MHD_get_connection_values_n(r->mhd, MHD_GET_ARGUMENT_KIND, on_parameter, &q);
    return q.result;
}

int input_no_query(struct request *r, struct cay_error *err)
{
    return input_query(r, NULL, 0, NULL, err);
}
