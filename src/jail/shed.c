/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/shed.h"

#include "base/util.h"
#include "jail/sys.h"

#include <linux/capability.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>

/* ---- capabilities ---------------------------------------------------------------------------- */

int shed_bounding(uint64_t keep)
{
    for (int cap = 0; cap < 64; cap++) {
        if (keep & SHED_CAP(cap))
            continue;
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return errno == EINVAL ? 0 : -1; /* past the last one that this kernel knows */
    }
    return 0;
}

int shed_caps(uint64_t keep)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    for (int i = 0; i < 2; i++, keep >>= 32) {
        data[i].permitted &= (uint32_t)keep;
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return (int)syscall(SYS_capset, &header, data);
}

int shed_root_magic(void)
{
    return prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED, 0, 0, 0);
}

int shed_new_privs(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* ---- system calls ---------------------------------------------------------------------------- */

int shed_calls(const struct sock_filter *program, size_t n)
{
    struct sock_fprog prog = {.len = (unsigned short)n, .filter = (struct sock_filter *)program};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                        &prog);
}

/* ---- Landlock -------------------------------------------------------------------------------- */

/* Of <linux/landlock.h>, which is older than what we ask for in most distributions. */
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

struct ruleset_attr {
    uint64_t fs, net, scoped;
};

struct path_rule {
    uint64_t rights;
    int32_t dir;
} __attribute__((packed));

enum {
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_TRUNCATE = 1 << 14,
};

#define SCOPE_ABSTRACT_SOCKETS 1
#define SCOPE_SIGNALS 2
#define CREATE_VERSION 1
#define RULE_PATH 1

/* What each version can take away: all of it is taken. */
static const struct ruleset_attr handled[] = {
    {0},
    {.fs = (1 << 13) - 1},
    {.fs = (1 << 14) - 1},
    {.fs = (1 << 15) - 1},
    {.fs = (1 << 15) - 1, .net = 3},
    {.fs = (1 << 16) - 1, .net = 3},
    {.fs = (1 << 16) - 1, .net = 3, .scoped = SCOPE_ABSTRACT_SOCKETS},
};

static const struct {
    unsigned right;
    uint64_t fs;
} meaning[] = {
    {SHED_READ, FS_READ_FILE | FS_READ_DIR}, {SHED_WRITE, FS_WRITE_FILE | FS_TRUNCATE},
    {SHED_MAKE, FS_MAKE_REG | FS_MAKE_DIR},  {SHED_REMOVE_FILE, FS_REMOVE_FILE},
    {SHED_REMOVE_DIR, FS_REMOVE_DIR},
};

int shed_landlock(void)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_VERSION);
    return abi < 0 ? 0 : (int)abi;
}

/* A kernel knows the members of its version and no more. */
static int create_ruleset(const struct ruleset_attr *attr, int abi)
{
    size_t size = abi >= SHED_SIGNALS_ABI ? 24 : abi >= 4 ? 16 : 8;
    return (int)syscall(SYS_landlock_create_ruleset, attr, size, 0);
}

static int no_landlock(void)
{
    errno = ENOTSUP;
    return -1;
}

int shed_signals(void)
{
    const struct ruleset_attr attr = {.scoped = SCOPE_SIGNALS};
    int abi = shed_landlock();
    if (abi < SHED_SIGNALS_ABI)
        return no_landlock();
    autofd int rules = create_ruleset(&attr, abi);
    return rules < 0 ? -1 : (int)syscall(SYS_landlock_restrict_self, rules, 0);
}

int shed_paths(const struct shed_path *paths, size_t n)
{
    int abi = shed_landlock();
    if (abi < 1)
        return no_landlock();
    const struct ruleset_attr *attr = &handled[CAY_MIN((size_t)abi, CAY_COUNT(handled) - 1)];
    autofd int rules = create_ruleset(attr, abi);
    if (rules < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct path_rule rule = {.dir = paths[i].dir};
        for (size_t j = 0; j < CAY_COUNT(meaning); j++)
            if (paths[i].rights & meaning[j].right)
                rule.rights |= meaning[j].fs & attr->fs;
        if (paths[i].dir >= 0 && syscall(SYS_landlock_add_rule, rules, RULE_PATH, &rule, 0) < 0)
            return -1;
    }
    return (int)syscall(SYS_landlock_restrict_self, rules, 0);
}
