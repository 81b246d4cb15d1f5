# SPDX-License-Identifier: Apache-2.0
"""Bytes in and out of commands, every way there is, with fast, slow and stopping peers: all of them arrive, or an
error says that they did not.

The sandboxes keep only 64 KiB of output, so whatever is not held back for its reader would be lost. CAY_TEST_STREAM
(6M) is the size of what goes through each way; `make soak` sends 1G.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

from integration.support import end, refused, until
from lib.daemon import BYTES, FRAMES, NDJSON, Daemon, event_bytes

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ASKED = os.environ.get("CAY_TEST_STREAM", "6M")
SIZE = int(ASKED[:-1]) * UNITS[ASKED[-1]] + 1
PATIENCE = 60 + SIZE // (4 << 20)
KEPT = 64 << 10  # of output
WINDOW = 4 << 20  # more than waits anywhere on the way for a reader that does not read

# Reads all of standard input, as the way asks for, and says what it was.
CONSUMER = """
import hashlib, sys, time
pace, seen, digest = sys.argv[1], 0, hashlib.sha256()
while True:
    piece = sys.stdin.buffer.read1(65536)
    if not piece:
        break
    digest.update(piece)
    if pace == "stopping" and seen < 2000000 <= seen + len(piece):
        time.sleep(1.5)
    if pace == "slow" and seen < 2000000:
        time.sleep(0.01)
    seen += len(piece)
print(seen, digest.hexdigest())
"""
PACES = ("fast", "slow", "stopping")


class Digest:
    """A reader of the given pace."""

    def __init__(self, pace):
        self.pace, self.seen, self.sum = pace, 0, hashlib.sha256()

    def take(self, piece):
        before, self.seen = self.seen, self.seen + len(piece)
        self.sum.update(piece)
        if self.pace == "stopping" and before < 2000000 <= self.seen:
            time.sleep(1.5)
        if self.pace == "slow" and before < 2000000:
            time.sleep(len(piece) / 3e6)

    def result(self):
        return self.seen, self.sum.hexdigest()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a file of bytes, and what they are."""
    place = tmp_path_factory.mktemp("streams")
    place.chmod(0o755)
    digest = hashlib.sha256()
    with open(place / "data", "wb") as file:
        for at in range(0, SIZE, 1 << 20):
            piece = os.urandom(min(1 << 20, SIZE - at))
            digest.update(piece)
            file.write(piece)
    (place / "data").chmod(0o644)
    (place / "consumer.py").write_text(CONSUMER)
    return place, (SIZE, digest.hexdigest())


@pytest.fixture(scope="module")
def daemon():
    daemon = Daemon(pool=0)
    yield daemon
    assert daemon.close() == []


@pytest.fixture(scope="module")
def box(daemon, place):
    return daemon.create(output="64K", mounts=[{"source": str(place[0]), "target": "/in", "read_only": True}])


def wait_for(process, *codes):
    """Its exit code and what it said, however long a peer takes."""
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in codes, (process.returncode, err)
    return err


# ---- output -------------------------------------------------------------------------------------------------------


def by_cli(daemon, box, digest, *args):
    process = daemon.cay.popen(*args, stdin=subprocess.DEVNULL, env={"CAY_CGROUP": daemon.cgroup})
    while piece := process.stdout.read1(65536):
        digest.take(piece)
    wait_for(process, 0)


def host(daemon):
    return "--host", f"unix:{daemon.sock}"


def mounted(place):
    return "--output", "64K", "-v", f"{place}:/in:ro"


RAW = ("/bin/sh", "-c", "stty raw; cat /in/data")


def by_stream(daemon, box, digest, accept, **start):
    """POST processes?follow=true, or a start that waits for its reader and GET output."""
    body = {"argv": ["cat", "/in/data"]}
    if start:
        pid = daemon.start_process(box, **body, **start)
        path, options = f"/sandboxes/{box}/processes/{pid}/output?follow=true&from=0", {}
    else:
        path, options = f"/sandboxes/{box}/processes?follow=true", {"method": "POST", "json": body}
    with daemon.stream(path, accept=accept, timeout=PATIENCE, **options) as stream:
        assert stream.status == 200
        if accept == BYTES:
            while piece := stream.some():
                digest.take(piece)
            return
        if accept == NDJSON:
            events = [(e["type"], event_bytes(e) if e["type"] == "output" else e) for e in digested(stream, digest)]
        else:
            events = [(kind, rest) for kind, _, rest in framed(stream, digest)]
        assert events[-1][0] in ("exit", 3), events[-1]


def digested(stream, digest):
    for event in stream:
        if event["type"] == "output":
            digest.take(event_bytes(event))
        else:
            yield event


def framed(stream, digest):
    for kind, offset, payload in stream.frames():
        if kind in (1, 2):
            digest.take(payload)
        else:
            yield kind, offset, payload


def by_websocket(daemon, box, digest, **start):
    body = {"argv": list(RAW)} if start.get("pty") else {"argv": ["cat", "/in/data"]}
    pid = daemon.start_process(box, **body, hold=True, **start)
    with daemon.websocket(f"/sandboxes/{box}/processes/{pid}/attach?from=0", timeout=PATIENCE) as ws:
        while True:
            opcode, payload = ws.receive()
            if opcode == ws.BINARY:
                digest.take(payload)
            elif opcode == ws.TEXT:
                assert json.loads(payload)["type"] == "exit", payload
            else:
                return


def by_attach(daemon, box, digest, *prefix):
    pid = daemon.start_process(box, "sleep 1; cat /in/data")
    by_cli(daemon, box, digest, *prefix, "attach", "--from", "0", box, str(pid))


def by_logs(daemon, place, digest, *prefix):
    """A sandbox of its own: its log ends with it."""
    own = daemon.create(output="64K", mounts=[{"source": str(place), "target": "/in", "read_only": True}])
    process = daemon.cay.popen(*prefix, "logs", "-f", own, stdin=subprocess.DEVNULL)
    time.sleep(0.3)
    daemon.start_process(own, "cat /in/data; sleep 30")
    while digest.seen < SIZE:
        piece = process.stdout.read1(65536)
        assert piece, process.communicate()
        digest.take(piece)
    daemon.remove(own)
    wait_for(process, 0)


OUTPUT = {
    "run": lambda d, b, p, s: by_cli(d, b, s, "run", *mounted(p), "--", "cat", "/in/data"),
    "exec": lambda d, b, p, s: by_cli(d, b, s, "exec", b, "--", "cat", "/in/data"),
    "exec -t": lambda d, b, p, s: by_cli(d, b, s, "exec", "-t", b, "--", *RAW),
    "--host run": lambda d, b, p, s: by_cli(d, b, s, *host(d), "run", *mounted(p), "--", "cat", "/in/data"),
    "--host exec": lambda d, b, p, s: by_cli(d, b, s, *host(d), "exec", b, "--", "cat", "/in/data"),
    "--host exec -t": lambda d, b, p, s: by_cli(d, b, s, *host(d), "exec", "-t", b, "--", *RAW),
    "POST ndjson": lambda d, b, p, s: by_stream(d, b, s, NDJSON),
    "POST frames": lambda d, b, p, s: by_stream(d, b, s, FRAMES),
    "POST bytes": lambda d, b, p, s: by_stream(d, b, s, BYTES),
    "GET ndjson": lambda d, b, p, s: by_stream(d, b, s, NDJSON, hold=True),
    "GET frames": lambda d, b, p, s: by_stream(d, b, s, FRAMES, hold=True),
    "GET bytes": lambda d, b, p, s: by_stream(d, b, s, BYTES, hold=True),
    "websocket": lambda d, b, p, s: by_websocket(d, b, s),
    "websocket pty": lambda d, b, p, s: by_websocket(d, b, s, pty=True),
    "attach": lambda d, b, p, s: by_attach(d, b, s),
    "--host attach": lambda d, b, p, s: by_attach(d, b, s, *host(d)),
    "logs -f": lambda d, b, p, s: by_logs(d, p, s),
    "--host logs -f": lambda d, b, p, s: by_logs(d, p, s, *host(d)),
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("way", OUTPUT)
def test_output(daemon, box, place, way, pace):
    digest = Digest(pace)
    OUTPUT[way](daemon, box, place[0], digest)
    assert digest.result() == place[1]


def test_both_streams_at_once(daemon, box, place):
    """One reader stops, the other does not."""
    process = daemon.cay.popen("exec", box, "-c", "cat /in/data >&2 & cat /in/data; wait", stdin=subprocess.DEVNULL)
    errors = Digest("stopping")

    def read_errors():
        while piece := process.stderr.read1(65536):
            errors.take(piece)

    reader = threading.Thread(target=read_errors)
    reader.start()
    output = Digest("fast")
    while piece := process.stdout.read1(65536):
        output.take(piece)
    reader.join()
    assert process.wait(PATIENCE) == 0
    assert output.result() == errors.result() == place[1]


def test_the_slowest_of_several_followers_counts(daemon, box, place):
    pid = daemon.start_process(box, "sleep 1; cat /in/data", hold=True)
    digests = [Digest(pace) for pace in PACES]

    def follow(digest):
        path = f"/sandboxes/{box}/processes/{pid}/output?follow=true&from=0"
        with daemon.stream(path, accept=FRAMES, timeout=PATIENCE) as stream:
            assert [kind for kind, _, _ in framed(stream, digest)] == [3]

    threads = [threading.Thread(target=follow, args=(digest,)) for digest in digests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [digest.result() for digest in digests] == [place[1]] * 3


# ---- input --------------------------------------------------------------------------------------------------------


def said(text, place):
    size, digest = text.split()
    assert (int(size), digest) == place[1]


def feed_cli(daemon, box, place, pace, *args, raw=False):
    consumer = ["python3", "/in/consumer.py", pace]
    with open(place[0] / "data", "rb") as data:
        process = daemon.cay.popen(*args, "--", *consumer, stdin=data, env={"CAY_CGROUP": daemon.cgroup})
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    said(out.decode(), place)


def pieces(place, size):
    with open(place[0] / "data", "rb") as data:
        while piece := data.read(size):
            yield piece


def consumer_in(daemon, box, pace, **options):
    return daemon.start_process(box, argv=["python3", "/in/consumer.py", pace], stdin=True, **options)


def feed_requests(daemon, box, place, pace, size):
    pid = consumer_in(daemon, box, pace)
    path = f"/sandboxes/{box}/processes/{pid}/stdin"
    for piece in pieces(place, size):
        answer = daemon.post(path, body=piece, timeout=PATIENCE)
        assert answer.status == 204, answer
    assert daemon.post(path + "?eof=true").status in (204, 409)
    assert daemon.wait_process(box, pid, PATIENCE)["exit_code"] == 0
    said(daemon.output(box, pid).decode(), place)


def feed_stream(daemon, box, place, pace):
    pid = consumer_in(daemon, box, pace)
    path = f"/sandboxes/{box}/processes/{pid}/stdin?eof=true"
    answer = daemon.post(path, body=pieces(place, 100000), timeout=PATIENCE)
    assert answer.status == 204, answer
    assert daemon.wait_process(box, pid, PATIENCE)["exit_code"] == 0
    said(daemon.output(box, pid).decode(), place)


def feed_websocket(daemon, box, place, pace):
    pid = consumer_in(daemon, box, pace)
    with daemon.websocket(f"/sandboxes/{box}/processes/{pid}/attach?from=0", timeout=PATIENCE) as ws:
        for piece in pieces(place, 60000):
            ws.send(piece)
        ws.send_json({"type": "eof"})
        data, messages, _ = ws.until_close()
    assert messages[-1]["exit"]["exit_code"] == 0
    said(data.decode(), place)


INPUT = {
    "run -i": lambda d, b, p, s: feed_cli(d, b, p, s, "run", "-i", *mounted(p[0])),
    "exec -i": lambda d, b, p, s: feed_cli(d, b, p, s, "exec", "-i", b),
    "--host run -i": lambda d, b, p, s: feed_cli(d, b, p, s, *host(d), "run", "-i", *mounted(p[0])),
    "--host exec -i": lambda d, b, p, s: feed_cli(d, b, p, s, *host(d), "exec", "-i", b),
    "one request": lambda d, b, p, s: feed_requests(d, b, p, s, SIZE),
    "pieces": lambda d, b, p, s: feed_requests(d, b, p, s, 700000),
    "chunked": feed_stream,
    "websocket": feed_websocket,
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("way", INPUT)
def test_input(daemon, box, place, way, pace):
    INPUT[way](daemon, box, place, pace)


def test_input_and_output_at_once(daemon, box, place):
    """A command that answers while it reads: neither side waits for the other for ever."""
    for prefix in ((), host(daemon)):
        with open(place[0] / "data", "rb") as data:
            process = daemon.cay.popen(*prefix, "exec", "-i", box, "--", "cat", stdin=data)
            digest = Digest("slow")
            while piece := process.stdout.read1(65536):
                digest.take(piece)
            wait_for(process, 0)
        assert digest.result() == place[1]


def test_several_writers_lose_nothing(daemon, box):
    """Each is held back while the process does not read; together they send more than fits anywhere."""
    pid = daemon.start_process(box, "sleep 1; wc -c", stdin=True)
    each, writers = 1 << 20, 8
    answers = []

    def write():
        answers.append(daemon.post(f"/sandboxes/{box}/processes/{pid}/stdin", body=bytes(each), timeout=PATIENCE).status)

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [204] * writers
    daemon.post(f"/sandboxes/{box}/processes/{pid}/stdin?eof=true")
    daemon.wait_process(box, pid)
    assert int(daemon.output(box, pid)) == each * writers


def test_a_tar_through_exec(daemon, box, tmp_path):
    """What is taken in by a slow unpacker is what was packed."""
    for number in range(200):
        (tmp_path / f"f{number}").write_bytes(os.urandom(20000))
    sums = hashlib.sha256(b"".join((tmp_path / f"f{n}").read_bytes() for n in range(200))).hexdigest()
    tar = subprocess.Popen(["tar", "-C", tmp_path, "-c", "."], stdout=subprocess.PIPE)
    done = daemon.cay.run("exec", "-i", box, "-c", "mkdir -p /tmp/t && sleep 0.5 && tar x -C /tmp/t", stdin=tar.stdout)
    assert (tar.wait(), done.returncode, done.stderr) == (0, 0, "")
    got = daemon.cay.run("exec", box, "-c", "cd /tmp/t; for n in $(seq 0 199); do cat f$n; done | sha256sum")
    assert got.stdout.split()[0] == sums


# ---- what holds a process, and what does not ----------------------------------------------------------------------


def test_a_reader_that_stops_holds_the_process(daemon, box):
    caller = daemon.cay.popen("exec", box, "-c", "seq 3000000 && echo done > /tmp/finished")
    try:
        time.sleep(2)
        assert daemon.cay.run("fs", "stat", box, "/tmp/finished").returncode != 0
        assert daemon.cay.sh(box, "echo others").stdout == "others\n"
        out, _ = caller.communicate(timeout=PATIENCE)
        assert out == b"".join(b"%d\n" % i for i in range(1, 3000001)) and caller.returncode == 0
    finally:
        end(caller)
    assert daemon.cay.run("fs", "cat", box, "/tmp/finished").stdout == "done\n"


def test_what_nobody_follows_is_not_held(daemon, box):
    pid = daemon.start_process(box, "seq 1000000; echo the-end")
    assert daemon.wait_process(box, pid)["exit_code"] == 0
    kept = daemon.output(box, pid)
    assert kept.endswith(b"\n1000000\nthe-end\n") and len(kept) <= 2 * KEPT


def test_a_reader_that_leaves_lets_the_process_go(daemon, box):
    caller = daemon.cay.popen("exec", box, "-c", "seq 3000000; touch /tmp/left")
    assert caller.stdout.read(10)
    end(caller)
    until(lambda: daemon.cay.run("fs", "stat", box, "/tmp/left").returncode == 0, 30)


STUCK = "sleep 0.5; yes | head -c 20000000; echo the-end >&2; touch /tmp/stuck-%s"


def rest_of(stream):
    return [event for event in stream if event["type"] != "output"]


def test_a_stuck_follower_is_cut(daemon, box):
    """It is told, after what it had; the process goes on; and so does a follower who reads."""
    pid = daemon.start_process(box, STUCK % "a", hold=True)
    path = f"/sandboxes/{box}/processes/{pid}/output?follow=true&from=0"
    with daemon.stream(path + "&stall=2", accept=NDJSON) as stuck, daemon.stream(path, accept=FRAMES) as other:
        assert stuck.status == other.status == 200
        digest = Digest("fast")
        assert [kind for kind, _, _ in framed(other, digest)] == [3] and digest.seen == 20000008
        until(lambda: daemon.cay.run("fs", "stat", box, "/tmp/stuck-a").returncode == 0, 30)
        left = rest_of(stuck)
    assert [event["type"] for event in left] == ["error"] and left[0]["error"]["code"] == "stalled", left
    assert "2 s" in left[0]["error"]["message"]
    assert [line["sandbox"] for line in daemon.lines() if "cut off" in line["msg"]] == [box], "the operator sees it, too"


@pytest.mark.parametrize("way", ["post", "bytes", "websocket", "logs"])
def test_a_stuck_follower_is_cut_every_way(daemon, place, way):
    box = daemon.create(output="64K")
    daemon.exec(box, "true")
    if way == "post":
        stream = daemon.stream(f"/sandboxes/{box}/processes?follow=true&stall=1", method="POST",
                               json={"shell": STUCK % "b"}, accept=NDJSON)
    elif way == "logs":
        stream = daemon.stream(f"/sandboxes/{box}/logs?follow=true&stall=1", accept=NDJSON)
        time.sleep(0.2)
        daemon.start_process(box, STUCK % "b")
    else:
        pid = daemon.start_process(box, STUCK % "b", hold=True)
        path = f"/sandboxes/{box}/processes/{pid}/"
        stream = (daemon.websocket(path + "attach?from=0&stall=1") if way == "websocket"
                  else daemon.stream(path + "output?follow=true&stall=1&from=0", accept=BYTES))
    with stream:
        until(lambda: daemon.cay.run("fs", "stat", box, "/tmp/stuck-b").returncode == 0, 30)
        if way == "websocket":
            data, messages, _ = stream.until_close()
            assert messages[-1]["error"]["code"] == "stalled" and len(data) < 20000000
        elif way == "bytes":
            with pytest.raises(Exception, match="IncompleteRead|Connection"):
                stream.read()
        else:
            assert rest_of(stream)[-1]["error"]["code"] == "stalled"
    daemon.remove(box)


@pytest.mark.parametrize("stall, ok", [("24h", True), ("86400", True), ("86401", False), ("25h", False), ("0", False)])
def test_a_stall_limit_has_a_maximum(daemon, box, stall, ok):
    """What is more is refused, and no other limit taken in silence."""
    pid = daemon.start_process(box, "echo hello")
    answers = [daemon.get(f"/sandboxes/{box}/processes/{pid}/output?follow=true&stall={stall}"),
               daemon.get(f"/sandboxes/{box}/logs?stall={stall}"),
               daemon.post(f"/sandboxes/{box}/processes?follow=true&stall={stall}", {"shell": "true"})]
    for answer in answers:
        assert answer.status == (200 if ok else 400), answer
        if not ok and stall != "0":
            assert answer.error["detail"] == {"field": "stall"} and "86400 seconds at most" in answer.error["message"]
    with daemon.websocket(f"/sandboxes/{box}/processes/{pid}/attach?stall={stall}") as ws:
        assert ws.status == (101 if ok else 400)


def test_a_stuck_attach_fails(daemon, box):
    """The command line says so, and that it is not the end of the output."""
    pid = daemon.start_process(box, "sleep 0.5; yes | head -c 20000000")
    with daemon.stream(f"/sandboxes/{box}/processes/{pid}/output?follow=true&stall=1", accept=FRAMES) as stream:
        daemon.wait_process(box, pid)
        assert list(framed(stream, Digest("fast")))[-1][0] == 5


# ---- gaps ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old(daemon, box):
    """A process whose first bytes are gone; the offset of the first that is kept, and its end."""
    pid = daemon.start_process(box, "seq 100000; exit 3")
    daemon.wait_process(box, pid)
    info = daemon.get(f"/sandboxes/{box}/processes/{pid}").body
    assert info["output_start"] > 0
    return pid, info["output_start"], info["output_end"]


def test_a_gap_is_an_event(daemon, box, old):
    pid, start, finish = old
    path = f"/sandboxes/{box}/processes/{pid}/output"
    with daemon.stream(path + "?from=5", accept=NDJSON) as stream:
        events = list(stream)
    assert events[0] == {"type": "gap", "from": 5, "to": start, "code": "limit"}
    assert events[-1]["type"] == "exit" and events[-1]["exit"]["truncated"] and events[-1]["offset"] == finish
    with daemon.stream(path + "?from=5", accept=FRAMES) as stream:
        frames = list(stream.frames())
    assert frames[0] == (6, 5, {"type": "gap", "from": 5, "to": start, "code": "limit"}) and frames[-1][0] == 3
    with daemon.stream(path + "?from=5", accept=BYTES) as stream, pytest.raises(Exception, match="IncompleteRead"):
        stream.read()


def test_what_is_kept_is_no_gap(daemon, box, old):
    pid, start, finish = old
    path = f"/sandboxes/{box}/processes/{pid}/output"
    for query in ("", f"?from={start}"):
        with daemon.stream(path + query, accept=NDJSON) as stream:
            events = list(stream)
        assert {e["type"] for e in events} == {"output", "exit"} and not events[-1]["exit"]["truncated"]
        assert sum(len(event_bytes(e)) for e in events[:-1]) == finish - start


def test_a_gap_on_a_websocket(daemon, box, old):
    pid, start, _ = old
    with daemon.websocket(f"/sandboxes/{box}/processes/{pid}/attach?from=1") as ws:
        _, messages, _ = ws.until_close()
    assert messages[0] == {"type": "gap", "from": 1, "to": start, "code": "limit"} and messages[-1]["type"] == "exit"


@pytest.mark.parametrize("prefix", ["local", "remote"])
def test_a_gap_in_the_command_line(daemon, box, old, prefix):
    pid, start, finish = old
    prefix = host(daemon) if prefix == "remote" else ()
    refused(daemon.cay.run(*prefix, "attach", "--from", "0", box, pid), f"{start} bytes", "not kept any more")
    done = daemon.cay.run(*prefix, "attach", box, pid)
    assert done.returncode == 3 and len(done.stdout) == finish - start and f"first {start} bytes" in done.stderr
    done = daemon.cay.run(*prefix, "attach", "--from", start, box, pid)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, finish - start, "")


@pytest.mark.parametrize("prefix", ["local", "remote"])
def test_attach_when_nothing_is_kept(daemon, prefix):
    """All of its output was dropped for that of others: nothing to print, but not without a word."""
    box = daemon.create(output="64K")
    prefix = host(daemon) if prefix == "remote" else ()
    first = daemon.start_process(box, "head -c 60000 /dev/zero; exit 4")

    def dropped():
        daemon.wait_process(box, daemon.start_process(box, "head -c 60000 /dev/zero"))
        info = daemon.get(f"/sandboxes/{box}/processes/{first}").body
        return info["output_start"] == 60000

    until(dropped, 60)
    done = daemon.cay.run(*prefix, "attach", box, first)
    assert (done.returncode, done.stdout) == (4, "") and "first 60000 bytes of its output are not kept" in done.stderr
    refused(daemon.cay.run(*prefix, "attach", "--from", "0", box, first), "60000 bytes", "not kept any more")
    daemon.remove(box)


@pytest.fixture
def busy(daemon):
    """A sandbox and a process of it that prints without end; overtake() returns when far more has been dropped."""
    box = daemon.create(output="4M")
    pid = daemon.start_process(box, "while :; do seq 100000; done")

    def overtake():
        def start():
            return daemon.get(f"/sandboxes/{box}/processes/{pid}").body["output_start"]

        wanted = start() + 3 * WINDOW
        until(lambda: start() > wanted, 60)

    overtake()
    yield box, pid, overtake
    daemon.remove(box)


@pytest.mark.parametrize("words", [("logs",), ("logs", "--tail", "300000")])
@pytest.mark.parametrize("prefix", ["local", "remote"])
def test_a_log_that_outruns_its_reader(daemon, busy, prefix, words):
    """It is not followed, so nothing waits for its reader. What was there when it asked comes, or an error."""
    box, _, overtake = busy
    prefix = host(daemon) if prefix == "remote" else ()
    process = daemon.cay.popen(*prefix, *words, box, stdin=subprocess.DEVNULL)
    assert process.stdout.read(1)
    overtake()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125 and b"bytes of the log were lost while it was read" in err, (len(out), err)


@pytest.mark.parametrize("what", ["logs", "output"])
@pytest.mark.parametrize("accept", [NDJSON, FRAMES, BYTES])
def test_output_that_outruns_its_reader(daemon, busy, accept, what):
    box, pid, overtake = busy
    path = f"/sandboxes/{box}/logs" if what == "logs" else f"/sandboxes/{box}/processes/{pid}/output"
    with daemon.stream(path, accept=accept) as stream:
        assert stream.status == 200
        if accept == BYTES:
            assert stream.some(1)
            overtake()
            with pytest.raises(Exception, match="IncompleteRead"):
                stream.read()
            return
        pieces = digested(stream, Digest("fast")) if accept == NDJSON else framed(stream, Digest("fast"))
        stream.response.peek(1)
        overtake()
        gap, last = pieces
    if accept == FRAMES:
        assert gap[:2] == (6, gap[2]["from"]) and last[:2] == (4, gap[2]["to"]), (gap, last)
        gap, last = gap[2], last[2]
    assert gap["type"] == "gap" and gap["code"] == "limit" and gap["from"] < gap["to"], gap
    assert last == {"type": "end", "offset": gap["to"]}


@pytest.mark.parametrize("how", ["kill", "rm -f", "lost"])
@pytest.mark.parametrize("prefix", ["local", "remote"])
def test_the_end_of_a_log(daemon, prefix, how):
    """A sandbox that was ended has a whole log. One whose keeper was killed has not."""
    box = daemon.create()
    prefix = host(daemon) if prefix == "remote" else ()
    daemon.exec(box, "echo hello")
    process = daemon.cay.popen(*prefix, "logs", "-f", box, stdin=subprocess.DEVNULL)
    assert process.stdout.readline() == b"hello\n"
    if how == "lost":
        os.kill(daemon.get(f"/sandboxes/{box}").body["keeper_pid"], signal.SIGKILL)
        assert b"the end of the log is lost" in wait_for(process, 125)
    else:
        daemon.cay.run(*how.split(), box, check=True)
        assert wait_for(process, 0) == b""
    daemon.cay.run("rm", "-f", box)


@pytest.mark.parametrize("how", ["api", "local"])
def test_a_log_that_cannot_be_read(daemon, how):
    """Of one that has ended: its reader is told why, and not that it has ended."""
    box = daemon.create()
    daemon.exec(box, "echo hello")
    daemon.cay.run("kill", box, check=True)
    until(lambda: daemon.state_of(box) == "exited", 10)
    [log] = pathlib.Path(daemon.cay.state).glob(f"sandboxes/{box}/log")
    assert daemon.get(f"/sandboxes/{box}/logs").status == 200
    log.unlink()
    log.mkdir()
    if how == "local":
        refused(daemon.cay.run("logs", box), "were not saved", "damaged")
    else:
        answer = daemon.get(f"/sandboxes/{box}/logs", headers={"Accept": "application/x-ndjson"})
        assert b'"code":"lost"' in answer.body and b'"closed"' not in answer.body, answer
    daemon.remove(box)


def test_a_result_is_whole_or_an_error(daemon, box):
    answer = daemon.post(f"/sandboxes/{box}/exec", {"shell": "seq 100000; exit 7"})
    assert (answer.status, answer.code) == (413, "too_large")
    assert answer.error["detail"]["exit"]["exit_code"] == 7
    done = daemon.exec(box, "seq 2000")
    assert done["stdout"].endswith("\n2000\n") and not done["truncated"]


def test_a_large_json_result_is_whole(daemon, box):
    """Twenty times what the sandbox keeps, in one result, and none of it is missing."""
    for prefix in ((), host(daemon)):
        done = json.loads(daemon.cay.run(*prefix, "exec", "--json", box, "-c", "seq 200000", check=True).stdout)
        assert done["stdout"] == "".join(f"{i}\n" for i in range(1, 200001)) and not done["truncated"]


# ---- the budget of a sandbox --------------------------------------------------------------------------------------


def test_kept_output_has_one_budget(daemon):
    """Many ended processes together keep a few times what one of them may."""
    box = daemon.create(output="1M", disk="64M")
    for _ in range(12):
        pid = daemon.start_process(box, "head -c 1000000 /dev/zero")
        daemon.wait_process(box, pid)
    listed = daemon.get(f"/sandboxes/{box}/processes").body["processes"]
    kept = sum(p["output_end"] - p["output_start"] for p in listed)
    stats = daemon.get(f"/sandboxes/{box}/stats").body
    assert len(listed) == 12 and all(p["exit"]["exit_code"] == 0 for p in listed)
    assert kept <= stats["output"] <= stats["output_max"] <= 9 << 20
    assert listed[-1]["output_end"] - listed[-1]["output_start"] == 1000000, "the newest is whole"
    with contextlib.closing(daemon.stream(f"/sandboxes/{box}/processes/{listed[0]['pid']}/output?from=0",
                                          accept=NDJSON)) as stream:
        assert next(stream)["type"] == "gap"
    daemon.remove(box)


def test_a_small_disk_keeps_little_output(daemon):
    box = daemon.create(output="64M", disk="8M")
    pid = daemon.start_process(box, "head -c 30000000 /dev/zero")
    daemon.wait_process(box, pid)
    stats = daemon.get(f"/sandboxes/{box}/stats").body
    assert stats["output"] <= stats["output_max"] == 8 << 20
    assert len(daemon.output(box, pid)) <= 8 << 20
    daemon.remove(box)


def test_kept_output_that_cannot_be_read_back_is_an_error(daemon):
    """The host's disk fails under the keeper: the reader is told, and does not wait for ever; nothing else is harmed."""
    box = daemon.create()
    keeper = next(s["keeper_pid"] for s in daemon.cay.json("ps", "--json") if s["id"] == box)
    control = daemon.cay.run("exec", box, "--", "head", "-c", "3000000", "/dev/zero", text=False)
    assert control.returncode == 0 and len(control.stdout) == 3000000
    fault = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-e", "trace=pread64", "-e",
                              "inject=pread64:error=EIO:when=1+", "-p", str(keeper)])
    try:
        with open(f"/proc/{keeper}/status") as status:
            until(lambda: status.seek(0) or "TracerPid:\t0\n" not in status.read())
        done = daemon.cay.run("exec", box, "--", "head", "-c", "3000000", "/dev/zero", text=False)
        assert done.returncode == 125 and b"cannot be read back" in done.stderr
    finally:
        end(fault)
    assert daemon.cay.sh(box, "echo fine").stdout == "fine\n"
    daemon.remove(box)
