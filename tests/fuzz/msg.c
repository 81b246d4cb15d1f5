/* SPDX-License-Identifier: Apache-2.0 */
/* One message: what decodes must encode again to bytes that decode to the same. */
#include "base/limits.h"
#include "fuzz.h"
#include "wire/msg.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autobuf struct cay_buf first = CAY_BUF(2 * CAY_MAX_FRAME), second = CAY_BUF(2 * CAY_MAX_FRAME);
    struct frame frame = {
        .type = OP_EXEC, .tag = 1, .size = (uint32_t)size, .payload = (const char *)data};
    struct cay_error err;
    automsg struct msg msg = {0}, again = {0};
    if (size > CAY_MAX_FRAME || msg_decode(&frame, &msg, &err) < 0)
        return 0;
    FUZZ_REQUIRE(msg_encode(&first, &msg, 0) == 0);
    FUZZ_REQUIRE(frame_parse(first.data, first.size, &frame) == (int64_t)first.size);
    FUZZ_REQUIRE(msg_decode(&frame, &again, &err) == 0);
    FUZZ_REQUIRE(msg_encode(&second, &again, 0) == 0);
    FUZZ_REQUIRE(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    return 0;
}
