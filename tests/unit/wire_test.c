/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, fields and messages: there and back, and what a broken or hostile peer may send. */
#include "base/limits.h"
#include "test.h"
#include "wire/msg.h"
#include "wire/version.h"

#include <endian.h>
#include <stdlib.h>

static struct cay_buf frame_of(uint32_t size, uint8_t type, uint8_t fds, uint8_t major,
                               const char *payload, size_t n)
{
    struct cay_buf buf = CAY_BUF(1 << 21);
    uint32_t s = htole32(size), tag = htole32(7);
    uint8_t minor = 5;
    buf_add(&buf, &s, 4);
    buf_add(&buf, &type, 1);
    buf_add(&buf, &minor, 1);
    buf_add(&buf, &fds, 1);
    buf_add(&buf, &major, 1);
    buf_add(&buf, &tag, 4);
    buf_add(&buf, payload, n);
    return buf;
}

TEST(frames_there_and_back)
{
    autobuf struct cay_buf buf = CAY_BUF(1000);
    struct frame frame;
    size_t at = frame_begin(&buf, 17, 99, 2);
    buf_str(&buf, "payload");
    assert_int_equal(frame_end(&buf, at), 0);
    assert_int_equal(buf.size, FRAME_HEADER + 7);
    for (size_t n = 0; n < buf.size; n++)
        assert_int_equal(frame_parse(buf.data, n, &frame), 0);
    assert_int_equal(frame_parse(buf.data, buf.size, &frame), (int)buf.size);
    assert_int_equal(frame.type, 17);
    assert_int_equal(frame.tag, 99);
    assert_int_equal(frame.fds, 2);
    assert_int_equal(frame.size, 7);
    assert_int_equal(frame.major, WIRE_MAJOR);
    assert_int_equal(frame.minor, WIRE_MINOR);
    assert_memory_equal(frame.payload, "payload", 7);
}

TEST(frames_of_every_version_have_the_same_header)
{
    struct frame frame;
    autobuf struct cay_buf other = frame_of(8, 130, 1, WIRE_MAJOR + 1, "12345678", 8);
    assert_int_equal(frame_parse(other.data, FRAME_HEADER, &frame), 0);
    assert_int_equal(frame.major, WIRE_MAJOR + 1);
    assert_int_equal(frame.minor, 5);
    assert_int_equal(frame.type, 130);
    assert_int_equal(frame_parse(other.data, other.size, &frame), (int)other.size);
}

TEST(bad_frames_are_seen_in_their_header)
{
    struct frame frame;
    autobuf struct cay_buf version = frame_of(0, 1, 0, 0, "", 0);
    autobuf struct cay_buf size = frame_of(CAY_MAX_FRAME + 1, 1, 0, WIRE_MAJOR, "", 0);
    autobuf struct cay_buf fds = frame_of(0, 1, FRAME_MAX_FDS + 1, WIRE_MAJOR, "", 0);
    assert_int_equal(frame_parse(version.data, version.size, &frame), -1);
    assert_int_equal(frame_parse(size.data, size.size, &frame), -1);
    assert_int_equal(frame_parse(fds.data, fds.size, &frame), -1);
    assert_int_equal(frame_parse(NULL, 0, &frame), 0);
}

TEST(a_frame_that_is_too_large_is_not_made)
{
    autobuf struct cay_buf buf = CAY_BUF(4u << 20);
    size_t at = frame_begin(&buf, 1, 0, 0);
    assert_non_null(buf_room(&buf, CAY_MAX_FRAME + 1));
    memset(buf.data + buf.size, 0, CAY_MAX_FRAME + 1);
    buf.size += CAY_MAX_FRAME + 1;
    assert_int_equal(frame_end(&buf, at), -1);
    assert_true(buf_failed(&buf));
}

TEST(messages_there_and_back)
{
    const char *argv[] = {"/bin/echo", "", "a b", NULL}, *env[] = {"A=1", NULL};
    struct msg in = {.type = OP_EXEC,
                     .tag = 3,
                     .flags = MSG_F_PTY,
                     .argv = argv,
                     .env = env,
                     .cwd = "/tmp",
                     .timeout_ms = UINT64_MAX,
                     .data = {"\0\1\2", 3}};
    autobuf struct cay_buf buf = CAY_BUF(1 << 20);
    struct frame frame;
    struct cay_error err = {0};
    automsg struct msg out = {0};
    assert_int_equal(msg_encode(&buf, &in, 1), 0);
    assert_int_equal(frame_parse(buf.data, buf.size, &frame), (int)buf.size);
    assert_int_equal(frame.fds, 1);
    assert_int_equal(msg_decode(&frame, &out, &err), 0);
    assert_int_equal(out.type, OP_EXEC);
    assert_int_equal(out.tag, 3);
    assert_int_equal(out.flags, MSG_F_PTY);
    assert_string_equal(out.argv[0], "/bin/echo");
    assert_string_equal(out.argv[1], "");
    assert_string_equal(out.argv[2], "a b");
    assert_null(out.argv[3]);
    assert_string_equal(out.env[0], "A=1");
    assert_string_equal(out.cwd, "/tmp");
    assert_null(out.shell);
    assert_true(out.timeout_ms == UINT64_MAX);
    assert_int_equal(out.data.size, 3);
    assert_memory_equal(out.data.data, "\0\1\2", 3);
}

static void put_field(struct cay_buf *buf, uint16_t key, const char *bytes, size_t size)
{
    uint16_t k = htole16(key);
    uint32_t s = htole32((uint32_t)size);
    buf_add(buf, &k, 2);
    buf_add(buf, &s, 4);
    buf_add(buf, bytes, size);
}

static int decode_as(uint8_t type, const struct cay_buf *payload, struct cay_error *err)
{
    struct frame frame = {.type = type,
                          .major = WIRE_MAJOR,
                          .minor = 9,
                          .size = (uint32_t)payload->size,
                          .payload = payload->data};
    struct msg out = {0};
    int result = msg_decode(&frame, &out, err);
    msg_done(&out);
    return result;
}

static int decode(const struct cay_buf *payload, struct cay_error *err)
{
    return decode_as(OP_EXEC, payload, err);
}

TEST(fields_that_must_be_refused)
{
    static const struct {
        uint16_t key;
        const char *bytes;
        size_t size;
    } bad[] = {
        {0, "12345678", 8},         /* no such key */
        {WIRE_MUST, "12345678", 8}, /* no such key */
        {1, "1234567", 7},          /* a number of seven bytes */
        {1, "123456789", 9},        /* a number of nine bytes */
        {14, "abc", 3},             /* a text without its NUL */
        {14, "a\0c", 4},            /* a text with a NUL inside */
        {14, "", 0},                /* a text without anything */
        {11, "abc", 3},             /* the same in a list */
        {11, "", 0},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        autobuf struct cay_buf payload = CAY_BUF(1000);
        struct cay_error err = {0};
        put_field(&payload, 11, "argv0", 6);
        put_field(&payload, bad[i].key, bad[i].bytes, bad[i].size);
        assert_int_equal(decode(&payload, &err), -1);
        assert_error(err, CAY_E_INVALID, "malformed");
    }
}

TEST(fields_of_a_newer_version_are_ignored)
{
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    put_field(&payload, 999, "12345678", 8);
    put_field(&payload, 14, "/a", 3);
    assert_int_equal(decode(&payload, &err), 0);
}

TEST(fields_that_must_be_understood_are_refused_by_number)
{
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    put_field(&payload, 11, "argv0", 6);
    put_field(&payload, 999 | WIRE_MUST, "12345678", 8);
    assert_int_equal(decode(&payload, &err), -1);
    assert_error(err, CAY_E_UNSUPPORTED, WIRE_WHO " does not know field 999 of message 16");
    assert_non_null(strstr(err.text, "the other side speaks protocol 1.9"));
    /* To be stopped, and told why not, is never refused. */
    assert_int_equal(decode_as(OP_STOP, &payload, &err), 0);
    assert_int_equal(decode_as(MSG_ERROR, &payload, &err), 0);
}

TEST(a_known_field_may_say_that_it_must_be_understood)
{
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    put_field(&payload, 14 | WIRE_MUST, "/a", 3);
    put_field(&payload, 11 | WIRE_MUST, "argv0", 6);
    assert_int_equal(decode(&payload, &err), 0);
    put_field(&payload, 14, "/b", 3);
    assert_int_equal(decode(&payload, &err), -1); /* it is the same field */
}

TEST(unknown_flags_of_a_request_are_refused)
{
    static const uint64_t bits[] = {1ull << 26, 1ull << 31};
    for (size_t i = 0; i < COUNT(bits); i++) {
        autobuf struct cay_buf payload = CAY_BUF(1000);
        struct cay_error err = {0};
        uint64_t flags = htole64(bits[i] | MSG_F_PTY);
        put_field(&payload, 1, (const char *)&flags, 8);
        assert_int_equal(decode(&payload, &err), -1);
        assert_error(err, CAY_E_UNSUPPORTED, "flags 0x");
        assert_int_equal(decode_as(FS_LIST, &payload, &err), -1);
        assert_int_equal(decode_as(MSG_EXIT, &payload, &err), 0);
    }
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    uint64_t flags = htole64(1ull << 32 | 1ull << 63);
    put_field(&payload, 1, (const char *)&flags, 8);
    assert_int_equal(decode(&payload, &err), 0);
}

TEST(numbers_of_another_version_are_those_that_both_know)
{
    struct cay_stats in = {.cpu_us = 7, .oom_kills = 8}, out;
    struct cay_error err = {0};
    char larger[sizeof(in) + 8] = {0};
    memcpy(larger, &in, sizeof(in));
    struct msg msg = {.type = MSG_STATS, .data = {larger, sizeof(larger)}};
    assert_int_equal(msg_stats(&msg, &out, &err), 0);
    assert_int_equal(out.oom_kills, 8);
    msg.data.size = sizeof(in.cpu_us);
    assert_int_equal(msg_stats(&msg, &out, &err), 0);
    assert_int_equal(out.cpu_us, 7);
    assert_int_equal(out.oom_kills, 0);
    msg.type = MSG_OK;
    assert_int_equal(msg_stats(&msg, &out, &err), -1);
}

TEST(a_text_twice_is_refused)
{
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    put_field(&payload, 14, "/a", 3);
    assert_int_equal(decode(&payload, &err), 0);
    put_field(&payload, 14, "/b", 3);
    assert_int_equal(decode(&payload, &err), -1);
}

TEST(fields_that_are_cut_short_are_refused)
{
    autobuf struct cay_buf payload = CAY_BUF(1000);
    struct cay_error err = {0};
    put_field(&payload, 14, "/tmp", 5);
    size_t whole = payload.size;
    for (payload.size = 1; payload.size < whole; payload.size++)
        assert_int_equal(decode(&payload, &err), -1);
    payload.size = whole;
    assert_int_equal(decode(&payload, &err), 0);
}

TEST(lists_end_at_the_maximum_of_fields)
{
    autobuf struct cay_buf payload = CAY_BUF(CAY_MAX_FRAME);
    struct cay_error err = {0};
    for (int i = 0; i < CAY_MAX_FIELDS; i++)
        put_field(&payload, 11, "x", 2);
    assert_int_equal(decode(&payload, &err), 0);
    put_field(&payload, 11, "x", 2);
    assert_int_equal(decode(&payload, &err), -1);
}

TEST(an_error_message_becomes_an_error)
{
    struct cay_error err = {0};
    struct msg msg = {
        .type = MSG_ERROR, .code = CAY_E_TIMEOUT, .sys_errno = 110, .text = "too\nslow"};
    assert_int_equal(msg_to_error(&msg, &err), -1);
    assert_error(err, CAY_E_TIMEOUT, "too?slow");
    msg = (struct msg){.type = MSG_ERROR, .code = UINT64_MAX};
    assert_int_equal(msg_to_error(&msg, &err), -1);
    assert_error(err, CAY_E_INTERNAL, "unknown");
    msg = (struct msg){.type = MSG_ERROR, .code = CAY_E_VERSION, .text = "the keeper is cay 9"};
    assert_int_equal(msg_to_error(&msg, &err), -1);
    assert_error(err, CAY_E_VERSION, "the keeper is cay 9, this is " WIRE_WHO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_there_and_back),
        cmocka_unit_test(frames_of_every_version_have_the_same_header),
        cmocka_unit_test(bad_frames_are_seen_in_their_header),
        cmocka_unit_test(a_frame_that_is_too_large_is_not_made),
        cmocka_unit_test(messages_there_and_back),
        cmocka_unit_test(fields_that_must_be_refused),
        cmocka_unit_test(fields_of_a_newer_version_are_ignored),
        cmocka_unit_test(fields_that_must_be_understood_are_refused_by_number),
        cmocka_unit_test(a_known_field_may_say_that_it_must_be_understood),
        cmocka_unit_test(unknown_flags_of_a_request_are_refused),
        cmocka_unit_test(numbers_of_another_version_are_those_that_both_know),
        cmocka_unit_test(a_text_twice_is_refused),
        cmocka_unit_test(fields_that_are_cut_short_are_refused),
        cmocka_unit_test(lists_end_at_the_maximum_of_fields),
        cmocka_unit_test(an_error_message_becomes_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
