# SPDX-License-Identifier: Apache-2.0
"""Kernel surface, attacks of more than one step: the filter itself, ids, gained powers, reaching others."""

import os
import platform
import shutil
import socket
import subprocess
import threading
import time

import pytest

from security import filters, harness, images

X32 = 0x40000000
HIGH = 1 << 32

# name, number, arguments, architecture: each must be refused by the filter of every profile
FILTERED = [
    ("af-alg", 41, (38, 5, 0)),
    ("af-alg-high-bits", 41, (38 | HIGH, 5, 0)),
    ("af-key", 41, (15, 3, 2)),
    ("af-vsock-socketpair", 53, (40, 1, 0)),
    ("af-packet-high-bits", 41, (17 | HIGH, 3, 0)),
    ("af-bluetooth", 41, (31, 3, 1)),
    ("af-can", 41, (29, 3, 1)),
    ("af-xdp", 41, (44, 3, 0)),
    ("raw-socket-with-flags", 41, (2, 3 | 0o2000000, 255)),
    ("netlink-crypto", 41, (16, 3, 21)),
    ("kexec-load", 246, ()),
    ("kexec-file-load", 320, ()),
    ("init-module", 175, ()),
    ("finit-module", 313, ()),
    ("delete-module", 176, ()),
    ("iopl", 172, (3,)),
    ("ioperm", 173, ()),
    ("io-uring-enter", 426, ()),
    ("io-uring-register", 427, ()),
    ("lookup-dcookie", 212, ()),
    ("nfsservctl", 180, ()),
    ("uselib", 134, ()),
    ("tcp-ulp", 54, (3, 6, 31)),
    ("tcp-ulp-high-bits", 54, (3, 6 | HIGH, 31 | HIGH)),
    ("tcp-repair", 54, (3, 6, 19)),
    ("tiocsti-high-bits", 16, (0, 0x5412 | HIGH)),
    ("tiocsetd-high-bits", 16, (0, 0x5423 | HIGH)),
    ("x32-getpid", X32 | 39, ()),
    ("x32-io-uring", X32 | 425, ()),
    ("x32-ptrace", X32 | 521, ()),
    ("future-call", 4999, ()),
    ("negative-call", -1, ()),
]
ALLOWED = [
    ("read", 0, ()),
    ("getpid", 39, ()),
    ("execve", 59, ()),
    ("tcp", 41, (2, 1, 6)),
    ("udp", 41, (2, 2, 0)),
    ("unix", 41, (1, 1, 0)),
    ("netlink-route", 41, (16, 3, 0)),
    ("ioctl-tcgets", 16, (0, 0x5401)),
    ("ptrace", 101, ()),
    ("tcp-nodelay", 54, (3, 6, 1)),
]

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")


@pytest.fixture(scope="module")
def installed(sandboxes):
    """The filters that the processes of each profile have now."""
    read = {}

    def get(profile):
        if profile not in read:
            read[profile] = filters.read_filters(sandboxes(profile).host_pid())
        return read[profile]

    return get


@needs_x86
@pytest.mark.attack("filter-*", "kernel", "calls that only other kernels have")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
@pytest.mark.parametrize("name,number,args", FILTERED, ids=[row[0] for row in FILTERED])
def test_filter_refuses(installed, profile, name, number, args):
    assert filters.verdict(installed(profile), number, args) != "allow"


@needs_x86
@pytest.mark.attack("filter-32-bit", "kernel", "every call of the 32-bit table")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_filter_refuses_the_whole_32_bit_table(installed, profile):
    open_calls = [
        n for n in range(512) if filters.verdict(installed(profile), n, (), filters.ARCH_I386) == "allow"
    ]
    assert open_calls == []


@needs_x86
@pytest.mark.parametrize("profile", ["default", "nested"])
@pytest.mark.parametrize("name,number,args", ALLOWED, ids=[row[0] for row in ALLOWED])
def test_filter_control(installed, profile, name, number, args):
    """The same reading of the filter lets everyday calls through: it does not just refuse all."""
    assert filters.verdict(installed(profile), number, args) == "allow"


@pytest.mark.attack("root-is-not-root", "kernel", "uid 0 inside is uid 0 of the host")
def test_root_inside_is_an_ordinary_id_of_the_host(sandboxes):
    pid = sandboxes().host_pid()
    assert harness.status(os.getpid(), "Uid") == ["0"] * 4  # the control: what root looks like from here
    assert sandboxes().must("id -u").strip() == "0"
    for key in ("Uid", "Gid"):
        assert all(int(word) >= 65536 for word in harness.status(pid, key)), harness.status(pid, key)
    assert all(int(word) >= 65536 for word in harness.status(pid, "Groups"))


@pytest.mark.attack("id-ranges-disjoint", "kernel", "two sandboxes with the same host ids")
def test_two_sandboxes_share_no_id(box):
    ranges = []
    for _ in range(3):
        pid = box().host_pid()
        for line in harness.read_bytes(f"/proc/{pid}/uid_map").decode().splitlines():
            _, start, count = map(int, line.split())
            ranges.append(range(start, start + count))
    # the control: a range does overlap itself
    assert set(ranges[0]) & set(ranges[0])
    for i, one in enumerate(ranges):
        for other in ranges[i + 1 :]:
            assert one.stop <= other.start or other.stop <= one.start, (one, other)


@pytest.fixture
def host_process():
    mark = f"cay-host-{time.monotonic_ns()}"
    process = subprocess.Popen(["sleep", "300"], executable="/bin/sleep", env={"MARK": mark})
    named = subprocess.Popen([mark, "300"], executable="/bin/sleep")
    # Its descriptors are closed, which is what Popen waits for, before it has its command line.
    harness.wait_for(lambda: mark.encode() in harness.read_bytes(f"/proc/{named.pid}/cmdline"), 10, "the process's name")
    yield process.pid, mark
    for each in (process, named):
        each.kill()
        each.wait()


@pytest.mark.attack("signal-to-the-host", "kernel", "a signal to a process of the host")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_signal_to_a_host_process(places, sandboxes, host_process, profile):
    pid, _ = host_process
    places["host"].run("signal-pid", pid).must_win()
    sandboxes(profile).run("signal-pid", pid).must_be_refused()


@pytest.mark.attack("host-process-seen", "kernel", "a process of the host in /proc")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_host_process_in_proc(places, sandboxes, host_process, profile):
    _, mark = host_process
    places["host"].run("see", mark).must_win()
    sandboxes(profile).run("see", mark).must_be_refused()


@pytest.mark.attack("neighbour-process-seen", "kernel", "a process of another sandbox in /proc")
def test_neighbour_process_in_proc(box):
    first, second = box(), box()
    first.background("sleep", "7654321")
    harness.wait_for(lambda: first.run("see", "7654321").kind == harness.WON, 10, "the neighbour's process")
    second.run("see", "7654321").must_be_refused()


@pytest.mark.attack("chroot-escape", "kernel", "the double chroot")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_chroot_escape(sandboxes, places, probe_dir, scratch, marker, profile):
    jail = scratch / "jail"
    jail.mkdir()
    shutil.copy(probe_dir / "probe", jail / "probe")
    # the control: a root without namespaces in a plain chroot walks out of it
    control = harness.run_host(["chroot", jail, "/probe", "chroot-escape", "/", marker.path, marker.text])
    harness.verdict(control).must_win()
    sandboxes(profile).run("chroot-escape", "/tmp", marker.path, marker.text).must_be_refused()


@pytest.mark.attack("set-uid-program", "kernel", "a set-uid root program")
@pytest.mark.attack("file-capabilities", "kernel", "a program with file capabilities")
@pytest.mark.parametrize("how", ["suid", "caps"])
@pytest.mark.parametrize("profile", ["default", "nested"])
def test_powers_from_a_planted_program(box, places, scratch, how, profile):
    places["host"].run("plant", scratch / "gift", how).must_win()
    harness.verdict(harness.run_host([*harness.NOBODY, scratch / "gift", "powers"])).must_win()
    sandbox = box("--profile", profile)
    sandbox.run("plant", "/tmp/gift", how).must_win()
    harness.verdict(sandbox.exec("/tmp/gift", "powers", options=("-u", "65534:65534"))).must_be_refused()


@pytest.mark.attack("set-uid-program-of-the-image", "kernel", "a set-uid program of the host image")
def test_set_uid_program_of_the_host_image(sandboxes):
    """su of the host is set-uid root: as an ordinary user it stays without powers."""
    assert os.stat("/usr/bin/su").st_mode & 0o4000, "the control: it is set-uid on the host"
    done = sandboxes().exec(
        "/bin/sh",
        "-c",
        "/usr/bin/su -c id root </dev/null; grep -E 'NoNewPrivs|CapEff' /proc/self/status",
        options=("-u", "65534:65534"),
    )
    assert "uid=0" not in done.stdout
    assert "CapEff:\t0000000000000000" in done.stdout


@pytest.mark.attack("device-in-image", "kernel", "a device node that the image brings")
@pytest.mark.parametrize("kind", ["image", "mount"])
def test_device_node_from_outside(cay, box, probe_dir, scratch, kind):
    root = images.make(scratch / "image", probe_dir)
    node = (root if kind == "image" else scratch) / "full-node"
    os.mknod(node, 0o666 | 0o020000, os.makedev(1, 7))
    os.chmod(node, 0o666)
    with open(node, "rb") as device:  # the control: on the host it is a device
        assert device.read(1) == b"\0"
    options = ("--image", f"dir:{root}") if kind == "image" else ("-v", f"{scratch}:/mnt")
    path = "/full-node" if kind == "image" else "/mnt/full-node"
    box(*options).run("read", path).must_be_refused()


# -- what processes of a machine share


@pytest.fixture
def host_server():
    """A TCP server on every address of the host that says who it is, and a UDP socket that listens."""
    word = f"host-server-{time.monotonic_ns()}"
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = server.getsockname()[1]

    def answer():
        while True:
            try:
                peer, _ = server.accept()
                peer.sendall(word.encode())
                peer.close()
            except OSError:
                return

    threading.Thread(target=answer, daemon=True).start()
    yield port, word
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def host_addresses():
    """Loopback, and the address of each interface that has one."""
    found = ["127.0.0.1", "::1", "127.1.2.3"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))  # sends nothing: only asks for a route
            found.append(s.getsockname()[0])
        except OSError:
            pass
    return found


@pytest.mark.attack("host-service-tcp", "kernel", "a TCP service of the host")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
@pytest.mark.parametrize("address", host_addresses())
def test_host_tcp_service(places, sandboxes, host_server, address, profile):
    port, word = host_server
    places["host"].run("connect", address, port, word).must_win()
    sandboxes(profile).run("connect", address, port, word).must_be_refused()


@pytest.mark.attack("host-service-udp", "kernel", "a UDP service of the host")
@pytest.mark.parametrize("address", [a for a in host_addresses() if ":" not in a])
def test_host_udp_service(places, sandboxes, address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))
        server.settimeout(1)
        places["host"].run("datagram", address, server.getsockname()[1], "control").must_win()
        assert server.recv(100) == b"control"
        sandboxes().run("datagram", address, server.getsockname()[1], "attack")
        with pytest.raises(TimeoutError):
            server.recv(100)


@pytest.mark.attack("neighbour-service", "kernel", "a TCP service of another sandbox")
def test_neighbour_tcp_service(box):
    first, second = box(), box()
    first.background(
        "python3",
        "-c",
        "import socket\ns = socket.create_server(('127.0.0.1', 4321))\n"
        "while True:\n  c, _ = s.accept()\n  c.sendall(b'neighbour'); c.close()",
    )
    harness.wait_for(
        lambda: first.run("connect", "127.0.0.1", 4321, "neighbour").kind == harness.WON, 10, "the service"
    )
    second.run("connect", "127.0.0.1", 4321, "neighbour").must_be_refused()


@pytest.mark.attack("abstract-socket", "kernel", "an abstract unix socket of the host")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_abstract_socket_of_the_host(places, sandboxes, profile):
    name = f"cay-attack-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        places["host"].run("unix-connect", "@" + name).must_win()
        sandboxes(profile).run("unix-connect", "@" + name).must_be_refused()


def holder(argv):
    """A host process that makes something and holds it."""
    process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "made\n"
    return process


@pytest.mark.attack("sysv-shared-memory", "kernel", "SysV shared memory of the host")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_sysv_shared_memory_of_the_host(places, sandboxes, probe_dir, profile):
    process = holder([*harness.UNSHARE[:2], "--ipc", probe_dir / "probe", "shm-make", "0xca7", "20"])
    try:
        inner = harness.run_host(
            ["nsenter", "-t", str(child_of(process.pid)), "-i", probe_dir / "probe", "shm-read", "0xca7"]
        )
        harness.verdict(inner).must_win()
        sandboxes(profile).run("shm-read", "0xca7").must_be_refused()
    finally:
        process.kill()
        process.wait()


def child_of(pid):
    """unshare --fork's child, or the process itself."""
    words = harness.read_bytes(f"/proc/{pid}/task/{pid}/children").split()
    return int(words[0]) if words else pid


@pytest.mark.attack(
    "neighbour-shared-memory", "kernel", "SysV shared memory and message queues of another sandbox"
)
@pytest.mark.parametrize("kind,name", [("shm", "0xca8"), ("queue", "/cay-queue")])
def test_shared_memory_of_a_neighbour(box, kind, name):
    first, second = box(), box()
    first.background("/probe/probe", f"{kind}-make", name, "60")
    look = f"{kind}-{'read' if kind == 'shm' else 'open'}"
    harness.wait_for(lambda: first.run(look, name).kind == harness.WON, 10, "the neighbour's object")
    second.run(look, name).must_be_refused()


@pytest.mark.attack("posix-shared-memory", "kernel", "a file of the host's /dev/shm")
def test_posix_shared_memory_of_the_host(places, sandboxes):
    path = f"/dev/shm/cay-attack-{time.monotonic_ns()}"
    with open(path, "w") as f:
        f.write("secret")
    try:
        places["host"].run("read", path, "secret").must_win()
        sandboxes().run("read", path, "secret").must_be_refused()
    finally:
        os.unlink(path)


@pytest.mark.attack("host-name", "kernel", "the host's name")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_host_name(places, sandboxes, profile):
    places["host"].run("hostname", os.uname().nodename).must_win()
    sandboxes(profile).run("hostname", os.uname().nodename).must_be_refused()
