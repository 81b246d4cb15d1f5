/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From rules and a spec to a verdict. Every refusal is made by `refuse`, which puts the rule's name
 * into the text and beside it. What a caller wrote is shown as he wrote it, never as what it
 * resolved to: that would tell him where links of the host lead.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "policy/rules.h"
#include "wire/glob.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------------------- */

void rule_print_name(const struct rule_set *set, enum rule rule, char *out, size_t size)
{
    const char *name = rule_table[rule].name;
    switch (set->values[rule].origin) {
    case RULE_TENANT:
        snprintf(out, size, "tenant %s.%s", set->tenant, name);
        return;
    case RULE_POLICY:
        snprintf(out, size, "policy.%s", name);
        return;
    case RULE_UNSET:
    case RULE_BUILTIN:
        snprintf(out, size, "builtin.%s", name);
        return;
    }
}

struct unit {
    uint64_t factor;
    const char *name;
};

/* The largest unit that leaves a whole number. */
static void print_in(const struct unit *units, size_t n, uint64_t number, char out[32])
{
    size_t i = 0;
    while (i + 1 < n && (number == 0 || number % units[i].factor))
        i++;
    snprintf(out, 32, "%" PRIu64 "%s", number / units[i].factor, units[i].name);
}

void rule_print_number(enum rule_kind kind, uint64_t number, char out[32])
{
    static const struct unit sizes[] = {
        {1ULL << 40, "T"}, {1ULL << 30, "G"}, {1ULL << 20, "M"}, {1ULL << 10, "K"}, {1, ""}};
    static const struct unit times[] = {
        {86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    if (kind == RULE_SIZE)
        print_in(sizes, CAY_COUNT(sizes), number, out);
    else if (kind == RULE_TIME)
        print_in(times, CAY_COUNT(times), number, out);
    else if (kind == RULE_CPUS && number % 1000)
        snprintf(out, 32, "%" PRIu64 ".%03" PRIu64, number / 1000, number % 1000);
    else
        snprintf(out, 32, "%" PRIu64, kind == RULE_CPUS ? number / 1000 : number);
}

struct judge {
    const struct rule_set *set;
    struct operator_refusal *why;
    struct cay_error *err;
};

/* Says which rule refuses; the text begins with what the caller asked for. */
static int refuse(const struct judge *j, enum cay_code code, enum rule rule, const char *field,
                  const char *what)
{
    char name[96];
    rule_print_name(j->set, rule, name, sizeof(name));
    if (j->why) {
        memcpy(j->why->rule, name, sizeof(name));
        j->why->field = field;
    }
    return cay_fail(j->err, code, "%s: refused by the rule %s", what, name);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t standard_memory(const struct cay_spec *spec)
{
    return spec->memory ? spec->memory : 2ULL << 30;
}

static uint64_t standard_disk(const struct cay_spec *spec)
{
    uint64_t half = standard_memory(spec) / 2;
    return spec->disk ? spec->disk : CAY_MAX(CAY_MIN(1ULL << 30, half), 1ULL << 20);
}

static uint64_t standard_inodes(const struct cay_spec *spec)
{
    return CAY_MAX(standard_disk(spec) / 4096, 64ULL);
}

static uint64_t standard_pids(const struct cay_spec *spec)
{
    (void)spec;
    return 1024;
}

static uint64_t standard_fds(const struct cay_spec *spec)
{
    (void)spec;
    return 4096;
}

static uint64_t standard_output(const struct cay_spec *spec)
{
    (void)spec;
    return 8ULL << 20;
}

static uint64_t standard_cpus(const struct cay_spec *spec)
{
    (void)spec;
    return OPERATOR_NO_LIMIT;
}

/*
 * Fields with a ceiling, in the order in which they depend on each other. `standard` is what the
 * engine takes when nothing is said (sandbox/spec.c; a unit test holds the two together); without
 * it nothing said means "never ends", which a ceiling does not allow.
 */
static const struct field {
    const char *name;
    size_t offset;
    enum rule max, fallback, total; /* total: N_RULES if there is none */
    uint64_t (*standard)(const struct cay_spec *spec);
} fields[] = {
#define FIELD(name, member, ID, total, standard)                                              \
    {                                                                                         \
        name, offsetof(struct cay_spec, member), RULE_##ID##_MAX, RULE_##ID##_DEFAULT, total, \
            standard                                                                          \
    }
    FIELD("memory", memory, MEMORY, RULE_MEMORY_TOTAL, standard_memory),
    FIELD("cpus", cpus, CPUS, RULE_CPUS_TOTAL, standard_cpus),
    FIELD("pids", pids, PIDS, N_RULES, standard_pids),
    FIELD("disk", disk, DISK, RULE_DISK_TOTAL, standard_disk),
    FIELD("inodes", inodes, INODES, N_RULES, standard_inodes),
    FIELD("fds", fds, FDS, N_RULES, standard_fds),
    FIELD("output", output, OUTPUT, N_RULES, standard_output),
    FIELD("ttl", ttl_ms, TTL, N_RULES, NULL),
    FIELD("idle", idle_ms, IDLE, N_RULES, NULL),
#undef FIELD
};

/* What a field that was left out becomes; 0: it stays unset. A default never beats a ceiling. */
static uint64_t fill(const struct judge *j, const struct field *f, const struct cay_spec *spec)
{
    uint64_t max = rule_limit(j->set, f->max), value = rule_limit(j->set, f->fallback);
    bool counted = f->total != N_RULES && rule_limit(j->set, f->total) != OPERATOR_NO_LIMIT;
    if (value == OPERATOR_NO_LIMIT && f->standard && (max != OPERATOR_NO_LIMIT || counted))
        value = CAY_MIN(f->standard(spec), max);
    /* Left out would mean "without end": under a ceiling it means the ceiling. */
    if (value == OPERATOR_NO_LIMIT && !f->standard)
        value = max;
    return value == OPERATOR_NO_LIMIT ? 0 : CAY_MIN(value, max);
}

static int check_ceiling(const struct judge *j, const struct field *f, uint64_t value)
{
    uint64_t max = rule_limit(j->set, f->max);
    enum rule_kind kind = rule_table[f->max].kind;
    char what[160], given[32], most[32];
    if (max == OPERATOR_NO_LIMIT || (value && value <= max))
        return 0;
    rule_print_number(kind, value, given);
    rule_print_number(kind, max, most);
    if (value)
        snprintf(what, sizeof(what), "%s of %s is more than %s", f->name, given, most);
    else
        snprintf(what, sizeof(what), "%s has to be set, to %s at most", f->name, most);
    return refuse(j, CAY_E_LIMIT, f->max, f->name, what);
}

static int check_numbers(const struct judge *j, struct cay_spec *spec)
{
    for (size_t i = 0; i < CAY_COUNT(fields); i++) {
        uint64_t *value = (uint64_t *)(void *)((char *)spec + fields[i].offset);
        /* A ceiling that nobody wrote is for those who ask for more; the defaults of cay.conf go
         * on. */
        bool unsaid = !*value && j->set->values[fields[i].max].origin == RULE_BUILTIN &&
                      rule_limit(j->set, fields[i].fallback) == OPERATOR_NO_LIMIT;
        if (unsaid)
            continue;
        if (!*value)
            *value = fill(j, &fields[i], spec);
        /* What is still unset and has a standard has no ceiling either. */
        if (check_ceiling(j, &fields[i], *value) < 0)
            return -1;
    }
    return 0;
}

/* ---- image and profile ----------------------------------------------------------------------- */

static bool is_pattern(const char *text)
{
    return strpbrk(text, "*?[\\") != NULL;
}

static bool is_directory(const char *image)
{
    return strncmp(image, "dir:", 4) == 0;
}

static bool match_image(const char *entry, const char *image)
{
    /* "**" is for names of images; a directory of the host has to be meant. */
    if (is_directory(image) && !is_directory(entry))
        return false;
    return strcmp(entry, image) == 0 || (is_pattern(entry) && glob_match(entry, image));
}

static int check_image(const struct judge *j, struct cay_spec *spec, const char *resolved)
{
    const struct rule_value *rule = &j->set->values[RULE_IMAGES];
    char what[320], path[4096 + 8];
    if (rule->origin == RULE_UNSET)
        return 0;
    if (!spec->image || !*spec->image) {
        /* A directory would have to be resolved and judged like any other. */
        bool named = rule->list && !is_pattern(rule->list[0]) && !is_directory(rule->list[0]);
        spec->image = named ? rule->list[0] : "host";
        if (named)
            return 0;
    }
    const char *image = spec->image;
    if (is_directory(image)) {
        snprintf(path, sizeof(path), "dir:%s", resolved ? resolved : "");
        image = resolved && resolved[0] == '/' ? path : NULL;
    }
    for (const char *const *entry = rule->list; image && entry && *entry; entry++)
        if (match_image(*entry, image))
            return 0;
    snprintf(what, sizeof(what), "image '%.200s'", spec->image);
    return refuse(j, CAY_E_DENIED, RULE_IMAGES, "image", what);
}

static int check_profile(const struct judge *j, struct cay_spec *spec)
{
    const struct rule_value *rule = &j->set->values[RULE_PROFILES];
    enum cay_profile profile;
    char what[64];
    if (rule->origin == RULE_UNSET)
        return 0;
    for (const char *const *entry = rule->list; entry && *entry; entry++) {
        if (parse_profile(*entry, &profile, NULL) < 0)
            continue;
        if (spec->profile == CAY_PROFILE_UNSET)
            spec->profile = profile; /* the first one is what silence means */
        if (spec->profile == profile)
            return 0;
    }
    snprintf(what, sizeof(what), "profile '%s'",
             parse_profile_name(spec->profile ? spec->profile : CAY_PROFILE_DEFAULT));
    return refuse(j, CAY_E_DENIED, RULE_PROFILES, "profile", what);
}

/* ---- mounts ---------------------------------------------------------------------------------- */

/* What a resolver hands over: absolute, no empty, "." or ".." component. Anything else was not
 * resolved, and a prefix of it would say nothing. */
static bool is_resolved(const char *path)
{
    if (path[0] != '/')
        return false;
    for (const char *p = path + 1; path[1]; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (!*p)
            break;
    }
    return true;
}

/* Component by component: /srv/data holds /srv/data/x and not /srv/database. */
static bool lies_in(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    if (n == 1)
        return true; /* "/" */
    return strncmp(path, prefix, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static bool is_allowed(const struct judge *j, enum rule rule, const char *path)
{
    for (const char *const *entry = j->set->values[rule].list; entry && *entry; entry++)
        if (lies_in(path, *entry))
            return true;
    return false;
}

static int check_mount(const struct judge *j, const struct cay_mount *mount, const char *path)
{
    char what[400];
    bool known = path && is_resolved(path);
    if (known && is_allowed(j, RULE_MOUNTS_RW, path))
        return 0;
    if (known && mount->read_only && is_allowed(j, RULE_MOUNTS, path))
        return 0;
    snprintf(what, sizeof(what), "mount source '%.200s'%s", mount->source ? mount->source : "",
             mount->read_only ? "" : ", writable");
    return refuse(j, CAY_E_DENIED, mount->read_only ? RULE_MOUNTS : RULE_MOUNTS_RW, "mounts", what);
}

static int check_mounts(const struct judge *j, const struct cay_spec *spec,
                        const char *const *resolved)
{
    if (j->set->values[RULE_MOUNTS].origin == RULE_UNSET)
        return 0;
    for (size_t i = 0; i < spec->n_mounts; i++)
        if (check_mount(j, &spec->mounts[i], resolved ? resolved[i] : NULL) < 0)
            return -1;
    return 0;
}

/* ---- the verdicts ---------------------------------------------------------------------------- */

static struct judge start(const struct operator_policy *policy, const char *tenant,
                          struct operator_refusal *why, struct cay_error *err)
{
    if (why)
        *why = (struct operator_refusal){0};
    return (struct judge){rules_of(policy, tenant), why, err};
}

int operator_check(const struct operator_policy *policy, const char *tenant, struct cay_spec *spec,
                   const struct operator_resolved *resolved, struct operator_refusal *why,
                   struct cay_error *err)
{
    static const struct operator_resolved nothing;
    struct judge j = start(policy, tenant, why, err);
    struct cay_spec filled = *spec;
    if (!resolved)
        resolved = &nothing;
    if (check_image(&j, &filled, resolved->image) < 0 || check_profile(&j, &filled) < 0 ||
        check_mounts(&j, &filled, resolved->sources) < 0 || check_numbers(&j, &filled) < 0)
        return -1;
    *spec = filled;
    return 0;
}

int operator_check_lifetime(const struct operator_policy *policy, const char *tenant,
                            const struct cay_lifetime *lifetime, struct operator_refusal *why,
                            struct cay_error *err)
{
    struct judge j = start(policy, tenant, why, err);
    for (size_t i = 0; i < CAY_COUNT(fields); i++) {
        const struct field *f = &fields[i];
        if (f->max == RULE_TTL_MAX && lifetime->set_ttl &&
            check_ceiling(&j, f, lifetime->ttl_ms) < 0)
            return -1;
        if (f->max == RULE_IDLE_MAX && lifetime->set_idle &&
            check_ceiling(&j, f, lifetime->idle_ms) < 0)
            return -1;
    }
    return 0;
}

int operator_check_quota(const struct operator_policy *policy, const char *tenant, const char *key,
                         uint64_t used, uint64_t more, struct operator_refusal *why,
                         struct cay_error *err)
{
    struct judge j = start(policy, tenant, why, err);
    char what[160], limit_text[32], used_text[32], more_text[32];
    size_t rule = RULE_SANDBOXES_MAX;
    while (rule < N_RULES && strcmp(rule_table[rule].name, key) != 0)
        rule++;
    if (rule == N_RULES)
        return cay_fail(err, CAY_E_INTERNAL, "no quota is called '%.64s'", key);
    uint64_t limit = rule_limit(j.set, (enum rule)rule);
    if (limit == OPERATOR_NO_LIMIT || (used <= limit && more <= limit - used))
        return 0;
    rule_print_number(rule_table[rule].kind, limit, limit_text);
    rule_print_number(rule_table[rule].kind, used, used_text);
    rule_print_number(rule_table[rule].kind, more, more_text);
    snprintf(what, sizeof(what), "%s and %s more are above %s%s", used_text, more_text, limit_text,
             rule == RULE_CREATE_RATE ? " in a minute" : "");
    return refuse(&j, CAY_E_LIMIT, (enum rule)rule, NULL, what);
}
