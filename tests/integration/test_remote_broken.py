# SPDX-License-Identifier: Apache-2.0
"""cay --host in front of a server whose answers are broken: none is taken for a success, and none is asked for without end."""
import io
import json
import subprocess
import tarfile
import time

import pytest

from lib.both import REMOTE
from lib.scripted import Scripted, answer, chunked, frame

NO_CONTENT = b"HTTP/1.1 204 No Content\r\nServer: cayd\r\n\r\n"
EXIT = {"pid": 7, "exit_code": 0, "signal": 0, "timed_out": False, "truncated": False, "oom": False, "duration_ms": 1.0,
        "cpu_ms": 1.0, "peak_memory": 1}
STARTED = answer(b'{"pid":7}', "201 Created")
FRAMES = "application/vnd.cay.frames"
OUT, END, ERROR = 1, 3, 5


def remote(path, *words, seconds=60):
    return subprocess.run([REMOTE, "--host", f"unix:{path}", *words], capture_output=True, timeout=seconds)


@pytest.fixture
def serve(tmp_path):
    """serve(script) -> a server, ended with the test."""
    servers = []

    def make(script):
        servers.append(Scripted(tmp_path / f"s{len(servers)}", script))
        return servers[-1]

    yield make
    for server in servers:
        server.__exit__()


# ---- answers that are cut

CUT = [
    pytest.param(["pause", "x"], NO_CONTENT, id="no content"),
    pytest.param(["wait", "x", "7"], answer(json.dumps(EXIT).encode()), id="length"),
    pytest.param(["procs", "x"], chunked(b'{"processes":[]}'), id="chunks"),
    pytest.param(["fs", "cat", "x", "/f"], answer(b"text"), id="file"),
    pytest.param(["fs", "cat", "x", "/f"], chunked(b"text"), id="file in chunks"),
]


@pytest.mark.parametrize("words, whole", CUT)
def test_an_answer_that_is_cut_at_any_byte(serve, words, whole):
    """All of it is a success, and each shorter part of it is an error.

    Of chunks it is whole with the size 0 of the last one: the empty lines that follow tell nothing.
    """
    cut = {"at": len(whole)}
    server = serve(lambda _: whole[:cut["at"]])
    done = remote(server.path, *words)
    assert done.returncode == 0, done
    last = len(whole) - (4 if b"chunked" in whole else 0)
    retried = words[0] == "wait"  # for a while, which is tested once
    for at in (10, last - 1) if retried else range(last):
        cut["at"] = at
        done = remote(server.path, *words)
        assert done.returncode == 125, (at, done)
        assert b"lost the connection" in done.stderr, (at, done)


def test_a_body_without_a_stated_end(serve):
    """Nobody knows whether it is whole."""
    server = serve(lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf of a fi")
    done = remote(server.path, "fs", "cat", "x", "/f")
    assert done.returncode == 125 and b"lost the connection" in done.stderr, done


def test_a_refusal_that_is_cut_is_no_other_server(serve):
    body = b'{"error":{"code":"not_found","message":"no sandbox x"}}'
    whole = answer(body, "404 Not Found")
    assert b"no sandbox x" in remote(serve(lambda _: whole).path, "pause", "x").stderr
    done = remote(serve(lambda _: whole[:-5]).path, "pause", "x")
    assert done.returncode == 125 and b"lost the connection" in done.stderr, done


def tar_of(names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1000
            tar.addfile(info, io.BytesIO(b"x" * 1000))
    return out.getvalue()


@pytest.mark.parametrize("target", ["-", "directory"])
def test_an_archive_that_is_cut(serve, tmp_path, target):
    """Also between two members, and where its own end was there already."""
    tar = tar_of(["a", "b", "c"])
    whole = chunked(tar, "application/x-tar")
    cut = {"at": len(whole)}
    stat = answer(json.dumps({"name": "d", "type": "directory", "mode": 0o755, "uid": 0, "gid": 0, "size": 0,
                              "mtime_ns": 0, "inode": 1, "links": 1}).encode())
    server = serve(lambda line: whole[:cut["at"]] if "/archive" in line else stat)

    def copy(number):
        to = "-" if target == "-" else str(tmp_path / f"to{number}")
        return remote(server.path, "cp", "x:/d", to)

    done = copy(0)
    assert done.returncode == 0, done
    head = whole.index(b"\r\n\r\n") + 4
    for at in (20, head - 1, head, head + 100, head + 1536 * 1 + 8, head + 3000, len(whole) - 6, len(whole) - 5):
        cut["at"] = at
        done = copy(at)
        assert done.returncode == 125 and b"lost the connection" in done.stderr, (at, done)


# ---- answers that are something else


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'"text"', b"<html></html>", b""])
def test_an_exit_that_is_none(serve, body):
    """It is not the exit code 0."""
    done = remote(serve(lambda _: answer(body)).path, "wait", "x", "7")
    assert done.returncode == 125 and b"is no exit" in done.stderr, done
    events = chunked(frame(END, b'{"type":"exit","exit":%s}' % (body if body[:1] in b"{[n" and body else b"{}")), FRAMES)
    server = serve(lambda line: events if "/output" in line else STARTED)
    done = remote(server.path, "exec", "x", "--", "true")
    assert done.returncode == 125 and b"no stream" in done.stderr, done


# ---- streams that end


def event(kind, **members):
    return chunked(frame(kind, json.dumps(members).encode()), FRAMES)


def later(seconds, data):
    """The headers now, and the body after a while."""
    head, body = data.split(b"\r\n\r\n", 1)
    yield head + b"\r\n\r\n"
    time.sleep(seconds)
    yield body


def unavailable(message, **detail):
    return event(ERROR, type="error", error={"code": "unavailable", "message": message, "detail": detail})


ENDLESS = [
    pytest.param(lambda: chunked(b"", FRAMES), b"ended the stream", id="nothing"),
    pytest.param(lambda: unavailable("the daemon ends"), b"the daemon ends", id="error"),
    pytest.param(lambda: chunked(frame(OUT)[:9], FRAMES), b"ended the stream", id="half a frame"),
    pytest.param(lambda: chunked(b"", FRAMES)[:-2], b"lost the connection", id="cut"),
    pytest.param(lambda: later(1.5, chunked(b"", FRAMES)), b"ended the stream", id="nothing, later"),
]


@pytest.mark.parametrize("stream, said", ENDLESS)
def test_a_stream_that_ends_again_and_again(serve, stream, said):
    """It is an error after a while, and until then asked for less and less often."""
    server = serve(lambda line: stream() if "/output" in line else STARTED)
    done = remote(server.path, "exec", "x", "--", "true")
    assert done.returncode == 125 and said in done.stderr, done
    assert 3 <= len(server.seen) <= 60, len(server.seen)


HUNG = {"code": "unavailable", "message": "the keeper does not answer", "detail": {"errno": 110}}


@pytest.mark.parametrize("words", [("exec", "x", "--", "true"), ("exec", "-i", "x", "--", "cat"), ("logs", "-f", "x"),
                                   ("wait", "x", "7")])
@pytest.mark.parametrize("how", ["event", "status"])
def test_a_keeper_that_hangs(serve, words, how):
    """The daemon has waited for it a minute. Nobody waits for that a second time."""
    body = answer(json.dumps({"error": HUNG}).encode(), "503 Service Unavailable")

    def stream(line):
        if "/output" in line or "/logs" in line:
            return body if how == "status" else later(1.5, event(ERROR, type="error", error=HUNG))
        return body if "/stdin" in line or "/wait" in line else STARTED

    server = serve(stream)
    done = remote(server.path, *words)
    assert done.returncode == 125 and b"does not answer" in done.stderr, done
    asked = [line.split("?")[0] for line in server.seen]
    assert len(asked) == len(set(asked)), asked


def test_a_silent_command_outlives_many_daemons(serve):
    """Each holds the stream for a while and then says that it ends, longer than one loss is borne."""
    began = time.monotonic()

    def stream(line):
        if "/output" not in line:
            return STARTED
        if time.monotonic() - began < 20:
            return later(1.5, unavailable("the daemon ends"))
        return chunked(frame(OUT, b"at last\n") + frame(END, json.dumps({"exit": EXIT}).encode(), 8), FRAMES)

    done = remote(serve(stream).path, "exec", "x", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"at last\n", b"")
