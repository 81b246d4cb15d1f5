# SPDX-License-Identifier: Apache-2.0
"""What no control group counts: kernel memory, and the limits that all of the host shares. Whoever takes more than its
share is ended, and says of what; the host and the neighbours do not notice."""

import pathlib
import time

import pytest

from security import harness


def read_word(path, position=0):
    return int(pathlib.Path(path).read_text().split()[position])


FILE_MAX = read_word("/proc/sys/fs/file-max")
PTY_MAX = read_word("/proc/sys/kernel/pty/max")


def kernel_memory():
    """Bytes that the host's kernel cannot give back."""
    lines = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return int(lines["SUnreclaim"].split()[0]) * 1024


def state_of(cay, sandbox):
    shown = cay.json("inspect", sandbox.id)
    return shown["state"], shown["reason"]


def must_end(cay, sandbox, what):
    """As out of memory, for a reason that names the object."""
    state, reason = harness.wait_for(
        lambda: (found := state_of(cay, sandbox))[0] != "running" and found, 150, f"the end of the hoard of {what}"
    )
    assert state == "oom" and reason.startswith(what + ": "), (state, reason)


def everybody_is_well(cay, neighbour):
    assert neighbour.alive(), "a command in the neighbour"
    assert cay.run("run", "--", "true", timeout=60).returncode == 0, "a new sandbox"
    done = harness.run_host([*harness.NOBODY, "/bin/cat", "/proc/sys/kernel/ostype"])
    assert (done.returncode, done.stdout) == (0, "Linux\n"), f"an ordinary user of the host: {done.stderr}"


# -- memory that no group counts

MEMORY = [
    ("file locks", "hoard-locks", "default"),
    ("file locks", "hoard-locks", "strict"),
    ("netlink buffers", "hoard-netlink", "default"),  # strict has no such sockets
]


@pytest.mark.attack("uncounted-*", "exhaustion", "kernel memory that memory limits do not count")
@pytest.mark.parametrize("what,probe,profile", MEMORY, ids=["locks", "locks-strict", "netlink"])
def test_uncounted_memory_has_an_end(cay, box, places, what, probe, profile):
    places["host"].run(probe, "100", "2", "0").must_win()
    neighbour = box("--memory", "64M")
    # busy with the same things, within its share
    neighbour.background(harness.IN_SANDBOX, probe, "20", "1", "60")
    before = kernel_memory()
    sandbox = box("--memory", "64M", "--profile", profile)
    sandbox.background(harness.IN_SANDBOX, probe, "700", "2", "120")
    must_end(cay, sandbox, what)
    everybody_is_well(cay, neighbour)
    assert state_of(cay, neighbour)[0] == "running"
    neighbour.remove()
    # the kernel frees it in its own time
    harness.wait_for(lambda: kernel_memory() - before < 96 << 20, 30, "the kernel's memory")


@pytest.mark.attack("uncounted-told", "exhaustion", "an end that does not say why")
def test_whoever_waits_is_told_what_it_was(box):
    done = box("--memory", "64M").exec(harness.IN_SANDBOX, "hoard-locks", "700", "2", "60", timeout=120)
    assert done.returncode == 137 and "file locks: " in done.stderr, done.stderr
    assert "--memory gives" not in done.stderr


@pytest.mark.attack("uncounted-late", "exhaustion", "a hoard by what a command left behind")
def test_what_a_command_left_behind_is_watched(cay, box):
    sandbox = box("--memory", "64M")
    sandbox.must("setsid /probe/probe hoard-locks 700 2 120 >/dev/null 2>&1 & sleep 0.2")
    must_end(cay, sandbox, "file locks")


@pytest.mark.attack("uncounted-paused", "exhaustion", "a hoard that goes on after a pause")
def test_a_pause_does_not_end_the_watch(cay, box):
    sandbox = box("--memory", "64M")
    sandbox.background("sh", "-c", f"sleep 2; exec {harness.IN_SANDBOX} hoard-locks 700 2 120")
    assert cay.run("pause", sandbox.id).returncode == 0
    time.sleep(1.5)
    assert cay.run("resume", sandbox.id).returncode == 0
    must_end(cay, sandbox, "file locks")


@pytest.mark.attack("uncounted-pauses", "exhaustion", "a hoard under pauses that come faster than looks")
def test_many_pauses_do_not_end_the_watch(cay, box):
    sandbox = box("--memory", "64M")
    sandbox.background(harness.IN_SANDBOX, "hoard-locks", "700", "2", "120")
    end = time.monotonic() + 150
    while state_of(cay, sandbox)[0] != "oom" and time.monotonic() < end:
        for verb in ("pause", "resume"):
            cay.run(verb, sandbox.id)
        time.sleep(0.5)
    must_end(cay, sandbox, "file locks")


@pytest.mark.attack("socket-buffers-udp", "exhaustion", "memory in UDP sockets, beyond that of the sandbox")
def test_udp_buffers_are_limited(box, places):
    places["host"].run("hoard-udp", "128", "2", "0").must_win()
    sandbox = box("--memory", "64M")
    sandbox.run("hoard-udp", "128", "2", "0").must_be_refused(killed_too=True)
    # and it is the sandbox's limit, not a command's; another one, as buffers are freed a little after their sockets
    sandbox = box("--memory", "64M")
    sandbox.background(harness.IN_SANDBOX, "hoard-udp", "40", "2", "30")
    time.sleep(2)
    sandbox.run("hoard-udp", "60", "2", "0").must_be_refused(killed_too=True)


@pytest.mark.attack("socket-buffers-tcp", "exhaustion", "memory in TCP sockets, beyond that of the sandbox")
def test_tcp_buffers_are_limited(cay, box, places):
    places["host"].run("hoard-tcp", "128", "2", "0").must_win()
    neighbour = box()
    # The kernel gives each socket a little, whatever the limit says: it takes many of them, and is noticed.
    sandbox = box("--memory", "64M")
    sandbox.run("hoard-tcp", "1000", "4", "20", timeout=200).must_be_refused(killed_too=True)
    everybody_is_well(cay, neighbour)


# -- limits that all of the host shares


@pytest.mark.attack("host-files", "exhaustion", "all open files of the host")
@pytest.mark.skipif(FILE_MAX > 10_000_000, reason="fs.file-max of this host is more than the tests may open")
def test_open_files_of_the_host(cay, box, places):
    # a little more than the quarter from which on it is looked at, and less than half
    wanted = FILE_MAX * 3 // 10
    places["host"].run("hoard-files", "60000", "20", "0").must_win()
    neighbour = box()
    # many descriptors, few files: 200,000 of 2,000
    neighbour.background(harness.IN_SANDBOX, "hoard-shared-files", "0", "100", "120")
    sandbox = box()
    sandbox.background(harness.IN_SANDBOX, "hoard-files", str(wanted), "400", "120")
    must_end(cay, sandbox, "open files")
    everybody_is_well(cay, neighbour)
    assert state_of(cay, neighbour)[0] == "running"
    assert read_word("/proc/sys/fs/file-nr") < FILE_MAX // 2


@pytest.mark.attack("host-terminals", "exhaustion", "all terminals of the host")
@pytest.mark.skipif(PTY_MAX > 100_000, reason="kernel.pty.max of this host is more than the tests may open")
def test_terminals_of_the_host(cay, box, places):
    wanted = PTY_MAX * 3 // 10
    places["ns"].run("hoard-terminals", str(wanted), "1", "0").must_win()
    neighbour = box()
    sandbox = box("--profile", "nested")
    sandbox.background(harness.IN_SANDBOX, "hoard-terminals", str(wanted), "1", "120")
    must_end(cay, sandbox, "terminals")
    done = cay.run("exec", "-t", neighbour.id, "--", "true")
    assert done.returncode == 0, done.stderr
    everybody_is_well(cay, neighbour)
