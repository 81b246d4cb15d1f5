# SPDX-License-Identifier: Apache-2.0
"""What a keeper takes, keeps and says: input by its offset, time in a pause, saved output, memory, and requests that
no client of ours would send."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from integration.support import alive, background, end, info, procs, refused, state, until
from integration.test_faults import disk, fill, root
from lib import wire
from lib.daemon import Daemon

BYTES, NDJSON = "application/octet-stream", "application/x-ndjson"

SIZE = 300000


def memory(pid):
    """Bytes that are its own."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"^RssAnon:\s*(\d+) kB", f.read(), re.M)[1]) * 1024


def used(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- input ---------------------------------------------------------------------------------------------------------


def test_input_that_came_too_early_is_refused(cayd, cayd_box):
    """What is before it has not come: taken now, the rest would be thrown away as a repetition."""
    pid = cayd.start_process(cayd_box, "cat > /tmp/input", stdin=True)
    path = f"/sandboxes/{cayd_box}/processes/{pid}/stdin"
    early = cayd.post(path + "?offset=3", body=b"def")
    assert (early.status, early.code) == (409, "conflict") and "offset 3" in early.error["message"], early
    assert cayd.post(path + "?offset=0", body=b"abc").status == 204
    assert cayd.post(path + "?offset=3", body=b"def").status == 204
    assert cayd.post(path + "?offset=0&eof=true", body=b"abcdef").status == 204, "a repetition is not too early"
    assert cayd.wait_process(cayd_box, pid)["exit_code"] == 0
    assert cayd.exec(cayd_box, "cat /tmp/input")["stdout"] == "abcdef"


def test_input_that_came_too_early_ends_a_stream(cay, box):
    """It has no answers: its connection ends with the reason."""
    pid = background(cay, box, "cat", "-i")
    with wire.Keeper(cay, box) as keeper:
        keeper.send("ATTACH", pid=pid, flags=wire.F_FOLLOW)
        keeper.send("STDIN", pid=pid, flags=wire.F_AT, offset=3, data=b"def")
        kind, answer = keeper.receive()
        assert kind == "ERROR" and answer["code"] == wire.CONFLICT and "offset 3" in answer["text"], answer
        with pytest.raises((EOFError, ConnectionError)):
            keeper.receive()
    cay.run("signal", box, str(pid), "KILL", check=True)


# ---- requests that no client would send ----------------------------------------------------------------------------


def test_a_number_that_is_no_pid_is_nobody_on_a_stream(cay, box):
    """Its lower half is that of a process; nothing must reach that."""
    pid = background(cay, box, "cat; echo ended", "-i")
    other = pid + (1 << 32)
    with wire.Keeper(cay, box) as keeper:
        keeper.send("ATTACH", pid=pid, flags=wire.F_FOLLOW)
        keeper.send("STDIN", pid=other, data=b"theirs\n")
        keeper.send("LIFETIME", pid=other, ttl_ms=1)
        keeper.send("STDIN", pid=other, flags=wire.F_EOF)
        keeper.send("STDIN", pid=pid, data=b"ours\n")
        kind, output = keeper.receive()
        assert kind == "OUTPUT" and output["data"] == b"ours\n", (kind, output)
    time.sleep(0.3)
    assert procs(cay, box)[pid]["running"]
    cay.run("signal", box, str(pid), "KILL", check=True)


def test_a_lease_above_the_maximum_is_refused(cay, box):
    day = 86400000
    pid = background(cay, box, "sleep 100")
    with wire.Keeper(cay, box) as keeper:
        for request in (("EXEC", {"shell": "true", "flags": wire.F_DETACH}), ("LIFETIME", {"pid": pid})):
            kind, answer = keeper.ask(request[0], ttl_ms=day + 1, **request[1])
            assert (kind, answer.get("code")) == ("ERROR", wire.INVALID) and "lease" in answer["text"], answer
            assert keeper.ask(request[0], ttl_ms=day, **request[1])[0] in ("OK", "STARTED")
    assert procs(cay, box)[pid]["running"]
    cay.run("signal", box, str(pid), "KILL", check=True)


# ---- a pause stops all timers --------------------------------------------------------------------------------------


def test_the_stall_of_a_follower_stands_still_while_paused(cay, make):
    """It is not cut for what it could not have taken; afterwards it has its time again, and no more."""
    box = make("--output", "64K")
    pid = background(cay, box, "sleep 0.2; head -c 8000000 /dev/zero")
    with wire.Keeper(cay, box) as keeper:
        keeper.send("ATTACH", pid=pid, flags=wire.F_FOLLOW, idle_ms=1500)
        until(lambda: procs(cay, box)[pid]["output_end"] > 500000)
        cay.run("pause", box, check=True)
        time.sleep(3)
        cay.run("resume", box, check=True)
        got, kind = 0, None
        while kind != "EXIT":
            kind, fields = keeper.receive()
            assert kind in ("OUTPUT", "EXIT"), fields
            got += len(fields.get("data", b""))
    assert got == 8000000
    pid = background(cay, box, "sleep 0.2; head -c 8000000 /dev/zero")
    with wire.Keeper(cay, box) as keeper:
        keeper.send("ATTACH", pid=pid, flags=wire.F_FOLLOW, idle_ms=1500)
        until(lambda: procs(cay, box)[pid]["output_end"] > 500000)
        cay.run("pause", box, check=True)
        time.sleep(2)
        cay.run("resume", box, check=True)
        until(lambda: not procs(cay, box)[pid]["running"], 20)
        while kind != "ERROR":
            kind, fields = keeper.receive()
        assert fields["code"] == wire.STALLED, "the time goes on after the resume"


@pytest.mark.slow
def test_a_process_that_waits_for_its_first_follower_waits_on_after_a_pause(daemons):
    """It is held for ten seconds; the pause does not count among them."""
    daemon = daemons()
    box = daemon.create(output="64K")
    pid = daemon.start_process(box, "head -c 8000000 /dev/zero; touch /tmp/through", hold=True)
    until(lambda: daemon.get(f"/sandboxes/{box}/processes/{pid}").body["output_end"] > 500000)
    assert daemon.post(f"/sandboxes/{box}/pause").status == 204
    time.sleep(11)
    assert daemon.post(f"/sandboxes/{box}/resume").status == 204
    time.sleep(0.5)
    with daemon.stream(f"/sandboxes/{box}/processes/{pid}/output?follow=true&from=0", accept=BYTES) as stream:
        assert len(stream.read()) == 8000000, "nothing was dropped before it came"


def test_signals_to_a_paused_sandbox_hold_up_nobody(cay, make):
    """Its init takes none of them before the resume: what does not fit is refused, and others are answered."""
    box = make()
    pid = background(cay, box, "trap 'echo got' USR1; touch /tmp/ready; while :; do sleep 0.05; done")
    until(lambda: cay.run("fs", "stat", box, "/tmp/ready").returncode == 0)
    cay.run("pause", box, check=True)
    with wire.Keeper(cay, box) as keeper, wire.Keeper(cay, box) as other:
        answers = []
        for _ in range(100000):
            kind, answer = keeper.ask("SIGNAL", pid=pid, signal=int(signal.SIGUSR1))
            answers.append(kind)
            if kind != "OK":
                break
        assert kind == "ERROR" and answer["code"] == wire.CONFLICT and "paused" in answer["text"], answer
        keeper_pid = info(cay, box)["keeper_pid"]
        for _ in range(20):  # one after the other, while the other asks something else
            keeper.send("SIGNAL", pid=pid, signal=int(signal.SIGUSR1))
            assert keeper.receive()[0] == "ERROR"
            assert other.ask("STATS")[0] == "FIGURES"
        assert alive(keeper_pid)
    cay.run("resume", box, check=True)
    until(lambda: "got" in cay.run("logs", box).stdout)
    assert cay.sh(box, "echo on").stdout == "on\n"


# ---- output that is kept -------------------------------------------------------------------------------------------


@root
def test_saved_output_that_did_not_fit_is_told_as_lost(fresh):
    """The disk fills up at the end: what the file has comes, and then an error, never a shorter result."""
    with disk(fresh) as place:
        for name in ("part", "none", "whole"):
            fresh.create("--name", name)
            fresh.run("exec", name, "-c", f"head -c {SIZE} /dev/zero | tr '\\0' x", check=True)
        fresh.run("kill", "whole", check=True)
        assert fresh.run("logs", "whole", check=True).stdout == "x" * SIZE
        fill(place)
        os.truncate(place / "fill", os.path.getsize(place / "fill") - 131072)
        keeper = info(fresh, "part")["keeper_pid"]
        fresh.run("kill", "part", check=True)
        until(lambda: not alive(keeper))  # with all that it kept
        with contextlib.suppress(OSError), open(place / "fill", "ab") as f:
            while True:
                os.write(f.fileno(), b"x" * 4096)
        fresh.run("kill", "none", check=True)
        os.unlink(place / "fill")
        saved = {}
        for name in ("part", "none"):
            done = fresh.run("logs", name)
            saved[name] = done.stdout
            assert done.returncode == 125, (name, len(done.stdout), done.stderr)
            refused(done, f"the last {SIZE - len(done.stdout)} bytes", "not saved")
            tail = fresh.run("logs", "--tail", "1", name)
            refused(tail, "not saved")
        assert 0 < len(saved["part"]) < SIZE and len(saved["none"]) < len(saved["part"])
        daemon = Daemon(engine=fresh)
        try:
            for name, text in saved.items():
                with daemon.stream(f"/sandboxes/{name}/logs", accept=NDJSON) as stream:
                    events = list(stream)
                assert "".join(e["data"] for e in events if e["type"] == "output") == text
                assert events[-1]["type"] == "error" and events[-1]["error"]["code"] == "lost", events[-1]
                with daemon.stream(f"/sandboxes/{name}/logs", accept=BYTES) as stream:
                    with pytest.raises(Exception, match="IncompleteRead|Connection"):
                        stream.read()
                refused(fresh.run("--host", f"unix:{daemon.sock}", "logs", name), "not saved")
        finally:
            daemon.stop()


def test_a_saved_log_that_was_cut_is_told(fresh):
    fresh.create("--name", "cut")
    fresh.run("exec", "cut", "--", "seq", "1000", check=True)
    fresh.run("kill", "cut", check=True)
    whole = fresh.run("logs", "cut", check=True).stdout
    log = fresh.state / "sandboxes" / "cut" / "log"
    os.truncate(log, 100)
    assert refused(fresh.run("logs", "cut"), "not saved") and whole.startswith(fresh.run("logs", "cut").stdout)
    log.unlink()
    refused(fresh.run("logs", "cut"), "not saved")


def test_the_output_of_ended_commands_leaves_memory(cay, make):
    """Half a megabyte of it stays, however many there are."""
    box = make()
    keeper = info(cay, box)["keeper_pid"]
    cay.run("exec", box, "--", "true", check=True)
    before = memory(keeper)
    for _ in range(100):
        cay.run("exec", box, "-c", "head -c 60000 /dev/zero", check=True)
    assert memory(keeper) - before < 3 << 20
    for pid in list(procs(cay, box))[-100:]:
        assert len(cay.run("attach", box, str(pid), "--from", "0", check=True).stdout) == 60000


def test_the_log_does_not_take_the_place_of_all_output(cay, make):
    """On a small disk they share a budget: what a process printed last is there for who comes late."""
    box = make("--disk", "4M", "--memory", "128M")
    for _ in range(3):
        pid = background(cay, box, "head -c 6000000 /dev/zero; echo last")
        cay.run("wait", box, str(pid), check=True)
    done = cay.run("attach", box, str(pid), check=True)
    assert done.stdout.endswith("last\n") and len(done.stdout) > 1 << 20, len(done.stdout)
    stats = cay.json("stats", "--json", box)
    assert stats["output"] <= stats["output_max"] == 4 << 20, stats


# ---- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "removed"])
def test_one_whose_status_is_empty_was_lost(fresh, how):
    """It was there: its record stays. A create that came to nothing leaves none."""
    fresh.create("--name", "x", "--label", "k=v")
    keeper = info(fresh, "x")["keeper_pid"]
    status = fresh.run_dir / "x" / "status"
    os.truncate(status, 0) if how == "cut" else status.unlink()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: state(fresh, "x") == "lost", 10)
    entry = info(fresh, "x")
    assert entry["labels"] == {"k": "v"} and "damaged" in entry["reason"], entry
    fresh.run("rm", "x", check=True)
    (fresh.run_dir / "y").mkdir(mode=0o700)
    (fresh.run_dir / "y" / "status").touch(mode=0o600)
    (fresh.state / "sandboxes" / "y").mkdir(mode=0o700)
    until(lambda: "y" not in fresh.run("ps", "-a", "-q").stdout.split() and
          not (fresh.run_dir / "y").exists(), 10)
    assert not (fresh.state / "sandboxes" / "y").exists()


LISTENER = "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\nprint()\n" \
           "sys.stdout.close()\ntime.sleep(600)\n"


def test_who_listens_in_the_place_of_a_keeper_is_not_killed_for_it(fresh):
    """Somebody else's socket has its name, and its record is damaged: nobody knows who its keeper is."""
    fresh.create("--name", "hidden")
    keeper = info(fresh, "hidden")["keeper_pid"]
    ctl = fresh.run_dir / "hidden" / "ctl"
    os.kill(keeper, signal.SIGSTOP)
    ctl.unlink()
    (fresh.run_dir / "hidden" / "status").write_bytes(b"?" * 100)
    other = subprocess.Popen(["python3", "-c", LISTENER, str(ctl)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"\n"
        refused(fresh.run("rm", "-f", "hidden"), "cay-keeper hidden", "by hand")
        assert other.poll() is None and alive(keeper)
    finally:
        end(other)
        os.kill(keeper, signal.SIGKILL)
    fresh.run("rm", "-f", "hidden", check=True)


def test_nobody_is_killed_on_a_guess(fresh, tmp_path):
    """A sandbox that cannot be looked at, for want of a descriptor: an error of kill, wherever it comes. It has no place
    for callers, so that its keeper is looked for to be killed."""
    trace, guesses = tmp_path / "trace", 0
    for number in range(1, 40):
        fresh.create("--name", "box")
        keeper = info(fresh, "box")["keeper_pid"]
        with contextlib.ExitStack() as stack:
            for _ in range(1024 + 16):
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.connect(str(fresh.run_dir / "box" / "ctl"))
            argv = ["strace", "-qq", "-o", trace, "-e", "trace=openat,pidfd_send_signal", "-e",
                    f"inject=openat:error=EMFILE:when={number}", fresh.program, "kill", "box"]
            done = subprocess.run(argv, env=fresh.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=60)
        text = trace.read_text()
        if done.returncode == 0:
            until(lambda: not alive(keeper), 5)
        else:
            refused(done)
            assert "pidfd_send_signal" in text or alive(keeper)
            guesses += "cannot tell whether" in done.stderr and "pidfd_send_signal" not in text
        fresh.run("rm", "-f", "box", check=True)
        if "INJECTED" not in text:
            break
    assert done.returncode == 0 and guesses > 0, (number, guesses)


def test_out_of_memory_is_not_taken_back(cay, make):
    """The kernel's count of kills goes on for a while after the command's end: that it was out of memory stays."""
    box = make("--memory", "64M")
    hungry = "for i in $(seq 8); do sh -c 'x=$(head -c 60000000 /dev/zero | tr \"\\0\" x); sleep 9' & done; wait"
    pids = [background(cay, box, hungry) for _ in range(4)]
    for pid in pids:
        assert cay.run("wait", box, str(pid)).returncode == 137
    found = {pid: procs(cay, box)[pid]["exit"]["oom"] for pid in pids}
    assert all(found.values()), found
    for _ in range(5):
        background(cay, box, "true")
        time.sleep(0.2)
        assert {pid: procs(cay, box)[pid]["exit"]["oom"] for pid in pids} == found


@pytest.mark.parametrize("how", ["keeper", "kill"])
@pytest.mark.parametrize("what", ["exec -i", "exec -it", "exec -i full", "attach -it", "logs -f"])
def test_callers_end_with_the_keeper(cay, make, what, how):
    """However it ends: with one line that says so, and without turning in circles until then."""
    box = make()
    pid = background(cay, box, "cat; sleep 100", "-i")
    words, command = what.split(), ["--", "sleep", "100"]
    options = [word for word in words[1:] if word.startswith("-")]
    argv = (["attach", *options, box, str(pid)] if words[0] == "attach" else
            ["logs", "-f", box] if words[0] == "logs" else ["exec", *options, box, *command])
    master, slave = os.openpty() if "-it" in options else os.pipe()[::-1]
    caller = subprocess.Popen([cay.program, *argv], env=cay.env, stdin=slave, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    os.close(slave)
    writer = None
    if "full" in words:  # its input waits: the command reads nothing
        def write():
            with contextlib.suppress(OSError):
                while True:
                    os.write(master, b"x" * 65536)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
    keeper = info(cay, box)["keeper_pid"]
    until(lambda: words[0] != "exec" or info(cay, box)["processes"] == 2)
    time.sleep(0.3)
    before = used(caller.pid)
    if how == "kill":
        cay.run("kill", box, check=True)
    else:
        os.kill(keeper, signal.SIGKILL)
    deadline = time.monotonic() + 10
    spent = before
    while caller.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, IndexError):
            spent = used(caller.pid)
        time.sleep(0.02)
    try:
        assert caller.poll() is not None, f"it is still there, and used {spent - before:.2f} s of processor time"
        assert spent - before < 0.5
    finally:
        end(caller)
        os.close(master)
    if writer:
        writer.join(5)
