/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames: the one framing between caller and keeper, keeper and init, caller and file worker. No
 * I/O here: bytes in, frames out.
 *
 *   u32 size of the payload | u8 type | u8 minor version of the sender
 *   | u8 descriptors that travel with it | u8 major version of the sender | u32 tag
 *
 * all little-endian, in every version (version.h). A peer that sends a size beyond CAY_MAX_FRAME is
 * broken or hostile: the connection is dropped. The tag is the requester's and comes back with
 * every answer.
 */
#ifndef CAY_WIRE_FRAME_H
#define CAY_WIRE_FRAME_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 12
#define FRAME_MAX_FDS 8

struct frame {
    uint8_t type;
    uint8_t fds;
    uint8_t major, minor; /* the sender's version */
    uint32_t tag;
    uint32_t size;
    const char *payload; /* borrowed from the input */
};

/* Total size of the first frame in `bytes` once it is complete; 0: more bytes are needed, but `out`
 * is filled as soon as the header is there; -1: not a frame. */
int64_t frame_parse(const void *bytes, size_t size, struct frame *out);

/* Total size of the frame that starts with this header (FRAME_HEADER bytes); not checked. */
size_t frame_size(const void *header);

/* Starts a frame at the end of `buf` and returns its position for frame_end, which fills in the
 * size. */
size_t frame_begin(struct cay_buf *buf, uint8_t type, uint32_t tag, uint8_t fds);
int frame_end(struct cay_buf *buf, size_t position);

#endif
