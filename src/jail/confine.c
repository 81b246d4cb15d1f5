/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What init and everything below it may do, set once and irrevocably right before init is executed:
 * capability bounding set, no_new_privs, resource limits, seccomp.
 */
#include "base/err.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/shed.h"
#include "jail/sys.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The bit of O_TMPFILE that is not O_DIRECTORY. */
#define O_TMPFILE_BIT 020000000

#define EVERYDAY                                                                                  \
    (SHED_CAP(CAP_CHOWN) | SHED_CAP(CAP_DAC_OVERRIDE) | SHED_CAP(CAP_FOWNER) |                    \
     SHED_CAP(CAP_FSETID) | SHED_CAP(CAP_SETUID) | SHED_CAP(CAP_SETGID) | SHED_CAP(CAP_SETFCAP) | \
     SHED_CAP(CAP_KILL) | SHED_CAP(CAP_NET_BIND_SERVICE) | SHED_CAP(CAP_SYS_CHROOT))

/* Nested has no more than default: a user namespace made inside starts with all capabilities over
 * itself, and none over our mounts, which are locked there. */
static const uint64_t kept[] = {
    [CAY_PROFILE_DEFAULT] = EVERYDAY,
    [CAY_PROFILE_STRICT] = 0,
    [CAY_PROFILE_NESTED] = EVERYDAY,
};

static int drop_capabilities(const struct jail_plan *plan)
{
    uint64_t keep = kept[plan->profile];
    if (plan->no_setid)
        keep &= ~SHED_CAP(CAP_SETFCAP);
    return shed_bounding(keep) < 0 ? -1 : shed_caps(keep);
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

/*
 * A second filter for sandboxes that may write where others on the host can reach and what they
 * write belongs to the host's root: no file of theirs may become set-uid or set-gid. System calls
 * that carry a mode, where it is, and where the flags are that make it count (-1: always). openat2
 * hides its mode in memory: it is told not to exist, and everybody has a way without it.
 */
static const struct {
    int number, mode, flags;
} set_mode[] = {
#ifdef SYS_chmod
    {SYS_chmod, 1, -1},  {SYS_mknod, 1, -1},    {SYS_creat, 1, -1},           {SYS_open, 2, 1},
#endif
    {SYS_fchmod, 1, -1}, {SYS_fchmodat, 2, -1}, {452 /* fchmodat2 */, 2, -1}, {SYS_mknodat, 2, -1},
    {SYS_openat, 3, 2},
};

#define SET_ID (S_ISUID | S_ISGID)
#define LOAD(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define LOAD_ARG(n)                    \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, \
             (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)(n)))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

static int forbid_set_id(void)
{
    struct sock_filter filter[8 * CAY_COUNT(set_mode) + 4];
    size_t n = 0;
    filter[n++] = (struct sock_filter)LOAD(nr);
    for (size_t i = 0; i < CAY_COUNT(set_mode); i++) {
        bool flags = set_mode[i].flags >= 0;
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                   (uint32_t)set_mode[i].number, 0, flags ? 6 : 4);
        if (flags) {
            filter[n++] = (struct sock_filter)LOAD_ARG(set_mode[i].flags);
            filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K,
                                                       O_CREAT | O_TMPFILE_BIT, 0, 3);
        }
        filter[n++] = (struct sock_filter)LOAD_ARG(set_mode[i].mode);
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, SET_ID, 0, 1);
        filter[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EPERM);
        filter[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    }
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1);
    filter[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | ENOSYS);
    filter[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    return shed_calls(filter, n);
}

/* The kernel's own number for it, which no C library has a text for. */
#define KERNEL_ENOTSUPP 524

static int filter_failed(struct cay_error *err)
{
    if (errno == KERNEL_ENOTSUPP)
        return cay_fail(err, CAY_E_LIMIT,
                        "cannot load the seccomp filter: the host's net.core.bpf_jit_limit is used "
                        "up");
    return cay_fail_errno(err, errno, "cannot load the seccomp filter");
}

int confine(const struct jail_plan *plan, struct cay_error *err)
{
    lower_limit(RLIMIT_NOFILE, plan->fds);
    lower_limit(RLIMIT_CORE, 0);
    lower_limit(RLIMIT_MEMLOCK, 8 << 20);
    lower_limit(RLIMIT_MSGQUEUE, 1 << 20);
    lower_limit(RLIMIT_RTPRIO, 0); /* real-time processes would escape the cpu limit */
    lower_limit(RLIMIT_NICE, 0);
    if (plan->pids)
        lower_limit(RLIMIT_NPROC, plan->pids);
    if (drop_capabilities(plan) < 0)
        return cay_fail_errno(err, errno, "cannot drop capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return cay_fail_errno(err, errno, "cannot set no_new_privs");
    if ((plan->no_setid && forbid_set_id() < 0) ||
        shed_calls(plan->seccomp, plan->seccomp_size / sizeof(struct sock_filter)) < 0)
        return filter_failed(err);
    return 0;
}
