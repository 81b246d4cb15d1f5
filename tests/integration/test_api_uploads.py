# SPDX-License-Identifier: Apache-2.0
"""Uploads that fail while most of their body is still to come: the client is told why, whatever is left."""
import contextlib
import socket
import subprocess
import time

import pytest

from lib.daemon import Daemon, full_path
from lib.engine import PROG

MIB = 1 << 20
PIECE = b"\0" * MIB


@pytest.fixture(scope="module")
def daemon(daemons_of_module):
    return daemons_of_module(tcp=True)


@pytest.fixture(scope="module")
def tls(daemons_of_module):
    return daemons_of_module(tcp=True, tls=True)


@pytest.fixture(scope="module")
def daemons_of_module():
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Daemon(**options))


@pytest.fixture(scope="module")
def box(daemon):
    return daemon.create(disk="16M", memory="64M")


@pytest.fixture(scope="module")
def tls_box(tls):
    return tls.create(disk="16M", memory="64M", id="t")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """Files of these many MiB that take no room."""
    top = tmp_path_factory.mktemp("sparse")

    def one(mib):
        path = top / f"{mib}"
        with open(path, "wb") as f:
            f.truncate(mib * MIB)
        return path

    return one


def curl(daemon, box, what, path, *options, tcp=False):
    where = ["--cacert", daemon.cert, daemon.url] if daemon.tls else [daemon.url] if tcp else \
        ["--unix-socket", daemon.sock, "http://localhost"]
    token = ["-H", f"Authorization: Bearer {daemon.bearer}"] if tcp or daemon.tls else []
    *more, base = where
    done = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", *map(str, more), *token, *map(str, options),
                           f"{base}/api/v1/sandboxes/{box}/{what}?path={path}"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(autouse=True, scope="module")
def _tokens(daemon, tls):
    for one in (daemon, tls):
        one.bearer = one.token("op")


@pytest.mark.parametrize("mib", [2, 65, 100, 1024])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("tcp", [False, True])
def test_a_full_disk_is_told(daemon, box, sparse, mib, chunked, tcp):
    """1 GiB into 16 MiB. Without `Expect`, which would keep the body from being sent."""
    options = ["-H", "Expect:", "-T", sparse(max(mib, 20))]
    answer = curl(daemon, box, "files", "/tmp/x", *options, *(["-H", "Transfer-Encoding: chunked"] if chunked else []),
                  tcp=tcp)
    assert answer.endswith("\n507") and '"no_space"' in answer
    assert curl(daemon, box, "files", "/tmp", *options).endswith("\n400")


@pytest.mark.parametrize("chunked", [False, True])
def test_over_tls(tls, tls_box, sparse, chunked):
    options = ["-H", "Expect:", "-T", sparse(200)] + (["-H", "Transfer-Encoding: chunked"] if chunked else [])
    answer = curl(tls, tls_box, "files", "/tmp/x", *options)
    assert answer.endswith("\n507") and '"no_space"' in answer
    answer = curl(tls, tls_box, "files", "/tmp", *options)
    assert answer.endswith("\n400") and "it is a directory" in answer


def test_an_archive_that_is_none(daemon, box, tmp_path):
    garbage = tmp_path / "g"
    with open(garbage, "wb") as f:
        f.write(b"\1" * 4096)
        f.truncate(200 * MIB)
    answer = curl(daemon, box, "archive", "/tmp", "-H", "Expect:", "-T", garbage)
    assert answer.endswith("\n400") and '"invalid"' in answer


def test_who_sends_all_before_it_looks_finds_the_answer(daemon, box):
    answer = daemon.put(f"/sandboxes/{box}/files?path=/tmp", PIECE * 200)
    assert (answer.status, answer.code) == (400, "invalid") and "directory" in answer.error["message"]
    assert answer.headers["Connection"] == "close" and answer.headers["Content-Type"] == "application/json"


def test_a_little_left_over_does_not_cost_the_connection(daemon, box):
    with daemon.client() as client:
        for _ in range(3):
            assert client.put(f"/sandboxes/{box}/files?path=/tmp", PIECE).status == 400
            assert client.get(f"/sandboxes/{box}").status == 200


def send_head(daemon, path, more):
    sock = daemon.dial(10)
    sock.sendall(f"PUT {full_path(path)} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n\r\n".encode())
    return sock


def test_who_stops_sending_is_answered(daemon, box):
    """Its body never ends, and nothing more of it comes."""
    with send_head(daemon, f"/sandboxes/{box}/files?path=/tmp", "Transfer-Encoding: chunked") as sock:
        sock.sendall(b"5\r\nhello\r\n")
        assert b" 400 " in sock.recv(65536).partition(b"\r\n")[0]


def test_an_endless_body_is_answered_at_once(daemon, box):
    with send_head(daemon, f"/sandboxes/{box}/files?path=/tmp", "Transfer-Encoding: chunked") as sock:
        sock.setblocking(False)
        got, rest, began = b"", b"", time.monotonic()
        while b"\r\n\r\n" not in got and time.monotonic() - began < 20:
            rest = rest or b"10000\r\n" + b"\0" * 65536 + b"\r\n"
            with contextlib.suppress(BlockingIOError):
                rest = rest[sock.send(rest):]
            with contextlib.suppress(BlockingIOError):
                got += sock.recv(65536)
        assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert daemon.get(f"/sandboxes/{box}").status == 200


def test_who_does_not_look_at_the_answer_is_cut(daemon, box):
    """It goes on sending for ever, slowly enough not to fill a disk with it and fast enough not to crawl."""
    with send_head(daemon, f"/sandboxes/{box}/files?path=/tmp", f"Content-Length: {1 << 40}") as sock:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 60:
                sock.sendall(PIECE)
                time.sleep(0.2)
        assert b" 400 " in sock.recv(65536).partition(b"\r\n")[0], "and what it did not look at is still there"


@pytest.mark.parametrize("box_of, path, first", [("box", "/tmp", b" 400 "), ("box", "/tmp/new", b" 100 "),
                                                 ("none", "/tmp/x", b" 404 "), ("box", "/etc/hostname/x", b" 400 ")])
def test_the_target_is_looked_at_before_the_client_is_told_to_send(daemon, box, box_of, path, first):
    where = f"/sandboxes/{box if box_of == 'box' else 'none'}/files?path={path}"
    with send_head(daemon, where, "Content-Length: 5\r\nExpect: 100-continue") as sock:
        answer = sock.recv(65536).partition(b"\r\n")[0]
        assert first in answer, answer
        if first == b" 100 ":
            sock.sendall(b"hello")
            assert b" 204 " in sock.recv(65536).partition(b"\r\n")[0]


def test_an_archive_for_nobody_is_not_asked_for(daemon):
    with send_head(daemon, "/sandboxes/none/archive?path=/tmp", "Content-Length: 512\r\nExpect: 100-continue") as sock:
        assert b" 404 " in sock.recv(65536).partition(b"\r\n")[0]


def test_the_metrics_count_it_as_answered(daemon, box, sparse):
    def count():
        lines = daemon.get("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith('cay_requests_total{method="PUT"') and '/files",result="4xx"' in line)
    before = count()
    curl(daemon, box, "files", "/tmp", "-H", "Expect:", "-T", sparse(100))
    deadline = time.monotonic() + 5
    while count() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert count() > before


@pytest.mark.parametrize("mib", [100, 1024])
def test_cay_cp_over_http(daemon, box, sparse, mib):
    done = subprocess.run([PROG / "cay", "--host", f"unix:{daemon.sock}", "cp", sparse(mib), f"{box}:/tmp/y"],
                          env=daemon.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 125 and "No space left" in done.stderr and "lost" not in done.stderr, done.stderr


def test_a_client_that_goes_away_meanwhile(daemon, box):
    sock = send_head(daemon, f"/sandboxes/{box}/files?path=/tmp", f"Content-Length: {100 * MIB}")
    with contextlib.suppress(OSError), sock:
        sock.sendall(PIECE * 3)
        sock.shutdown(socket.SHUT_RDWR)
    assert daemon.get(f"/sandboxes/{box}").status == 200
