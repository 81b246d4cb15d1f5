/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One multi-call program with every attack that needs C: `probe NAME [ARG...]`.
 *
 * Each attack prints one line and exits
 *   0  the attack succeeded: there is no wall here
 *   1  it was refused (the line names the errno or the wall)
 *   2  it could not be tried, which the suite counts as a failure
 *
 * The same binary runs inside the sandbox (must be refused) and where the wall is absent (must
 * succeed: the positive control). Every attack is bounded in time and amount. Linked statically, so
 * that it runs in any root filesystem.
 */
#ifndef PROBE_H
#define PROBE_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct attack {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the first argument after NAME */
    int min_args;
};

/* One table for each source file, joined in main.c; ends with a NULL name. */
extern const struct attack process_attacks[];
extern const struct attack syscall_attacks[];
extern const struct attack socket_attacks[];
extern const struct attack namespace_attacks[];
extern const struct attack hog_attacks[];
extern const struct attack file_attacks[];
extern const struct attack hoard_attacks[];

enum { WON = 0, REFUSED = 1, UNTRIED = 2 };

int won(const char *format, ...) __attribute__((format(printf, 1, 2)));
int refused(const char *what); /* with errno */
int refused_by(const char *format, ...) __attribute__((format(printf, 1, 2)));
int untried(const char *what); /* with errno */

/* A call is refused if it failed at all. */
int judge(long result, const char *what);
/*
 * For calls whose arguments are wrong on purpose, so that they do no harm where they are permitted:
 * only EPERM and EACCES say that a wall stood in front of the kernel's own check of the arguments.
 */
int judge_reached(long result, const char *what);

/* Runs `body` in a child and passes its verdict on; a child killed by SIGSYS was refused by the
 * filter. */
int in_child(int (*body)(void *data), void *data);
/* A child of our own that sleeps for at most 30 seconds: the target where the wall is absent. */
pid_t sleeping_child(void);
void end_child(pid_t pid);
/* "child" makes a sleeping child (*own is set), anything else is a number. */
pid_t target(const char *text, int *own);
void sleep_ms(long ms);
/* Are we in the machine's first pid namespace? What touches every process it sees must not run
 * there. */
int on_the_host(void);

#endif
