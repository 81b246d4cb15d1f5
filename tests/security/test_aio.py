# SPDX-License-Identifier: Apache-2.0
"""Attacks on the AIO front, whose only credential is a key in the path. Each has its control: the same request with
nothing wrong about it is served, or another client is served meanwhile."""
import concurrent.futures
import json
import os
import re
import signal

import pytest

from integration.support import until
from lib.aio import Aio, send


@pytest.fixture(scope="module")
def box(cayd):
    identifier = cayd.create(id="aio-target")
    yield identifier
    cayd.remove(identifier)


@pytest.fixture(scope="module")
def aio(cayd, box):
    return Aio(cayd, box)


def status(cayd, path, **options):
    return send(cayd, "GET", f"{path}/v1/sandbox", **options).status


def unauthorized(cayd):
    return int(re.search(r"^cay_unauthorized_total (\d+)$", cayd.get("/metrics").body.decode(), re.M)[1])


# -- keys

def changed(path):
    """Keys that are almost the right one."""
    top, _, tag = path.rpartition(".")
    other = "B" if tag[0] == "A" else "A"
    yield from (path[:-1], path + "A", path[:-1] + ("B" if path[-1] == "A" else "A"), f"{top}.{other}{tag[1:]}", top,
                f"{top}.", f"{top}.{'A' * 32}", f"{top}.{tag[:16]}", f"{top}.{tag}.", f"{top}x.{tag}", f"/aio/.{tag}",
                f"/aio/x~aio-target.{tag}", f"/aio/AIO-TARGET.{tag}", f"{top}.{tag.swapcase()}", "/aio/", "/aio/x",
                f"/aio//{path[5:]}", f"/aio/..{path}")


def test_wrong_keys(cayd, aio):
    """Whatever is wrong with a key, the answer is the same 404, and it is counted as a bad token is."""
    before, n = unauthorized(cayd), 0
    want = send(cayd, "GET", "/aio/nobody.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/v1/sandbox")
    assert want.status == 404
    for path in changed(aio.path):
        n += 1
        for method, call in (("GET", "/v1/sandbox"), ("POST", "/v1/shell/exec"), ("GET", "/v1/nope"), ("DELETE", "")):
            answer = send(cayd, method, path + call)
            assert (answer.status, answer.body) == (404, want.body), (method, path + call)
    assert unauthorized(cayd) >= before + 4 * n
    assert status(cayd, aio.path) == 200


def test_a_key_is_for_one_sandbox(cayd, aio):
    other = cayd.create()
    try:
        tag = aio.path.rpartition(".")[2]
        assert status(cayd, f"/aio/{other}.{tag}") == 404
        assert status(cayd, Aio(cayd, other).path) == 200
    finally:
        cayd.remove(other)


def test_a_key_ends_with_its_sandbox(cayd):
    """Of a dead sandbox, and of an earlier one of the same name: no key, and no word about which it is."""
    unknown = send(cayd, "GET", "/aio/never-was.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/v1/sandbox")
    old = Aio(cayd, cayd.create(id="again"))
    assert status(cayd, old.path) == 200
    cayd.post("/sandboxes/again/kill")
    ended = send(cayd, "GET", f"{old.path}/v1/sandbox")
    assert (ended.status, ended.body) == (404, unknown.body)
    assert cayd.get("/sandboxes/again/aio").status == 410
    cayd.remove("again")
    assert status(cayd, old.path) == 404
    new = Aio(cayd, cayd.create(id="again"))
    try:
        assert new.path != old.path
        assert status(cayd, new.path) == 200 and status(cayd, old.path) == 404
    finally:
        cayd.remove("again")


def test_a_key_ends_with_a_killed_keeper(cayd):
    """Before anybody has swept what is left of it, too."""
    front = Aio(cayd, cayd.create(id="killed"))
    try:
        os.kill(cayd.get("/sandboxes/killed").body["keeper_pid"], signal.SIGKILL)
        until(lambda: status(cayd, front.path) == 404)
        assert status(cayd, front.path) == 404
    finally:
        cayd.remove("killed")


def test_answers_tell_nothing(cayd, aio):
    """A wrong key for a sandbox that is there, and one for none: the same bytes, headers too."""
    def answer(path):
        with cayd.dial(tcp=True) as sock:
            sock.sendall(f"GET {path}/v1/sandbox HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            got = b""
            while more := sock.recv(65536):
                got += more
        return re.sub(rb"\r\nDate: [^\r]*", b"", got)

    there = aio.path.rpartition(".")[0]
    assert answer(f"{there}.{'A' * 32}") == answer(f"/aio/not-there.{'A' * 32}")
    assert answer(aio.path).startswith(b"HTTP/1.1 200")


def test_a_key_opens_nothing_else(cayd, aio):
    """It is no token, and no way to the native API, to other sandboxes or to another port of the daemon."""
    key = aio.path[5:]
    assert cayd.get("/sandboxes", tcp=True, token=key).status == 401
    assert cayd.get("/sandboxes", tcp=True).status == 401
    for path in ("/api/v1/sandboxes", "/v1/../../api/v1/sandboxes", "/../../api/v1/sandboxes", "/v1/shell/../sandbox",
                 "/%2e%2e/%2e%2e/api/v1/sandboxes", "/v1%2fsandbox", "/", "", "/v2/sandbox", "/v1/sandbox/"):
        assert send(cayd, "GET", aio.path + path).status in (401, 404), path
    assert status(cayd, aio.path) == 200


def test_a_token_does_not_replace_a_key(cayd, box):
    token = cayd.token("aio-all")
    assert send(cayd, "GET", f"/aio/{box}/v1/sandbox", token=token).status == 404
    assert cayd.get(f"/sandboxes/{box}", tcp=True, token=token).status == 200


def test_keys_are_nowhere_in_the_logs(daemons):
    """Not in the daemon's log with everything in it, not in the audit log, not in events."""
    d = daemons(tcp=True, env={"CAYD_DEBUG": "1"})
    aio = Aio(d, d.create(id="logged"))
    aio.shell("true")
    aio.write("/tmp/x", "y")
    aio.get("nope")
    aio.delete("shell/sessions/nope")
    tag = aio.path.rpartition(".")[2]
    send(d, "GET", f"/aio/logged.{tag[:-1]}/v1/sandbox")
    everything = d.log.read_text() + json.dumps(d.get("/audit").body) + json.dumps(d.get("/events").body.decode())
    everything += d.get("/metrics").body.decode()
    assert tag not in everything and tag[:-1] not in everything
    assert "logged" in everything


def test_the_secret(daemons):
    """Only its owner may read it; one that others can read is not used; removing it takes back all keys."""
    d = daemons(tcp=True)
    box = d.create()
    secret = d.state / "front.key"
    assert send(d, "GET", f"/aio/{box}.{'A' * 32}/v1/sandbox").status == 404 and not secret.exists()
    aio = Aio(d, box)
    assert secret.stat().st_mode & 0o777 == 0o600 and len(secret.read_bytes()) == 32
    assert secret.read_bytes() not in d.log.read_bytes()
    secret.chmod(0o644)
    assert status(d, aio.path) == 404 and d.get(f"/sandboxes/{box}/aio").code == "internal"
    secret.chmod(0o600)
    assert status(d, aio.path) == 200
    secret.unlink()
    assert status(d, aio.path) == 404
    new = Aio(d, box)
    assert new.path != aio.path and status(d, new.path) == 200 and status(d, aio.path) == 404


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"},
                                     {"Sec-Fetch-Site": "cross-site"}])
def test_from_a_browser(cayd, aio, headers):
    """A page that learned the URL cannot use it: Host and Origin count as for the rest."""
    assert aio.get("sandbox", headers=headers).status == 403
    assert aio.request("POST", "shell/exec", json={"command": "true"}, headers=headers).status == 403
    assert aio.get("sandbox", headers={"Origin": "https://app.example"}).status == 200


# -- tenants

def test_other_tenants(cayd):
    """A tenant gets keys of its own sandboxes alone, and its key acts for it."""
    tokens = {name: cayd.token(f"aio-{name}", tenant=name) for name in ("aio-mallory", "aio-victim")}
    for name, token in tokens.items():
        cayd.create(token=token, id="box")
    try:
        victim = Aio(cayd, "box", token=tokens["aio-victim"])
        assert victim.path.startswith("/aio/aio-victim~box.")
        mallory = Aio(cayd, "box", token=tokens["aio-mallory"])
        for name in ("aio-victim~box", "..", "box/../aio-victim~box"):
            assert cayd.get(f"/sandboxes/{name}/aio", token=tokens["aio-mallory"], tcp=True).status in (401, 404), name
        tag = mallory.path.rpartition(".")[2]
        assert status(cayd, f"/aio/aio-victim~box.{tag}") == 404
        victim.shell("echo mine > /tmp/secret")
        assert mallory.shell("cat /tmp/secret")["exit_code"] != 0
        entries = cayd.get("/audit?sandbox=aio-victim~box").body["entries"]
        assert {e.get("tenant") for e in entries if e["who"] == "front:aio"} == {"aio-victim"}
    finally:
        cayd.remove("aio-mallory~box", "aio-victim~box")


# -- names of sessions

TRICKS = ["..", ".", "../..", "../../etc", "a/../../b", "/etc", "a/b", "-rf", "", " ", "a b", "a;id", "$(id)", "`id`",
          "a\nb", "a\0b", "~root", "*", "x" * 65, "é", "%2e%2e", "..\\x"]


@pytest.mark.parametrize("name", TRICKS)
def test_session_names(aio, name):
    """No name of a session is a way out of its directory, or into a script."""
    aio.shell("mkdir -p /tmp/.cay/shell; echo here > /tmp/canary")
    for family, field in (("shell", "id"), ("bash", "session_id")):
        body = {field: name}
        assert aio.post(f"{family}/sessions/create", **body).status in (404, 422), body
        assert aio.post(f"{family}/exec", command="touch /tmp/canary", **body).status in (404, 422), body
        for call in (("view", "wait", "kill") if family == "shell" else ("output", "kill")):
            assert aio.post(f"{family}/{call}", **body).status in (404, 422), (call, body)
    assert aio.shell("cat /tmp/canary; ls -d /tmp/.cay/shell")["output"] == "here\n/tmp/.cay/shell\n"
    assert aio.post("shell/sessions/create", id="good").status == 200


@pytest.mark.parametrize("name", ["..", "%2e%2e", ".", "..%2f..%2froot", "%2e%2e%2fshell", "a%00b", "~", "-rf", "x" * 65])
def test_session_names_in_paths(aio, name):
    aio.shell("mkdir -p /tmp/.cay/shell /tmp/.cay/bash; echo here > /root/canary")
    assert aio.delete(f"shell/sessions/{name}").status in (401, 404, 405)
    assert aio.request("POST", f"bash/sessions/{name}/close").status in (401, 404, 405)
    assert aio.shell("cat /root/canary; ls -d /tmp/.cay/shell")["output"] == "here\n/tmp/.cay/shell\n"


# -- bodies

def test_oversized_bodies(cayd, aio):
    """Each kind of body has its maximum, and beyond it is 413."""
    pad = "x" * (1 << 20)
    assert aio.post("shell/exec", command="true", pad=pad).status == 413
    assert aio.post("file/read", file="/etc/passwd", pad=pad).status == 413
    assert aio.post("file/write", file="/tmp/big", content=pad * 33).status == 413
    assert aio.post("shell/exec", command="true", pad=pad[:-200]).status == 200
    assert aio.post("file/write", file="/tmp/big", content=pad * 30).status == 200
    assert aio.get("file/download?path=/tmp/big").body == pad.encode() * 30


def test_many_large_bodies(cayd, aio):
    """Few large bodies are held at once; the others are told to come again, and small ones are served meanwhile."""
    head = (f"POST {aio.path}/v1/file/write HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {32 << 20}\r\n\r\n{{").encode()
    socks = []
    try:
        for _ in range(4):
            socks.append(cayd.dial(tcp=True))
            socks[-1].sendall(head)
        until(lambda: in_flight(cayd) >= 5)  # and the one that asks
        with cayd.dial(tcp=True) as sock:
            sock.sendall(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
            sock.settimeout(20)
            assert b" 503 " in sock.recv(65536)
        assert aio.write("/tmp/small", "x" * 900000)["bytes_written"] == 900000
    finally:
        for sock in socks:
            sock.close()
    until(lambda: aio.post("file/write", file="/tmp/large", content="x" * (2 << 20)).status == 200)


def in_flight(cayd):
    return int(re.search(r"^cay_requests_in_flight (\d+)$", cayd.get("/metrics").body.decode(), re.M)[1])


def test_deep_and_wide_bodies(cayd, aio):
    for text in (b"[" * 100000, b'{"a":' * 50000, b'{"command":' + b"[" * 500000):
        for call in ("shell/exec", "file/write"):
            answer = aio.request("POST", call, body=text, headers={"Content-Type": "application/json"})
            assert answer.status == 422, (call, text[:10])
    assert aio.shell("echo ok")["output"] == "ok\n"


@pytest.mark.parametrize("pattern", ["(((a{1,99}){1,99}){1,99}){1,99}", "(" * 3000, "[" * 3000, "a{1000000}", "\\",
                                     "(a*)*" * 500, "x" * 4095])
def test_hostile_patterns(cayd, aio, pattern):
    """A pattern can only cost the sandbox that it is for."""
    aio.write("/tmp/pattern", "a" * 1000)
    answer = aio.post("file/grep", path="/tmp/pattern", pattern=pattern)
    assert answer.status == 200, answer
    assert cayd.get("/healthz").status == 200


# -- a hostile sandbox

HOSTILE = {
    "link to /": "ln -s / /tmp/.cay",
    "link to itself": "ln -s .cay /tmp/.cay",
    "dangling": "ln -s /nope/nope /tmp/.cay",
    "a file": "echo x > /tmp/.cay",
    "a fifo": "mkfifo /tmp/.cay",
    "sessions are a fifo": "mkdir /tmp/.cay; mkfifo /tmp/.cay/shell /tmp/.cay/bash",
    "the session is a fifo": "mkdir -p /tmp/.cay/shell; mkfifo /tmp/.cay/shell/s",
    "the session is a link": "mkdir -p /tmp/.cay/shell; ln -s /root /tmp/.cay/shell/s",
    "its state is a fifo": "mkdir -p /tmp/.cay/shell/s; mkfifo /tmp/.cay/shell/s/state",
    "its state is a device": "mkdir -p /tmp/.cay/shell/s; ln -s /dev/zero /tmp/.cay/shell/s/state",
    "its state is a program": "mkdir -p /tmp/.cay/shell/s; echo 'exec sleep 0' > /tmp/.cay/shell/s/state",
    "its directory is a huge file": "mkdir -p /tmp/.cay/shell/s; truncate -s 100M /tmp/.cay/shell/s/cwd",
    "cannot be written": "mkdir -p /tmp/.cay/shell/s; chmod 0 /tmp/.cay/shell/s /tmp/.cay",
    "very many": "mkdir -p /tmp/.cay/shell; cd /tmp/.cay/shell; seq 3000 | xargs mkdir",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_sandbox(cayd, aio, how):
    """What a sandbox makes of the front's directory is its own loss: the daemon answers, and serves others."""
    box = cayd.create()
    try:
        front = Aio(cayd, box)
        root = front.shell("echo safe > /root/keep; rm -rf /tmp/.cay; " + HOSTILE[how])
        assert root["exit_code"] == 0, root
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(front.post, "shell/exec", command="echo ran", id="s", no_change_timeout=5),
                     pool.submit(front.post, "shell/exec", command="echo ran", no_change_timeout=5),
                     pool.submit(front.post, "shell/sessions/create", id="s2"),
                     pool.submit(front.get, "shell/sessions"), pool.submit(front.get, "bash/sessions"),
                     pool.submit(front.post, "shell/view", id="s"), pool.submit(front.get, "sandbox")]
            assert aio.shell("echo other")["output"] == "other\n"
            answers = [call.result() for call in calls]
        assert {a.status for a in answers} <= {200, 400, 403, 404, 500}, answers
        assert answers[1].status == 200 and answers[1].body["data"]["output"] == "ran\n"
        front.delete("shell/sessions/s")
        assert cayd.exec(box, "cat /root/keep")["stdout"] == "safe\n"
        assert cayd.get("/healthz").status == 200
    finally:
        cayd.remove(box)


def test_another_users_session_is_not_believed(cayd):
    """A session that another user of the sandbox prepared does not run as the first one."""
    box = cayd.create()
    try:
        front = Aio(cayd, box)
        trap = "mkdir -p /tmp/.cay/shell/x && echo 'touch /tmp/was-sourced' > /tmp/.cay/shell/x/state"
        assert cayd.exec(box, trap, user="user")["exit_code"] == 0
        assert front.shell("ls /tmp/was-sourced", id="x")["exit_code"] != 0
        cayd.exec(box, "chown -R root:root /tmp/.cay/shell/x && echo 'touch /tmp/was-sourced' > /tmp/.cay/shell/x/state")
        assert front.shell("ls /tmp/was-sourced", id="x")["exit_code"] == 0
    finally:
        cayd.remove(box)


def test_keys_are_not_to_be_found_inside(aio):
    """No process of the sandbox has the key in its environment or arguments."""
    tag = aio.path.rpartition(".")[2]
    look = f"cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[{tag[0]}]{tag[1:]}'"
    assert aio.shell(look)["output"] == "0\n"
    assert aio.shell(f"X=$(printf %s {tag[0]} {tag[1:]}) sleep 60 & sleep 0.1; {look}; kill $!")["output"] != "0\n"
