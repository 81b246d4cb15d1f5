/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of output as its reader sees it: messages of a keeper (MSG_OUTPUT..., then MSG_EXIT,
 * MSG_OK or MSG_ERROR) become events, and bytes that are missing between two of them become an
 * event of their own. No I/O.
 */
#ifndef CAY_WIRE_FOLLOW_H
#define CAY_WIRE_FOLLOW_H

#include "wire/msg.h"

struct follow {
    uint64_t next; /* offset of the byte that comes next; CAY_FROM_KEPT: whichever comes first */
    bool gap;      /* the gap before the last message was told, the message itself was not */
    bool over;
};

/* 1: an event; 0: the stream is at its end without one; -1: it ended with an error. After a gap the
 * same message is to be given again. The event borrows from the message. */
int follow_take(struct follow *follow, const struct msg *msg, struct cay_event *out,
                struct cay_error *err);
/* The exit fields of a message. */
struct cay_exit msg_exit(const struct msg *msg);
/* What a PROC says. */
struct cay_proc_info msg_proc(const struct msg *msg);

#endif
