# SPDX-License-Identifier: Apache-2.0
"""Ends that are easy to get wrong: late readers, children left behind, commands that are kept from starting."""
import time

from integration.support import background, end


def test_a_late_reader_gets_everything_after_the_end(cay):
    """The sandbox is gone long before its output is read: none of it is lost, nor the exit code."""
    run = cay.popen("run", "--", "sh", "-c", "seq 1 300000; exit 7")
    try:
        time.sleep(3)
        out, _ = run.communicate(timeout=30)
        assert out.count(b"\n") == 300000 and out.endswith(b"300000\n")
        assert run.returncode == 7
    finally:
        end(run)


def test_stop_does_not_wait_for_its_grace_in_vain(cay):
    """A child that an exec left behind dies by SIGTERM: then there is nothing left to wait for."""
    box = cay.run("create", check=True).stdout.strip()
    cay.run("exec", box, "--", "sh", "-c", "sleep 100 & exit 0", check=True)
    start = time.monotonic()
    cay.run("stop", "--grace", "20s", box, check=True)
    assert time.monotonic() - start < 10
    cay.run("rm", box, check=True)


STOPPER = """
import os, signal, time
me, end = os.getpid(), time.time() + 6
while time.time() < end:
    for pid in range(me + 1, me + 12):
        try:
            os.kill(pid, signal.SIGSTOP)
        except OSError:
            pass
"""


def test_a_command_that_is_kept_from_starting_runs_into_its_timeout(cay, box):
    """Another process of the sandbox stops every new one before it executes its program."""
    background(cay, box, f"exec python3 -c '{STOPPER}'")
    time.sleep(0.3)
    start = time.monotonic()
    done = cay.run("exec", "--timeout", "1s", box, "--", "true", timeout=30)
    assert done.returncode in (0, 124, 125) and time.monotonic() - start < 15
    time.sleep(6)
    assert cay.run("exec", box, "--", "echo", "well").stdout == "well\n"


def test_failed_starts_leave_no_cgroups(cay, box):
    """Each start makes a cgroup; those of commands that are not there must not pile up."""
    for _ in range(60):
        assert cay.run("exec", box, "--", "/no/such/program").returncode == 127
    assert cay.run("exec", box, "--", "true").returncode == 0


def test_a_large_environment_and_a_first_command(cay):
    """Too large to be sent to an init that does not run yet."""
    env = [f"--env=V{i}={'x' * 90000}" for i in range(3)]
    assert cay.run("run", *env, "--", "sh", "-c", "echo ${#V2}").stdout == "90000\n"
