/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/follow.h"

#include <stdio.h>

struct cay_exit msg_exit(const struct msg *msg)
{
    const char *why = msg->type == MSG_PROC ? msg->name : msg->text;
    struct cay_exit out = {
        .pid = (pid_t)msg->pid,
        .exit_code = (int)msg->exit_code,
        .signal = (int)msg->signal,
        .timed_out = msg->flags & MSG_F_TIMED_OUT,
        .oom = msg->flags & MSG_F_OOM,
        .truncated = msg->flags & MSG_F_TRUNCATED,
        .duration_us = msg->duration_us,
        .cpu_us = msg->cpu_us,
        .peak_memory = msg->peak_memory,
    };
    snprintf(out.reason, sizeof(out.reason), "%s", why ? why : "");
    return out;
}

struct cay_proc_info msg_proc(const struct msg *msg)
{
    struct cay_proc_info out = {
        .pid = (pid_t)msg->pid,
        .running = msg->flags & MSG_F_RUNNING,
        .pty = msg->flags & MSG_F_PTY,
        .exit = msg_exit(msg),
        .started_ms = msg->started_ms,
        .output_start = msg->offset,
        .output_end = msg->end,
    };
    snprintf(out.command, sizeof(out.command), "%s", msg->text ? msg->text : "");
    return out;
}

static bool is_gap(const struct follow *follow, const struct msg *msg)
{
    bool placed = msg->type == MSG_OUTPUT || msg->type == MSG_EXIT || msg->type == MSG_OK;
    return placed && follow->next != CAY_FROM_KEPT && msg->offset > follow->next;
}

int follow_take(struct follow *follow, const struct msg *msg, struct cay_event *out,
                struct cay_error *err)
{
    follow->gap = is_gap(follow, msg);
    if (follow->gap) {
        *out = (struct cay_event){.kind = CAY_EVENT_GAP,
                                  .offset = follow->next,
                                  .size = msg->offset - follow->next,
                                  .why = (enum cay_code)msg->code};
        follow->next = msg->offset;
        return 1;
    }
    follow->over = msg->type != MSG_OUTPUT;
    switch (msg->type) {
    case MSG_OUTPUT:
        *out = (struct cay_event){
            .kind = CAY_EVENT_OUTPUT,
            .stream = (int)msg->stream,
            .offset = msg->offset,
            .data = msg->data.data,
            .size = msg->data.size,
            .why = follow->next == CAY_FROM_KEPT ? (enum cay_code)msg->code : CAY_OK,
        };
        follow->next = msg->offset + msg->data.size;
        return 1;
    case MSG_EXIT:
        *out = (struct cay_event){
            .kind = CAY_EVENT_EXIT,
            .offset = msg->offset,
            .why = follow->next == CAY_FROM_KEPT ? (enum cay_code)msg->code : CAY_OK,
        };
        out->exit = msg_exit(msg);
        return 1;
    case MSG_OK:
        return 0;
    default:
        return msg_to_error(msg, err);
    }
}
