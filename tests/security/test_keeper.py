# SPDX-License-Identifier: Apache-2.0
"""What the keeper spends on hostile output is the host's: no limit of the sandbox counts it."""

import subprocess
import time

import pytest

from security import harness

MIB = 1 << 20
# One byte to each stream in turn, each written only when the one before was taken.
ALTERNATE = """
import array, fcntl, os, sys, termios, time
left = array.array("i", [0])
for i in range(int(sys.argv[1])):
    os.write(1 + i % 2, b"x")
    while True:
        fcntl.ioctl(1 + i % 2, termios.FIONREAD, left)
        if not left[0]:
            break
        time.sleep(0)
"""


@pytest.mark.attack("keeper-memory-switches", "exhaustion", "the keeper's memory, by streams that change all the time")
def test_streams_that_change_all_the_time(cay, box):
    sandbox = box("--memory", "64M")
    _, keeper = harness.init_of(sandbox.host_pid())
    sandbox.must("true")
    before = harness.memory_of(keeper)
    for _ in range(12):
        done = sandbox.exec("python3", "-c", ALTERNATE, "40000", options=("-d",))
        assert done.returncode == 0, done
        number = done.stdout.strip()
        assert cay.run("wait", sandbox.id, number, timeout=120).returncode == 0
    # the control: it was taken byte by byte
    proc = next(p for p in cay.json("procs", "--json", sandbox.id) if str(p["pid"]) == number)
    assert proc["output_end"] == 40000, proc
    assert harness.memory_of(keeper) - before < 4 * MIB


RATE = 64 * MIB  # a second, of output that nobody follows
SPLICE = """
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
memory = os.memfd_create("zeros")
os.truncate(memory, 1 << 20)
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
left = int(sys.argv[1])
while left > 0:
    at = ctypes.c_long(0)
    left -= libc.splice(memory, ctypes.byref(at), 1, None, ctypes.c_size_t(min(left, 1 << 20)), 0)
"""


@pytest.mark.attack("keeper-cpu-output", "exhaustion", "the keeper's processor time, by output that costs its writer nothing")
def test_output_that_costs_its_writer_nothing(cay, box):
    sandbox = box("--cpus", "0.5")
    sandbox.must("true")
    start = time.monotonic()
    number = sandbox.background("python3", "-c", SPLICE, str(1 << 40))

    def printed():
        return next(p for p in cay.json("procs", "--json", sandbox.id) if str(p["pid"]) == number)["output_end"]

    harness.wait_for(lambda: printed() > 2 * RATE, 60, "output beyond what may come at once")
    taken = printed()
    assert taken <= RATE * (time.monotonic() - start + 1) + 4 * MIB, taken
    assert cay.run("kill", sandbox.id).returncode == 0
    # The control: what somebody follows comes as fast as it is taken.
    other = box()
    start = time.monotonic()
    follower = cay.popen("exec", other.id, "--", "python3", "-c", SPLICE, str(8 * RATE), stdout=subprocess.DEVNULL)
    assert follower.wait(timeout=120) == 0
    assert 8 * RATE > RATE * (time.monotonic() - start + 1) + 4 * MIB


def test_output_that_nobody_follows_is_whole(cay, box):
    """It is read later, and nothing of it is lost: its end is the program's end."""
    sandbox = box()
    number = sandbox.background("sh", "-c", f"head -c {3 * RATE} /dev/zero; echo the end")
    assert cay.run("wait", sandbox.id, number, timeout=120).returncode == 0
    proc = next(p for p in cay.json("procs", "--json", sandbox.id) if str(p["pid"]) == number)
    assert proc["output_end"] == 3 * RATE + len("the end\n"), proc
    assert cay.run("attach", sandbox.id, number).stdout.endswith("the end\n")
