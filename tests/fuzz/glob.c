/* SPDX-License-Identifier: Apache-2.0 */
/* A pattern and a name, split at the first newline. */
#include "fuzz.h"
#include "wire/glob.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4096)
        return 0;
    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    char *newline = strchr(text, '\n');
    if (newline) {
        *newline = 0;
        glob_match(text, newline + 1);
        glob_match_path(text, newline + 1);
        FUZZ_REQUIRE(glob_match("**", newline + 1));
    }
    free(text);
    return 0;
}
