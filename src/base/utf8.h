/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing beyond U+10FFFF. */
#ifndef CAY_BASE_UTF8_H
#define CAY_BASE_UTF8_H

#include <stddef.h>

/*
 * The length of the character at `at`; 0 if there is none that is valid and whole. Then one U+FFFD
 * stands for the `*bad` bytes that could have begun one, as in every decoder of our callers.
 */
size_t utf8_char(const char *at, size_t left, size_t *bad);
/* The length of the longest beginning that is valid. */
size_t utf8_valid(const char *text, size_t size);

#endif
