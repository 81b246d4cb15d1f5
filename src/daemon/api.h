/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of the native API that are not about files. What each takes and answers is said in
 * api/openapi.yaml.
 */
#ifndef CAY_DAEMON_API_H
#define CAY_DAEMON_API_H

#include "daemon/input.h"
#include "daemon/request.h"

#define HANDLER(name) void name(struct request *r)
/* api_create.c, api_sandbox.c */
HANDLER(sandbox_create);
HANDLER(sandbox_list);
HANDLER(sandbox_get);
HANDLER(sandbox_get_spec);
HANDLER(sandbox_patch);
HANDLER(sandbox_delete);
HANDLER(sandbox_pause);
HANDLER(sandbox_resume);
HANDLER(sandbox_stop);
HANDLER(sandbox_kill);
HANDLER(sandbox_stats);
/* api_exec.c */
HANDLER(exec_run);
/* api_proc.c */
HANDLER(proc_start);
HANDLER(proc_list);
HANDLER(proc_get);
HANDLER(proc_kill);
HANDLER(proc_signal);
HANDLER(proc_stdin);
HANDLER(proc_resize);
HANDLER(proc_wait);
/* api_output.c */
HANDLER(output_of);
HANDLER(output_logs);
/* terminal.c */
HANDLER(terminal_attach);
/* api_misc.c, api_events.c, metrics.c */
HANDLER(events_get);
HANDLER(audit_get);
HANDLER(capabilities_get);
HANDLER(version_get);
HANDLER(health_get);
HANDLER(ready_get);
HANDLER(metrics_get);
#undef HANDLER

/* The whole object, for this client. */
void api_sandbox_json(struct request *r, struct cay_buf *out, const struct cay_info *info);
/* Whether a create of this id has begun and is not over. */
bool create_at_work(const struct daemon *d, const char *id);
/* Answers with the sandbox r->id as it is now. */
void api_reply_sandbox(struct request *r, unsigned status);

#endif
