/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's output stream (wire/frames.h), cut as it arrives: bytes in, events out.
 *
 * Output is handed on as it comes, a part of a frame at a time, and so needs no memory; gaps and
 * what ends a stream are small JSON objects, handed over whole. No I/O.
 */
#ifndef CAY_REMOTE_FRAMES_H
#define CAY_REMOTE_FRAMES_H

#include "wire/frames.h"

/* An exit, an error or a gap as JSON. */
#define FRAMES_MAX_JSON (16u << 10)

struct frames {
    unsigned char header[FRAMES_HEADER];
    size_t have; /* bytes of the header */
    enum frames_kind kind;
    uint32_t left; /* bytes of the payload to come */
    uint64_t offset;
    struct cay_buf json;
    /* `bytes` belong to the stream 1 or 2, or are the JSON of what ends it. Non-zero: stop. */
    int (*event)(enum frames_kind kind, uint64_t offset, const char *bytes, size_t size,
                 void *data);
    void *data;
};

void frames_init(struct frames *frames,
                 int (*event)(enum frames_kind kind, uint64_t offset, const char *bytes,
                              size_t size, void *data),
                 void *data);
void frames_done(struct frames *frames);
/* Forgets a frame that was cut by a lost connection. */
void frames_restart(struct frames *frames);
/* 0; 1: `event` wanted no more; -1: these are no frames. */
int frames_feed(struct frames *frames, const char *bytes, size_t size);

#endif
