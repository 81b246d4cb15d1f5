/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `cay doctor`: what no control group of this host counts, and the limits that all of the host
 * shares, held against ten sandboxes with default limits.
 */
#include "jail/probe.h"

#include "base/util.h"
#include "jail/cgroup.h"
#include "jail/cgroup_host.h"

#include <stdio.h>

#define SANDBOXES 10
#define PIDS 1024LL
#define FDS 4096LL
#define PTYS 64LL
/* The most that one process can load: as many of the largest filter as the kernel takes. */
#define FILTERS (7 * 72LL << 10)

void probe_uncounted(const struct probe_host *host, struct probe_result *out)
{
    struct cgroup_host cg;
    char path[300];
    (void)host;
    cgroup_host_find(&cg);
    snprintf(path, sizeof(path), "%s/%s", cg.parent[CGROUP_MEMORY], CGROUP_SOCKETS);
    if (cg.kind == CGROUP_NONE)
        probe_say(out, 1, "see cgroups, above",
                  "no memory is counted; file locks, netlink buffers and filters are watched");
    else if (cg.kind == CGROUP_V2)
        probe_say(out, 0, "", "file locks, netlink buffers, filters; they are watched");
    else if (access(path, F_OK) == 0)
        probe_say(out, 0, "",
                  "file locks, netlink buffers, filters; they are watched; socket buffers have a "
                  "limit of their own");
    else
        probe_say(out, 1, "use cgroup v2, or a kernel with memory.kmem.tcp.limit_in_bytes",
                  "socket buffers have no limit; file locks, netlink buffers, filters are watched");
}

void probe_files(const struct probe_host *host, struct probe_result *out)
{
    long long max = probe_number("/proc/sys/fs/file-max");
    (void)host;
    if (max < 0 || max >= SANDBOXES * PIDS * FDS)
        probe_say(out, 0, "", "fs.file-max is more than ten sandboxes can open");
    else
        probe_say(out, 1,
                  "sysctl fs.file-max=9223372036854775807, as systemd does: open files are counted "
                  "as memory of each sandbox",
                  "fs.file-max is %lld, of which a sandbox may have a sixteenth; ten may ask for "
                  "%lld",
                  max, SANDBOXES * PIDS * FDS);
}

void probe_terminals(const struct probe_host *host, struct probe_result *out)
{
    long long max = probe_number("/proc/sys/kernel/pty/max");
    long long reserve = probe_number("/proc/sys/kernel/pty/reserve");
    (void)host;
    long long room = (max - CAY_MAX(reserve, 0)) / PTYS;
    if (max < 0 || room >= SANDBOXES)
        probe_say(out, 0, "", "%lld terminals are enough for %lld sandboxes with %lld each", max,
                  room, PTYS);
    else
        probe_say(out, 1, "raise kernel.pty.max with sysctl",
                  "kernel.pty.max is %lld: %lld sandboxes with %lld terminals each use it up", max,
                  room, PTYS);
}

void probe_processes(const struct probe_host *host, struct probe_result *out)
{
    static const char *const paths[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
    static const char *const names[] = {"kernel.pid_max", "kernel.threads-max"};
    (void)host;
    for (size_t i = 0; i < CAY_COUNT(paths); i++) {
        long long max = probe_number(paths[i]);
        if (max < 0 || max > SANDBOXES * PIDS)
            continue;
        probe_say(out, 1, "raise that limit with sysctl, or give sandboxes fewer --pids",
                  "%s is %lld: ten sandboxes with %lld processes each use it up", names[i], max,
                  PIDS);
        return;
    }
    probe_say(out, 0, "", "the host has room for ten sandboxes with %lld processes each", PIDS);
}

void probe_filters(const struct probe_host *host, struct probe_result *out)
{
    long long max = probe_number("/proc/sys/net/core/bpf_jit_limit");
    long long each = FILTERS * PIDS;
    (void)host;
    if (max < 0)
        probe_say(out, 0, "", "only root can tell net.core.bpf_jit_limit");
    else if (max < SANDBOXES * each)
        probe_say(out, 0,
                  "raise net.core.bpf_jit_limit with sysctl where `nested` is for strangers",
                  "net.core.bpf_jit_limit is %lld MiB; a sandbox of the profile nested could load "
                  "%lld MiB",
                  max >> 20, each >> 20);
    else
        probe_say(out, 0, "", "net.core.bpf_jit_limit is more than ten sandboxes can use");
}
