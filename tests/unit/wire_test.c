/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, fields and messages: there and back, and what a broken or hostile peer may send. */
#include "base/limits.h"
#include "test.h"
#include "wire/msg.h"

#include <endian.h>
#include <stdlib.h>

static struct cay_buf frame_of(uint32_t size, uint16_t type, uint8_t fds, uint8_t version,
                               const char *payload, size_t n)
{
    struct cay_buf buf = CAY_BUF(1 << 21);
    uint32_t s = htole32(size), tag = htole32(7);
    uint16_t t = htole16(type);
    buf_add(&buf, &s, 4);
    buf_add(&buf, &t, 2);
    buf_add(&buf, &fds, 1);
    buf_add(&buf, &version, 1);
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
    assert_memory_equal(frame.payload, "payload", 7);
}

TEST(bad_frames_are_seen_in_their_header)
{
    struct frame frame;
    autobuf struct cay_buf version = frame_of(0, 1, 0, FRAME_VERSION + 1, "", 0);
    autobuf struct cay_buf size = frame_of(CAY_MAX_FRAME + 1, 1, 0, FRAME_VERSION, "", 0);
    autobuf struct cay_buf fds = frame_of(0, 1, FRAME_MAX_FDS + 1, FRAME_VERSION, "", 0);
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

static int decode(const struct cay_buf *payload, struct cay_error *err)
{
    struct frame frame = {
        .type = OP_EXEC, .size = (uint32_t)payload->size, .payload = payload->data};
    struct msg out = {0};
    int result = msg_decode(&frame, &out, err);
    msg_done(&out);
    return result;
}

TEST(fields_that_must_be_refused)
{
    static const struct {
        uint16_t key;
        const char *bytes;
        size_t size;
    } bad[] = {
        {0, "12345678", 8},   /* no such key */
        {999, "12345678", 8}, /* no such key */
        {1, "1234567", 7},    /* a number of seven bytes */
        {1, "123456789", 9},  /* a number of nine bytes */
        {14, "abc", 3},       /* a text without its NUL */
        {14, "a\0c", 4},      /* a text with a NUL inside */
        {14, "", 0},          /* a text without anything */
        {11, "abc", 3},       /* the same in a list */
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_there_and_back),
        cmocka_unit_test(bad_frames_are_seen_in_their_header),
        cmocka_unit_test(a_frame_that_is_too_large_is_not_made),
        cmocka_unit_test(messages_there_and_back),
        cmocka_unit_test(fields_that_must_be_refused),
        cmocka_unit_test(a_text_twice_is_refused),
        cmocka_unit_test(fields_that_are_cut_short_are_refused),
        cmocka_unit_test(lists_end_at_the_maximum_of_fields),
        cmocka_unit_test(an_error_message_becomes_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
