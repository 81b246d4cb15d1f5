/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every unit test needs: cmocka with the headers that it expects, and two shorthands.
 */
#ifndef CAY_TESTS_UNIT_TEST_H
#define CAY_TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cay/cay.h>
#include <string.h>

#define TEST(name) static void name(void **state __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One line, not empty, and it mentions `part`. */
#define assert_error(err, expected, part)                             \
    do {                                                              \
        assert_int_equal((err).code, expected);                       \
        assert_null(strchr((err).text, '\n'));                        \
        if (!strstr((err).text, part))                                \
            fail_msg("'%s' does not mention '%s'", (err).text, part); \
    } while (0)

#endif
