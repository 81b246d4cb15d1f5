/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sandbox takes from the host and no control group counts: the budgets, and the judgement.
 * Figures in, verdict out: no I/O here. holdings.c finds the figures, watch.c asks for them.
 */
#ifndef CAY_KEEPER_BUDGET_H
#define CAY_KEEPER_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum budget_kind {
    BUDGET_FILES,     /* open files */
    BUDGET_TERMINALS, /* pairs of pseudo terminals */
    BUDGET_UDP,       /* bytes in sockets */
    BUDGET_TCP,
    BUDGET_LOCKS,   /* of files */
    BUDGET_NETLINK, /* bytes in sockets */
    BUDGET_FILTERS, /* seccomp filters, which the kernel compiles */
    BUDGET_KINDS,
};

/* By kind. `limit` is 0 for what has none on the host; then `used` is memory of the kernel, in
 * bytes, of which the objects are a part. */
struct budget_host {
    uint64_t used[BUDGET_KINDS], limit[BUDGET_KINDS];
};

/* By kind, as the enum says: bytes where it does, else how many. Locks are counted file by file:
 * `seen` of `all` files so far. */
struct budget_held {
    uint64_t of[BUDGET_KINDS];
    uint64_t seen, all;
};

/* Kernel memory that one sandbox may hold uncounted. `memory`: its limit, 0 for none. */
uint64_t budget_share(uint64_t memory, uint64_t ram);
/* Bits of the kinds that the host is short of, or whose memory has grown since `base`: what this
 * sandbox holds of them is worth counting. */
unsigned budget_short(const struct budget_host *now, const struct budget_host *base,
                      uint64_t share);
/* Is it too much? Then `reason` says what and how much. */
bool budget_over(const struct budget_held *held, const struct budget_host *now, unsigned kinds,
                 uint64_t share, char *reason, size_t size);

#endif
