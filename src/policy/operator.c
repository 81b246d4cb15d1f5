/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the document to rules. The sections of tenants are looked up first, so that every set of
 * rules has its place before base/opt reads the document; then values that a section leaves out are
 * copied in from [policy] and from the built-in rules, and the sets are checked as a whole.
 */
#include "policy/operator.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/parse.h"
#include "base/util.h"
#include "policy/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 1024 /* of one list: each is compared with what a create asks for */

const struct rule_info rule_table[N_RULES] = {
#define RULE_X(id, name_, kind_, zero_) [RULE_##id] = {#name_, RULE_##kind_, zero_},
    RULE_TABLE(RULE_X)
#undef RULE_X
};

bool operator_tenant_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < CAY_MAX_TENANT && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n && strcmp(name, "pool") != 0;
}

static int no_memory(struct cay_error *err)
{
    return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
}

/* ---- single values --------------------------------------------------------------------------- */

struct reader {
    struct operator_policy *policy;
    struct rule_set *set;
};

/* An absolute path without "//", "." and a slash at its end, written in place; ".." is refused:
 * what it means depends on links, and a rule has to say what it means. */
static int normalize(char *path, struct cay_error *err)
{
    char *to = path;
    if (path[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "'%s' is not an absolute path", path);
    for (const char *p = path; *p;) {
        size_t n = strcspn(++p, "/");
        if (n == 2 && memcmp(p, "..", 2) == 0)
            return cay_fail(err, CAY_E_INVALID, "a path cannot have '..' in it: '%s'", path);
        if (n && !(n == 1 && *p == '.')) {
            *to++ = '/';
            memmove(to, p, n);
            to += n;
        }
        p += n;
    }
    if (to == path)
        *to++ = '/';
    *to = 0;
    return 0;
}

static int check_entry(enum rule_kind kind, char *entry, struct cay_error *err)
{
    enum cay_profile profile;
    if (kind == RULE_PROFILE_LIST)
        return parse_profile(entry, &profile, err);
    if (kind == RULE_PATH_LIST)
        return strlen(entry) >= CAY_MAX_PATH
                   ? cay_fail(err, CAY_E_INVALID, "a path of %zu bytes is too long", strlen(entry))
                   : normalize(entry, err);
    if (strncmp(entry, "dir:", 4) == 0 && entry[4] != '/')
        return cay_fail(err, CAY_E_INVALID, "'%s': the path must be absolute", entry);
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Entries separated by commas; the key may be given again to go on. "none" is the empty list. */
static int set_list(struct reader *r, enum rule rule, const char *text, struct cay_error *err)
{
    struct rule_value *value = &r->set->values[rule];
    bool was_none = value->origin && !value->list;
    for (const char *p = text, *end; p; p = *end ? end + 1 : NULL) {
        end = p + strcspn(p, ",");
        size_t n = (size_t)(end - p);
        while (n && is_blank(*p))
            p++, n--;
        while (n && is_blank(p[n - 1]))
            n--;
        char *entry = opt_strndup(&r->policy->arena, p, n);
        if (!entry)
            return no_memory(err);
        if (!*entry)
            return cay_fail(err, CAY_E_INVALID, "an empty entry; 'none' is the empty list");
        bool none = strcmp(entry, "none") == 0;
        if (was_none || (none && value->list))
            return cay_fail(err, CAY_E_INVALID, "'none' cannot have other entries beside it");
        value->origin = r->set->tenant ? RULE_TENANT : RULE_POLICY;
        was_none = none;
        if (!none && (check_entry(rule_table[rule].kind, entry, err) < 0 ||
                      opt_append(&r->policy->arena, &value->list, entry, MAX_ENTRIES, err) < 0))
            return -1;
    }
    return 0;
}

static int read_number(enum rule_kind kind, const char *text, uint64_t *out, struct cay_error *err)
{
    switch (kind) {
    case RULE_SIZE:
        return parse_size(text, out, err);
    case RULE_CPUS:
        return parse_cpus(text, out, err);
    case RULE_COUNT:
        return parse_count(text, out, err);
    case RULE_TIME:
        return parse_duration(text, out, err);
    case RULE_IMAGE_LIST:
    case RULE_PROFILE_LIST:
    case RULE_PATH_LIST:
        break;
    }
    return cay_fail(err, CAY_E_INTERNAL, "a list is not a number");
}

static int set_number(struct reader *r, enum rule rule, const char *text, struct cay_error *err)
{
    struct rule_value *value = &r->set->values[rule];
    uint64_t number = OPERATOR_NO_LIMIT;
    if (value->origin)
        return cay_fail(err, CAY_E_INVALID, "given twice in one section");
    if (strcmp(text, "none") != 0) {
        if (read_number(rule_table[rule].kind, text, &number, err) < 0)
            return -1;
        if (number == 0 && !rule_table[rule].zero)
            return cay_fail(err, CAY_E_INVALID, "0 is not a limit; 'none' is no limit");
        if (number == OPERATOR_NO_LIMIT)
            return cay_fail(err, CAY_E_INVALID, "%s is too large; 'none' is no limit", text);
    }
    value->origin = r->set->tenant ? RULE_TENANT : RULE_POLICY;
    value->number = number;
    return 0;
}

static int set_exempt(struct reader *r, const char *text, struct cay_error *err)
{
    static const struct opt option = OPT("operator_exempt", 0, OPT_FLAG, 0, NULL, "");
    if (r->set->tenant)
        return cay_fail(err, CAY_E_INVALID, "can only stand in [policy]");
    return opt_set(&r->policy->arena, &option, &r->policy->operator_exempt, text, false, err);
}

static int unknown_key(const char *key, struct cay_error *err)
{
    struct opt_near near = {.word = key};
    for (size_t i = 0; i < N_RULES; i++)
        opt_near_try(&near, rule_table[i].name);
    opt_near_try(&near, "operator_exempt");
    const char *best = opt_near_best(&near);
    return best ? cay_fail(err, CAY_E_INVALID, "unknown key '%.64s'; did you mean '%s'?", key, best)
                : cay_fail(err, CAY_E_INVALID, "unknown key '%.64s'", key);
}

static int read_pair(const char *key, const char *text, void *data, struct cay_error *err)
{
    struct reader *r = data;
    int result;
    size_t rule = 0;
    while (rule < N_RULES && strcmp(rule_table[rule].name, key) != 0)
        rule++;
    if (strcmp(key, "operator_exempt") == 0)
        result = set_exempt(r, text, err);
    else if (rule == N_RULES)
        return unknown_key(key, err);
    else if (rule_table[rule].kind < RULE_SIZE)
        result = set_list(r, (enum rule)rule, text, err);
    else
        result = set_number(r, (enum rule)rule, text, err);
    return result < 0 ? cay_fail_context(err, "%s", key) : 0;
}

/* ---- sections -------------------------------------------------------------------------------- */

/* The name in "[tenant NAME]", or NULL if the line is something else: base/opt judges that then. */
static char *tenant_of(struct opt_arena *arena, const char *line, size_t size)
{
    static const char word[] = "tenant";
    const char *end = memchr(line, ']', size);
    while (size && is_blank(*line))
        line++, size--;
    if (!end || !size || *line++ != '[')
        return NULL;
    while (line < end && is_blank(*line))
        line++;
    while (end > line && is_blank(end[-1]))
        end--;
    if ((size_t)(end - line) <= strlen(word) || memcmp(line, word, strlen(word)) != 0 ||
        line[strlen(word)] != ' ')
        return NULL;
    return opt_strndup(arena, line, (size_t)(end - line));
}

struct sections {
    struct opt_section list[OPERATOR_MAX_TENANTS + 2]; /* [policy], tenants, the end */
    struct reader readers[OPERATOR_MAX_TENANTS + 1];
    size_t n;
};

/* `title` is "tenant NAME" and lives in the arena. A section that is there already goes on. */
static int add_tenant(struct operator_policy *policy, struct sections *sections, const char *title,
                      struct cay_error *err)
{
    const char *name = title + strlen("tenant ");
    if (!operator_tenant_ok(name))
        return cay_fail(err, CAY_E_INVALID,
                        "[%.64s]: a tenant's name has 1 to 24 of a-z, 0-9 and '-', does not begin "
                        "with '-' and is not 'pool'",
                        title);
    for (size_t i = 1; i < sections->n; i++)
        if (strcmp(sections->list[i].name, title) == 0)
            return 0;
    if (policy->n_tenants == OPERATOR_MAX_TENANTS)
        return cay_fail(err, CAY_E_TOO_LARGE, "more than %d tenants", OPERATOR_MAX_TENANTS);
    struct rule_set *set = &policy->tenants[policy->n_tenants++];
    set->tenant = name;
    sections->readers[sections->n] = (struct reader){policy, set};
    sections->list[sections->n] = (struct opt_section){
        .name = title, .each = read_pair, .data = &sections->readers[sections->n]};
    sections->n++;
    return 0;
}

static int find_tenants(const char *name, const char *text, size_t size,
                        struct operator_policy *policy, struct sections *sections,
                        struct cay_error *err)
{
    const char *end = text + size;
    for (unsigned number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        char *title = tenant_of(&policy->arena, text, n);
        if (title && add_tenant(policy, sections, title, err) < 0)
            return cay_fail_context(err, "%s:%u", name, number);
        text += n + 1;
    }
    return 0;
}

/* An upper bound: lines that could begin a section. */
static size_t count_sections(const char *text, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++)
        n += text[i] == '[';
    return CAY_MIN(n, (size_t)OPERATOR_MAX_TENANTS);
}

/* ---- from what was written to what counts ---------------------------------------------------- */

static const char *const builtin_images[] = {"host", NULL};

static const struct {
    enum rule rule;
    struct rule_value value;
} builtin[] = {
    {RULE_IMAGES, {RULE_BUILTIN, 0, builtin_images}},
    {RULE_MOUNTS, {RULE_BUILTIN, 0, NULL}},
    {RULE_MOUNTS_RW, {RULE_BUILTIN, 0, NULL}},
    {RULE_ENDED_MAX, {RULE_BUILTIN, 1000, NULL}},
    {RULE_REQUESTS_MAX, {RULE_BUILTIN, 512, NULL}},
    {RULE_OUTPUT_MAX, {RULE_BUILTIN, 64 << 20, NULL}},
};

static void inherit(struct rule_set *set, const struct rule_set *from)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (set->values[i].origin == RULE_UNSET)
            set->values[i] = from->values[i];
}

static void add_builtin(struct rule_set *set)
{
    for (size_t i = 0; i < CAY_COUNT(builtin); i++)
        if (set->values[builtin[i].rule].origin == RULE_UNSET)
            set->values[builtin[i].rule] = builtin[i].value;
}

/* Whoever writes a larger default means it. */
static void raise_builtin(struct rule_set *set)
{
    struct rule_value *most = &set->values[RULE_OUTPUT_MAX];
    uint64_t standard = rule_limit(set, RULE_OUTPUT_DEFAULT);
    if (most->origin == RULE_BUILTIN && standard != OPERATOR_NO_LIMIT && standard > most->number)
        most->number = standard;
}

/* Who allows some host paths for reading has not allowed all of them for writing, and vice versa.
 */
static void pair_mounts(struct rule_set *set)
{
    struct rule_value *ro = &set->values[RULE_MOUNTS], *rw = &set->values[RULE_MOUNTS_RW];
    if (ro->origin && !rw->origin)
        rw->origin = ro->origin;
    else if (rw->origin && !ro->origin)
        ro->origin = rw->origin;
}

static void print_set_name(const struct rule_set *set, char out[64])
{
    snprintf(out, 64, set->tenant ? "[tenant %s]" : "[policy]", set->tenant);
}

/* Both written in one section: a contradiction. An inherited default gives way (judge.c). */
static int check_defaults(const struct rule_set *set, struct cay_error *err)
{
    char where[64];
    print_set_name(set, where);
    for (size_t i = RULE_MEMORY_MAX; i < RULE_SANDBOXES_MAX; i += 2) {
        const struct rule_value *max = &set->values[i], *standard = &set->values[i + 1];
        if (max->origin && max->origin == standard->origin &&
            standard->number != OPERATOR_NO_LIMIT && standard->number > max->number)
            return cay_fail(err, CAY_E_INVALID, "%s %s is above %s", where, rule_table[i + 1].name,
                            rule_table[i].name);
    }
    if (rule_limit(set, RULE_CPUS_TOTAL) != OPERATOR_NO_LIMIT &&
        rule_limit(set, RULE_CPUS_MAX) == OPERATOR_NO_LIMIT &&
        rule_limit(set, RULE_CPUS_DEFAULT) == OPERATOR_NO_LIMIT)
        return cay_fail(err, CAY_E_INVALID,
                        "%s cpus_total needs cpus_max or cpus_default: a sandbox without a limit "
                        "cannot be counted",
                        where);
    return 0;
}

static int complete(struct rule_set *set, struct cay_error *err)
{
    raise_builtin(set);
    set->quota = (struct operator_quota){
        .sandboxes_max = rule_limit(set, RULE_SANDBOXES_MAX),
        .ended_max = rule_limit(set, RULE_ENDED_MAX),
        .memory_total = rule_limit(set, RULE_MEMORY_TOTAL),
        .cpus_total = rule_limit(set, RULE_CPUS_TOTAL),
        .disk_total = rule_limit(set, RULE_DISK_TOTAL),
        .execs_max = rule_limit(set, RULE_EXECS_MAX),
        .requests_max = rule_limit(set, RULE_REQUESTS_MAX),
        .create_rate = rule_limit(set, RULE_CREATE_RATE),
    };
    return check_defaults(set, err);
}

static int compile(struct operator_policy *policy, struct rule_set *written, struct cay_error *err)
{
    policy->others = *written;
    add_builtin(&policy->others);
    if (complete(&policy->others, err) < 0)
        return -1;
    for (size_t i = 0; i < policy->n_tenants; i++) {
        inherit(&policy->tenants[i], &policy->others);
        if (complete(&policy->tenants[i], err) < 0)
            return -1;
    }
    if (!policy->operator_exempt)
        policy->own = *written;
    pair_mounts(&policy->own);
    return complete(&policy->own, err);
}

static int parse_document(const char *name, const char *text, size_t size,
                          struct operator_policy *policy, struct cay_error *err)
{
    struct rule_set written = {0}; /* lists are the arena's; their places are not kept */
    autofree struct sections *sections = calloc(1, sizeof(*sections));
    policy->tenants =
        opt_alloc(&policy->arena, (count_sections(text, size) + 1) * sizeof(*policy->tenants));
    if (!sections || !policy->tenants)
        return no_memory(err);
    sections->readers[0] = (struct reader){policy, &written};
    sections->list[0] =
        (struct opt_section){.name = "policy", .each = read_pair, .data = &sections->readers[0]};
    sections->n = 1;
    if (find_tenants(name, text, size, policy, sections, err) < 0 ||
        opt_config(&policy->arena, name, text, size, sections->list, err) < 0)
        return -1;
    return compile(policy, &written, err) < 0 ? cay_fail_context(err, "%s", name) : 0;
}

int operator_parse(const char *name, const char *text, size_t size, struct operator_policy **out,
                   struct cay_error *err)
{
    if (size > CAY_MAX_CONFIG)
        return cay_fail(err, CAY_E_TOO_LARGE, "%s: larger than %u bytes", name, CAY_MAX_CONFIG);
    struct operator_policy *policy = calloc(1, sizeof(*policy));
    if (!policy)
        return no_memory(err);
    policy->operator_exempt = true;
    if (parse_document(name, size ? text : "", size, policy, err) < 0) {
        operator_free(policy);
        return -1;
    }
    *out = policy;
    return 0;
}

void operator_free(struct operator_policy *policy)
{
    if (policy)
        opt_arena_done(&policy->arena);
    free(policy);
}

/* ---- looking things up ----------------------------------------------------------------------- */

const struct rule_set *rules_of(const struct operator_policy *policy, const char *tenant)
{
    if (!*tenant)
        return &policy->own;
    for (size_t i = 0; i < policy->n_tenants; i++)
        if (strcmp(policy->tenants[i].tenant, tenant) == 0)
            return &policy->tenants[i];
    return &policy->others;
}

const struct operator_quota *operator_quota(const struct operator_policy *policy,
                                            const char *tenant)
{
    return &rules_of(policy, tenant)->quota;
}

int operator_each_path(const struct operator_policy *policy,
                       int (*each)(const char *path, const char *rule, void *data), void *data)
{
    static const enum rule lists[] = {RULE_MOUNTS, RULE_MOUNTS_RW};
    for (size_t i = 0; i <= policy->n_tenants; i++) {
        const struct rule_set *set = i ? &policy->tenants[i - 1] : &policy->others;
        for (size_t k = 0; k < CAY_COUNT(lists); k++) {
            const char *const *entry = set->values[lists[k]].list;
            char rule[96];
            rule_print_name(set, lists[k], rule, sizeof(rule));
            for (int r; entry && *entry; entry++)
                if ((r = each(*entry, rule, data)) != 0)
                    return r;
        }
    }
    return 0;
}
