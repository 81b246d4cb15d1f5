/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay.h, a second time: every call as requests to a cayd on this or another host
 * (api/openapi.yaml). A program that is linked with this instead of src/sandbox does the same
 * things there, so cay and cay-remote are one source with two libraries.
 *
 *   - Where the daemon is and who asks comes from the environment: see open.c.
 *   - Errors are the daemon's own, with code, text and errno.
 *   - What has no counterpart over HTTP: an ephemeral sandbox ends with its client only as long as
 *     that lives to say so. Its command gets a lease and it gets an idle time, so that what a
 * killed client leaves ends within half a minute.
 */
#ifndef CAY_REMOTE_REMOTE_H
#define CAY_REMOTE_REMOTE_H

#include "base/limits.h"
#include "remote/http.h"

/* A process number in digits. */
#define REMOTE_PID 16

struct cay {
    struct http *http;
};

struct cay_sandbox {
    struct cay *cay;
    char id[CAY_MAX_ID];
    bool ephemeral; /* ours to remove */
};

int sandbox_make(struct cay *cay, const char *id, struct cay_sandbox **out, struct cay_error *err);
/* `out` is `pid` in digits. */
const char *pid_text(pid_t pid, char out[static REMOTE_PID]);

#endif
