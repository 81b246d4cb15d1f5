/* SPDX-License-Identifier: Apache-2.0 */
/* The operator policy: documents, every rule at its limit and one beyond it, quotas, refusals. */
#include "base/buf.h"
#include "base/util.h"
#include "policy/rules.h"
#include "sandbox/spec.h"
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define G (1ULL << 30)
#define M (1ULL << 20)

static struct cay_error err;
static struct operator_refusal why;

static struct operator_policy *parse(const char *text)
{
    struct operator_policy *policy = NULL;
    err = (struct cay_error){0};
    if (operator_parse("p.conf", text, strlen(text), &policy, &err) < 0)
        fail_msg("%s", err.text);
    return policy;
}

static void assert_bad(const char *text, const char *part)
{
    struct operator_policy *policy = NULL;
    err = (struct cay_error){0};
    assert_int_equal(operator_parse("p.conf", text, strlen(text), &policy, &err), -1);
    assert_null(policy);
    assert_true(err.code == CAY_E_INVALID || err.code == CAY_E_TOO_LARGE);
    assert_error(err, err.code, part);
}

static int check(const struct operator_policy *policy, const char *tenant, struct cay_spec *spec)
{
    err = (struct cay_error){0};
    return operator_check(policy, tenant, spec, NULL, &why, &err);
}

static void assert_refused(const struct operator_policy *policy, const char *tenant,
                           struct cay_spec spec, enum cay_code code, const char *rule)
{
    struct cay_spec before = spec;
    assert_int_equal(check(policy, tenant, &spec), -1);
    assert_memory_equal(&spec, &before, sizeof(spec));
    assert_error(err, code, rule);
    assert_string_equal(why.rule, rule);
    assert_non_null(why.field);
}

static void assert_allowed(const struct operator_policy *policy, const char *tenant,
                           struct cay_spec spec)
{
    if (check(policy, tenant, &spec) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(why.rule, "");
}

/* One mount, by what it resolves to (NULL: it does not). */
static int mount(const struct operator_policy *policy, const char *tenant, const char *resolved,
                 bool read_only)
{
    struct cay_mount m = {"/as/written", "/data", read_only};
    struct cay_spec spec = {.mounts = &m, .n_mounts = 1};
    const char *sources[] = {resolved, NULL};
    const struct operator_resolved paths = {.sources = sources};
    err = (struct cay_error){0};
    return operator_check(policy, tenant, &spec, &paths, &why, &err);
}

static int image(const struct operator_policy *policy, const char *tenant, const char *name,
                 const char *resolved)
{
    struct cay_spec spec = {.image = name};
    const struct operator_resolved paths = {.image = resolved};
    err = (struct cay_error){0};
    return operator_check(policy, tenant, &spec, &paths, &why, &err);
}

TEST(without_a_document)
{
    struct operator_policy *p = parse("");
    struct cay_spec spec = {0};
    assert_int_equal(check(p, "", &spec), 0);
    assert_null(spec.image); /* the operator's spec is left alone */
    assert_int_equal(image(p, "", "dir:/etc", "/etc"), 0);
    assert_int_equal(image(p, "", "dir:/nowhere", NULL), 0);
    assert_int_equal(mount(p, "", "/etc", false), 0);
    assert_int_equal(mount(p, "", NULL, false), 0);
    assert_int_equal(check(p, "acme", &spec), 0);
    assert_string_equal(spec.image, "host");
    assert_int_equal(spec.memory, 0); /* the engine's default */
    assert_allowed(p, "acme", (struct cay_spec){.memory = 1ULL << 45, .cpus = 900000});
    assert_int_equal(image(p, "acme", "host", NULL), 0);
    assert_int_equal(image(p, "acme", "py", NULL), -1);
    assert_error(err, CAY_E_DENIED, "'py'");
    assert_string_equal(why.rule, "builtin.images");
    assert_int_equal(mount(p, "acme", "/srv", true), -1);
    assert_error(err, CAY_E_DENIED, "/as/written");
    assert_string_equal(why.rule, "builtin.mounts");
    assert_int_equal(mount(p, "acme", "/srv", false), -1);
    assert_string_equal(why.rule, "builtin.mounts_rw");
    const struct operator_quota *q = operator_quota(p, "acme");
    assert_int_equal(q->ended_max, 1000);
    assert_int_equal(q->requests_max, 512);
    assert_true(q->sandboxes_max == OPERATOR_NO_LIMIT && q->memory_total == OPERATOR_NO_LIMIT &&
                q->create_rate == OPERATOR_NO_LIMIT && q->execs_max == OPERATOR_NO_LIMIT);
    assert_true(operator_quota(p, "")->ended_max == OPERATOR_NO_LIMIT);
    operator_free(p);
    operator_free(NULL);
}

TEST(sections_inherit)
{
    struct operator_policy *p =
        parse("[policy]\nmemory_max = 4G\nimages = host, py\nmounts = /srv/a\nended_max = 10\n"
              "[tenant acme] # a comment\nmemory_max = 1G\n"
              "[tenant wide]\nmemory_max = none\nimages = **\nmounts = none\nended_max = none\n"
              "[tenant acme]\npids_max = 10\n");
    assert_refused(p, "acme", (struct cay_spec){.memory = G + 1}, CAY_E_LIMIT,
                   "tenant acme.memory_max");
    assert_allowed(p, "acme", (struct cay_spec){.memory = G, .image = "py"});
    assert_refused(p, "acme", (struct cay_spec){.pids = 11}, CAY_E_LIMIT, "tenant acme.pids_max");
    assert_refused(p, "acme", (struct cay_spec){.image = "ubuntu"}, CAY_E_DENIED, "policy.images");
    assert_refused(p, "other", (struct cay_spec){.memory = 4 * G + 1}, CAY_E_LIMIT,
                   "policy.memory_max");
    assert_allowed(p, "other", (struct cay_spec){.memory = 4 * G, .pids = 1000000});
    assert_allowed(p, "wide", (struct cay_spec){.memory = 1ULL << 40, .image = "a/b:c"});
    assert_int_equal(mount(p, "wide", "/srv/a", true), -1);
    assert_string_equal(why.rule, "tenant wide.mounts");
    assert_int_equal(mount(p, "acme", "/srv/a", true), 0);
    assert_int_equal(mount(p, "other", "/srv/a", true), 0);
    assert_int_equal(operator_quota(p, "acme")->ended_max, 10);
    assert_true(operator_quota(p, "wide")->ended_max == OPERATOR_NO_LIMIT);
    /* A name that is the beginning of another, or longer, is another tenant. */
    assert_allowed(p, "acm", (struct cay_spec){.memory = 4 * G});
    assert_allowed(p, "acme2", (struct cay_spec){.memory = 4 * G});
    operator_free(p);
}

TEST(operator_is_exempt_unless_told)
{
    struct operator_policy *p = parse("[policy]\nmemory_max = 1G\nimages = host\nmounts = none\n"
                                      "sandboxes_max = 3\n");
    assert_allowed(p, "", (struct cay_spec){.memory = 8 * G, .image = "x"});
    assert_int_equal(mount(p, "", "/etc", false), 0);
    assert_true(operator_quota(p, "")->sandboxes_max == OPERATOR_NO_LIMIT);
    operator_free(p);
    p = parse(
        "[policy]\noperator_exempt = no\nmemory_max = 1G\nmounts = /srv\nsandboxes_max = 3\n");
    assert_refused(p, "", (struct cay_spec){.memory = 8 * G}, CAY_E_LIMIT, "policy.memory_max");
    assert_allowed(p, "", (struct cay_spec){.image = "anything"}); /* no rule, no limit */
    assert_int_equal(mount(p, "", "/srv/x", true), 0);
    assert_int_equal(mount(p, "", "/etc", true), -1);
    /* Some paths to read is not all paths to write. */
    assert_int_equal(mount(p, "", "/srv/x", false), -1);
    assert_string_equal(why.rule, "policy.mounts_rw");
    assert_int_equal(operator_quota(p, "")->sandboxes_max, 3);
    assert_true(operator_quota(p, "")->requests_max == OPERATOR_NO_LIMIT);
    operator_free(p);
}

/* Every ceiling: at it, one above it, and what silence becomes. */
TEST(ceilings)
{
    static const struct {
        const char *name, *max, *small;
        size_t offset;
        uint64_t at, small_is, engine; /* engine: what it takes by itself, below `at` */
    } rows[] = {
#define ROW(name, member, max, at, small, small_is, engine) \
    {#name, max, small, offsetof(struct cay_spec, member), at, small_is, engine}
        ROW(memory, memory, "4G", 4 * G, "1G", G, 2 * G),
        ROW(cpus, cpus, "1.5", 1500, "0.5", 500, 1500),
        ROW(pids, pids, "5000", 5000, "10", 10, 1024),
        ROW(disk, disk, "3G", 3 * G, "8M", 8 * M, G),
        ROW(inodes, inodes, "9000000", 9000000, "100", 100, G / 4096),
        ROW(fds, fds, "5000", 5000, "16", 16, 4096),
        ROW(output, output, "16M", 16 * M, "64K", 65536, 8 * M),
        ROW(ttl, ttl_ms, "1h", 3600000, "1m", 60000, 3600000),
        ROW(idle, idle_ms, "90s", 90000, "1.5", 1500, 90000),
#undef ROW
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[200], rule[96];
        struct cay_spec spec = {0};
        uint64_t *value = (uint64_t *)(void *)((char *)&spec + rows[i].offset);
        snprintf(text, sizeof(text), "[policy]\n%s_max = %s\n", rows[i].name, rows[i].max);
        snprintf(rule, sizeof(rule), "policy.%s_max", rows[i].name);
        struct operator_policy *p = parse(text);
        *value = rows[i].at;
        assert_allowed(p, "t", spec);
        *value = rows[i].at + 1;
        assert_refused(p, "t", spec, CAY_E_LIMIT, rule);
        assert_string_equal(why.field, rows[i].name);
        *value = UINT64_MAX;
        assert_refused(p, "t", spec, CAY_E_LIMIT, rule);
        *value = 0;
        if (rows[i].engine) {
            assert_int_equal(check(p, "t", &spec), 0);
            assert_int_equal(*value, rows[i].engine);
        } else {
            assert_refused(p, "t", spec, CAY_E_LIMIT, rule);
        }
        operator_free(p);
        /* A ceiling below the engine's default is what silence becomes, a default of the policy
         * comes first, and a default alone is no ceiling. */
        spec = (struct cay_spec){0};
        snprintf(text, sizeof(text),
                 "[policy]\n%s_default = %s\n%s_max = %s\n[tenant t]\n%s_max = %s\n", rows[i].name,
                 rows[i].max, rows[i].name, rows[i].max, rows[i].name, rows[i].small);
        p = parse(text);
        assert_int_equal(check(p, "t", &spec), 0);
        assert_int_equal(*value, rows[i].small_is);
        *value = 0;
        assert_int_equal(check(p, "u", &spec), 0);
        assert_int_equal(*value, rows[i].at);
        operator_free(p);
        snprintf(text, sizeof(text), "[policy]\n%s_default = %s\n", rows[i].name, rows[i].small);
        p = parse(text);
        *value = 0;
        assert_int_equal(check(p, "t", &spec), 0);
        assert_int_equal(*value, rows[i].small_is);
        *value = rows[i].small_is * 2;
        assert_allowed(p, "t", spec);
        operator_free(p);
    }
}

/* What the policy takes for the engine's defaults is what the engine takes. */
TEST(defaults_are_the_engines)
{
    static const uint64_t memories[] = {0, 64 * M, 8 * G};
    struct operator_policy *p =
        parse("[policy]\nmemory_max = 1T\ndisk_max = 1T\ninodes_max = 1000000000\n"
              "pids_max = 100000\nfds_max = 100000\noutput_max = 1T\n");
    for (size_t i = 0; i < COUNT(memories); i++) {
        struct cay_spec spec = {.id = "x", .memory = memories[i]};
        struct spec plain, filled;
        assert_int_equal(spec_make(&spec, &plain, &err), 0);
        assert_int_equal(check(p, "t", &spec), 0);
        assert_int_equal(spec_make(&spec, &filled, &err), 0);
        assert_null(spec_difference(&plain, &filled));
        assert_int_equal(spec.memory, plain.spec.memory);
        assert_int_equal(spec.disk, plain.spec.disk);
        assert_int_equal(spec.inodes, plain.spec.inodes);
        spec_done(&plain);
        spec_done(&filled);
    }
    operator_free(p);
}

TEST(output_has_a_built_in_ceiling)
{
    struct operator_policy *p = parse("[tenant much]\noutput_max = 1T\n"
                                      "[tenant standard]\noutput_default = 128M\n"
                                      "[tenant free]\noutput_max = none\n");
    struct cay_spec spec = {0}, most = {.output = 64 * M}, more = {.output = 64 * M + 1};
    assert_int_equal(check(p, "t", &spec), 0);
    assert_int_equal(spec.output, 0);
    assert_allowed(p, "t", most);
    assert_refused(p, "t", more, CAY_E_LIMIT, "builtin.output_max");
    assert_allowed(p, "much", more);
    assert_allowed(p, "free", more);
    assert_allowed(p, "", more);
    assert_int_equal(check(p, "standard", &spec), 0);
    assert_int_equal(spec.output, 128 * M);
    spec.output++;
    assert_refused(p, "standard", spec, CAY_E_LIMIT, "builtin.output_max");
    operator_free(p);
}

TEST(totals_make_every_sandbox_count)
{
    struct operator_policy *p =
        parse("[policy]\nmemory_total = 10G\ndisk_total = 10G\ncpus_total = 4\ncpus_default = 1\n");
    struct cay_spec spec = {0};
    assert_int_equal(check(p, "t", &spec), 0);
    assert_true(spec.memory == 2 * G && spec.disk == G && spec.cpus == 1000 && !spec.pids);
    operator_free(p);
}

TEST(lifetime)
{
    struct operator_policy *p = parse("[policy]\nttl_max = 1h\nttl_default = 10m\nidle_max = 5m\n"
                                      "[tenant free]\nttl_max = none\nidle_max = none\n");
    struct cay_lifetime l = {.set_ttl = true, .ttl_ms = 3600000};
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), 0);
    l.ttl_ms++;
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), -1);
    assert_error(err, CAY_E_LIMIT, "policy.ttl_max");
    assert_string_equal(why.rule, "policy.ttl_max");
    l.ttl_ms = 0; /* "never", asked for: no default takes its place */
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), -1);
    assert_int_equal(operator_check_lifetime(p, "free", &l, &why, &err), 0);
    assert_int_equal(operator_check_lifetime(p, "", &l, &why, &err), 0);
    l = (struct cay_lifetime){.set_idle = true, .idle_ms = 300001};
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), -1);
    assert_string_equal(why.rule, "policy.idle_max");
    l.idle_ms--;
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), 0);
    l = (struct cay_lifetime){.ttl_ms = 1ULL << 60, .idle_ms = 1ULL << 60}; /* neither is set */
    assert_int_equal(operator_check_lifetime(p, "t", &l, &why, &err), 0);
    /* A create that says nothing: the ttl's default, and where there is none, the ceiling. */
    struct cay_spec spec = {0};
    assert_int_equal(check(p, "t", &spec), 0);
    assert_int_equal(spec.ttl_ms, 600000);
    assert_int_equal(spec.idle_ms, 300000);
    operator_free(p);
}

TEST(images)
{
    struct operator_policy *p =
        parse("[policy]\nimages = py-*, debian:?, **/tools, dir:/srv/img/*, dir:/opt/one\n"
              "images = [ab]c\n[tenant all]\nimages = **\n[tenant one]\nimages = base, x*\n"
              "[tenant no]\nimages = none\n[tenant d]\nimages = dir:/opt/one, host\n");
    static const struct {
        const char *tenant, *name, *resolved;
        int expected;
    } rows[] = {
        {"t", "py-3.12", NULL, 0},
        {"t", "py-", NULL, 0},
        {"t", "py", NULL, -1},
        {"t", "xpy-3", NULL, -1},
        {"t", "py-a/b", NULL, -1}, /* a star stays within a component */
        {"t", "debian:1", NULL, 0},
        {"t", "debian:12", NULL, -1},
        {"t", "a/b/tools", NULL, 0},
        {"t", "ac", NULL, 0},
        {"t", "cc", NULL, -1},
        {"t", "host", NULL, -1},
        {"t", "dir:/srv/img/a", "/srv/img/a", 0},
        {"t", "dir:/srv/img/../../etc", "/etc", -1},
        {"t", "dir:/srv/img/link", "/etc", -1},
        {"t", "dir:/srv/img/..", "/srv", -1},
        {"t", "dir:/srv/img/a", NULL, -1},      /* does not resolve: as if outside */
        {"t", "dir:/srv/img/a", "srv/img", -1}, /* not a path */
        {"t", "dir:/srv/img/a/b", "/srv/img/a/b", -1},
        {"t", "dir:/srv//img/a/", "/srv/img/a", 0},
        {"t", "dir:/link", "/opt/one", 0},
        {"t", "dir:/opt/one2", "/opt/one2", -1},
        {"all", "any/thing:1", NULL, 0},
        {"all", "dir:/etc", "/etc", -1}, /* ** does not open the host */
        {"one", "", NULL, 0},
        {"no", "host", NULL, -1},
        {"no", NULL, NULL, -1},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (image(p, rows[i].tenant, rows[i].name, rows[i].resolved) != rows[i].expected)
            fail_msg("%s: %s", rows[i].tenant, rows[i].name ? rows[i].name : "(none)");
    /* Where a link leads is not told. */
    assert_int_equal(image(p, "t", "dir:/srv/img/link", "/root/secret"), -1);
    assert_error(err, CAY_E_DENIED, "dir:/srv/img/link");
    assert_null(strstr(err.text, "secret"));
    struct cay_spec spec = {0};
    assert_int_equal(check(p, "one", &spec), 0); /* the first, which is no pattern */
    assert_string_equal(spec.image, "base");
    spec = (struct cay_spec){0};
    assert_int_equal(check(p, "d", &spec), 0); /* a directory is never taken unasked */
    assert_string_equal(spec.image, "host");
    assert_refused(p, "t", (struct cay_spec){0}, CAY_E_DENIED, "policy.images"); /* host */
    operator_free(p);
}

TEST(profiles)
{
    struct operator_policy *p = parse("[policy]\nprofiles = strict, default\n[tenant n]\n"
                                      "profiles = nested\n[tenant z]\nprofiles = none\n");
    struct cay_spec spec = {0};
    assert_int_equal(check(p, "t", &spec), 0);
    assert_int_equal(spec.profile, CAY_PROFILE_STRICT);
    assert_allowed(p, "t", (struct cay_spec){.profile = CAY_PROFILE_DEFAULT});
    assert_refused(p, "t", (struct cay_spec){.profile = CAY_PROFILE_NESTED}, CAY_E_DENIED,
                   "policy.profiles");
    assert_allowed(p, "n", (struct cay_spec){.profile = CAY_PROFILE_NESTED});
    assert_refused(p, "n", (struct cay_spec){.profile = CAY_PROFILE_STRICT}, CAY_E_DENIED,
                   "tenant n.profiles");
    assert_refused(p, "z", (struct cay_spec){0}, CAY_E_DENIED, "tenant z.profiles");
    operator_free(p);
}

TEST(mounts)
{
    struct operator_policy *p = parse("[policy]\nmounts = /srv/data, //srv/./ro//\n"
                                      "mounts = \"/srv/with blank\"\nmounts_rw = /srv/rw\n"
                                      "[tenant all]\nmounts = /\n");
    static const struct {
        const char *tenant, *path;
        int ro, rw;
    } rows[] = {
        {"t", "/srv/data", 0, -1},
        {"t", "/srv/data/a/b", 0, -1},
        {"t", "/srv/database", -1, -1},
        {"t", "/srv/dat", -1, -1},
        {"t", "/srv", -1, -1},
        {"t", "/", -1, -1},
        {"t", "/srv/ro", 0, -1},
        {"t", "/srv/ro/x", 0, -1},
        {"t", "/srv/rox", -1, -1},
        {"t", "/srv/with blank/x", 0, -1},
        {"t", "/srv/rw", 0, 0},
        {"t", "/srv/rw/deep", 0, 0},
        {"t", "/srv/rw2", -1, -1},
        /* What no resolver hands over is not believed. */
        {"t", "/srv/data/../../etc", -1, -1},
        {"t", "/srv/data/..", -1, -1},
        {"t", "/srv/data/.", -1, -1},
        {"t", "/srv/data//x", -1, -1},
        {"t", "/srv/data/", -1, -1},
        {"t", "srv/data", -1, -1},
        {"t", "", -1, -1},
        {"t", NULL, -1, -1},
        /* Dots in names are names. */
        {"t", "/srv/data/..x", 0, -1},
        {"t", "/srv/data/...", 0, -1},
        {"t", "/srv/data/.x", 0, -1},
        {"all", "/", 0, -1},
        {"all", "/etc/shadow", 0, -1},
        {"all", "/srv/rw/x", 0, 0}, /* mounts_rw is inherited */
        {"all", "/..", -1, -1},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (mount(p, rows[i].tenant, rows[i].path, true) != rows[i].ro ||
            (rows[i].ro < 0 &&
             strcmp(why.rule, *rows[i].tenant == 't' ? "policy.mounts" : "tenant all.mounts") != 0))
            fail_msg("ro %s: %s", rows[i].tenant, rows[i].path ? rows[i].path : "(none)");
        if (mount(p, rows[i].tenant, rows[i].path, false) != rows[i].rw ||
            (rows[i].rw < 0 && strcmp(why.rule, "policy.mounts_rw") != 0))
            fail_msg("rw %s: %s", rows[i].tenant, rows[i].path ? rows[i].path : "(none)");
    }
    /* One bad mount among good ones, and a caller that resolved nothing. */
    struct cay_mount list[] = {{"/a", "/a", true}, {"/b", "/b", true}, {"/c", "/c", true}};
    const char *sources[] = {"/srv/data/a", "/srv/database", "/srv/data/c"};
    const struct operator_resolved paths = {.sources = sources};
    struct cay_spec spec = {.mounts = list, .n_mounts = 3};
    assert_int_equal(operator_check(p, "t", &spec, &paths, &why, &err), -1);
    assert_error(err, CAY_E_DENIED, "'/b'");
    sources[1] = "/srv/data/b";
    assert_int_equal(operator_check(p, "t", &spec, &paths, &why, &err), 0);
    assert_int_equal(operator_check(p, "t", &spec, NULL, &why, &err), -1);
    operator_free(p);
}

static int count_path(const char *path, const char *rule, void *data)
{
    assert_true(path[0] == '/' && *rule);
    ++*(int *)data;
    return strcmp(path, "/stop") == 0 ? 7 : 0;
}

TEST(paths_are_told)
{
    int n = 0;
    struct operator_policy *p = parse("[policy]\nmounts = /a, /b\n[tenant x]\nmounts_rw = /c\n");
    assert_int_equal(operator_each_path(p, count_path, &n), 0);
    assert_int_equal(n, 5); /* the tenant inherits two */
    operator_free(p);
    p = parse("[policy]\nmounts = /stop, /b\n");
    n = 0;
    assert_int_equal(operator_each_path(p, count_path, &n), 7);
    assert_int_equal(n, 1);
    operator_free(p);
}

TEST(quotas)
{
    struct operator_policy *p =
        parse("[policy]\nsandboxes_max = 5\nended_max = 1\nmemory_total = 10G\ndisk_total = 20G\n"
              "execs_max = 7\nrequests_max = 8\ncreate_rate = 60\n"
              "[tenant acme]\nsandboxes_max = 0\ncpus_total = 2.5\ncpus_max = 1\n"
              "create_rate = none\n");
    const struct operator_quota *q = operator_quota(p, "t"), *a = operator_quota(p, "acme");
    assert_int_equal(q->sandboxes_max, 5);
    assert_int_equal(q->ended_max, 1);
    assert_int_equal(q->memory_total, 10 * G);
    assert_int_equal(q->disk_total, 20 * G);
    assert_true(q->cpus_total == OPERATOR_NO_LIMIT);
    assert_int_equal(q->execs_max, 7);
    assert_int_equal(q->requests_max, 8);
    assert_int_equal(q->create_rate, 60);
    assert_int_equal(a->sandboxes_max, 0);
    assert_int_equal(a->cpus_total, 2500);
    assert_int_equal(a->memory_total, 10 * G);
    assert_true(a->create_rate == OPERATOR_NO_LIMIT);
    assert_int_equal(operator_check_quota(p, "t", "sandboxes_max", 4, 1, &why, &err), 0);
    assert_int_equal(operator_check_quota(p, "t", "sandboxes_max", 5, 1, &why, &err), -1);
    assert_error(err, CAY_E_LIMIT, "policy.sandboxes_max");
    assert_string_equal(why.rule, "policy.sandboxes_max");
    assert_int_equal(operator_check_quota(p, "acme", "sandboxes_max", 0, 1, &why, &err), -1);
    assert_string_equal(why.rule, "tenant acme.sandboxes_max");
    assert_int_equal(operator_check_quota(p, "t", "memory_total", 9 * G, G, &why, &err), 0);
    assert_int_equal(operator_check_quota(p, "t", "memory_total", 9 * G, G + 1, &why, &err), -1);
    /* Sums that wrap, and more in use than a tightened limit. */
    assert_int_equal(operator_check_quota(p, "t", "memory_total", G, UINT64_MAX, &why, &err), -1);
    assert_int_equal(operator_check_quota(p, "t", "memory_total", 11 * G, 0, &why, &err), -1);
    assert_int_equal(operator_check_quota(p, "acme", "cpus_total", 1500, 1000, &why, &err), 0);
    assert_int_equal(operator_check_quota(p, "acme", "cpus_total", 1501, 1000, &why, &err), -1);
    assert_error(err, CAY_E_LIMIT, "2.500");
    assert_int_equal(operator_check_quota(p, "acme", "create_rate", UINT64_MAX, 9, &why, &err), 0);
    assert_int_equal(operator_check_quota(p, "", "sandboxes_max", 99, 1, &why, &err), 0);
    assert_int_equal(operator_check_quota(p, "t", "memory_max", 0, 1, &why, &err), -1);
    assert_error(err, CAY_E_INTERNAL, "memory_max");
    operator_free(p);
}

TEST(bad_documents)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"[policy]\nmemry_max = 1G\n",
         "p.conf:2: unknown key 'memry_max'; did you mean 'memory_max'"},
        {"[policy]\n\nxyzzy = 1\n", "p.conf:3: unknown key 'xyzzy'"},
        {"[policy]\nmemory_max = lots\n", "p.conf:2: memory_max"},
        {"[policy]\nmemory_max = 0\n", "'none' is no limit"},
        {"[policy]\nmemory_max = -1\n", "memory_max"},
        {"[policy]\nmemory_max = 1G\nmemory_max = 2G\n", "p.conf:3: memory_max: given twice"},
        {"[policy]\npids_max = 18446744073709551615\n", "p.conf:2: pids_max"},
        {"[policy]\nrequests_max = 0\n", "requests_max"},
        {"[policy]\nended_max = 0\n", "ended_max"},
        {"[policy]\nmemory_max = 1G\nmemory_default = 2G\n", "[policy] memory_default is above"},
        {"[tenant a]\nttl_max = 1h\nttl_default = 2h\n", "[tenant a] ttl_default is above"},
        {"[policy]\ncpus_total = 4\n", "cpus_total needs"},
        {"[policy]\ncpus_max = 1\n[tenant a]\ncpus_max = none\ncpus_total = 4\n", "[tenant a]"},
        {"[policy]\nmounts = srv\n", "p.conf:2: mounts: 'srv' is not an absolute path"},
        {"[policy]\nmounts = /srv/../etc\n", "'..'"},
        {"[policy]\nmounts = /a,,/b\n", "empty entry"},
        {"[policy]\nmounts = /a,\n", "empty entry"},
        {"[policy]\nmounts = none, /a\n", "'none'"},
        {"[policy]\nmounts = /a\nmounts = none\n", "p.conf:3"},
        {"[policy]\nmounts = none\nmounts = /a\n", "p.conf:3"},
        {"[policy]\nimages = dir:x\n", "absolute"},
        {"[policy]\nprofiles = strictest\n", "profiles"},
        {"[policy]\noperator_exempt = maybe\n", "operator_exempt"},
        {"[tenant a]\noperator_exempt = no\n", "only stand in [policy]"},
        {"[tenant Acme]\n", "p.conf:1: [tenant Acme]"},
        {"\n[tenant pool]\n", "p.conf:2: [tenant pool]"},
        {"[tenant -a]\n", "[tenant -a]"},
        {"[tenant  a]\n", "[tenant  a]"},
        {"[tenant\ta]\n", "unknown section"},
        {"[tenant a~b]\n", "a~b"},
        {"[tenant abcdefghijklmnopqrstuvwxy]\n", "1 to 24"},
        {"[tenant]\n", "unknown section"},
        {"[tenants a]\n", "unknown section"},
        {"[tenant a\n", "expected [SECTION]"},
        {"[tenant a] x\n", "expected [SECTION]"},
        {"memory_max = 1G\n", "expected a [section]"},
        {"[policy]\nmemory_max\n", "expected KEY = VALUE"},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_bad(rows[i].text, rows[i].part);
    struct operator_policy *p = NULL;
    assert_int_equal(operator_parse("p.conf", "[policy]\n\0", 10, &p, &err), -1);
    assert_error(err, CAY_E_INVALID, "not a text file");
    p = parse("[tenant abcdefghijklmnopqrstuvwx]\n[tenant a-1]\n[policy]\n");
    operator_free(p);
}

TEST(documents_have_limits)
{
    autobuf struct cay_buf text = CAY_BUF(1 << 20);
    struct operator_policy *p = NULL;
    for (int i = 0; i < OPERATOR_MAX_TENANTS; i++)
        buf_fmt(&text, "[tenant t%d]\nmemory_max = 1G\n", i);
    assert_int_equal(operator_parse("p", text.data, text.size, &p, &err), 0);
    assert_refused(p, "t1023", (struct cay_spec){.memory = 2 * G}, CAY_E_LIMIT,
                   "tenant t1023.memory_max");
    operator_free(p);
    buf_str(&text, "[tenant more]\n");
    assert_int_equal(operator_parse("p", text.data, text.size, &p, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "tenants");
    text.size = 0;
    buf_str(&text, "[policy]\n");
    for (int i = 0; i < 1024; i++)
        buf_fmt(&text, "images = i%d\n", i);
    assert_int_equal(operator_parse("p", text.data, text.size, &p, &err), 0);
    operator_free(p);
    buf_str(&text, "images = one-more\n");
    assert_int_equal(operator_parse("p", text.data, text.size, &p, &err), -1);
    text.size = 0;
    while (text.size <= CAY_MAX_CONFIG)
        buf_str(&text, "# a line that says nothing\n");
    assert_int_equal(operator_parse("p", text.data, text.size, &p, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "larger than");
}

TEST(names_of_tenants)
{
    static const char *const good[] = {"a",    "0", "acme", "a-b", "abcdefghijklmnopqrstuvwx",
                                       "pool1"};
    static const char *const bad[] = {"",    "pool", "A",  "a_b", "a~b",
                                      "a/b", "..",   "-a", "a b", "abcdefghijklmnopqrstuvwxy"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(operator_tenant_ok(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(operator_tenant_ok(bad[i]));
}

/* ---- what is said about it ------------------------------------------------------------------- */

static const char *docs; /* the directory, if one is given */

static const char *read_doc(const char *name)
{
    static char text[65536];
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", docs, name);
    if (cay_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        fail_msg("cannot read %s", path);
    return text;
}

TEST(every_rule_is_explained)
{
    if (!docs)
        skip();
    const char *text = read_doc("POLICY.md");
    for (size_t i = 0; i < N_RULES; i++) {
        char word[64];
        snprintf(word, sizeof(word), "`%s`", rule_table[i].name);
        if (!strstr(text, word))
            fail_msg("POLICY.md does not mention %s", word);
    }
}

TEST(the_example_is_good)
{
    if (!docs)
        skip();
    struct operator_policy *p = parse(read_doc("policy.example.conf"));
    assert_allowed(p, "acme", (struct cay_spec){.memory = 16 * G, .image = "py-3.12"});
    assert_refused(p, "ci", (struct cay_spec){.image = "py-3.12"}, CAY_E_DENIED,
                   "tenant ci.images");
    assert_refused(p, "else", (struct cay_spec){.memory = 16 * G}, CAY_E_LIMIT,
                   "policy.memory_max");
    assert_int_equal(operator_quota(p, "ci")->sandboxes_max, 200);
    operator_free(p);
}

int main(int argc, char **argv)
{
    docs = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_document),
        cmocka_unit_test(sections_inherit),
        cmocka_unit_test(operator_is_exempt_unless_told),
        cmocka_unit_test(ceilings),
        cmocka_unit_test(defaults_are_the_engines),
        cmocka_unit_test(output_has_a_built_in_ceiling),
        cmocka_unit_test(totals_make_every_sandbox_count),
        cmocka_unit_test(lifetime),
        cmocka_unit_test(images),
        cmocka_unit_test(profiles),
        cmocka_unit_test(mounts),
        cmocka_unit_test(paths_are_told),
        cmocka_unit_test(quotas),
        cmocka_unit_test(bad_documents),
        cmocka_unit_test(documents_have_limits),
        cmocka_unit_test(names_of_tenants),
        cmocka_unit_test(every_rule_is_explained),
        cmocka_unit_test(the_example_is_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
