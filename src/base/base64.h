/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Base64 (RFC 4648, section 4, with padding), for bytes that travel in JSON and for the WebSocket
 * handshake. Pure: no I/O, and the only memory is the caller's buffer with its maximum. One text
 * stands for one sequence of bytes: the decoder takes nothing that the encoder would not write.
 */
#ifndef CAY_BASE_BASE64_H
#define CAY_BASE_BASE64_H

#include "base/buf.h"

/* Length of the text for `size` bytes, without a NUL. */
#define BASE64_SIZE(size) (((size) + 2) / 3 * 4)

/* Writes BASE64_SIZE(size) characters and no NUL; cannot fail. */
void base64_text(char *out, const void *data, size_t size);
/* Appends the text. 0, or -1 with the buffer marked as failed (buf.h). */
int base64_encode(struct cay_buf *out, const void *data, size_t size);
/* Appends the bytes; on failure the buffer holds what it held. INVALID names the place of the
 * fault; TOO_LARGE when the bytes do not fit the buffer's maximum. */
int base64_decode(const char *text, size_t size, struct cay_buf *out, struct cay_error *err);

#endif
