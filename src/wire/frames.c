/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frames.h"

void frames_put(struct cay_buf *out, enum frames_kind kind, uint64_t offset, const char *payload,
                size_t size)
{
    unsigned char head[FRAMES_HEADER] = {(unsigned char)kind};
    for (int i = 0; i < 4; i++)
        head[4 + i] = (unsigned char)(size >> (24 - 8 * i));
    for (int i = 0; i < 8; i++)
        head[8 + i] = (unsigned char)(offset >> (56 - 8 * i));
    buf_add(out, head, sizeof(head));
    buf_add(out, payload, size);
}
