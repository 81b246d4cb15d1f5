/* SPDX-License-Identifier: Apache-2.0 */
/* The error object: codes, names, texts that stay one line and fit. */
#include "base/err.h"
#include "test.h"

#include <errno.h>

TEST(names_and_http_come_from_the_table)
{
    assert_string_equal(cay_code_name(CAY_OK), "ok");
    assert_string_equal(cay_code_name(CAY_E_NOT_FOUND), "not_found");
    assert_int_equal(cay_code_http(CAY_E_NOT_FOUND), 404);
    assert_int_equal(cay_code_http(CAY_E_NO_SPACE), 507);
    assert_int_equal(cay_code_http(CAY_E_UNAUTHORIZED), 401);
    assert_string_equal(cay_code_name(CAY_E_UNAUTHORIZED), "unauthorized");
    /* Programs of other versions know it by its number. */
    assert_int_equal(CAY_E_NO_SPACE, 12);
    assert_string_equal(cay_code_name((enum cay_code)999), "internal");
    assert_int_equal(cay_code_http((enum cay_code) - 1), 500);
}

TEST(every_name_finds_its_code_again)
{
#define CAY_X(name, json, http, text) assert_int_equal(cay_code_of_name(json), CAY_E_##name);
    CAY_ERROR_TABLE(CAY_X)
#undef CAY_X
    assert_int_equal(cay_code_of_name("no such name"), CAY_E_INTERNAL);
}

TEST(fail_fills_in_and_returns_minus_one)
{
    struct cay_error err = {.sys_errno = 5};
    assert_int_equal(cay_fail(&err, CAY_E_CONFLICT, "box %d\nexists\x7f", 1), -1);
    assert_error(err, CAY_E_CONFLICT, "box 1?exists?");
    assert_int_equal(err.sys_errno, 0);
    assert_int_equal(cay_fail(NULL, CAY_E_CONFLICT, "nobody listens"), -1);
}

TEST(errno_chooses_the_code_and_appends_the_reason)
{
    struct cay_error err;
    assert_int_equal(cay_fail_errno(&err, ENOENT, "open %s", "/x"), -1);
    assert_error(err, CAY_E_NOT_FOUND, "open /x: No such file or directory");
    assert_int_equal(err.sys_errno, ENOENT);
    assert_int_equal(cay_code_of_errno(EACCES), CAY_E_DENIED);
    assert_int_equal(cay_code_of_errno(ENOSPC), CAY_E_NO_SPACE);
    assert_int_equal(cay_code_of_errno(0), CAY_E_INTERNAL);
}

TEST(context_goes_in_front)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_GONE, "it ended");
    assert_int_equal(cay_fail_context(&err, "cannot stop %s", "box1"), -1);
    assert_error(err, CAY_E_GONE, "cannot stop box1: it ended");
}

TEST(long_texts_are_cut_not_overrun)
{
    struct cay_error err;
    char longer[2000];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    cay_fail_errno(&err, EIO, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    cay_fail_context(&err, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    cay_fail_copy(&err, CAY_E_LIMIT, 0, longer);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
}

TEST(a_code_from_a_wire_is_not_believed)
{
    struct cay_error err;
    cay_fail_copy(&err, 4711, 2, "x");
    assert_error(err, CAY_E_INTERNAL, "x");
    cay_fail_copy(&err, 0, 0, "y");
    assert_error(err, CAY_E_INTERNAL, "y");
    cay_fail_copy(&err, CAY_E_DENIED, 13, "z\r\n");
    assert_error(err, CAY_E_DENIED, "z??");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_http_come_from_the_table),
        cmocka_unit_test(every_name_finds_its_code_again),
        cmocka_unit_test(fail_fills_in_and_returns_minus_one),
        cmocka_unit_test(errno_chooses_the_code_and_appends_the_reason),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(long_texts_are_cut_not_overrun),
        cmocka_unit_test(a_code_from_a_wire_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
