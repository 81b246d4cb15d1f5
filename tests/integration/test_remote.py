# SPDX-License-Identifier: Apache-2.0
"""cay --host: every command gives over HTTP what it gives here: the same output, errors and exit codes.

Each test does a thing twice on the same engine, with the command line as it is and by way of a cayd, and
compares. What must differ (times, process numbers) is taken out before.
"""
import hashlib
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import tarfile
import threading
import time

import pytest

from integration.support import end, host_pids, until
from lib.both import REMOTE, Both
from lib.engine import ROOT

@pytest.fixture(scope="module")
def both():
    with Both.with_daemon(tcp=True) as pair:
        yield pair


@pytest.fixture(scope="module")
def box(both):
    identifier = both.engine.create("--label", "kind=shared")
    yield identifier
    both.engine.run("rm", "-f", identifier)


def no_times(text):
    """Without what no two runs have in common."""
    text = re.sub(r'"(pid|duration_ms|cpu_ms|peak_memory|created_ms|started_ms|ttl_left_ms)": ?\d+', r'"\1":0', text)
    return re.sub(r"after \d+ ms", "after N ms", text)


def no_ages(text):
    return re.sub(r"\b\d+[smhd]\b( ago)?", "AGE", text)


# ---- running things


RUNS = [
    (0, ["--", "echo", "hello"]),
    (0, ["--", "/bin/sh", "-c", "echo out; echo err >&2"]),
    (3, ["-c", "exit 3"]),
    (137, ["-c", "kill -9 $$"]),
    (143, ["-c", "kill $$"]),
    (127, ["--", "no-such-command"]),
    (127, ["--", "/no/such/command"]),
    (126, ["--", "/etc/passwd"]),
    (126, ["--", "/etc"]),
    (125, []),
    (125, ["--user", "nobody-like-this", "--", "true"]),
    (125, ["--workdir", "/not/there", "--", "true"]),
    (0, ["-e", "A=b c", "-e", "E=", "-c", 'echo "$A|$E|"; pwd']),
    (0, ["--workdir", "/tmp", "--user", "65534", "-c", "pwd; id -u"]),
    (0, ["--", "printf", "\\303\\244 \\377\\000x"]),
]


@pytest.mark.parametrize("code, words", RUNS, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else str(v))
def test_exec(both, box, code, words):
    both.same("exec", box, *words, code=code, text=False)


@pytest.mark.parametrize("code, words", [(0, ["echo", "hi"]), (3, ["sh", "-c", "exit 3"]), (127, ["no-such"])])
def test_run(both, code, words):
    before = both.engine.ids()
    both.same("run", "--", *words, code=code)
    until(lambda: both.engine.ids() == before)


def test_run_options(both):
    both.same("run", "--memory", "64M", "--pids", "50", "--cpus", "0.333", "--disk", "16M", "--env", "X=y", "--label",
              "a=b", "--workdir", "/tmp", "-c", "echo $X; pwd; ulimit -n; df -k /tmp | wc -l")
    both.same("run", "--memory", "1", "--", "true", code=125)
    both.same("run", "--image", "no-such-image", "--", "true", code=125)
    both.same("create", "--json", "--image", "ubuntu:22.04", code=125)
    both.same("run", "--name", "Bad", "--", "true", code=125)
    both.same("run", "--user", "no-such-user", "--", "true", code=125)


def test_run_in_a_sandbox_that_exists(both, box):
    """The name is taken, and what has it stays."""
    both.same("run", "--name", box, "--", "true", code=125)
    assert both.engine.run("exec", box, "--", "true").returncode == 0


def test_run_in_the_background_in_a_sandbox_that_exists(both):
    """Refused as without -d: there is no second command in it."""
    there = both.engine.create("--name", "there")
    said = both.same("run", "-d", "--name", there, "--", "sleep", "60", code=125)
    assert "sandbox 'there' exists already" in said.stderr
    assert both.engine.json("procs", "--json", there) == []
    both.engine.run("rm", "-f", there, check=True)


def test_run_mounts(both, tmp_path):
    (tmp_path / "a").write_text("from the host\n")
    both.same("run", "-v", f"{tmp_path}:/in:ro", "-c", "cat /in/a; echo x > /in/b", code=1)


def test_json_results(both, box):
    said = both.same("exec", "--json", box, "-c", "printf 'a\\377b'; echo e >&2; exit 5", code=5, scrub=no_times)
    assert json.loads(said.stdout)["encoding"] == "base64" and json.loads(said.stdout)["stdout"] == "Yf9i"
    both.same("run", "--json", "-c", "echo x", scrub=no_times)
    both.same("exec", "--json", "no-such-box", "--", "true", code=125)


def test_timeout(both, box):
    both.same("exec", "--timeout", "300ms", box, "--", "sleep", "30", code=124, scrub=no_times)
    both.same("exec", "--timeout", "300ms", "--json", box, "--", "sleep", "30", code=124, scrub=no_times)


@pytest.mark.parametrize("size", [0, 1, 5, 100_000, 8_000_000])
def test_stdin(both, box, size):
    data = os.urandom(size)
    said = both.same("exec", "-i", box, "--", "sha256sum", input=data, text=False)
    assert said.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_both_ways(both, box):
    data = os.urandom(6_000_000)
    assert both.same("exec", "-i", box, "--", "cat", input=data, text=False).stdout == data


def test_stdin_nobody_reads(both, box):
    """A process that takes no input, or only some, keeps nobody waiting."""
    data = bytes(4_000_000)
    both.same("exec", "-i", box, "--", "true", input=data, text=False)
    both.same("exec", "-i", box, "--", "head", "-c", "5", input=b"hello" + data, text=False)
    both.same("exec", "-i", box, "-c", "sleep 0.5; wc -c", input=data, text=False)


def test_stdin_that_cannot_be_read(both, box):
    """Its end did not come: the command is ended, and does not take what came for all."""
    marker = f"62.{os.getpid()}"
    directory = os.open("/tmp", os.O_RDONLY)
    try:
        said = both.same("exec", "-i", box, "-c", f"cat; echo whole > /tmp/whole; sleep {marker}", stdin=directory,
                         code=125)
    finally:
        os.close(directory)
    assert said.stderr == "cay: cannot read standard input: Is a directory\n"
    until(lambda: not [p for p in both.engine.json("procs", "--json", box) if p["running"] and marker in p["command"]])
    assert both.local("fs", "stat", box, "/tmp/whole").returncode == 125


def test_much_output(both):
    """More than any buffer, to a reader that is slower; nothing is lost that is kept there."""
    box = both.engine.create("--output", "64M")
    process = both.popen("exec", box, "-c", "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo end >&2")
    time.sleep(0.5)
    out, err = process.communicate(timeout=60)
    assert (len(out), out.strip(b"x"), err, process.returncode) == (30000001, b"\n", b"end\n", 0)
    both.engine.run("rm", "-f", box)


def test_output_nobody_wants(both, box):
    process = both.popen("exec", box, "--", "yes")
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=20) == 128 + signal.SIGPIPE
    end(process)
    until(lambda: not [p for p in both.engine.json("procs", "--json", box) if p["running"]])


def test_a_command_whose_output_cannot_be_written(both, box):
    """Nobody will see how it ends: it is ended, also if it does not write any more."""
    for cay in (both.engine.popen, both.popen):
        marker = f"63.{os.getpid()}"
        with open("/dev/full", "wb") as full:
            process = cay("exec", box, "-c", f"trap '' PIPE; echo hi; sleep {marker}", stdout=full)
        try:
            assert process.wait(timeout=30) == 125
            assert process.stderr.read() == b"cay: cannot write to standard output: No space left on device\n"
            until(lambda: not host_pids(marker))
        finally:
            end(process)


@pytest.mark.parametrize("words", [["exec", "BOX", "--", "echo", "hi"], ["ps"], ["fs", "cat", "BOX", "/etc/passwd"],
                                   ["fs", "ls", "BOX", "/"], ["cp", "BOX:/etc", "-"], ["exec", "--json", "BOX", "true"]],
                         ids=lambda words: " ".join(words[:2]))
def test_a_closed_standard_output(both, box, words):
    words = [word.replace("BOX", box) for word in words]
    for host in ([], ["--host", both.host]):
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", both.engine.program, *host, *words],
                              env=both.engine.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 125 and b"standard output is closed" in done.stderr, done


def test_closed_standard_descriptors_that_nothing_is_written_to(both, box):
    for host in ([], ["--host", both.host]):
        done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", both.engine.program, *host, "exec", "-i", box,
                               "-c", "cat; exit 7"], env=both.engine.env, timeout=60)
        assert done.returncode == 7


def test_signals_are_passed_on(both, box):
    process = both.popen("exec", box, "-c", "trap 'echo got; exit 7' INT; echo up; while :; do sleep 0.1; done")
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"got\n" and process.wait(timeout=10) == 7
    end(process)
    process = both.popen("exec", box, "-c", "trap '' INT; echo up; while :; do sleep 0.1; done")
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 137
    end(process)


def test_an_interrupted_run_leaves_nothing(both):
    before = both.engine.ids()
    process = both.popen("run", "-c", "echo up; sleep 60")
    assert process.stdout.readline() == b"up\n"
    assert len(both.engine.ids()) == len(before) + 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 128 + signal.SIGTERM
    end(process)
    assert both.engine.ids() == before


# ---- in the background


def test_background(both):
    def go(run, box):
        pid = run("exec", "-d", box, "-c", "echo one; echo two >&2; exit 4", check=True).stdout.strip()
        done = run("wait", box, pid)
        assert done.returncode == 4
        return run("attach", box, pid)

    assert both.each(go, code=4) == (4, "one\n", "two\n")


def test_background_json(both):
    both.each(lambda run, box: run("exec", "-d", "--json", box, "--", "true"))
    both.each(lambda run, box: (run("exec", box, "-c", "exit 9"), run("wait", "--json", box, "2"))[1],
              code=9, scrub=no_times)


def test_run_in_the_background(both):
    for run in (both.local, both.remote):
        box = run("run", "-d", "--label", "x=y", "-c", "echo hi; sleep 60", check=True).stdout.strip()
        until(lambda: both.engine.run("logs", box).stdout == "hi\n")
        both.engine.run("rm", "-f", box)
    said = both.same("run", "-d", "--", "no-such-command", code=127)
    assert "no-such-command" in said.stderr


def test_wait(both, box):
    pid = both.engine.run("exec", "-d", box, "--", "sleep", "60", check=True).stdout.strip()
    both.same("wait", "--timeout", "0", box, pid, code=124)
    both.same("wait", "--timeout", "200ms", box, pid, code=124)
    both.same("wait", "--json", "--timeout", "0", box, pid, code=124)
    both.same("wait", box, "99999", code=125)
    waiting = both.popen("wait", box, pid)
    time.sleep(0.2)
    both.same("signal", box, pid, "TERM")
    assert waiting.wait(timeout=10) == 143
    end(waiting)
    both.same("wait", box, pid, code=143)


def test_procs(both, box):
    pid = both.engine.run("exec", "-d", box, "-c", "echo hey; sleep 60", check=True).stdout.strip()
    until(lambda: [p for p in both.engine.json("procs", "--json", box) if str(p["pid"]) == pid][0]["output_end"] == 4)
    both.same("procs", "--json", box)
    both.same("procs", box, scrub=no_ages)
    both.same("signal", box, pid, "KILL")
    both.engine.run("wait", box, pid)
    both.same("procs", "--json", box)


def test_signal(both, box):
    pid = both.engine.run("exec", "-d", box, "-c", "sleep 61 & sleep 62", check=True).stdout.strip()
    both.same("signal", box, pid, "NOPE", code=125)
    both.same("signal", box, "x", "TERM", code=125)
    both.same("signal", box, "99999", "TERM", code=125)
    assert both.remote("signal", "--tree", box, pid, "KILL").returncode == 0
    assert both.engine.run("wait", box, pid).returncode == 137
    until(lambda: both.engine.run("exec", box, "--", "pgrep", "-f", "sleep 61").returncode != 0)


def test_attach(both, box):
    pid = both.engine.run("exec", "-d", "-i", box, "-c", "echo start; read x; echo got $x", check=True).stdout.strip()
    process = both.popen("attach", "-i", box, pid)
    assert process.stdout.readline() == b"start\n"
    out, _ = process.communicate(b"this\n", timeout=10)
    assert (out, process.returncode) == (b"got this\n", 0)
    both.same("attach", box, pid)
    both.same("attach", "--from", "6", box, pid)
    both.same("attach", "--from", "1000", box, pid)
    both.same("attach", box, "4711", code=125)
    both.same("attach", "no-such-box", "1", code=125)


def test_an_interrupted_attach_leaves_it_alone(both, box):
    pid = both.engine.run("exec", "-d", box, "-c", "echo up; sleep 60", check=True).stdout.strip()
    process = both.popen("attach", box, pid)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) in (130, -signal.SIGINT)
    end(process)
    assert both.remote("wait", "--timeout", "0", box, pid).returncode == 124
    both.remote("signal", box, pid, "KILL", check=True)


def test_logs(both):
    box = both.engine.create()
    both.engine.run("exec", box, "-c", "for i in 1 2 3 4 5; do echo line $i; done; echo err >&2")
    both.same("logs", box)
    both.same("logs", "--tail", "2", box)
    both.same("logs", "--tail", "0", box)
    process = both.popen("logs", "-f", box)
    assert process.stdout.readline() == b"line 1\n"
    both.engine.run("exec", box, "--", "echo", "later")
    until(lambda: b"later\n" == process.stdout.readline())
    both.engine.run("stop", "--grace", "0", box)
    assert process.wait(timeout=10) == 0
    end(process)
    both.same("logs", box)
    both.same("logs", "-f", box)
    both.same("logs", "--tail", "1", box)
    both.engine.run("rm", box)
    both.same("logs", box, code=125)


# ---- a terminal


class Terminal:
    """A program on a terminal of ours."""

    def __init__(self, both, *args, rows=30, cols=90):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            argv = [both.engine.program, "--host", both.host, *args]
            os.execve(argv[0], argv, {**both.engine.env, "TERM": "xterm"})
        self.size(rows, cols)
        self.seen = ""

    def size(self, rows, cols):
        import fcntl
        import struct
        import termios
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def expect(self, wanted, seconds=10.0):
        deadline = time.monotonic() + seconds
        while wanted not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                break
        assert wanted in self.seen, self.seen
        self.seen = self.seen.partition(wanted)[2]

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


def test_shell(both, box):
    terminal = Terminal(both, "shell", box)
    terminal.type("stty size; tty; echo $TERM\n")
    terminal.expect("xterm\r\n")
    terminal.size(40, 100)
    os.kill(terminal.pid, signal.SIGWINCH)
    time.sleep(0.3)
    terminal.type("stty size\n")
    terminal.expect("40 100\r\n")
    terminal.type("sleep 60\n")
    terminal.expect("sleep 60\r\n")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.type("echo still; exit 9\n")
    terminal.expect("still\r\n")
    assert terminal.end() == 9


def test_shell_reads_a_script(both, box):
    both.same("shell", box, input="echo from a script\nexit 6\n", code=6)


def test_exec_with_a_terminal(both, box):
    terminal = Terminal(both, "exec", "-it", box, "-c", "tty >/dev/null && echo yes; read x; echo got $x")
    terminal.expect("yes\r\n")
    terminal.type("word\n")
    terminal.expect("got word\r\n")
    assert terminal.end() == 0


def test_keys_that_leave_it_running(both, box):
    terminal = Terminal(both, "exec", "-it", box, "-c", "echo up; read x; echo got $x; read x")
    terminal.expect("up\r\n")
    terminal.type("word\n")
    terminal.expect("got word\r\n")
    terminal.type("\x10\x11")
    terminal.expect("returns to it")
    assert terminal.end() == 0
    [left] = [p for p in json.loads(both.remote("procs", "--json", box).stdout) if p["running"]]
    both.remote("signal", box, left["pid"], "KILL", check=True)


# ---- sandboxes


def test_create(both):
    for run in (both.local, both.remote):
        made = run("create", check=True).stdout
        assert re.fullmatch(r"[0-9a-f]{12}\n", made)
        both.engine.run("rm", "-f", made.strip())
    name = ["create", "--name", "one", "--memory", "128M", "--ttl", "1h", "--label", "a=b", "--env", "K=v=w"]
    assert both.same(*name).stdout == "one\n"
    assert both.same(*name, "--json").stdout == '{"id":"one"}\n'
    both.same("create", "--name", "one", "--memory", "64M", code=125)
    both.same("create", "--name", "-x", code=125)
    both.same("create", "--network", "all", "--name", "net", code=125)
    both.engine.run("rm", "-f", "one")


def test_create_whose_id_cannot_be_written(both):
    """It is removed again, but not one that was there before."""
    before, there = both.engine.ids(), both.engine.create("--name", "there")
    for cay in (both.engine.popen, both.popen):
        for words in ([], ["--name", "new"], ["--name", "there"]):
            with open("/dev/full", "wb") as full:
                process = cay("create", *words, stdout=full)
            assert process.wait(timeout=60) == 125
            end(process)
    assert sorted(both.engine.ids()) == sorted([*before, there])
    both.engine.run("rm", "-f", there, check=True)


def test_the_same_spec_from_both_sides(both):
    """Options mean the same on both ways: a sandbox made here is found there with the same ones, and no others."""
    options = ["--name", "spec", "--memory", "100M", "--cpus", "0.25", "--pids", "33", "--disk", "20M", "--inodes",
               "1000", "--fds", "99", "--output", "1M", "--ttl", "90m", "--idle", "1500ms", "--user", "65534",
               "--workdir", "/tmp", "--profile", "strict", "--label", "z=1", "--label", "a=2", "--env", "ZED=1",
               "--env", "ALPHA=2"]
    for first, second in ((both.local, both.remote), (both.remote, both.local)):
        first("create", *options, check=True)
        assert second("create", *options, check=True).stdout == "spec\n"
        both.same("inspect", "spec", scrub=no_times)
        both.engine.run("rm", "-f", "spec")


def test_ps(both, box):
    other = both.engine.create("--label", "kind=other", "--label", "x=")
    gone = both.engine.create("--label", "kind=gone")
    both.engine.run("kill", gone)
    for options in ([], ["-a"], ["-q"], ["-aq"], ["--label", "kind=other"], ["--label", "kind"],
                    ["--label", "kind=other", "--label", "x"], ["--label", "nothing"]):
        both.same("ps", *options, scrub=no_ages)
        both.same("ps", "--json", *options, scrub=no_times)
    both.engine.run("rm", "-f", other, gone)


def test_ps_of_many(both):
    """More than one page of the API."""
    ids = [f"n{i}" for i in range(12)]
    for name in ids:
        both.engine.create("--name", name, "--label", "many=1")
    assert both.same("ps", "-q", "--label", "many=1").stdout.split() == ids
    both.engine.run("rm", "-f", *ids)


def test_inspect(both, box):
    both.same("inspect", box)
    both.same("inspect", "--json", box)
    both.same("inspect", "no-such-box", code=125)
    both.same("inspect", "No", code=125)
    both.same("inspect", "../etc", code=125)
    both.same("inspect", "--json", "", code=125)


def test_stats(both, box):
    def still(text):
        return re.sub(r'"(cpu\w*|memory|memory_peak|io_\w+)":\d+', r'"\1":0', text)

    both.same("stats", "--json", box, scrub=still)
    both.same("stats", "--json", scrub=still)
    header = both.remote("stats", box, check=True).stdout.splitlines()[0]
    assert header.split() == "ID CPU% CPU MEMORY MEM% PEAK PIDS DISK READ/WRITE OOM".split()


def test_life(both):
    def go(run, box):
        run("pause", box, check=True)
        assert both.engine.json("inspect", "--json", box)["state"] == "paused"
        run("resume", box, check=True)
        run("update", "--ttl", "1h", "--idle", "0", box, check=True)
        assert 3_500_000 < both.engine.json("inspect", "--json", box)["ttl_left_ms"] <= 3_600_000
        done = run("rm", box)
        assert done.returncode == 125
        run("stop", "--grace", "100ms", box, check=True)
        run("stop", box, check=True)
        run("kill", box, check=True)
        for refused in ("pause", "resume"):
            done = run(refused, box)
            assert done.returncode == 125
        run("rm", box, check=True)
        return run("rm", box)

    both.each(go, code=125)


def test_errors_of_life(both):
    for words in (["pause", "nope"], ["stop", "nope", "Nope", "nope2"], ["rm", "nope"], ["kill", "nope"],
                  ["update", "--ttl", "1h", "nope"], ["update", "nope"], ["logs", "nope"], ["stats", "nope"],
                  ["procs", "nope"], ["fs", "ls", "nope"], ["cp", "nope:/a", "/tmp/b"], ["nonsense"], ["exec"]):
        both.same(*words, code=125)
    both.same("rm", "-f", "nope")
    for verb in ("pause", "resume", "update --ttl 1h"):
        both.each(lambda run, box, verb=verb: (both.engine.run("kill", box), run(*verb.split(), box))[1], code=125)
    both.each(lambda run, box: run("rm", box), code=125)
    both.each(lambda run, box: (run("pause", box), run("pause", box))[1])


def test_ended_sandboxes(both):
    box = both.engine.create()
    both.engine.run("exec", box, "--", "echo", "was here")
    both.engine.run("kill", box)
    for words in (["exec", box, "--", "true"], ["procs", box], ["stats", box], ["attach", box, "2"],
                  ["wait", box, "2"], ["signal", box, "2", "TERM"], ["fs", "ls", box, "/"],
                  ["fs", "cat", box, "/etc/passwd"], ["cp", f"{box}:/etc/passwd", "-"]):
        both.same(*words, code=125)
    both.same("inspect", box)
    both.same("logs", box)
    both.same("ps", "-a", scrub=no_ages)
    both.engine.run("rm", box)


def test_doctor_and_version(both):
    def fixed(text):
        return re.sub(r"\d+ MiB free|about \d+ idle", "N", text)  # others use the host, too

    both.same("doctor", scrub=fixed)
    both.same("doctor", "--json", scrub=fixed)
    both.same("version")
    both.same("help")
    both.same("help", "exec")


# ---- files


TREE = ("mkdir -p /t/sub/deep /t/empty; printf 'one\\ntwo\\nThree\\n' > /t/a.txt; printf 'x' > /t/sub/b.txt;"
        "echo three > /t/sub/deep/c.md; ln -s a.txt /t/link; ln -s nowhere /t/broken; mkfifo /t/pipe;"
        "chmod 640 /t/a.txt; printf 'n' > \"$(printf '/t/n\\377m')\"; printf 'e\\303\\244' > '/t/ä ö';"
        "chmod 4755 /t/sub/b.txt")


def test_out_of_memory(both):
    box = both.engine.create("--memory", "64M", "--disk", "32M")
    try:
        hog = ["python3", "-c", "x = b'x' * (200 << 20)"]
        done = both.same("exec", box, "--", *hog, code=137)
        assert done.stderr.startswith("cay: out of memory;")
        both.same("exec", box, "-c", "head -c 31M /dev/zero >/tmp/big")
        done = both.same("exec", box, "--", *hog, code=137)
        assert "files in memory take 31 of 64 MiB" in done.stderr
    finally:
        both.engine.run("rm", "-f", box)


@pytest.fixture(scope="module")
def tree(both):
    identifier = both.engine.create("--disk", "200M")
    both.engine.run("exec", identifier, "-c", TREE, check=True)
    yield identifier
    both.engine.run("rm", "-f", identifier)


LOOKS = [
    (0, ["ls", "{}"]), (0, ["ls", "{}", "/t"]), (0, ["ls", "-l", "{}", "/t"]), (0, ["ls", "-R", "{}", "/t"]),
    (0, ["ls", "--depth", "2", "{}", "/t"]), (0, ["ls", "--json", "-R", "{}", "/t"]), (0, ["ls", "{}", "t"]),
    (0, ["ls", "{}", "/t/empty"]), (125, ["ls", "{}", "/none"]), (125, ["ls", "{}", "/t/a.txt"]),
    (125, ["ls", "--user", "no-one", "{}", "/t"]), (0, ["ls", "--user", "65534", "{}", "/t"]),
    (0, ["stat", "{}", "/t/a.txt"]), (0, ["stat", "--json", "{}", "/t/link"]),
    (0, ["stat", "-L", "--json", "{}", "/t/link"]), (0, ["stat", "--json", "{}", "/t/a.txt", "/t/sub"]),
    (125, ["stat", "{}", "/t/none"]), (0, ["stat", "{}", "/dev/null"]),
    (0, ["stat", "--json", "{}", "/t/pipe"]), (0, ["stat", "{}", "/t/sub/b.txt"]),
    (0, ["find", "{}", "/t", "*.txt"]), (0, ["find", "--json", "{}", "/t"]), (0, ["find", "--limit", "2", "{}", "/t"]),
    (0, ["find", "{}", "/t", "sub/*"]), (0, ["find", "{}", "/t", "no*ne"]), (125, ["find", "{}", "/none"]),
    (0, ["grep", "{}", "/t", "t"]), (0, ["grep", "-i", "{}", "/t", "three"]),
    (0, ["grep", "--json", "{}", "/t", "t.o"]),
    (0, ["grep", "--include", "*.md", "{}", "/t", "t"]), (1, ["grep", "-F", "{}", "/t", "t.o"]),
    (0, ["grep", "--limit", "1", "{}", "/t", "t"]), (125, ["grep", "{}", "/t", "("]),
    (1, ["grep", "{}", "/t/empty", "x"]),
    (0, ["cat", "{}", "/t/a.txt", "/t/sub/b.txt"]), (0, ["cat", "--offset", "4", "{}", "/t/a.txt"]),
    (0, ["cat", "--offset", "4", "--size", "3", "{}", "/t/a.txt"]), (0, ["cat", "--size", "2", "{}", "/t/a.txt"]),
    (0, ["cat", "--offset", "1000", "{}", "/t/a.txt"]), (0, ["cat", "--size", "1000", "{}", "/t/a.txt"]),
    (125, ["cat", "{}", "/t/none"]), (125, ["cat", "{}", "/t/sub"]), (0, ["cat", "{}", "/proc/sys/kernel/ostype"]),
    (0, ["cat", "--offset", "2", "--size", "3", "{}", "/proc/sys/kernel/ostype"]), (0, ["cat", "{}", "/t/ä ö"]),
    (125, ["rm", "{}", "/t/none"]), (0, ["rm", "-f", "{}", "/t/none"]), (125, ["rm", "{}", "/t/sub"]),
    (125, ["mv", "{}", "/t/none", "/t/x"]), (125, ["mkdir", "{}", "/t/a.txt/x"]), (0, ["mkdir", "{}", "/t/empty"]),
    (125, ["put", "{}", "/t/sub"]), (125, ["put", "{}", "/t/a.txt/x"]),
]


@pytest.mark.parametrize("code, words", LOOKS, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else str(v))
def test_files(both, tree, code, words):
    # The daemon looks at a file before it reads it, and says so when there is none.
    both.same("fs", *[w.replace("{}", tree) for w in words], code=code, text=False,
              scrub=lambda text: text.replace(b"cannot stat", b"cannot read"))


def test_change_files(both):
    def go(run, box):
        run("fs", "mkdir", "-m", "700", box, "/d/e/f", check=True)
        run("fs", "put", box, "/d/e/x", input="hello\n", check=True)
        run("fs", "put", "-m", "755", box, "/d/new/y", input="", check=True)
        run("fs", "put", box, "/d/rel", "/etc/hostname", check=True)
        run("fs", "mv", box, "/d/e/x", "/d/e/z", check=True)
        run("fs", "rm", "-r", box, "/d/e/f", check=True)
        run("fs", "put", box, "d/relative", input="r", check=True)
        return both.engine.run("exec", box, "-c", "cd /d && find . | sort | xargs stat -c '%n %A %s'; cat e/z rel")

    both.each(go)


@pytest.mark.parametrize("size", [0, 1, 70_000, 30_000_000])
def test_whole_files(both, size, tmp_path):
    """Up and down, byte for byte."""
    box = both.engine.create("--disk", "100M")
    data = os.urandom(size)
    (tmp_path / "in").write_bytes(data)
    both.remote("cp", tmp_path / "in", f"{box}:/tmp/a", check=True)
    both.remote("fs", "put", box, "/tmp/b", input=data, text=False, check=True)
    assert both.engine.run("exec", box, "--", "sha256sum", "/tmp/a", "/tmp/b").stdout.count(
        hashlib.sha256(data).hexdigest()) == 2
    both.remote("cp", f"{box}:/tmp/a", tmp_path / "out", check=True)
    assert (tmp_path / "out").read_bytes() == data
    assert both.remote("fs", "cat", box, "/tmp/b", text=False, check=True).stdout == data
    both.engine.run("rm", "-f", box)


def test_a_file_that_does_not_fit(both):
    box = both.engine.create("--disk", "2M")
    said = both.same("fs", "put", box, "/tmp/big", input=bytes(5_000_000), text=False, code=125)
    assert b"No space" in said.stderr
    assert both.engine.run("exec", box, "--", "test", "-e", "/tmp/big").returncode == 1
    both.engine.run("rm", "-f", box)


def test_an_upload_that_is_cut_off_changes_nothing(both, box):
    both.engine.run("fs", "put", box, "/tmp/keep", input="old", check=True)
    process = both.popen("fs", "put", box, "/tmp/keep")
    process.stdin.write(bytes(300_000))
    process.stdin.flush()
    time.sleep(0.3)
    end(process)
    time.sleep(0.3)
    assert both.engine.run("fs", "cat", box, "/tmp/keep").stdout == "old"


def names_below(path):
    found = {}
    for top, directories, files in os.walk(os.fsencode(path)):
        for name in directories + files:
            full = os.path.join(top, name)
            if os.path.islink(full):
                what = os.readlink(full)
            else:
                what = b"d" if os.path.isdir(full) else pathlib.Path(os.fsdecode(full)).read_bytes()
            found[os.path.relpath(full, os.fsencode(path))] = what, os.lstat(full).st_mode
    return found


def test_copy_trees(both, tree, tmp_path):
    for name, run in (("here", both.local), ("there", both.remote)):
        done = run("cp", f"{tree}:/t", tmp_path / name)
        assert done.returncode == 0 and "skipped /t/pipe" in done.stderr, done
    here, there = names_below(tmp_path / "here"), names_below(tmp_path / "there")
    assert here == there and len(here) >= 9


def test_copy_trees_in(both, tmp_path):
    source = tmp_path / "src"
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "a").write_text("a")
    (source / "sub" / "b").write_bytes(os.urandom(100_000))
    (source / "sub" / "deep" / "ü x").write_text("c")
    (source / "link").symlink_to("sub/b")
    (source / ("l" * 150)).symlink_to("x" * 150)
    (source / "a").chmod(0o750)
    for i in range(50):
        (source / f"many{i}").write_text(str(i))

    def go(run, box):
        run("cp", source, f"{box}:/dst", check=True)
        run("cp", source / "a", f"{box}:/tmp", check=True)
        run("cp", source, f"{box}:/tmp", check=True)
        return both.engine.run("exec", box, "-c", "cd /dst && find . -printf '%p %y %m %l\\n' | sort;"
                               "cat */*/* | md5sum; ls /tmp /tmp/src")

    both.each(go)


def test_names_that_are_no_text(both, tmp_path):
    """Files of any name go both ways; only directories of such names cannot be made from afar, and that is said."""
    raw = os.fsencode(tmp_path) + b"/n\xff\xfe"
    pathlib.Path(os.fsdecode(raw)).write_bytes(b"bytes")
    box = both.engine.create()
    done = subprocess.run([both.engine.program, "--host", both.host, "cp", raw, f"{box}:/tmp/"], env=both.engine.env,
                          capture_output=True)
    assert done.returncode == 0, done
    assert both.remote("fs", "ls", box, "/tmp", text=False).stdout == b"n\xff\xfe\n"
    done = subprocess.run([both.engine.program, "--host", both.host, "fs", "mkdir", box, b"/tmp/d\xff"],
                          env=both.engine.env, capture_output=True)
    assert done.returncode == 125 and b"is not UTF-8" in done.stderr, done
    both.engine.run("rm", "-f", box)


def test_tar_streams(both, tree):
    here, there = (run("cp", f"{tree}:/t", "-", text=False, check=True).stdout for run in (both.local, both.remote))
    assert here == there and "sub/b.txt" in tarfile.open(fileobj=io.BytesIO(there)).getnames()

    def go(run, box):
        run("cp", "-", f"{box}:/in", input=there, text=False, check=True)
        return both.engine.run("exec", box, "-c", "cd /in && find . -printf '%p %y %m %l\\n' | sort")

    both.each(go)
    both.same("cp", "-", f"{tree}:/in", input=b"no tar" * 1000, text=False, code=125)


def test_watch(both, box):
    def watch(prefix, *options):
        process = both.engine.popen(*prefix, "fs", "watch", *options, box, "/tmp")
        seen = []
        reader = threading.Thread(target=lambda: seen.extend(iter(process.stdout.readline, b"")))
        reader.start()
        return process, reader, seen

    for options in ([], ["-r", "--json"]):
        watchers = [watch(prefix, *options) for prefix in ([], ["--host", both.host])]
        try:
            # Nothing says when a watch is in place: changes are made until both have seen one.
            def touched():
                both.engine.run("exec", box, "-c", "echo x > /tmp/w; rm /tmp/w")
                return all(any(b"deleted" in line for line in seen) for _, _, seen in watchers)
            until(touched, every=0.1)
            both.engine.run("exec", box, "-c", "echo 1 > /tmp/q; mv /tmp/q /tmp/p; rm /tmp/p; mkdir /tmp/end;"
                            "rmdir /tmp/end")
            until(lambda: all(any(b"/end" in line and b"deleted" in line for line in seen)
                              for _, _, seen in watchers))
        finally:
            for process, reader, _ in watchers:
                process.send_signal(signal.SIGINT)
                reader.join(10)
                end(process)
        tails = [[line for line in seen if b"/tmp/w" not in line] for _, _, seen in watchers]
        assert tails[0] == tails[1] and len(tails[0]) >= 6


# ---- who, where, and what goes wrong on the way


def test_tcp_needs_a_token(both, box):
    tcp = Both(both.daemon, both.daemon.url)
    done = tcp.remote("ps")
    assert done.returncode == 125 and done.stderr.startswith("cay: "), done
    assert json.loads(tcp.remote("ps", "--json").stderr)["error"]["code"] == "unauthorized"
    token = both.daemon.token("remote-test")
    assert box in tcp.remote("ps", "-q", env={"CAY_TOKEN": token}).stdout
    file = both.engine.top / "token"
    file.write_text(token + "\n")
    assert box in tcp.remote("--token-file", file, "ps", "-q").stdout
    assert box in tcp.remote("ps", "-q", env={"CAY_TOKEN_FILE": str(file)}).stdout
    assert tcp.remote("ps", env={"CAY_TOKEN": "cay_wrong"}).returncode == 125
    assert tcp.remote("exec", box, "--", "echo", "hi", env={"CAY_TOKEN": token}).stdout == "hi\n"
    said = tcp.remote("exec", "-i", box, "--", "cat", env={"CAY_TOKEN": token}, input="over tcp\n")
    assert said.stdout == "over tcp\n"


def test_tenants_see_their_own(both, box):
    tenant = Both(both.daemon, both.daemon.url, CAY_TOKEN=both.daemon.token("acme-test", tenant="acme"))
    tenant.remote("create", "--name", "mine", check=True)
    assert tenant.remote("ps", "-q").stdout == "mine\n"
    assert tenant.remote("exec", "mine", "--", "echo", "hi").stdout == "hi\n"
    assert tenant.remote("exec", box, "--", "true").returncode == 125
    assert both.remote("exec", "acme~mine", "--", "echo", "seen").stdout == "seen\n"
    assert both.same("ps", "-q", "--label", "none").stdout == ""
    assert "acme~mine" in both.same("ps", "-q").stdout
    tenant.remote("rm", "-f", "mine", check=True)
    assert "acme~mine" not in both.engine.ids()


def test_scopes(both, box):
    reader = Both(both.daemon, both.daemon.url, CAY_TOKEN=both.daemon.token("reader-test", scopes="read"))
    assert reader.remote("ps", check=True)
    done = reader.remote("exec", "--json", box, "--", "true")
    assert done.returncode == 125 and json.loads(done.stderr)["error"]["code"] == "denied"


def test_tls(both, daemons):
    secure = daemons(tcp=True, tls=True)
    secure.cay.env["CAY_LIBEXEC_DIR"] = both.engine.env["CAY_LIBEXEC_DIR"]
    box, token = secure.create(), secure.token("tls-test")
    over = Both(secure, secure.url, CAY_TOKEN=token)
    done = over.remote("ps")
    assert done.returncode == 125 and "cannot trust" in done.stderr, done
    assert box in over.remote("ps", "-q", env={"CAY_CACERT": str(secure.cert)}).stdout
    named = Both(secure, secure.url.replace("127.0.0.1", "localhost"), CAY_TOKEN=token, CAY_CACERT=str(secure.cert))
    assert named.remote("exec", "-i", box, "--", "cat", input="secret\n").stdout == "secret\n"


@pytest.mark.parametrize("host, words", [
    ("unix:/no/such/socket", "cannot reach cayd at unix:/no/such/socket: No such file"),
    ("http://127.0.0.1:1", "cannot reach cayd at http://127.0.0.1:1"),
    ("box", "bad host 'box'"), ("http://a/b", "bad host"), ("unix:", "bad host"), ("ftp://x", "bad host"),
    ("https://no-such-host.invalid", "cannot reach cayd"),
])
def test_hosts_that_are_not_there(both, host, words):
    done = Both(both.daemon, host).remote("ps")
    assert done.returncode == 125 and words in done.stderr and done.stderr.count("\n") == 1, done


def test_a_token_does_not_go_out_in_clear(both):
    far = Both(both.daemon, "http://192.0.2.1:7", CAY_TOKEN="cay_secret")
    done = far.remote("ps", timeout=5)
    assert done.returncode == 125 and "in clear" in done.stderr
    assert "cay_secret" not in done.stdout + done.stderr


def test_where_the_host_is_named(both, box):
    named = {"CAY_HOST": both.host}
    assert both.local("ps", "-q", env=named).stdout == both.local("ps", "-q").stdout
    assert both.local("--host=" + both.host, "ps", "-q").stdout == both.local("ps", "-q").stdout
    assert both.local("--host", "", "ps", "-q", env=named).returncode == 0
    assert both.local("ps", env={"CAY_HOST": "nonsense"}).returncode == 125
    done = both.local("--host")
    assert done.returncode == 125 and "needs a value" in done.stderr
    empty = both.engine.top / "empty"
    empty.mkdir(exist_ok=True)
    done = both.remote("ps", env={"CAY_LIBEXEC_DIR": str(empty)})
    assert done.returncode == 125 and "cay-remote" in done.stderr and "make" in done.stderr


def test_another_server(both):
    """What is not cayd is told apart, whatever it says."""
    import http.server

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body, status = {"/api/v1/sandboxes?state=live": (b"<html>", 200),
                            "/api/v1/sandboxes?state=all": (b'{"x":[', 200),
                            "/api/v1/sandboxes/a": (b"nothing", 502)}.get(self.path, (b"[1]", 200))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        other = Both(both.daemon, f"http://127.0.0.1:{server.server_port}")
        for words in (["ps"], ["ps", "-a"], ["stats", "a"], ["inspect", "b"], ["doctor"]):
            done = other.remote(*words)
            assert done.returncode == 125 and "the daemon's answer" in done.stderr, (words, done)
        server.shutdown()


def test_a_restarted_daemon_goes_unnoticed(both, box):
    process = both.popen("exec", "-i", box, "-c", "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.1;"
                         "done; cat; exit 5")
    waiting = None
    try:
        assert process.stdout.readline() == b"line 1\n"
        pid = [p["pid"] for p in both.engine.json("procs", "--json", box) if p["running"]][-1]
        waiting = both.popen("wait", box, pid)
        time.sleep(0.5)
        both.daemon.restart("kill9")
        process.stdin.write(b"input after it\n")
        process.stdin.flush()
        time.sleep(0.5)
        both.daemon.restart()
        process.stdin.close()
        process.stdin = None
        out, err = process.communicate(timeout=30)
        assert out.decode() == "".join(f"line {i}\n" for i in range(2, 41)) + "input after it\n"
        assert (err, process.returncode) == (b"", 5)
        assert waiting.wait(timeout=10) == 5, waiting.stderr.read()
    finally:
        for one in (process, waiting):
            if one:
                end(one)


def test_an_upgraded_daemon_goes_unnoticed(both, daemons):
    daemon = daemons()
    daemon.cay.env["CAY_LIBEXEC_DIR"] = both.engine.env["CAY_LIBEXEC_DIR"]
    process = Both(daemon).popen("exec", "-i", daemon.create(), "-c", "echo up; cat; exit 4")
    try:
        assert process.stdout.readline() == b"up\n"
        for i in range(3):
            daemon.upgrade()
            process.stdin.write(b"line %d\n" % i)
            process.stdin.flush()
            assert process.stdout.readline() == b"line %d\n" % i
        out, err = process.communicate(b"end\n", timeout=20)
        assert (out, err, process.returncode) == (b"end\n", b"", 4)
    finally:
        end(process)


def test_audit(both, box):
    both.remote("exec", box, "--", "echo", "audited", check=True)
    both.remote("fs", "mkdir", box, "/tmp/audited dir", check=True)
    time.sleep(0.2)
    for options in ([], ["--json"], ["--id", box], ["--action", "mkdir"], ["--json", "--limit", "3"],
                    ["--label", "kind=shared"], ["--since", "1h"], ["--until", "1h"]):
        both.same("audit", *options)
    said = both.same("audit", "--id", box, "--action", "mkdir")
    assert "/tmp/audited dir" in said.stdout
    both.same("audit", "--since", "nonsense", code=125, scrub=lambda text: text[:5])
    assert both.local("audit", "--verify").returncode == 0
    done = both.remote("audit", "--verify")
    assert done.returncode == 125 and "on the host of cayd" in done.stderr


def test_every_function_is_there():
    """cay-remote implements the whole of cay.h, not only what the command line happens to use."""
    header = (ROOT / "include/cay/cay.h").read_text()
    wanted = set(re.findall(r"CAY_API [^;(]*?\b(cay_\w+)\(", header))
    sources = "".join(p.read_text() for d in ("remote", "calls", "base") for p in (ROOT / "src" / d).glob("*.c"))
    missing = [name for name in sorted(wanted) if not re.search(rf"^[a-z].*\b\*?{name}\(", sources, re.M)]
    assert len(wanted) > 40 and missing == []
