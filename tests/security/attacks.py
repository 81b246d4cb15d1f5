# SPDX-License-Identifier: Apache-2.0
"""The table of attacks that are one run of the probe, inside and at a control.

id        what is attacked, as the test's name
group     the section of the threat model: engine (1), kernel (2), exhaustion (3), files (4)
probe     arguments of the probe inside; {tmp} is a writable directory of where it runs
control   where the same probe must succeed ("host", "ns", "nobody", "inside", "nested": see harness.py),
          with other arguments after a space where the target must be another one (an own child, say)
profiles  the sandboxes that must refuse it

Attacks that need more than one step are functions in the test_*.py files, marked with their id and group.
`python3 -m security.attacks` in tests/ prints the table.
"""

import dataclasses

ENGINE, KERNEL, EXHAUSTION, FILES = "engine", "kernel", "exhaustion", "files"

# CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT SETFCAP
CAPABILITIES = "800404fb"

# The nested profile shows /proc as the kernel has it, because a namespace inside may mount a new one only
# then. These belong to namespaces of the sandbox; every user may set up a watch on the pressure files.
OF_A_NAMESPACE = " ".join(
    f"/proc/{name}"
    for name in (
        *("sys/fs/mqueue", "sys/net", "sys/user", "sys/kernel/shm", "sys/kernel/msg", "sys/kernel/sem",
          "sys/kernel/pid_max"),
        *(
            "sys/kernel/auto_msgmni",
            "sys/kernel/hostname",
            "sys/kernel/domainname",
            "sys/kernel/ns_last_pid",
            "pressure",
        ),
    )
)


@dataclasses.dataclass(frozen=True)
class Attack:
    id: str
    group: str
    probe: str
    control: str
    profiles: tuple = ("default",)


def rows(group, *lines):
    """Lines of `id | probe | control | profiles`; no profiles: default only; `all`: the three of them."""
    names = {"": ("default",), "all": ("default", "strict", "nested"), "walled": ("default", "strict")}
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        profiles = cells[3] if len(cells) > 3 else ""
        yield Attack(cells[0], group, cells[1], cells[2], names.get(profiles, (profiles,)))


TABLE = (
    *rows(
        ENGINE,
        "init-executable-overwritten      | exe-write 1               | inside exe-write child       | all",
        "init-descriptors-opened          | fds-of 1                  | inside fds-of child          | all",
        "init-traced                      | ptrace 1                  | inside ptrace child          | all",
        "init-memory-read                 | vm read 1                 | inside vm read child         | all",
        "init-memory-written              | vm write 1                | inside vm write child        | all",
        "init-memory-file-opened          | proc-open 1 mem w         | inside proc-open child mem w",
        "init-memory-map-read             | proc-open 1 maps r        | inside proc-open child maps r",
        "init-descriptor-stolen-by-pidfd  | pidfd-getfd 1             | inside pidfd-getfd child     | all",
        "init-killed                      | signal 1 9                | inside signal child 9        | all",
        "init-stopped                     | signal 1 19               | inside signal child 19       | all",
        "init-working-directory-entered   | root-of 1                 | inside root-of child",
        "proc-sys-file-written            | sweep-write /proc/sys     | host                         | walled",
        "proc-file-written                | sweep-write /proc         | host                         | walled",
        f"proc-file-of-the-host-written   | sweep-write /proc {OF_A_NAMESPACE} | host sweep-write /proc | nested",
        "sys-file-written                 | sweep-write /sys          | host                         | all",
        "core-pattern-written             | write-open /proc/sys/kernel/core_pattern | host          | all",
        "caches-of-the-host-dropped       | write-open /proc/sys/vm/drop_caches      | host          | all",
        "panic-behaviour-written          | write-open /proc/sys/kernel/panic        | host          | all",
        "keys-of-the-host-listed          | visible /proc/keys        | host                         | all",
        "timers-of-the-host-listed        | visible /proc/timer_list  | host                         | all",
        "firmware-read                    | visible /sys/firmware     | host                         | all",
        "interrupts-of-the-host-counted   | visible /proc/interrupts  | host                         | walled",
        "pressure-of-the-host-read        | visible /proc/pressure    | host                         | walled",
        "kernel-command-line-read         | visible /proc/cmdline     | host                         | walled",
        "disks-of-the-host-listed         | visible /proc/partitions /proc/diskstats | host          | walled",
        "file-systems-of-the-host-listed  | visible /proc/fs          | host                         | walled",
        "kernel-log-read                  | visible /proc/kmsg /dev/kmsg /proc/kcore | host visible /dev/kmsg | all",
        "page-frames-of-the-host-counted  | visible /proc/kpagecount /proc/kpageflags /proc/kpagecgroup | host | all",
        "block-devices-of-the-host-listed | visible /sys/block /sys/class/block /proc/scsi /proc/acpi | host     | all",
        "kernel-addresses-read            | addresses                 | host                         | all",
    ),
    *rows(
        KERNEL,
        "io-uring                         | call io_uring_setup       | host                         | all",
        "bpf                              | call bpf                  | host                         | all",
        "perf-event-of-every-process      | call perf_event_open      | host                         | all",
        "userfaultfd                      | call userfaultfd          | host                         | all",
        "key-added                        | call add_key              | host                         | all",
        "keyring-joined                   | call keyctl               | host                         | all",
        "key-requested-from-the-host      | call request_key          | host                         | all",
        "reboot                           | call reboot               | host                         | all",
        "clock-set                        | call settimeofday         | host                         | all",
        "clock-adjusted                   | call adjtimex             | host                         | all",
        "clock-adjusted-by-clock-adjtime  | call clock_adjtime        | host                         | all",
        "host-name-set                    | call sethostname          | host                         | all",
        "domain-name-set                  | call setdomainname        | host                         | all",
        "swap-on                          | call swapon               | host                         | all",
        "swap-off                         | call swapoff              | host                         | all",
        "quota-on                         | call quotactl             | host                         | all",
        "kernel-log-by-syslog             | call syslog               | host                         | all",
        "process-accounting               | call acct                 | host                         | all",
        "fanotify-of-file-contents        | call fanotify_init        | host                         | all",
        "real-time-scheduler              | call sched_fifo           | host                         | all",
        "priority-raised                  | call nice                 | host                         | all",
        "file-opened-by-handle            | call open_by_handle_at    | host                         | all",
        "user-id-outside-of-the-range     | call setuid-unmapped      | host                         | all",
        "capability-added                 | call capset               | host                         | all",
        "no-new-privs-taken-back          | call no-new-privs-off     | host                         | all",
        "32-bit-call-getpid               | int80 20                  | host                         | all",
        "32-bit-call-unshare-user         | int80 310                 | host                         | walled",
        "terminal-input-injected          | tty TIOCSTI 0             | host                         | all",
        "terminal-input-injected-high-bits| tty TIOCSTI 1             | host                         | all",
        "terminal-console-call            | tty TIOCLINUX 0           | host                         | all",
        "terminal-console-call-high-bits  | tty TIOCLINUX 0x80000000  | host                         | all",
        "terminal-line-discipline         | tty TIOCSETD 0            | host                         | all",
        "terminal-line-discipline-high-bits | tty TIOCSETD 7          | host                         | all",
        "socket-vsock                     | socket 40 1 0             | host                         | all",
        "socket-packet                    | socket 17 3 0             | host                         | all",
        "socket-raw-icmp                  | socket 2 3 1              | host                         | all",
        "socket-raw-ip                    | socket 2 3 255            | host                         | all",
        "socket-raw-icmp6                 | socket 10 3 58            | host                         | all",
        "socket-netlink-xfrm              | socket 16 3 6             | host                         | all",
        "socket-netlink-netfilter         | socket 16 3 12            | host                         | all",
        "socket-netlink-audit             | socket 16 3 9             | host                         | all",
        "socket-netlink-uevent            | socket 16 3 15            | host                         | all",
        "socket-netlink-sock-diag         | socket 16 3 4             | host                         | all",
        "tcp-upper-layer-protocol         | tcp-option TCP_ULP        | ns tcp-option TCP_REPAIR     | all",
        "tcp-repair                       | tcp-option TCP_REPAIR     | ns                           | all",
        "socket-filter                    | socket-filter FILTER      | host                         | all",
        "socket-filter-extended           | socket-filter BPF         | host                         | all",
        "socket-filter-of-a-port          | socket-filter REUSEPORT_CBPF | host                      | all",
        "socket-filter-of-a-port-extended | socket-filter REUSEPORT_EBPF | host                      | all",
        "call-filter-by-seccomp           | call filter-by-seccomp    | nested                       | walled",
        "call-filter-by-prctl             | call filter-by-prctl      | nested                       | walled",
        "interface-added                  | netlink link              | ns                           | all",
        "address-added                    | netlink address           | ns                           | all",
        "route-added                      | netlink route             | ns                           | all",
        "interface-of-the-host-seen       | interfaces                | host                         | all",
        "route-to-the-internet            | route 198.51.100.1        | host                         | all",
        "route-to-the-internet-v6         | route 2001:db8::1         | host route 198.51.100.1      | all",
        "route-to-the-metadata-service    | route 169.254.169.254     | host                         | all",
        "route-to-a-private-network       | route 10.0.0.1            | host                         | all",
        "unshare-user                     | unshare user              | nested                       | walled",
        "unshare-mount                    | unshare mnt               | ns                           | all",
        "unshare-pid                      | unshare pid               | ns                           | all",
        "unshare-net                      | unshare net               | ns                           | all",
        "unshare-ipc                      | unshare ipc               | ns                           | all",
        "unshare-uts                      | unshare uts               | ns                           | all",
        "unshare-cgroup                   | unshare cgroup            | ns                           | all",
        "unshare-time                     | unshare time              | ns                           | all",
        "clone-user                       | clone clone user          | nested                       | walled",
        "clone3-user                      | clone clone3 user         | host                         | walled",
        "clone3-net                       | clone clone3 net          | ns                           | all",
        "setns-mount                      | setns mnt                 | ns                           | all",
        "setns-net                        | setns net                 | ns                           | all",
        "setns-uts                        | setns uts                 | ns                           | all",
        "mount-tmpfs                      | mount tmpfs {tmp}         | ns                           | all",
        "mount-bind                       | mount bind {tmp}          | ns                           | all",
        "mount-proc                       | mount proc {tmp}          | ns                           | all",
        "mount-cgroup-v1-release-agent    | mount cgroup {tmp} pids   | ns                           | all",
        "mount-debugfs                    | mount debugfs {tmp}       | ns                           | all",
        "mount-tracefs                    | mount tracefs {tmp}       | ns                           | all",
        "mount-binfmt-misc                | mount binfmt_misc {tmp}   | ns                           | all",
        "mount-devpts                     | mount devpts {tmp}        | ns                           | all",
        "remount-proc-writable            | mount remount-rw /proc/sys | ns mount remount-rw /proc   | all",
        "unmount-proc                     | umount /proc              | ns                           | all",
        "unmount-a-mask                   | umount /proc/keys         | ns umount /proc              | all",
        "new-mount-api-fsopen             | mount-api fsopen -        | ns                           | all",
        "new-mount-api-open-tree          | mount-api open_tree /     | ns                           | all",
        "new-mount-api-move-mount         | mount-api move_mount /proc {tmp} | ns                    | all",
        "new-mount-api-setattr            | mount-api mount_setattr /probe   | ns mount-api mount_setattr /proc | all",
        "pivot-root                       | pivot-root /              | ns                           | all",
        "device-made-char                 | mknod {tmp} c 1 3         | host                         | all",
        "device-made-block                | mknod {tmp} b 7 0         | host                         | all",
        "device-of-the-host-in-dev        | devices                   | host                         | all",
        f"capability-beyond-the-set       | caps {CAPABILITIES}       | host                         | all",
        "capability-at-all                | caps 0                    | inside-default               | strict",
        "seccomp-missing                  | status-lacks Seccomp 2    | host                         | all",
        "no-new-privs-missing             | status-lacks NoNewPrivs 1 | host                         | all",
        "nested-fresh-sysfs               | nested sysfs {tmp}        | ns                           | nested",
        "nested-mask-unmounted            | nested umount /proc/keys  | ns umount /proc              | nested",
        "nested-read-only-lifted          | nested remount-rw /probe  | ns mount remount-rw /proc    | nested",
    ),
    *rows(
        FILES,
        "overlay-attribute-trusted        | setxattr trusted.overlay.redirect {tmp} /etc | host      | all",
        "attribute-security-forged        | setxattr security.evm {tmp} x                | host      | all",
    ),
)


def main():
    for attack in TABLE:
        print(
            f"{attack.group:<11}{attack.id:<38}{attack.probe:<48}{attack.control:<34}{' '.join(attack.profiles)}"
        )


if __name__ == "__main__":
    main()
