# SPDX-License-Identifier: Apache-2.0
"""Files over HTTP: exact bytes in and out, ranges, names, trees, changes, and what must be refused."""
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import socket
import threading
import time
import urllib.parse

import pytest

from integration.support import until
from lib.daemon import NDJSON, full_path

MIB = 1 << 20
NAMES = [b"plain", b"with space", b"new\nline", "ümläut \U0001f3dd".encode(), b"not-utf8-\xff\xfe", b"-dash", b"quo'te\"s",
         b"back\\slash", b"*glob?[x]", b"tab\there", b"trailing ", b"100%25+&=#?;", b"a" * 255, "\ufffd".encode()]
BIG = 300 * MIB


class Box:
    """One sandbox, as the API's file routes see it."""

    def __init__(self, daemon, identifier):
        self.daemon, self.id = daemon, identifier

    def url(self, what, **query):
        """None leaves a parameter out; bytes are taken as they are."""
        given = {k: v for k, v in query.items() if v is not None}
        text = urllib.parse.urlencode(given, quote_via=urllib.parse.quote)
        return f"/sandboxes/{self.id}/{what}" + (f"?{text}" if text else "")

    def put(self, path, body=b"", status=204, **query):
        headers = query.pop("headers", {})
        answer = self.daemon.put(self.url("files", path=path, **query), body, headers=headers, timeout=120)
        assert answer.status == status, answer
        return answer

    def get(self, path, status=200, headers=None, method="GET", **query):
        answer = self.daemon.request(method, self.url("files", path=path, **query), headers=headers or {}, timeout=120)
        assert answer.status == status, answer
        return answer

    def look(self, what, status=200, **query):
        answer = self.daemon.get(self.url(f"fs/{what}", **query))
        assert answer.status == status, answer
        return answer.body

    def stat(self, path, **query):
        return self.look("stat", path=path, **query)

    def names(self, path, **query):
        return [e["name"] for e in self.look("list", path=path, **query)["entries"]]

    def delete(self, path, status=204, **query):
        answer = self.daemon.delete(self.url("files", path=path, **query))
        assert answer.status == status, answer
        return answer

    def post(self, what, body, status=204):
        answer = self.daemon.post(self.url(f"fs/{what}"), body)
        assert answer.status == status, answer
        return answer

    def sh(self, script):
        return self.daemon.cay.sh(self.id, script, check=True).stdout


@pytest.fixture(scope="module")
def box(cayd):
    identifier = cayd.cay.create()
    yield Box(cayd, identifier)
    cayd.cay.run("rm", "-f", identifier)


@pytest.fixture
def place(box, request):
    """A directory of its own for one test."""
    path = f"/tmp/{hashlib.sha1(request.node.name.encode()).hexdigest()[:12]}"
    box.post("mkdir", {"path": path})
    yield path
    box.delete(path, recursive="true")


def refused(answer, code, *words):
    assert answer.code == code, answer
    for word in words:
        assert word in answer.error["message"], answer.error
    return answer


# ---- queries

def test_a_plus_in_a_query_is_a_space(box, place):
    """As curl and URLSearchParams write one; docs/API.md has an example with %2B."""
    box.put(f"{place}/a b", b"hello\n")
    assert box.daemon.get(f"/sandboxes/{box.id}/files?path={place}/a+b").body == b"hello\n"
    found = f"/sandboxes/{box.id}/fs/grep?path={place}&pattern="
    assert box.daemon.get(found + "hel+o").body["matches"] == []
    assert [match["path"] for match in box.daemon.get(found + "hel%2Bo").body["matches"]] == ["a b"]


# ---- exact bytes

SIZES = [0, 1, 4095, 32767, 32768, 32769, 65535, 65536, 65537, 131072, 5 * MIB]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_exact(box, place, size):
    data = os.urandom(size)
    box.put(f"{place}/f", data)
    answer = box.get(f"{place}/f")
    assert answer.body == data
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == str(size)
    assert answer.headers["X-Cay-Mode"] == "644" and answer.headers["X-Cay-Type"] == "file"
    assert abs(int(answer.headers["X-Cay-Mtime-Ns"]) / 1e9 - time.time()) < 60
    assert box.sh(f"sha256sum < {place}/f").split()[0] == hashlib.sha256(data).hexdigest()
    assert box.stat(f"{place}/f")["size"] == size


@pytest.mark.parametrize("size", [0, 1, 65537, 3 * MIB])
def test_a_chunked_upload(box, place, size):
    data = os.urandom(size)
    pieces = (data[i:i + 10007] for i in range(0, size, 10007))
    box.put(f"{place}/f", pieces)
    assert box.get(f"{place}/f").body == data


def test_many_on_one_connection(box, place):
    with box.daemon.client() as client:
        for i in range(50):
            data = os.urandom(i * 997)
            assert client.put(box.url("files", path=f"{place}/f{i % 3}"), data).status == 204
            assert client.get(box.url("files", path=f"{place}/f{i % 3}")).body == data
            assert client.get(box.url("files", path=f"{place}/missing")).code == "not_found"


def pattern(size, piece=MIB):
    """`size` bytes that differ everywhere and are quick to make."""
    block = os.urandom(piece - 8)
    for i in range(size // piece):
        yield i.to_bytes(8, "big") + block


@pytest.mark.slow
def test_large_files_in_constant_memory(daemons):
    daemon = daemons()
    box = Box(daemon, daemon.cay.create("--memory", "1G", "--disk", "1G"))
    before, highest, done = daemon.rss(), 0, threading.Event()

    def watch():
        nonlocal highest
        while not done.wait(0.02):
            highest = max(highest, daemon.rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        sent, got = hashlib.sha256(), hashlib.sha256()

        def pieces():
            for piece in pattern(BIG):
                sent.update(piece)
                yield piece

        box.put("/tmp/big", pieces(), headers={"Content-Length": str(BIG)})
        with daemon.stream(box.url("files", path="/tmp/big"), timeout=120) as stream:
            assert stream.status == 200 and stream.headers["Content-Length"] == str(BIG)
            while data := stream.read(MIB):
                got.update(data)
        assert got.digest() == sent.digest()
        # A client that does not read: the answer waits in the sandbox, not in the daemon.
        with daemon.stream(box.url("files", path="/tmp/big")) as stream:
            stream.read(1)
            time.sleep(1)
        # The same for a sandbox that does not take: the client waits.
        box.put("/tmp/big", pattern(32 * MIB), headers={"Content-Length": str(32 * MIB)})
    finally:
        done.set()
        watcher.join()
    daemon.cay.run("rm", "-f", box.id, check=True)
    assert highest - before < 4 * MIB, (before, highest)


# ---- ranges

@pytest.mark.parametrize("asked, first, last", [
    ("bytes=0-0", 0, 0), ("bytes=0-9", 0, 9), ("bytes=3-5", 3, 5), ("bytes=7-", 7, 9), ("bytes=-4", 6, 9),
    ("bytes=-100", 0, 9), ("bytes=5-1000", 5, 9), ("bytes=9-9", 9, 9),
    ("bytes=2-99999999999999999999999999", 2, 9)])
def test_a_range(box, place, asked, first, last):
    data = b"0123456789"
    box.put(f"{place}/r", data)
    answer = box.get(f"{place}/r", 206, {"Range": asked})
    assert answer.body == data[first:last + 1]
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/10"
    assert answer.headers["Content-Length"] == str(last - first + 1)


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "bytes=5-3", "bytes=", "bytes=-", "lines=0-1", "bytes=a-b", "0-5",
                                   "bytes=0 -1", "bytes=0x1-2"])
def test_what_is_no_single_range_is_ignored(box, place, asked):
    box.put(f"{place}/r", b"0123456789")
    answer = box.get(f"{place}/r", 200, {"Range": asked})
    assert answer.body == b"0123456789" and "Content-Range" not in answer.headers


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"])
def test_a_range_of_nothing(box, place, asked):
    box.put(f"{place}/r", b"0123456789")
    answer = box.get(f"{place}/r", 416, {"Range": asked})
    assert answer.headers["Content-Range"] == "bytes */10"
    refused(answer, "invalid", "10 bytes")


def test_ranges_of_a_large_file(box, place):
    data = os.urandom(MIB + 12345)
    box.put(f"{place}/r", data)
    for first, last in [(0, MIB), (65535, 65536), (65536, 131071), (1, len(data) - 1), (MIB, MIB + 12344)]:
        answer = box.get(f"{place}/r", 206, {"Range": f"bytes={first}-{last}"})
        assert answer.body == data[first:last + 1], (first, last)
    assert box.get(f"{place}/r", 206, {"Range": "bytes=-70000"}).body == data[-70000:]


def test_a_range_of_an_empty_file(box, place):
    box.put(f"{place}/empty")
    assert box.get(f"{place}/empty", 200, {"Range": "bytes=0-"}).body == b""


# ---- HEAD, and files without a size

def test_head(box, place):
    box.put(f"{place}/h", b"x" * 100000, mode="4750")
    answer = box.get(f"{place}/h", method="HEAD")
    assert answer.body == b"" and answer.headers["Content-Length"] == "100000"
    assert answer.headers["X-Cay-Mode"] == "4750" and answer.headers["Accept-Ranges"] == "bytes"
    # A range is of GET only.
    assert box.get(f"{place}/h", method="HEAD", headers={"Range": "bytes=0-1"}).headers["Content-Length"] == "100000"
    assert box.get(f"{place}/missing", 404, method="HEAD").body == b""
    assert box.get(place, 400, method="HEAD").body == b""
    box.put(f"{place}/empty", b"")
    assert box.get(f"{place}/empty", method="HEAD").headers["Content-Length"] == "0"
    told = box.get("/proc/filesystems", method="HEAD").headers["Content-Length"]
    assert int(told) == len(box.get("/proc/filesystems").body) > 0
    with box.daemon.client() as client:  # nothing is left over on the connection
        for _ in range(3):
            assert client.request("HEAD", box.url("files", path=f"{place}/h")).status == 200
            assert client.get(box.url("files", path=f"{place}/h")).body == b"x" * 100000


def test_files_that_the_kernel_makes_up(box):
    assert box.get("/proc/self/status").body.startswith(b"Name:")
    assert len(box.get("/proc/self/mountinfo").body) > 100
    assert box.get("/proc/self/status", 200, {"Range": "bytes=0-3"}).body.startswith(b"Name:")


# ---- writing

def test_parents_and_modes(box, place):
    box.put(f"{place}/a/b/c/f", b"x", mode="750")
    entry = box.stat(f"{place}/a/b/c/f")
    assert (entry["type"], entry["mode"], entry["uid"], entry["gid"], entry["size"], entry["links"]) == \
        ("file", 0o750, 0, 0, 1, 1)
    box.put(f"{place}/a/b/c/f", b"y")
    assert box.stat(f"{place}/a/b/c/f")["mode"] == 0o750, "a mode that is not given is kept"
    box.put(f"{place}/a/b/c/f", b"y", mode="0600")
    assert box.stat(f"{place}/a/b/c/f")["mode"] == 0o600
    box.put(f"{place}/new", b"y")
    assert box.stat(f"{place}/new")["mode"] == 0o644
    box.put(f"{place}/new", b"y", mode="0")
    assert box.stat(f"{place}/new")["mode"] == 0, "no bits are a mode, too"
    for bad in ("888", "rw-r--r--", "-1", "77777", "644x"):
        refused(box.put(f"{place}/bad", b"y", 400, mode=bad), "invalid")
    assert "bad" not in box.names(place)


def test_as_a_user(box):
    box.put("/home/user/sub/f", b"x", user="user")
    assert box.stat("/home/user/sub/f")["uid"] == 1000
    assert box.stat("/home/user/sub")["uid"] == 1000
    refused(box.put("/root/f", b"x", 403, user="user"), "denied", "/root/f")
    refused(box.get("/etc/shadow", 403, user="user"), "denied", "/etc/shadow")
    assert box.get("/etc/shadow").body
    refused(box.delete("/etc/hostname", 403, user="user"), "denied")
    refused(box.get("/etc/hostname", 400, user="nobody-of-that-name"), "invalid", "nobody-of-that-name")
    box.post("mkdir", {"path": "/home/user/made", "user": "user", "mode": "700"})
    assert (box.stat("/home/user/made")["uid"], box.stat("/home/user/made")["mode"]) == (1000, 0o700)
    refused(box.post("move", {"from": "/home/user/made", "to": "/root/made", "user": "user"}, 403), "denied")
    refused(box.daemon.get(box.url("fs/list", path="/root", user="user")), "denied")


def test_a_reader_sees_the_old_or_the_new(box, place):
    """Replaced over and over while it is read: no answer is a mix, cut short, or an error."""
    kinds = {bytes([c]) * size: 0 for c, size in ((97, 50_000), (98, 1_500_000), (99, 7), (100, 700_000))}
    done, faults = threading.Event(), []
    box.put(f"{place}/f", next(iter(kinds)))

    def write():
        with box.daemon.client() as client:
            while not done.is_set():
                for data in kinds:
                    if client.put(box.url("files", path=f"{place}/f"), data).status != 204:
                        faults.append("put")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        with box.daemon.client() as client:
            for _ in range(150):
                body = client.get(box.url("files", path=f"{place}/f")).body
                if body in kinds:
                    kinds[body] += 1
                else:
                    faults.append((len(body), sorted(set(body))))
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert faults == []
    assert sum(n > 0 for n in kinds.values()) >= 2, kinds.values()


def test_concurrent_transfers(box, place):
    contents = {f"{place}/f{i}": os.urandom(2 * MIB + i) for i in range(8)}
    failed = []

    def both(path, data):
        try:
            for _ in range(3):
                box.put(path, data)
                assert box.get(path).body == data
        except BaseException as e:  # noqa: B902
            failed.append(repr(e)[:300])

    threads = [threading.Thread(target=both, args=item) for item in contents.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def half_an_upload(box, path, chunked):
    """Sends the head and a part of a body, and gives the socket."""
    sock = box.daemon.dial()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {5 * MIB}"
    part = os.urandom(2 * MIB)
    sock.sendall(f"PUT {full_path(box.url('files', path=path))} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
    sock.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n" if chunked else part)
    return sock


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_an_upload_that_breaks_off_leaves_the_old_file(box, place, chunked, how):
    box.put(f"{place}/f", b"old")
    sock = half_an_upload(box, f"{place}/f", chunked)
    until(lambda: len(box.names(place)) == 2)  # the worker has begun beside it
    assert box.get(f"{place}/f").body == b"old"
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how == "half":
        sock.shutdown(socket.SHUT_WR)
    else:
        sock.close()
    until(lambda: box.names(place) == ["f"])
    assert box.get(f"{place}/f").body == b"old"
    sock.close()


def test_an_upload_that_breaks_off_makes_no_file(box, place):
    half_an_upload(box, f"{place}/new", False).close()
    time.sleep(0.3)
    until(lambda: box.names(place) == [])


def test_errors_of_the_sandbox_while_a_body_comes(box, place):
    """The worker refuses at once; the client hears of it, however much it wants to send."""
    box.post("mkdir", {"path": f"{place}/dir"})
    for size in (0, 10, MIB, 20 * MIB):
        refused(box.put(f"{place}/dir", b"x" * size, 400), "invalid", "directory")
    refused(box.put("/proc/self/nothing/here", b"x" * MIB, 404), "not_found")
    box.put(f"{place}/file", b"x")
    answer = box.daemon.put(box.url("files", path=f"{place}/file/below"), b"x" * MIB)
    assert answer.status in (400, 409), answer
    with box.daemon.client() as client:  # the connection goes on, or is closed in good order
        for _ in range(3):
            assert client.put(box.url("files", path=f"{place}/dir"), b"x" * MIB).status == 400


def test_a_full_disk(cayd):
    box = Box(cayd, cayd.cay.create("--disk", "16M"))
    try:
        box.put("/tmp/f", b"old")
        refused(box.put("/tmp/f", b"x" * (40 * MIB), 507), "no_space")
        assert box.get("/tmp/f").body == b"old" and box.names("/tmp") == ["f"]
        box.put("/tmp/g", b"x" * MIB)
    finally:
        cayd.cay.run("rm", "-f", box.id)


# ---- names

def test_unusual_names(box, place):
    top = place.encode()
    for i, name in enumerate(NAMES):
        box.put(top + b"/" + name, name * (i + 1))
    entries = box.look("list", path=place)["entries"]
    told = {base64.b64decode(e["name_base64"]) if "name_base64" in e else e["name"].encode() for e in entries}
    assert told == set(NAMES)
    for entry in entries:
        if "name_base64" in entry:
            assert "\ufffd" in entry["name"]
    for i, name in enumerate(NAMES):
        path = top + b"/" + name
        assert box.get(path).body == name * (i + 1)
        assert box.stat(path)["size"] == len(name) * (i + 1)
        box.delete(path)
    assert box.names(place) == []


def test_targets_that_are_not_utf8(box, place):
    box.sh(f"ln -s \"$(printf 'x\\377y')\" {place}/link")
    entry = box.stat(f"{place}/link")
    assert entry["type"] == "link" and entry["target"] == "x\ufffdy"
    assert base64.b64decode(entry["target_base64"]) == b"x\xffy"


@pytest.mark.parametrize("query, word", [
    ({}, "path"), ({"path": ""}, "empty"), ({"path": "relative"}, "absolute"), ({"path": "../etc/passwd"}, "absolute"),
    ({"path": "/" + "a" * 4095}, "4095"), ({"path": "/tmp/f", "unknown": "1"}, "unknown"), ({"path": b"/tmp/a\0b"}, "")])
def test_bad_parameters(box, query, word):
    for method, what in (("GET", "files"), ("PUT", "files"), ("DELETE", "files"), ("GET", "fs/list"), ("GET", "fs/stat"),
                         ("GET", "fs/find"), ("GET", "fs/watch"), ("GET", "archive"), ("PUT", "archive")):
        answer = box.daemon.request(method, box.url(what, **query))
        assert answer.status == 400, (method, what, answer)
        refused(answer, "invalid", word)
        if word:
            assert answer.error["detail"]["field"] == ("unknown" if "unknown" in query else "path")


def test_bad_bodies(box):
    for what, body, field in (("mkdir", {}, "path"), ("mkdir", {"path": "x"}, "path"), ("mkdir", {"path": 1}, "path"),
                              ("mkdir", {"path": "/tmp/x", "mode": "9"}, "mode"),
                              ("mkdir", {"path": "/tmp/x", "mode": 493}, "mode"),
                              ("mkdir", {"path": "/tmp/x", "recursive": True}, "recursive"),
                              ("move", {"from": "/tmp/x"}, "to"), ("move", {"from": "x", "to": "/y"}, "from")):
        answer = refused(box.post(what, body, 400), "invalid")
        assert answer.error["detail"]["field"] == field, answer
    answer = box.daemon.request("POST", box.url("fs/mkdir"), body=b'{"path":"/tmp/a\\u0000b"}',
                                headers={"Content-Type": "application/json"})
    refused(answer, "invalid")


def test_a_paused_sandbox_and_none_at_all(cayd):
    box = Box(cayd, cayd.cay.create())
    cayd.cay.run("pause", box.id, check=True)
    refused(box.get("/etc/hostname", 409), "conflict", "paused")
    refused(box.put("/tmp/f", b"x" * MIB, 409), "conflict", "paused")
    cayd.cay.run("resume", box.id, check=True)
    assert box.get("/etc/passwd").status == 200
    cayd.cay.run("rm", "-f", box.id, check=True)
    refused(box.get("/etc/passwd", 404), "not_found")
    refused(box.put("/tmp/f", b"x" * MIB, 404), "not_found")
    refused(cayd.get(box.url("fs/list", path="/")), "not_found")


# ---- inside stays inside

SECRET = f"outside-{os.getpid()}"


def test_paths_stay_inside(box, place, tmp_path):
    """Every way up ends at the sandbox's root; the same paths of the host exist and say something else."""
    outside = tmp_path / "secret"
    outside.write_text(SECRET)
    up = "/" + "../" * 40
    box.put("/etc/inside", b"inside")
    for path in (f"{up}etc/inside", "/etc/../../etc/inside", "//etc//./inside", f"{place}/../../../../etc/inside"):
        assert box.get(path).body == b"inside"
    for path in (str(outside), f"{up.rstrip('/')}{outside}", f"/proc/1/root{outside}", f"/proc/self/root{outside}",
                 f"/proc/1/cwd{up}{outside}"):
        answer = box.daemon.get(box.url("files", path=path))
        assert answer.status in (403, 404) and SECRET not in json.dumps(answer.body), (path, answer)
    # The positive control: the same reads, where the file is inside.
    box.put(f"{outside}", b"mine")
    for path in (str(outside), f"{up.rstrip('/')}{outside}", f"/proc/self/root{outside}"):
        assert box.get(path).body == b"mine"
    assert outside.read_text() == SECRET


def test_escapes_in_the_url(box):
    """%2e%2e and %2f are nothing special in the query, and lead nowhere in the path."""
    box.put("/etc/inside", b"inside")
    good = f"/sandboxes/{box.id}/files?path="
    assert box.daemon.get(good + "%2f%2e%2e%2f%2e%2e%2fetc%2finside").body == b"inside"
    assert box.daemon.get(good + "/%252e%252e/etc/inside").status == 404
    for path in (f"/sandboxes/{box.id}/fs/%2e%2e/files?path=/etc/inside", f"/sandboxes/../{box.id}/files?path=/etc/inside",
                 f"/sandboxes/{box.id}%2ffiles?path=/etc/inside", f"/sandboxes/%2e%2e%2f{box.id}/files?path=/etc/inside",
                 "/sandboxes/..%2f..%2f/files?path=/etc/inside"):
        assert box.daemon.get(path).status in (400, 404), path


def test_links_out_of_the_sandbox(box, place, tmp_path):
    outside = tmp_path / "f"
    outside.write_text(SECRET)
    for name, target in (("abs", outside), ("rel", "../" * 30 + str(outside)[1:]), ("dir", tmp_path)):
        box.sh(f"ln -s {target} {place}/{name}")
    for path in ("abs", "rel", "dir/f"):
        refused(box.get(f"{place}/{path}", 404), "not_found")
    box.put(f"{place}/abs", b"written inside")
    box.put(f"{place}/dir/g", b"inside, too")
    assert outside.read_text() == SECRET and sorted(os.listdir(tmp_path)) == ["f"]
    assert box.get(str(outside)).body == b"written inside"
    entry = box.stat(f"{place}/abs")
    assert (entry["type"], entry["target"]) == ("link", str(outside))
    assert box.stat(f"{place}/abs", follow="true")["type"] == "file"
    box.delete(f"{place}/dir", recursive="true")
    assert outside.exists() and box.get(str(outside)).body == b"written inside"


def test_what_is_no_file_does_not_hang(box, place):
    box.sh(f"cd {place} && mkfifo fifo && mkdir dir && ln -s loop loop && ln -s nowhere dangling")
    began = time.monotonic()
    for name in ("fifo", "dir"):
        refused(box.get(f"{place}/{name}", 400), "invalid", name)
        refused(box.put(f"{place}/{name}", b"x" * 100000, 400), "invalid", name)
    for device in ("/dev/zero", "/dev/null", "/dev/tty"):
        refused(box.get(device, 400), "invalid")
    refused(box.get(f"{place}/dangling", 404), "not_found")
    assert box.daemon.get(box.url("files", path=f"{place}/loop")).status in (400, 403, 409)
    for what in ("fs/grep", "archive", "fs/find"):
        query = {"path": place, **({"pattern": "x"} if what == "fs/grep" else {})}
        assert box.daemon.get(box.url(what, **query)).status == 200
    assert time.monotonic() - began < 10
    types = {e["name"]: e["type"] for e in box.look("list", path=place)["entries"]}
    assert types == {"fifo": "pipe", "dir": "directory", "loop": "link", "dangling": "link"}


def test_directory_errors(box, place):
    box.put(f"{place}/d/f", b"x")
    refused(box.get(place, 400), "invalid", "directory")
    refused(box.get(f"{place}/missing", 404), "not_found", "missing")
    assert box.daemon.delete(box.url("files", path=f"{place}/d")).status in (400, 409)
    assert box.names(f"{place}/d") == ["f"]
    refused(box.delete(f"{place}/none", 404), "not_found")
    refused(box.daemon.get(box.url("fs/list", path=f"{place}/d/f")), "invalid", "directory")
    refused(box.daemon.get(box.url("fs/list", path=f"{place}/none")), "not_found")
    refused(box.daemon.get(box.url("fs/stat", path=f"{place}/none")), "not_found")
    refused(box.daemon.get(box.url("fs/find", path=f"{place}/none")), "not_found")
    refused(box.daemon.get(box.url("fs/grep", path=f"{place}/none", pattern="x")), "not_found")
    refused(box.daemon.get(box.url("fs/watch", path=f"{place}/none")), "not_found")
    refused(box.daemon.get(box.url("archive", path=f"{place}/none")), "not_found")
    box.delete(f"{place}/d", recursive="true")
    assert box.names(place) == []


# ---- list, stat, mkdir, move, find, grep

def test_list_and_depth(box, place):
    for path in ("a/b/c/d", "a/x", "y"):
        box.put(f"{place}/{path}", path.encode())
    assert sorted(box.names(place)) == ["a", "y"]
    assert sorted(box.names(place, depth=2)) == ["a", "a/b", "a/x", "y"]
    assert sorted(box.names(place, depth=99)) == ["a", "a/b", "a/b/c", "a/b/c/d", "a/x", "y"]
    assert box.look("list", path=f"{place}/a/b/c")["entries"][0]["size"] == len("a/b/c/d")
    box.post("mkdir", {"path": f"{place}/empty"})
    assert box.look("list", path=f"{place}/empty") == {"entries": []}
    entry = box.look("list", path=place)["entries"][0]
    assert {"name", "type", "size", "mode", "uid", "gid", "mtime_ns", "inode", "links"} <= set(entry)
    for bad in ("-1", "x", "1.5", "99999999999999999999999"):
        assert box.daemon.get(box.url("fs/list", path=place, depth=bad)).status == 400


def test_a_long_list_is_whole(box, place):
    box.sh(f"cd {place} && seq -f 'file-with-a-long-name-%g' 20000 | xargs touch")
    before = box.daemon.rss()
    names = box.names(place)
    assert len(names) == len(set(names)) == 20000
    # A slow reader gets the same.
    with box.daemon.stream(box.url("fs/list", path=place)) as stream:
        head = stream.read(100)
        time.sleep(0.5)
        assert len(json.loads(head + stream.read())["entries"]) == 20000
    assert box.daemon.rss() - before < 4 * MIB


def test_mkdir_and_move(box, place):
    box.post("mkdir", {"path": f"{place}/m/n/o", "mode": "2750"})
    assert box.stat(f"{place}/m/n/o")["mode"] == 0o2750 and box.stat(f"{place}/m")["mode"] == 0o755
    box.post("mkdir", {"path": f"{place}/m/n/o"})
    box.put(f"{place}/f", b"content")
    refused(box.post("mkdir", {"path": f"{place}/f"}, 409), "conflict")
    box.post("move", {"from": f"{place}/f", "to": f"{place}/new/parents/g"})
    assert box.get(f"{place}/new/parents/g").body == b"content"
    box.post("move", {"from": f"{place}/m", "to": f"{place}/new/m"})
    assert box.stat(f"{place}/new/m/n/o")["type"] == "directory"
    refused(box.post("move", {"from": f"{place}/none", "to": f"{place}/x"}, 404), "not_found")
    assert sorted(box.names(place)) == ["new"]


def test_stat(box, place):
    box.put(f"{place}/f", b"12345", mode="640")
    box.sh(f"ln -s f {place}/l; ln {place}/f {place}/hard; touch -d @1700000000.5 {place}/f")
    entry = box.stat(f"{place}/f")
    assert entry == {"name": f"{place}/f", "type": "file", "size": 5, "mode": 0o640, "uid": 0, "gid": 0,
                     "mtime_ns": 1700000000500000000, "inode": entry["inode"], "links": 2}
    assert box.stat(f"{place}/hard")["inode"] == entry["inode"]
    link = box.stat(f"{place}/l")
    assert (link["type"], link["target"]) == ("link", "f")
    assert box.stat(f"{place}/l", follow="1")["inode"] == entry["inode"]
    refused(box.daemon.get(box.url("fs/stat", path=place, follow="maybe")), "invalid")


def test_find(box, place):
    for path in ("a.py", "b.txt", "sub/c.py", "sub/deep/d.py"):
        box.put(f"{place}/{path}")

    def found(**query):
        return sorted(e["name"] for e in box.look("find", path=place, **query)["entries"])

    assert found(glob="**/*.py") == ["a.py", "sub/c.py", "sub/deep/d.py"]
    assert found(glob="sub/*.py") == ["sub/c.py"]
    assert found(glob="nothing") == []
    assert len(found()) == 6 and len(found(limit=2)) == 2


def test_grep(box, place):
    box.put(f"{place}/a.txt", b"one\nTwo two\nthree.\n")
    box.put(f"{place}/sub/b.md", b"two\r\n")
    box.put(f"{place}/binary", b"two\0two\n")
    box.put(f"{place}/latin", b"tw\xf6 two\n")

    def matches(**query):
        return sorted((m["path"], m["line"], m["text"]) for m in box.look("grep", path=place, **query)["matches"])

    assert matches(pattern="two") == [("a.txt", 2, "Two two"), ("latin", 1, "tw\ufffd two"), ("sub/b.md", 1, "two")]
    assert matches(pattern="^TWO", ignore_case="true", glob="*.txt") == [("a.txt", 2, "Two two")]
    assert matches(pattern="e.", literal="true") == [("a.txt", 3, "three.")]
    assert matches(pattern="nowhere") == [] and len(matches(pattern=".", limit=2)) == 2
    assert [base64.b64decode(m["text_base64"]) for m in box.look("grep", path=f"{place}/latin", pattern="two")["matches"]] \
        == [b"tw\xf6 two"]
    refused(box.daemon.get(box.url("fs/grep", path=place)), "invalid", "pattern")
    refused(box.daemon.get(box.url("fs/grep", path=place, pattern="[")), "invalid", "pattern")


# ---- watch

def test_what_a_walk_cannot_read_is_told(box, place):
    """All that can be read, and then an error which names what cannot."""
    box.sh(f"cd {place}; mkdir a b c; for d in a b c; do echo hello > $d/1; done; chmod 700 b; chmod 755 . a c")
    for what, name, query in (("find", "entries", {}), ("list", "entries", {"depth": 9}),
                              ("grep", "matches", {"pattern": "hello"})):
        body = box.look(what, path=place, user="1000", **query)
        found = [one.get("name") or one.get("path") for one in body[name]]
        assert [n for n in found if "/" in n] == ["a/1", "c/1"], body
        assert body["error"]["code"] == "denied" and "'b'" in body["error"]["message"], body
        assert "error" not in box.look(what, path=place, **query)
    box.sh(f"chmod 600 {place}/c/1")
    body = box.look("grep", path=place, user="1000", pattern="hello")
    assert [one["path"] for one in body["matches"]] == ["a/1"] and "1 more" in body["error"]["message"], body
    assert "error" not in box.look("list", path=place, user="1000"), "one level goes into none of them"


def test_watch(box, place):
    with box.daemon.stream(box.url("fs/watch", path=place, recursive="true"), timeout=10) as stream:
        assert stream.status == 200 and stream.headers.get_content_type() == NDJSON
        assert next(stream) == {"type": "watching"}
        box.put(f"{place}/new", b"x")
        event = next(stream)
        assert event["type"] == "change" and event["path"] == "new" and event["kind"] in ("created", "renamed")
        box.sh(f"mkdir {place}/d && sleep 0.1 && echo > {place}/d/f && rm {place}/new")
        seen = set()
        while ("deleted", "new") not in seen:
            event = next(stream)
            seen.add((event["kind"], event["path"]))
        assert {("created", "d"), ("created", "d/f"), ("deleted", "new")} <= seen
        box.sh(f"touch \"{place}/$(printf 'n\\377')\"")
        event = next(stream)
        assert event["path"] == "n\ufffd" and base64.b64decode(event["path_base64"]) == b"n\xff"


def test_watch_tells_of_a_new_tree_once(box, place):
    """Also where a directory has filled before it is followed, and its events come after that."""
    with box.daemon.stream(box.url("fs/watch", path=place, recursive="true"), timeout=20) as stream:
        assert next(stream) == {"type": "watching"}
        box.sh(f"cd {place}; for i in $(seq 300); do mkdir -p $i/x/y; : > $i/x/y/f; done; : > last")
        seen = []
        while ("created", "last") not in seen:
            event = next(stream)
            seen.append((event["kind"], event["path"]))
    made = [path for kind, path in seen if kind == "created"]
    assert len(made) == len(set(made)), sorted(p for p in set(made) if made.count(p) > 1)
    assert set(made) == {"last"} | {f"{i}{rest}" for i in range(1, 301) for rest in ("", "/x", "/x/y", "/x/y/f")}


def test_watch_and_a_client_that_does_not_read(box, place):
    """Nothing piles up in the daemon; the worker waits, and says so if it lost something."""
    with box.daemon.stream(box.url("fs/watch", path=place), timeout=30) as stream:
        assert next(stream) == {"type": "watching"}
        before = box.daemon.rss()
        box.sh(f"cd {place}; for i in $(seq 200); do seq -f 'long-name-of-a-file-that-changes-%g' 200 | xargs touch; done")
        assert box.daemon.rss() - before < 4 * MIB
        kinds = set()
        while "overflow" not in kinds:
            event = next(stream)
            kinds.add(event["kind"])
        assert "created" in kinds


def test_watch_ends_with_the_sandbox(cayd):
    box = Box(cayd, cayd.cay.create())
    with cayd.stream(box.url("fs/watch", path="/tmp"), timeout=20) as stream:
        assert next(stream) == {"type": "watching"}
        cayd.cay.run("rm", "-f", box.id, check=True)
        events = list(stream)
    assert len(events) == 1 and events[0]["type"] == "error" and events[0]["error"]["code"] == "gone", events


def test_a_watcher_that_goes_away_leaves_no_worker(box, place):
    def workers():
        return int(box.sh("set -- /proc/[0-9]*; echo $#"))

    until(lambda: workers() == 2)  # init, and the shell that counts
    streams = [box.daemon.stream(box.url("fs/watch", path=place)) for _ in range(5)]
    for stream in streams:
        next(stream)
    until(lambda: workers() == 7)
    for stream in streams:
        stream.close()
    until(lambda: workers() == 2)


# ---- what breaks in the middle

def test_a_file_that_shrinks_while_it_is_read(box, place):
    box.sh(f"head -c 40000000 /dev/zero > {place}/f")
    with box.daemon.stream(box.url("files", path=f"{place}/f"), timeout=20) as stream:
        assert stream.headers["Content-Length"] == "40000000"
        stream.read(10)
        box.sh(f"truncate -s 1000 {place}/f")
        with pytest.raises((ConnectionError, Exception)) as caught:
            rest = stream.read()
            assert len(rest) == 40000000 - 10
        assert not isinstance(caught.value, (AssertionError, TimeoutError, socket.timeout)), caught


def test_a_file_that_grows_while_it_is_read(box, place):
    box.sh(f"head -c 20000000 /dev/zero > {place}/f")
    with box.daemon.stream(box.url("files", path=f"{place}/f"), timeout=20) as stream:
        stream.read(10)
        box.sh(f"head -c 5000000 /dev/zero >> {place}/f")
        assert len(stream.read()) == 20000000 - 10


def test_the_sandbox_ends_in_the_middle(cayd):
    """Downloads break off, uploads are told; the daemon idles on."""
    box = Box(cayd, cayd.cay.create("--disk", "200M"))
    box.sh("head -c 60000000 /dev/zero > /tmp/f")
    upload = half_an_upload(box, "/tmp/up", False)
    stream = cayd.stream(box.url("files", path="/tmp/f"), timeout=20)
    stream.read(10)
    cayd.cay.run("rm", "-f", box.id, check=True)
    with pytest.raises(Exception):
        assert len(stream.read()) == 60000000 - 10
    stream.close()
    upload.settimeout(20)
    with contextlib.suppress(ConnectionError):
        upload.sendall(bytes(3 * MIB))
    head = upload.recv(65536)
    assert b" 410 " in head.partition(b"\r\n")[0] or head == b"", head[:200]
    upload.close()


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_stalled_client_of_an_ended_sandbox_costs_nothing(cayd):
    box = Box(cayd, cayd.cay.create("--disk", "200M"))
    box.sh("head -c 60000000 /dev/zero > /tmp/f")
    with cayd.stream(box.url("files", path="/tmp/f"), timeout=20) as stream:
        stream.read(10)
        cayd.cay.run("rm", "-f", box.id, check=True)
        time.sleep(0.2)
        before = cpu_seconds(cayd.pid)
        time.sleep(1)
        assert cpu_seconds(cayd.pid) - before < 0.3


@pytest.mark.parametrize("path, first", [("/tmp/expected", b" 100 "), ("relative", b" 400 ")])
def test_a_client_that_waits_to_be_asked(box, path, first):
    with box.daemon.dial(10) as sock:
        sock.sendall(f"PUT {full_path(box.url('files', path=path))} HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
        assert first in sock.recv(65536).partition(b"\r\n")[0]
        if first == b" 100 ":
            sock.sendall(b"hello")
            assert b" 204 " in sock.recv(65536).partition(b"\r\n")[0]
            assert box.get(path).body == b"hello"


def test_refusals_do_not_break_the_connection(box):
    """A client that is still sending when it is refused reads the refusal, and may go on."""
    with box.daemon.client() as client:
        for _ in range(5):
            refused(client.put(box.url("files", path="relative"), b"x" * MIB), "invalid")
            refused(client.put("/sandboxes/none/files?path=/tmp/x", b"x" * MIB), "not_found")
            assert client.get(box.url("fs/stat", path="/tmp")).status == 200


# ---- who may, and what is written down

def test_the_scope(cayd, box):
    reader = cayd.token("files-reader", scopes="read,exec,create,audit")
    writer = cayd.token("files-writer", scopes="files")
    for method, what in (("GET", "files"), ("HEAD", "files"), ("PUT", "files"), ("DELETE", "files"), ("GET", "fs/list"),
                         ("GET", "fs/stat"), ("GET", "fs/find"), ("GET", "fs/watch"), ("GET", "archive"),
                         ("PUT", "archive"), ("POST", "fs/mkdir"), ("POST", "fs/move")):
        answer = cayd.request(method, box.url(what, path="/etc/passwd"), tcp=True, token=reader,
                              json={} if method == "POST" else None)
        assert answer.status == 403, (method, what, answer)
    assert cayd.put(box.url("files", path="/tmp/scope"), b"x", tcp=True, token=writer).status == 204
    assert cayd.get(box.url("files", path="/tmp/scope"), tcp=True, token=writer).body == b"x"


def test_other_tenants(cayd, box):
    token = cayd.token("files-tenant", tenant="elsewhere", scopes="files")
    for method, what in (("GET", "files"), ("PUT", "files"), ("DELETE", "files"), ("GET", "fs/list"), ("GET", "archive"),
                         ("PUT", "archive")):
        answer = cayd.request(method, box.url(what, path="/etc/passwd"), tcp=True, token=token)
        assert answer.status == 404 and answer.code == "not_found", (method, what, answer)
    assert box.get("/etc/passwd").status == 200


def test_changes_are_audited(cayd):
    box = Box(cayd, cayd.cay.create())
    try:
        box.put("/tmp/f", b"secret content", user="user")
        box.put("/tmp", b"x", 400)
        box.post("mkdir", {"path": "/tmp/d"})
        box.post("move", {"from": "/tmp/f", "to": "/tmp/d/f"})
        box.get("/tmp/d/f")
        archive = cayd.get(box.url("archive", path="/tmp/d")).body
        cayd.put(box.url("archive", path="/tmp/e"), archive)
        box.delete("/tmp/none", 404)
        box.delete("/tmp/d", recursive="true")
        half_an_upload(box, "/tmp/half", False).close()
        wanted = [("write", "/tmp/f", "ok"), ("write", "/tmp", "invalid"), ("mkdir", "/tmp/d", "ok"), ("move", "/tmp/f", "ok"),
                  ("archive", "/tmp/e", "ok"), ("remove", "/tmp/none", "not_found"), ("remove", "/tmp/d", "ok"),
                  ("write", "/tmp/half", "invalid")]

        def entries():
            found = cayd.get(f"/audit?sandbox={box.id}").body["entries"]
            return [e for e in found if e["action"] not in ("create", "ended", "delete")]

        until(lambda: len(entries()) >= len(wanted))
        found = entries()
        assert [(e["action"], e["detail"]["path"], e["result"]) for e in found] == wanted
        assert found[0]["detail"]["bytes"] == 14 and found[0]["detail"]["user"] == "user"
        assert found[3]["detail"]["to"] == "/tmp/d/f" and found[4]["detail"]["bytes"] == len(archive)
        assert "secret content" not in json.dumps(found)
    finally:
        cayd.cay.run("rm", "-f", box.id)


# ---- nothing is left behind

def test_no_descriptor_is_lost(box, place):
    def everything():
        box.put(f"{place}/f", b"x" * 100000)
        box.get(f"{place}/f")
        box.get(f"{place}/none", 404)
        box.get(f"{place}/f", method="HEAD")
        box.names(place)
        box.daemon.get(box.url("archive", path=place))
        half_an_upload(box, f"{place}/half", True).close()
        with box.daemon.stream(box.url("fs/watch", path=place)) as stream:
            next(stream)
        with box.daemon.stream(box.url("files", path="/proc/kallsyms")) as stream:
            stream.read(1)

    everything()
    time.sleep(0.3)
    before = box.daemon.fds()
    for _ in range(10):
        everything()
    until(lambda: box.daemon.fds() <= before + 1)


def test_a_working_directory_that_is_missing_is_in_nobody_s_way(cayd, cayd_make):
    """Paths of the API are absolute: files can be written where commands could not start yet."""
    box = cayd_make(cwd="/srv/app")
    assert cayd.get(f"/sandboxes/{box}/fs/stat?path=/srv/app").code == "not_found"
    assert cayd.put(f"/sandboxes/{box}/files?path=/srv/app/main.py", b"print(1)\n").status in (200, 201, 204)
    assert cayd.exec(box, argv=["python3", "main.py"])["stdout"] == "1\n"


def test_a_list_has_a_limit(cayd, cayd_make):
    """limit: entries at most, over all levels; a client need not take a whole tree."""
    box = cayd_make()
    cayd.exec(box, shell="mkdir -p /w/a/b; touch /w/1 /w/2 /w/a/3 /w/a/b/4")
    names = [e["name"] for e in cayd.get(f"/sandboxes/{box}/fs/list?path=/w&depth=9&limit=3").body["entries"]]
    whole = [e["name"] for e in cayd.get(f"/sandboxes/{box}/fs/list?path=/w&depth=9&limit=100").body["entries"]]
    assert len(whole) == 6 and names == whole[:3]
    assert cayd.get(f"/sandboxes/{box}/fs/list?path=/w&limit=x").code == "invalid"
