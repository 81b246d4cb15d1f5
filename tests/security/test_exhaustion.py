# SPDX-License-Identifier: Apache-2.0
"""Exhaustion: each resource at its limit, and the host, the engine and the neighbours stay fast meanwhile."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from security import harness

MIB = 1 << 20


# -- one resource, one limit: (id, spec, probe inside, the control's place)

LIMITS = [
    ("processes", ("--pids", "64"), ("processes", "300"), "ns"),
    ("threads", ("--pids", "64"), ("threads", "300"), "ns"),
    ("memory", ("--memory", "64M"), ("memory", "256"), "host"),
    ("memory-in-memfd", ("--memory", "64M"), ("memfd", "256"), "host"),
    ("memory-in-sysv-segments", ("--memory", "64M"), ("shm", "256"), "ns"),
    ("memory-in-dev-shm", ("--memory", "64M"), ("write-file", "/dev/shm/hog", "256"), "ns"),
    ("memory-in-tmp", ("--memory", "64M"), ("write-file", "/tmp/hog", "256"), "host"),
    ("memory-in-run", ("--memory", "64M"), ("write-file", "/run/hog", "256"), "host"),
    ("disk", ("--disk", "32M"), ("write-file", "/var/hog", "64"), "host"),
    ("disk-in-home", ("--disk", "32M"), ("write-file", "/root/hog", "64"), "host"),
    ("inodes", ("--disk", "16M"), ("inodes", "/var", "20000"), "scratch"),
    ("inodes-in-tmp", ("--disk", "16M"), ("inodes", "/tmp", "20000"), "scratch"),
    ("descriptors", (), ("descriptors", "8000"), "host"),
]


@pytest.mark.attack("limit-*", "exhaustion", "more of a resource than was given")
@pytest.mark.parametrize("spec,probe,place", [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS])
def test_limit(box, places, scratch, spec, probe, place):
    # the control takes the same amount where there is no limit; files go to the test's own directory
    control = [
        str(scratch / "hog") if "/hog" in word else str(scratch) if word in ("/var", "/tmp") else word
        for word in probe
    ]
    places["host" if place == "scratch" else place].run(*control).must_win()
    sandbox = box(*spec)
    sandbox.run(*probe, timeout=60).must_be_refused(killed_too="mem" in probe[0] or "--memory" in spec)
    if "--memory" not in spec:
        assert sandbox.alive()


@pytest.mark.attack("limit-off-switch", "exhaustion", "a limit that is only the caller's word")
@pytest.mark.parametrize(
    "spec,probe",
    [
        (("--pids", "400"), ("processes", "300")),
        (("--memory", "512M"), ("memory", "256")),
        (("--disk", "128M"), ("write-file", "/var/hog", "64")),
    ],
    ids=["pids", "memory", "disk"],
)
def test_limit_control_inside(box, spec, probe):
    """With a larger limit the same amount is given: it is the limit that refused, not something else."""
    box(*spec).run(*probe, timeout=60).must_win()


def quick(cay, sandbox, seconds=3.0):
    """The engine answers and a neighbour runs a command, both within `seconds`."""
    start = time.monotonic()
    assert cay.run("ps", "-q", timeout=30).returncode == 0
    assert sandbox.alive()
    assert time.monotonic() - start < seconds, "the neighbours are slow"


# -- bombs


@pytest.mark.attack("fork-bomb", "exhaustion", "a fork bomb against neighbours and engine")
def test_fork_bomb(cay, box, places):
    neighbour, bombed = box(), box("--pids", "200", "--cpus", "1")
    places["ns"].run("processes", "300").must_win()  # the control: nothing stops so many elsewhere
    bombed.background("/probe/probe", "storm", "8")
    time.sleep(1.5)
    quick(cay, neighbour)
    assert subprocess.run(["true"], timeout=5).returncode == 0
    start = time.monotonic()
    assert cay.run("kill", bombed.id, timeout=20).returncode == 0
    assert time.monotonic() - start < 5
    bombed.remove()


@pytest.mark.attack("fork-bomb-answers", "exhaustion", "the bombed sandbox itself out of reach of its owner")
def test_fork_bombed_sandbox_still_answers(cay, box):
    bombed = box("--pids", "100", "--cpus", "1")
    bombed.background("/probe/probe", "storm", "6")
    time.sleep(1)
    for command in (("ps", "--json"), ("inspect", bombed.id), ("stats", bombed.id)):
        assert cay.run(*command, timeout=10).returncode == 0, command
    # an exec now may fail for lack of pids, but in words and at once
    done = cay.run("exec", bombed.id, "--", "/bin/true", timeout=10)
    assert done.returncode in (0, 125, 126), done
    time.sleep(7)
    assert bombed.alive(), "when the storm is over the sandbox works again"


@pytest.mark.attack("orphan-flood", "exhaustion", "zombies that fill the process table")
def test_orphans_are_reaped(box, places, probe_dir):
    # the control: where pid 1 does not reap (sleep, here), they stay
    done = harness.run_host(
        [
            *harness.UNSHARE,
            "sh",
            "-c",
            f"{probe_dir}/probe orphans 50 > $0.out & exec sleep 5",
            probe_dir / "orphans",
        ]
    )
    assert done.returncode == 0
    assert (probe_dir / "orphans.out").read_text().startswith("won: 50")
    sandbox = box("--pids", "64")
    sandbox.run("orphans", "500").must_be_refused()
    assert sandbox.alive()


@pytest.mark.attack("cpu-hog", "exhaustion", "more CPU than was given")
def test_cpu_hog(box, places):
    free = places["host"]
    most = 0.1 * 3000 * 1.4
    control = int(harness.run_host([free.probe, "spin", "3", "4"]).stdout)
    sandbox = box("--cpus", "0.1")
    spent = int(sandbox.exec("/probe/probe", "spin", "3", "4", timeout=30).stdout)
    assert control > 2 * most, "the control: without a limit it takes what there is"
    assert spent < most, spent


# -- memory that is not the sandbox's own


def keeper_of(sandbox):
    return harness.init_of(sandbox.host_pid())[1]


@contextlib.contextmanager
def bounded_memory(pid, limit):
    """The process's memory, looked at every 20 ms, stays below the limit."""
    peak, over = [0], threading.Event()

    def look():
        while True:
            peak[0] = max(peak[0], harness.memory_of(pid))
            if over.wait(0.02):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield peak
    over.set()
    thread.join()
    assert 0 < peak[0] < limit, f"{peak[0]} bytes"


@pytest.mark.attack("output-flood", "exhaustion", "endless output against the keeper's memory and disk")
def test_output_flood(cay, box):
    flood = subprocess.Popen(["timeout", "1", "yes"], stdout=subprocess.PIPE)
    amount = sum(len(block) for block in iter(lambda: flood.stdout.read(MIB), b""))
    flood.wait()
    assert amount > 64 * MIB  # the control: so much comes in a second
    sandbox = box()
    with bounded_memory(keeper_of(sandbox), 16 * MIB):
        done = cay.run("exec", "--json", sandbox.id, "--", "yes", timeout=60)
        sandbox.background("yes")
        time.sleep(2)
    assert done.returncode == 125 and "too_large" in done.stderr  # no result has room for it
    assert disk_use(cay.top) < 64 * MIB


def disk_use(folder):
    return (
        int(
            subprocess.run(
                ["du", "-sk", "--apparent-size", "-x", folder], stdout=subprocess.PIPE, text=True
            ).stdout.split()[0]
        )
        * 1024
    )


@pytest.mark.attack("output-flood-unread", "exhaustion", "a process that nobody reads blocked for ever")
def test_output_of_a_background_process_is_drained(box, scratch):
    blocked = subprocess.Popen(
        ["sh", "-c", f"head -c 4000000 /dev/zero; echo done > {scratch}/done"], stdout=subprocess.PIPE
    )
    time.sleep(0.5)
    assert not (scratch / "done").exists()  # the control: an unread pipe stops its writer
    blocked.kill()
    blocked.wait()
    sandbox = box()
    sandbox.background("sh", "-c", "head -c 40000000 /dev/zero; echo done > /tmp/done")
    harness.wait_for(lambda: sandbox.sh("cat /tmp/done").stdout == "done\n", 20, "the end of the process")


@pytest.mark.attack("slow-reader", "exhaustion", "a reader that never reads")
def test_slow_reader_blocks_nobody_else(cay, box):
    """It holds its own command, as it would with a pipe, until it goes; others in the sandbox do not notice."""
    sandbox = box()
    with bounded_memory(keeper_of(sandbox), 16 * MIB):
        reader = cay.popen(
            "exec", sandbox.id, "--", "sh", "-c", "head -c 60000000 /dev/zero; echo done > /tmp/done; sleep 2"
        )
        time.sleep(0.3)
        os.kill(reader.pid, signal.SIGSTOP)
        try:
            sandbox.background("sh", "-c", "head -c 60000000 /dev/zero; echo done > /tmp/other")
            harness.wait_for(lambda: sandbox.sh("cat /tmp/other").stdout == "done\n", 20, "the other process")
            assert sandbox.sh("cat /tmp/done").returncode != 0
        finally:
            os.kill(reader.pid, signal.SIGCONT)
            reader.kill()
            reader.wait()
        harness.wait_for(lambda: sandbox.sh("cat /tmp/done").stdout == "done\n", 20, "the end of the process")


@pytest.mark.attack(
    "input-flood", "exhaustion", "input that the process never reads against the keeper's memory"
)
def test_input_flood(cay, box):
    sandbox = box()
    with bounded_memory(keeper_of(sandbox), 16 * MIB):
        writer = cay.popen("exec", "-i", sandbox.id, "--", "sleep", "30")
        os.set_blocking(writer.stdin.fileno(), False)
        sent, end = 0, time.monotonic() + 3
        while time.monotonic() < end and sent < 256 * MIB:
            try:
                sent += os.write(writer.stdin.fileno(), b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.02)
            except BrokenPipeError:
                raise AssertionError(f"the caller gave up instead of waiting: {writer.stderr.read()}")
        assert sent > 0  # the control: the flood did flow until it was held back
        assert sent < 64 * MIB, "nobody held the writer back"
        quick(cay, sandbox)
        writer.kill()
        writer.wait()


@pytest.mark.attack("oom-takes-a-neighbour", "exhaustion", "a memory hog against neighbour and engine")
def test_memory_hog_leaves_the_neighbour(cay, box, places):
    places["host"].run("memory", "300").must_win()
    neighbour, hog = box("--memory", "128M"), box("--memory", "64M")
    keeper = keeper_of(neighbour)
    hog.run("memory", "300", timeout=60).must_be_refused(killed_too=True)
    quick(cay, neighbour)
    assert keeper_of(neighbour) == keeper
    hogs = [s for s in cay.json("ps", "-a", "--json") if s["id"] == hog.id]
    assert hogs and hogs[0]["state"] == "running"


# -- disk of the host


@pytest.mark.attack("host-disk-filled", "exhaustion", "the host's disk filled through the sandbox")
def test_host_disk_is_not_filled(cay, box, scratch, places):
    def free():
        info = os.statvfs(cay.top)
        return info.f_bavail * info.f_frsize

    places["host"].run("write-file", scratch / "hog", "256").must_win()
    sandbox = box("--disk", "32M", "--memory", "128M")
    before = free()
    sandbox.sh(
        "for d in / /var /root /tmp /home /etc /usr /run /dev/shm /dev /opt; do "
        "dd if=/dev/zero of=$d/hog bs=1M count=256; done; sync",
        timeout=120,
    )
    assert before - free() < 96 * MIB
    assert sandbox.alive() or cay.run("inspect", sandbox.id).returncode == 0


@pytest.mark.attack("sparse-file", "exhaustion", "a file of 10 GB that takes no space, copied")
def test_sparse_file_is_streamed(cay, box):
    sandbox = box()
    sandbox.must("truncate -s 10G /tmp/huge")
    assert sandbox.must("stat -c %s /tmp/huge").strip() == str(10 << 30)  # the control: it is that large
    with bounded_memory(keeper_of(sandbox), 16 * MIB):
        reader = cay.popen("fs", "cat", sandbox.id, "/tmp/huge")
        assert reader.stdout.read(8 * MIB) == b"\0" * 8 * MIB
        assert harness.memory_of(reader.pid) < 16 * MIB
        reader.stdout.close()
        reader.wait(timeout=10)
    quick(cay, sandbox)


@pytest.mark.attack("deep-tree", "exhaustion", "a tree deeper than any path")
def test_deep_tree(cay, box, scratch, places):
    sandbox = box()
    sandbox.run("deep", "/tmp", "1500").must_win()
    with pytest.raises(OSError):  # the control: by path it cannot be reached
        os.stat(scratch / "/".join(["d" * 40] * 1500))
    for command in (
        ("fs", "find", sandbox.id, "/tmp"),
        ("fs", "ls", sandbox.id, "/tmp"),
        ("fs", "grep", sandbox.id, "x", "/tmp"),
        ("cp", f"{sandbox.id}:/tmp", scratch / "out"),
    ):
        cay.run(*command, timeout=30)
    quick(cay, sandbox)
    cay.run("rm", "-f", sandbox.id, check=True, timeout=30)
    subprocess.run(["rm", "-rf", scratch / "out"])


@pytest.mark.attack(
    "long-names", "exhaustion", "names of 255 bytes, with newlines and bytes that are no text"
)
def test_long_and_strange_names(cay, box):
    sandbox = box()
    script = r"""
import os
os.mkdir('/tmp/n')
for name in (b'a' * 255, b'new\nline', b'\x1b[31mred', b'\xff\xfe', b'-rf', b' ', b'"quoted"', b'back\\slash'):
    open(b'/tmp/n/' + name, 'w').close()
"""
    done = sandbox.exec("python3", "-c", script)
    assert done.returncode == 0, done.stderr
    entries = json.loads(cay.run("fs", "ls", "--json", sandbox.id, "/tmp/n", check=True).stdout)
    assert len(entries) == 8


# -- budgets that belong to a user of the host


@pytest.mark.attack("user-budget-*", "exhaustion", "a budget of the host's user used up for others")
@pytest.mark.parametrize("what,amount", [("inotifies", "128"), ("pipes", "63"), ("terminals", "1000")])
def test_budget_of_a_user(cay, box, places, probe_dir, what, amount):
    """One sandbox takes all it can get and holds it: host and neighbour still get theirs."""
    if what != "terminals":
        # the control: two processes of one user of the host do take it from each other
        first = subprocess.Popen(
            [*harness.NOBODY, probe_dir / "probe", what, "4000", "4"], stdout=subprocess.PIPE, text=True
        )
        assert first.stdout.readline() == "holding\n"
        places["nobody"].run(what, "2").must_be_refused()
        first.wait()
    greedy, neighbour = box("--pids", "64"), box()
    greedy.background("/probe/probe", what, "4000", "20")
    time.sleep(1)
    for place in ("nobody", "host"):
        assert places[place].run(what, "16").kind == harness.WON, f"the sandbox took it from {place}"
    assert neighbour.run(what, "16").kind == harness.WON, "the sandbox took it from its neighbour"
    quick(cay, neighbour)


# -- the engine's own tables


@pytest.mark.attack(
    "process-table-of-the-keeper", "exhaustion", "more background processes than there may be"
)
def test_many_background_processes(cay, box):
    sandbox = box("--pids", "40")
    results = [cay.run("exec", "-d", sandbox.id, "--", "sleep", "600") for _ in range(60)]
    good = [r for r in results if r.returncode == 0]
    bad = [r for r in results if r.returncode != 0]
    assert len(good) >= 30 and bad, "the control: the first ones run"
    assert all(r.returncode in (125, 126) and r.stderr.count("\n") == 1 for r in bad), bad[0]
    assert cay.run("procs", sandbox.id).returncode == 0
    assert cay.run("rm", "-f", sandbox.id, timeout=30).returncode == 0


@pytest.mark.attack("control-socket-flood", "exhaustion", "connections to the control socket")
def test_control_socket_flood(cay, box):
    sandbox = box()
    keeper = keeper_of(sandbox)
    path = str(cay.run_dir / sandbox.id / "ctl")
    held = []
    with bounded_memory(keeper, 48 * MIB):
        for i in range(1500):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(0.2)
            try:
                peer.connect(path)
                peer.send(
                    [
                        b"",
                        b"\xff" * 64,
                        b"\x00\x00\x10\x00\x10\x00\x00\x01\x01\x00\x00\x00",
                        b"GET / HTTP/1.1\r\n\r\n",
                    ][i % 4]
                )
            except OSError:
                pass
            held.append(peer)
        assert (
            len(held) == 1500
        )  # the control: so many were tried; a keeper without a bound would hold all of them
        for peer in held:
            peer.close()
    quick(cay, sandbox)
    assert keeper_of(sandbox) == keeper


@pytest.mark.attack(
    "control-socket-of-another-user", "exhaustion", "the control socket used by another user of the host"
)
def test_control_socket_is_the_owners_alone(cay, sandboxes, places):
    path = cay.run_dir / sandboxes().id / "ctl"
    places["host"].run("unix-connect", path).must_win()
    places["nobody"].run("unix-connect", path).must_be_refused()
    places["nobody"].run("find", "ctl", cay.run_dir).must_be_refused()
    places["nobody"].run("find", "spec", cay.state).must_be_refused()


@pytest.mark.attack("file-channel-flood", "exhaustion", "more file channels than there may be")
def test_many_watchers(cay, box):
    sandbox = box()
    watchers = [cay.popen("fs", "watch", sandbox.id, "/tmp") for _ in range(80)]
    try:
        time.sleep(2)
        refused = [w for w in watchers if w.poll() is not None]
        assert refused and len(refused) < 40, "the control: most of them watch"
        assert all(w.returncode == 125 for w in refused)
        done = sandbox.exec("/bin/true", timeout=20)
        assert done.returncode == 0
    finally:
        for each in watchers:
            each.kill()
            each.communicate()
    harness.wait_for(
        lambda: cay.run("fs", "ls", sandbox.id, "/").returncode == 0, 10, "the file API afterwards"
    )


# -- ends


@pytest.mark.attack("stubborn-process", "exhaustion", "a process that ignores every signal at stop")
def test_stop_ends_a_stubborn_process(cay, box, probe_dir):
    control = subprocess.Popen([probe_dir / "probe", "stubborn", "30"], stdout=subprocess.PIPE, text=True)
    control.stdout.readline()
    control.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        control.wait(timeout=1)
    control.kill()
    control.wait()
    sandbox = box()
    sandbox.background("/probe/probe", "stubborn", "600")
    pid = harness.wait_for(lambda: harness.find_process("600"), 10, "the process")
    start = time.monotonic()
    assert cay.run("stop", sandbox.id, timeout=40).returncode == 0
    assert time.monotonic() - start < 30
    harness.wait_for(lambda: not os.path.exists(f"/proc/{pid}"), 2, "its end")


@pytest.mark.attack(
    "daemon-outlives-timeout", "exhaustion", "a child that left its session when the timeout comes"
)
@pytest.mark.parametrize("profile", ["default", "nested"])
def test_timeout_ends_a_daemon_too(cay, box, scratch, probe_dir, profile):
    control = subprocess.Popen([probe_dir / "probe", "daemon", scratch / "beat", "4"], start_new_session=True)
    time.sleep(0.6)
    os.killpg(control.pid, signal.SIGKILL)
    control.wait()
    size = (scratch / "beat").stat().st_size
    time.sleep(0.5)
    assert (scratch / "beat").stat().st_size > size  # the control: killing the process group is not enough
    sandbox = box("--profile", profile)
    done = cay.run(
        "exec", "--timeout", "1", sandbox.id, "--", "/probe/probe", "daemon", "/tmp/beat", "60", timeout=20
    )
    assert done.returncode == 124, done
    first = int(sandbox.must("stat -c %s /tmp/beat"))
    time.sleep(0.7)
    assert int(sandbox.must("stat -c %s /tmp/beat")) == first > 0
    sandbox.run("see", "innocent").must_be_refused()


@pytest.mark.attack(
    "daemon-outlives-sandbox", "exhaustion", "a process that is left when its sandbox is removed"
)
def test_nothing_outlives_the_sandbox(cay, box, probe_dir):
    sandbox = box()
    sandbox.background("/probe/probe", "daemon", "/tmp/beat", "7001")
    pid = harness.wait_for(lambda: harness.find_process("7001"), 10, "the process")
    inner, keeper = harness.init_of(pid)
    assert os.path.exists(f"/proc/{pid}")  # the control: it lives until then
    cay.run("rm", "-f", sandbox.id, check=True)
    for each in (pid, inner, keeper):
        harness.wait_for(lambda: harness.status(each, "State")[:1] in ([], ["Z"]), 5, f"the end of {each}")
    assert harness.find_process("7001") is None


@pytest.mark.attack("huge-arguments", "exhaustion", "arguments and environment beyond every bound")
@pytest.mark.parametrize("size", [100_000, 130_000, 1_500_000])
def test_huge_arguments(cay, box, size):
    sandbox = box()
    parts = ["x" * min(size, 60_000) for _ in range(max(1, size // 60_000))]
    done = cay.run("exec", sandbox.id, "--", "/bin/true", *parts, timeout=20)
    assert done.returncode == 0 or (
        done.returncode in (125, 126) and done.stderr.count("\n") == 1
    ), done.stderr[:500]
    if size == 100_000:
        assert done.returncode == 0  # the control: an ordinary large command line works
    assert sandbox.alive()
