# SPDX-License-Identifier: Apache-2.0
"""Attacks on cayd over its sockets. Each has its control: the same request where nothing is wrong with it is
served, or, for floods, another client is served meanwhile."""
import base64
import contextlib
import json
import os
import re
import select
import socket
import subprocess
import threading
import time

import pytest

from lib import daemon as lib_daemon

HEAD = "Host: localhost\r\n"
GET = "GET /api/v1/sandboxes HTTP/1.1\r\n"
PAUSE = "POST /api/v1/sandboxes/x/pause HTTP/1.1\r\n"
CLOSE = "Connection: close\r\n\r\n"
SLOW_AFTER = 75.0  # seconds by which a client that only trickles must have been cut


@pytest.fixture(scope="module")
def token(cayd):
    return cayd.token("attacker")


@pytest.fixture(scope="module")
def tenants(cayd):
    """Two tenants with a sandbox each, and a process and a file in it."""
    found = {}
    for name in ("mallory", "victim"):
        token = cayd.token(f"{name}-all", tenant=name)
        box = cayd.create(token=token, id=f"{name}-box", labels={"owner": name})
        pid = cayd.start_process(box, f"echo {name}s secret; sleep 600", token=token)
        cayd.put(f"/sandboxes/{box}/files?path=/tmp/secret", f"{name}s secret".encode(), token=token)
        found[name] = (token, box, pid)
    yield found
    cayd.remove("mallory~mallory-box", "victim~victim-box")


def raw(cayd, text, tcp=True, timeout=5.0):
    data = text if isinstance(text, bytes) else text.encode("latin-1")
    return cayd.raw(data, tcp=tcp, timeout=timeout)


def statuses(got):
    return [int(s) for s in re.findall(rb"(?:^|\n)HTTP/1\.[01] (\d+)", got)]


def served(cayd, **options):
    """The control of everything that tries to take the daemon down."""
    start = time.monotonic()
    assert cayd.get("/healthz", **options).status == 200
    return time.monotonic() - start


# -- from a browser

@pytest.mark.parametrize("host", ["evil.example", "evil.example:7733", "127.0.0.1.evil.example",
                                  "localhost.evil.example",
                                  "localhost@evil.example", "", "2130706433", "0x7f.1", "localhost:80@evil",
                                  "cay.example.",
                                  "xcay.example", "[::1", "[evil.example]"])
def test_rebinding(cayd, token, host):
    """A page whose name now points here still sends that name."""
    request = "GET /api/v1/sandboxes HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n"
    assert statuses(raw(cayd, request.format(host, token)))[0] in (400, 403), host
    assert statuses(raw(cayd, request.format(host, token).replace("/api/v1/sandboxes", "/version")))[0] in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80",
                                  "cay.example", "cay.example:443"])
def test_rebinding_control(cayd, token, host):
    request = f"{GET}Host: {host}\r\nAuthorization: Bearer {token}\r\n{CLOSE}"
    assert statuses(raw(cayd, request)) == [200]


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://app.example"},
    {"Origin": "https://app.example.evil.example"}, {"Origin": "https://app.example:8443"}, {"Origin": ""},
    {"Origin": "http://localhost:3000"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}])
def test_cross_site(cayd, token, headers, tcp):
    answer = cayd.post("/sandboxes", {"id": "csrf"}, tcp=tcp, token=token, headers=headers)
    assert answer.status == 403 and answer.code == "denied", answer
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert cayd.get("/sandboxes/csrf").status == 404
    assert cayd.get("/sandboxes", tcp=tcp, token=token, headers=headers).status == 403


@pytest.mark.parametrize("headers", [{"Origin": "https://app.example"}, {"Sec-Fetch-Site": "none"},
                                     {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}, {}])
def test_cross_site_control(cayd, token, headers):
    answer = cayd.post("/sandboxes", {"id": "allowed"}, tcp=True, token=token, headers=headers)
    assert answer.status == 201, answer
    cayd.remove("allowed")
    wanted = headers.get("Origin")
    assert answer.headers.get("Access-Control-Allow-Origin") == wanted
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert wanted is None or "origin" in answer.headers.get("Vary", "").lower()


def preflight(cayd, origin):
    return cayd.request("OPTIONS", "/sandboxes", tcp=True, headers={
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type"})


def test_preflight(cayd):
    refused = preflight(cayd, "https://evil.example")
    assert "Access-Control-Allow-Origin" not in refused.headers and refused.status == 403
    allowed = preflight(cayd, "https://app.example")
    assert allowed.status in (200, 204) and allowed.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "POST" in allowed.headers["Access-Control-Allow-Methods"]
    assert "authorization" in allowed.headers["Access-Control-Allow-Headers"].lower()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded",
                                  "multipart/form-data; boundary=b", None])
def test_a_form_cannot_create(cayd, token, kind):
    """The types that a page may send anywhere without asking first."""
    headers = {"Content-Type": kind} if kind else {}
    answer = cayd.request("POST", "/sandboxes", body=b'{"id":"form"}', headers=headers, token=token, tcp=True)
    assert answer.status == 400 and answer.code == "invalid", answer
    assert cayd.get("/sandboxes/form").status == 404


def test_answers_are_not_sniffed_or_kept(cayd, token):
    answer = cayd.get("/sandboxes/%3Cscript%3E", tcp=True, token=token)
    assert answer.status in (400, 404)
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and "no-store" in answer.headers["Cache-Control"]
    assert answer.headers.get_content_type() == "application/json"


# -- methods and tokens by other ways

@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
def test_method_override(cayd, tenants, header):
    token, box, _ = tenants["victim"]
    answer = cayd.get(f"/sandboxes/{box}", token=token, headers={header: "DELETE"})
    assert answer.status == 200
    assert cayd.post(f"/sandboxes/{box}", {}, token=token, headers={header: "DELETE"}).status == 405
    assert cayd.get(f"/sandboxes/{box}?_method=DELETE", token=token).status == 400
    assert cayd.state_of(box, token=token) == "running"


def test_a_token_is_taken_from_its_header_only(cayd, token):
    for path, headers in ((f"/sandboxes?token={token}", {}), (f"/sandboxes?access_token={token}", {}),
                          ("/sandboxes", {"Cookie": f"token={token}"}), ("/sandboxes", {"X-Api-Key": token}),
                          ("/sandboxes", {"Proxy-Authorization": f"Bearer {token}"})):
        answer = cayd.get(path, tcp=True, headers=headers)
        assert answer.status in (400, 401), (path, answer)
    assert cayd.get("/sandboxes", tcp=True, token=token).status == 200


def test_forwarding_headers_give_no_rights(cayd):
    headers = {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1",
               "X-Forwarded-Host": "localhost"}
    assert cayd.get("/sandboxes", tcp=True, headers=headers).status == 401


def test_two_authorizations(cayd, tenants):
    """Whoever checks one and uses the other is lost."""
    mine, theirs = tenants["mallory"][0], tenants["victim"][0]
    for first, second in ((mine, "cay_" + "A" * 43), ("cay_" + "A" * 43, mine)):
        got = raw(cayd, f"GET /api/v1/sandboxes HTTP/1.1\r\n{HEAD}Authorization: Bearer {first}\r\n"
                        f"Authorization: Bearer {second}\r\nConnection: close\r\n\r\n")
        assert b"victim" not in got and statuses(got)[0] in (200, 400, 401)
    assert theirs


def test_a_long_or_odd_token(cayd):
    for text in ("A" * 16000, "cay_" + "A" * 42, "cay_" + "A" * 44, "cay_" + "\xff" * 43, "\0", "%s%n", "cay_"):
        got = raw(cayd, f"{GET}{HEAD}Authorization: Bearer {text}\r\n{CLOSE}")
        assert not got or statuses(got)[0] in (400, 401, 413, 431), (text[:20], got[:100])
    served(cayd)


# -- other tenants

CROSS = [("GET", "", None), ("GET", "/spec", None), ("GET", "/stats", None), ("GET", "/logs", None),
         ("GET", "/logs?follow=true", None), ("PATCH", "", {"ttl": 1}), ("DELETE", "", None), ("POST", "/pause", {}),
         ("POST", "/resume", {}), ("POST", "/kill", {}), ("POST", "/stop", {}), ("POST", "/exec", {"argv": ["true"]}),
         ("POST", "/processes", {"argv": ["true"]}), ("GET", "/processes", None), ("GET", "/processes/{pid}", None),
         ("GET", "/processes/{pid}/output", None), ("DELETE", "/processes/{pid}", None),
         ("POST", "/processes/{pid}/signal", {"signal": 9}), ("POST", "/processes/{pid}/wait", {"timeout": 0}),
         ("POST", "/processes/{pid}/stdin", None), ("POST", "/processes/{pid}/resize", {"rows": 1, "cols": 1}),
         ("GET", "/files?path=/tmp/secret", None), ("PUT", "/files?path=/tmp/secret", None),
         ("DELETE", "/files?path=/tmp/secret", None), ("GET", "/fs/list?path=/tmp", None),
         ("GET", "/fs/stat?path=/tmp/secret", None), ("POST", "/fs/mkdir", {"path": "/tmp/d"}),
         ("POST", "/fs/move", {"from": "/tmp/secret", "to": "/tmp/s"}), ("GET", "/fs/find?path=/tmp", None),
         ("GET", "/fs/grep?path=/tmp&pattern=secret", None), ("GET", "/fs/watch?path=/tmp", None),
         ("GET", "/archive?path=/tmp", None), ("PUT", "/archive?path=/tmp", None)]
NAMES = ["victim-box", "victim~victim-box", "mallory~victim~victim-box", "victim%7Evictim-box", "~victim-box",
         "mallory-box/../victim~victim-box", "victim~", "..%2fvictim~victim-box", "VICTIM~victim-box"]


@pytest.mark.parametrize("method,what,body", CROSS, ids=[m + w for m, w, _ in CROSS])
def test_another_tenants_sandbox(cayd, tenants, method, what, body):
    token, box, pid = tenants["victim"]
    mine, own, own_pid = tenants["mallory"]
    for name in NAMES:
        answer = cayd.request(method, f"/sandboxes/{name}" + what.format(pid=pid), json=body, token=mine, tcp=True)
        assert answer.status in (400, 404), (name, answer)
        assert b"secret" not in json.dumps(str(answer.body)).encode() or "secret" in what, answer
    assert cayd.state_of(box, token=token) == "running"
    assert cayd.get(f"/sandboxes/{box}/processes/{pid}", token=token).body["running"]
    assert cayd.get(f"/sandboxes/{box}/files?path=/tmp/secret", token=token).body == b"victims secret"
    if method == "GET" and "follow" not in what and "watch" not in what:
        control = cayd.request(method, f"/sandboxes/{own}" + what.format(pid=own_pid), json=body, token=mine, tcp=True)
        assert control.status == 200, control


def test_another_tenants_terminal(cayd, tenants):
    _, box, pid = tenants["victim"]
    mine, own, own_pid = tenants["mallory"]
    for name in NAMES[:5]:
        with cayd.websocket(f"/sandboxes/{name}/processes/{pid}/attach", tcp=True, token=mine) as refused:
            assert refused.status in (400, 404) and not refused.upgraded
    with cayd.websocket(f"/sandboxes/{own}/processes/{own_pid}/attach", tcp=True, token=mine) as control:
        assert control.upgraded and b"mallorys secret" in control.expect(b"secret")


@pytest.mark.parametrize("identifier", ["victim~new", "~x", "x~", "victim~victim-box", "a~b~c", "pool~x"])
def test_a_name_in_another_tenants_space(cayd, tenants, identifier):
    mine = tenants["mallory"][0]
    answer = cayd.post("/sandboxes", {"id": identifier}, token=mine)
    assert answer.status == 400 and answer.code == "invalid", answer
    assert identifier not in cayd.cay.ids() or identifier == "victim~victim-box"


def test_the_same_name_is_another_sandbox(cayd, tenants):
    mine = tenants["mallory"][0]
    answer = cayd.post("/sandboxes", {"id": "victim-box"}, token=mine)
    assert answer.status == 201, "and nothing tells that another has it"
    assert cayd.delete("/sandboxes/victim-box", token=mine).status == 204
    assert cayd.state_of("victim~victim-box") == "running"


OWNER = re.compile(rb'"owner": *"victim"')


def test_lists_events_and_audit_show_no_other_tenant(cayd, tenants):
    mine = tenants["mallory"][0]
    for path in ("/sandboxes", "/sandboxes?state=all", "/sandboxes?label=owner%3Dvictim", "/events", "/events?from=0",
                 "/audit?limit=1000", "/audit?sandbox=victim~victim-box", "/audit?tenant=victim",
                 "/audit?label=owner%3Dvictim",
                 "/capabilities", "/metrics"):
        answer = cayd.get(path, token=mine, tcp=True)
        text = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.status == 200:
            assert b"victim~" not in text and not OWNER.search(text), (path, text[:500])
        else:
            assert answer.status in (400, 403, 404), answer
    for path in ("/sandboxes?state=all", "/events", "/audit?limit=1000&last=true"):
        answer = cayd.get(path)
        text = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        assert b"victim~" in text and OWNER.search(text), f"the control: the operator sees it in {path}"


def test_a_cursor_of_another_tenant(cayd, tenants):
    """A cursor is a place in a list, not a right to see it."""
    mine, theirs = tenants["mallory"][0], tenants["victim"][0]
    second = cayd.create(token=theirs)
    try:
        cursor = cayd.get("/sandboxes?limit=1", token=theirs).body["next_cursor"]
        answer = cayd.get(f"/sandboxes?cursor={cursor}", token=mine)
        assert answer.status in (200, 400)
        assert answer.status == 400 or not {b["id"] for b in answer.body["sandboxes"]} & {second, "victim-box"}
    finally:
        cayd.delete(f"/sandboxes/{second}", token=theirs)


# -- paths

@pytest.mark.parametrize("path", [
    "/api/v1/../../etc/passwd", "/api/v1/sandboxes/../healthz", "/api/v1/sandboxes/%2e%2e/%2e%2e/etc/passwd",
    "/api/v1/sandboxes/..%2f..%2fetc", "/api/v1/sandboxes/x%00y", "/api/v1//sandboxes", "//api/v1/sandboxes",
    "/api/v1/sandboxes/", "/api/v1/sandboxes//", "/api/v1/./sandboxes", "/api/v1/sandboxes/..;/healthz",
    "/API/V1/SANDBOXES",
    "/api/v1/sandboxes/%", "/api/v1/sandboxes/%zz", "/api/v1/sandboxes/%u0041", "/api/v1/sandboxes\\x",
    "/api/v1/sandboxes/.",
    "/api/v1/sandboxes/..", "/api/v1/sandboxes/%c0%ae%c0%ae", "/api/v1/sandboxes/\xff\xfe", "/api/v1/sandboxes;a=b",
    "/api/v1/sandboxes/" + "a" * 5000, "/api/v1/sandboxes/" + "a/" * 500, "/api/v1/sandboxes/x/processes/1%2f2",
    "/api/v1/sandboxes#x", "*", "api/v1/sandboxes", "/healthz/../api/v1/sandboxes", "/healthz%2f..%2fapi/v1/sandboxes",
    "/healthz;/../api/v1/sandboxes", "/version/", "/healthz/x"])
def test_path_tricks(cayd, path):
    """Without a token: an open route must not lead to one that is not. Nothing of the host comes back."""
    got = raw(cayd, f"GET {path} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n")
    if got:
        assert statuses(got)[0] in (400, 401, 404, 405, 413, 414, 431), (path, got[:100])
        assert b"root:" not in got and b'"sandboxes":' not in got


def test_absolute_targets(cayd, token):
    """The form for proxies: refused, or with the same checks of the name in it."""
    got = raw(cayd, f"GET http://evil.example/api/v1/sandboxes HTTP/1.1\r\nHost: evil.example\r\n"
                    f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n")
    assert not got or statuses(got)[0] in (400, 403, 404)


@pytest.mark.parametrize("identifier", ["../x", "a/b", "..", ".", "-x", "_x", "a" * 64, "A", "a\n", "a\0", "ä", "a b",
                                        "a%b", "a~b~c"])
def test_ids_that_are_paths(cayd, identifier):
    answer = cayd.post("/sandboxes", {"id": identifier})
    assert answer.status == 400 and answer.code == "invalid", answer


@pytest.mark.parametrize("path", ["/sandboxes?limit=%00", "/sandboxes?label=a%3Db%00c", "/sandboxes?limit=1&limit=2",
                                  "/sandboxes?limit=1%0d%0aX-Evil:1", "/sandboxes?%6cimit=x", "/sandboxes?limit",
                                  "/sandboxes?=1", "/sandboxes?cursor=" + "A" * 4000,
                                  "/sandboxes?limit=99999999999999999999999",
                                  "/sandboxes?state=%ff"])
def test_parameter_tricks(cayd, path):
    got = raw(cayd, f"GET /api/v1{path} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n", tcp=False)
    assert statuses(got) == [400], (path, got[:300])
    assert b"\nX-Evil" not in got


def in_flight(cayd):
    return float(re.search(r"^cay_requests_in_flight (\d+)$", cayd.get("/metrics").body.decode(), re.M)[1])


def test_many_parameters(cayd):
    """More than there is memory for in a connection: answered or cut, and nothing is kept of it."""
    many = "&".join(f"label=k{i}%3Dv" for i in range(400))
    request = f"GET /api/v1/sandboxes?{many} HTTP/1.1\r\n{HEAD}{CLOSE}"
    before, start = in_flight(cayd), time.monotonic()
    got = raw(cayd, request, tcp=False)
    assert not got or statuses(got)[0] in (200, 400, 413, 414, 429, 431)
    assert time.monotonic() - start < 4, "left hanging"
    for _ in range(20):
        with cayd.dial(5, tcp=True) as sock, contextlib.suppress(OSError):
            sock.sendall(request.encode())
            sock.recv(100)
    deadline = time.monotonic() + 3
    while in_flight(cayd) > before + 2:  # the slow clients of this file come and go
        assert time.monotonic() < deadline, f"{in_flight(cayd) - before} requests are never over"
        time.sleep(0.1)
    served(cayd)


# -- HTTP itself

CREATE = '{"id":"smuggled"}'
SMUGGLE = {
    "both lengths": "POST /api/v1/sandboxes HTTP/1.1\r\n{h}Content-Type: application/json\r\nContent-Length: 5\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + "{s}",
    "two lengths": PAUSE + "{h}Content-Length: 0\r\nContent-Length: 200\r\n\r\n{s}",
    "signed length": PAUSE + "{h}Content-Length: +2\r\n\r\n{{}}{s}",
    "negative length": PAUSE + "{h}Content-Length: -1\r\n\r\n{s}",
    "list of lengths": PAUSE + "{h}Content-Length: 0, 200\r\n\r\n{s}",
    "huge length": PAUSE + "{h}Content-Length: 18446744073709551616\r\n\r\n{s}",
    "chunk size": PAUSE + "{h}Transfer-Encoding: chunked\r\n\r\nxyz\r\n{s}",
    "huge chunk": PAUSE + "{h}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{s}",
    "negative chunk": PAUSE + "{h}Transfer-Encoding: chunked\r\n\r\n-1\r\n{s}",
    "two encodings": PAUSE + "{h}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{s}",
    "old version": PAUSE.replace("1.1", "1.0") + "{h}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{s}",
    "hidden encoding": PAUSE + "{h}Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n{{}}{s}",
    "folded": "GET /api/v1/sandboxes HTTP/1.1\r\n{h}X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n{s}",
    "two hosts": "GET /api/v1/sandboxes HTTP/1.1\r\n{h}Host: evil.example\r\n\r\n{s}",
    "no host": "GET /api/v1/sandboxes HTTP/1.1\r\nAuthorization: Bearer {t}\r\n\r\n{s}",
    "no version": "GET /api/v1/sandboxes\r\n\r\n{s}",
    "odd version": "GET /api/v1/sandboxes HTTP/9.9\r\n{h}\r\n{s}",
    "nul in header": "GET /api/v1/sandboxes HTTP/1.1\r\n{h}X-A: a\0b\r\n\r\n{s}",
    "no colon": "GET /api/v1/sandboxes HTTP/1.1\r\n{h}garbage\r\n\r\n{s}",
    "bare cr": "GET /api/v1/sandboxes HTTP/1.1\r\n{h}X-A: b\rHost: evil\r\n\r\n{s}",
}
# Where it is plain where the request ends: what follows is then a request in its own right.
PLAIN_END = {"folded", "two hosts", "no host", "nul in header", "no colon", "bare cr", "odd version"}
# RFC 9112 lets a server mend these instead of refusing them.
MENDED = {"folded", "nul in header", "bare cr"}


@pytest.mark.parametrize("how", SMUGGLE)
def test_smuggling(cayd, token, how):
    """What one reader takes for a body must never be a request for another: it is refused and the line is cut."""
    head = f"{HEAD}Authorization: Bearer {token}\r\n"
    smuggled = (f"POST /api/v1/sandboxes HTTP/1.1\r\n{head}Content-Type: application/json\r\n"
                f"Content-Length: {len(CREATE)}\r\nConnection: close\r\n\r\n{CREATE}")
    got = raw(cayd, SMUGGLE[how].format(h=head, s=smuggled, t=token), timeout=2.0)
    found = statuses(got)
    try:
        assert not found or found[0] in (400, 403, 405, 411, 413, 501, 505) or how in MENDED, (how, got[:300])
        if how not in PLAIN_END:
            assert cayd.get("/sandboxes/smuggled").status == 404 and 201 not in found, (how, got[:500])
    finally:
        cayd.remove("smuggled")


def test_smuggling_control(cayd, token):
    """Two honest requests on one line are both served; chunks are understood."""
    head = f"{HEAD}Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    chunked = (f"POST /api/v1/sandboxes HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
               f"5;x=y\r\n{CREATE[:5]}\r\n{len(CREATE) - 5:x}\r\n{CREATE[5:]}\r\n0\r\n\r\n")
    got = raw(cayd, chunked + f"GET /api/v1/sandboxes/smuggled HTTP/1.1\r\n{head}Connection: close\r\n\r\n")
    assert statuses(got) == [201, 200]
    cayd.remove("smuggled")


def test_garbage(cayd):
    for data in (b"\0" * 1000, b"\xff" * 1000, b"\r\n" * 1000, b"GET", b"GET /\r\n\r\n",
                 b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n", b"GET  /  HTTP/1.1\r\n\r\n",
                 os.urandom(5000)):
        for tcp in (False, True):
            got = cayd.raw(data, tcp=tcp, timeout=0.3)
            assert not got or statuses(got)[0] >= 400, (data[:20], got[:100])
    served(cayd)


# -- bombs

def test_a_large_body(cayd, token):
    before = cayd.rss()
    for size in (2 << 20, 10 << 20):
        body = b'{"id":"' + b"a" * size + b'"}'
        head = f"POST /api/v1/sandboxes HTTP/1.1\r\n{HEAD}Authorization: Bearer {token}\r\n" \
               "Content-Type: application/json\r\nConnection: close\r\n"
        for encoding in (f"Content-Length: {len(body)}\r\n\r\n".encode() + body,
                         b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"):
            got = raw(cayd, head.encode() + encoding)
            assert not got or statuses(got)[0] == 413, got[:200]
    assert cayd.rss() - before < 8 << 20
    served(cayd)


def test_a_body_without_an_end(cayd, token):
    """Chunks for ever on a route that takes JSON, and on one that takes none."""
    before = cayd.rss()
    for method, path in (("POST", "/api/v1/sandboxes"), ("GET", "/api/v1/sandboxes"), ("POST", "/api/v1/nosuch")):
        with cayd.dial(5, tcp=True) as sock:
            sock.sendall(f"{method} {path} HTTP/1.1\r\n{HEAD}Authorization: Bearer {token}\r\n"
                         "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
            deadline = time.monotonic() + 15
            with contextlib.suppress(OSError):
                while time.monotonic() < deadline:
                    sock.sendall(chunk)
            assert time.monotonic() < deadline, "it takes whatever comes"
    assert cayd.rss() - before < 16 << 20
    served(cayd)


@pytest.mark.parametrize("headers", [
    "".join(f"X-{i}: {i}\r\n" for i in range(100_000)), "X-Big: " + "a" * (1 << 20) + "\r\n", "a: b\r\n" * 50_000,
    "Cookie: " + "a=b; " * 100_000 + "\r\n", "X" * 200_000 + ": 1\r\n"], ids=["many", "big", "same", "cookies", "name"])
def test_header_bombs(cayd, token, headers):
    before = cayd.rss()
    start = time.monotonic()
    got = raw(cayd, f"{GET}{HEAD}Authorization: Bearer {token}\r\n{headers}{CLOSE}")
    assert not got or statuses(got)[0] in (400, 413, 431), got[:200]
    assert time.monotonic() - start < 4 and cayd.rss() - before < 8 << 20
    modest = "".join(f"X-{i}: {i}\r\n" for i in range(50))
    got = raw(cayd, f"{GET}{HEAD}Authorization: Bearer {token}\r\n{modest}{CLOSE}")
    assert statuses(got) == [200], "the control"


def test_a_long_target(cayd):
    got = raw(cayd, f"GET /api/v1/sandboxes?cursor={'a' * (1 << 20)} HTTP/1.1\r\n{HEAD}\r\n")
    assert not got or statuses(got)[0] in (400, 413, 414, 431)
    got = raw(cayd, "A" * (1 << 20), timeout=1.0)
    assert not got or statuses(got)[0] >= 400
    served(cayd)


JSON_BOMBS = {
    "deep arrays": b"[" * 100_000, "deep objects": b'{"a":' * 100_000, "deep inside": b'{"env":' + b"[" * 500_000,
    "deep and closed": b'{"env":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "33 levels": b'{"env":' + b"[" * 33 + b"]" * 33 + b"}",
    "duplicate keys": b'{"id":"dup-a","id":"dup-b"}', "duplicate escaped": b'{"id":"dup-a","\\u0069d":"dup-b"}',
    "duplicate deep": b'{"env":{"A":"1","A":"2"}}', "huge number": b'{"memory":' + b"9" * 100_000 + b"}",
    "huge exponent": b'{"memory":1e999999999}', "beyond 64 bits": b'{"memory":18446744073709551616}',
    "negative": b'{"memory":-9223372036854775809}', "infinity": b'{"memory":Infinity}', "nan": b'{"cpus":NaN}',
    "small exponent": b'{"cpus":1e-999999999}', "nul byte": b'{"id":"a\0b"}', "escaped nul": b'{"id":"a\\u0000b"}',
    "bad utf-8": b'{"labels":{"k":"\xff\xfe"}}', "overlong": b'{"labels":{"k":"\xc0\xaf"}}',
    "surrogate": b'{"labels":{"k":"\\ud800"}}', "cut utf-8": b'{"labels":{"k":"\xe2\x82"}}',
    "utf-16": '{"id":"x"}'.encode("utf-16"),
    "comment": b'{"id":"x"/**/}', "trailing": b'{"id":"x"} x', "two": b'{"id":"x"}{"id":"y"}',
    "hex": b'{"memory":0x10}',
    "octal": b'{"pids":0777}', "many keys": b"{" + b",".join(b'"k%d":1' % i for i in range(50_000)) + b"}",
    "many labels": b'{"labels":{' + b",".join(b'"k%d":"v"' % i for i in range(50_000)) + b"}}",
    "many mounts": b'{"mounts":[' + b",".join([b'{"source":"/","target":"/x"}'] * 20_000) + b"]}",
    "proto": b'{"__proto__":{"id":"x"}}',
}


@pytest.mark.parametrize("what", JSON_BOMBS)
def test_json_bombs(cayd, token, what):
    before, start = cayd.rss(), time.monotonic()
    answer = cayd.request("POST", "/sandboxes", body=JSON_BOMBS[what], token=token, tcp=True,
                          headers={"Content-Type": "application/json"})
    assert answer.status in (400, 413, 429), (what, answer)
    assert answer.code in ("invalid", "too_large", "limit") and len(answer.error["message"]) < 2000
    assert time.monotonic() - start < 2 and cayd.rss() - before < 32 << 20
    assert not [i for i in cayd.cay.ids() if i.startswith("dup")]


def test_json_control(cayd, token):
    body = json.dumps({"id": "fine", "labels": {"k": "grüße €𝄞"}, "env": {f"K{i}": "v" for i in range(50)}})
    answer = cayd.request("POST", "/sandboxes", body=body.encode(), token=token, tcp=True,
                          headers={"Content-Type": "application/json"})
    assert answer.status == 201 and answer.body["labels"] == {"k": "grüße €𝄞"}, answer
    cayd.remove("fine")


def test_a_flood_of_connections(cayd, token):
    """3,000 connections that say nothing or half a request, from one client; others are still served."""
    fds, rss, crowd = cayd.fds(), cayd.rss(), []
    try:
        for number in range(3000):
            sock = socket.socket() if number % 2 else socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(("127.0.0.1", cayd.port) if number % 2 else str(cayd.sock))
            except BlockingIOError:
                if not number % 2:  # the backlog is full for the moment
                    select.select([], [], [], 0.01)
            except OSError:
                pass
            with contextlib.suppress(OSError):
                sock.send(b"GET /api/v1/sandboxes HT")
            crowd.append(sock)
        took = [served(cayd), served(cayd, tcp=True)]
        assert cayd.get("/sandboxes", tcp=True, token=token).status == 200
        assert max(took) < 5, took
        assert cayd.rss() - rss < 200 << 20, f"{(cayd.rss() - rss) / 3000 / 1024:.0f} KiB for each connection"
    finally:
        for sock in crowd:
            sock.close()
    deadline = time.monotonic() + 10
    while cayd.fds() > fds + 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cayd.fds() <= fds + 20
    served(cayd)


def test_more_connections_than_allowed(daemons):
    """Beyond the number of the config new ones are turned away or wait; when some go, others come in."""
    daemon = daemons(connections=50, tcp=True)
    crowd = []
    try:
        for _ in range(120):
            crowd.append(daemon.dial(5))
        time.sleep(0.3)
        assert daemon.alive() and daemon.fds() < 50 + 60
    finally:
        for sock in crowd:
            sock.close()
    deadline = time.monotonic() + 5
    while True:
        with contextlib.suppress(OSError, Exception):
            if daemon.get("/healthz", timeout=2).status == 200:
                break
        assert time.monotonic() < deadline


def test_connections_that_come_and_go(cayd):
    fds = cayd.fds()
    for _ in range(1500):
        cayd.dial(5).close()
    served(cayd)
    deadline = time.monotonic() + 5
    while cayd.fds() > fds + 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cayd.fds() <= fds + 5


# -- terminals

@pytest.fixture(scope="module")
def terminal(cayd):
    box = cayd.create()
    pid = cayd.start_process(box, argv=["cat"], stdin=True)
    yield f"/sandboxes/{box}/processes/{pid}/attach"
    cayd.remove(box)


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
                                     {"Origin": "http://localhost"}, {"Authorization": None},
                                     {"Authorization": "Bearer cay_x"},
                                     {"Sec-Fetch-Site": "cross-site"}])
def test_a_page_cannot_open_a_terminal(cayd, token, terminal, headers):
    """WebSockets are not bound by a browser's same-origin rule: the server has to look."""
    wanted = {"Authorization": f"Bearer {token}", **headers}
    with cayd.websocket(terminal, tcp=True, headers=wanted) as refused:
        assert refused.status in (400, 401, 403) and not refused.upgraded, refused.head


def test_terminal_control(cayd, token, terminal):
    for headers in ({}, {"Origin": "https://app.example"}):
        with cayd.websocket(terminal, tcp=True, token=token, headers=headers) as control:
            assert control.upgraded, control.head
            control.send(b"hello\n")
            control.expect(b"hello\n")


def test_terminal_bombs(cayd, token, terminal):
    """A length of 2^63, a message in a million pieces, half a frame: bounded memory, and others are served."""
    before = cayd.rss()
    frames = (b"\x82\xff" + b"\x7f" + b"\xff" * 7 + b"mask" + b"x" * 100_000, b"\x82\xfe\xff",
              b"\x02\x80mask" * 100_000,
              b"\x89\x80mask" * 100_000, b"\x81\xff\0\0\0\0\x10\0\0\0mask" + b'{"type":' * 100_000)
    socks = []
    for data in frames:
        sock = cayd.websocket(terminal, tcp=True, token=token)
        assert sock.upgraded
        sock.sock.settimeout(1.0)
        with contextlib.suppress(OSError):
            sock.sock.sendall(data)
        socks.append(sock)
    assert served(cayd) < 2 and cayd.rss() - before < 16 << 20
    for sock in socks:
        sock.close()
    with cayd.websocket(terminal, tcp=True, token=token) as control:
        control.send(b"still\n")
        control.expect(b"still\n")


def test_a_terminal_nobody_reads(cayd, token):
    """Output for a terminal whose client takes nothing stays in the sandbox, and its client holds it for a while only."""
    box = cayd.create(output="8M")
    try:
        pid = cayd.start_process(box, "head -c 100000000 /dev/zero; echo done; sleep 60")
        before = cayd.rss()
        with cayd.websocket(f"/sandboxes/{box}/processes/{pid}/attach?stall=1", tcp=True, token=token) as lazy:
            assert lazy.upgraded
            deadline = time.monotonic() + 20
            while cayd.get(f"/sandboxes/{box}/processes/{pid}").body["output_end"] < 100_000_000:
                assert time.monotonic() < deadline, "the sandbox waits for a client"
                time.sleep(0.02)
            assert cayd.rss() - before < 16 << 20
    finally:
        cayd.remove(box)


# -- the unix socket

def test_another_user_cannot_use_the_socket(cayd):
    script = ("import socket,sys\ns=socket.socket(socket.AF_UNIX)\n"
              "s.connect(sys.argv[1])\ns.sendall(b'GET /version HTTP/1.0\\r\\n\\r\\n')\nprint(s.recv(100)[:12])\n")
    argv = ["/usr/bin/python3", "-c", script, str(cayd.sock)]
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    refused = subprocess.run(nobody + argv, capture_output=True, text=True, timeout=20)
    assert refused.returncode != 0 and "PermissionError" in refused.stderr, refused
    control = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert "200" in control.stdout, control
    # The control of the control: it is the socket's mode, not the directory's, that refused.
    reach = subprocess.run(nobody + ["ls", str(cayd.sock)], capture_output=True, text=True, timeout=20)
    assert reach.returncode == 0, reach


def test_files_of_the_daemon_are_private(cayd):
    for path in (cayd.tokens_file, cayd.state):
        assert os.stat(path).st_mode & 0o007 in (0, 1,
                                                 5) and (path != cayd.tokens_file or os.stat(path).st_mode & 0o077 == 0)
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    for path in cayd.state.rglob("*"):
        if path.is_file() and ("audit" in str(path) or "journal" in str(path)):
            done = subprocess.run(nobody + ["cat", str(path)], capture_output=True, timeout=20)
            assert done.returncode != 0, f"{path} can be read by anybody"


# -- slow clients; last, because they have been at it since the first test of this file

class Slow:
    """Clients that send a byte now and then. `cut[name]`: seconds until the daemon ended it."""

    def __init__(self, cayd, token):
        head = f"{HEAD}Authorization: Bearer {token}\r\n"
        body = f"POST /api/v1/sandboxes HTTP/1.1\r\n{head}Content-Type: application/json\r\n" \
               "Content-Length: 1000\r\n\r\n"
        self.scripts = {
            "silence": b"", "first line": b"GET /api/v1/sandboxes?cursor=" + b"a" * 500,
            "headers": f"GET /api/v1/sandboxes HTTP/1.1\r\n{head}".encode() + b"X-A: b\r\n" * 200,
            "body": (body + '{"env":{"A":"').encode() + b"a" * 900,
            "chunks": body.replace("Content-Length: 1000", "Transfer-Encoding: chunked").encode() + b"1\r\n \r\n" * 200,
            "second request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
                              b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 100,
        }
        self.at_once = {"headers": len(f"GET /api/v1/sandboxes HTTP/1.1\r\n{head}"), "body": len(body) + 10,
                        "chunks": len(body) + 10, "second request": 70, "first line": 5, "silence": 0}
        self.cayd, self.cut, self.stop = cayd, {}, threading.Event()
        self.start = time.monotonic()
        self.threads = [threading.Thread(target=self._play, args=(name, tcp), daemon=True)
                        for name in self.scripts for tcp in (False, True)]
        for thread in self.threads:
            thread.start()

    def _play(self, name, tcp):
        script, at = self.scripts[name], self.at_once[name]
        sock = self.cayd.dial(5, tcp)
        start = time.monotonic()
        with sock:
            try:
                sock.sendall(script[:at])
                while not self.stop.wait(0.25):
                    if at < len(script) and int((time.monotonic() - start) * 2) % 2:
                        sock.send(script[at:at + 1])
                        at += 1
                    ready = select.select([sock], [], [], 0)[0]
                    if ready and not sock.recv(65536):
                        break
            except OSError:
                pass
        if not self.stop.is_set():
            self.cut[name, tcp] = time.monotonic() - start


@pytest.fixture(scope="module", autouse=True)
def slow(cayd, token):
    clients = Slow(cayd, token)
    yield clients
    clients.stop.set()
    for thread in clients.threads:
        thread.join(5)


def test_slow_clients_are_cut_and_others_are_served(cayd, slow):
    wanted = {(name, tcp) for name in slow.scripts for tcp in (False, True)}
    while set(slow.cut) != wanted and time.monotonic() - slow.start < SLOW_AFTER:
        assert served(cayd) < 2
        time.sleep(0.2)
    left = sorted(wanted - set(slow.cut))
    assert not left, f"still there after {SLOW_AFTER:g} s: {left}; cut after: {slow.cut}"
    assert min(slow.cut.values()) > 3, f"too hasty: {slow.cut}"


def test_a_keep_alive_client_with_pauses_is_not_slow(cayd):
    with cayd.client() as client:
        for _ in range(3):
            assert client.get("/healthz").status == 200
            time.sleep(0.5)


def test_nothing_fell_over(cayd):
    """After all of it the daemon that was started first is the one that answers."""
    assert cayd.alive() and len([line for line in cayd.lines() if line["msg"] == "ready"]) == 1
    assert not [line for line in cayd.lines() if "anitizer" in line.get("text", "")]
    box = cayd.create()
    assert base64.b64decode(cayd.exec(box, "printf ok", encoding="base64")["stdout"]) == b"ok"
    cayd.remove(box)


# -- the audit log

@pytest.mark.attack("reserved-token-name", "engine", "a token that the audit log would take for the engine")
@pytest.mark.parametrize("name", ["operator", "engine", "unknown", "Engine"])
def test_reserved_token_names(daemons, name):
    """Neither made, nor read from the file."""
    daemon = daemons()

    def add(name):
        argv = [str(lib_daemon.PROGRAM), "token", "add", name, "--file", str(daemon.tokens_file)]
        return subprocess.run(argv, env=daemon.env, capture_output=True, text=True, timeout=30)

    done = add(name)
    assert done.returncode != 0 and "reserved" in done.stderr, done
    assert add("ordinary").returncode == 0  # the control
    daemon.stop()
    daemon.tokens_file.write_text(daemon.tokens_file.read_text().replace("ordinary", name))
    code, text = daemon.refused()
    assert code == 125 and "reserved" in text, text


def audit_size(daemon):
    return sum(p.stat().st_size for p in (daemon.state / "audit").glob("audit*.jsonl"))


@pytest.mark.attack("audit-flood", "exhaustion", "command lines for sandboxes that do not exist, in the audit log")
def test_command_lines_that_nobody_runs(daemons):
    """The log must not grow by what a client makes up: only what is tried on a sandbox is kept in full."""
    daemon = daemons()
    token = daemon.token("t", tenant="acme")
    box = daemon.create(token=token)
    body = {"argv": ["true", "x" * 4000], "env": {f"NAME{i:0200}": "" for i in range(16)}}
    for path, done in (("exec", 200), ("processes", 201)):
        before = audit_size(daemon)
        assert daemon.post(f"/sandboxes/{box}/{path}", body, token=token).status == done
        full = audit_size(daemon) - before  # the control
        assert full > 7000, full
        before = audit_size(daemon)
        for _ in range(20):
            answer = daemon.post(f"/sandboxes/nosuch/{path}", body, token=token)
            assert answer.status == 404 and answer.code == "not_found", answer
        assert audit_size(daemon) - before < 20 * 1000, "command lines were written down"
    refused = daemon.get("/audit?limit=1000").body["entries"][-1]
    assert (refused["action"], refused["sandbox"], refused["result"]) == ("start", "acme~nosuch", "not_found"), refused


@pytest.mark.attack("audit-grows", "exhaustion", "an audit log without an end")
def test_the_audit_log_has_an_end(daemons):
    daemon = daemons(audit_size="16K")
    box = daemon.create()
    body = {"argv": ["true", *["x" * 4000] * 30]}
    for _ in range(400):
        assert daemon.post(f"/sandboxes/{box}/exec", body).status == 200
    files = list((daemon.state / "audit").glob("audit-*.jsonl"))
    assert 60 < len(files) <= 66, len(files)
    assert daemon.cay.run("audit", "--verify").returncode == 0
