/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output streams over HTTP (application/vnd.cay.frames): between the daemon, which writes them, and
 * src/remote, which reads them.
 *
 *   u8 kind | 3 zero bytes | u32 length | u64 offset, big-endian | payload
 *
 * The payload is output, or for what is not output a small JSON object. No I/O.
 */
#ifndef CAY_WIRE_FRAMES_H
#define CAY_WIRE_FRAMES_H

#include "base/buf.h"

#define FRAMES_TYPE "application/vnd.cay.frames"
#define FRAMES_HEADER 16

enum frames_kind {
    FRAMES_STDOUT = 1,
    FRAMES_STDERR,
    FRAMES_EXIT,
    FRAMES_END,
    FRAMES_ERROR,
    FRAMES_GAP,
};

void frames_put(struct cay_buf *out, enum frames_kind kind, uint64_t offset, const char *payload,
                size_t size);

#endif
