/* SPDX-License-Identifier: Apache-2.0 */
/* A command as requests describe it. */
#ifndef CAY_DAEMON_EXEC_BODY_H
#define CAY_DAEMON_EXEC_BODY_H

#include "daemon/input.h"
#include "wire/msg.h"

struct exec_body {
    const char *const *argv, *const *env;
    const char *shell, *cwd, *user;
    uint64_t timeout_ms, rows, cols;
    bool has_timeout;
    /* exec */
    const char *input, *input_base64, *encoding;
    bool kill_on_disconnect;
    /* processes */
    bool want_stdin, pty;
};

/* The fields of POST exec, or of POST processes; checked. */
int exec_body(struct request *r, bool background, struct exec_body *out, struct cay_error *err);
/* The request to the keeper; borrows. */
struct msg exec_message(const struct exec_body *body);
/* The exit fields of a MSG_EXIT or MSG_PROC. */
struct cay_exit exec_exit(const struct msg *msg);
/* Quota of running commands of the request's tenant, then the audit log. */
int exec_permit(struct request *r, const struct exec_body *body, bool background,
                struct cay_error *err);

/* A command that goes on in the background counts for its tenant until it ends. */
void exec_count(struct request *r, pid_t pid);

#endif
