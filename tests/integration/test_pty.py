# SPDX-License-Identifier: Apache-2.0
"""Terminals: -t with a real one on this side."""
import contextlib
import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from integration.support import background, refused, until


class Terminal:
    """`cay ARGS` with a terminal of its own."""

    def __init__(self, cay, *args, rows=33, cols=111):
        self.master, slave = pty.openpty()
        self.resize(rows, cols)
        self.process = subprocess.Popen([cay.program, *map(str, args)], env={**cay.env, "TERM": "xterm-256color"},
                                        stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = b""

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def expect(self, text, seconds=10):
        """Reads until `text` was seen; forgets what came before its end."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, (text, self.seen)
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            assert data, (text, self.seen)
            self.seen += data
        before, _, self.seen = self.seen.partition(text)
        return before

    def send(self, data):
        view = memoryview(data)
        while view:
            view = view[os.write(self.master, view):]

    def wait(self, seconds=10):
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.master)


@pytest.fixture
def terminal(cay):
    made = []

    def one(*args, **more):
        made.append(Terminal(cay, *args, **more))
        return made[-1]

    yield one
    for t in made:
        with contextlib.suppress(OSError):
            t.close()


def test_it_is_a_terminal_of_our_size(cay, box, terminal):
    t = terminal("exec", "-it", box, "-c", "tty; stty size; echo $TERM; test -t 0 -a -t 1 -a -t 2 && echo yes; exit 4")
    t.expect(b"/dev/pts/0\r\n33 111\r\nxterm-256color\r\nyes\r\n")
    assert t.wait() == 4


def test_without_t_it_is_none(cay, box, terminal):
    t = terminal("exec", "-i", box, "-c", "test -t 0 || test -t 1 || echo none")
    t.expect(b"none")
    assert t.wait() == 0


def test_a_terminal_without_one_here(cay, box):
    done = cay.run("exec", "-t", box, "-c", "stty size; echo out; echo err >&2", text=False)
    assert done.stdout == b"24 80\r\nout\r\nerr\r\n" and done.returncode == 0


def test_resize_reaches_the_program(cay, box, terminal):
    t = terminal("exec", "-it", box, "-c", "trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done")
    t.expect(b"up\r\n")
    t.resize(44, 132)
    os.kill(t.process.pid, signal.SIGWINCH)
    t.expect(b"44 132\r\n")


def test_ctrl_c_reaches_the_foreground_program(cay, box, terminal):
    t = terminal("exec", "-it", box, "-c", "trap 'echo; echo interrupted; exit 7' INT; echo up; while :; do sleep 0.05; done")
    t.expect(b"up\r\n")
    t.send(b"\x03")
    t.expect(b"interrupted\r\n")
    assert t.wait() == 7


def test_job_control(cay, box, terminal):
    t = terminal("exec", "-it", box, "--", "bash", "--norc", "-i")
    t.expect(b"$ ") if b"$ " in t.seen else t.expect(b"# ")
    t.send(b"sleep 1000\r")
    t.expect(b"sleep 1000\r\n")
    time.sleep(0.3)
    t.send(b"\x1a")
    t.expect(b"Stopped")
    t.send(b"kill -KILL %1; exec sh -c 'exit 9'\r")
    assert t.wait() == 9


def test_shell(cay, box, terminal):
    t = terminal("shell", box)
    t.expect(b"# ")
    t.send(b"echo $((6 * 7))\r")
    t.expect(b"42\r\n")
    t.expect(b"# ")  # before that the shell does not read characters, and the line discipline takes this one
    t.send(b"\x04")
    assert t.wait() == 0


def test_shell_with_a_script(cay, box):
    done = cay.run("shell", box, input="echo $((6 * 7))\nexit 3\n")
    assert (done.stdout, done.returncode) == ("42\n", 3)


def test_our_terminal_is_restored(cay, box, terminal):
    t = terminal("exec", "-it", box, "--", "true")
    before = termios.tcgetattr(t.master)
    assert t.wait() == 0
    assert termios.tcgetattr(t.master)[3] & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON, before


def test_large_input(cay, box, terminal):
    t = terminal("exec", "-it", box, "-c", "stty raw -echo; echo up; head -c 200000 | sha256sum; stty sane")
    t.expect(b"up")
    t.send(b"0123456789" * 20000)
    t.expect(hashlib.sha256(b"0123456789" * 20000).hexdigest().encode(), 15)
    assert t.wait() == 0


def test_end_of_input_ends_a_reader(cay, box):
    for _ in range(10):
        done = cay.run("exec", "-it", box, "--", "cat", input=b"hello\n", text=False, timeout=20)
        assert done.stdout.count(b"hello") == 2 and done.returncode == 0, done


def test_a_program_that_closes_its_terminal_is_not_hung_up(cay, box):
    done = cay.run("exec", "-t", box, "-c", "exec <&- >&- 2>&-; sleep 0.3; exit 5", timeout=20)
    assert done.returncode == 5


def test_large_output_is_exact(cay, box):
    done = cay.run("exec", "-t", box, "--", "seq", "100000", text=False)
    assert done.stdout == b"".join(b"%d\r\n" % i for i in range(1, 100001))


def test_hang_up_of_our_terminal_ends_the_command(cay, box, terminal):
    t = terminal("exec", "-it", box, "-c", "trap 'echo hup > /tmp/hup; exit' HUP; echo up; while :; do sleep 0.05; done")
    t.expect(b"up")
    t.process.send_signal(signal.SIGHUP)
    until(lambda: cay.run("fs", "cat", box, "/tmp/hup").stdout == "hup\n", 10)


def test_attach_to_a_terminal(cay, box, terminal):
    number = background(cay, box, "echo up; read x; echo got $x; exit 6", "-it")
    t = terminal("attach", "-it", box, number)
    t.expect(b"up\r\n")
    t.send(b"word\r")
    t.expect(b"got word\r\n")
    assert t.wait() == 6


@pytest.mark.parametrize("keys,sent", [(None, b"\x10\x11"), ("ctrl-a,d", b"\x01d"), ("ctrl-]", b"\x1d")])
def test_keys_that_leave_it_running(cay, box, terminal, keys, sent):
    options = ["--detach-keys", keys] if keys else []
    t = terminal("exec", "-it", *options, box, "-c", "stty -echo; echo up; while read x; do echo got $x; done")
    t.expect(b"up\r\n")
    t.send(b"one\r")
    t.expect(b"got one\r\n")
    t.send(b"tw" + sent[:1])  # the first of them may be an ordinary key
    if len(sent) > 1:
        t.send(b"o\r")
        t.expect(b"got tw" + sent[:1] + b"o\r\n")
        t.send(sent[:1])
        t.send(sent[1:])
    words = t.expect(b"returns to it\r\n").decode()
    assert t.wait() == 0
    number = re.search(rf"left process (\d+) of sandbox '{box}' running; 'cay attach -it {box} \1'", words)[1]
    back = terminal("attach", "-it", *options, box, number)
    back.send(b"\rthree\r")
    back.expect(b"got three\r\n")
    back.send(sent)
    back.expect(b"returns to it")
    assert back.wait() == 0
    cay.run("signal", box, number, "KILL", check=True)


def test_keys_that_leave_a_shell(cay, box, terminal):
    t = terminal("shell", box)
    t.expect(b"# ")
    t.send(b"\x10\x11")
    number = re.search(rb"left process (\d+)", t.expect(b"returns to it"))[1].decode()
    assert t.wait() == 0
    assert [p["running"] for p in cay.json("procs", "--json", box) if str(p["pid"]) == number] == [True]
    cay.run("signal", box, number, "KILL", check=True)


def test_without_keys_all_are_passed_on(cay, box, terminal):
    for argv in (("exec", "-it", "--detach-keys", "none", box), ("run", "-it")):
        t = terminal(*argv, "-c", "stty raw -echo; echo up; head -c 2 | od -An -tx1; stty sane")
        t.expect(b"up")
        t.send(b"\x10\x11")
        t.expect(b"10 11")
        assert t.wait() == 0


def test_wrong_keys(cay, box):
    refused(cay.run("exec", "-it", "--detach-keys", "ctrl-pp", box, "true"), "ctrl-pp", "ctrl-a")
    refused(cay.run("exec", "-it", "--detach-keys", ",", box, "true"), "','")
    refused(cay.run("exec", "--detach-keys", "ctrl-p", box, "true"), "-i and -t")


def test_timeout_with_a_terminal(cay, box):
    assert cay.run("exec", "-t", "--timeout", "300ms", box, "--", "sleep", "100").returncode == 124


def test_many_terminals(cay, box, terminal):
    terminals = [terminal("exec", "-it", box, "-c", f"echo up{i}; read x; echo got $x") for i in range(10)]
    for i, t in enumerate(terminals):
        t.expect(b"up%d\r\n" % i)
    for i, t in enumerate(terminals):
        t.send(b"%d\r" % i)
    for i, t in enumerate(terminals):
        t.expect(b"got %d\r\n" % i)
        assert t.wait() == 0
