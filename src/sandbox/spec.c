/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/spec.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/parse.h"
#include "base/util.h"
#include "wire/field.h"
#include "wire/version.h"

#include <stdio.h>
#include <string.h>

#define GIB (1ULL << 30)
#define MIB (1ULL << 20)

/* The stored form. A mount is one entry in each of three lists. */
struct stored {
    const char *id, *image, *user, *cwd, *network;
    uint64_t profile, memory, cpus, pids, disk, inodes, fds, output, ttl_ms, idle_ms, ephemeral;
    const char *const *env, *const *labels, *const *sources, *const *targets, *const *modes;
};

enum json_kind {
    JSON_STR,
    JSON_U64,
    JSON_CPUS,
    JSON_PROFILE,
    JSON_BOOL,
    JSON_MAP,
    JSON_MOUNTS,
    JSON_SKIP
};

/* One line for each field: its key on disk, its name in JSON and how it is shown there. A keeper
 * that ignored one would make another sandbox than was asked for. */
#define F(key, type, member, name, json)                                     \
    {                                                                        \
        WIRE_FIELD(key | WIRE_MUST, type, struct stored, member), name, json \
    }
static const struct {
    struct wire_field wire;
    const char *name;
    enum json_kind json;
} fields[] = {
    F(1, WIRE_STR, id, "id", JSON_SKIP),
    F(2, WIRE_STR, image, "image", JSON_STR),
    F(3, WIRE_STR, user, "user", JSON_STR),
    F(4, WIRE_STR, cwd, "cwd", JSON_STR),
    F(5, WIRE_STR, network, "network", JSON_STR),
    F(6, WIRE_U64, profile, "profile", JSON_PROFILE),
    F(7, WIRE_U64, memory, "memory", JSON_U64),
    F(8, WIRE_U64, cpus, "cpus", JSON_CPUS),
    F(9, WIRE_U64, pids, "pids", JSON_U64),
    F(10, WIRE_U64, disk, "disk", JSON_U64),
    F(11, WIRE_U64, inodes, "inodes", JSON_U64),
    F(12, WIRE_U64, fds, "fds", JSON_U64),
    F(13, WIRE_U64, output, "output", JSON_U64),
    F(14, WIRE_U64, ttl_ms, "ttl_ms", JSON_U64),
    F(15, WIRE_U64, idle_ms, "idle_ms", JSON_U64),
    F(16, WIRE_U64, ephemeral, "ephemeral", JSON_BOOL),
    F(17, WIRE_STRV, env, "env", JSON_MAP),
    F(18, WIRE_STRV, labels, "labels", JSON_MAP),
    F(19, WIRE_STRV, sources, "mounts", JSON_MOUNTS),
    F(20, WIRE_STRV, targets, "mounts", JSON_SKIP),
    F(21, WIRE_STRV, modes, "mounts", JSON_SKIP),
};
#undef F

static void wire_table(struct wire_field out[CAY_COUNT(fields)])
{
    for (size_t i = 0; i < CAY_COUNT(fields); i++)
        out[i] = fields[i].wire;
}

/* ---- checks and defaults --------------------------------------------------------------------- */

/* As people write it: 4194304 bytes are 4M. `units` is "" for what has none. */
static const char *in_units(uint64_t value, const char *units, char out[static 32])
{
    for (; units[0] && units[1] && value && value % 1024 == 0; units++)
        value /= 1024;
    snprintf(out, 32, "%llu%.1s", (unsigned long long)value, *units == 'B' ? "" : units);
    return out;
}

static int check_range(const char *name, const char *units, uint64_t value, uint64_t low,
                       uint64_t high, struct cay_error *err)
{
    char a[32], b[32], c[32];
    if (value >= low && value <= high)
        return 0;
    return cay_fail(err, CAY_E_INVALID, "%s of %s is out of range: %s to %s", name,
                    in_units(value, units, a), in_units(low, units, b), in_units(high, units, c));
}

static int check_numbers(const struct stored *s, struct cay_error *err)
{
    const struct {
        const char *name, *units;
        uint64_t value, low, high;
    } ranges[] = {
        {"memory", "BKMGT", s->memory, 4 * MIB, 1ULL << 50},
        {"cpus (in thousandths)", "", s->cpus, 0, 1000000},
        {"pids", "", s->pids, 4, 4194304},
        {"disk", "BKMGT", s->disk, MIB, 1ULL << 50},
        {"inodes", "", s->inodes, 64, 1ULL << 40},
        {"fds", "", s->fds, 16, 1048576},
        {"output", "BKMGT", s->output, 4096, 1ULL << 40},
        {"profile", "", s->profile, CAY_PROFILE_DEFAULT, CAY_PROFILE_NESTED},
        {"ttl (in ms)", "", s->ttl_ms, 0, 1ULL << 42},
        {"idle (in ms)", "", s->idle_ms, 0, 1ULL << 42},
    };
    for (size_t i = 0; i < CAY_COUNT(ranges); i++)
        if (check_range(ranges[i].name, ranges[i].units, ranges[i].value, ranges[i].low,
                        ranges[i].high, err) < 0)
            return -1;
    return 0;
}

static int check_lists(const struct stored *s, struct cay_error *err)
{
    struct parse_span name;
    const char *value;
    size_t n = 0;
    for (const char *const *e = s->env; e && *e; e++)
        if (parse_env(*e, &name, &value, err) < 0)
            return -1;
    for (const char *const *l = s->labels; l && *l; l++, n++)
        if (parse_label(*l, &name, &value, err) < 0)
            return -1;
    if (n > CAY_MAX_LABELS)
        return cay_fail(err, CAY_E_TOO_LARGE, "%zu labels are more than %d", n, CAY_MAX_LABELS);
    return 0;
}

static bool lies_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == 0 || path[n] == '/');
}

/* The same path without empty steps, "." and slashes at the end; `out` has room for all of it. */
static void clean_path(const char *path, char *out)
{
    char *at = out;
    while (*path) {
        size_t slashes = strspn(path, "/"), n = strcspn(path + slashes, "/");
        const char *step = path + slashes;
        path = step + n;
        if (n == 0 || (n == 1 && *step == '.' && slashes))
            continue;
        if (slashes)
            *at++ = '/';
        memcpy(at, step, n);
        at += n;
    }
    *at = 0;
}

/* The targets of all mounts, cleaned, in one block that is the caller's: what is judged, compared
 * and stored is what will be mounted on. NULL: out of memory. */
static char *clean_targets(const struct cay_spec *from, const char **out)
{
    size_t size = 1;
    for (size_t i = 0; i < from->n_mounts; i++)
        size += from->mounts[i].target ? strlen(from->mounts[i].target) + 1 : 1;
    char *block = malloc(size), *at = block;
    for (size_t i = 0; block && i < from->n_mounts; i++) {
        clean_path(from->mounts[i].target ? from->mounts[i].target : "", at);
        out[i] = at;
        at += strlen(at) + 1;
    }
    return block;
}

/* Absolute, below /, without a step upwards, and not where the engine mounts. */
static bool good_target(const char *path)
{
    size_t n = strlen(path);
    if (lies_in(path, "/proc") || lies_in(path, "/sys") || lies_in(path, "/dev"))
        return false;
    return path[0] == '/' && path[1] && n < CAY_MAX_PATH && !strstr(path, "/../") &&
           strcmp(path + (n > 3 ? n - 3 : 0), "/..") != 0;
}

static int check_mounts(const struct cay_spec *from, const char *const *targets,
                        struct cay_error *err)
{
    for (size_t i = 0; i < from->n_mounts; i++) {
        const struct cay_mount *m = &from->mounts[i];
        if (!m->source || m->source[0] != '/' || strlen(m->source) >= CAY_MAX_PATH)
            return cay_fail(err, CAY_E_INVALID, "mount source '%s' is not an absolute path",
                            m->source ? m->source : "");
        if (!good_target(targets[i]))
            return cay_fail(
                err, CAY_E_INVALID,
                "mount target '%s' is not an absolute path below /, or is in /proc, /sys or /dev",
                m->target ? m->target : "");
        for (size_t k = 0; k < i; k++)
            if (strcmp(targets[k], targets[i]) == 0)
                return cay_fail(err, CAY_E_INVALID, "two mounts at %s", targets[i]);
    }
    return 0;
}

static int check_words(const struct stored *s, struct cay_error *err)
{
    const char *id;
    if (parse_id(s->id, &id, err) < 0)
        return -1;
    if (strcmp(s->id, "ids") == 0)
        return cay_fail(err, CAY_E_INVALID, "'ids' cannot be the id of a sandbox");
    if (strcmp(s->network, "deny-all") != 0)
        return cay_fail(
            err, CAY_E_UNSUPPORTED,
            "network '%s' is not supported by this version: only deny-all (loopback works inside)",
            s->network);
    if (s->cwd && s->cwd[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "working directory '%s' is not an absolute path",
                        s->cwd);
    if (strlen(s->image) >= sizeof(((struct cay_info *)0)->image))
        return cay_fail(err, CAY_E_TOO_LARGE, "the image's name is too long");
    return 0;
}

static const char *non_empty(const char *text)
{
    return text && *text ? text : NULL;
}

static struct stored with_defaults(const struct cay_spec *from)
{
    struct stored s = {
        .id = from->id,
        .image = non_empty(from->image) ? from->image : "host",
        .user = non_empty(from->user),
        .cwd = non_empty(from->cwd),
        .network = non_empty(from->network) ? from->network : "deny-all",
        .profile = from->profile ? from->profile : CAY_PROFILE_DEFAULT,
        .memory = from->memory ? from->memory : SPEC_DEFAULT_MEMORY,
        .cpus = from->cpus,
        .pids = from->pids ? from->pids : 1024,
        .disk = from->disk,
        .inodes = from->inodes,
        .fds = from->fds ? from->fds : 4096,
        .output = from->output ? from->output : SPEC_DEFAULT_OUTPUT,
        .ttl_ms = from->ttl_ms,
        .idle_ms = from->idle_ms,
        .ephemeral = from->ephemeral,
        .env = from->env,
        .labels = from->labels,
    };
    if (!s.disk)
        s.disk = CAY_MAX(CAY_MIN(GIB, s.memory / 2), MIB);
    if (!s.inodes)
        s.inodes = CAY_MAX(s.disk / 4096, (uint64_t)64);
    return s;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* [read_only][no_links] */
static const char *const mount_modes[2][2] = {{"rw", "rw,nolinks"}, {"ro", "ro,nolinks"}};

int spec_make(const struct cay_spec *from, struct spec *out, struct cay_error *err)
{
    const char *sources[CAY_MAX_MOUNTS + 1] = {0}, *targets[CAY_MAX_MOUNTS + 1] = {0};
    const char *modes[CAY_MAX_MOUNTS + 1] = {0};
    struct wire_field table[CAY_COUNT(fields)];
    struct stored s = with_defaults(from);
    if (from->n_mounts > CAY_MAX_MOUNTS)
        return cay_fail(err, CAY_E_TOO_LARGE, "%zu mounts are more than %d", from->n_mounts,
                        CAY_MAX_MOUNTS);
    autofree char *block = clean_targets(from, targets);
    if (!block)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (check_words(&s, err) < 0 || check_numbers(&s, err) < 0 || check_lists(&s, err) < 0 ||
        check_mounts(from, targets, err) < 0)
        return -1;
    for (size_t i = 0; i < from->n_mounts; i++) {
        sources[i] = from->mounts[i].source;
        modes[i] = mount_modes[from->mounts[i].read_only][from->mounts[i].no_links];
    }
    s.sources = sources;
    s.targets = targets;
    s.modes = modes;
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_RECORD / 2);
    wire_table(table);
    if (wire_encode(&buf, table, CAY_COUNT(table), &s) < 0)
        return cay_fail(err, CAY_E_TOO_LARGE,
                        "the spec (env, labels, mounts) is larger than %u bytes",
                        CAY_MAX_RECORD / 2);
    return spec_load(buf.data, buf.size, out, err);
}

static int load_mounts(const struct stored *s, struct spec *out, struct cay_error *err)
{
    size_t n = 0;
    while (s->sources && s->sources[n])
        n++;
    if (n == 0)
        return 0;
    out->mounts = calloc(n, sizeof(*out->mounts));
    if (!out->mounts || n > CAY_MAX_MOUNTS)
        return cay_fail(err, CAY_E_INVALID, "damaged spec: mounts");
    for (size_t i = 0; i < n; i++) {
        if (!s->targets || !s->targets[i] || !s->modes || !s->modes[i])
            return cay_fail(err, CAY_E_INVALID, "damaged spec: mounts");
        out->mounts[i] =
            (struct cay_mount){s->sources[i], s->targets[i], strncmp(s->modes[i], "ro", 2) == 0,
                               strstr(s->modes[i], "nolinks") != NULL};
    }
    out->spec.mounts = out->mounts;
    out->spec.n_mounts = n;
    return 0;
}

static int check_loaded(const struct spec *spec, const struct stored *s, struct cay_error *err)
{
    if (spec->unknown)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        WIRE_WHO " does not know field %u of the sandbox's spec, and must not "
                                 "ignore it; it was written by a newer version",
                        (unsigned)spec->unknown);
    return check_words(s, err) < 0 ? -1 : check_numbers(s, err);
}

static int load(const char *bytes, size_t size, bool strict, struct spec *out,
                struct cay_error *err)
{
    struct wire_field table[CAY_COUNT(fields)];
    struct spec spec = {
        .bytes = malloc(size + 1), .size = size, .lists = calloc(1, sizeof(struct stored))};
    struct stored *s = spec.lists;
    if (!spec.bytes || !s) {
        spec_done(&spec);
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    }
    memcpy(spec.bytes, bytes, size);
    wire_table(table);
    if (wire_decode(spec.bytes, size, table, CAY_COUNT(table), s, &spec.unknown, err) < 0) {
        memset(s, 0, sizeof(*s));
        spec_done(&spec);
        return -1;
    }
    spec.spec = (struct cay_spec){
        .id = s->id,
        .image = s->image,
        .user = s->user,
        .cwd = s->cwd,
        .network = s->network,
        .profile = (enum cay_profile)s->profile,
        .memory = s->memory,
        .cpus = s->cpus,
        .pids = s->pids,
        .disk = s->disk,
        .inodes = s->inodes,
        .fds = s->fds,
        .output = s->output,
        .ttl_ms = s->ttl_ms,
        .idle_ms = s->idle_ms,
        .env = s->env,
        .labels = s->labels,
        .ephemeral = s->ephemeral != 0,
    };
    int checked = !s->id || !s->image || !s->network ? cay_fail(err, CAY_E_INVALID, "damaged spec")
                  : strict                           ? check_loaded(&spec, s, err)
                                                     : 0;
    if (checked < 0 || load_mounts(s, &spec, err) < 0) {
        spec_done(&spec);
        return -1;
    }
    *out = spec;
    return 0;
}

int spec_load(const char *bytes, size_t size, struct spec *out, struct cay_error *err)
{
    return load(bytes, size, true, out, err);
}

int spec_read(const char *bytes, size_t size, struct spec *out, struct cay_error *err)
{
    return load(bytes, size, false, out, err);
}

void spec_done(struct spec *spec)
{
    struct wire_field table[CAY_COUNT(fields)];
    if (spec->lists) {
        wire_table(table);
        wire_free(table, CAY_COUNT(table), spec->lists);
    }
    free(spec->lists);
    free(spec->mounts);
    free(spec->bytes);
    *spec = (struct spec){0};
}

bool spec_disk_in_memory(const struct cay_spec *spec, bool privileged)
{
    return !privileged || spec->disk <= spec->memory / 2;
}

uint64_t spec_kept_output(const struct cay_spec *spec)
{
    uint64_t most = CAY_KEPT_PROCS * (spec->output ? spec->output : SPEC_DEFAULT_OUTPUT);
    most += CAY_MAX_LOG;
    return spec->disk ? CAY_MIN(most, spec->disk) : most;
}

const char *spec_difference(const struct spec *a, const struct spec *b)
{
    if (a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0)
        return NULL;
    for (size_t i = 0; i < CAY_COUNT(fields); i++) {
        autobuf struct cay_buf x = CAY_BUF(CAY_MAX_RECORD), y = CAY_BUF(CAY_MAX_RECORD);
        wire_encode(&x, &fields[i].wire, 1, a->lists);
        wire_encode(&y, &fields[i].wire, 1, b->lists);
        if (x.size != y.size || (x.size && memcmp(x.data, y.data, x.size) != 0))
            return fields[i].name;
    }
    return a->unknown || b->unknown ? "spec" : NULL;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_map(struct cay_buf *out, const char *const *list)
{
    buf_str(out, "{");
    for (size_t i = 0; list && list[i]; i++) {
        size_t key = strcspn(list[i], "=");
        buf_str(out, i ? "," : "");
        buf_json_n(out, list[i], key);
        buf_str(out, ":");
        buf_json(out, list[i][key] ? list[i] + key + 1 : "");
    }
    buf_str(out, "}");
}

static void json_mounts(struct cay_buf *out, const struct cay_spec *spec)
{
    buf_str(out, "[");
    for (size_t i = 0; i < spec->n_mounts; i++) {
        buf_fmt(out, "%s{\"source\":", i ? "," : "");
        buf_json(out, spec->mounts[i].source);
        buf_str(out, ",\"target\":");
        buf_json(out, spec->mounts[i].target);
        buf_fmt(out, ",\"read_only\":%s}", spec->mounts[i].read_only ? "true" : "false");
    }
    buf_str(out, "]");
}

static void json_value(struct cay_buf *out, enum json_kind kind, const char *at,
                       const struct cay_spec *spec)
{
    uint64_t number;
    memcpy(&number, at, sizeof(number));
    const char *text = *(const char *const *)at;
    switch (kind) {
    case JSON_STR:
        text ? buf_json(out, text) : buf_str(out, "null");
        return;
    case JSON_U64:
        buf_fmt(out, "%llu", (unsigned long long)number);
        return;
    case JSON_CPUS:
        number ? buf_fmt(out, "%llu.%03llu", (unsigned long long)number / 1000,
                         (unsigned long long)number % 1000)
               : buf_str(out, "null");
        return;
    case JSON_PROFILE:
        buf_json(out, parse_profile_name((enum cay_profile)number));
        return;
    case JSON_BOOL:
        buf_str(out, number ? "true" : "false");
        return;
    case JSON_MAP:
        json_map(out, *(const char *const *const *)at);
        return;
    case JSON_MOUNTS:
        json_mounts(out, spec);
        return;
    case JSON_SKIP:
        return;
    }
}

void spec_json(const struct cay_spec *spec, struct cay_buf *out)
{
    struct stored s = with_defaults(spec);
    bool first = true;
    for (size_t i = 0; i < CAY_COUNT(fields); i++) {
        if (fields[i].json == JSON_SKIP)
            continue;
        buf_str(out, first ? "" : ",");
        buf_json(out, fields[i].name);
        buf_str(out, ":");
        json_value(out, fields[i].json, (const char *)&s + fields[i].wire.offset, spec);
        first = false;
    }
}
