# SPDX-License-Identifier: Apache-2.0
"""Errors, hosts and tokens: which exception for which answer, and who is asked."""
import contextlib
import http.server
import os
import pathlib
import pickle
import re
import socketserver
import ssl
import threading

import httpx
import pytest

import cay as sdk
from cay import _errors
from cay._host import find_host

ROOT = pathlib.Path(__file__).resolve().parents[3]


# -- the table

def table():
    """(code, status, meaning) of CAY_ERROR_TABLE."""
    text = (ROOT / "include/cay/cay.h").read_text()
    return re.findall(r'^    X\([A-Z_]+, "(\w+)", (\d+), "([^"]+)"\)', text, re.M)


def test_one_class_for_each_code():
    """The classes are those of CAY_ERROR_TABLE in include/cay/cay.h: name, code, HTTP status."""
    names = {"lost": "OutputLost", "version": "VersionMismatch"}
    wanted = {(code, int(status)): names.get(code, "".join(word.title() for word in code.split("_")))
              for code, status, _ in table()}
    assert len(wanted) == 16
    assert {(error.code, error.status): error.__name__ for error in _errors.ERRORS} == wanted
    assert all(issubclass(error, sdk.CayError) and getattr(sdk, error.__name__) is error for error in _errors.ERRORS)


def test_timeout_is_pythons_timeout_too():
    assert issubclass(sdk.Timeout, TimeoutError)


@pytest.mark.parametrize("code, status", [(code, int(status)) for code, status, _ in table()])
def test_an_error_of_the_daemon(code, status):
    """The code alone decides; message and detail are the daemon's."""
    text = b'{"error": {"code": "%s", "message": "why", "detail": {"field": "x"}}}' % code.encode()
    error = _errors.from_answer(status, text)
    assert (error.code, error.status, error.message, error.detail) == (code, status, "why", {"field": "x"})
    assert str(error) == "why"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.detail) == (type(error), "why", {"field": "x"})


@pytest.mark.parametrize("status, kind", [(401, sdk.Unauthorized), (404, sdk.NotFound), (405, sdk.Invalid),
                                          (414, sdk.TooLarge), (431, sdk.TooLarge), (418, sdk.Invalid),
                                          (500, sdk.Internal), (502, sdk.Unavailable), (503, sdk.Unavailable),
                                          (504, sdk.Unavailable), (599, sdk.Internal)])
@pytest.mark.parametrize("text", [b"", b"<html>a proxy</html>", b'{"error": "text"}', b"[]", b"\xff"])
def test_an_answer_that_is_no_error_of_cay(status, kind, text):
    """The status decides."""
    assert type(_errors.from_answer(status, text)) is kind


def test_a_code_of_a_later_version():
    """An unknown code becomes the class of its status."""
    error = _errors.from_answer(409, b'{"error": {"code": "new", "message": "why"}}')
    assert type(error) is sdk.Conflict and error.message == "why"


def test_errors_as_users_meet_them(twin, client, sandbox):
    """Invalid with the field at fault, NotFound of sandboxes, processes and files, Unsupported, Conflict."""
    with pytest.raises(sdk.Invalid) as caught:
        twin(client.create(memory="lots"))
    assert caught.value.detail["field"] == "memory" and "lots" in caught.value.message
    for absent in (lambda: client.get("no-such"), lambda: sandbox.process(999).info(),
                   lambda: sandbox.files.read("/no/such"), lambda: client.attach("no-such").exec("true")):
        with pytest.raises(sdk.NotFound):
            twin(absent())
    with pytest.raises(sdk.Conflict):
        twin(client.create(id=sandbox.id, memory="77M"))
    with pytest.raises(sdk.TooLarge):
        twin(sandbox.exec("yes", max_output=1 << 20))


def test_an_id_that_would_leave_its_path(client):
    """No id becomes another path of the API."""
    for id in ("", ".", ".."):
        with pytest.raises(sdk.Invalid):
            client.attach(id)


def test_strange_ids_are_sent_as_they_are(twin, client):
    """Slashes and question marks are part of the name, which the daemon refuses."""
    for id in ("a/../b", "a?b=c", "a#b", "a b", "é", "a%2Fb", "../x"):
        with pytest.raises((sdk.Invalid, sdk.NotFound)):
            twin(client.get(id))


# -- who is asked

def test_nobody_listens(twin, tmp_path):
    """Unavailable at once, with the host in the message and httpx's error as the cause."""
    client = twin.new(f"unix:{tmp_path}/none.sock")
    with pytest.raises(sdk.Unavailable, match="none.sock") as caught:
        twin(client.version())
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    twin.close(client)


@pytest.fixture(scope="module")
def token(cayd):
    return cayd.token("sdk", scopes="read,create,exec,files")


@pytest.fixture(scope="module")
def reader(cayd):
    return cayd.token("reader", scopes="read")


def test_tcp_with_a_token(twin, cayd, token, monkeypatch):
    """Over TCP, with a proxy in the environment that must not be asked: the host is this very machine."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with twin.within(twin.new(cayd.url, token=token)) as client, twin.within(client.sandbox()) as sandbox:
        assert twin(sandbox.exec("echo hi")).stdout == "hi\n"


def test_a_unix_socket_with_a_proxy_in_the_environment(twin, host, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with twin.within(twin.new(host)) as client:
        assert twin(client.version())["api"] == "v1"


@pytest.mark.parametrize("wrong", ["cay_wrong", None])
def test_a_wrong_token_and_none(twin, cayd, wrong):
    """Unauthorized; /version needs none."""
    with twin.within(twin.new(cayd.url, token=wrong)) as client:
        assert twin(client.version())["api"] == "v1"
        with pytest.raises(sdk.Unauthorized):
            twin(client.list())


def test_a_token_without_the_right(twin, cayd, reader):
    """Denied: the token lacks the scope."""
    with twin.within(twin.new(cayd.url, token=reader)) as client:
        assert twin(client.list()) is not None
        with pytest.raises(sdk.Denied):
            twin(client.create())


def test_host_and_token_of_the_environment(twin, cayd, token, monkeypatch, tmp_path):
    """$CAY_HOST and $CAY_TOKEN, or $CAY_TOKEN_FILE."""
    monkeypatch.setenv("CAY_HOST", cayd.url)
    monkeypatch.setenv("CAY_TOKEN", token)
    with twin.within(twin.new()) as client:
        assert twin(client.capabilities())["version"]
    monkeypatch.delenv("CAY_TOKEN")
    (tmp_path / "token").write_text(token + "\n")
    monkeypatch.setenv("CAY_TOKEN_FILE", str(tmp_path / "token"))
    with twin.within(twin.new()) as client:
        assert twin(client.capabilities())["version"]


def test_https(twin, daemons, monkeypatch):
    """A daemon with TLS; its certificate must be known ($CAY_CACERT)."""
    daemon = daemons(tcp=True, tls=True)
    token = daemon.token("sdk")
    with twin.within(twin.new(daemon.url, token=token)) as client, pytest.raises(sdk.Unavailable) as caught:
        twin(client.version())
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    monkeypatch.setenv("CAY_CACERT", str(daemon.cert))
    with twin.within(twin.new(daemon.url, token=token)) as client:
        assert twin(client.list()) == []
    monkeypatch.setenv("CAY_CACERT", str(daemon.top / "none"))
    with pytest.raises(sdk.Invalid, match="CAY_CACERT"):
        twin.new(daemon.url, token=token)


def test_hosts(monkeypatch):
    """unix:/path, http and https, which goes by the environment's proxy if there is one; anything else is Invalid."""
    monkeypatch.delenv("CAY_HOST", raising=False)
    monkeypatch.delenv("CAY_TOKEN", raising=False)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    default = find_host(None, None)
    assert (default.shown, default.socket, default.proxies) == ("unix:/run/cay/cayd.sock", "/run/cay/cayd.sock", False)
    for text, url in (("http://localhost", "http://localhost:7733"), ("http://[::1]:80/", "http://[::1]:80"),
                      ("http://10.0.0.1:8080", "http://10.0.0.1:8080")):
        found = find_host(text, None)
        assert (found.url, found.socket, found.proxies) == (url + "/api/v1", None, False)
    assert not find_host("https://cay.example", "t").proxies
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    https = find_host("https://cay.example", "t")
    assert https.url == "https://cay.example:7733/api/v1" and https.proxies and isinstance(https.tls, ssl.SSLContext)
    assert not find_host("https://localhost", "t").proxies
    for bad in ("unix:relative", "ftp://x", "localhost:80", "http://", "http://h/path", "http://u:p@h", "http://h:x",
                "http://h?q"):
        with pytest.raises(sdk.Invalid):
            find_host(bad, None)


def test_a_token_in_clear(monkeypatch):
    """Never to another machine without TLS, unless CAY_INSECURE=1."""
    with pytest.raises(sdk.Denied):
        find_host("http://cay.example", "t")
    monkeypatch.setenv("CAY_INSECURE", "1")
    assert find_host("http://cay.example", "t").headers["authorization"] == "Bearer t"
    for bad in ("a b", "a\nb", "é"):
        with pytest.raises(sdk.Invalid):
            find_host(None, bad)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Answers of `answers`, by the end of the path: (status, body)."""

    answers: dict = {}

    def do_GET(self):
        status, body = self.answers[self.path.rpartition("/")[2]]
        self.send_response(status)
        self.send_header("Location", "http://elsewhere.example/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def stranger(answers, path=None):
    """A server that is no cayd, on TCP or on a unix socket; its host."""
    handler = type("Handler", (Stranger,), {"answers": answers})
    if path is None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        host = f"http://127.0.0.1:{server.server_port}"
    else:
        server, host = socketserver.ThreadingUnixStreamServer(str(path), handler), f"unix:{path}"
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield host
        server.shutdown()


def test_somebody_else_answers(twin):
    """An HTTP server that is no cayd: an error of cay, whatever it says; no redirect is followed."""
    answers = {"version": (200, b"hello"), "capabilities": (302, b"hello")}
    with stranger(answers) as host, twin.within(twin.new(host)) as client:
        for call in (client.version, client.capabilities):
            with pytest.raises(sdk.Internal):
                twin(call())


def test_where_the_aio_protocol_is_spoken(twin, tmp_path):
    """At the address by which the client reached the daemon; on a unix socket, at that which the daemon names."""
    told = {"aio": (200, b'{"path": "/aio/key", "url": "http://127.0.0.1:7733/aio/key"}')}
    with stranger(told) as host, twin.within(twin.new(host)) as client:
        assert twin(client.attach("box").aio_url()) == f"{host}/aio/key"
    with stranger(told, tmp_path / "told") as host, twin.within(twin.new(host)) as client:
        assert twin(client.attach("box").aio_url()) == "http://127.0.0.1:7733/aio/key"
    none = {"aio": (200, b'{"path": "/aio/key", "url": null}')}
    with stranger(none, tmp_path / "none") as host, twin.within(twin.new(host)) as client:
        with pytest.raises(sdk.Unsupported, match="cayd.conf"):
            twin(client.attach("box").aio_url())
