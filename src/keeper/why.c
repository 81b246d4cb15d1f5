/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a process ended that did not end by itself, in words for whoever waits for it: an exit code
 * of 137 does not say whether it was its timeout, its sandbox's end or its own doing.
 */
#include "keeper/keeper.h"

#include <signal.h>

void why_set(struct proc *proc, const char *text)
{
    if (!proc->why && proc->state != PROC_ENDED)
        proc->why = text;
}

/* Of all that run, when their sandbox ends. One that came to its own end meanwhile has exit code 0.
 */
void why_ended(struct proc *proc)
{
    const struct keeper *k = proc->keeper;
    if (proc->signal != SIGKILL)
        proc->why = NULL; /* it was quicker */
    if (proc->timed_out)
        proc->why = WHY_TIMEOUT;
    else if (proc->oom)
        proc->why = proc->oom_text[0]           ? proc->oom_text
                    : k->state == CAY_STATE_OOM ? k->reason
                                                : WHY_OOM;
    else if (!proc->why && k->phase != PHASE_UP && proc->exit_code != 0)
        proc->why = k->why ? k->why : k->reason;
}
