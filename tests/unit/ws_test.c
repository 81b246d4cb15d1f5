/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 and WebSocket frames: the vectors of the RFCs, every rule broken once, any cut of the
 * bytes. */
#include "base/base64.h"
#include "test.h"
#include "wire/ws.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- base64 ---------------------------------------------------------------------------------- */

TEST(base64_vectors_of_rfc_4648)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"", ""},
                 {"f", "Zg=="},
                 {"fo", "Zm8="},
                 {"foo", "Zm9v"},
                 {"foob", "Zm9vYg=="},
                 {"fooba", "Zm9vYmE="},
                 {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        autobuf struct cay_buf text = CAY_BUF(100), bytes = CAY_BUF(100);
        assert_int_equal(base64_encode(&text, cases[i].bytes, strlen(cases[i].bytes)), 0);
        assert_string_equal(buf_cstr(&text), cases[i].text);
        assert_int_equal(base64_decode(cases[i].text, strlen(cases[i].text), &bytes, NULL), 0);
        assert_string_equal(buf_cstr(&bytes), cases[i].bytes);
    }
}

TEST(base64_of_all_bytes_and_lengths)
{
    unsigned char all[256];
    for (size_t i = 0; i < sizeof(all); i++)
        all[i] = (unsigned char)(i * 167 + 13);
    for (size_t n = 0; n <= sizeof(all); n++) {
        autobuf struct cay_buf text = CAY_BUF(400), bytes = CAY_BUF(300);
        assert_int_equal(buf_str(&bytes, "before"), 0);
        assert_int_equal(base64_encode(&text, all, n), 0);
        assert_int_equal(text.size, BASE64_SIZE(n));
        assert_int_equal(base64_decode(text.data ? text.data : "", text.size, &bytes, NULL), 0);
        assert_int_equal(bytes.size, 6 + n);
        assert_memory_equal(bytes.data, "before", 6);
        assert_memory_equal(bytes.data + 6, all, n);
    }
}

TEST(base64_refuses_what_it_would_not_write)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"Zg", "multiple of 4"},        {"Zg=", "multiple of 4"},   {"Zm9v\n", "multiple of 4"},
        {"Zm 9", "offset 2"},           {"Zm-_", "offset 2"},       {"====", "offset 0"},
        {"Z===", "offset 1"},           {"Zg=a", "offset 2"},       {"Zg==Zg==", "offset 2"},
        {"Zm9v\xc3\xa4==", "offset 4"}, {"Zh==", "beyond its end"}, {"Zm9=", "beyond its end"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        autobuf struct cay_buf out = CAY_BUF(100);
        struct cay_error err;
        buf_str(&out, "kept");
        assert_int_equal(base64_decode(cases[i].text, strlen(cases[i].text), &out, &err), -1);
        assert_error(err, CAY_E_INVALID, cases[i].part);
        assert_string_equal(buf_cstr(&out), "kept");
    }
}

TEST(base64_keeps_to_the_maximum)
{
    autobuf struct cay_buf text = CAY_BUF(4), bytes = CAY_BUF(5);
    struct cay_error err;
    assert_int_equal(base64_decode("Zm9vYmFy", 8, &bytes, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "at most 5");
    assert_false(buf_failed(&bytes));
    assert_int_equal(base64_decode("Zm9vYmE=", 8, &bytes, &err), 0);
    assert_int_equal(base64_decode("Zg==", 4, &bytes, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "at most 0");
    assert_int_equal(base64_encode(&text, "four", 4), -1);
    assert_true(buf_failed(&text));
    autobuf struct cay_buf other = CAY_BUF(100);
    assert_int_equal(base64_encode(&other, "x", SIZE_MAX), -1);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* All that a stream of bytes says, as one text: "text(abc) ping() close(1000,bye) error(1002)". */
static void listen_to(enum ws_peer peer, const void *bytes, size_t size, size_t step, char *said,
                      size_t room)
{
    static const char *const names[] = {[WS_TEXT] = "text",
                                        [WS_BINARY] = "binary",
                                        [WS_PING] = "ping",
                                        [WS_PONG] = "pong",
                                        [WS_CLOSE] = "close"};
    struct ws_in in;
    struct cay_error err;
    size_t used = 0;
    ws_in_init(&in, peer);
    said[0] = 0;
    for (size_t done = 0; done < size; done += step) {
        const char *at = (const char *)bytes + done;
        const char *end = (const char *)bytes + (size - done < step ? size : done + step);
        int event;
        while ((event = ws_in_next(&in, &at, end, &err)) > 0)
            used += (size_t)snprintf(said + used, room - used, "%s%s(%.0d%s%.*s)", used ? " " : "",
                                     names[event], event == WS_CLOSE ? in.close_code : 0,
                                     event == WS_CLOSE ? "," : "", (int)in.size, in.data);
        if (event < 0) {
            snprintf(said + used, room - used, "%serror(%d)", used ? " " : "", in.close_code);
            assert_int_equal(ws_in_next(&in, &at, end, &err), -1);
            break;
        }
        assert_ptr_equal(at, end);
    }
    ws_in_done(&in);
}

static void expect(enum ws_peer peer, const void *bytes, size_t size, const char *expected)
{
    static const size_t steps[] = {SIZE_MAX / 2, 1, 2, 3, 7};
    for (size_t i = 0; i < COUNT(steps); i++) {
        char said[1000];
        listen_to(peer, bytes, size, steps[i], said, sizeof(said));
        assert_string_equal(said, expected);
    }
}

#define EXPECT_CLIENT(bytes, expected) expect(WS_PEER_CLIENT, bytes, sizeof(bytes) - 1, expected)
#define EXPECT_SERVER(bytes, expected) expect(WS_PEER_SERVER, bytes, sizeof(bytes) - 1, expected)
/* A mask of zeros leaves the payload readable. */
#define NOMASK "\0\0\0\0"

TEST(frames_of_rfc_6455)
{
    EXPECT_SERVER("\x81\x05Hello", "text(Hello)");
    EXPECT_CLIENT("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "text(Hello)");
    EXPECT_SERVER("\x01\x03Hel\x80\x02lo", "text(Hello)");
    EXPECT_SERVER("\x89\x05Hello", "ping(Hello)");
    EXPECT_CLIENT("\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", "pong(Hello)");
}

TEST(fragments_with_control_frames_between)
{
    EXPECT_CLIENT("\x02\x83" NOMASK "abc"
                  "\x89\x81" NOMASK "p"
                  "\x00\x80" NOMASK "\x00\x82" NOMASK "de"
                  "\x8a\x80" NOMASK "\x80\x81" NOMASK "f"
                  "\x81\x80" NOMASK "\x88\x85" NOMASK "\x03\xe8"
                  "bye",
                  "ping(p) pong() binary(abcdef) text() close(1000,bye)");
}

TEST(bytes_after_a_close_do_not_count)
{
    EXPECT_CLIENT("\x88\x80" NOMASK "\xff\xff\xff\xff", "close(1005,)");
    EXPECT_CLIENT("\x88\x82" NOMASK "\x03\xe9\x81\x81" NOMASK "x", "close(1001,)");
}

TEST(every_rule_is_kept)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *expected;
    } cases[] = {
#define CASE(bytes, expected) {bytes, sizeof(bytes) - 1, expected}
        CASE("\x81\x05Hello", "error(1002)"),              /* no mask */
        CASE("\xc1\x80" NOMASK, "error(1002)"),            /* RSV1 */
        CASE("\xa1\x80" NOMASK, "error(1002)"),            /* RSV2 */
        CASE("\x91\x80" NOMASK, "error(1002)"),            /* RSV3 */
        CASE("\x83\x80" NOMASK, "error(1002)"),            /* unknown data opcode */
        CASE("\x8b\x80" NOMASK, "error(1002)"),            /* unknown control opcode */
        CASE("\x80\x80" NOMASK, "error(1002)"),            /* continues nothing */
        CASE("\x01\x80" NOMASK "\x81\x80", "error(1002)"), /* begins within a message */
        CASE("\x09\x80" NOMASK, "error(1002)"),            /* ping in fragments */
        CASE("\x08\x80" NOMASK, "error(1002)"),            /* close in fragments */
        CASE("\x89\xfe\x00\x7e" NOMASK, "error(1002)"),    /* long ping */
        CASE("\x89\xff", "error(1002)"),
        CASE("\x82\xfe\x00\x7d" NOMASK, "error(1002)"), /* 125 in two bytes */
        CASE("\x82\xff\0\0\0\0\0\0\xff\xff" NOMASK, "error(1002)"),
        CASE("\x82\xff\x80\0\0\0\0\0\0\0" NOMASK, "error(1002)"), /* the top bit */
        CASE("\x82\xff\0\0\0\0\0\1\0\1" NOMASK, "error(1009)"),
        CASE("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff" NOMASK, "error(1009)"),
        CASE("\x81\x81" NOMASK "\xff", "error(1007)"),
        CASE("\x81\x82" NOMASK "\xc0\x80", "error(1007)"),         /* overlong */
        CASE("\x81\x83" NOMASK "\xe0\x9f\xbf", "error(1007)"),     /* overlong */
        CASE("\x81\x83" NOMASK "\xed\xa0\x80", "error(1007)"),     /* surrogate */
        CASE("\x81\x84" NOMASK "\xf4\x90\x80\x80", "error(1007)"), /* beyond U+10FFFF */
        CASE("\x81\x84" NOMASK "\xf0\x8f\xbf\xbf", "error(1007)"), /* overlong */
        CASE("\x81\x84" NOMASK "\xf5\x80\x80\x80", "error(1007)"),
        CASE("\x81\x81" NOMASK "\xc3", "error(1007)"), /* cut */
        CASE("\x81\x83" NOMASK "\xe2\x82(", "error(1007)"),
        CASE("\x88\x81" NOMASK "\x03", "error(1002)"),
        CASE("\x88\x82" NOMASK "\x03\xe7", "error(1002)"), /* 999 */
        CASE("\x88\x82" NOMASK "\x03\xec", "error(1002)"), /* 1004 */
        CASE("\x88\x82" NOMASK "\x03\xed", "error(1002)"), /* 1005 */
        CASE("\x88\x82" NOMASK "\x03\xee", "error(1002)"), /* 1006 */
        CASE("\x88\x82" NOMASK "\x03\xf7", "error(1002)"), /* 1015 */
        CASE("\x88\x82" NOMASK "\x0b\xb7", "error(1002)"), /* 2999 */
        CASE("\x88\x82" NOMASK "\x13\x88", "error(1002)"), /* 5000 */
        CASE("\x88\x83" NOMASK "\x03\xe8\xff", "error(1007)"),
        CASE("\x88\x82" NOMASK "\x0f\xa0", "close(4000,)"),
#undef CASE
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect(WS_PEER_CLIENT, cases[i].bytes, cases[i].size, cases[i].expected);
    EXPECT_SERVER("\x81\x80" NOMASK, "error(1002)"); /* a server does not mask */
}

TEST(utf8_may_be_cut_between_fragments)
{
    EXPECT_CLIENT("\x01\x81" NOMASK "\xe2\x00\x81" NOMASK "\x82\x80\x81" NOMASK "\xac",
                  "text(\xe2\x82\xac)");
    EXPECT_CLIENT("\x81\x84" NOMASK "\xf4\x8f\xbf\xbf", "text(\xf4\x8f\xbf\xbf)");
    EXPECT_CLIENT("\x01\x81" NOMASK "\xe2\x80\x81" NOMASK "\x82", "error(1007)");
}

TEST(a_message_may_have_its_maximum_and_no_more)
{
    char *bytes = calloc(1, WS_MAX_MESSAGE);
    assert_non_null(bytes);
    for (int more = 0; more < 2; more++) {
        autobuf struct cay_buf wire = CAY_BUF(2 * WS_MAX_MESSAGE);
        unsigned char header[WS_MAX_HEADER], mask[4] = {1, 2, 3, 4};
        struct ws_in in;
        struct cay_error err;
        size_t n = ws_header(header, WS_OP_BINARY, WS_MAX_MESSAGE, mask);
        header[0] &= 0x7f; /* not the last */
        buf_add(&wire, header, n);
        buf_add(&wire, bytes, WS_MAX_MESSAGE);
        ws_out(&wire, WS_OP_CONTINUE, "x", (size_t)more, mask);
        const char *at = wire.data;
        ws_in_init(&in, WS_PEER_CLIENT);
        int event = ws_in_next(&in, &at, wire.data + wire.size, &err);
        if (more) {
            assert_int_equal(event, -1);
            assert_error(err, CAY_E_TOO_LARGE, "64 KiB");
            assert_int_equal(in.close_code, WS_TOO_LARGE);
        } else {
            assert_int_equal(event, WS_BINARY);
            assert_int_equal(in.size, WS_MAX_MESSAGE);
            /* Once it was handed out, its memory goes. */
            assert_int_equal(ws_in_next(&in, &at, at, &err), WS_MORE);
            assert_int_equal(in.message.capacity, 0);
        }
        ws_in_done(&in);
    }
    free(bytes);
}

/* ---- writing --------------------------------------------------------------------------------- */

TEST(what_is_written_can_be_read)
{
    static const size_t sizes[] = {0, 1, 125, 126, 127, 65535, 65536};
    static const unsigned char mask[4] = {0xde, 0xad, 0xbe, 0xef};
    char *bytes = malloc(65536);
    assert_non_null(bytes);
    for (size_t i = 0; i < 65536; i++)
        bytes[i] = (char)(i * 31);
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int masked = 0; masked < 2; masked++) {
            autobuf struct cay_buf wire = CAY_BUF(70000);
            struct ws_in in;
            struct cay_error err;
            assert_int_equal(ws_out(&wire, WS_OP_BINARY, bytes, sizes[i], masked ? mask : NULL), 0);
            size_t header = sizes[i] < 126 ? 2 : sizes[i] < 65536 ? 4 : 10;
            assert_int_equal(wire.size, header + (masked ? 4 : 0) + sizes[i]);
            ws_in_init(&in, masked ? WS_PEER_CLIENT : WS_PEER_SERVER);
            const char *at = wire.data;
            assert_int_equal(ws_in_next(&in, &at, wire.data + wire.size, &err), WS_BINARY);
            assert_int_equal(in.size, sizes[i]);
            assert_memory_equal(in.data, bytes, sizes[i]);
            ws_in_done(&in);
        }
    free(bytes);
}

TEST(control_frames_stay_short)
{
    char bytes[126] = {0};
    autobuf struct cay_buf wire = CAY_BUF(1000);
    assert_int_equal(ws_out(&wire, WS_OP_PONG, bytes, 126, NULL), -1);
    assert_int_equal(wire.size, 0);
    assert_int_equal(ws_out(&wire, WS_OP_PONG, bytes, 125, NULL), 0);
    autobuf struct cay_buf small = CAY_BUF(3);
    assert_int_equal(ws_out(&small, WS_OP_TEXT, "ab", 2, NULL), -1);
    assert_true(buf_failed(&small));
}

TEST(close_frames)
{
    autobuf struct cay_buf wire = CAY_BUF(1000);
    assert_int_equal(ws_out_close(&wire, WS_NORMAL, NULL, NULL), 0);
    assert_int_equal(ws_out_close(&wire, WS_NONE, "never said", NULL), 0);
    assert_int_equal(wire.size, 6);
    assert_memory_equal(wire.data, "\x88\x02\x03\xe8\x88\x00", 6);
    /* A long reason is cut before the character that does not fit: 61 times two bytes, not 123. */
    char reason[201];
    for (size_t i = 0; i < 200; i += 2)
        memcpy(reason + i, "\xc3\xa4", 3);
    buf_eat(&wire, wire.size);
    assert_int_equal(ws_out_close(&wire, WS_INTERNAL, reason, NULL), 0);
    assert_int_equal(wire.size, 2 + 2 + 122);
    struct ws_in in;
    const char *at = wire.data;
    ws_in_init(&in, WS_PEER_SERVER);
    assert_int_equal(ws_in_next(&in, &at, wire.data + wire.size, NULL), WS_CLOSE);
    assert_int_equal(in.close_code, 1011);
    ws_in_done(&in);
}

/* ---- the handshake --------------------------------------------------------------------------- */

TEST(handshake_of_rfc_6455)
{
    char input[WS_ACCEPT_INPUT_SIZE + 1], value[WS_ACCEPT_SIZE + 1];
    static const unsigned char digest[20] = {0xb3, 0x7a, 0x4f, 0x2c, 0xc0, 0x62, 0x4f,
                                             0x16, 0x90, 0xf6, 0x46, 0x06, 0xcf, 0x38,
                                             0x59, 0x45, 0xb2, 0xbe, 0xc4, 0xea};
    assert_int_equal(ws_accept_input("dGhlIHNhbXBsZSBub25jZQ==", input, NULL), 0);
    assert_string_equal(input, "dGhlIHNhbXBsZSBub25jZQ==258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    ws_accept_value(digest, value);
    assert_string_equal(value, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

TEST(handshake_keys_are_sixteen_bytes)
{
    static const char *const bad[] = {"",
                                      "x",
                                      "dGhlIHNhbXBsZSBub25jZQ=",
                                      "dGhlIHNhbXBsZSBub25jZQ= ",
                                      "dGhlIHNhbXBsZSBub25jZR==",
                                      "dGhlIHNhbXBsZSBub25jZSE=",
                                      "dGhlIHNhbXBsZSBub25jZSEh",
                                      "dGhlIHNhbXBsZSBub25jZQ==dGhl"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        char input[WS_ACCEPT_INPUT_SIZE + 1] = "untouched";
        struct cay_error err;
        assert_int_equal(ws_accept_input(bad[i], input, &err), -1);
        assert_error(err, CAY_E_INVALID, "Sec-WebSocket-Key");
        assert_string_equal(input, "untouched");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_vectors_of_rfc_4648),
        cmocka_unit_test(base64_of_all_bytes_and_lengths),
        cmocka_unit_test(base64_refuses_what_it_would_not_write),
        cmocka_unit_test(base64_keeps_to_the_maximum),
        cmocka_unit_test(frames_of_rfc_6455),
        cmocka_unit_test(fragments_with_control_frames_between),
        cmocka_unit_test(bytes_after_a_close_do_not_count),
        cmocka_unit_test(every_rule_is_kept),
        cmocka_unit_test(utf8_may_be_cut_between_fragments),
        cmocka_unit_test(a_message_may_have_its_maximum_and_no_more),
        cmocka_unit_test(what_is_written_can_be_read),
        cmocka_unit_test(control_frames_stay_short),
        cmocka_unit_test(close_frames),
        cmocka_unit_test(handshake_of_rfc_6455),
        cmocka_unit_test(handshake_keys_are_sixteen_bytes),
    };
    return cmocka_run_group_tests_name("ws", tests, NULL, NULL);
}
