/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what a sandbox holds, from what an ordinary user may read of his own processes. A count
 * can take long: it is made in slices, and goes on where the last one ended.
 */
#ifndef CAY_KEEPER_HOLDINGS_H
#define CAY_KEEPER_HOLDINGS_H

#include "jail/cgroup.h"
#include "keeper/budget.h"

/* Network namespaces that are looked into in one count. */
#define HOLDINGS_NETS 64
/* Terminals are told apart by a hash: enough bits for far more of them than one sandbox may have.
 */
#define HOLDINGS_TERMINALS 8192

/* One count that is being made. Zeroed is a new one. */
struct holdings {
    struct budget_held held;
    bool all_known; /* held.all */
    pid_t thread;   /* all before it are counted; of it those below `fd` */
    int fd;
    size_t n_nets;
    uint64_t nets[HOLDINGS_NETS];
    uint8_t terminals[HOLDINGS_TERMINALS / 8];
};

struct holdings_of {
    const struct cgroup *cgroup;
    pid_t init;
    unsigned kinds;
    uint64_t fds;    /* that one process may have */
    int own_filters; /* that every process has from its start */
};

/* The figures of the host that go with the kinds; what cannot be read is 0. */
void holdings_limits(struct budget_host *out); /* those that stay; the others come with host */
void holdings_host(struct budget_host *out);
/* Number of filters of a process. */
int holdings_filters(pid_t pid);
/* What takes microseconds for a thread: open files, sockets, filters. And what is slow, because it
 * looks at every open file: locks, terminals, files that are on their way through a socket. Both
 * count for `time_us`, once they have found the threads; true: that was the last. */
bool holdings_quick(struct holdings *h, const struct holdings_of *of, uint64_t time_us);
bool holdings_deep(struct holdings *h, const struct holdings_of *of, uint64_t time_us);

#endif
