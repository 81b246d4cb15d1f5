# SPDX-License-Identifier: Apache-2.0
"""Lost connections and restarted daemons: what goes on, what is repeated, and what never is."""
import os
import pathlib
import socket
import threading
import time

import pytest
from relay import cut_after, lose

import cay as sdk

LINES = "for i in $(seq 200); do echo line $i; sleep 0.005; done; exit 5"
WHOLE = b"".join(b"line %d\n" % n for n in range(1, 201))
HOW = pytest.mark.parametrize("how", ["kill9", "stop"])


@pytest.fixture
def daemon(daemons):
    return daemons(drain="100ms")


@HOW
def test_output_over_a_restart(twin, daemon, how):
    """A reader goes on where it was when the daemon is killed and started again; nothing is lost or comes twice."""
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        process = twin(sandbox.start(LINES))
        output = process.output()
        pieces = [twin.next(output) for _ in range(3)]
        daemon.restart(how)
        pieces += twin(output)
        assert b"".join(piece.data for piece in pieces) == WHOLE
        assert all(after.offset == before.end for before, after in zip(pieces, pieces[1:]))
        assert twin(process.wait()).exit_code == 5


@HOW
def test_everything_else_over_a_restart(twin, daemon, how):
    """The same client, sandbox and process objects go on, with files, commands and a waiting wait."""
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        twin(sandbox.files.write("/tmp/file", "kept"))
        process = twin(sandbox.start("read line; exit 6", stdin=True))
        events = client.events()
        assert twin.next(events).sandbox == sandbox.id
        daemon.restart(how)
        assert twin(sandbox.files.read_text("/tmp/file")) == "kept"
        assert twin(sandbox.exec("echo on")).stdout == "on\n"
        assert twin(process.poll()) is None
        twin(process.write("\n"))
        assert twin(process.wait(10)).exit_code == 6
        assert twin(client.get(sandbox.id)).info.state == "running"
        twin(sandbox.pause())
        seen = twin.next(events)
        while seen.type != "paused":
            seen = twin.next(events)
        twin.close(events)
        twin(sandbox.resume())


def test_waiting_over_a_restart(twin, daemon):
    """A wait that is under way when the daemon dies, and a call while there is none."""
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        process = twin(sandbox.start("sleep 1; exit 3"))

        def restart():
            time.sleep(0.2)
            daemon.kill9()
            time.sleep(0.3)  # nobody listens for a while
            daemon.start()

        thread = threading.Thread(target=restart)
        thread.start()
        assert twin(process.wait(20)).exit_code == 3
        thread.join()


def test_every_call_waits_for_a_daemon_that_is_away(twin, daemon):
    """What could not be sent at all is sent when somebody listens again: exec, start and write, too."""
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        for call in (lambda: client.get(sandbox.id), lambda: sandbox.exec("echo hi"), lambda: sandbox.start("true"),
                     lambda: sandbox.files.write("/tmp/x", "y")):
            daemon.kill9()
            starter = threading.Timer(0.1, daemon.start)
            starter.start()
            twin(call())
            starter.join()


def test_a_daemon_that_stays_away(twin, daemon, monkeypatch):
    """Unavailable after some seconds, for streams as well."""
    monkeypatch.setattr("cay._retry.SECONDS", 0.2)
    monkeypatch.setattr("cay._retry.FOLLOW_SECONDS", 0.2)
    client = twin.new(f"unix:{daemon.sock}")
    sandbox = twin(client.create())
    process = twin(sandbox.start("echo hi; sleep 1000"))
    output = process.output()
    twin.next(output)
    daemon.kill9()
    for call in (lambda: output, client.list, lambda: sandbox.exec("true"), client.events):
        with pytest.raises(sdk.Unavailable):
            twin(call())
    daemon.start()
    twin(sandbox.remove())
    twin.close(client)


# -- by the relay: at a certain point of a certain request

@pytest.fixture
def behind(twin, relay):
    """A client behind the relay that has had an answer already."""
    with twin.within(twin.new(relay.host)) as client:
        twin(client.version())
        yield client


def test_what_reads_is_repeated(twin, behind, relay, sandbox):
    """GETs, wait, and remove: once more, and the caller does not notice."""
    box = behind.attach(sandbox.id)
    process = twin(box.start("true"))
    for call in (lambda: behind.get(sandbox.id), behind.list, box.processes, box.stats, process.wait,
                 lambda: box.files.read("/etc/passwd"), lambda: box.files.list("/etc")):
        relay.rules.append((b"", lose))
        before = len(relay.seen)
        twin(call())
        assert len(relay.seen) == before + 2 and relay.seen[-1] == relay.seen[-2]
    gone = twin(behind.create())
    relay.rules.append((b"DELETE", lose))
    twin(gone.remove())
    assert relay.count("DELETE") == 2


def test_what_acts_is_never_repeated(twin, behind, relay, sandbox):
    """write and the like: Unavailable, and the daemon was asked once."""
    box = behind.attach(sandbox.id)
    process = twin(box.start("cat", stdin=True))
    for call in (lambda: process.write("x"), lambda: process.signal("USR1"), lambda: box.files.write("/tmp/f", "x"),
                 lambda: box.files.mkdir("/tmp/d"), lambda: box.files.remove("/tmp/d"), box.pause, box.resume):
        relay.rules.append((b"", lose))
        before = len(relay.seen)
        with pytest.raises(sdk.Unavailable) as caught:
            twin(call())
        assert len(relay.seen) == before + 1 and "lost the connection" in caught.value.message
    twin(process.kill())


def test_a_start_is_repeated_and_runs_once(twin, behind, relay, sandbox):
    """The answers to the first two are lost: there is one process all the same."""
    box = behind.attach(sandbox.id)
    relay.rules += [(b"POST", lose)] * 2
    process = twin(box.start("echo once >> /tmp/started"))
    assert relay.count("POST") == 3 and twin(process.wait()).ok
    assert twin(sandbox.files.read_text("/tmp/started")) == "once\n"
    twin(sandbox.files.remove("/tmp/started"))


@pytest.mark.parametrize("size", [0, 1, 100, 250, 300, 1000, 20000])
def test_an_exec_that_is_cut_anywhere(twin, behind, relay, sandbox, size):
    """Before there is an answer, within its headers or its output: it runs once, and the result is whole."""
    box = behind.attach(sandbox.id)
    text = "".join(f"{n}\n" for n in range(20000))
    twin(sandbox.files.write("/tmp/text", text))
    relay.rules += [(b"POST", cut_after(size)), (b"", cut_after(size))]
    done = twin(box.exec("echo once >> /tmp/ran; cat /tmp/text; echo end >&2; exit 3"))
    assert (done.stdout, done.stderr, done.exit_code) == (text, "end\n", 3) and not done.truncated
    assert twin(sandbox.files.read_text("/tmp/ran")) == "once\n"
    twin(sandbox.files.remove("/tmp/ran"))


@pytest.mark.parametrize("size", [0, 1, 100, 200, 300, 400, 1000])
def test_output_that_is_cut_anywhere(twin, behind, relay, sandbox, size):
    """Within the headers, a frame's head or its bytes: the reader goes on at the offset."""
    text = "".join(f"{n}\n" for n in range(2000))
    twin(sandbox.files.write("/tmp/text", text))
    process = twin(behind.attach(sandbox.id).start("cat /tmp/text"))
    twin(process.wait())
    relay.rules += [(b"GET", cut_after(size))] * 2
    pieces = twin(process.output())
    assert b"".join(piece.data for piece in pieces) == text.encode()
    assert relay.count("GET /api/v1/sandboxes/") == 3


def test_events_that_are_cut(twin, behind, relay):
    """Each comes once, although the connection is lost twice."""
    with twin.within(behind.sandbox()) as sandbox:
        twin(sandbox.pause())
        twin(sandbox.resume())
    plain = twin(behind.events(follow=False))
    relay.rules += [(b"GET", cut_after(500)), (b"GET", cut_after(600))]
    events = behind.events()
    assert [twin.next(events) for _ in plain] == plain
    twin.close(events)


def test_a_file_that_is_cut_is_no_short_file(twin, behind, relay, sandbox):
    """A stream that broke off raises: it is never taken for the whole."""
    twin(sandbox.files.write("/tmp/large", b"x" * 1_000_000))
    relay.rules.append((b"GET", cut_after(100_000)))
    with pytest.raises(sdk.Unavailable):
        twin(behind.attach(sandbox.id).files.stream("/tmp/large"))


def test_a_wait_that_is_repeated_does_not_begin_anew(twin, behind, relay, sandbox):
    """The time given is that of the caller, not of each attempt."""
    process = twin(behind.attach(sandbox.id).start("sleep 1000"))
    relay.rules.append((b"POST", lose))
    started = time.monotonic()
    with pytest.raises(sdk.Timeout):
        twin(process.wait(0.3))
    assert time.monotonic() - started < 10
    assert relay.count("POST") == 3  # start, and wait twice
    twin(process.kill())


def test_a_server_that_never_answers(twin, tmp_path):
    """`timeout` bounds each answer: Unavailable with httpx's error as its cause."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent"))
        listener.listen()
        client = twin.new(f"unix:{tmp_path}/silent", timeout=0.1)
        with pytest.raises(sdk.Unavailable) as caught:
            twin(client.version())
        assert type(caught.value.__cause__).__name__ == "ReadTimeout"
        twin.close(client)


def test_a_wait_that_nobody_answers(twin, tmp_path):
    """poll, and wait with a timeout: that is all the time they take, and `timeout` for the answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent"))
        listener.listen()
        client = twin.new(f"unix:{tmp_path}/silent", timeout=0.1)
        process = client.attach("box").process(1)
        for call in (process.poll, lambda: process.wait(0.1), lambda: process.wait(-1)):
            with pytest.raises(sdk.Unavailable):
                twin(call())
        twin.close(client)


def test_readers_that_leave_close_their_connection(twin, client, sandbox):
    """A generator that is closed early holds no connection."""
    process = twin(sandbox.start("echo hi; sleep 1000"))

    def sockets():
        links = [os.readlink(link) for link in pathlib.Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(link.startswith("socket:") for link in links)

    before = sockets()
    outputs = [process.output() for _ in range(10)]
    assert [twin.next(output).data for output in outputs] == [b"hi\n"] * 10
    assert sockets() >= before + 9
    for output in outputs:
        twin.close(output)
    twin(process.kill())
    assert sockets() <= before + 1
