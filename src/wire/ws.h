/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WebSocket (RFC 6455) without I/O: bytes in, events out; messages in, bytes out. The daemon speaks
 * it on terminals, the remote command line is its client; both sides use this file.
 *
 * Reading is strict: a peer that breaks a rule (reserved bits, unknown opcodes, a mask where none
 * belongs or none where one is needed, lengths not written the short way, control frames that are
 * long or in pieces, text that is not UTF-8, close codes nobody may send) ends the conversation
 * with an error and the close code to answer it with. There are no extensions and no subprotocols
 * here. Fragments are put together up to WS_MAX_MESSAGE; that is all the memory a peer can claim,
 * and a frame that would go beyond it is refused when its header is read.
 */
#ifndef CAY_WIRE_WS_H
#define CAY_WIRE_WS_H

#include "base/buf.h"

/* One message: a terminal's keystrokes or a paste, as large as a pipe holds (CAY_MAX_DATA). */
#define WS_MAX_MESSAGE (64u << 10)
/* The payload of a control frame (ping, pong, close), by the protocol. */
#define WS_MAX_CONTROL 125
/* Two bytes, eight of length, four of mask. */
#define WS_MAX_HEADER 14

/* As on the wire. */
enum ws_opcode {
    WS_OP_CONTINUE = 0,
    WS_OP_TEXT = 1,
    WS_OP_BINARY = 2,
    WS_OP_CLOSE = 8,
    WS_OP_PING = 9,
    WS_OP_PONG = 10,
};

/* Why a conversation ends (RFC 6455, 7.4.1); NONE is never sent. */
enum ws_code {
    WS_NORMAL = 1000,
    WS_GOING_AWAY = 1001,
    WS_PROTOCOL = 1002,
    WS_UNSUPPORTED = 1003,
    WS_NONE = 1005,
    WS_NOT_UTF8 = 1007,
    WS_POLICY = 1008,
    WS_TOO_LARGE = 1009,
    WS_INTERNAL = 1011,
};

/* ---- reading --------------------------------------------------------------------------------- */

enum ws_event {
    WS_MORE = 0, /* all bytes are taken; feed more */
    WS_TEXT,     /* data, size: a whole message of UTF-8 */
    WS_BINARY,   /* data, size: a whole message */
    WS_PING,     /* data, size: answer it with a PONG of the same bytes */
    WS_PONG,     /* data, size */
    WS_CLOSE,    /* close_code (WS_NONE: it said none); data, size: its reason. Answer with a close
                  * if none was sent yet. Bytes that follow are taken and ignored. */
};

/* Whom the bytes come from: clients mask every frame, servers none. */
enum ws_peer {
    WS_PEER_CLIENT,
    WS_PEER_SERVER,
};

struct ws_in {
    /* What the last event carries; borrowed, good until the next call. */
    const char *data;
    size_t size;
    uint16_t close_code; /* after WS_CLOSE; after a failure, the code to close with */

    /* Private. */
    enum ws_peer peer;
    enum {
        WS_STATE_HEADER,  /* collecting `header` */
        WS_STATE_PAYLOAD, /* `left` bytes of the frame are to come */
        WS_STATE_CLOSED,  /* the peer said close; nothing counts any more */
        WS_STATE_FAILED,  /* the peer broke a rule; the same error from now on */
    } state;
    unsigned char header[WS_MAX_HEADER];
    size_t header_size;
    uint64_t left;
    size_t masked;          /* bytes of the payload seen, for the place in the mask */
    uint8_t opcode;         /* of the frame that is being read */
    uint8_t message_opcode; /* TEXT or BINARY while its fragments come in, else 0 */
    bool message_out;       /* `message` was handed out and is to be emptied */
    unsigned char mask[4];
    struct cay_buf message; /* grows to WS_MAX_MESSAGE */
    char control[WS_MAX_CONTROL];
    size_t control_size;
};

void ws_in_init(struct ws_in *in, enum ws_peer peer);
void ws_in_done(struct ws_in *in);
/* Takes bytes from *at up to `end` and returns the next event; call until WS_MORE. -1 when the peer
 * broke a rule: INVALID, TOO_LARGE or NO_SPACE in `err`, and close_code is set. */
int ws_in_next(struct ws_in *in, const char **at, const char *end, struct cay_error *err);

/* ---- writing --------------------------------------------------------------------------------- */

/* The header of one whole frame, for a payload that follows on its own; its length. `mask` is NULL
 * for a server; a client gives four random bytes and masks the payload with ws_mask. */
size_t ws_header(unsigned char header[WS_MAX_HEADER], enum ws_opcode opcode, uint64_t size,
                 const unsigned char mask[4]);
/* Masks or unmasks in place; `offset` is that of `data` in its payload. */
void ws_mask(char *data, size_t size, const unsigned char mask[4], size_t offset);
/* Appends one whole frame. 0, or -1: the buffer failed (buf.h), or a control frame that is too
 * long. */
int ws_out(struct cay_buf *out, enum ws_opcode opcode, const void *data, size_t size,
           const unsigned char mask[4]);
/* A close frame; WS_NONE: without a code. The reason is cut to what fits, between characters. */
int ws_out_close(struct cay_buf *out, unsigned code, const char *reason,
                 const unsigned char mask[4]);

/* ---- the handshake --------------------------------------------------------------------------- */

/* Sec-WebSocket-Key: 16 bytes in base64. */
#define WS_KEY_SIZE 24
/* Key and GUID, of which Sec-WebSocket-Accept is the SHA-1 in base64. The hash is the caller's: no
 * cryptography in this layer. */
#define WS_ACCEPT_INPUT_SIZE (WS_KEY_SIZE + 36)
#define WS_ACCEPT_SIZE 28

/* What to hash for a key, with a NUL. INVALID if it is no key. */
int ws_accept_input(const char *key, char out[WS_ACCEPT_INPUT_SIZE + 1], struct cay_error *err);
/* Sec-WebSocket-Accept of the SHA-1 of that, with a NUL. */
void ws_accept_value(const unsigned char digest[20], char out[WS_ACCEPT_SIZE + 1]);

#endif
