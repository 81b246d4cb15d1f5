/* SPDX-License-Identifier: Apache-2.0 */
/* The Range header: every form, its borders, and what is ignored. */
#include "wire/range.h"

#include "test.h"

struct example {
    const char *header;
    uint64_t size;
    enum range result;
    uint64_t first, last;
};

static void check(const struct example *examples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct example *e = &examples[i];
        uint64_t first = 77, last = 78;
        enum range result = range_parse(e->header, e->size, &first, &last);
        if (result != e->result)
            fail_msg("'%s' of %llu: %d", e->header ? e->header : "NULL",
                     (unsigned long long)e->size, result);
        assert_int_equal(first, result == RANGE_PART ? e->first : 77);
        assert_int_equal(last, result == RANGE_PART ? e->last : 78);
    }
}

TEST(parts)
{
    static const struct example examples[] = {
        {"bytes=0-0", 10, RANGE_PART, 0, 0},
        {"bytes=0-9", 10, RANGE_PART, 0, 9},
        {"bytes=0-10", 10, RANGE_PART, 0, 9},
        {"bytes=3-5", 10, RANGE_PART, 3, 5},
        {"bytes=9-9", 10, RANGE_PART, 9, 9},
        {"bytes=9-", 10, RANGE_PART, 9, 9},
        {"bytes=0-", 1, RANGE_PART, 0, 0},
        {"Bytes=0-1", 10, RANGE_PART, 0, 1},
        {"bytes=007-0008", 10, RANGE_PART, 7, 8},
        {"bytes=-1", 10, RANGE_PART, 9, 9},
        {"bytes=-10", 10, RANGE_PART, 0, 9},
        {"bytes=-11", 10, RANGE_PART, 0, 9},
        {"bytes=-99999999999999999999999", 10, RANGE_PART, 0, 9},
        {"bytes=1-99999999999999999999999", 10, RANGE_PART, 1, 9},
        {"bytes=18446744073709551614-", UINT64_MAX, RANGE_PART, UINT64_MAX - 1, UINT64_MAX - 1},
        {"bytes=0-", UINT64_MAX, RANGE_PART, 0, UINT64_MAX - 1},
    };
    check(examples, COUNT(examples));
}

TEST(nothing_of_it_exists)
{
    static const struct example examples[] = {
        {"bytes=10-", 10, RANGE_NONE, 0, 0},
        {"bytes=10-20", 10, RANGE_NONE, 0, 0},
        {"bytes=-0", 10, RANGE_NONE, 0, 0},
        {"bytes=0-0", 0, RANGE_NONE, 0, 0},
        {"bytes=0-", 0, RANGE_NONE, 0, 0},
        {"bytes=-5", 0, RANGE_NONE, 0, 0},
        {"bytes=-0", 0, RANGE_NONE, 0, 0},
        {"bytes=99999999999999999999-", 10, RANGE_NONE, 0, 0},
        {"bytes=99999999999999999999-99999999999999999999", UINT64_MAX, RANGE_NONE, 0, 0},
    };
    check(examples, COUNT(examples));
}

TEST(ignored)
{
    static const struct example examples[] = {
        {NULL, 10, RANGE_ALL, 0, 0},         {"", 10, RANGE_ALL, 0, 0},
        {"bytes", 10, RANGE_ALL, 0, 0},      {"bytes=", 10, RANGE_ALL, 0, 0},
        {"bytes=-", 10, RANGE_ALL, 0, 0},    {"bytes=5", 10, RANGE_ALL, 0, 0},
        {"bytes=5-3", 10, RANGE_ALL, 0, 0},  {"bytes=0-1,3-4", 10, RANGE_ALL, 0, 0},
        {"bytes=0-1,", 10, RANGE_ALL, 0, 0}, {"bytes=,0-1", 10, RANGE_ALL, 0, 0},
        {"bytes= 0-1", 10, RANGE_ALL, 0, 0}, {"bytes=0 -1", 10, RANGE_ALL, 0, 0},
        {"bytes=0-1 ", 10, RANGE_ALL, 0, 0}, {"bytes =0-1", 10, RANGE_ALL, 0, 0},
        {"bytes=+0-1", 10, RANGE_ALL, 0, 0}, {"bytes=--1", 10, RANGE_ALL, 0, 0},
        {"bytes=0--1", 10, RANGE_ALL, 0, 0}, {"bytes=0x0-0x1", 10, RANGE_ALL, 0, 0},
        {"lines=0-1", 10, RANGE_ALL, 0, 0},  {"bytes=a-b", 10, RANGE_ALL, 0, 0},
    };
    check(examples, COUNT(examples));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts),
        cmocka_unit_test(nothing_of_it_exists),
        cmocka_unit_test(ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
