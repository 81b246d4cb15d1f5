/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

size_t utf8_char(const char *text, size_t left, size_t *bad)
{
    const unsigned char *at = (const unsigned char *)text;
    /* Second bytes are narrower for some first ones: that is what keeps out overlong forms,
     * surrogates and what is beyond the last plane. */
    static const struct {
        uint8_t first, last, low, high, size;
    } forms[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
        if (at[0] < forms[i].first || at[0] > forms[i].last)
            continue;
        for (size_t j = 1; j < forms[i].size; j++) {
            uint8_t low = j == 1 ? forms[i].low : 0x80, high = j == 1 ? forms[i].high : 0xbf;
            if (j == left || at[j] < low || at[j] > high) {
                *bad = j;
                return 0;
            }
        }
        return forms[i].size;
    }
    *bad = 1;
    return 0;
}

size_t utf8_valid(const char *text, size_t size)
{
    size_t at = 0, bad;
    while (at < size) {
        size_t n = utf8_char(text + at, size - at, &bad);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}
