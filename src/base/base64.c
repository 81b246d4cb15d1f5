/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base64.h"

#include "base/err.h"
#include "base/util.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_text(char *out, const void *data, size_t size)
{
    const unsigned char *in = data;
    for (size_t i = 0; i < size; i += 3, out += 4) {
        size_t left = size - i;
        uint32_t bits = (uint32_t)in[i] << 16;
        if (left > 1)
            bits |= (uint32_t)in[i + 1] << 8;
        if (left > 2)
            bits |= in[i + 2];
        out[0] = alphabet[bits >> 18];
        out[1] = alphabet[bits >> 12 & 63];
        out[2] = left > 1 ? alphabet[bits >> 6 & 63] : '=';
        out[3] = left > 2 ? alphabet[bits & 63] : '=';
    }
}

int base64_encode(struct cay_buf *out, const void *data, size_t size)
{
    size_t length = size < SIZE_MAX / 2 ? BASE64_SIZE(size) : SIZE_MAX;
    char *to = buf_room(out, length);
    if (!to)
        return -1;
    base64_text(to, data, size);
    out->size += length;
    return 0;
}

/* The six bits that a character stands for, or -1. */
static int value_of(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* How many '=' end the text; one that stands elsewhere is found as a wrong character. */
static size_t padding_of(const char *text, size_t size)
{
    if (size == 0 || text[size - 1] != '=')
        return 0;
    return text[size - 2] == '=' ? 2 : 1;
}

int base64_decode(const char *text, size_t size, struct cay_buf *out, struct cay_error *err)
{
    if (size % 4)
        return cay_fail(err, CAY_E_INVALID,
                        "base64 text of %zu characters: the length must be a multiple of 4", size);
    size_t padding = padding_of(text, size), digits = size - padding;
    size_t bytes = size / 4 * 3 - padding, left = out->max - CAY_MIN(out->size, out->max);
    if (out->failed || bytes > left)
        return cay_fail(err, CAY_E_TOO_LARGE, "base64 text of %zu bytes: at most %zu fit", bytes,
                        left);
    unsigned char *at = (unsigned char *)buf_room(out, bytes);
    if (!at)
        return cay_fail(err, CAY_E_NO_SPACE, "no memory for %zu bytes of base64 text", bytes);
    uint32_t bits = 0;
    for (size_t i = 0; i < digits; i++) {
        int value = value_of((unsigned char)text[i]);
        if (value < 0)
            return cay_fail(err, CAY_E_INVALID, "base64 text: wrong character at offset %zu", i);
        bits = bits << 6 | (uint32_t)value;
        if (i % 4) /* the second, third and fourth digit complete a byte each */
            *at++ = (unsigned char)(bits >> (3 - i % 4) * 2);
    }
    if (bits & ((1u << padding * 2) - 1))
        return cay_fail(err, CAY_E_INVALID, "base64 text: its last digit has bits beyond its end");
    out->size += bytes;
    return 0;
}
