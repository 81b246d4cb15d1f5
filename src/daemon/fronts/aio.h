/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the AIO front. Its clients (the package agent-sandbox, DeerFlow) see one sandbox at
 * /aio/KEY/v1; docs/contracts/aio.md says what of that API is here.
 *
 *   aio.c          routes, keys, envelopes and errors
 *   aio_context.c  GET sandbox
 *   aio_run.c      shell/exec, bash/exec, sessions/create
 *   aio_script.c   the shell around a command, which makes a session of several
 *   aio_session.c  what has become of a session and its last command
 *   aio_list.c     the sessions
 *   aio_read.c     file/read
 *   aio_look.c     file/find, list, grep, search
 *   aio_write.c    file/write, replace
 */
#ifndef CAY_DAEMON_FRONTS_AIO_H
#define CAY_DAEMON_FRONTS_AIO_H

#include "daemon/input.h"
#include "daemon/request.h"

#define HANDLER(name) void name(struct request *r)
HANDLER(aio_context);
HANDLER(aio_shell_exec);
HANDLER(aio_bash_exec);
HANDLER(aio_shell_create);
HANDLER(aio_bash_create);
HANDLER(aio_shell_list);
HANDLER(aio_bash_list);
HANDLER(aio_shell_delete);
HANDLER(aio_bash_close);
HANDLER(aio_shell_view);
HANDLER(aio_shell_wait);
HANDLER(aio_shell_kill);
HANDLER(aio_bash_output);
HANDLER(aio_bash_kill);
HANDLER(aio_file_read);
HANDLER(aio_file_find);
HANDLER(aio_file_list);
HANDLER(aio_file_grep);
HANDLER(aio_file_search);
HANDLER(aio_file_write);
HANDLER(aio_file_replace);
#undef HANDLER

/* ---- bodies ---------------------------------------------------------------------------------- */

/* As input_json, but members that the table does not have are ignored: clients of other versions
 * send more. No query. Errors have been answered when it is -1. */
int aio_input(struct request *r, const struct opt *table, size_t n, void *object);
/* Answers 422: this member of the body is at fault. Always -1. */
int aio_refuse(struct request *r, const char *field, const char *why);
/* True if a path was given and is absolute; otherwise that has been answered. */
bool aio_has_path(struct request *r, const char *field, const char *path);

/* ---- answers --------------------------------------------------------------------------------- */

/* {"success":true,"message":...,"data":{ */
void aio_begin(struct cay_buf *out, const char *message);
/* },"hint":null} and off it goes. */
void aio_reply(struct request *r, struct cay_buf *out);
/* The end of an envelope whose data came first: }, then success, message and hint. */
void aio_end(struct cay_buf *out, const char *message);
/* How errors of this front look; the request's `explain`. */
void aio_explain(struct request *r, const struct cay_error *err);
/* An error of something that was done to a file: 200, and success is false. What is no fault of the
 * file's (the sandbox has ended, say) is an error as any other. */
void aio_file_error(struct request *r, const char *operation, const char *path,
                    const struct cay_error *err);

/* ---- sessions -------------------------------------------------------------------------------- */

/*
 * A session is a directory inside the sandbox, /tmp/.cay/shell/ID or /tmp/.cay/bash/ID, made and
 * used by the shells that run its commands (aio_script.h). Nothing of it is kept in this process.
 */
#define AIO_SESSION 65 /* an id, with its NUL */
#define AIO_SESSIONS "/tmp/.cay"
bool aio_session_ok(const char *id);
/* /tmp/.cay/FAMILY/ID; lives as long as the request. NULL: no memory. */
const char *aio_session_path(struct request *r, const char *family, const char *id);
/* 404, in the words that clients look for. */
void aio_no_session(struct request *r);
/* Members of an object: when it was made and used, and that it is there. */
void aio_session_times(struct cay_buf *out, uint64_t made_ms, uint64_t used_ms);

#endif
