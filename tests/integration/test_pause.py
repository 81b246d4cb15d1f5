# SPDX-License-Identifier: Apache-2.0
"""Pause never ends a sandbox: what is timed stands still with it, and goes on when it is resumed."""
import os
import signal
import subprocess
import threading
import time

import pytest

from integration.support import background, end, info, procs, state, until


@pytest.mark.slow
def test_a_command_with_a_timeout(cay, make):
    """Its time stands still; nothing else in the sandbox is touched."""
    box = make()
    other = background(cay, box, "sleep 1000")
    caller = cay.popen("exec", "--timeout", "2s", box, "--", "sleep", "100", stdin=subprocess.DEVNULL)
    until(lambda: info(cay, box)["processes"] == 2)
    assert cay.run("pause", box).returncode == 0
    time.sleep(8)
    assert state(cay, box) == "paused" and caller.poll() is None
    assert cay.run("resume", box).returncode == 0
    _, err = caller.communicate(timeout=20)
    assert caller.returncode == 124, err
    assert procs(cay, box)[other]["running"] and cay.sh(box, "echo on").stdout == "on\n"


@pytest.mark.slow
def test_a_command_that_ends_its_time_in_the_pause_has_the_rest_of_it(cay, make):
    """Two seconds of its own, however long the pause."""
    box = make()
    caller = cay.popen("exec", "--timeout", "3s", box, "-c", "sleep 1; sleep 1; echo through", stdin=subprocess.DEVNULL)
    time.sleep(0.5)
    cay.run("pause", box, check=True)
    time.sleep(4)
    cay.run("resume", box, check=True)
    out, err = caller.communicate(timeout=20)
    assert (caller.returncode, out) == (0, b"through\n"), err


@pytest.mark.slow
def test_exec_against_pause(cay, make):
    """Caught in the middle of its start, a command starts when the sandbox goes on."""
    boxes = [make() for _ in range(6)]
    callers = []

    def race(box):
        caller = cay.popen("exec", box, "--", "echo", "started", stdin=subprocess.DEVNULL)
        cay.run("pause", box, check=True)
        callers.append((box, caller))

    threads = [threading.Thread(target=race, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(7)  # more than the patience after a kill
    assert [state(cay, box) for box in boxes] == ["paused"] * len(boxes)
    for box, caller in callers:
        cay.run("resume", box, check=True)
        out, err = caller.communicate(timeout=20)
        started = (caller.returncode, out) == (0, b"started\n")
        assert started or (caller.returncode == 125 and b"is paused" in err), (caller.returncode, out, err)
        assert cay.sh(box, "echo on").stdout == "on\n"


@pytest.mark.slow
def test_a_stopped_keeper_with_exec_and_pause_in_its_queue(cay, make):
    box = make()
    keeper = info(cay, box)["keeper_pid"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        caller = cay.popen("exec", box, "--", "echo", "started", stdin=subprocess.DEVNULL)
        time.sleep(0.3)
        pauser = cay.popen("pause", box, stdin=subprocess.DEVNULL)
        time.sleep(2)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert pauser.wait(20) == 0
    time.sleep(7)
    assert state(cay, box) == "paused"
    cay.run("resume", box, check=True)
    out, err = caller.communicate(timeout=20)
    assert (caller.returncode, out) == (0, b"started\n"), err
    end(pauser)
