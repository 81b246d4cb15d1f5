# SPDX-License-Identifier: Apache-2.0
"""cay --host when the daemon, its answers or the client get lost: nothing is done twice, and nothing stays behind."""
import hashlib
import os
import pathlib

import pytest

from integration.support import alive, end, host_pids, until
from lib.both import Both
from lib.lossy import Lossy


@pytest.fixture(scope="module")
def both():
    with Both.with_daemon(drain="1s") as pair:
        yield pair


@pytest.fixture(scope="module")
def box(both):
    identifier = both.engine.create()
    yield identifier
    both.engine.run("rm", "-f", identifier)


@pytest.fixture
def losing(both, tmp_path):
    """losing(b"POST ...") -> a command line whose first such request gets no answer."""
    proxies = []

    def make(pattern):
        path = both.engine.top / f"lossy{len(proxies)}"
        proxies.append(Lossy(path, both.daemon.sock, pattern))
        return Both(both.daemon, f"unix:{path}")

    yield make
    for proxy in proxies:
        proxy.__exit__()
        assert proxy.lost.is_set()


def position(process):
    """How much of its standard input a program has read; that must be a file."""
    return int(pathlib.Path(f"/proc/{process.pid}/fdinfo/0").read_text().split()[1])


# ---- requests


@pytest.mark.parametrize("options", [[], ["-d"], ["--json"]], ids=" ".join)
def test_a_start_whose_answer_is_lost(both, box, losing, options):
    """It is asked for again, and the command runs once."""
    word = "once" + "".join(options)
    done = losing(b"/processes ").remote("exec", *options, box, "-c", f": {word}; echo hi")
    assert (done.returncode, done.stderr) == (0, "")
    assert [word in p["command"] for p in both.engine.json("procs", "--json", box)].count(True) == 1


def test_a_run_whose_answer_is_lost(both, losing):
    before = both.engine.ids()
    done = losing(b"/processes ").remote("run", "-c", "echo once; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "once\n", "")
    assert both.engine.ids() == before


@pytest.mark.parametrize("words", [["mv", "/tmp/old", "/tmp/new"], ["rm", "/tmp/old"]], ids=lambda words: words[0])
def test_a_change_whose_answer_is_lost(both, box, losing, words):
    """It was done: that the file is not there any more is no answer."""
    both.local("exec", box, "-c", "echo x > /tmp/old", check=True)
    pattern = b"/fs/move " if words[0] == "mv" else b"DELETE "
    done = losing(pattern).remote("fs", words[0], box, *words[1:])
    assert done.returncode == 125 and "it may have been done" in done.stderr, done
    assert both.local("fs", "stat", box, "/tmp/old").returncode == 125


# ---- input


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_input_arrives_once(both, box, how, tmp_path):
    """The daemon goes while it holds input that the process does not read yet."""
    data, file, go = os.urandom(3_000_000), tmp_path / "input", f"/tmp/go-{how}"
    file.write_bytes(data)
    with open(file, "rb") as stdin:
        process = both.popen("exec", "-i", box, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; sha256sum", stdin=stdin)
    try:
        until(lambda: position(process) > 300_000)
        both.daemon.restart(how)
        both.engine.run("exec", box, "--", "touch", go, check=True)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    finally:
        end(process)


def test_input_whose_answer_is_lost(box, losing):
    data = os.urandom(1_000_000)
    done = losing(b"/stdin").remote("exec", "-i", box, "--", "sha256sum", input=data, text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_two_that_give_input_do_not_disturb_each_other(both, box):
    """Offsets count the input of the one that uses them."""
    first = both.popen("exec", "-i", box, "--", "cat")
    try:
        first.stdin.write(b"from the first\n")
        first.stdin.flush()
        assert first.stdout.readline() == b"from the first\n"
        pid = [p["pid"] for p in both.engine.json("procs", "--json", box) if p["running"]][-1]
        second = both.popen("attach", "-i", box, pid)
        second.stdin.write(b"from the second\n")
        second.stdin.flush()
        assert first.stdout.readline() == b"from the second\n"
        end(second)
        out, err = first.communicate(b"from the first again\n", timeout=30)
        assert (out, err, first.returncode) == (b"from the first again\n", b"", 0)
    finally:
        end(first)


# ---- clients


def test_a_killed_run_leaves_nothing(both):
    """The command has a lease, and its sandbox an idle time."""
    before, marker = set(both.engine.ids()), f"61.{os.getpid()}"
    process = both.popen("run", "-c", f"sleep {marker} & echo up; wait")
    assert process.stdout.readline() == b"up\n"
    (left,) = set(both.engine.ids()) - before
    keeper = both.engine.json("inspect", "--json", left)["keeper_pid"]
    until(lambda: host_pids(marker))
    end(process)
    until(lambda: not host_pids(marker), seconds=50)
    until(lambda: not alive(keeper), seconds=50)  # asking for its state would be a use of it
    assert both.engine.json("inspect", "--json", left)["state"] == "idle"
