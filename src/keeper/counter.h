/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay-budget: a child of the keeper that finds out what the sandbox holds (holdings.c) and whether
 * that is too much (budget.c). It has to look into other processes of the host, the sandbox's, and
 * that is what the keeper gives up: a process that is confined by Landlock may not look into one
 * that is less confined. It talks to nobody but the keeper, which asks with a byte; of the sandbox
 * it reads what the kernel says in /proc.
 *
 * Rights: CAP_SYS_PTRACE as root, two descriptors beside /dev/null; from the first question on, so
 * not for what ends within a second, an allow list of system calls with which nothing can be
 * written.
 */
#ifndef CAY_KEEPER_COUNTER_H
#define CAY_KEEPER_COUNTER_H

#include <stdbool.h>
#include <sys/types.h>

struct keeper;

struct counter_answer {
    bool over;     /* and `reason` says of what */
    bool counting; /* ask again soon */
    char reason[160];
};

/* Forks. The keeper's end of the socket, or -1 with errno. `program`: its argv[0], to be renamed.
 */
int counter_start(const struct keeper *k, char *program, pid_t *pid);

#endif
