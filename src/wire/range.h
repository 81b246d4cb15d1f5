/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Range header of HTTP (RFC 9110, section 14), for content of a known size. One range is
 * served; several, or anything that is not well formed, are as if nothing had been asked: the whole
 * content is always a right answer.
 */
#ifndef CAY_WIRE_RANGE_H
#define CAY_WIRE_RANGE_H

#include <stdint.h>

enum range {
    RANGE_ALL,  /* no range, or none that is understood */
    RANGE_PART, /* from `first` to `last`, both inclusive and inside the content */
    RANGE_NONE, /* nothing of it exists: 416 */
};

/* `header` may be NULL. `first` and `last` are written only with RANGE_PART. */
enum range range_parse(const char *header, uint64_t size, uint64_t *first, uint64_t *last);

#endif
