/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/drop.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/shed.h"
#include "jail/sys.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/seccomp.h>

/* Everything else is dropped: that of newer kernels, too. */
static const uint64_t needed =
    SHED_CAP(CAP_CHOWN) | SHED_CAP(CAP_DAC_OVERRIDE) | SHED_CAP(CAP_DAC_READ_SEARCH) |
    SHED_CAP(CAP_FOWNER) | SHED_CAP(CAP_FSETID) | SHED_CAP(CAP_KILL) | SHED_CAP(CAP_SETGID) |
    SHED_CAP(CAP_SETUID) | SHED_CAP(CAP_SETPCAP) | SHED_CAP(CAP_SETFCAP) |
    SHED_CAP(CAP_NET_BIND_SERVICE) | SHED_CAP(CAP_NET_ADMIN) | SHED_CAP(CAP_SYS_CHROOT) |
    SHED_CAP(CAP_SYS_PTRACE) | SHED_CAP(CAP_SYS_ADMIN) | SHED_CAP(CAP_SYS_NICE) |
    SHED_CAP(CAP_SYS_RESOURCE) | SHED_CAP(CAP_MKNOD);

/* Refused in sandboxes of every profile as well (tools/seccomp-table.h). */
static const int never[] = {
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_syslog,
    SYS_vhangup,
    SYS_quotactl,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_fanotify_init,
    SYS_open_by_handle_at,
    SYS_move_pages,
    SYS_migrate_pages,
    425 /* io_uring_setup */,
    426,
    427,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
#endif
};

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#else
#define NATIVE AUDIT_ARCH_AARCH64
#endif

/* Where the other set of numbers of x86_64 begins; elsewhere no call is there. */
#define X32 0x40000000u

#define LOAD(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))

/* Calls are judged by their number alone, which the kernel remembers: what is allowed costs
 * nothing. Those of another architecture are none of ours, as in sandboxes. */
static int drop_calls(void)
{
    struct sock_filter filter[2 * CAY_COUNT(never) + 7];
    size_t n = 0;
    filter[n++] = (struct sock_filter)LOAD(arch);
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[n++] = (struct sock_filter)LOAD(nr);
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    for (size_t i = 0; i < CAY_COUNT(never); i++) {
        filter[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)never[i], 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return shed_calls(filter, n);
}

/* A daemon that was upgraded inherits the filter, and must not stack another one on it each time.
 * Without one this is EINVAL, as there is no such command. */
static bool has_dropped(void)
{
    return syscall(SYS_bpf, -1, NULL, 0) < 0 && errno == EPERM;
}

int drop_rights(struct cay_error *err)
{
    if (geteuid() != 0)
        return 0;
    if (shed_new_privs() < 0 || shed_bounding(needed) < 0 || shed_caps(needed) < 0 ||
        (!has_dropped() && drop_calls() < 0))
        return cay_fail_errno(err, errno, "cannot give up rights");
    return 0;
}
