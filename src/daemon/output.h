/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAY_DAEMON_OUTPUT_H
#define CAY_DAEMON_OUTPUT_H

#include "daemon/request.h"
#include "wire/msg.h"

struct exec_slot;

/* Starts a command and answers with its output, as it comes: the OP_EXEC is given. Takes the slot.
 */
void output_exec(struct request *r, struct msg *request, struct exec_slot *slot);

#endif
