/* SPDX-License-Identifier: Apache-2.0 */
/* A status record that was damaged: refused, or turned into what cay_info can hold. */
#include "base/limits.h"
#include "fuzz.h"
#include "sandbox/status.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autostatus struct status status = {0};
    char reason[160];
    autostatus struct status foreign = status_foreign((const char *)data, size, true, reason);
    struct cay_info info;
    struct cay_error err;
    FUZZ_REQUIRE(foreign.reason == reason && foreign.state <= CAY_STATE_LOST);
    if (status_decode((const char *)data, size, &status, &err) < 0)
        return 0;
    if (status_to_info(&status, "box", &info, &err) == 0) {
        FUZZ_REQUIRE(strnlen(info.reason, sizeof(info.reason)) < sizeof(info.reason));
        FUZZ_REQUIRE(cay_state_name(info.state));
        cay_info_done(&info);
    }
    return 0;
}
