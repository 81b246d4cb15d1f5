# SPDX-License-Identifier: Apache-2.0
"""The leak oracle: what the engine has on this host, before and after.

    oracle = Oracle(state_dir, run_dir)
    before = oracle.snapshot()
    ...
    leaks = oracle.settle(before)      # [] or lines such as "process: 4242/778812 sleep"

Kinds: mounts, namespaces, cgroups, processes, loop devices, files under the state and run directories, and
named unix sockets. Namespaces and cgroups die some time after their last process, so settle() looks again
until nothing is left or its time is over.

What counts. On a host where nothing else happens (whole_host=True) everything that was not there before
does. On a shared one only what can be told to be ours: processes that are in a cgroup below ours, that were
started with our state or run directory, or whose namespaces were made by such a one; mounts, sockets and
loop devices that name our directories or cgroup.

Kernel memory is seen from outside only: gauges() gives the numbers that would grow if namespaces, cgroups
or tmpfs files were kept alive by something that has no name.
"""
import os
import re
import socket
import subprocess
import time

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
KINDS = ("mount", "namespace", "cgroup", "process", "loop", "file", "socket")


def read(path):
    """The file's text; empty when it is gone or not ours to read."""
    try:
        with open(path, "rb") as f:
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


def state_and_start(pid):
    """State letter and start in clock ticks since boot, read at one instant; (None, None) if it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], int(fields[19])) if len(fields) > 19 else (None, None)


def start_time(pid):
    """With the pid, the identity of a process; None if it is gone."""
    return state_and_start(pid)[1]


def fd_count(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def namespaces_of(pid):
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            pass
    return found


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def cgroup_mounts():
    """Every cgroup hierarchy of this host, v1 and v2."""
    found = []
    for line in read("/proc/self/mountinfo").splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] in ("cgroup", "cgroup2"):
            found.append(fields[4])
    return found


def groups_of(base):
    """[(path, name)] of the groups of all sandboxes whose base group is called `base`: <base>/<name> in each hierarchy,
    or <base>~<name> in the root of that of the cpu controller."""
    found = []
    for mount in cgroup_mounts():
        for place, prefix in ((os.path.join(mount, base), ""), (mount, base + "~")):
            try:
                entries = list(os.scandir(place))
            except OSError:
                continue
            found += [(e.path, e.name[len(prefix):]) for e in entries if e.is_dir() and e.name.startswith(prefix)]
    return found


def gauges():
    """Numbers of the kernel that must not grow from round to round; they tell nothing one by one."""
    found = {}
    for line in read("/proc/slabinfo").splitlines():
        name = line.split(" ", 1)[0]
        if name in ("net_namespace", "pid_namespace", "user_namespace", "nsproxy", "mnt_cache"):
            found["slab " + name] = int(line.split()[1])
    for line in read("/proc/meminfo").splitlines():
        name = line.split(":")[0]
        if name in ("Shmem", "SUnreclaim", "Percpu"):
            found[name + " KiB"] = int(line.split()[1])
    for line in read("/proc/cgroups").splitlines()[1:]:
        name, _, count, _ = line.split()
        found["cgroups " + name] = int(count)
    found["files open"] = int(read("/proc/sys/fs/file-nr").split()[0])
    return found


class Oracle:
    def __init__(self, state_dir, run_dir, cgroup=None, whole_host=False):
        self.dirs = [os.path.realpath(d) for d in (state_dir, run_dir)]
        self.cgroup = cgroup or os.environ.get("CAY_CGROUP", "cay")
        self.whole_host = whole_host
        self.host_namespaces = namespaces_of("self")
        self.in_our_cgroup = re.compile(r"^\d+:[^:]*:(.*/)?%s[/~]" % re.escape(self.cgroup), re.M)

    # -- which processes are ours

    def _is_ours(self, pid):
        if self.in_our_cgroup.search(read(f"/proc/{pid}/cgroup")):
            return True
        if not os.path.basename(read(f"/proc/{pid}/comm").strip()).startswith("cay"):
            return False
        words = read(f"/proc/{pid}/environ") + "\0" + read(f"/proc/{pid}/cmdline")
        return any(d in words for d in self.dirs)

    def _processes(self):
        """{pid: namespaces} of all that count, zombies too: nobody reaping them is a leak as well."""
        found, others = {}, {}
        for pid in pids():
            if self.whole_host:
                if read(f"/proc/{pid}/cmdline") or namespaces_of(pid) - self.host_namespaces:
                    found[pid] = namespaces_of(pid)
            elif self._is_ours(pid):
                found[pid] = namespaces_of(pid)
            else:
                others[pid] = namespaces_of(pid)
        made = set().union(*found.values()) - self.host_namespaces if found else set()
        for pid, spaces in others.items():
            if spaces & made:
                found[pid] = spaces
        return found

    # -- one function for each kind; each returns a set of strings

    def _mounts(self):
        found = set()
        for line in read("/proc/self/mountinfo").splitlines():
            fields = line.split()
            text = f"{fields[4]} ({fields[fields.index('-') + 1]})"
            if self.whole_host or any(d in line for d in self.dirs):
                found.add(text)
        return found

    def _cgroups(self):
        found = set()
        for mount in cgroup_mounts():
            for path, names, _ in os.walk(mount):
                if os.path.basename(path).startswith(self.cgroup + "~"):
                    found.add(path)
                if os.path.basename(path) == self.cgroup:
                    for below, _, _ in os.walk(path):
                        if below != path:
                            found.add(below)
                    names.clear()
        return found

    def _loops(self):
        found = set()
        for name in os.listdir("/sys/block"):
            backing = read(f"/sys/block/{name}/loop/backing_file").strip()
            if backing and (self.whole_host or any(backing.startswith(d) for d in self.dirs)):
                found.add(f"/dev/{name} {backing}")
        return found

    def _files(self):
        found = set()
        for top in self.dirs:
            for path, names, files in os.walk(top):
                found.update(os.path.join(path, n) for n in names + files if n != ".cay")
        return found

    def _sockets(self):
        found = set()
        for line in read("/proc/net/unix").splitlines()[1:]:
            fields = line.split(None, 7)
            if len(fields) == 8 and (self.whole_host or any(d in fields[7] for d in self.dirs)):
                found.add(fields[7])
        return found

    def snapshot(self):
        processes = self._processes()
        # cmdline keeps kernel threads out; the harness itself comes and goes with its readers
        text = {f"{pid}/{start_time(pid)} {read(f'/proc/{pid}/comm').strip()}" for pid in processes}
        spaces = set().union(*processes.values()) if processes else set()
        return {
            "mount": self._mounts(),
            "namespace": spaces - self.host_namespaces,
            "cgroup": self._cgroups(),
            "process": {t for t in text if "/None" not in t},
            "loop": self._loops(),
            "file": self._files(),
            "socket": self._sockets(),
        }

    def settle(self, before, seconds=5.0, ignore_files=()):
        """What is there now and was not before, after waiting up to `seconds` for it to go."""
        deadline = time.monotonic() + seconds
        while True:
            leaks = diff(before, self.snapshot(), ignore_files)
            if not leaks or time.monotonic() >= deadline:
                return leaks
            time.sleep(0.1)


def diff(before, after, ignore_files=()):
    """One line for each thing that is in `after` only. `ignore_files`: base names that may stay."""
    leaks = []
    for kind in KINDS:
        for item in sorted(after[kind] - before[kind]):
            if kind == "file" and os.path.basename(item) in ignore_files:
                continue
            leaks.append(f"{kind}: {item}")
    return leaks


def positive_control(oracle):
    """Leaks one of each kind on purpose; returns the kinds that the oracle did not see (none, if it can see).

    All of it is undone before this returns. Needs root, and an oracle whose directories exist.
    """
    before, undo = oracle.snapshot(), []
    top = os.path.join(oracle.dirs[0], "control")
    try:
        os.mkdir(top)
        undo.append(lambda: os.rmdir(top))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(oracle.dirs[1], "control"))
        undo.append(lambda: (listener.close(), os.unlink(os.path.join(oracle.dirs[1], "control"))))
        subprocess.run(["mount", "-t", "tmpfs", "control", top], check=True)
        undo.append(lambda: subprocess.run(["umount", top], check=True))
        backing = os.path.join(oracle.dirs[0], "control.img")
        with open(backing, "wb") as f:
            f.truncate(1 << 20)
        undo.append(lambda: os.unlink(backing))
        loop = subprocess.run(["losetup", "-f", "--show", backing], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.strip()
        undo.append(lambda: subprocess.run(["losetup", "-d", loop], check=True))
        _control_cgroup(oracle, undo)
        deadline = time.monotonic() + 5
        while True:
            seen = {leak.split(":")[0] for leak in diff(before, oracle.snapshot())}
            if seen == set(KINDS) or time.monotonic() > deadline:
                return sorted(set(KINDS) - seen)
            time.sleep(0.05)
    finally:
        for step in reversed(undo):
            step()


def _control_cgroup(oracle, undo):
    """A process with its own namespaces in a cgroup below ours."""
    base = os.path.join(cgroup_mounts()[-1], oracle.cgroup)
    group = os.path.join(base, "control")
    if not os.path.isdir(base):
        os.mkdir(base)
        undo.append(lambda: os.rmdir(base))
    os.mkdir(group)
    undo.append(lambda: _remove_group(group))
    process = subprocess.Popen(["unshare", "-m", "-n", "sleep", "60"])
    undo.append(lambda: (process.kill(), process.wait()))
    with open(os.path.join(group, "cgroup.procs"), "w") as f:
        f.write(str(process.pid))


def _remove_group(path, seconds=5.0):
    """rmdir answers EBUSY for a moment after the last process has been reaped."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return os.rmdir(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
