# SPDX-License-Identifier: Apache-2.0
"""Shortages and hanging parts: what cannot be looked at is told, and nothing is concluded from it."""
import concurrent.futures
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib

import pytest

from integration.support import alive, background, end, host_pids, info, refused, state, until
from lib.daemon import Daemon
from lib.engine import PROG
from lib.oracle import groups_of


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


def feed(process, size):
    """Writes to a command's standard input in the background, until that ends."""
    def work():
        with contextlib.suppress(OSError):
            process.stdin.write(b"x" * size)
            process.stdin.flush()
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_streams_give_up_on_a_keeper_that_hangs():
    """Whoever writes to it or waits for its words, by the command line and by cayd. A process that does not read is
    waited for."""
    with Daemon() as daemon, concurrent.futures.ThreadPoolExecutor() as pool, contextlib.ExitStack() as ends:
        box, slow = daemon.create(id="stopped"), daemon.create(id="slow")
        keeper = daemon.get(f"/sandboxes/{box}").body["keeper_pid"]

        def start(*args):
            process = daemon.cay.popen("exec", *args, bufsize=0)
            ends.callback(end, process)
            return process

        writer, reader = start("-i", box, "--", "cat"), start(box, "-c", "echo up; sleep 1000")
        patient = start("-i", slow, "-c", "echo up; sleep 1000")
        writer.stdin.write(b"up\n")
        assert [p.stdout.read(3) for p in (writer, reader, patient)] == [b"up\n"] * 3
        pid = daemon.start_process(box, "cat", stdin=True)
        following = daemon.stream(f"/sandboxes/{box}/processes/{pid}/output?follow=true", timeout=120)
        os.kill(keeper, signal.SIGSTOP)
        ends.callback(os.kill, keeper, signal.SIGCONT)
        threads = [feed(writer, 8 << 20), feed(patient, 8 << 20)]
        body = {"argv": ["cat"], "input": "x" * 500_000}
        asked = [pool.submit(daemon.post, f"/sandboxes/{box}/exec", body, timeout=120),
                 pool.submit(daemon.post, f"/sandboxes/{box}/processes/{pid}/stdin", timeout=120,
                             body=b"x" * (8 << 20), headers={"Content-Type": "application/octet-stream"}),
                 pool.submit(lambda: list(following)[-1])]
        for process in (writer, reader):
            assert process.wait(120) == 125
            assert b"does not answer; 'cay rm -f stopped' ends it" in process.stderr.read()
        for answer in asked[:2]:
            assert (answer.result().status, answer.result().code) == (503, "unavailable"), answer.result()
        assert asked[2].result()["error"]["code"] == "unavailable", asked[2].result()
        assert patient.poll() is None, "its keeper lives"
        end(patient)
        for thread in threads:
            thread.join()


# ---- a create is done when the sandbox is up -----------------------------------------------------------------------

# signalfd4 is what cay-init cannot do without, and cay-keeper never calls.
FAILING_KEEPER = """#!{python}
import ctypes, os, struct, sys
NUMBER = {{"x86_64": 289, "aarch64": 74}}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x50000 | 24), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
class Program(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None)
if os.geteuid() != 0:
    libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.cast(code, ctypes.c_void_p)))) == 0
os.execv("{keeper}", sys.argv)
"""


@pytest.mark.parametrize("args", [("create", "--name", "x"), ("run", "--name", "x", "--", "echo", "hi")])
def test_a_create_fails_when_init_does_not_get_up(fresh, tmp_path, args):
    """init has no descriptor left for its signals, and exits: a reason is told, and nothing is left."""
    keeper = tmp_path / "cay-keeper"
    keeper.write_text(FAILING_KEEPER.format(python=sys.executable, keeper=PROG / "cay-keeper"))
    keeper.chmod(0o755)
    done = fresh.run(*args, env={"CAY_LIBEXEC_DIR": str(tmp_path)})
    refused(done, "init did not get up: exit code 1")
    assert fresh.json("ps", "-a", "--json") == [] and list((fresh.state / "sandboxes").iterdir()) == []
    assert groups(fresh) == []
    assert fresh.create("--name", "x") == "x"


@pytest.mark.parametrize("number", range(4, 8))
def test_cp_gives_up_when_it_cannot_send(fresh, number):
    """The worker inside waits for more, and says nothing."""
    fresh.create("--name", "box")
    argv = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=sendmsg", "-e",
            f"inject=sendmsg:error=ENOBUFS:when={number}", fresh.program, "cp", "/etc/hostname", "box:/tmp/x"]
    done = subprocess.run(argv, env=fresh.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 125) and len(done.stderr.splitlines()) <= 1, done
    assert number > 5 or done.returncode == 125, done
    assert fresh.sh("box", "ls -A /tmp | grep -c cay").stdout.strip() == "0"


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
    checksum = zlib.crc32(payload) ^ (version - 1)
    path.write_bytes(struct.pack("<4I", magic, version, checksum, len(payload)) + payload)


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
def test_lost_output_has_its_true_cause(fresh):
    """A full disk is not the sandbox's `output`."""
    with disk(fresh) as place:
        fresh.create("--name", "full")
        fresh.create("--name", "little", "--output", "64K")
        print_it = "head -c 3000000 /dev/zero; echo end"
        limited = background(fresh, "little", print_it)
        fresh.run("wait", "little", str(limited), check=True)
        fill(place)
        hit = background(fresh, "full", print_it)
        fresh.run("wait", "full", str(hit), check=True)
        for box, pid, words, not_words in (("full", hit, "disk", "--output"), ("little", limited, "--output", "disk")):
            line = refused(fresh.run("attach", box, str(pid), "--from", "0"), "bytes of its output", words)
            assert not_words not in line, line
        done = fresh.run("attach", "little", str(limited))
        assert done.returncode == 0 and "are not kept any more; --output" in done.stderr, done.stderr
        daemon = Daemon(engine=fresh)
        try:
            for box, pid, code in (("full", hit, "no_space"), ("little", limited, "limit")):
                with daemon.stream(f"/sandboxes/{box}/processes/{pid}/output?from=0") as stream:
                    gap = next(event for event in stream if event["type"] == "gap")
                assert gap["from"] == 0 and gap["code"] == code, gap
                remote = fresh.run("--host", f"unix:{daemon.sock}", "attach", box, str(pid), "--from", "0")
                refused(remote, "disk" if code == "no_space" else "--output")
        finally:
            daemon.stop()


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


@pytest.mark.parametrize("what", ["directory", "fifo", "socket", "link"])
def test_something_else_in_the_place_of_a_status(fresh, what):
    """The others are listed, and the one that it belongs to can be removed."""
    fresh.create("--name", "odd")
    fresh.create("--name", "other")
    path = fresh.run_dir / "odd" / "status"
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        path.symlink_to("../other/status")
    assert state(fresh, "other") == "running"
    fresh.run("rm", "-f", "odd", check=True)
    assert not (fresh.run_dir / "odd").exists() and state(fresh, "odd") is None
    assert fresh.create("--name", "odd") == "odd"


def test_a_socket_that_leads_to_another_sandbox(fresh):
    """What is asked of one is not done to the other."""
    fresh.create("--name", "one")
    fresh.create("--name", "two")
    path = fresh.run_dir / "one" / "ctl"
    path.unlink()
    path.symlink_to("../two/ctl")
    refused(fresh.run("stop", "one"), str(path), "cay rm -f one")
    refused(fresh.run("exec", "one", "--", "true"), str(path))
    fresh.run("rm", "-f", "one", check=True)
    assert state(fresh, "one") is None and fresh.sh("two", "echo up").stdout == "up\n"


def test_a_file_in_the_place_of_a_run_directory(fresh):
    fresh.create("--name", "box")
    keeper = info(fresh, "box")["keeper_pid"]
    shutil.rmtree(fresh.run_dir / "box")
    (fresh.run_dir / "box").write_text("a file")
    fresh.run("rm", "-f", "box", check=True)
    until(lambda: not alive(keeper), 15)
    assert fresh.create("--name", "box") == "box"


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
    return [name for _, name in groups_of(engine.env["CAY_CGROUP"]) if name.endswith(mark)]


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


@pytest.mark.parametrize("who", ["cayd", "rm"])
def test_cgroups_of_prepared_sandboxes_without_a_run_directory(who):
    """No record tells of them. The next daemon removes them, and so does the removal of a sandbox that was lost."""
    def prepared():
        return [p for p in groups(daemon.cay) if p.startswith("pool~")]

    with Daemon(pool=2) as daemon:
        box = daemon.create(id="lost")
        names = until(lambda: [p.name for p in daemon.run_dir.glob("pool~*") if (p / "ctl").exists()][1:], 30)
        keepers = [daemon.get(f"/sandboxes/{box}").body["keeper_pid"], *(pid for n in names for pid in host_pids(n))]
        daemon.signal(signal.SIGSTOP)
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
        daemon.kill9()
        until(lambda: not any(map(alive, keepers)), 10)
        shutil.rmtree(daemon.run_dir)
        assert prepared()
        if who == "cayd":
            daemon.options["pool"] = 0
            daemon.start()
            until(lambda: not prepared(), 30)
        daemon.cay.run("rm", "-f", box, check=True)
        assert groups(daemon.cay) == []


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


@pytest.mark.parametrize("made", [False, True], ids=["is freed", "is cleared up"])
def test_a_name_that_is_freed_while_it_is_claimed(fresh, tmp_path, made):
    """What is left of an older sandbox of the name goes in the moment in which the new one makes its directory; or
    whoever clears up takes that one, which is empty as yet, for the old."""
    fresh.run("run", "--", "true", check=True)
    trace, folder = tmp_path / "trace", fresh.run_dir / "x"
    if not made:
        folder.mkdir(mode=0o700)
    trace.touch()
    argv = ["strace", "-qq", "-o", trace, "-e", "trace=mkdirat", "-e", "inject=mkdirat:delay_exit=1000000",
            fresh.program, "create", "--name", "x"]
    creator = subprocess.Popen(argv, env=fresh.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    until(folder.exists if made else lambda: "mkdirat(" in trace.read_text(), 30)
    folder.rmdir()
    out, err = creator.communicate(timeout=60)
    assert (creator.returncode, out) == (0, "x\n"), err
    assert fresh.sh("x", "echo on").stdout == "on\n"
