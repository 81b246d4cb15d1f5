/* SPDX-License-Identifier: Apache-2.0 */
/* What a client does with what people and daemons say: hosts, lists in pieces, frames. */
#include "remote/frames.h"
#include "remote/host.h"
#include "remote/split.h"

#include "test.h"

#include <stdio.h>

TEST(hosts)
{
    static const struct {
        const char *text, *url;
        bool https, loopback;
    } good[] = {
        {"http://127.0.0.1:80", "http://127.0.0.1:80", false, true},
        {"http://localhost", "http://localhost:7733", false, true},
        {"http://[::1]:9/", "http://[::1]:9", false, true},
        {"https://box.example", "https://box.example:7733", true, false},
        {"http://127.0.0.1.example", "http://127.0.0.1.example:7733", false, false},
        {"unix:/run/cay/cayd.sock", "http://localhost", false, true},
    };
    static const char *const bad[] = {
        "",
        "box",
        "box:80",
        "unix:",
        "http://",
        "ftp://a",
        "http://a:0",
        "http://a:65536",
        "http://a:x",
        "http://a/b",
        "http://a?",
        "http://u@a",
        "http://a:1:2",
        "http://[::1",
        "https://a b",
        "http://[]",
        "http://a\r\n",
        "http://a:99999999",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct host host;
        struct cay_error err;
        assert_int_equal(host_parse(good[i].text, &host, &err), 0);
        assert_string_equal(host.url, good[i].url);
        assert_int_equal(host.https, good[i].https);
        assert_int_equal(host.loopback, good[i].loopback);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct host host;
        struct cay_error err;
        assert_int_equal(host_parse(bad[i], &host, &err), -1);
        assert_int_equal(err.code, CAY_E_INVALID);
    }
    char longest[200] = "unix:/";
    memset(longest + 6, 'a', 107);
    assert_int_equal(host_parse(longest, &(struct host){0}, NULL), -1);
}

struct log {
    struct cay_buf text;
    int stop_after;
};

static int on_object(const char *json, size_t size, void *data)
{
    struct log *log = data;
    buf_add(&log->text, json, size);
    buf_str(&log->text, ";");
    return --log->stop_after == 0;
}

/* Feeds `text` in pieces; the result of the last one. */
static int feed_split(struct split *split, const char *text, size_t step)
{
    int result = 0;
    for (size_t done = 0, size = strlen(text); done < size && result == 0; done += step)
        result = split_feed(split, text + done, size - done < step ? size - done : step);
    return result;
}

TEST(lists)
{
    static const char text[] = "{\"n\": 1,\"entries\":[ {\"a\":\"}]{\\\"\"},\n{\"b\":[{}]} ],"
                               "\"error\":{\"detail\":{\"x\":[]}}}\n";
    for (size_t step = 1; step < sizeof(text); step++) {
        struct log log = {.text = CAY_BUF(4096)};
        struct split split;
        split_init(&split, SPLIT_LIST, on_object, &log);
        assert_int_equal(feed_split(&split, text, step), 0);
        assert_true(split_ended(&split));
        assert_string_equal(buf_cstr(&log.text), "{\"a\":\"}]{\\\"\"};{\"b\":[{}]};");
        assert_string_equal(buf_cstr(&split.rest), "{\"n\": 1,\"entries\":[],"
                                                   "\"error\":{\"detail\":{\"x\":[]}}}\n");
        split_done(&split);
        buf_done(&log.text);
    }
}

TEST(lines)
{
    struct log log = {.text = CAY_BUF(4096), .stop_after = 2};
    struct split split;
    split_init(&split, SPLIT_LINES, on_object, &log);
    assert_int_equal(feed_split(&split, "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n", 3), 1);
    assert_string_equal(buf_cstr(&log.text), "{\"a\":1};{\"b\":2};");
    split_done(&split);
    buf_done(&log.text);
}

TEST(no_lists)
{
    static const struct {
        unsigned at;
        const char *text;
    } bad[] = {{SPLIT_LINES, "oops\n"}, {SPLIT_LINES, "}"}, {SPLIT_LIST, "{]"}, {SPLIT_LIST, "]"}};
    struct log log = {.text = CAY_BUF(4096)};
    struct split split;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        split_init(&split, bad[i].at, on_object, &log);
        assert_int_equal(feed_split(&split, bad[i].text, 1), -1);
        split_done(&split);
    }
    /* An element without an end, and nesting without one. */
    for (int deep = 0; deep <= 1; deep++) {
        int result = 0;
        split_init(&split, SPLIT_LINES, on_object, &log);
        result = split_feed(&split, deep ? "{" : "{\"a\":\"", deep ? 1 : 6);
        for (size_t i = 0; i <= SPLIT_MAX_ELEMENT && result == 0; i++)
            result = split_feed(&split, deep ? "[" : "a", 1);
        assert_int_equal(result, -1);
        split_done(&split);
    }
    buf_done(&log.text);
}

static void add_frame(struct cay_buf *out, char kind, uint64_t offset, const char *payload)
{
    size_t size = strlen(payload);
    char header[FRAMES_HEADER] = {kind};
    for (int i = 0; i < 4; i++)
        header[4 + i] = (char)(size >> (24 - 8 * i));
    for (int i = 0; i < 8; i++)
        header[8 + i] = (char)(offset >> (56 - 8 * i));
    buf_add(out, header, sizeof(header));
    buf_add(out, payload, size);
}

static int on_frame(enum frames_kind kind, uint64_t offset, const char *bytes, size_t size,
                    void *data)
{
    struct log *log = data;
    for (size_t i = 0; kind <= FRAMES_STDERR && i < size; i++)
        buf_fmt(&log->text, "%d%c%llu ", (int)kind, bytes[i], (unsigned long long)offset + i);
    if (kind > FRAMES_STDERR)
        buf_fmt(&log->text, "%d@%llu %s", (int)kind, (unsigned long long)offset, bytes);
    return kind > FRAMES_STDERR;
}

TEST(frames_in_pieces)
{
    struct cay_buf bytes = CAY_BUF(4096);
    add_frame(&bytes, FRAMES_STDOUT, 7, "ab");
    add_frame(&bytes, FRAMES_STDERR, 9, "");
    add_frame(&bytes, FRAMES_STDERR, 1ull << 40, "c");
    add_frame(&bytes, FRAMES_EXIT, 12, "{}");
    for (size_t step = 1; step <= bytes.size; step++) {
        struct log log = {.text = CAY_BUF(4096)};
        struct frames frames;
        int result = 0;
        frames_init(&frames, on_frame, &log);
        for (size_t done = 0; done < bytes.size && result == 0; done += step)
            result = frames_feed(&frames, bytes.data + done,
                                 bytes.size - done < step ? bytes.size - done : step);
        assert_int_equal(result, 1);
        assert_string_equal(buf_cstr(&log.text), "1a7 1b8 2c1099511627776 3@12 {}");
        frames_done(&frames);
        buf_done(&log.text);
    }
    buf_done(&bytes);
}

TEST(no_frames)
{
    struct log log = {.text = CAY_BUF(4096)};
    struct frames frames;
    frames_init(&frames, on_frame, &log);
    assert_int_equal(frames_feed(&frames, "{\"type\":\"output\"}", 17), -1);
    frames_restart(&frames);
    /* An event that would not fit. */
    assert_int_equal(frames_feed(&frames, "\3\0\0\0\377\0\0\0\0\0\0\0\0\0\0\0", FRAMES_HEADER), -1);
    frames_restart(&frames);
    assert_int_equal(frames_feed(&frames, "\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", FRAMES_HEADER), -1);
    frames_done(&frames);
    buf_done(&log.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts),
        cmocka_unit_test(lists),
        cmocka_unit_test(lines),
        cmocka_unit_test(no_lists),
        cmocka_unit_test(frames_in_pieces),
        cmocka_unit_test(no_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
