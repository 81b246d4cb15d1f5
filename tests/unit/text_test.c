/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns and tables. */
#include "base/table.h"
#include "base/util.h"
#include "test.h"
#include "wire/glob.h"

TEST(patterns)
{
    static const struct {
        const char *pattern, *text;
        bool match;
    } cases[] = {
        {"*.py", "a.py", true},
        {"*.py", "a.pyc", false},
        {"*", "a/b", false},
        {"**", "a/b", true},
        {"?", "/", false},
        {"a?c", "abc", true},
        {"[a-c]x", "bx", true},
        {"[!a-c]x", "bx", false},
        {"[]]", "]", true},
        {"[a", "[a", true},
        {"\\*", "*", true},
        {"\\*", "x", false},
        {"**/x", "x", true},
        {"**/x", "a/b/x", true},
        {"**/x", "ax", false},
        {"a/**/b", "a/b", true},
        {"a/**/b", "a/x/y/b", true},
        {"a/**/b", "a/xb", false},
        {"a*b*c", "aXXbYYc", true},
        {"a*b*c", "aXXcYYb", false},
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {".*", ".hidden", true},
        {"*", ".hidden", true},
        {"src/*.c", "src/a/b.c", false},
        {"src/**.c", "src/a/b.c", true},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (glob_match(cases[i].pattern, cases[i].text) != cases[i].match)
            fail_msg("'%s' on '%s' is not %d", cases[i].pattern, cases[i].text, cases[i].match);
}

TEST(patterns_without_a_slash_see_the_base_name)
{
    assert_true(glob_match_path("*.c", "a/b/c.c"));
    assert_false(glob_match_path("a/*.c", "a/b/c.c"));
    assert_true(glob_match_path("**/b/*.c", "a/b/c.c"));
}

TEST(hostile_patterns_cost_little)
{
    char text[4001], pattern[2001];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (size_t i = 0; i + 1 < sizeof(pattern); i += 2)
        memcpy(pattern + i, "*a", 2);
    pattern[sizeof(pattern) - 2] = 'b';
    pattern[sizeof(pattern) - 1] = 0;
    uint64_t start = cay_now_us();
    assert_false(glob_match(pattern, text));
    assert_true(cay_now_us() - start < 2000000);
}

TEST(tables)
{
    autotable struct table table;
    autobuf struct cay_buf out = CAY_BUF(1000), plain = CAY_BUF(1000);
    table_init(&table, "ID STATE", 1000);
    table_cell(&table, "box-number-1");
    table_cell(&table, "running");
    table_cell(&table, "\xc3\xa9");
    table_cellf(&table, "%s\x1b[31m", "red");
    assert_int_equal(table_print(&table, false, &out), 0);
    assert_string_equal(
        buf_cstr(&out),
        "ID            STATE\nbox-number-1  running\n\xc3\xa9             red?[31m\n");
    assert_int_equal(table_print(&table, true, &plain), 0);
    assert_string_equal(buf_cstr(&plain), "box-number-1  running\n\xc3\xa9             red?[31m\n");
}

TEST(a_table_that_is_too_large_fails)
{
    autotable struct table table;
    autobuf struct cay_buf out = CAY_BUF(1000);
    table_init(&table, "A", 8);
    table_cell(&table, "123456789");
    assert_int_equal(table_print(&table, false, &out), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(patterns_without_a_slash_see_the_base_name),
        cmocka_unit_test(hostile_patterns_cost_little),
        cmocka_unit_test(tables),
        cmocka_unit_test(a_table_that_is_too_large_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
