/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: the maximum holds, failure sticks, JSON strings are right whatever the bytes. */
#include "base/buf.h"
#include "test.h"

#include <stdlib.h>

TEST(grows_to_its_maximum_and_not_beyond)
{
    autobuf struct cay_buf buf = CAY_BUF(100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_add(&buf, "x", 1), 0);
    assert_false(buf_failed(&buf));
    assert_int_equal(strlen(buf_cstr(&buf)), 100);
    assert_int_equal(buf_add(&buf, "y", 1), -1);
    assert_true(buf_failed(&buf));
    assert_int_equal(buf.size, 100);
    assert_null(buf_cstr(&buf));
    assert_null(buf_steal(&buf, NULL));
}

TEST(huge_sizes_do_not_wrap_around)
{
    autobuf struct cay_buf buf = CAY_BUF(100);
    assert_int_equal(buf_str(&buf, "abc"), 0);
    assert_null(buf_room(&buf, SIZE_MAX));
    assert_true(buf_failed(&buf));
}

TEST(formats_and_eats)
{
    autobuf struct cay_buf buf = CAY_BUF(1000);
    assert_int_equal(buf_fmt(&buf, "%d-%s", 42, "abc"), 0);
    assert_string_equal(buf_cstr(&buf), "42-abc");
    buf_eat(&buf, 3);
    assert_string_equal(buf_cstr(&buf), "abc");
    buf_eat(&buf, 99);
    assert_int_equal(buf.size, 0);
    assert_string_equal(buf_cstr(&buf), "");
}

TEST(steal_hands_over_and_leaves_it_usable)
{
    autobuf struct cay_buf buf = CAY_BUF(1000);
    size_t size;
    buf_add(&buf, "a\0b", 3);
    char *bytes = buf_steal(&buf, &size);
    assert_int_equal(size, 3);
    assert_memory_equal(bytes, "a\0b", 4);
    free(bytes);
    assert_int_equal(buf_str(&buf, "again"), 0);
    assert_string_equal(buf_cstr(&buf), "again");
}

TEST(json_strings)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\r\x01\x7f", "\"\\n\\t\\r\\u0001\\u007f\""},
        {"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8f\x9d", "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8f\x9d\""},
        {"\xff", "\"\xef\xbf\xbd\""},                                 /* never valid */
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xe2\x82", "\"\xef\xbf\xbd\""},                             /* cut short */
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* a surrogate */
        {"\xf5\x80\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        autobuf struct cay_buf buf = CAY_BUF(1000);
        assert_int_equal(buf_json(&buf, cases[i].in), 0);
        assert_string_equal(buf_cstr(&buf), cases[i].out);
    }
}

TEST(json_keeps_a_nul)
{
    autobuf struct cay_buf buf = CAY_BUF(1000);
    assert_int_equal(buf_json_n(&buf, "a\0b", 3), 0);
    assert_string_equal(buf_cstr(&buf), "\"a\\u0000b\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_to_its_maximum_and_not_beyond),
        cmocka_unit_test(huge_sizes_do_not_wrap_around),
        cmocka_unit_test(formats_and_eats),
        cmocka_unit_test(steal_hands_over_and_leaves_it_usable),
        cmocka_unit_test(json_strings),
        cmocka_unit_test(json_keeps_a_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
