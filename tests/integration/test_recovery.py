# SPDX-License-Identifier: Apache-2.0
"""After crashes, with damaged records, with leftovers: the good ones work, the bad ones are told."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from integration.support import CGROUP, alive, background, end, host_pids, info, state, until
from lib.oracle import groups_of

DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:len(data) // 2],
    "flipped": lambda data: data[:20] + bytes([data[20] ^ 0xff]) + data[21:],
    "foreign": lambda data: b'{"version": 1, "state": "running"}',
    "zeros": lambda data: bytes(len(data)),
    "long": lambda data: data + b"x" * (2 << 20),
    "other-version": lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
}


def groups():
    return {name for _, name in groups_of(CGROUP)}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["status", "spec"])
def test_damaged_record_of_an_ended_sandbox(fresh, name, how):
    fresh.create("--name", "bad", "--memory", "64M")
    fresh.create("--name", "good", "--label", "keep=1")
    fresh.create("--name", "ended")
    fresh.run("kill", "bad", "ended", check=True)
    path = fresh.state / "sandboxes" / "bad" / name
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    entries = {e["id"]: e for e in fresh.json("ps", "-a", "--json")}
    assert entries["good"]["state"] == "running" and entries["ended"]["state"] == "exited"
    assert "bad" in entries, "a bad record is shown, not hidden"
    if name == "status":
        assert entries["bad"]["state"] == "lost" and entries["bad"]["reason"]
    else:
        done = fresh.run("inspect", "bad")
        assert done.returncode == 125 and "bad" in done.stderr, done
    assert fresh.run("exec", "bad", "--", "true").returncode == 125
    assert fresh.sh("good", "echo up").stdout == "up\n"
    done = fresh.run("create", "--name", "bad")
    assert done.returncode == 125 and done.stderr.startswith("cay: ")
    fresh.run("rm", "bad", check=True)
    assert fresh.create("--name", "bad") == "bad"


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_status_of_a_live_sandbox(fresh, how):
    """Its keeper is the truth: it goes on, and can be ended."""
    fresh.create("--name", "live")
    fresh.create("--name", "good")
    path = fresh.run_dir / "live" / "status"
    data = DAMAGE[how](path.read_bytes())
    with open(path, "r+b") as f:
        f.truncate(0)
        f.write(data)
    entries = {e["id"]: e for e in fresh.json("ps", "-a", "--json")}
    assert entries["good"]["state"] == "running"
    assert fresh.sh("live", "echo up").stdout == "up\n"
    fresh.run("rm", "-f", "live", check=True)
    assert state(fresh, "live") is None


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_status_of_a_dead_keeper(fresh, how):
    """Nothing of it may stay, even when nobody knows what it was."""
    fresh.create("--name", "gone")
    background(fresh, "gone", "sleep 66001")
    keeper = info(fresh, "gone")["keeper_pid"]
    path = fresh.run_dir / "gone" / "status"
    data = DAMAGE[how](path.read_bytes())
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(keeper), 5)
    with open(path, "r+b") as f:
        f.truncate(0)
        f.write(data)
    time.sleep(0 if data else 2.1)  # an empty one may be a create that has just begun
    until(lambda: fresh.run("ps", "-a") and not (fresh.run_dir / "gone").exists(), 5)
    until(lambda: "gone" not in groups() and host_pids("66001") == [], 5)
    fresh.run("rm", "-f", "gone", check=True)
    fresh.create("--name", "gone")


def test_foreign_things_in_the_directories(fresh):
    fresh.create("--name", "good")
    (fresh.state / "sandboxes" / "README").write_text("a file")
    (fresh.state / "sandboxes" / ".hidden").mkdir()
    (fresh.state / "sandboxes" / "UPPER case").mkdir()
    (fresh.run_dir / "a-file").write_text("x")
    (fresh.run_dir / "a-link").symlink_to("/etc")
    (fresh.run_dir / "dangling").symlink_to("/no/such")
    assert "good" in fresh.run("ps", "-a", "-q", check=True).stdout.split()
    assert fresh.sh("good", "echo up").stdout == "up\n"
    assert os.path.isdir("/etc")
    assert fresh.run("create", "--name", "a-link").returncode in (0, 125)
    fresh.run("rm", "-f", "a-link")
    for name in ("a-file", "a-link", "dangling"):
        if os.path.lexists(fresh.run_dir / name):
            os.unlink(fresh.run_dir / name)
    assert os.path.exists("/etc/passwd")
    for name in ("README", ".hidden", "UPPER case"):
        path = fresh.state / "sandboxes" / name
        path.unlink() if path.is_file() else path.rmdir()


def test_empty_record_directory(fresh):
    fresh.create("--name", "good")
    (fresh.state / "sandboxes" / "hollow").mkdir(mode=0o700)
    entries = {e["id"]: e for e in fresh.json("ps", "-a", "--json")}
    assert entries["good"]["state"] == "running"
    assert entries["hollow"]["state"] == "lost"
    fresh.run("rm", "hollow", check=True)
    assert not (fresh.state / "sandboxes" / "hollow").exists()


def test_leftovers_of_a_crashed_create_are_swept(fresh):
    """A run directory without a lock that is older than two seconds; a fresh one is left alone."""
    fresh.run("ps", check=True)
    old, new = fresh.run_dir / "crashed", fresh.run_dir / "starting"
    old.mkdir(mode=0o700)
    (old / "status").write_bytes(b"")
    time.sleep(2.1)
    new.mkdir(mode=0o700)
    fresh.run("ps", "-a", check=True)
    assert new.exists()
    until(lambda: fresh.run("ps", "-a") and not old.exists(), 4)
    until(lambda: fresh.run("ps", "-a") and not new.exists(), 5)
    assert fresh.create("--name", "crashed") == "crashed"


def test_create_over_leftovers(fresh):
    fresh.run("ps", check=True)
    (fresh.run_dir / "again").mkdir(mode=0o700)
    (fresh.run_dir / "again" / "status").write_bytes(b"")
    start = time.monotonic()
    assert fresh.create("--name", "again") == "again"
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05])
def test_killed_creator_leaves_a_sandbox_or_nothing(fresh, delay):
    fresh.run("run", "--", "true", check=True)
    for i in range(4):
        caller = fresh.popen("create", "--name", f"k{i}")
        time.sleep(delay)
        end(caller)
    deadline = time.monotonic() + 10
    for i in range(4):
        until(lambda: state(fresh, f"k{i}") in ("running", "lost", None), max(1, deadline - time.monotonic()))
        if state(fresh, f"k{i}") == "running":
            assert fresh.sh(f"k{i}", "echo up").stdout == "up\n"
        fresh.run("rm", "-f", f"k{i}", check=True)


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.006, 0.01, 0.02])
def test_keeper_killed_while_it_starts(fresh, delay):
    fresh.run("run", "--", "true", check=True)
    caller = fresh.popen("create", "--name", "frail")
    def keepers():
        found = []
        for pid in host_pids("frail"):
            with contextlib.suppress(OSError):  # it may be gone already
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "cay-keeper\n":
                    found.append(pid)
        return found

    pids = until(lambda: keepers() or caller.poll() is not None, 5, every=0.0005)
    time.sleep(delay)
    if pids is not True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(min(pids), signal.SIGKILL)  # the keeper, not what it made
    try:
        _, err = caller.communicate(timeout=5)
    finally:
        for pid in host_pids("frail"):
            os.kill(pid, signal.SIGKILL)  # whatever a failed test left
        end(caller)
    assert caller.returncode in (0, 125) and err.count(b"\n") <= 1
    until(lambda: state(fresh, "frail") in ("lost", None, "running"), 5)
    fresh.run("rm", "-f", "frail", check=True)
    until(lambda: "frail" not in groups(), 5)


def test_a_stopped_keeper_does_not_stop_the_listing(fresh):
    fresh.create("--name", "frozen")
    fresh.create("--name", "good")
    keeper = info(fresh, "frozen")["keeper_pid"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert set(fresh.run("ps", "-q", check=True).stdout.split()) == {"frozen", "good"}
        assert time.monotonic() - start < 1
        assert fresh.sh("good", "echo up").stdout == "up\n"
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert fresh.sh("frozen", "echo up").stdout == "up\n"


def test_two_engines_do_not_see_each_other(fresh, cay, make):
    """The same id in both, one cgroup for both: each has its own."""
    fresh.create("--name", "twin", "-e", "WHO=fresh")
    make("--name", "twin", "-e", "WHO=cay")
    fresh.create("--name", "only-fresh")
    assert "only-fresh" not in cay.ids()
    assert fresh.sh("twin", "echo $WHO").stdout == "fresh\n"
    assert cay.sh("twin", "echo $WHO").stdout == "cay\n"
    number = background(fresh, "twin", "exec sleep 65001")
    cay.run("rm", "-f", "twin", check=True)
    assert fresh.run("wait", "--timeout", "0", "twin", number).returncode == 124
    make("--name", "twin")
    os.kill(info(cay, "twin")["keeper_pid"], signal.SIGKILL)
    until(lambda: state(cay, "twin") == "lost", 5)
    assert fresh.run("wait", "--timeout", "0", "twin", number).returncode == 124
    assert fresh.sh("twin", "echo $WHO").stdout == "fresh\n"


def test_two_engines_use_different_user_ids(fresh, cay, make):
    """Sandboxes of two state directories must not share ids either."""
    ids = []
    for engine in (fresh, cay):
        for _ in range(5):
            box = engine.create() if engine is fresh else make()
            ids.append(open(f"/proc/{info(engine, box)['init_pid']}/uid_map").read().split()[1])
    assert len(set(ids)) == 10


def test_the_state_survives_without_the_run_directory(fresh):
    """As after a restart of the host: /run is empty, the records tell what was."""
    fresh.create("--name", "was-up")
    fresh.create("--name", "had-ended")
    fresh.run("kill", "had-ended", check=True)
    os.kill(info(fresh, "was-up")["keeper_pid"], signal.SIGKILL)
    until(lambda: not host_pids("was-up"), 5)
    shutil.rmtree(fresh.run_dir)
    entries = {e["id"]: e for e in fresh.json("ps", "-a", "--json")}
    assert entries["had-ended"]["state"] == "exited"
    assert entries["was-up"]["state"] == "lost" and entries["was-up"]["reason"]
    fresh.run("rm", "was-up", "had-ended", check=True)
    for top, name in groups_of(CGROUP):  # nobody could know of them: a restart of the host takes them along
        if name.startswith("was-up"):
            for path, _, _ in os.walk(top, topdown=False):
                os.rmdir(path)


def test_clock_does_not_matter_for_ended_order(fresh):
    """A record from the future is listed like any other."""
    fresh.create("--name", "a")
    fresh.run("kill", "a", check=True)
    path = fresh.state / "sandboxes" / "a"
    os.utime(path, (4102444800, 4102444800))
    assert state(fresh, "a") == "exited"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_ending_with_a_full_disk(fresh):
    """The record of the end cannot be written: the sandbox ends all the same and can be removed."""
    fresh.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "caytest", fresh.state], check=True)
    try:
        fresh.create("--name", "x")
        init = info(fresh, "x")["init_pid"]
        with open(fresh.state / "fill", "wb") as f, pytest.raises(OSError):
            while True:
                os.write(f.fileno(), b"x" * 65536)
        fresh.run("kill", "x", check=True)
        assert not alive(init)
        assert state(fresh, "x") in ("exited", "lost", None)
        fresh.run("rm", "-f", "x", check=True)
        assert state(fresh, "x") is None
    finally:
        fresh.clean()
        subprocess.run(["umount", "-l", fresh.state], check=True)
