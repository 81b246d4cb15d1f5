/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target is one function: bytes in, nothing out, never a crash. It is linked with libFuzzer
 * (make fuzz) and with runner.c, which runs its corpus as an ordinary test.
 */
#ifndef CAY_TESTS_FUZZ_FUZZ_H
#define CAY_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Says what does not hold and aborts; not assert(), so that no build leaves it out. */
#define FUZZ_REQUIRE(condition) \
    do {                        \
        if (!(condition))       \
            __builtin_trap();   \
    } while (0)

#endif
