/* SPDX-License-Identifier: Apache-2.0 */
#include "base/opt.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/parse.h"
#include "base/util.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- the arena ------------------------------------------------------------------------------- */

struct opt_chunk {
    struct opt_chunk *next;
    size_t used, size;
    _Alignas(max_align_t) char bytes[];
};

/* A list that grows: where its pointer is kept, and how much of its array is used. */
struct opt_list {
    struct opt_list *next;
    const void *owner;
    const void *array; /* as last written to the owner; anything else there is not ours */
    size_t n, capacity;
};

void opt_arena_done(struct opt_arena *arena)
{
    for (struct opt_chunk *next, *chunk = arena->chunks; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    *arena = (struct opt_arena){0};
}

void *opt_alloc(struct opt_arena *arena, size_t size)
{
    size_t align = _Alignof(max_align_t);
    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + align - 1) & ~(align - 1);
    struct opt_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < size) {
        size_t room = CAY_MAX(size, (size_t)2000);
        chunk = malloc(sizeof(*chunk) + room);
        if (!chunk)
            return NULL;
        *chunk = (struct opt_chunk){.next = arena->chunks, .size = room};
        arena->chunks = chunk;
    }
    void *result = chunk->bytes + chunk->used;
    chunk->used += size;
    memset(result, 0, size);
    return result;
}

char *opt_strndup(struct opt_arena *arena, const char *text, size_t size)
{
    char *copy = opt_alloc(arena, size + 1);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

static int no_memory(struct cay_error *err)
{
    return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
}

/*
 * Makes room for one more entry of `width` bytes and a zero entry behind it in the array that
 * `owner` points to, which has `n` entries now; returns the room, or NULL.
 */
static void *list_room(struct opt_arena *arena, void *owner, size_t n, size_t width)
{
    struct opt_list *list = arena->lists;
    void *old;
    memcpy(&old, owner,
           sizeof(old)); /* pointers to any type are kept there: no access through a cast */
    while (list && (list->owner != owner || list->array != old || list->n != n))
        list = list->next;
    if (!list) {
        list = opt_alloc(arena, sizeof(*list));
        if (!list)
            return NULL;
        *list = (struct opt_list){.next = arena->lists, .owner = owner, .array = old, .n = n};
        arena->lists = list;
    }
    if (n + 2 > list->capacity) {
        size_t capacity = CAY_MAX(list->capacity * 2, n + 8);
        char *array = opt_alloc(arena, capacity * width);
        if (!array)
            return NULL;
        if (n)
            memcpy(array, old, n * width);
        list->capacity = capacity;
        list->array = array;
        memcpy(owner, &list->array, sizeof(list->array));
    }
    list->n = n + 1;
    return (char *)list->array + n * width;
}

int opt_append(struct opt_arena *arena, const char *const **list, const char *text, size_t max,
               struct cay_error *err)
{
    size_t n = 0;
    while (*list && (*list)[n])
        n++;
    if (n >= max)
        return cay_fail(err, CAY_E_LIMIT, "given more than %zu times", max);
    const char **room = list_room(arena, list, n, sizeof(*room));
    if (!room)
        return no_memory(err);
    *room = text;
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int set_bool(const char *value, bool *out, struct cay_error *err)
{
    static const struct {
        const char *text;
        bool value;
    } words[] = {{"yes", true}, {"true", true},   {"on", true},   {"1", true},
                 {"no", false}, {"false", false}, {"off", false}, {"0", false}};
    for (size_t i = 0; i < CAY_COUNT(words); i++)
        if (strcmp(value, words[i].text) == 0) {
            *out = words[i].value;
            return 0;
        }
    return cay_fail(err, CAY_E_INVALID, "bad switch '%.64s': expected yes or no", value);
}

static int add_env(struct opt_arena *arena, const char *const **list, const char *value, size_t max,
                   bool own_env, struct cay_error *err)
{
    struct parse_span name;
    const char *ignored;
    if (strchr(value, '=') || !own_env) {
        if (parse_env(value, &name, &ignored, err) < 0)
            return -1;
        return opt_append(arena, list, value, max, err);
    }
    if (parse_env_name(value, &ignored, err) < 0)
        return -1;
    const char *own = getenv(value);
    if (!own)
        return 0; /* not set here: not set there either, as an inherited environment
                   * would have it */
    size_t size = strlen(value) + 1 + strlen(own);
    char *pair = opt_alloc(arena, size + 1);
    if (!pair)
        return no_memory(err);
    stpcpy(stpcpy(stpcpy(pair, value), "="), own);
    return opt_append(arena, list, pair, max, err);
}

static int add_mount(struct opt_arena *arena, const struct opt *opt, void *object,
                     const char *value, struct cay_error *err)
{
    void *owner = (char *)object + opt->offset;
    size_t *n = (size_t *)((char *)object + opt->extra), max = opt->max ? opt->max : CAY_MAX_MOUNTS;
    struct parse_mount parsed;
    if (parse_mount(value, &parsed, err) < 0)
        return -1;
    if (*n >= max)
        return cay_fail(err, CAY_E_LIMIT, "given more than %zu times", max);
    char *source = opt_strndup(arena, parsed.source.data, parsed.source.size);
    char *target = opt_strndup(arena, parsed.target.data, parsed.target.size);
    struct cay_mount *room = source && target ? list_room(arena, owner, *n, sizeof(*room)) : NULL;
    if (!room)
        return no_memory(err);
    *room = (struct cay_mount){source, target, parsed.read_only, false};
    *n += 1;
    return 0;
}

static int set_str(const char *value, const char **out, struct cay_error *err)
{
    if (!*value)
        return cay_fail(err, CAY_E_INVALID, "expected a value that is not empty");
    *out = value;
    return 0;
}

static int set_number(const struct opt *opt, void *object, const char *value, struct cay_error *err)
{
    static int (*const parsers[])(const char *, uint64_t *, struct cay_error *) = {
        [OPT_SIZE] = parse_size,
        [OPT_DURATION] = parse_duration,
        [OPT_COUNT] = parse_count,
        [OPT_CPUS] = parse_cpus,
    };
    uint64_t number;
    if (parsers[opt->type](value, &number, err) < 0)
        return -1;
    if (number == 0 && opt->nonzero)
        return cay_fail(err, CAY_E_INVALID, "bad value '%.64s': must be more than 0", value);
    if (opt->most && number > opt->most)
        return cay_fail(err, CAY_E_INVALID, "bad value '%.64s': must be %llu seconds at most",
                        value, (unsigned long long)(opt->most / 1000));
    *(uint64_t *)((char *)object + opt->offset) = number;
    if (opt->extra)
        *(bool *)((char *)object + opt->extra) = true;
    return 0;
}

static int add_label(struct opt_arena *arena, const char *const **list, const char *value,
                     size_t max, struct cay_error *err)
{
    struct parse_span key;
    const char *ignored;
    return parse_label(value, &key, &ignored, err) < 0 ? -1
                                                       : opt_append(arena, list, value, max, err);
}

int opt_set(struct opt_arena *arena, const struct opt *opt, void *object, const char *value,
            bool own_env, struct cay_error *err)
{
    void *at = (char *)object + opt->offset;
    size_t max = opt->max ? opt->max : OPT_MAX_LIST;
    switch (opt->type) {
    case OPT_FLAG:
        return set_bool(value, at, err);
    case OPT_STR:
        return set_str(value, at, err);
    case OPT_ID:
        return parse_id(value, at, err);
    case OPT_SIZE:
    case OPT_DURATION:
    case OPT_COUNT:
    case OPT_CPUS:
        return set_number(opt, object, value, err);
    case OPT_MODE:
        return parse_mode(value, at, err);
    case OPT_PROFILE:
        return parse_profile(value, at, err);
    case OPT_SIGNAL:
        return parse_signal(value, at, err);
    case OPT_STRV:
        return opt_append(arena, at, value, max, err);
    case OPT_LABELS:
        return add_label(arena, at, value, max, err);
    case OPT_ENV:
        return add_env(arena, at, value, max, own_env, err);
    case OPT_MOUNTS:
        return add_mount(arena, opt, object, value, err);
    }
    return cay_fail(err, CAY_E_INTERNAL, "option '%s' has an unknown type", opt->name);
}

/* ---- nearest names --------------------------------------------------------------------------- */

/* Edits between two words, where swapping neighbours is one edit. Both shorter than 64. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char rows[3][64];
    unsigned char *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++)
        above[j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (unsigned char)i;
        for (size_t j = 1; j <= m; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = CAY_MIN(best, above[j] + 1);
            best = CAY_MIN(best, row[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = CAY_MIN(best, before[j - 2] + 1);
            row[j] = (unsigned char)best;
        }
        unsigned char *old = before;
        before = above;
        above = row;
        row = old;
    }
    return above[m];
}

void opt_near_try(struct opt_near *near, const char *candidate)
{
    if (strlen(near->word) >= 64 || strlen(candidate) >= 64)
        return;
    size_t distance = edit_distance(near->word, candidate);
    /* Part of a word is as good as one mistake: "--mem" means "--memory". */
    if (distance > 1 && strlen(near->word) >= 2 &&
        strncmp(near->word, candidate, strlen(near->word)) == 0)
        distance = 1;
    if (!near->best || distance < near->distance) {
        near->best = candidate;
        near->distance = distance;
    }
}

const char *opt_near_best(const struct opt_near *near)
{
    size_t n = strlen(near->word);
    size_t allowed = n <= 3 ? 1 : n <= 6 ? 2 : 3;
    return near->best && near->distance <= allowed && near->distance < n ? near->best : NULL;
}

/* ---- command lines --------------------------------------------------------------------------- */

struct hit {
    const struct opt *opt;
    void *object;
};

static struct hit find_option(const struct opt_group *groups, const char *name, size_t size,
                              char letter)
{
    for (const struct opt_group *g = groups; g->table; g++)
        for (size_t i = 0; i < g->n; i++) {
            const struct opt *o = &g->table[i];
            if (letter ? o->letter == letter
                       : strlen(o->name) == size && memcmp(o->name, name, size) == 0)
                return (struct hit){o, g->object};
        }
    return (struct hit){0};
}

static int unknown_option(const struct opt_group *groups, const char *name, size_t size,
                          const char *dashes, struct cay_error *err)
{
    char word[64] = "";
    memcpy(word, name, CAY_MIN(size, sizeof(word) - 1));
    struct opt_near near = {.word = word};
    for (const struct opt_group *g = groups; g->table; g++)
        for (size_t i = 0; i < g->n; i++)
            opt_near_try(&near, g->table[i].name);
    const char *best = opt_near_best(&near), *kind = *dashes ? "option" : "key";
    if (best)
        return cay_fail(err, CAY_E_INVALID, "unknown %s '%s%s'; did you mean '%s%s'?", kind, dashes,
                        word, dashes, best);
    return cay_fail(err, CAY_E_INVALID, "unknown %s '%s%s'%s", kind, dashes, word,
                    *dashes ? "; --help lists them" : "");
}

static int no_value(const char *option, const struct opt *opt, struct cay_error *err)
{
    return cay_fail(err, CAY_E_INVALID, "%s needs a value: %s", option,
                    opt->metavar ? opt->metavar : "VALUE");
}

/* "--name", "--name=value" or "--name value"; *next is the argument after it and moves on when
 * used. */
static int parse_long(struct opt_arena *arena, const struct opt_group *groups, const char *arg,
                      char ***next, struct cay_error *err)
{
    const char *name = arg + 2, *equals = strchr(name, '=');
    size_t size = equals ? (size_t)(equals - name) : strlen(name);
    struct hit hit = find_option(groups, name, size, 0);
    if (!hit.opt)
        return unknown_option(groups, name, size, "--", err);
    const char *value = equals ? equals + 1 : NULL;
    if (hit.opt->type == OPT_FLAG)
        value = value ? value : "yes";
    else if (!value && **next)
        value = *(*next)++;
    char shown[72] = "--";
    memcpy(shown + 2, name, CAY_MIN(size, sizeof(shown) - 3));
    if (!value)
        return no_value(shown, hit.opt, err);
    if (opt_set(arena, hit.opt, hit.object, value, true, err) < 0)
        return cay_fail_context(err, "%s", shown);
    return 0;
}

/* "-x", "-xyz" (flags), "-xvalue" or "-x value". */
static int parse_short(struct opt_arena *arena, const struct opt_group *groups, const char *arg,
                       char ***next, struct cay_error *err)
{
    for (const char *p = arg + 1; *p; p++) {
        char shown[] = {'-', *p, 0};
        struct hit hit = find_option(groups, "", 0, *p);
        if (!hit.opt)
            return cay_fail(err, CAY_E_INVALID, "unknown option '%s'; --help lists them", shown);
        if (hit.opt->type == OPT_FLAG) {
            *(bool *)((char *)hit.object + hit.opt->offset) = true;
            continue;
        }
        const char *value = p[1] ? p + 1 : NULL;
        if (!value && **next)
            value = *(*next)++;
        if (!value)
            return no_value(shown, hit.opt, err);
        if (opt_set(arena, hit.opt, hit.object, value, true, err) < 0)
            return cay_fail_context(err, "%s", shown);
        return 0;
    }
    return 0;
}

int opt_parse(struct opt_arena *arena, const struct opt_group *groups, char **argv, size_t leading,
              struct opt_args *out, struct cay_error *err)
{
    char **next = argv;
    size_t n = 0;
    while (*next) {
        char *arg = *next;
        bool is_option = arg[0] == '-' && arg[1];
        if (!is_option && n == leading)
            break;
        next++;
        if (!is_option) {
            argv[n++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0)
            break;
        int r = arg[1] == '-' ? parse_long(arena, groups, arg, &next, err)
                              : parse_short(arena, groups, arg, &next, err);
        if (r < 0)
            return -1;
    }
    while (*next)
        argv[n++] = *next++;
    argv[n] = NULL;
    *out = (struct opt_args){argv, n};
    return 0;
}

/* ---- config files ---------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct parse_span trim(struct parse_span s)
{
    while (s.size && is_blank(s.data[0]))
        s.data++, s.size--;
    while (s.size && is_blank(s.data[s.size - 1]))
        s.size--;
    return s;
}

static bool span_is(struct parse_span s, const char *text)
{
    return strlen(text) == s.size && memcmp(s.data, text, s.size) == 0;
}

/* Cuts a comment off: '#' at the start or after a blank, outside of quotes. */
static struct parse_span without_comment(struct parse_span line)
{
    bool quoted = false;
    for (size_t i = 0; i < line.size; i++) {
        if (line.data[i] == '"')
            quoted = !quoted;
        if (line.data[i] == '#' && !quoted && (i == 0 || is_blank(line.data[i - 1])))
            line.size = i;
    }
    return trim(line);
}

/* The '=' between key and value: the first with blanks around it, else the first; keys may be
 * "a=b". */
static const char *find_equals(struct parse_span line)
{
    for (size_t i = 1; i + 1 < line.size; i++)
        if (line.data[i] == '=' && is_blank(line.data[i - 1]) && is_blank(line.data[i + 1]))
            return line.data + i;
    return memchr(line.data, '=', line.size);
}

static int config_pair(struct opt_arena *arena, const struct opt_section *section,
                       struct parse_span line, struct cay_error *err)
{
    const char *equals = find_equals(line);
    if (!equals)
        return cay_fail(err, CAY_E_INVALID, "bad line '%.*s': expected KEY = VALUE", (int)line.size,
                        line.data);
    struct parse_span key = trim((struct parse_span){line.data, (size_t)(equals - line.data)});
    struct parse_span value =
        trim((struct parse_span){equals + 1, line.size - (size_t)(equals - line.data) - 1});
    if (value.size >= 2 && value.data[0] == '"' && value.data[value.size - 1] == '"')
        value = (struct parse_span){value.data + 1, value.size - 2};
    char *k = opt_strndup(arena, key.data, key.size),
         *v = opt_strndup(arena, value.data, value.size);
    if (!k || !v)
        return no_memory(err);
    if (!*k || !*v)
        return cay_fail(err, CAY_E_INVALID, "expected KEY = VALUE, neither of them empty");
    if (section->each)
        return section->each(k, v, section->data, err);
    const struct opt_group groups[] = {section->group, {0}};
    struct hit hit = find_option(groups, k, key.size, 0);
    if (!hit.opt)
        return unknown_option(groups, k, key.size, "", err);
    return opt_set(arena, hit.opt, hit.object, v, false, err) < 0 ? cay_fail_context(err, "%s", k)
                                                                  : 0;
}

static int config_section(struct parse_span line, const struct opt_section *sections,
                          const struct opt_section **current, struct cay_error *err)
{
    struct parse_span name = {line.data + 1, line.size - 2};
    if (line.size < 3 || line.data[line.size - 1] != ']')
        return cay_fail(err, CAY_E_INVALID, "bad line '%.*s': expected [SECTION]", (int)line.size,
                        line.data);
    name = trim(name);
    for (const struct opt_section *s = sections; s->name; s++)
        if (span_is(name, s->name)) {
            *current = s;
            return 0;
        }
    return cay_fail(err, CAY_E_INVALID, "unknown section '[%.*s]'", (int)name.size, name.data);
}

int opt_config(struct opt_arena *arena, const char *name, const char *text, size_t size,
               const struct opt_section *sections, struct cay_error *err)
{
    const struct opt_section *current = NULL;
    const char *end = text + size;
    if (size == 0)
        return 0;
    if (memchr(text, 0, size))
        return cay_fail(err, CAY_E_INVALID, "%s: not a text file", name);
    for (unsigned number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        struct parse_span line = {text, (size_t)((newline ? newline : end) - text)};
        text += line.size + 1;
        line = without_comment(line);
        int r = 0;
        if (line.size && line.data[0] == '[')
            r = config_section(line, sections, &current, err);
        else if (line.size && !current)
            r = cay_fail(err, CAY_E_INVALID, "expected a [section] before '%.*s'", (int)line.size,
                         line.data);
        else if (line.size)
            r = config_pair(arena, current, line, err);
        if (r < 0)
            return cay_fail_context(err, "%s:%u", name, number);
    }
    return 0;
}

/* ---- the SPEC options ------------------------------------------------------------------------ */

#define SPEC(member) offsetof(struct cay_spec, member)

const struct opt opt_spec[] = {
    OPT("name", 0, OPT_ID, SPEC(id), "ID", "id of the sandbox; default: 12 random hex digits"),
    OPT("image", 0, OPT_STR, SPEC(image), "REF",
        "host, dir:PATH or an alias of the config file; default: host"),
    OPT("memory", 0, OPT_SIZE, SPEC(memory), "SIZE", "memory limit; default: 2G", .nonzero = true),
    OPT("cpus", 0, OPT_CPUS, SPEC(cpus), "N", "CPU limit, such as 0.5; default: none",
        .nonzero = true),
    OPT("pids", 0, OPT_COUNT, SPEC(pids), "N", "processes and threads at most; default: 1024",
        .nonzero = true),
    OPT("disk", 0, OPT_SIZE, SPEC(disk), "SIZE",
        "bytes that it may write; default: 1G, at most half of memory", .nonzero = true),
    OPT("inodes", 0, OPT_COUNT, SPEC(inodes), "N",
        "files that it may make; default: one for each 4K of disk", .nonzero = true),
    OPT("fds", 0, OPT_COUNT, SPEC(fds), "N", "open files of each process; default: 4096",
        .nonzero = true),
    OPT("output", 0, OPT_SIZE, SPEC(output), "SIZE", "output kept of each process; default: 8M",
        .nonzero = true),
    OPT("env", 'e', OPT_ENV, SPEC(env), "K=V",
        "set an environment variable; K alone passes on the caller's"),
    OPT("workdir", 'w', OPT_STR, SPEC(cwd), "DIR", "working directory inside"),
    OPT("user", 'u', OPT_STR, SPEC(user), "USER", "user inside: a name, or UID[:GID]"),
    OPT("volume", 'v', OPT_MOUNTS, SPEC(mounts), "HOST:DEST[:ro]", "mount a host directory or file",
        .extra = SPEC(n_mounts)),
    OPT("net", 0, OPT_STR, SPEC(network), "POLICY", "network policy; default: deny-all"),
    OPT("label", 0, OPT_LABELS, SPEC(labels), "K=V", "attach a label", .max = CAY_MAX_LABELS),
    OPT("ttl", 0, OPT_DURATION, SPEC(ttl_ms), "TIME",
        "end it and delete its files this long after it starts; default: never"),
    OPT("idle", 0, OPT_DURATION, SPEC(idle_ms), "TIME",
        "end it and delete its files after this long without use; default: never"),
    OPT("profile", 0, OPT_PROFILE, SPEC(profile), "NAME", "strict, default or nested"),
};

const size_t opt_spec_count = CAY_COUNT(opt_spec);
