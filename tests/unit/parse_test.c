/* SPDX-License-Identifier: Apache-2.0 */
/* The parsers of what people write: what they take, what they refuse, and that refusals change
 * nothing. */
#include "base/parse.h"
#include "test.h"

#include <signal.h>

struct number_case {
    const char *text;
    uint64_t value;
};

typedef int number_parser(const char *, uint64_t *, struct cay_error *);

static void takes(number_parser *parse, const struct number_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t value = 12345;
        struct cay_error err = {0};
        if (parse(cases[i].text, &value, &err) != 0 || value != cases[i].value)
            fail_msg("'%s': %llu, wanted %llu (%s)", cases[i].text, (unsigned long long)value,
                     (unsigned long long)cases[i].value, err.text);
    }
}

static void refuses(number_parser *parse, const char *const *texts)
{
    for (size_t i = 0; texts[i]; i++) {
        uint64_t value = 12345;
        struct cay_error err = {0};
        if (parse(texts[i], &value, &err) != -1 || value != 12345)
            fail_msg("'%s' was not refused", texts[i]);
        assert_error(err, CAY_E_INVALID, "bad ");
    }
}

TEST(sizes)
{
    static const struct number_case good[] = {
        {"0", 0},           {"1024", 1024},         {"512M", 512ull << 20},
        {"2g", 2ull << 30}, {"1.5GiB", 3ull << 29}, {"1KB", 1024},
        {"0.5k", 512},      {"1T", 1ull << 40},     {"7B", 7},
        {"0.0000001K", 1},
    };
    static const char *const bad[] = {"",
                                      "M",
                                      "-1",
                                      "1.5",
                                      "1 M",
                                      " 1",
                                      "1X",
                                      "0x10",
                                      "1.M",
                                      "1e3",
                                      "99999999999999999999",
                                      "9223372036854775808",
                                      "8388608T",
                                      NULL};
    takes(parse_size, good, COUNT(good));
    refuses(parse_size, bad);
}

TEST(durations)
{
    static const struct number_case good[] = {
        {"10", 10000},    {"1.5", 1500}, {"250ms", 250}, {"15m", 900000},       {"1h30m", 5400000},
        {"1d", 86400000}, {"0", 0},      {"0.0001", 1},  {"1m30s500ms", 90500},
    };
    static const char *const bad[] = {"",   "m",  "30m1h", "1h1h",  "1h30",
                                      "-5", "5x", "1 m",   "1.2.3", "99999999999999999999d",
                                      NULL};
    takes(parse_duration, good, COUNT(good));
    refuses(parse_duration, bad);
}

TEST(counts_and_cpus)
{
    static const struct number_case counts[] = {
        {"0", 0}, {"100", 100}, {"9223372036854775807", INT64_MAX}};
    static const char *const bad_counts[] = {"", "-1", "1.0", "1k", "9223372036854775808", NULL};
    static const struct number_case cpus[] = {
        {"1", 1000}, {"0.5", 500}, {"1.25", 1250}, {"0.001", 1}};
    static const char *const bad_cpus[] = {"",        "0.0001", "1.0000000001", "x", "1x",
                                           "1000001", NULL};
    takes(parse_count, counts, COUNT(counts));
    refuses(parse_count, bad_counts);
    takes(parse_cpus, cpus, COUNT(cpus));
    refuses(parse_cpus, bad_cpus);
}

TEST(keys)
{
    static const char *const good[] = {"a", "A-z_0.9",
                                       "0123456789abcdef0123456789abcdef"
                                       "0123456789abcdef0123456789abcdef"};
    static const char *const bad[] = {"",
                                      " ",
                                      "a b",
                                      "a/b",
                                      "\xc3\xa9",
                                      "a\n",
                                      "0123456789abcdef0123456789abcdef"
                                      "0123456789abcdef0123456789abcdef0"};
    struct cay_error err;
    for (size_t i = 0; i < COUNT(good); i++)
        assert_int_equal(parse_key(good[i], &err), 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(parse_key(bad[i], &err), -1);
        assert_int_equal(err.code, CAY_E_INVALID);
    }
}

TEST(pids_signals_modes)
{
    pid_t pid = 7;
    int number = 0;
    uint32_t mode = 0;
    struct cay_error err;
    assert_int_equal(parse_pid("42", &pid, &err), 0);
    assert_int_equal(pid, 42);
    assert_int_equal(parse_pid("0", &pid, &err), -1);
    assert_int_equal(parse_pid("2147483648", &pid, &err), -1);
    assert_int_equal(parse_pid("-1", &pid, &err), -1);
    assert_int_equal(pid, 42);
    static const char *const terms[] = {"TERM", "SIGTERM", "term", "sigterm", "15"};
    for (size_t i = 0; i < COUNT(terms); i++) {
        assert_int_equal(parse_signal(terms[i], &number, &err), 0);
        assert_int_equal(number, SIGTERM);
    }
    assert_int_equal(parse_signal("0", &number, &err), -1);
    assert_int_equal(parse_signal("65", &number, &err), -1);
    assert_int_equal(parse_signal("SIG", &number, &err), -1);
    assert_error(err, CAY_E_INVALID, "SIG");
    assert_int_equal(parse_mode("0755", &mode, &err), 0);
    assert_int_equal(mode, 0755);
    assert_int_equal(parse_mode("888", &mode, &err), -1);
    assert_int_equal(parse_mode("10000", &mode, &err), -1);
    assert_int_equal(parse_mode("", &mode, &err), -1);
}

TEST(ids)
{
    static const char *const good[] = {
        "a",
        "0",
        "box-1",
        "a.b_c",
        "123456789012345678901234567890123456789012345678901234567890123",
        "acme~box",
        "a-1~a.b_c",
        "pool~0123456789ab",
        ("abcdefghijklmnopqrstuvwx~"
         "123456789012345678901234567890123456789012345678901234567890123")};
    static const char *const bad[] = {
        "",
        "-a",
        ".",
        "..",
        "A",
        "a/b",
        "a b",
        "_a",
        "a\n",
        "1234567890123456789012345678901234567890123456789012345678901234",
        "~a",
        "a~",
        "a~~b",
        "a~b~c",
        "a.b~c",
        "A~b",
        "a~-b",
        "-a~b",
        "a~..",
        "a/b~c",
        "abcdefghijklmnopqrstuvwxy~a",
        "a~1234567890123456789012345678901234567890123456789012345678901234"};
    const char *out = NULL;
    struct cay_error err;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(parse_id(good[i], &out, &err), 0);
        assert_ptr_equal(out, good[i]);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(parse_id(bad[i], &out, &err), -1);
        assert_error(err, CAY_E_INVALID, "bad id");
    }
}

TEST(id_parts)
{
    assert_string_equal(parse_id_name("box"), "box");
    assert_string_equal(parse_id_name("acme~box"), "box");
    assert_true(parse_id_reserved("pool~box"));
    assert_false(parse_id_reserved("pool"));
    assert_false(parse_id_reserved("pools~box"));
    assert_false(parse_id_reserved("acme~pool"));
}

TEST(profiles)
{
    enum cay_profile profile = CAY_PROFILE_DEFAULT;
    struct cay_error err;
    assert_int_equal(parse_profile("strict", &profile, &err), 0);
    assert_int_equal(profile, CAY_PROFILE_STRICT);
    assert_string_equal(parse_profile_name(profile), "strict");
    assert_int_equal(parse_profile("none", &profile, &err), -1);
    assert_error(err, CAY_E_INVALID, "strict, default or nested");
    assert_int_equal(profile, CAY_PROFILE_STRICT);
}

TEST(environment_and_labels)
{
    struct parse_span name;
    const char *value;
    struct cay_error err;
    assert_int_equal(parse_env("A=b=c", &name, &value, &err), 0);
    assert_int_equal(name.size, 1);
    assert_string_equal(value, "b=c");
    assert_int_equal(parse_env("A=", &name, &value, &err), 0);
    assert_string_equal(value, "");
    assert_int_equal(parse_env("=x", &name, &value, &err), -1);
    assert_int_equal(parse_env("A", &name, &value, &err), -1);
    assert_int_equal(parse_env("A B=c", &name, &value, &err), -1);
    assert_int_equal(parse_label("app.io/team=a b", &name, &value, &err), 0);
    assert_int_equal(name.size, 11);
    assert_int_equal(parse_label("a b=c", &name, &value, &err), -1);
    assert_int_equal(parse_label("a=b\nc", &name, &value, &err), -1);
    char longer[600] = "k=";
    memset(longer + 2, 'v', sizeof(longer) - 3);
    assert_int_equal(parse_label(longer, &name, &value, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "longer than");
}

TEST(mounts)
{
    static const char *const bad[] = {
        "", "/a", "/a:b", ":/b", "/a:", "/a:/", "/a://", "/a:/b/..", "/a:/../b:ro", "/a:/b:rx"};
    struct parse_mount mount;
    struct cay_error err;
    assert_int_equal(parse_mount("/data:/mnt/data:ro", &mount, &err), 0);
    assert_int_equal(mount.source.size, 5);
    assert_memory_equal(mount.target.data, "/mnt/data", 9);
    assert_int_equal(mount.target.size, 9);
    assert_true(mount.read_only);
    assert_int_equal(parse_mount("/with:colon:/b:rw", &mount, &err), 0);
    assert_int_equal(mount.source.size, 11);
    assert_false(mount.read_only);
    assert_int_equal(parse_mount("/a:/b..c/...", &mount, &err), 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (parse_mount(bad[i], &mount, &err) != -1)
            fail_msg("'%s' was not refused", bad[i]);
        assert_error(err, CAY_E_INVALID, "bad mount");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(durations),
        cmocka_unit_test(counts_and_cpus),
        cmocka_unit_test(keys),
        cmocka_unit_test(pids_signals_modes),
        cmocka_unit_test(ids),
        cmocka_unit_test(id_parts),
        cmocka_unit_test(profiles),
        cmocka_unit_test(environment_and_labels),
        cmocka_unit_test(mounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
