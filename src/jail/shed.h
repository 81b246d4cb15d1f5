/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving rights up: the mechanics, for whoever decides what and when (confine.c for what runs
 * inside, keeper/rights.c for the keeper, daemon/drop.c for the daemon). Nothing here can be
 * undone.
 */
#ifndef CAY_JAIL_SHED_H
#define CAY_JAIL_SHED_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHED_CAP(cap) (1ULL << (cap))

/* All: 0, or -1 with errno. */

/* Permitted, effective and ambient capabilities: those of `keep` that are there. */
int shed_caps(uint64_t keep);
int shed_bounding(uint64_t keep);
/* From now on being uid 0 gives a program no capabilities when it is executed. */
int shed_root_magic(void);
int shed_new_privs(void);
/* A seccomp program; it has to be allowed to come with no_new_privs or CAP_SYS_ADMIN. */
int shed_calls(const struct sock_filter *program, size_t n);

/* ---- Landlock -------------------------------------------------------------------------------- */

/* Rights over what is below a directory. Each is several of Landlock's. */
enum shed_right {
    SHED_READ = 1 << 0,        /* files, and lists of directories */
    SHED_WRITE = 1 << 1,       /* files that are there */
    SHED_MAKE = 1 << 2,        /* files and directories; to rename within a directory as well */
    SHED_REMOVE_FILE = 1 << 3, /* and links and sockets */
    SHED_REMOVE_DIR = 1 << 4,
};

struct shed_path {
    int dir; /* -1: none, skipped */
    unsigned rights;
};

/* Landlock's version; 0: there is none here. */
int shed_landlock(void);
/* The first version that can confine signals. */
#define SHED_SIGNALS_ABI 6

/* From now on this process, and what it starts, can signal only what it has started since.
 * ENOTSUP: the kernel cannot. */
int shed_signals(void);
/* From now on it can open, make and remove nothing but what these say; descriptors that are open
 * stay as they are. ENOTSUP: the kernel cannot. */
int shed_paths(const struct shed_path *paths, size_t n);

#endif
