# SPDX-License-Identifier: Apache-2.0
"""Servers that answer and are no cayd, or a broken one: a CayError each time, and none is asked without end."""
import contextlib
import json
import time

import pytest
from lib.scripted import Scripted, answer, chunked, frame

import cay as sdk
from cay import _retry

FRAMES, NDJSON = "application/vnd.cay.frames", "application/x-ndjson"
OUT, EXIT, END, ERROR, GAP = 1, 3, 4, 5, 6


@pytest.fixture
def serve(twin, tmp_path):
    """serve(script) -> a client and its server, ended with the test."""
    with contextlib.ExitStack() as stack:
        def make(script):
            server = stack.enter_context(Scripted(tmp_path / "sock", script))
            return stack.enter_context(twin.within(twin.new(f"unix:{server.path}"))), server

        yield make


# -- answers of another form

def box(client):
    return client.attach("x")


CALLS = {
    "list": lambda client: client.list(),
    "get": lambda client: client.get("x"),
    "create": lambda client: client.create(id="x"),
    "events": lambda client: client.events(follow=False),
    "start": lambda client: box(client).start("true"),
    "processes": lambda client: box(client).processes(),
    "stats": lambda client: box(client).stats(),
    "extend": lambda client: box(client).extend(ttl=1),
    "aio_url": lambda client: box(client).aio_url(),
    "wait": lambda client: box(client).process(7).wait(),
    "info": lambda client: box(client).process(7).info(),
    "stat": lambda client: box(client).files.stat("/f"),
    "files": lambda client: box(client).files.list("/"),
    "find": lambda client: box(client).files.find("/"),
    "grep": lambda client: box(client).files.grep("/", "x"),
}
BODIES = [b"{}", b"[]", b"null", b"5", b'"text"', b"", b"<html></html>", b"[" * 100000, b'{"pid": "7"}', b'{"pid": true}',
          b'{"sandboxes": {}, "entries": 5, "matches": "m", "processes": null, "path": 1}',
          b'{"sandboxes": [5], "entries": [[]], "matches": [null], "processes": [{}], "next_cursor": 5}']


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_is_something_else(twin, serve, call):
    said = {}
    client, _ = serve(lambda line: answer(said["body"] + b"\n"))
    for said["body"] in BODIES:
        if call == "events" and said["body"] == b"":
            continue  # there were none
        with pytest.raises(sdk.Internal, match="not what this call expects"):
            twin(CALLS[call](client))


EVENTS = [(EXIT, b"{}"), (EXIT, b'{"exit": {"pid": 7}}'), (EXIT, b"[]"), (GAP, b"{}"), (GAP, b'{"from": 0, "to": "5"}'),
          (ERROR, b"{}"), (ERROR, b'{"error": 5}'), (END, b"no JSON")]


@pytest.mark.parametrize("kind, body", EVENTS)
@pytest.mark.parametrize("how", ["exec", "output"])
def test_an_event_that_is_something_else(twin, serve, how, kind, body):
    client, _ = serve(lambda line: chunked(frame(kind, body), FRAMES) if "follow" in line else answer(b'{"pid": 7}'))
    with pytest.raises(sdk.Internal, match="not what this call expects"):
        twin(box(client).exec("true") if how == "exec" else box(client).process(7).output())


def test_bytes_that_are_missing_at_the_end(twin, serve):
    """Of a reader that does not follow; from a daemon that tells no gap."""
    body = frame(OUT, b"hello") + frame(END, b'{"type": "end", "offset": 9}', 9)
    client, _ = serve(lambda line: chunked(body, FRAMES))
    with pytest.raises(sdk.OutputLost, match="4 bytes") as caught:
        twin(box(client).process(7).output(follow=False))
    assert caught.value.detail == {"from": 5, "to": 9}


def test_a_watch_of_something_else(twin, serve):
    client, _ = serve(lambda line: chunked(b'{"type": "watching"}\n{"type": "change"}\n', NDJSON))
    with pytest.raises(sdk.Internal, match="'kind' is missing"):
        with twin.within(box(client).files.watch("/")) as changes:
            twin(changes)


def test_an_answer_without_an_end(twin, serve):
    """JSON has a maximum. A file has none."""
    piece = b" " * (1 << 20)

    def endless(line):
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(300):
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"

    client, _ = serve(endless)
    with pytest.raises(sdk.TooLarge, match=f"more than {256 << 20} bytes"):
        twin(client.version())
    assert len(twin(box(client).files.read("/f"))) == 300 << 20


def test_an_error_without_an_end(twin, serve):
    """Its beginning is enough."""
    def endless(line):
        yield b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 100000000\r\n\r\n"
        yield b"x" * 200000
        time.sleep(5)

    client, _ = serve(endless)
    with pytest.raises(sdk.Unavailable, match="HTTP status 502"):
        twin(box(client).process(7).signal("TERM"))


# -- streams that end

def events(*lines):
    return chunked(b"".join(json.dumps(line).encode() + b"\n" for line in lines), NDJSON)


GOING = {"code": "unavailable", "message": "the daemon ends"}
ENDED = {
    "exec": (lambda client: box(client).exec("true"), FRAMES, frame(ERROR, json.dumps({"error": GOING}).encode())),
    "output": (lambda client: box(client).process(7).output(), FRAMES, frame(ERROR, json.dumps({"error": GOING}).encode())),
    "events": (lambda client: client.events(), NDJSON, json.dumps({"type": "error", "error": GOING}).encode() + b"\n"),
}


@pytest.mark.parametrize("call", ENDED)
@pytest.mark.parametrize("how", ["nothing", "error", "cut"])
def test_a_server_that_ends_each_stream_at_once(twin, serve, monkeypatch, call, how):
    """It is asked less and less often, and given up."""
    monkeypatch.setattr(_retry, "SECONDS", 2.0)
    monkeypatch.setattr(_retry, "FOLLOW_SECONDS", 2.0)
    make, kind, error = ENDED[call]
    body = {"nothing": chunked(b"", kind), "error": chunked(error, kind), "cut": chunked(b"", kind)[:-2]}[how]
    client, server = serve(lambda line: body if "follow" in line else answer(b"", "404 Not Found"))
    with pytest.raises(sdk.Unavailable):
        twin(make(client))
    streams = [line for line in server.seen if "follow" in line]
    assert 3 <= len(streams) <= 20, streams


def test_a_silent_command_outlives_many_daemons(twin, serve, monkeypatch):
    """Each holds the stream for a while, longer in all than one loss is borne."""
    monkeypatch.setattr(_retry, "FOLLOW_SECONDS", 1.0)
    whole = {"pid": 7, "exit_code": 0, "signal": 0, "timed_out": False, "truncated": False, "oom": False, "duration_ms": 1.0,
             "cpu_ms": 1.0, "peak_memory": 1}

    def later(data):
        head, rest = data.split(b"\r\n\r\n", 1)
        yield head + b"\r\n\r\n"
        time.sleep(1.2)
        yield rest

    def script(line):
        if len(server.seen) <= 3:
            return later(chunked(frame(ERROR, json.dumps({"error": GOING}).encode()), FRAMES))
        return chunked(frame(OUT, b"at last\n") + frame(EXIT, json.dumps({"exit": whole}).encode(), 8), FRAMES)

    client, server = serve(script)
    assert twin(box(client).exec("true")).stdout == "at last\n"


def test_a_long_wait_outlives_many_daemons(twin, serve, monkeypatch):
    monkeypatch.setattr(_retry, "FOLLOW_SECONDS", 1.0)
    whole = {"pid": 7, "exit_code": 3, "signal": 0, "timed_out": False, "truncated": False, "oom": False, "duration_ms": 1.0,
             "cpu_ms": 1.0, "peak_memory": 1}

    def lost():
        time.sleep(1.2)
        yield b""

    client, server = serve(lambda line: answer(b'{"version": "1"}') if "version" in line else
                           lost() if len(server.seen) <= 4 else answer(json.dumps(whole).encode()))
    twin(client.version())
    assert twin(box(client).process(7).wait()).exit_code == 3


HUNG = {"code": "unavailable", "message": "the keeper does not answer", "detail": {"errno": 110}}


@pytest.mark.parametrize("how", ["event", "status"])
@pytest.mark.parametrize("call", ["exec", "output", "wait", "stats"])
def test_a_keeper_that_hangs(twin, serve, how, call):
    """The daemon has waited for it. Nobody waits for that a second time."""
    status = answer(json.dumps({"error": HUNG}).encode(), "503 Service Unavailable")
    event = chunked(frame(ERROR, json.dumps({"error": HUNG}).encode()), FRAMES)
    client, server = serve(lambda line: answer(b'{"version": "1"}') if "version" in line else
                           event if how == "event" and "follow" in line else status)
    twin(client.version())
    calls = {"exec": lambda: box(client).exec("true"), "output": lambda: box(client).process(7).output(),
             "wait": lambda: box(client).process(7).wait(), "stats": lambda: box(client).stats()}
    with pytest.raises(sdk.Unavailable, match="does not answer"):
        twin(calls[call]())
    asked = [line.split("?")[0] for line in server.seen if "known" not in line]
    assert asked.count(asked[1]) <= (2 if call == "exec" else 1), asked  # one to start it, one to kill it
