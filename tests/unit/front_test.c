/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of the daemon's fronts: keys, excerpts, lines, strings in pieces, patterns. */
#include "base/util.h"
#include "daemon/fronts/key.h"
#include "daemon/fronts/regex.h"
#include "daemon/fronts/text.h"
#include "test.h"

#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct cay_error err;

/* ---- keys ------------------------------------------------------------------------------------ */

static const unsigned char secret[KEY_SECRET] = "0123456789abcdef0123456789abcde";
static const unsigned char other[KEY_SECRET] = "1123456789abcdef0123456789abcde";
static const struct status life = {
    .created_ms = 1700000000000, .keeper_pid = 4711, .boot_id = "0a0b-0c0d"};

static void make(const char *front, const char *id, const struct status *status, char out[KEY_TEXT])
{
    unsigned char birth[KEY_BIRTH];
    assert_int_equal(key_birth(secret, status, birth, &err), 0);
    assert_int_equal(key_print(secret, front, id, birth, out, &err), 0);
}

static bool opens(const unsigned char with[KEY_SECRET], const char *front, const char *text)
{
    char id[CAY_MAX_ID];
    unsigned char birth[KEY_BIRTH];
    return key_open(with, front, text, id, birth);
}

TEST(a_key_names_its_sandbox)
{
    char text[KEY_TEXT], id[CAY_MAX_ID];
    unsigned char birth[KEY_BIRTH], again[KEY_BIRTH];
    make("aio", "acme~my.box", &life, text);
    assert_int_equal(strlen(text), strlen("acme~my.box.") + KEY_TAG);
    assert_int_equal(strspn(text + strlen("acme~my.box."),
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "0123456789-_"),
                     KEY_TAG);
    assert_true(key_open(secret, "aio", text, id, birth));
    assert_string_equal(id, "acme~my.box");
    assert_int_equal(key_birth(secret, &life, again, &err), 0);
    assert_true(key_same_birth(birth, again));
}

TEST(another_life_has_another_key)
{
    struct status later = life, elsewhere = life, rebooted = life;
    char first[KEY_TEXT], text[KEY_TEXT], id[CAY_MAX_ID];
    unsigned char birth[KEY_BIRTH], now[KEY_BIRTH];
    make("aio", "box", &life, first);
    later.created_ms++;
    elsewhere.keeper_pid++;
    rebooted.boot_id = "0a0b-0c0e";
    const struct status *const lives[] = {&later, &elsewhere, &rebooted};
    for (size_t i = 0; i < COUNT(lives); i++) {
        make("aio", "box", lives[i], text);
        assert_string_not_equal(first, text);
        assert_true(key_open(secret, "aio", first, id, birth));
        assert_int_equal(key_birth(secret, lives[i], now, &err), 0);
        assert_false(key_same_birth(birth, now));
    }
}

TEST(what_is_no_key)
{
    char text[KEY_TEXT], changed[KEY_TEXT + 4];
    make("aio", "box", &life, text);
    assert_true(opens(secret, "aio", text));
    assert_false(opens(other, "aio", text));
    assert_false(opens(secret, "e2b", text));
    for (size_t i = 0; text[i]; i++) {
        snprintf(changed, sizeof(changed), "%s", text);
        changed[i] = changed[i] == 'a' ? 'b' : 'a';
        assert_false(opens(secret, "aio", changed));
        snprintf(changed, sizeof(changed), "%.*s", (int)i, text);
        assert_false(opens(secret, "aio", changed));
    }
    const char *const tag = strrchr(text, '.');
    const char *const ids[] = {"", "Box", "box/", "../box", "box ", "pool~x", "~box", "a~b~c"};
    for (size_t i = 0; i < COUNT(ids); i++) {
        snprintf(changed, sizeof(changed), "%s%s", ids[i], tag);
        assert_false(opens(secret, "aio", changed));
    }
    snprintf(changed, sizeof(changed), "%sA", text);
    assert_false(opens(secret, "aio", changed));
    assert_false(opens(secret, "aio", ""));
    assert_false(opens(secret, "aio", "."));
}

TEST(the_secret_is_made_once_and_is_private)
{
    char dir[] = "/tmp/cay-front-XXXXXX", path[64];
    unsigned char first[KEY_SECRET], again[KEY_SECRET];
    struct stat st;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/front.key", dir);
    assert_int_equal(key_secret(dir, false, first, &err), -1);
    assert_int_equal(err.code, CAY_E_NOT_FOUND);
    assert_int_equal(key_secret(dir, true, first, &err), 0);
    assert_int_equal(key_secret(dir, true, again, &err), 0);
    assert_memory_equal(first, again, KEY_SECRET);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(key_secret(dir, true, again, &err), -1);
    assert_error(err, CAY_E_DENIED, "0644");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(key_secret(dir, true, again, &err), -1);
    assert_error(err, CAY_E_INTERNAL, "damaged");
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, dir), 0);
}

/* ---- excerpts -------------------------------------------------------------------------------- */

/* `text` in pieces of `piece` bytes. */
static const char *excerpt_of(const char *text, size_t keep, size_t chars, size_t piece)
{
    static struct cay_buf out;
    struct excerpt e;
    size_t size = strlen(text);
    buf_done(&out);
    out = CAY_BUF(1u << 20);
    excerpt_init(&e, keep);
    for (size_t at = 0; at < size; at += piece)
        excerpt_add(&e, text + at, CAY_MIN(piece, size - at));
    assert_int_equal(e.total, size);
    excerpt_text(&e, chars, &out);
    excerpt_done(&e);
    return buf_cstr(&out);
}

TEST(short_text_is_whole)
{
    for (size_t piece = 1; piece < 12; piece++) {
        assert_string_equal(excerpt_of("", 4, 0, piece), "");
        assert_string_equal(excerpt_of("abcdefgh", 4, 0, piece), "abcdefgh");
        assert_string_equal(excerpt_of("abcdefgh", 8, 8, piece), "abcdefgh");
        assert_string_equal(excerpt_of("\xc3\xa4\xc3\xb6", 8, 2, piece), "\xc3\xa4\xc3\xb6");
    }
}

TEST(long_text_loses_its_middle)
{
    for (size_t piece = 1; piece < 30; piece++) {
        assert_string_equal(excerpt_of("abcdefghi", 4, 0, piece),
                            "abcd\n[... 1 bytes left out ...]\nfghi");
        assert_string_equal(excerpt_of("abcdefghi", 16, 4, piece),
                            "ab\n[... 5 bytes left out ...]\nhi");
        assert_string_equal(excerpt_of("abcdefghijklmnopqrstuvwxyz", 8, 4, piece),
                            "ab\n[... 22 bytes left out ...]\nyz");
        /* Between characters, and counted by them. */
        assert_string_equal(excerpt_of("\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f", 16, 2, piece),
                            "\xc3\xa4\n[... 4 bytes left out ...]\n\xc3\x9f");
        assert_string_equal(excerpt_of("a\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 3, 0, piece),
                            "a\n[... 6 bytes left out ...]\n\xe2\x82\xac");
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static const char *lines_of(const char *text, uint64_t first, uint64_t end, size_t piece)
{
    static struct cay_buf out;
    struct lines lines = {.first = first, .end = end};
    size_t size = strlen(text);
    bool more = true;
    buf_done(&out);
    out = CAY_BUF(4096);
    for (size_t at = 0; at < size && more; at += piece)
        more = lines_add(&lines, text + at, CAY_MIN(piece, size - at), &out);
    return buf_cstr(&out);
}

TEST(lines_are_counted_from_0_and_end_before_the_end)
{
    for (size_t piece = 1; piece < 12; piece++) {
        assert_string_equal(lines_of("a\nb\nc\n", 0, 2, piece), "a\nb");
        assert_string_equal(lines_of("a\nb\nc\n", 1, 2, piece), "b");
        assert_string_equal(lines_of("a\nb\nc\n", 1, UINT64_MAX, piece), "b\nc");
        assert_string_equal(lines_of("a\nb\nc", 0, 9, piece), "a\nb\nc");
        assert_string_equal(lines_of("a\nb\nc", 3, 9, piece), "");
        assert_string_equal(lines_of("a\nb\nc", 2, 1, piece), "");
        assert_string_equal(lines_of("a\nb\nc", 0, 0, piece), "");
        assert_string_equal(lines_of("\n\nx\n\n", 0, 9, piece), "\n\nx\n");
        assert_string_equal(lines_of("\n\nx\n\n", 1, 3, piece), "\nx");
        assert_string_equal(lines_of("a\r\nb\r\n", 0, 2, piece), "a\r\nb\r");
        assert_string_equal(lines_of("", 0, 9, piece), "");
    }
}

/* ---- strings in pieces ----------------------------------------------------------------------- */

static void assert_same_in_pieces(const char *text)
{
    size_t size = strlen(text);
    autobuf struct cay_buf whole = CAY_BUF(4096);
    buf_json(&whole, text);
    for (size_t piece = 1; piece <= size; piece++) {
        autobuf struct cay_buf out = CAY_BUF(4096);
        struct string_pieces s = {0};
        buf_str(&out, "\"");
        for (size_t at = 0; at < size; at += piece)
            pieces_add(&s, text + at, CAY_MIN(piece, size - at), &out);
        pieces_end(&s, &out);
        buf_str(&out, "\"");
        assert_string_equal(buf_cstr(&out), buf_cstr(&whole));
    }
}

TEST(a_string_in_pieces_is_the_string)
{
    assert_same_in_pieces("plain \"quoted\" \\ \n\t\x01");
    assert_same_in_pieces("\xc3\xa4\xe2\x82\xac\xf0\x9f\x8f\x9d end");
    assert_same_in_pieces("\xe2\x82 \xe2 \xf0\x9f\x8f x \xc3");
    assert_same_in_pieces("\x80\x80\x80\x80\x80 \xff\xfe \xed\xa0\x80 \xc3\xa4\xa4\xa4\xa4\xa4");
    assert_same_in_pieces("\xf0\x9f\x8f\x9d\xf0\x9f\x8f\x9d\xf0\x9f\x8f\x9d\xe2\x82");
}

/* ---- patterns -------------------------------------------------------------------------------- */

static const char *posix(const char *pattern)
{
    static struct cay_buf out;
    bool ignore_case = false;
    buf_done(&out);
    out = CAY_BUF(4096);
    if (regex_to_posix(pattern, &out, &ignore_case, &err) < 0)
        return NULL;
    return buf_cstr(&out);
}

static bool matches(const char *pattern, const char *text)
{
    regex_t regex;
    const char *translated = posix(pattern);
    assert_non_null(translated);
    if (regcomp(&regex, translated, REG_EXTENDED | REG_NOSUB) != 0)
        fail_msg("'%s' became '%s', which is no pattern", pattern, translated);
    bool found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

TEST(patterns_keep_their_meaning)
{
    static const struct {
        const char *pattern, *yes, *no;
    } cases[] = {
        {"plain", "so plain", "plan"},
        {"a.c", "abc", "ac"},
        {"^x$", "x", "xx"},
        {"def \\w+\\(", "def main(", "def (x"},
        {"\\d{2,3}", "a12", "a1b2"},
        {"\\D", "a", "1"},
        {"\\s\\S", " x", "x "},
        {"[\\w.]+@[\\w.]+", "a.b@c.d", "@"},
        {"[\\d-]", "-", "x"},
        {"[^\\s]", "x", " "},
        {"[]x]", "]", "y"},
        {"[^]x]", "y", "]"},
        {"[a\\]b]", "]", "c"},
        {"[a-c\\-]", "-", "d"},
        {"[a\\^]", "^", "b"},
        {"[\\^]", "^", "b"},
        {"[\\^-]", "-", "b"},
        {"[[.]", "[", "x"},
        {"[[:digit:]x]", "7", "y"},
        {"[\\\\]", "\\", "x"},
        {"[\\t]", "\t", "t"},
        {"\\x41\\x2e", "A.", "AB"},
        {"\\.\\*\\[\\]\\(\\)\\{\\}\\|\\^\\$\\\\\\+\\?", ".*[](){}|^$\\+?", "x"},
        {"a\\-b\\ c\\/d\\\"", "a-b c/d\"", "ab"},
        {"interface .* {", "interface X {", "interface X"},
        {"{}", "{}", "{"},
        {"a{,2}b", "aab", "a"},
        {"x{2}", "xx", "x"},
        {"(?:ab)+c", "ababc", "ac"},
        {"(?P<name>a|b)c", "bc", "c"},
        {"(?<name>a|b)c", "ac", "c"},
        {"<.*?>", "<a>", "<a"},
        {"a+?b", "aab", "b"},
        {"ab??c", "ac", "abbc"},
        {"\\bword\\b", "a word here", "swords"},
        {"\\Aa\\Z", "a", "ab"},
        {"(?m)^a", "ab", "ba"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!matches(cases[i].pattern, cases[i].yes))
            fail_msg("'%s' does not match '%s'", cases[i].pattern, cases[i].yes);
        if (matches(cases[i].pattern, cases[i].no))
            fail_msg("'%s' matches '%s'", cases[i].pattern, cases[i].no);
    }
}

TEST(the_flag_for_case)
{
    autobuf struct cay_buf out = CAY_BUF(256);
    bool ignore_case = false;
    assert_int_equal(regex_to_posix("(?i)abc", &out, &ignore_case, &err), 0);
    assert_true(ignore_case);
    assert_string_equal(buf_cstr(&out), "abc");
    out.size = 0;
    assert_int_equal(regex_to_posix("abc", &out, &ignore_case, &err), 0);
    assert_true(ignore_case);
}

TEST(what_cannot_be_said)
{
    static const char *const unsupported[] = {"(?=a)",  "(?!a)",  "(?<=a)b", "(?<!a)b",
                                              "(a)\\1", "a(?i)b", "(?x)a",   "[\\D]",
                                              "\\p{L}", "(?#c)",  "(?>a)",   "[!-\\]]"};
    static const char *const invalid[] = {"a\\", "[a", "[a\\", "[z-a]"};
    for (size_t i = 0; i < COUNT(unsupported); i++) {
        assert_null(posix(unsupported[i]));
        assert_error(err, CAY_E_UNSUPPORTED, "pattern");
    }
    for (size_t i = 0; i < COUNT(invalid); i++) {
        assert_null(posix(invalid[i]));
        assert_error(err, CAY_E_INVALID, "pattern");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_names_its_sandbox),
        cmocka_unit_test(another_life_has_another_key),
        cmocka_unit_test(what_is_no_key),
        cmocka_unit_test(the_secret_is_made_once_and_is_private),
        cmocka_unit_test(short_text_is_whole),
        cmocka_unit_test(long_text_loses_its_middle),
        cmocka_unit_test(lines_are_counted_from_0_and_end_before_the_end),
        cmocka_unit_test(a_string_in_pieces_is_the_string),
        cmocka_unit_test(patterns_keep_their_meaning),
        cmocka_unit_test(the_flag_for_case),
        cmocka_unit_test(what_cannot_be_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
