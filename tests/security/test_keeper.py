# SPDX-License-Identifier: Apache-2.0
"""What the keeper spends on hostile output is the host's: no limit of the sandbox counts it."""

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
