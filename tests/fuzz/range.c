/* SPDX-License-Identifier: Apache-2.0 */
/* A Range header, against contents of several sizes. */
#include "fuzz.h"
#include "wire/range.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t sizes[] = {0, 1, 10, 65536, UINT64_MAX};
    if (size > 4096)
        return 0;
    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t first, last;
        if (range_parse(text, sizes[i], &first, &last) == RANGE_PART)
            FUZZ_REQUIRE(first <= last && last < sizes[i]);
    }
    free(text);
    return 0;
}
