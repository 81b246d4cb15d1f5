/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts JSON that arrives in pieces into its elements, so that a listing of a million files costs
 * the memory of one entry: bytes in, objects out. What is not an element is kept: of
 * {"entries":[{..},{..}],"error":{..}} that is {"entries":[],"error":{..}}.
 *
 * It only counts brackets and strings; each object that it hands out is still to be parsed. No I/O.
 */
#ifndef CAY_REMOTE_SPLIT_H
#define CAY_REMOTE_SPLIT_H

#include "base/buf.h"

/* The largest element: a line of 4 KiB or a path, all of it escaped; a sandbox with all its labels.
 */
#define SPLIT_MAX_ELEMENT (512u << 10)
/* Everything else: names, a cursor, an error. */
#define SPLIT_MAX_REST (64u << 10)
#define SPLIT_MAX_DEPTH 32

struct split {
    unsigned at; /* elements are objects at this depth: 0 lines, 2 an array in an object */
    unsigned depth;
    uint32_t arrays; /* bit N: what opened depth N is an array */
    bool quoted, escaped, inside;
    bool broken; /* split_feed gave -1 */
    struct cay_buf element, rest;
    /* Non-zero ends it. */
    int (*each)(const char *json, size_t size, void *data);
    void *data;
};

#define SPLIT_LINES 0
#define SPLIT_LIST 2

void split_init(struct split *split, unsigned at,
                int (*each)(const char *json, size_t size, void *data), void *data);
void split_done(struct split *split);
/* 0; 1: `each` wanted no more; -1: this is not what was expected, or larger. */
int split_feed(struct split *split, const char *bytes, size_t size);
/* All that was opened is closed. */
bool split_ended(const struct split *split);

#endif
