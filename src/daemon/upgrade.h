/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An upgrade in place: the daemon executes the program that is at its own path by then. That one is
 * asked first whether it can start (`--check`, with our own arguments): a broken one would end the
 * service.
 */
#ifndef CAY_DAEMON_UPGRADE_H
#define CAY_DAEMON_UPGRADE_H

#include "daemon/daemon.h"

struct upgrade {
    struct daemon *d;
    char **argv; /* borrowed: ours, as they were given */
    char program[CAY_MAX_PATH];
    void (*ready)(struct daemon *d);
    /* while the program is asked; else pid is 0: */
    pid_t pid;
    int pidfd;
    int words; /* what it says to its standard error */
    struct watch watch;
    struct timer patience;
    bool late;
};

void upgrade_init(struct upgrade *upgrade, struct daemon *d, char **argv,
                  void (*ready)(struct daemon *d));
/* Asks the program; `ready` is called when it said yes. Else the log says why, and nothing happens.
 */
void upgrade_try(struct upgrade *upgrade);
void upgrade_done(struct upgrade *upgrade);
/* Gives it what listens. Comes back only if it cannot be executed, with errno. */
void upgrade_go(const struct upgrade *upgrade, const int *fds, size_t n, const char *socket_path);

#endif
