/* SPDX-License-Identifier: Apache-2.0 */
/* What clients of the fronts send: a pattern, a key and a text, one line each. */
#include "base/util.h"
#include "daemon/fronts/key.h"
#include "daemon/fronts/regex.h"
#include "daemon/fronts/text.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static void try_pattern(const char *pattern)
{
    autobuf struct cay_buf out = CAY_BUF(1u << 16);
    struct cay_error err = {0};
    bool ignore_case = false;
    int result = regex_to_posix(pattern, &out, &ignore_case, &err);
    FUZZ_REQUIRE((result == 0) == (err.code == CAY_OK));
    FUZZ_REQUIRE(out.size <= 16 * strlen(pattern));
}

static void try_key(const char *text)
{
    static const unsigned char secret[KEY_SECRET] = "0123456789abcdef0123456789abcde";
    unsigned char birth[KEY_BIRTH];
    char id[CAY_MAX_ID], again[KEY_TEXT];
    if (!key_open(secret, "aio", text, id, birth))
        return;
    FUZZ_REQUIRE(key_print(secret, "aio", id, birth, again, NULL) == 0);
    FUZZ_REQUIRE(strcmp(text, again) == 0);
}

/* In two pieces it is what it is in one. */
static void try_text(const char *text, size_t size)
{
    size_t cut = size / 3;
    autobuf struct cay_buf whole = CAY_BUF(1u << 20), parts = CAY_BUF(1u << 20);
    struct string_pieces s = {0};
    buf_json_n(&whole, text, size);
    buf_str(&parts, "\"");
    pieces_add(&s, text, cut, &parts);
    pieces_add(&s, text + cut, size - cut, &parts);
    pieces_end(&s, &parts);
    buf_str(&parts, "\"");
    FUZZ_REQUIRE(whole.size == parts.size && memcmp(whole.data, parts.data, whole.size) == 0);

    struct lines one = {.first = 1, .end = 5}, two = one;
    whole.size = parts.size = 0;
    lines_add(&one, text, size, &whole);
    if (lines_add(&two, text, cut, &parts))
        lines_add(&two, text + cut, size - cut, &parts);
    FUZZ_REQUIRE(whole.size == parts.size && memcmp(whole.data, parts.data, whole.size) == 0);

    struct excerpt e;
    excerpt_init(&e, 16);
    excerpt_add(&e, text, cut);
    excerpt_add(&e, text + cut, size - cut);
    whole.size = 0;
    excerpt_text(&e, size % 20, &whole);
    FUZZ_REQUIRE(whole.size <= CAY_MIN(size, (size_t)32) + 64 && !buf_failed(&whole));
    excerpt_done(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 8192)
        return 0;
    try_text((const char *)data, size);
    char *text = strndup((const char *)data, size), *rest = text;
    if (!text)
        return 0;
    try_pattern(strsep(&rest, "\n"));
    if (rest)
        try_key(rest);
    free(text);
    return 0;
}
