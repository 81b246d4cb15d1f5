/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/range.h"

#include "base/util.h"

#include <strings.h>

/* Digits, as many as there are; what is too large for a number is the largest one. False: none. */
static bool take_number(const char **at, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    if (p == *at)
        return false;
    *at = p;
    *out = value;
    return true;
}

enum range range_parse(const char *header, uint64_t size, uint64_t *first, uint64_t *last)
{
    static const char unit[] = "bytes=";
    uint64_t from = 0, to = UINT64_MAX;
    if (!header || strncasecmp(header, unit, sizeof(unit) - 1) != 0)
        return RANGE_ALL;
    const char *at = header + sizeof(unit) - 1;
    bool has_from = take_number(&at, &from);
    if (*at++ != '-')
        return RANGE_ALL;
    bool has_to = take_number(&at, &to);
    if (*at || (!has_from && !has_to) || (has_from && to < from))
        return RANGE_ALL;
    if (!has_from) { /* the last `to` bytes */
        if (to == 0 || size == 0)
            return RANGE_NONE;
        from = size - CAY_MIN(to, size);
        to = size - 1;
    }
    if (from >= size)
        return RANGE_NONE;
    *first = from;
    *last = CAY_MIN(to, size - 1);
    return RANGE_PART;
}
