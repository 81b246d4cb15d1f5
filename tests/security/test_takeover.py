# SPDX-License-Identifier: Apache-2.0
"""A keeper that a hostile init has taken over, and a daemon: what they have given up (src/keeper/rights.c,
src/daemon/drop.c).

The calls are made by the keeper itself, with its registers set from outside (inject.py). The control is a process of
the same user without any of this, made to do the same.
"""

import ctypes
import errno
import os
import pathlib
import signal
import struct
import subprocess
import tempfile

import pytest

from integration.test_rootless import UserEngine
from lib.engine import PROG, Engine
from security import harness, inject

AT_FDCWD = -100
O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_DIRECTORY = 0, 1, 2, 0o100, 0o200000
NEWNS = 0x20000

pytestmark = pytest.mark.skipif(not inject.supported, reason="registers of x86_64")


def landlock():
    """The version that the kernel has; 0: none."""
    return max(0, ctypes.CDLL(None).syscall(444, 0, 0, 1))


@pytest.fixture(scope="module")
def own():
    """An engine of its own, with a sandbox whose keeper is taken over and a neighbour."""
    engine = Engine(prefix="cayk-")
    folder = pathlib.Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield engine, folder
    engine.clean()
    engine.close()
    subprocess.run(["rm", "-rf", folder])


class Scene:
    """What the attacks are aimed at. `taken` calls as the keeper, `free` as a process like any other."""

    def __init__(self, engine, folder):
        self.engine, self.folder = engine, folder
        self.box = engine.create()
        self.neighbour = engine.create()
        self.victim = subprocess.Popen(["sleep", "1000"])
        self.keeper = self.pid_of(self.box)
        self.secret = folder / "secret"
        self.secret.write_text("secret")
        self.secret.chmod(0o600)

    def pid_of(self, identifier):
        return self.engine.json("inspect", "--json", identifier)["keeper_pid"]

    def path(self, name):
        return os.fsencode(self.folder / name)

    def end(self):
        self.victim.kill()
        self.victim.wait()


@pytest.fixture
def scene(own):
    made = Scene(*own)
    yield made
    made.end()
    own[0].run("rm", "-f", made.box, made.neighbour)


def opens(path, flags=O_RDONLY):
    return lambda call, s: call("openat", AT_FDCWD, os.fsencode(path(s)), flags, 0o600)


def by_pidfd(call, s):
    pidfd = call("pidfd_open", s.victim.pid, 0)
    return pidfd if pidfd < 0 else call("pidfd_send_signal", pidfd, signal.SIGUSR1, 0, 0)


def map_code(call, s):
    return call("mmap", 0, 4096, 5, 0x22, -1, 0)  # READ | EXEC, PRIVATE | ANONYMOUS


FILES = {
    "shadow": opens(lambda s: "/etc/shadow"),
    "secret-write": opens(lambda s: s.secret, O_WRONLY),
    "new-file": opens(lambda s: s.folder / "new", O_WRONLY | O_CREAT),
    "list-root": opens(lambda s: "/", O_RDONLY | O_DIRECTORY),
    "memory-of-another": opens(lambda s: f"/proc/{s.victim.pid}/mem", O_RDWR),
    "core-pattern": opens(lambda s: "/proc/sys/kernel/core_pattern", O_WRONLY),
    "list-sandboxes": opens(lambda s: s.engine.run_dir, O_RDONLY | O_DIRECTORY),
    "record-of-neighbour": opens(lambda s: s.engine.state / "sandboxes" / s.neighbour / "spec"),
    "status-of-neighbour": opens(lambda s: s.engine.run_dir / s.neighbour / "status", O_RDWR),
    "image": opens(lambda s: s.engine.state / "images", O_RDONLY | O_DIRECTORY),
    "socket-of-neighbour": lambda call, s: call(
        "unlinkat", AT_FDCWD, os.fsencode(s.engine.run_dir / s.neighbour / "ctl"), 0
    ),
    "directory": lambda call, s: call("mkdirat", AT_FDCWD, s.path("made"), 0o700),
}
CALLS = {
    "chmod": lambda call, s: call("chmod", os.fsencode(s.secret), 0o666),
    "fchmodat": lambda call, s: call("fchmodat", AT_FDCWD, os.fsencode(s.secret), 0o666),
    "chown": lambda call, s: call("chown", os.fsencode(s.secret), 1000, 1000),
    "fchownat": lambda call, s: call("fchownat", AT_FDCWD, os.fsencode(s.secret), 1000, 1000, 0),
    "link": lambda call, s: call("link", os.fsencode(s.secret), s.path("linked")),
    "symlink": lambda call, s: call("symlink", b"/etc", s.path("symlinked")),
    "setxattr": lambda call, s: call("setxattr", os.fsencode(s.secret), b"trusted.x", b"x", 1, 0),
    "kill": lambda call, s: call("kill", s.victim.pid, 0),
    "ptrace": lambda call, s: call("ptrace", inject.ATTACH, s.victim.pid, 0, 0),
    "read-memory": lambda call, s: call("process_vm_readv", s.victim.pid, 0, 0, 0, 0, 0),
    "limits-of-another": lambda call, s: call("prlimit64", s.victim.pid, 7, 0, 0),
    "execve": lambda call, s: call("execve", b"/bin/true", 0, 0),
    "unshare": lambda call, s: call("unshare", NEWNS),
    "mount": lambda call, s: call("mount", b"none", os.fsencode(s.folder), b"tmpfs", 0, 0),
    "open-tree": lambda call, s: call("open_tree", AT_FDCWD, b"/", 1),
    "setuid": lambda call, s: call("setuid", 1000),
    "socket-unix": lambda call, s: call("socket", 1, 1, 0),
    "socket-inet": lambda call, s: call("socket", 2, 1, 0),
    "socket-netlink": lambda call, s: call("socket", 16, 3, 0),
    "datagrams": lambda call, s: call("socketpair", 1, 2, 0, b"12345678"),
    "memfd": lambda call, s: call("memfd_create", b"x", 0),
    "code": map_code,
    "io-uring": lambda call, s: call("io_uring_setup", 1, struct.pack("30I", *[0] * 30)),
}


def control(attack, scene):
    """In a process that has given up nothing. Mounts and the like are in a namespace of its own."""
    free = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "1000"])
    try:
        harness.wait_for(lambda: os.readlink(f"/proc/{free.pid}/exe").endswith("sleep"), 10, "sleep")
        harness.wait_for(lambda: harness.status(free.pid, "State")[0] == "S", 10, "sleep")
        with inject.Taken(free.pid) as call:
            return attack(call, scene)
    finally:
        free.kill()
        free.wait()


def try_both(attack, scene, restore=None):
    with inject.Taken(scene.keeper) as call:
        result = attack(call, scene)
    assert inject.refused(result), f"the keeper could: {result}"
    won = control(attack, scene)
    assert won >= 0, f"the control could not: {os.strerror(-won)}"
    # and the keeper still serves
    assert scene.engine.sh(scene.box, "echo alive").stdout == "alive\n"


@pytest.mark.attack("takeover-files", "engine", "a keeper that was taken over opens the host's files")
@pytest.mark.skipif(landlock() < 1, reason="no Landlock in this kernel")
@pytest.mark.parametrize("name", FILES)
def test_files(scene, name):
    try_both(FILES[name], scene)


@pytest.mark.attack("takeover-calls", "engine", "a keeper that was taken over starts programs, mounts, connects")
@pytest.mark.parametrize("name", CALLS)
def test_calls(scene, name):
    try_both(CALLS[name], scene)


@pytest.mark.attack("takeover-signal", "engine", "a keeper that was taken over kills a process of the host")
@pytest.mark.skipif(landlock() < 6, reason="signals cannot be confined by this kernel")
def test_signal_by_descriptor(scene):
    subprocess.run(["kill", "-0", str(scene.victim.pid)], check=True)
    try_both(by_pidfd, scene)


def test_what_it_needs_is_left(scene):
    """The walls stand where they should: its own status can be opened, its own sandbox signalled."""
    own = os.fsencode(scene.engine.run_dir / scene.box / "status")
    mark = "8814461"
    scene.engine.run("exec", "-d", scene.box, "--", "sleep", mark, check=True)
    inside = harness.wait_for(lambda: harness.find_process(mark), 10, "the process")
    with inject.Taken(scene.keeper) as call:
        opened = call("openat", AT_FDCWD, own, O_RDWR, 0)
        assert opened >= 0
        pidfd = call("pidfd_open", inside, 0)
        assert pidfd >= 0
        assert call("pidfd_send_signal", pidfd, signal.SIGTERM, 0, 0) == 0
        call("close", opened), call("close", pidfd)
    harness.wait_for(lambda: not harness.find_process(mark), 10, "the end of the process")


def counter_of(scene):
    """The keeper's child that looks into the sandbox's processes, after it was asked for the first time."""
    children = [p for p in os.listdir("/proc") if p.isdigit() and harness.status(p, "PPid") == [str(scene.keeper)]]
    found = next(int(p) for p in children if pathlib.Path(f"/proc/{p}/comm").read_text() == "cay-budget\n")
    scene.engine.run("exec", "-d", scene.box, "--", "sh", "-c", "while :; do :; done", check=True)
    harness.wait_for(lambda: harness.status(found, "Seccomp") == ["2"], 20, "the first question")
    harness.wait_for(lambda: harness.status(found, "State")[0] == "S", 20, "the answer")
    return found


COUNTER = {name: FILES[name] for name in ("secret-write", "new-file", "memory-of-another", "core-pattern", "directory")}
COUNTER |= {name: CALLS[name] for name in ("chmod", "kill", "ptrace", "read-memory", "execve", "mount", "setuid", "code",
                                           "socket-unix", "socket-inet", "memfd", "io-uring")}


@pytest.mark.attack("takeover-counter", "engine", "what counts for the keeper, taken over, writes, kills, starts programs")
def test_counter(scene):
    counter = counter_of(scene)
    assert int(harness.status(counter, "CapPrm")[0], 16) == 1 << 19  # SYS_PTRACE
    assert int(harness.status(counter, "CapBnd")[0], 16) == 0
    assert len(os.listdir(f"/proc/{counter}/fd")) == 5
    for name, attack in COUNTER.items():
        with inject.Taken(counter) as call:
            result = attack(call, scene)
        assert inject.refused(result), f"the counter could: {name} {result}"
        if name not in ("code", "execve", "directory"):
            won = control(attack, scene)
            assert won >= 0, f"the control could not: {name} {os.strerror(-won)}"


def test_a_sandbox_outlives_its_counter(scene):
    os.kill(counter_of(scene), signal.SIGKILL)
    assert scene.engine.sh(scene.box, "echo alive").stdout == "alive\n"


def test_status_of_a_keeper(scene):
    allowed = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 24  # CHOWN DAC_OVERRIDE KILL SYS_RESOURCE
    held = int(harness.status(scene.keeper, "CapPrm")[0], 16)
    assert held & ~allowed == 0
    assert int(harness.status(scene.keeper, "CapBnd")[0], 16) == 0
    assert harness.status(scene.keeper, "NoNewPrivs") == ["1"]
    assert harness.status(scene.keeper, "Seccomp") == ["2"]


@pytest.mark.attack("takeover-rootless", "engine", "the same keeper of an ordinary user opens that user's files")
@pytest.mark.skipif(landlock() < 1, reason="no Landlock in this kernel")
def test_rootless(workshop):
    """It has no capabilities to lose, and its user's files to protect."""
    programs = workshop / "programs"
    subprocess.run(["cp", "-r", PROG, programs], check=True)
    engine = UserEngine("nobody", programs)
    try:
        secret = engine.folder("home") / "secret"
        secret.write_text("secret")
        os.chown(secret, engine.user.pw_uid, engine.user.pw_gid)
        box = engine.create()
        keeper = engine.json("inspect", "--json", box)["keeper_pid"]
        with inject.Taken(keeper) as call:
            assert inject.refused(call("openat", AT_FDCWD, os.fsencode(secret), O_RDONLY, 0))
            assert inject.refused(call("execve", b"/bin/true", 0, 0))
            assert inject.refused(call("socket", 2, 1, 0))
        free = subprocess.Popen(["sleep", "1000"], **engine._as_user())
        harness.wait_for(lambda: harness.status(free.pid, "State")[0] == "S", 10, "sleep")
        with inject.Taken(free.pid) as call:
            assert call("openat", AT_FDCWD, os.fsencode(secret), O_RDONLY, 0) >= 0
            assert call("socket", 2, 1, 0) >= 0
        free.kill(), free.wait()
        assert harness.status(keeper, "NoNewPrivs") == ["1"]
        assert engine.sh(box, "echo alive").stdout == "alive\n"
        engine.run("rm", "-f", box)
    finally:
        engine.clean()
        engine.close()


# ---- the daemon

IN_DAEMON = {
    "clock": lambda call: call("settimeofday", 1, 1),
    "bpf": lambda call: call("bpf", 0, 0, 0),
    "by-handle": lambda call: call("open_by_handle_at", AT_FDCWD, 0, 0),
    "io-uring": lambda call: call("io_uring_setup", 1, 0),
}


@pytest.mark.attack("takeover-daemon", "engine", "a daemon that was taken over changes the kernel")
@pytest.mark.parametrize("name", IN_DAEMON)
def test_daemon(cayd, name):
    free = subprocess.Popen(["sleep", "1000"])
    try:
        harness.wait_for(lambda: harness.status(free.pid, "State")[0] == "S", 10, "sleep")
        with inject.Taken(free.pid) as call:
            # wrong arguments on purpose: the kernel looked at them
            assert IN_DAEMON[name](call) in (-errno.EFAULT, -errno.EINVAL, -errno.EBADF)
    finally:
        free.kill()
        free.wait()
    with inject.Taken(cayd.pid) as call:
        assert IN_DAEMON[name](call) == -errno.EPERM


def test_status_of_a_daemon(cayd):
    """Its bounding set, which its keepers inherit, and one filter, however often it was upgraded."""
    never = {"SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_TIME": 25, "SYS_BOOT": 22, "SYSLOG": 34, "NET_RAW": 13, "BPF": 39}
    bounding = int(harness.status(cayd.pid, "CapBnd")[0], 16)
    assert not [name for name, bit in never.items() if bounding >> bit & 1]
    assert harness.status(cayd.pid, "NoNewPrivs") == ["1"]
    assert harness.status(cayd.pid, "Seccomp_filters") == ["1"]


def test_an_upgrade_stacks_no_filters(daemons):
    daemon = daemons()
    for _ in range(2):
        daemon.upgrade()
    assert harness.status(daemon.pid, "Seccomp_filters") == ["1"]
