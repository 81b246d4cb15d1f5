# SPDX-License-Identifier: Apache-2.0
"""Everything or an error: large input and output, slow readers, readers that are cut off, ends of daemon and client."""
import asyncio
import contextlib
import hashlib
import http.server
import json
import os
import signal
import socketserver
import struct
import subprocess
import sys
import threading
import time

import pytest

import cay as sdk

LINES = 10_000_000
SECONDS = 60
HOW = pytest.mark.parametrize("how", ["kill9", "stop", "upgrade"])


@pytest.fixture(scope="module")
def lines():
    """What `seq 10000000` prints, 78.9 MB: (size, SHA-256)."""
    digest, size = hashlib.sha256(), 0
    for first in range(1, LINES, 100_000):
        text = "".join(f"{n}\n" for n in range(first, first + 100_000)).encode()
        digest.update(text)
        size += len(text)
    return size, digest.hexdigest()


def digest_of(pieces):
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def eventually(what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- 80 MB, with 64 KiB kept

@pytest.fixture(scope="module")
def small(twin, client):
    with twin.within(client.sandbox(output=65536)) as sandbox:
        yield sandbox


def test_exec_of_80_megabytes(twin, small, lines):
    done = twin(small.exec_bytes(f"seq {LINES}"))
    assert digest_of([done.stdout]) == lines
    assert (done.exit_code, done.stderr, done.truncated, done.reason) == (0, b"", False, None)


def test_output_of_80_megabytes(twin, small, lines):
    """A process that is started and then followed."""
    process = twin(small.start(f"seq {LINES}"))
    assert digest_of(piece.data for piece in twin(process.output())) == lines
    assert twin(process.wait()).ok


def test_a_slow_reader_holds_the_process_back(twin, small):
    """It writes as it is read, and not ahead; nothing is lost."""
    process = twin(small.start("for i in $(seq 400); do head -c 100000 /dev/zero; echo $i > /tmp/sent; done"))
    output = process.output()
    size = len(twin.next(output).data)
    time.sleep(1)
    assert int(twin(small.files.read("/tmp/sent"))) < 200
    assert size + sum(len(piece.data) for piece in twin(output)) == 40_000_000


def test_a_reader_that_is_stuck(twin, small):
    """It is cut off and told so. The process goes on; what it wrote meanwhile is lost, and that is told, too."""
    process = twin(small.start("head -c 30000000 /dev/zero; echo done > /tmp/done"))
    output = process.output(stall=1)
    read = twin.next(output).end
    eventually(lambda: twin(small.files.exists("/tmp/done")))
    with pytest.raises(sdk.Stalled):
        for piece in twin(output):
            read = piece.end
    with pytest.raises(sdk.OutputLost) as caught:
        twin(process.output(since=read))
    left = twin(process.output(since=caught.value.detail["to"]))
    assert left[-1].end == 30_000_000


def test_input_and_output_at_once(twin, sandbox):
    """30 MB through cat, whose output is larger than any buffer while its input still comes."""
    data = os.urandom(1 << 20) * 30
    done = twin(sandbox.exec_bytes("cat", input=data))
    assert done.stdout == data


def test_input_that_is_not_read(twin, sandbox):
    """As in front of `head`: no error, and no waiting."""
    done = twin(sandbox.exec("head -c 3", input=b"abc" * 10_000_000))
    assert (done.exit_code, done.stdout) == (0, "abc")


def test_more_than_is_wanted(twin, sandbox):
    """TooLarge, and the command is gone."""
    with pytest.raises(sdk.TooLarge):
        twin(sandbox.exec("yes", max_output=1_000_000))
    eventually(lambda: not any(one.running for one in twin(sandbox.processes())))


def test_writing_a_large_file_in_one_piece(twin, sandbox):
    """100 MiB of bytes take about as long as the same bytes in pieces."""
    data = bytes(100 << 20)

    def seconds(content):
        start = time.monotonic()
        twin(sandbox.files.write("/tmp/large", content))
        return time.monotonic() - start

    seconds(b"")
    pieces = min(seconds(iter([data[:65536]] * 1600)) for _ in range(2))
    assert min(seconds(data) for _ in range(2)) < 6 * pieces + 1
    assert twin(sandbox.files.stat("/tmp/large")).size == len(data)


# -- ends of the daemon

@pytest.fixture
def daemon(daemons):
    return daemons(drain="100ms")


def end(daemon, how):
    daemon.upgrade() if how == "upgrade" else daemon.restart(how)


@HOW
def test_exec_over_an_end_of_the_daemon(twin, daemon, how):
    """It runs once, gets all of its input, and its result is whole."""
    data = os.urandom(1 << 20) * 8
    script = "echo once >> /tmp/ran; sha256sum; for i in $(seq 100); do echo $i; sleep 0.02; done; exit 7"
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        with sdk.Cay(f"unix:{daemon.sock}") as other:
            def later():
                eventually(lambda: other.attach(sandbox.id).files.exists("/tmp/ran"))
                time.sleep(0.3)
                end(daemon, how)

            thread = threading.Thread(target=later)
            thread.start()
            done = twin(sandbox.exec(script, input=data))
            thread.join()
            assert other.attach(sandbox.id).files.read_text("/tmp/ran") == "once\n"
        numbers = "".join(f"{n}\n" for n in range(1, 101))
        assert done.stdout == f"{hashlib.sha256(data).hexdigest()}  -\n{numbers}"
        assert (done.exit_code, done.reason) == (7, None)


@HOW
def test_80_megabytes_over_an_end_of_the_daemon(twin, daemon, lines, how):
    """By exec, and by an iterator: the process waits for a reader that comes back."""
    with twin.within(twin.new(f"unix:{daemon.sock}")) as client, twin.within(client.sandbox()) as sandbox:
        timer = threading.Timer(0.5, end, (daemon, how))
        timer.start()
        done = twin(sandbox.exec_bytes(f"seq {LINES}; sleep 1"))
        timer.join()
        assert digest_of([done.stdout]) == lines
        process = twin(sandbox.start("for i in $(seq 40); do echo $i; sleep 0.05; done"))
        output = process.output()
        first = twin.next(output)
        end(daemon, how)
        rest = b"".join(piece.data for piece in twin(output))
        assert first.data + rest == b"".join(b"%d\n" % n for n in range(1, 41))


# -- ends of the client

PROGRAMS = {
    "sync": "cay.Cay().attach(sys.argv[1]).exec(sys.argv[2])",
    "async": "asyncio.run(cay.AsyncCay().attach(sys.argv[1]).exec(sys.argv[2]))",
    "input": "cay.Cay().attach(sys.argv[1]).exec(sys.argv[2], input=b'x' * 10000000)",
    "strands": "from cay.adapters.strands import CaySandbox; "
               "asyncio.run(CaySandbox(cay.AsyncCay().attach(sys.argv[1]), working_dir='/tmp').execute(sys.argv[2]))",
    "openenv": "from cay.adapters.openenv import CaySandboxHandle; "
               "CaySandboxHandle(cay.Cay().attach(sys.argv[1]), '/tmp').exec(sys.argv[2], timeout=None)",
}


@pytest.mark.parametrize("how", [None, "kill9", "stop"])
def test_clients_that_are_killed(daemon, how):
    """Their commands are gone within seconds, also if the daemon ends at the same moment."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(sdk.Cay(f"unix:{daemon.sock}"))
        boxes = {name: stack.enter_context(client.sandbox()) for name in PROGRAMS}
        children = [
            subprocess.Popen([sys.executable, "-c", f"import asyncio, cay, sys; {PROGRAMS[name]}", box.id,
                              "setsid sleep 1000 & sleep 1000"],
                             env={**os.environ, "CAY_HOST": f"unix:{daemon.sock}"})
            for name, box in boxes.items()
        ]
        for box in boxes.values():
            eventually(lambda box=box: box.stats().pids >= 3)
        for child in children:
            child.kill()
            child.wait()
        if how:
            daemon.restart(how)
        for box in boxes.values():
            eventually(lambda box=box: box.stats().pids <= 1, 25)
            assert box.processes()[-1].exit.reason == "its client went away"


def test_a_process_with_a_lease(twin, client):
    """kill_on_disconnect: it lives while somebody waits for it or follows it, and not much longer."""
    with twin.within(client.sandbox()) as sandbox:
        held = twin(sandbox.start("sleep 1000", kill_on_disconnect=True))
        alone = twin(sandbox.start("sleep 1000", kill_on_disconnect=True))
        free = twin(sandbox.start("sleep 1000"))
        with pytest.raises(sdk.Timeout):
            twin(held.wait(14))
        assert (twin(held.poll()), twin(free.poll())) == (None, None)
        assert twin(alone.wait(15)).reason == "its client went away"


def test_the_reason_of_an_end(twin, client):
    """Nothing where a process ended by itself, also by a signal of its own."""
    with twin.within(client.sandbox()) as sandbox:
        assert twin(sandbox.exec("kill -9 $$")).reason is None
        late = twin(sandbox.exec("sleep 1000", timeout=0.1))
        assert late.timed_out and late.reason == "timed out" and late.note == ""
        process = twin(sandbox.start("sleep 1000"))
        output = process.output()
        threading.Timer(0.3, sdk.Cay(client.host).attach(sandbox.id).remove).start()
        assert twin(output) == []
        ended = twin(process.wait())
        assert ended.signal == 9 and "removed" in ended.reason and "removed" in ended.note


# -- by a server that says what cayd says only in rare moments

def frame(kind, offset, payload):
    payload = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return struct.pack(">B3xIQ", kind, len(payload), offset) + payload


EXIT = {"type": "exit", "exit": dict(pid=7, exit_code=0, signal=0, timed_out=False, truncated=False, oom=False,
                                     duration_ms=1, cpu_ms=1, peak_memory=1)}
GAP = {"type": "gap", "from": 3, "to": 9}
STALLED = {"type": "error", "error": {"code": "stalled", "message": "too slow"}}
AWAY = {"type": "error", "error": {"code": "unavailable", "message": "the daemon ends"}}


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def fake(tmp_path):
    """Answers with `plan`, one after another: bytes of frames, or a status. `seen`: what came."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fake.seen.append((self.command, self.path, body))
            if self.command == "DELETE" or not fake.plan:
                self.send_response(204)
                self.end_headers()
                return
            given = fake.plan.pop(0)
            if isinstance(given, int):
                given, status = b'{"error": {"code": "not_found", "message": "no process 7"}}', given
            else:
                status = 200
            self.send_response(status)
            self.send_header("x-cay-pid", "7")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(given)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

        def address_string(self):
            return "unix"

    fake = Server(str(tmp_path / "fake"), Handler)
    fake.plan, fake.seen, fake.host = [], [], f"unix:{tmp_path}/fake"
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    yield fake
    fake.shutdown()
    fake.server_close()


ABC = frame(1, 0, b"abc")


@pytest.mark.parametrize("rest", [[frame(6, 3, GAP) + frame(1, 9, b"j") + frame(3, 10, EXIT)],
                                  [frame(1, 9, b"j") + frame(3, 10, EXIT)], [frame(3, 10, EXIT)], [b"", 404]],
                         ids=["gap", "hole", "early exit", "forgotten"])
def test_what_lacks_something_is_no_result(twin, fake, rest):
    """OutputLost, and the command is killed."""
    fake.plan = [ABC + rest[0], *rest[1:]]
    with twin.within(twin.new(fake.host)) as client:
        with pytest.raises(sdk.OutputLost):
            twin(client.attach("a").exec("x"))
        assert fake.seen[-1][:2] == ("DELETE", "/api/v1/sandboxes/a/processes/7")


def test_readers_are_told(twin, fake):
    """What came first is given first; then the gap, the cut, or what the daemon says. Its own end is none of these."""
    with twin.within(twin.new(fake.host)) as client:
        process = client.attach("a").process(7)
        for rest, error in ((frame(6, 3, GAP), sdk.OutputLost), (frame(5, 3, STALLED), sdk.Stalled)):
            fake.plan = [ABC + rest]
            output = process.output()
            assert twin.next(output).data == b"abc"
            with pytest.raises(error):
                twin.next(output)
        fake.plan = [ABC + frame(5, 3, AWAY), frame(1, 2, b"cd") + frame(3, 4, EXIT)]
        assert b"".join(piece.data for piece in twin(process.output())) == b"abcd"
        fake.plan = [ABC + frame(5, 3, STALLED), frame(3, 3, EXIT)]
        assert twin(client.attach("a").exec("x")).stdout == "abc"


def test_a_gap_can_be_stepped_over(twin, fake):
    with twin.within(twin.new(fake.host)) as client:
        process = client.attach("a").process(7)
        fake.plan = [frame(1, 9, b"j") + frame(3, 10, EXIT)] * 2
        assert [piece.offset for piece in twin(process.output(since=None))] == [9]
        assert [piece.offset for piece in twin(process.output(since=9))] == [9]
        assert "from=" not in fake.seen[0][1] and "from=9" in fake.seen[1][1]


def test_nothing_is_read_ahead_of_a_consumer(twin, sandbox):
    """The memory of a client does not grow while it does not read."""
    process = twin(sandbox.start("head -c 200000000 /dev/zero"))
    output = process.output()
    twin.next(output)

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    for _ in range(5):
        twin(asyncio.sleep(0.1)) if twin.loop else time.sleep(0.1)
    assert resident() - before < 10_000_000
    twin.close(output)
    with contextlib.suppress(sdk.CayError):
        twin(process.signal(signal.SIGKILL))
