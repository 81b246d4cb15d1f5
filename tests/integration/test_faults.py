# SPDX-License-Identifier: Apache-2.0
"""Shortages and hanging parts: what cannot be looked at is told, and nothing is concluded from it."""
import contextlib
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import zlib

import pytest

from integration.support import CGROUP, alive, end, info, refused, state, until
from lib.daemon import Daemon
from lib.oracle import cgroup_mounts


def short(engine, files, *args, **options):
    """`cay ARGS` with so many open files at most."""
    argv = ["prlimit", f"--nofile={files}:{files}", engine.program, *args]
    return subprocess.run(argv, env=engine.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, **options)


# ---- only what is not there is "not there" ---------------------------------------------------------------------


@pytest.mark.parametrize("files", range(4, 13))
def test_without_descriptors_nothing_is_taken_for_ended(fresh, files):
    """A list is whole or an error, and nothing that lives is removed without force, or left without its record."""
    fresh.create("--name", "one", "--label", "k=v")
    fresh.create("--name", "two")
    fresh.create("--name", "over")
    fresh.run("kill", "over", check=True)
    lists = (("ps", "-q"), {"one", "two"}), (("ps", "-a", "-q"), {"one", "two", "over"})
    for args, names in lists:
        done = short(fresh, files, *args)
        assert done.returncode == 125 or set(done.stdout.split()) == names, done
        assert done.returncode == 0 or "open files" in done.stderr, done
    done = short(fresh, files, "rm", "one")
    assert done.returncode == 125 and done.stderr, done
    for args in (("inspect", "one"), ("exec", "one", "--", "true"), ("logs", "over")):
        done = short(fresh, files, *args)
        assert done.returncode in (0, 125) and "no sandbox" not in done.stderr and "ended" not in done.stderr, done
    assert {e["id"]: e["state"] for e in fresh.json("ps", "-a", "--json")} == {
        "one": "running", "two": "running", "over": "exited"}
    done = short(fresh, files, "rm", "-f", "two")
    assert (state(fresh, "two") is None) == (done.returncode == 0), done
    assert (fresh.state / "sandboxes" / "two").exists() == (fresh.run_dir / "two").exists(), done


def test_a_daemon_without_descriptors_answers_no_wrong_lists():
    """Idle connections take all but a few: each answer is right, or an error."""
    with Daemon(wrap=("prlimit", "--nofile=96:96")) as daemon:
        boxes = {daemon.create(id=f"s{n}") for n in range(4)}
        held = []
        seen = set()
        unheard = 0
        try:
            while unheard < 4:
                try:
                    held.append(daemon.dial(timeout=1))
                    with daemon.client(timeout=1) as client:
                        answers = [client.get("/sandboxes"), client.get("/sandboxes/s1"),
                                   client.delete("/sandboxes/s2?force=false")]
                except OSError:
                    unheard += 1  # no descriptor for our connection: it waits, or is closed
                    continue
                for answer in answers:
                    seen.add(answer.status)
                    assert answer.status not in (204, 404), answer
                if answers[0].status == 200:
                    assert {b["id"] for b in answers[0].body["sandboxes"]} == boxes, answers[0]
                if answers[1].status == 200:
                    assert answers[1].body["state"] == "running", answers[1]
        finally:
            for sock in held:
                sock.close()
        assert 200 in seen and len(seen) > 2, seen
        until(lambda: {b["id"] for b in daemon.get("/sandboxes").body["sandboxes"]} == boxes, 10)
        assert all(daemon.state_of(box) == "running" for box in boxes)
        daemon.remove(*boxes)


@pytest.mark.parametrize("files", [9, 16, 30, 50])
def test_a_create_without_descriptors_names_the_limit(fresh, files):
    done = short(fresh, files, "create", "--name", "box")
    assert done.returncode == 125 and "ulimit -n" in done.stderr, done
    assert state(fresh, "box") is None and list((fresh.state / "sandboxes").iterdir()) == []


# ---- no call waits for ever --------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["kept", "damaged"])
def test_rm_kills_a_keeper_that_hangs(fresh, record):
    """By its record, when its socket is gone; by its socket, when its record is damaged."""
    fresh.create("--name", "stuck")
    keeper, init = (info(fresh, "stuck")[key] for key in ("keeper_pid", "init_pid"))
    os.kill(keeper, signal.SIGSTOP)
    if record == "kept":
        (fresh.run_dir / "stuck" / "ctl").unlink()  # as it is when it has begun to end
    else:
        (fresh.run_dir / "stuck" / "status").write_bytes(b"?" * 100)
    fresh.run("rm", "-f", "stuck", check=True)
    until(lambda: not alive(keeper) and not alive(init), 5)
    assert state(fresh, "stuck") is None
    assert fresh.create("--name", "stuck") == "stuck"


def test_rm_says_what_to_do_when_no_keeper_is_found(fresh):
    """Neither its record nor a socket says who it is: nobody is killed on a guess."""
    fresh.create("--name", "hidden")
    keeper = info(fresh, "hidden")["keeper_pid"]
    os.kill(keeper, signal.SIGSTOP)
    (fresh.run_dir / "hidden" / "ctl").unlink()
    (fresh.run_dir / "hidden" / "status").write_bytes(b"?" * 100)
    refused(fresh.run("rm", "-f", "hidden"), "cay-keeper hidden", "by hand")
    assert alive(keeper) and (fresh.state / "sandboxes" / "hidden").exists()
    os.kill(keeper, signal.SIGKILL)
    fresh.run("rm", "-f", "hidden", check=True)


def test_create_and_exec_give_up_on_a_keeper_that_hangs(fresh, tmp_path):
    """After a minute, which is documented."""
    fresh.create("--name", "stopped")
    keeper = info(fresh, "stopped")["keeper_pid"]
    libexec = tmp_path / "libexec"
    libexec.mkdir()
    (libexec / "cay-keeper").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 66017 <&- >/dev/null 2>&1\n")
    (libexec / "cay-keeper").chmod(0o755)
    os.kill(keeper, signal.SIGSTOP)
    calls = [fresh.popen("exec", "stopped", "--", "true", text=True),
             fresh.popen("create", "--name", "never", env={"CAY_LIBEXEC_DIR": str(libexec)}, text=True)]
    try:
        outputs = [call.communicate(timeout=90) for call in calls]
    finally:
        for call in calls:
            end(call)
        os.kill(keeper, signal.SIGCONT)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert [call.returncode for call in calls] == [125, 125], outputs
    assert "cay rm -f stopped" in outputs[0][1], outputs
    assert "within 60 s" in outputs[1][1], outputs
    assert state(fresh, "never") is None and state(fresh, "stopped") == "running"
    assert fresh.create("--name", "never") == "never"


# ---- an end is written down as it was ----------------------------------------------------------------------------


@contextlib.contextmanager
def disk(engine):
    """A state directory on a file system of its own."""
    engine.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "caytest", engine.state], check=True)
    try:
        yield engine.state
    finally:
        subprocess.run(["mount", "-o", "remount,rw", engine.state], check=True)
        engine.clean()
        subprocess.run(["umount", "-l", engine.state], check=True)


def fill(place):
    with open(place / "fill", "wb") as f, pytest.raises(OSError):
        while True:
            os.write(f.fileno(), b"x" * 65536)


def rewrite(path, change):
    """A record with another payload and the checksum that belongs to it."""
    magic, version, _, size = struct.unpack("<4I", path.read_bytes()[:16])
    payload = change(path.read_bytes()[16:16 + size])
    path.write_bytes(struct.pack("<4I", magic, version, zlib.crc32(payload), len(payload)) + payload)


root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")


@root
def test_an_end_on_a_full_disk_is_written_down(fresh):
    with disk(fresh) as place:
        fresh.create("--name", "stopped", "--label", "k=v")
        fresh.create("--name", "killed", "--label", "k=v")
        before = info(fresh, "stopped")
        fill(place)
        fresh.run("stop", "stopped", check=True)
        os.kill(info(fresh, "killed")["keeper_pid"], signal.SIGKILL)
        until(lambda: state(fresh, "killed") == "lost", 5)
        after = info(fresh, "stopped")
        assert after["state"] == "exited" and after["created_ms"] == before["created_ms"], after
        assert "killed" in info(fresh, "killed")["reason"]
        assert set(fresh.run("ps", "-a", "-q", "--label", "k=v").stdout.split()) == {"stopped", "killed"}
        fresh.run("rm", "stopped", "killed", check=True)


@root
def test_an_end_that_cannot_be_written_is_told_as_that(fresh):
    """Not as a restart of the host; what it was is known from its birth, and each look says the same."""
    with disk(fresh) as place:
        fresh.create("--name", "x", "--label", "k=v")
        before = info(fresh, "x")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        fresh.run("kill", "x", check=True)
        after = info(fresh, "x")
        assert (after["state"], after["reason"]) == ("lost", "its end could not be written down")
        assert after["image"] == before["image"] and abs(after["created_ms"] - before["created_ms"]) < 5000
        assert after["labels"] == before["labels"] and after["ended_ms"] >= after["created_ms"]
        assert info(fresh, "x") == after


def test_the_host_restarted_only_if_it_did(fresh):
    fresh.create("--name", "x", "--label", "k=v")
    before = info(fresh, "x")
    record = fresh.state / "sandboxes" / "x" / "status"
    birth = record.read_bytes()
    fresh.run("kill", "x", check=True)
    ended = record.read_bytes()
    record.write_bytes(birth)
    assert info(fresh, "x")["reason"] == "its end could not be written down"
    boot = open("/proc/sys/kernel/random/boot_id").read().strip().encode()
    rewrite(record, lambda payload: payload.replace(boot, boot[::-1]))
    after = info(fresh, "x")
    assert (after["state"], after["reason"]) == ("lost", "the host restarted")
    assert after["labels"] == before["labels"] and after["image"] == before["image"]
    assert fresh.run("ps", "-a", "-q", "--label", "k=v").stdout.split() == ["x"]
    record.write_bytes(b"")
    after = info(fresh, "x")
    assert (after["state"], after["reason"]) == ("lost", "its status record is damaged")
    assert after["labels"] == before["labels"] and after["image"] == before["image"]
    record.unlink()
    assert info(fresh, "x")["reason"] == "its end could not be written down"
    record.write_bytes(ended)
    assert info(fresh, "x")["state"] == "exited"


def test_a_record_of_a_living_one_does_not_revive_the_dead(fresh):
    fresh.create("--name", "alive")
    fresh.create("--name", "dead")
    fresh.run("kill", "dead", check=True)
    (fresh.state / "sandboxes" / "dead" / "status").write_bytes((fresh.run_dir / "alive" / "status").read_bytes())
    assert state(fresh, "dead") == "lost" and state(fresh, "alive") == "running"


@pytest.mark.parametrize("record", ["spec", "status"])
def test_a_record_of_another_sandbox(fresh, record):
    """It is told, not taken for its own."""
    fresh.create("--name", "one")
    fresh.create("--name", "two", "--memory", "64M")
    fresh.run("kill", "one", "two", check=True)
    place = fresh.state / "sandboxes"
    if record == "spec":
        shutil.copy(place / "two" / "spec", place / "one" / "spec")
        refused(fresh.run("inspect", "one"), "its spec is that of 'two'")
    else:
        (place / "one" / "status").write_bytes((place / "two" / "status").read_bytes()[:14] + b"\x7f\x00" + b"x" * 80)
        assert info(fresh, "one")["reason"] == "its status record is damaged"
    fresh.run("rm", "one", "two", check=True)


def test_a_wrong_size_in_the_status_of_a_live_sandbox(fresh):
    fresh.create("--name", "live")
    path = fresh.run_dir / "live" / "status"
    data = path.read_bytes()
    with open(path, "r+b") as f:
        f.write(data[:14] + bytes([data[14] ^ 1]) + data[15:])
    after = info(fresh, "live")
    assert (after["state"], after["reason"]) == ("running", "its status record is damaged")
    assert fresh.sh("live", "echo up").stdout == "up\n"
    fresh.run("rm", "-f", "live", check=True)


# ---- a run directory that is cleared -----------------------------------------------------------------------------


def groups(engine):
    """The cgroups that are named after this engine's run directory."""
    mark = f".{zlib.crc32(str(engine.run_dir).encode()):08x}"
    return [p for mount in cgroup_mounts() for p in pathlib.Path(mount).glob(f"{CGROUP}/*{mark}") if p.is_dir()]


def test_a_keeper_whose_run_directory_vanished_ends(fresh):
    fresh.create("--name", "evicted")
    before = info(fresh, "evicted")
    shutil.rmtree(fresh.run_dir)
    until(lambda: not alive(before["keeper_pid"]) and not alive(before["init_pid"]), 15)
    after = info(fresh, "evicted")
    assert (after["state"], after["reason"]) == ("exited", "its run directory was removed")
    assert groups(fresh) == []
    fresh.run("rm", "evicted", check=True)


@pytest.mark.parametrize("how", ["lives", "killed"])
def test_rm_ends_what_has_no_run_directory(fresh, how):
    fresh.create("--name", "unseen")
    before = info(fresh, "unseen")
    if how == "killed":
        os.kill(before["keeper_pid"], signal.SIGKILL)
        until(lambda: not alive(before["init_pid"]), 5)
    shutil.rmtree(fresh.run_dir)
    assert state(fresh, "unseen") == "lost" and groups(fresh)
    fresh.run("rm", "-f", "unseen", check=True)
    assert groups(fresh) == [] and state(fresh, "unseen") is None
    until(lambda: not alive(before["keeper_pid"]) and not alive(before["init_pid"]), 5)
    assert [p.name for p in fresh.run_dir.iterdir()] == [".cay"]


def test_an_evicted_keeper_leaves_its_successor_alone(fresh):
    fresh.create("--name", "twice")
    before = info(fresh, "twice")
    shutil.rmtree(fresh.run_dir / "twice")
    shutil.rmtree(fresh.state / "sandboxes" / "twice")
    fresh.create("--name", "twice", "--label", "k=v")
    until(lambda: not alive(before["keeper_pid"]) and not alive(before["init_pid"]), 15)
    after = info(fresh, "twice")
    assert after["state"] == "running" and after["labels"] == {"k": "v"} and alive(after["init_pid"])
    assert fresh.sh("twice", "echo up").stdout == "up\n"
    fresh.run("stop", "twice", check=True)
    assert info(fresh, "twice")["state"] == "exited"
