/* SPDX-License-Identifier: Apache-2.0 */
/* An archive that a sandbox or a caller sends, whole and byte by byte: the events must
 * be the same. */
#include "base/limits.h"
#include "fuzz.h"
#include "wire/tar.h"

#include <string.h>

struct seen {
    unsigned entries, ends;
    uint64_t bytes;
    bool failed, complete;
};

static struct seen feed(const char *data, size_t size, size_t step)
{
    struct seen seen = {0};
    struct tar_in in;
    struct cay_error err;
    tar_in_init(&in);
    for (size_t done = 0; done < size && !seen.failed; done += step) {
        const char *at = data + done, *end = data + (size - done < step ? size : done + step);
        for (int event; (event = tar_in_next(&in, &at, end, &err)) != TAR_MORE;) {
            if (event < 0) {
                seen.failed = true;
                break;
            }
            if (event == TAR_ENTRY) {
                seen.entries++;
                FUZZ_REQUIRE(strlen(in.entry.path) < CAY_MAX_PATH &&
                             strlen(in.entry.link) < CAY_MAX_PATH);
            }
            if (event == TAR_DATA) {
                FUZZ_REQUIRE(in.data_size && in.data + in.data_size <= end);
                seen.bytes += in.data_size;
            }
            seen.ends += event == TAR_ENTRY_END;
            if (event == TAR_END)
                break;
        }
    }
    seen.complete = tar_in_complete(&in);
    tar_in_done(&in);
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = feed((const char *)data, size, size ? size : 1);
    if (size <= 8192) {
        struct seen pieces = feed((const char *)data, size, 7);
        FUZZ_REQUIRE(whole.entries == pieces.entries && whole.ends == pieces.ends);
        FUZZ_REQUIRE(whole.bytes == pieces.bytes && whole.failed == pieces.failed);
        FUZZ_REQUIRE(whole.complete == pieces.complete);
    }
    return 0;
}
