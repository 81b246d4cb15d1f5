/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two kinds of budget. Some objects have a limit on the host that all of it shares: a sixteenth of
 * that is one sandbox's, so that ten of them leave room, and until a quarter is used up nobody
 * counts. Others cost memory of the kernel that no limit counts: all of those together may be a
 * part of the sandbox's own memory.
 */
#include "keeper/budget.h"

#include "base/util.h"

#include <stdio.h>

#define SHORT_PART 4
#define HOST_PART 16
#define MEMORY_PART 8
#define MEMORY_MIN (64ull << 20)
#define SAMPLE_PART 8
#define SAMPLE_MIN 64

static const struct {
    const char *name;
    const char *limit; /* what limits all of the host; NULL: nothing does */
    uint64_t bytes;    /* of one; 0: a plain number */
} budgets[] = {
    [BUDGET_FILES] = {"open files", "fs.file-max", 0},
    [BUDGET_TERMINALS] = {"terminals", "kernel.pty.max", 0},
    [BUDGET_UDP] = {"UDP buffers", "net.ipv4.udp_mem", 1},
    [BUDGET_TCP] = {"TCP buffers", "net.ipv4.tcp_mem", 1},
    /* struct file_lock; and for the largest filter there is, its code. */
    [BUDGET_LOCKS] = {"file locks", NULL, 192},
    [BUDGET_NETLINK] = {"netlink buffers", NULL, 1},
    [BUDGET_FILTERS] = {"seccomp filters", NULL, 72u << 10},
};

uint64_t budget_share(uint64_t memory, uint64_t ram)
{
    uint64_t most = memory && (!ram || memory < ram) ? memory : ram;
    return CAY_MAX(most / MEMORY_PART, MEMORY_MIN);
}

unsigned budget_short(const struct budget_host *now, const struct budget_host *base, uint64_t share)
{
    unsigned kinds = 0;
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++) {
        uint64_t used = now->used[kind], limit = now->limit[kind];
        bool low = budgets[kind].limit ? limit && used >= limit / SHORT_PART
                                       : used >= base->used[kind] + share / 2;
        kinds |= (unsigned)low << kind;
    }
    return kinds;
}

static bool over_limit(unsigned kind, uint64_t held, uint64_t limit, char *reason, size_t size)
{
    bool bytes = budgets[kind].bytes;
    if (!limit || held <= limit / HOST_PART)
        return false;
    snprintf(reason, size, "%s: %llu%s of the host's %llu%s (%s)", budgets[kind].name,
             (unsigned long long)(bytes ? held >> 20 : held), bytes ? " MiB" : "",
             (unsigned long long)(bytes ? limit >> 20 : limit), bytes ? " MiB" : "",
             budgets[kind].limit);
    return true;
}

/* Locks are made faster than they are counted. Once a good part of the share is found, which is far
 * from what anybody needs, the files that were not looked at yet are taken to be as these are. */
static uint64_t bytes_of(unsigned kind, const struct budget_held *held, uint64_t share)
{
    uint64_t bytes = held->of[kind] * budgets[kind].bytes;
    if (kind != BUDGET_LOCKS || held->seen < SAMPLE_MIN || held->seen >= held->all ||
        bytes < share / SAMPLE_PART)
        return bytes;
    return bytes / held->seen * held->all;
}

bool budget_over(const struct budget_held *held, const struct budget_host *now, unsigned kinds,
                 uint64_t share, char *reason, size_t size)
{
    uint64_t memory = 0, most = 0;
    unsigned largest = 0;
    for (unsigned kind = 0; kind < BUDGET_KINDS; kind++) {
        if (!(kinds & 1u << kind))
            continue;
        if (budgets[kind].limit) {
            if (over_limit(kind, held->of[kind], now->limit[kind], reason, size))
                return true;
            continue;
        }
        uint64_t bytes = bytes_of(kind, held, share);
        memory += bytes;
        if (bytes > most) {
            most = bytes;
            largest = kind;
        }
    }
    if (memory <= share)
        return false;
    snprintf(reason, size, "%s: %llu MiB of kernel memory that no limit counts",
             budgets[largest].name, (unsigned long long)(most >> 20));
    return true;
}
