/* SPDX-License-Identifier: Apache-2.0 */
/* The option engine: command lines, config files, suggestions. */
#include "base/limits.h"
#include "base/opt.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

struct things {
    bool verbose, detach;
    uint64_t timeout;
    bool timeout_given;
    const char *const *words;
};

#define AT(member) offsetof(struct things, member)
static const struct opt table[] = {
    OPT("verbose", 'V', OPT_FLAG, AT(verbose), NULL, "say more"),
    OPT("detach", 'd', OPT_FLAG, AT(detach), NULL, "do not wait"),
    OPT("timeout", 0, OPT_DURATION, AT(timeout), "S", "give up", .extra = AT(timeout_given)),
    OPT("word", 0, OPT_STRV, AT(words), "W", "a word", .max = 3),
};

struct parsed {
    struct cay_spec spec;
    struct things things;
    struct opt_args args;
    struct cay_error err;
    struct opt_arena arena;
};

/* Parses a line that is cut at its blanks. */
static int parse(struct parsed *p, const char *line, size_t leading)
{
    static char copy[4096];
    static char *argv[256];
    size_t n = 0;
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n] = NULL;
    *p = (struct parsed){0};
    const struct opt_group groups[] = {
        {opt_spec, opt_spec_count, &p->spec}, {table, COUNT(table), &p->things}, {0}};
    return opt_parse(&p->arena, groups, argv, leading, &p->args, &p->err);
}

TEST(all_ways_to_write_an_option)
{
    struct parsed p;
    assert_int_equal(parse(&p, "--memory=512M --cpus 0.5 -Vd -w/tmp -u me --timeout 1m", SIZE_MAX),
                     0);
    assert_true(p.spec.memory == 512ull << 20);
    assert_int_equal(p.spec.cpus, 500);
    assert_true(p.things.verbose && p.things.detach);
    assert_string_equal(p.spec.cwd, "/tmp");
    assert_string_equal(p.spec.user, "me");
    assert_int_equal(p.things.timeout, 60000);
    assert_true(p.things.timeout_given);
    assert_int_equal(p.args.n, 0);
    opt_arena_done(&p.arena);
}

TEST(a_command_keeps_its_own_options)
{
    struct parsed p;
    assert_int_equal(parse(&p, "-d box --verbose ls -l --memory=x", 1), 0);
    assert_true(p.things.verbose);
    assert_int_equal(p.args.n, 4);
    assert_string_equal(p.args.operands[0], "box");
    assert_string_equal(p.args.operands[1], "ls");
    assert_string_equal(p.args.operands[3], "--memory=x");
    assert_null(p.args.operands[4]);
    opt_arena_done(&p.arena);
    assert_int_equal(parse(&p, "box -- -d -", 1), 0);
    assert_false(p.things.detach);
    assert_int_equal(p.args.n, 3);
    assert_string_equal(p.args.operands[1], "-d");
    assert_string_equal(p.args.operands[2], "-");
    opt_arena_done(&p.arena);
}

TEST(lists_grow_and_are_bounded)
{
    struct parsed p;
    assert_int_equal(
        parse(&p, "--word a --word=b -v /a:/b -v /c:/d:ro --word c -e A=1 -e B=2", SIZE_MAX), 0);
    assert_string_equal(p.things.words[2], "c");
    assert_null(p.things.words[3]);
    assert_int_equal(p.spec.n_mounts, 2);
    assert_string_equal(p.spec.mounts[1].source, "/c");
    assert_string_equal(p.spec.mounts[1].target, "/d");
    assert_true(p.spec.mounts[1].read_only);
    assert_string_equal(p.spec.env[1], "B=2");
    opt_arena_done(&p.arena);
    assert_int_equal(parse(&p, "--word a --word b --word c --word d", SIZE_MAX), -1);
    assert_error(p.err, CAY_E_LIMIT, "--word");
    opt_arena_done(&p.arena);
}

TEST(a_bare_name_takes_the_callers_value)
{
    struct parsed p;
    setenv("CAY_TEST_SET", "yes", 1);
    unsetenv("CAY_TEST_UNSET");
    assert_int_equal(parse(&p, "-e CAY_TEST_SET -e CAY_TEST_UNSET", SIZE_MAX), 0);
    assert_string_equal(p.spec.env[0], "CAY_TEST_SET=yes");
    assert_null(p.spec.env[1]);
    opt_arena_done(&p.arena);
}

TEST(mistakes_are_one_clear_line)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"--memroy 1G", "did you mean '--memory'?"},
        {"--mem 1G", "did you mean '--memory'?"},
        {"--zzzzzzzzzzzz", "unknown option '--zzzzzzzzzzzz'"},
        {"-Z", "unknown option '-Z'"},
        {"--memory", "--memory needs a value"},
        {"-w", "-w needs a value"},
        {"--memory 12Q", "--memory: bad size '12Q'"},
        {"--memory 0", "more than 0"},
        {"--detach=maybe", "expected yes or no"},
        {"-v /a", "-v: bad mount"},
        {"--profile loose", "strict, default or nested"},
        {"--name UPPER", "bad id"},
        {"--label x", "bad label"},
        {"--image=", "not empty"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct parsed p;
        assert_int_equal(parse(&p, cases[i].line, SIZE_MAX), -1);
        assert_error(p.err, CAY_E_INVALID, cases[i].says);
        opt_arena_done(&p.arena);
    }
}

struct config {
    struct cay_spec spec;
    char aliases[200];
};

static int add_alias(const char *key, const char *value, void *data, struct cay_error *err)
{
    struct config *config = data;
    size_t n = strlen(config->aliases);
    (void)err;
    snprintf(config->aliases + n, sizeof(config->aliases) - n, "%s>%s;", key, value);
    return 0;
}

static int read_config(struct opt_arena *arena, struct config *config, const char *text,
                       struct cay_error *err)
{
    const struct opt_section sections[] = {
        {.name = "defaults", .group = {opt_spec, opt_spec_count, &config->spec}},
        {.name = "images", .each = add_alias, .data = config},
        {0}};
    return opt_config(arena, "cay.conf", text, strlen(text), sections, err);
}

TEST(config_files)
{
    autoarena struct opt_arena arena = {0};
    struct config config = {0};
    struct cay_error err = {0};
    assert_int_equal(
        read_config(
            &arena, &config,
            "# all of it\n\n[defaults]\nmemory = 1G # here too\nlabel=a=b\n"
            "workdir = \" with # blank \"\r\n[images]\n python:3.11-slim = host\n x = \"y\"",
            &err),
        0);
    assert_true(config.spec.memory == 1ull << 30);
    assert_string_equal(config.spec.labels[0], "a=b");
    assert_string_equal(config.spec.cwd, " with # blank ");
    assert_string_equal(config.aliases, "python:3.11-slim>host;x>y;");
}

TEST(config_mistakes_name_their_line)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"memory = 1G\n", "cay.conf:1: expected a [section]"},
        {"[defaults]\n\nmemroy = 1G\n", "cay.conf:3: unknown key 'memroy'; did you mean 'memory'?"},
        {"[defaults]\nmemory = much\n", "cay.conf:2: memory: bad size"},
        {"[defaults]\nmemory\n", "cay.conf:2: bad line"},
        {"[defaults]\n= 1\n", "neither of them empty"},
        {"[nothing]\n", "unknown section '[nothing]'"},
        {"[defaults\n", "expected [SECTION]"},
        {"[]\n", "expected [SECTION]"},
        {"[defaults]\nenv = HOME\n", "NAME=VALUE"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        autoarena struct opt_arena arena = {0};
        struct config config = {0};
        struct cay_error err = {0};
        assert_int_equal(read_config(&arena, &config, cases[i].text, &err), -1);
        assert_error(err, CAY_E_INVALID, cases[i].says);
    }
}

TEST(near_names)
{
    static const struct {
        const char *word, *best;
    } cases[] = {{"exce", "exec"}, {"ps", "ps"}, {"crate", "create"}, {"xyzzy", NULL}, {"", NULL}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct opt_near near = {.word = cases[i].word};
        opt_near_try(&near, "exec");
        opt_near_try(&near, "create");
        opt_near_try(&near, "ps");
        const char *best = opt_near_best(&near);
        assert_string_equal(best ? best : "none", cases[i].best ? cases[i].best : "none");
    }
}

TEST(the_spec_table_is_sane)
{
    for (size_t i = 0; i < opt_spec_count; i++) {
        const struct opt *o = &opt_spec[i];
        assert_non_null(o->help);
        assert_true(o->help[0] && o->help[strlen(o->help) - 1] != '.');
        assert_true((o->type == OPT_FLAG) == !o->metavar);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(o->name, opt_spec[j].name);
            assert_true(!o->letter || o->letter != opt_spec[j].letter);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_to_write_an_option),
        cmocka_unit_test(a_command_keeps_its_own_options),
        cmocka_unit_test(lists_grow_and_are_bounded),
        cmocka_unit_test(a_bare_name_takes_the_callers_value),
        cmocka_unit_test(mistakes_are_one_clear_line),
        cmocka_unit_test(config_files),
        cmocka_unit_test(config_mistakes_name_their_line),
        cmocka_unit_test(near_names),
        cmocka_unit_test(the_spec_table_is_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
