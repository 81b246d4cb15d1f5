/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking a directory tree: depth first, sorted by name within a directory, links never followed,
 * by descriptors (no path is resolved twice), with bounded depth and memory. Used by list, find,
 * grep, tar and remove.
 */
#ifndef CAY_INIT_WALK_H
#define CAY_INIT_WALK_H

#include "base/buf.h"

#include <sys/stat.h>

enum walk_flag {
    WALK_STRICT = 1, /* what cannot be read is an error; else it is left out, and noted */
    WALK_LEAVE = 2,  /* also stop at directories after their content */
};

struct walk_level;

struct walk {
    struct walk_level *levels; /* private */
    size_t depth;
    struct cay_buf path;
    unsigned flags;
    bool enter;
    struct cay_error missed; /* the first that was left out */
    uint64_t n_missed;
};

struct walk_item {
    const char *path; /* relative to the top; borrowed until the next call, as is `name` */
    const char *name; /* its last part */
    int dir;          /* the directory it is in, borrowed */
    struct stat st;   /* of itself, not of what a link points to; not set when leaving */
    size_t depth;     /* 0: directly below the top */
    bool leaving;
};

/* Takes over the descriptor of the top directory, also on failure. */
int walk_init(struct walk *walk, int top, unsigned flags, struct cay_error *err);
void walk_done(struct walk *walk);
/* 1: an item; 0: the end; -1. */
int walk_next(struct walk *walk, struct walk_item *out, struct cay_error *err);
/* Notes that something could not be read, for walk_verdict. */
void walk_miss(struct walk *walk, const struct cay_error *err);
/* After the end: -1 with the first that was left out, if any was. */
int walk_verdict(const struct walk *walk, struct cay_error *err);
/* Do not go into the directory that was just handed out. */
void walk_skip(struct walk *walk);
#define autowalk __attribute__((cleanup(walk_done)))

#endif
