/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What init and everything below it may do, set once and irrevocably right before init is executed:
 * capability bounding set, no_new_privs, resource limits, seccomp.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/sys.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define BIT(cap) (1ULL << (cap))

static const uint64_t kept[] = {
    [CAY_PROFILE_DEFAULT] = BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) |
                            BIT(CAP_SETUID) | BIT(CAP_SETGID) | BIT(CAP_SETFCAP) | BIT(CAP_KILL) |
                            BIT(CAP_NET_BIND_SERVICE) | BIT(CAP_SYS_CHROOT),
    [CAY_PROFILE_STRICT] = 0,
    /* A user namespace made inside is bounded by this too, and agents that bring their own sandbox mount
     * and configure loopback in theirs. All of it is relative to the sandbox's own user namespace. */
    [CAY_PROFILE_NESTED] = ~0ULL,
};

static int drop_capabilities(enum cay_profile profile)
{
    uint64_t keep = kept[profile];
    for (int cap = 0; cap < 64; cap++) {
        if (keep & BIT(cap))
            continue;
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one this kernel knows */
            return -1;
        }
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (profile == CAY_PROFILE_NESTED)
        return 0;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {
        {.effective = (uint32_t)keep, .permitted = (uint32_t)keep},
        {.effective = (uint32_t)(keep >> 32), .permitted = (uint32_t)(keep >> 32)},
    };
    return (int)syscall(SYS_capset, &header, data);
}

/* Limits can only go down here: a soft or hard limit below the wish stays as it is. */
static void lower_limit(int resource, uint64_t wish)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) < 0)
        return;
    limit.rlim_max = CAY_MIN(limit.rlim_max, (rlim_t)wish);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
}

static int load_filter(const struct jail_plan *plan)
{
    struct sock_fprog program = {
        .len = (unsigned short)(plan->seccomp_size / sizeof(struct sock_filter)),
        .filter = (struct sock_filter *)plan->seccomp,
    };
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
}

int confine(const struct jail_plan *plan, struct cay_error *err)
{
    lower_limit(RLIMIT_NOFILE, plan->fds);
    lower_limit(RLIMIT_CORE, 0);
    lower_limit(RLIMIT_MEMLOCK, 8 << 20);
    lower_limit(RLIMIT_MSGQUEUE, 1 << 20);
    if (plan->pids)
        lower_limit(RLIMIT_NPROC, plan->pids);
    if (drop_capabilities(plan->profile) < 0)
        return cay_fail_errno(err, errno, "cannot drop capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return cay_fail_errno(err, errno, "cannot set no_new_privs");
    if (plan->seccomp_size && load_filter(plan) < 0)
        return cay_fail_errno(err, errno, "cannot load the seccomp filter");
    return 0;
}
