/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frame.h"

#include "base/limits.h"
#include "wire/version.h"

#include <endian.h>
#include <string.h>

struct header {
    uint32_t size;
    uint8_t type, minor;
    uint8_t fds, major;
    uint32_t tag;
};
_Static_assert(sizeof(struct header) == FRAME_HEADER, "the header has no padding");

int64_t frame_parse(const void *bytes, size_t size, struct frame *out)
{
    struct header h;
    if (size < sizeof(h))
        return 0;
    memcpy(&h, bytes, sizeof(h));
    uint32_t payload = le32toh(h.size);
    if (h.major == 0 || payload > CAY_MAX_FRAME || h.fds > FRAME_MAX_FDS)
        return -1;
    *out = (struct frame){
        .type = h.type,
        .fds = h.fds,
        .major = h.major,
        .minor = h.minor,
        .tag = le32toh(h.tag),
        .size = payload,
        .payload = (const char *)bytes + sizeof(h),
    };
    return size - sizeof(h) < payload ? 0 : (int64_t)sizeof(h) + payload;
}

size_t frame_size(const void *header)
{
    struct header h;
    memcpy(&h, header, sizeof(h));
    return sizeof(h) + le32toh(h.size);
}

size_t frame_begin(struct cay_buf *buf, uint8_t type, uint32_t tag, uint8_t fds)
{
    struct header h = {
        .type = type, .minor = WIRE_MINOR, .fds = fds, .major = WIRE_MAJOR, .tag = htole32(tag)};
    size_t position = buf->size;
    buf_add(buf, &h, sizeof(h));
    return position;
}

int frame_end(struct cay_buf *buf, size_t position)
{
    if (buf->failed)
        return -1;
    size_t payload = buf->size - position - FRAME_HEADER;
    if (payload > CAY_MAX_FRAME) {
        buf->failed = true;
        return -1;
    }
    uint32_t size = htole32((uint32_t)payload);
    memcpy(buf->data + position, &size, sizeof(size));
    return 0;
}
