/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util.h"
#include "jail/probe.h"
#include "sandbox/sandbox.h"

int cay_doctor(struct cay *cay, int (*each)(const struct cay_check *check, void *data), void *data,
               struct cay_error *err)
{
    struct probe_result results[PROBE_MAX];
    size_t n = probe_all(cay->state_path, results, CAY_COUNT(results));
    (void)err;
    for (size_t i = 0; i < n; i++) {
        const struct cay_check check = {
            .name = results[i].name,
            .level = results[i].level,
            .finding = results[i].finding,
            .advice = results[i].advice,
        };
        if (each(&check, data) != 0)
            break;
    }
    return 0;
}
