/* SPDX-License-Identifier: Apache-2.0 */
/* What a WebSocket client sends, whole and in small pieces: the events must be the same. The first
 * byte says whether it is a client. What follows is also tried as base64: what can be decoded is
 * written the same way again. */
#include "base/base64.h"
#include "fuzz.h"
#include "wire/ws.h"

#include <string.h>

struct seen {
    unsigned events[WS_CLOSE + 1];
    uint64_t bytes;
    uint32_t sum; /* of all that was handed out, in its order */
    unsigned close_code;
    bool failed;
};

static struct seen feed(const char *data, size_t size, size_t step, enum ws_peer peer)
{
    struct seen seen = {0};
    struct ws_in in;
    struct cay_error err;
    ws_in_init(&in, peer);
    for (size_t done = 0; done < size && !seen.failed; done += step) {
        const char *at = data + done, *end = data + (size - done < step ? size : done + step);
        int event;
        while ((event = ws_in_next(&in, &at, end, &err)) > 0) {
            FUZZ_REQUIRE(event <= WS_CLOSE && in.size <= WS_MAX_MESSAGE && at <= end);
            FUZZ_REQUIRE(event == WS_TEXT || event == WS_BINARY || in.size <= WS_MAX_CONTROL);
            seen.events[event]++;
            seen.bytes += in.size;
            for (size_t i = 0; i < in.size; i++)
                seen.sum = seen.sum * 31 + (unsigned char)in.data[i] + (uint32_t)event;
        }
        FUZZ_REQUIRE(event < 0 || at == end);
        seen.failed = event < 0;
    }
    seen.close_code = in.close_code;
    FUZZ_REQUIRE(!seen.failed || seen.close_code >= 1000);
    ws_in_done(&in);
    return seen;
}

static void try_base64(const char *text, size_t size)
{
    autobuf struct cay_buf bytes = CAY_BUF(1 << 20), again = CAY_BUF(1 << 20);
    if (base64_decode(text, size, &bytes, NULL) < 0) {
        FUZZ_REQUIRE(bytes.size == 0);
        return;
    }
    FUZZ_REQUIRE(base64_encode(&again, bytes.data, bytes.size) == 0 && again.size == size);
    FUZZ_REQUIRE(size == 0 || memcmp(again.data, text, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    enum ws_peer peer = data[0] & 1 ? WS_PEER_SERVER : WS_PEER_CLIENT;
    const char *rest = (const char *)data + 1;
    size--;
    struct seen whole = feed(rest, size, size ? size : 1, peer);
    struct seen pieces = feed(rest, size, 3, peer);
    FUZZ_REQUIRE(memcmp(whole.events, pieces.events, sizeof(whole.events)) == 0);
    FUZZ_REQUIRE(whole.bytes == pieces.bytes && whole.sum == pieces.sum);
    FUZZ_REQUIRE(whole.failed == pieces.failed && whole.close_code == pieces.close_code);
    try_base64(rest, size);
    return 0;
}
