/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frame.h"

#include "base/limits.h"

#include <endian.h>
#include <string.h>

struct header {
    uint32_t size;
    uint16_t type;
    uint8_t fds;
    uint8_t version;
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
    if (h.version != FRAME_VERSION || payload > CAY_MAX_FRAME || h.fds > FRAME_MAX_FDS)
        return -1;
    if (size - sizeof(h) < payload)
        return 0;
    *out = (struct frame){
        .type = le16toh(h.type),
        .fds = h.fds,
        .tag = le32toh(h.tag),
        .size = payload,
        .payload = (const char *)bytes + sizeof(h),
    };
    return (int64_t)sizeof(h) + payload;
}

size_t frame_size(const void *header)
{
    struct header h;
    memcpy(&h, header, sizeof(h));
    return sizeof(h) + le32toh(h.size);
}

size_t frame_begin(struct cay_buf *buf, uint16_t type, uint32_t tag, uint8_t fds)
{
    struct header h = {
        .type = htole16(type), .fds = fds, .version = FRAME_VERSION, .tag = htole32(tag)};
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
