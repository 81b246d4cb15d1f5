/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/frames.h"

#include "base/util.h"

#include <string.h>

void frames_init(struct frames *frames,
                 int (*event)(enum frames_kind kind, uint64_t offset, const char *bytes,
                              size_t size, void *data),
                 void *data)
{
    *frames = (struct frames){.json = CAY_BUF(FRAMES_MAX_JSON), .event = event, .data = data};
}

void frames_done(struct frames *frames)
{
    buf_done(&frames->json);
}

void frames_restart(struct frames *frames)
{
    frames->have = 0;
    frames->left = 0;
    frames->json.size = 0;
}

static uint64_t big_endian(const unsigned char *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | bytes[i];
    return value;
}

static bool is_output(enum frames_kind kind)
{
    return kind == FRAMES_STDOUT || kind == FRAMES_STDERR;
}

static int take_header(struct frames *frames)
{
    unsigned char kind = frames->header[0];
    if (kind < FRAMES_STDOUT || kind > FRAMES_GAP)
        return -1;
    frames->kind = (enum frames_kind)kind;
    frames->left = (uint32_t)big_endian(frames->header + 4, 4);
    frames->offset = big_endian(frames->header + 8, 8);
    frames->json.size = 0;
    if (is_output(frames->kind)) {
        if (frames->left == 0)
            frames->have = 0;
        return 0;
    }
    return frames->left == 0 || frames->left > FRAMES_MAX_JSON ? -1 : 0;
}

/* A part of a payload; the next header follows when nothing is left. */
static int take_payload(struct frames *frames, const char *bytes, size_t size)
{
    int result = 0;
    frames->left -= (uint32_t)size;
    if (is_output(frames->kind)) {
        result = frames->event(frames->kind, frames->offset, bytes, size, frames->data);
        frames->offset += size;
    } else {
        if (buf_add(&frames->json, bytes, size) < 0)
            return -1;
        const char *json = frames->left == 0 ? buf_cstr(&frames->json) : NULL;
        if (json)
            result =
                frames->event(frames->kind, frames->offset, json, frames->json.size, frames->data);
    }
    if (frames->left == 0)
        frames->have = 0;
    return result != 0;
}

int frames_feed(struct frames *frames, const char *bytes, size_t size)
{
    while (size) {
        size_t n;
        if (frames->have < FRAMES_HEADER) {
            n = CAY_MIN(size, FRAMES_HEADER - frames->have);
            memcpy(frames->header + frames->have, bytes, n);
            frames->have += n;
            if (frames->have == FRAMES_HEADER && take_header(frames) < 0)
                return -1;
        } else {
            n = CAY_MIN(size, (size_t)frames->left);
            int result = take_payload(frames, bytes, n);
            if (result != 0)
                return result;
        }
        bytes += n;
        size -= n;
    }
    return 0;
}
