# SPDX-License-Identifier: Apache-2.0
"""200 sandboxes from Python, 32 at once: whatever goes wrong in the middle, nothing is left behind.

The harness looks for leaks (sandboxes, processes, cgroups, mounts, directories) when the daemon of a test is closed.
"""
import collections
import pathlib
import subprocess
import sys
import time

from cay import Cay

CROWD = pathlib.Path(__file__).with_name("crowd.py")
COUNT, AT_ONCE = 200, 32


def start(host, ttl):
    return subprocess.Popen([sys.executable, "-B", CROWD, host, str(COUNT), str(AT_ONCE), str(ttl)],
                            stdout=subprocess.PIPE, text=True)


def left(host):
    with Cay(host) as cay:
        return [box.id for box in cay.list(labels={"made-by": "crowd"})]


def test_exceptions_and_cancellations_in_the_middle_leave_nothing(daemons):
    """200 with 32 at once; a third raises, a third is cancelled at any moment, the create among them."""
    host = f"unix:{daemons().sock}"
    program = start(host, 3600)
    ends = collections.Counter(line.split()[1] for line in program.stdout)
    assert program.wait() == 0
    assert ends == {"ok": 66, "raised": 67, "cancelled": 67}
    assert left(host) == []


def test_a_process_killed_in_the_middle_leaves_nothing_beyond_its_ttl(daemons):
    """kill -9 of the program with 32 under way: what it left ends by its ttl, with the processes in it."""
    host = f"unix:{daemons().sock}"
    program = start(host, 8)
    for line in program.stdout:
        if int(line.split()[0]) > COUNT // 2:
            break
    program.kill()
    program.wait()
    assert left(host) != [], "nothing was under way: the kill proves nothing"
    deadline = time.monotonic() + 60
    while left(host) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left(host) == []
