/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requests about files may say, in the query or in a body, and how names of files look in
 * JSON. Paths are taken by a worker inside the sandbox and mean what they mean there: nothing is
 * cleaned or resolved here.
 */
#ifndef CAY_DAEMON_FS_ARGS_H
#define CAY_DAEMON_FS_ARGS_H

#include "daemon/request.h"

enum fs_arg {
    ARG_PATH = 1 << 0, /* this one and the next three have to be given where they are taken */
    ARG_FROM = 1 << 1,
    ARG_TO = 1 << 2,
    ARG_PATTERN = 1 << 3,
    ARG_USER = 1 << 4,
    ARG_MODE = 1 << 5,
    ARG_RECURSIVE = 1 << 6,
    ARG_FOLLOW = 1 << 7,
    ARG_DEPTH = 1 << 8,
    ARG_GLOB = 1 << 9,
    ARG_LIMIT = 1 << 10,
    ARG_LITERAL = 1 << 11,
    ARG_IGNORE_CASE = 1 << 12,
};

/* Strings are the request's. */
struct fs_args {
    const char *path, *from, *to, *pattern, *user, *glob;
    uint32_t mode; /* 0: not given */
    uint64_t depth, limit;
    bool recursive, follow, literal, ignore_case;
};

/* Takes those of `which` (bits of enum fs_arg), from the body if the route has one in JSON. */
int fs_args(struct request *r, unsigned which, struct fs_args *out, struct cay_error *err);

/* "name":"..."; if that could not say it all, "name_base64" as well: names are bytes. */
void fs_json_name(struct cay_buf *out, const char *name, const char *bytes);

#endif
