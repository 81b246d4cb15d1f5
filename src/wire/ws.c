/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/ws.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/utf8.h"
#include "base/util.h"

#include <string.h>

#define FIN 0x80
#define RESERVED 0x70
#define OPCODE 0x0f
#define CONTROL 0x08 /* the bit that all control opcodes have */
#define MASKED 0x80
#define LENGTH 0x7f
#define LENGTH_16 126
#define LENGTH_64 127

/* A message buffer larger than this is given back once its message was handed out, so that a
 * thousand idle terminals do not keep the memory of their largest paste. */
#define KEEP (4u << 10)

static bool is_utf8(const char *text, size_t size)
{
    return utf8_valid(text, size) == size;
}

/* ---- reading --------------------------------------------------------------------------------- */

void ws_in_init(struct ws_in *in, enum ws_peer peer)
{
    *in = (struct ws_in){.peer = peer, .message = CAY_BUF(WS_MAX_MESSAGE)};
}

void ws_in_done(struct ws_in *in)
{
    buf_done(&in->message);
}

static int fail(struct ws_in *in, enum ws_code code, const char *what, struct cay_error *err)
{
    in->state = WS_STATE_FAILED;
    in->close_code = (uint16_t)code;
    in->data = NULL;
    in->size = 0;
    buf_done(&in->message);
    enum cay_code kind = code == WS_TOO_LARGE  ? CAY_E_TOO_LARGE
                         : code == WS_INTERNAL ? CAY_E_NO_SPACE
                                               : CAY_E_INVALID;
    return cay_fail(err, kind, "WebSocket: %s", what);
}

/* How many bytes the header has, as far as its first two tell. */
static size_t header_need(const struct ws_in *in)
{
    if (in->header_size < 2)
        return 2;
    unsigned length = in->header[1] & LENGTH;
    return 2 +
           (size_t)(length == LENGTH_16   ? 2
                    : length == LENGTH_64 ? 8
                                          : 0) +
           (in->header[1] & MASKED ? 4 : 0);
}

/* The rules that the first two bytes can break. */
static const char *fault_of_start(const struct ws_in *in)
{
    unsigned first = in->header[0], opcode = first & OPCODE, length = in->header[1] & LENGTH;
    if (first & RESERVED)
        return "a reserved bit is set";
    if (opcode != WS_OP_CONTINUE && opcode != WS_OP_TEXT && opcode != WS_OP_BINARY &&
        opcode != WS_OP_CLOSE && opcode != WS_OP_PING && opcode != WS_OP_PONG)
        return "unknown opcode";
    if (!(in->header[1] & MASKED) != (in->peer == WS_PEER_SERVER))
        return in->peer == WS_PEER_SERVER ? "a masked frame from a server"
                                          : "a frame without a mask from a client";
    if (opcode & CONTROL) {
        if (!(first & FIN))
            return "a control frame in fragments";
        return length > WS_MAX_CONTROL ? "a control frame of more than 125 bytes" : NULL;
    }
    if (opcode == WS_OP_CONTINUE && !in->message_opcode)
        return "a continuation without a beginning";
    if (opcode != WS_OP_CONTINUE && in->message_opcode)
        return "a new message within a fragmented one";
    return NULL;
}

/* The header is whole: sets up the payload. */
static int start_payload(struct ws_in *in, struct cay_error *err)
{
    unsigned length = in->header[1] & LENGTH;
    size_t width = length == LENGTH_16 ? 2 : length == LENGTH_64 ? 8 : 0;
    uint64_t size = width ? 0 : length;
    for (size_t i = 0; i < width; i++)
        size = size << 8 | in->header[2 + i];
    if ((width == 2 && size < LENGTH_16) || (width == 8 && size <= UINT16_MAX) || size >> 63)
        return fail(in, WS_PROTOCOL, "a length that is not written the short way", err);
    if (in->header[1] & MASKED)
        memcpy(in->mask, in->header + 2 + width, sizeof(in->mask));
    else
        memset(in->mask, 0, sizeof(in->mask));
    in->opcode = in->header[0] & OPCODE;
    if (in->opcode & CONTROL) {
        in->control_size = 0;
    } else {
        if (size > WS_MAX_MESSAGE - in->message.size)
            return fail(in, WS_TOO_LARGE, "a message of more than 64 KiB", err);
        if (in->opcode != WS_OP_CONTINUE)
            in->message_opcode = in->opcode;
    }
    in->left = size;
    in->masked = 0;
    in->state = WS_STATE_PAYLOAD;
    return 0;
}

static int take_header(struct ws_in *in, const char **at, const char *end, struct cay_error *err)
{
    while (*at < end) {
        in->header[in->header_size++] = (unsigned char)*(*at)++;
        const char *fault = in->header_size == 2 ? fault_of_start(in) : NULL;
        if (fault)
            return fail(in, WS_PROTOCOL, fault, err);
        if (in->header_size < header_need(in))
            continue;
        return start_payload(in, err);
    }
    return 0;
}

static int take_payload(struct ws_in *in, const char **at, const char *end, struct cay_error *err)
{
    size_t size = (size_t)CAY_MIN(in->left, (uint64_t)(end - *at));
    if (size == 0)
        return 0;
    char *to;
    if (in->opcode & CONTROL) {
        to = in->control + in->control_size;
        in->control_size += size;
    } else {
        to = buf_room(&in->message, size);
        if (!to)
            return fail(in, WS_INTERNAL, "no memory for a message", err);
        in->message.size += size;
    }
    memcpy(to, *at, size);
    ws_mask(to, size, in->mask, in->masked);
    in->masked += size;
    in->left -= size;
    *at += size;
    return 0;
}

/* Codes that may be sent: those of the RFC and its registry, of libraries, and of applications. */
static bool is_close_code(unsigned code)
{
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
           (code >= 3000 && code <= 4999);
}

static int end_close(struct ws_in *in, struct cay_error *err)
{
    const unsigned char *bytes = (const unsigned char *)in->control;
    unsigned code = WS_NONE;
    if (in->control_size == 1)
        return fail(in, WS_PROTOCOL, "a close frame of one byte", err);
    if (in->control_size) {
        code = (unsigned)bytes[0] << 8 | bytes[1];
        if (!is_close_code(code))
            return fail(in, WS_PROTOCOL, "a close code that nobody may send", err);
        in->data = in->control + 2;
        in->size = in->control_size - 2;
        if (!is_utf8(in->data, in->size))
            return fail(in, WS_NOT_UTF8, "a reason that is not UTF-8", err);
    }
    in->state = WS_STATE_CLOSED;
    in->close_code = (uint16_t)code;
    return WS_CLOSE;
}

/* The frame is whole: the event that it is, or WS_MORE for a fragment. */
static int end_frame(struct ws_in *in, struct cay_error *err)
{
    in->state = WS_STATE_HEADER;
    in->header_size = 0;
    if (in->opcode & CONTROL) {
        if (in->opcode == WS_OP_CLOSE)
            return end_close(in, err);
        in->data = in->control;
        in->size = in->control_size;
        return in->opcode == WS_OP_PING ? WS_PING : WS_PONG;
    }
    if (!(in->header[0] & FIN))
        return WS_MORE;
    int event = in->message_opcode == WS_OP_TEXT ? WS_TEXT : WS_BINARY;
    in->data = buf_cstr(&in->message);
    in->size = in->message.size;
    if (!in->data)
        return fail(in, WS_INTERNAL, "no memory for a message", err);
    if (event == WS_TEXT && !is_utf8(in->data, in->size))
        return fail(in, WS_NOT_UTF8, "text that is not UTF-8", err);
    in->message_opcode = 0;
    in->message_out = true;
    return event;
}

/* The last event's bytes are no longer needed. */
static void forget_event(struct ws_in *in)
{
    in->data = NULL;
    in->size = 0;
    if (!in->message_out)
        return;
    in->message_out = false;
    if (in->message.capacity > KEEP)
        buf_done(&in->message);
    in->message.size = 0;
}

int ws_in_next(struct ws_in *in, const char **at, const char *end, struct cay_error *err)
{
    forget_event(in);
    for (;;) {
        int event = WS_MORE;
        switch (in->state) {
        case WS_STATE_FAILED:
            return cay_fail(err, CAY_E_INVALID, "WebSocket: the peer broke a rule before");
        case WS_STATE_CLOSED:
            *at = end;
            return WS_MORE;
        case WS_STATE_HEADER:
            if (take_header(in, at, end, err) < 0)
                return -1;
            if (in->state == WS_STATE_HEADER)
                return WS_MORE;
            break;
        case WS_STATE_PAYLOAD:
            if (take_payload(in, at, end, err) < 0)
                return -1;
            if (in->left)
                return WS_MORE;
            event = end_frame(in, err);
            if (event != WS_MORE)
                return event;
            break;
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

size_t ws_header(unsigned char header[WS_MAX_HEADER], enum ws_opcode opcode, uint64_t size,
                 const unsigned char mask[4])
{
    size_t width = size < LENGTH_16 ? 0 : size <= UINT16_MAX ? 2 : 8, n = 2;
    header[0] = (unsigned char)(FIN | opcode);
    header[1] = (unsigned char)(width == 0 ? size : width == 2 ? LENGTH_16 : LENGTH_64);
    for (size_t i = width; i-- > 0;)
        header[n++] = (unsigned char)(size >> i * 8);
    if (mask) {
        header[1] |= MASKED;
        memcpy(header + n, mask, 4);
        n += 4;
    }
    return n;
}

void ws_mask(char *data, size_t size, const unsigned char mask[4], size_t offset)
{
    for (size_t i = 0; i < size; i++)
        data[i] = (char)((unsigned char)data[i] ^ mask[(offset + i) & 3]);
}

int ws_out(struct cay_buf *out, enum ws_opcode opcode, const void *data, size_t size,
           const unsigned char mask[4])
{
    unsigned char header[WS_MAX_HEADER];
    size_t n = ws_header(header, opcode, size, mask);
    if (((unsigned)opcode & CONTROL && size > WS_MAX_CONTROL) || size > SIZE_MAX - n)
        return -1;
    char *to = buf_room(out, n + size);
    if (!to)
        return -1;
    memcpy(to, header, n);
    if (size)
        memcpy(to + n, data, size);
    if (mask)
        ws_mask(to + n, size, mask, 0);
    out->size += n + size;
    return 0;
}

int ws_out_close(struct cay_buf *out, unsigned code, const char *reason,
                 const unsigned char mask[4])
{
    char payload[WS_MAX_CONTROL];
    size_t size = 0;
    if (code != WS_NONE) {
        size_t length = reason ? strlen(reason) : 0;
        if (length > sizeof(payload) - 2) {
            length = sizeof(payload) - 2;
            while (length && ((unsigned char)reason[length] & 0xc0) == 0x80)
                length--;
        }
        payload[0] = (char)(code >> 8);
        payload[1] = (char)code;
        if (length)
            memcpy(payload + 2, reason, length);
        size = 2 + length;
    }
    return ws_out(out, WS_OP_CLOSE, payload, size, mask);
}

/* ---- the handshake --------------------------------------------------------------------------- */

int ws_accept_input(const char *key, char out[WS_ACCEPT_INPUT_SIZE + 1], struct cay_error *err)
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    autobuf struct cay_buf bytes = CAY_BUF(16);
    if (strlen(key) != WS_KEY_SIZE || base64_decode(key, WS_KEY_SIZE, &bytes, NULL) < 0 ||
        bytes.size != 16)
        return cay_fail(err, CAY_E_INVALID,
                        "WebSocket: Sec-WebSocket-Key must be 16 bytes in base64");
    memcpy(out, key, WS_KEY_SIZE);
    memcpy(out + WS_KEY_SIZE, guid, sizeof(guid));
    return 0;
}

void ws_accept_value(const unsigned char digest[20], char out[WS_ACCEPT_SIZE + 1])
{
    base64_text(out, digest, 20);
    out[WS_ACCEPT_SIZE] = 0;
}
