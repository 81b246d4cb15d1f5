# SPDX-License-Identifier: Apache-2.0
"""Processes that live without their caller: list, wait, attach at any offset, signal, logs."""
import json
import os
import signal
import subprocess
import time

import pytest

from integration.support import background, end, host_pids, procs, refused, until


def test_detached_prints_its_number_at_once(cay, box):
    start = time.monotonic()
    number = background(cay, box, "sleep 0.5; exit 3")
    assert time.monotonic() - start < 0.5
    entry = procs(cay, box)[number]
    assert entry["running"] and entry["exit"] is None and entry["command"] == "sleep 0.5; exit 3"
    assert cay.run("wait", box, number).returncode == 3
    entry = procs(cay, box)[number]
    assert not entry["running"] and entry["exit"]["exit_code"] == 3


def test_detached_json(cay, box):
    answer = cay.json("exec", "-d", "--json", box, "--", "true")
    assert answer["id"] == box and answer["pid"] > 1


def test_the_number_is_the_pid_inside(cay, box):
    number = background(cay, box, "echo $$")
    cay.run("wait", box, number)
    assert cay.run("attach", box, number).stdout.strip() == str(number)


def test_wait_with_a_timeout_and_as_a_probe(cay, box):
    number = background(cay, box, "sleep 2; exit 4")
    start = time.monotonic()
    done = cay.run("wait", "--timeout", "0", box, number)
    assert done.returncode == 124 and time.monotonic() - start < 0.5
    done = cay.run("wait", "--timeout", "300ms", box, number)
    assert done.returncode == 124 and 0.25 < time.monotonic() - start < 1.9
    done = cay.run("wait", "--json", "--timeout", "30s", box, number)
    assert done.returncode == 4 and json.loads(done.stdout)["exit_code"] == 4
    assert cay.run("wait", "--timeout", "0", box, number).returncode == 4


def test_many_wait_for_one(cay, box):
    number = background(cay, box, "sleep 0.5; exit 8")
    waiters = [cay.popen("wait", box, number) for _ in range(5)]
    assert [w.communicate(timeout=20) and w.returncode for w in waiters] == [8] * 5


def test_exit_codes_are_kept(cay, make):
    box = make()
    numbers = {background(cay, box, f"echo {i}; exit {i}"): i for i in range(20)}
    for number, i in numbers.items():
        cay.run("wait", box, number)
    for number, i in numbers.items():
        assert cay.run("wait", box, number).returncode == i
        assert procs(cay, box)[number]["exit"]["exit_code"] == i
        done = cay.run("attach", box, number)
        assert (done.stdout, done.returncode) == (f"{i}\n", i)


def test_attach_follows_to_the_end_with_both_streams(cay, box):
    number = background(cay, box, "for i in 1 2 3 4; do echo o$i; echo e$i >&2; sleep 0.1; done; exit 5")
    done = cay.run("attach", box, number)
    assert (done.stdout, done.stderr, done.returncode) == ("o1\no2\no3\no4\n", "e1\ne2\ne3\ne4\n", 5)


def test_attach_at_any_offset_and_many_at_once(cay, box):
    number = background(cay, box, "seq 50000; sleep 0.3; seq 50000")
    whole = "".join(f"{i}\n" for i in range(1, 50001)) * 2
    readers = {offset: cay.popen("attach", "--from", offset, box, number)
               for offset in (0, 1, 77777, len(whole) // 2, len(whole) - 3, len(whole))}
    for offset, reader in readers.items():
        out, err = reader.communicate(timeout=30)
        assert (out.decode(), err, reader.returncode) == (whole[offset:], b"", 0), offset
    # and all of it again, when it is over
    for offset in (0, 4711, len(whole)):
        assert cay.run("attach", "--from", offset, box, number).stdout == whole[offset:]


def test_a_killed_reader_goes_on_where_it_was(cay, make):
    box = make()
    number = background(cay, box, "for i in $(seq 400); do echo line $i of the output; sleep 0.005; done")
    whole = "".join(f"line {i} of the output\n" for i in range(1, 401)).encode()
    seen = b""
    while len(seen) < len(whole):
        reader = cay.popen("attach", "--from", len(seen), box, number)
        data = os.read(reader.stdout.fileno(), 700)
        assert data, (seen[-50:], reader.communicate())
        seen += data
        end(reader)
    assert seen == whole


def test_attach_interrupted_leaves_the_command(cay, box):
    number = background(cay, box, "echo up; exec sleep 1000")
    reader = cay.popen("attach", box, number)
    assert reader.stdout.readline() == b"up\n"
    reader.send_signal(signal.SIGINT)
    reader.communicate(timeout=10)
    assert reader.returncode in (130, -signal.SIGINT)
    assert procs(cay, box)[number]["running"]
    cay.run("signal", box, number, "KILL", check=True)


def test_attach_with_input(cay, box):
    number = background(cay, box, "read a; echo got $a; read b; echo got $b", "-i")
    done = cay.run("attach", "-i", box, number, input="one\ntwo\n")
    assert done.stdout == "got one\ngot two\n"


@pytest.mark.parametrize("name,number", [("TERM", 15), ("SIGKILL", 9), ("usr1", 10), ("9", 9)])
def test_signal_by_name_and_number(cay, box, name, number):
    process = background(cay, box, "exec sleep 1000")
    cay.run("signal", box, process, name, check=True)
    done = cay.run("wait", "--json", box, process)
    assert done.returncode == 128 + number and json.loads(done.stdout)["signal"] == number
    cay.run("signal", box, process, name, check=True)  # what has ended is no error


def test_signal_reaches_the_process_alone_or_its_tree(cay, make):
    box = make()
    number = background(cay, box, "trap 'echo parent' USR1; (trap 'echo child; exit' USR1; while :; do sleep 0.02; done) & "
                        "echo up; while :; do sleep 0.02; done")
    until(lambda: "up" in cay.run("logs", box).stdout)
    time.sleep(0.1)
    cay.run("signal", box, number, "USR1", check=True)
    until(lambda: "parent" in cay.run("logs", box).stdout)
    assert "child" not in cay.run("logs", box).stdout
    cay.run("signal", "--tree", box, number, "USR1", check=True)
    until(lambda: "child" in cay.run("logs", box).stdout)
    cay.run("signal", "--tree", box, number, "KILL", check=True)
    assert cay.run("wait", "--timeout", "5s", box, number).returncode == 137


def test_tree_kill_reaches_daemons(cay, box):
    number = background(cay, box, "setsid -f sleep 75001; (setsid sleep 75001 &) ; sleep 75001")
    until(lambda: len(host_pids("75001")) == 3)
    cay.run("signal", "--tree", box, number, "KILL", check=True)
    until(lambda: host_pids("75001") == [], 5)


def test_tree_kill_after_the_main_process_is_gone(cay, box):
    number = background(cay, box, "sleep 75002 & sleep 75002 & exit 0")
    assert cay.run("wait", box, number).returncode == 0
    until(lambda: len(host_pids("75002")) == 2, 5)
    cay.run("signal", "--tree", box, number, "KILL", check=True)
    until(lambda: host_pids("75002") == [], 5)


def test_background_timeout(cay, box):
    number = background(cay, box, "echo p; sleep 1000", "--timeout", "300ms")
    done = cay.run("wait", "--json", "--timeout", "20s", box, number)
    assert done.returncode == 124 and json.loads(done.stdout)["timed_out"]
    assert cay.run("attach", box, number).stdout == "p\n"


def test_unknown_process(cay, box):
    for command in (("wait",), ("attach",)):
        refused(cay.run(*command, box, 99999), "99999")
    refused(cay.run("signal", box, 99999, "TERM"), "99999")
    refused(cay.run("wait", box, "abc"), "abc")
    refused(cay.run("signal", box, 1, "NOSUCH"), "NOSUCH")


def test_init_is_not_ours_to_signal(cay, box):
    refused(cay.run("signal", box, 1, "KILL"))
    assert cay.sh(box, "echo up").stdout == "up\n"


def test_logs(cay, make):
    box = make()
    cay.run("exec", box, "-c", "echo one; echo two >&2")
    number = background(cay, box, "echo three; sleep 1; echo four")
    until(lambda: "three" in cay.run("logs", box).stdout)
    done = cay.run("logs", box)
    assert (done.stdout, done.stderr) == ("one\nthree\n", "two\n")
    assert cay.run("logs", "--tail", "1", box).stdout == "three\n"
    follower = cay.popen("logs", "-f", box)
    try:
        lines = [follower.stdout.readline() for _ in range(3)]
        assert lines == [b"one\n", b"three\n", b"four\n"]
    finally:
        end(follower)
    cay.run("wait", box, number)
    cay.run("kill", box, check=True)
    assert sorted(cay.run("logs", box).stdout.split() + cay.run("logs", box).stderr.split())[:1] == ["four"]


def test_logs_follow_ends_with_the_sandbox(cay, make):
    box = make()
    cay.run("exec", box, "--", "echo", "hello")
    follower = cay.popen("logs", "-f", box, stdin=subprocess.DEVNULL)
    assert follower.stdout.readline() == b"hello\n"
    cay.run("kill", box, check=True)
    assert follower.communicate(timeout=10) == (b"", b"") and follower.returncode == 0


def test_output_stays_readable_after_many_others(cay, make):
    """Ended processes leave memory for files, and then go, oldest first; what stays is whole."""
    box = make()
    numbers = [background(cay, box, f"echo {i}; seq 2000") for i in range(60)]
    for number in numbers:
        cay.run("wait", box, number)
    for i, number in enumerate(numbers):
        out = cay.run("attach", box, number).stdout
        assert out.startswith(f"{i}\n1\n") and out.endswith("\n2000\n"), i
