/* SPDX-License-Identifier: Apache-2.0 */
/* A stored spec that was damaged, or of another version: refused, or the same after it was shown.
 */
#include "base/limits.h"
#include "fuzz.h"
#include "sandbox/spec.h"

static bool read_any(const uint8_t *data, size_t size)
{
    autospec struct spec spec = {0};
    autobuf struct cay_buf json = CAY_BUF(8 * CAY_MAX_RECORD);
    struct cay_error err;
    if (spec_read((const char *)data, size, &spec, &err) < 0)
        return false;
    spec_json(&spec.spec, &json);
    FUZZ_REQUIRE(!spec_difference(&spec, &spec));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autospec struct spec spec = {0}, again = {0};
    autobuf struct cay_buf json = CAY_BUF(8 * CAY_MAX_RECORD);
    struct cay_error err;
    bool readable = read_any(data, size);
    if (spec_load((const char *)data, size, &spec, &err) < 0)
        return 0;
    FUZZ_REQUIRE(readable && !spec.unknown);
    spec_json(&spec.spec, &json);
    FUZZ_REQUIRE(spec_load(spec.bytes, spec.size, &again, &err) == 0);
    FUZZ_REQUIRE(!spec_difference(&spec, &again));
    return 0;
}
