/* SPDX-License-Identifier: Apache-2.0 */
/* What a keeper reads from init and from callers: any bytes, cut into messages. */
#include "fuzz.h"
#include "wire/chan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chan chan;
    struct cay_error err;
    chan_init(&chan, -1);
    if (buf_add(&chan.in, data, size) == 0) {
        struct msg msg = {0};
        for (int popped; (popped = chan_pop(&chan, &msg, &err)) != 0;) {
            if (popped < 0) {
                FUZZ_REQUIRE(err.code != CAY_OK && err.text[0]);
                break;
            }
            FUZZ_REQUIRE(chan.eaten >= FRAME_HEADER && chan.eaten <= chan.in.size);
            msg_done(&msg);
        }
    }
    chan_done(&chan);
    return 0;
}
