# SPDX-License-Identifier: Apache-2.0
"""A cayd of its own, and clients of it: HTTP over a unix or TCP socket, NDJSON, frames, WebSocket, raw bytes.

    with Daemon(tcp=True, pool=0) as d:
        box = d.create(memory="64M")                          # POST /sandboxes -> its id
        d.exec(box, shell="echo hi")["stdout"]                # POST .../exec
        d.get(f"/sandboxes/{box}").body["state"]              # paths are below /api/v1
        d.request("POST", "/sandboxes", json={"id": "a"}, token=t, tcp=True)   # Answer(status, headers, body)
        for event in d.stream(f"/sandboxes/{box}/logs?follow=true"): ...

Only the standard library. The directories are those of an Engine (lib/engine.py): d.cay is the command line over
the same sandboxes.
"""
import base64
import contextlib
import hashlib
import http.client
import itertools
import json as jsonlib
import os
import pathlib
import re
import signal
import socket
import ssl
import struct
import subprocess
import time
import typing

from lib.engine import BUILD, Engine
from lib.oracle import Oracle, cgroup_mounts, fd_count

PROGRAM = pathlib.Path(os.environ.get("CAY_TEST_CAYD", BUILD / "lib" / "cayd"))
API = "/api/v1"
AT_THE_ROOT = ("/healthz", "/readyz", "/metrics", "/version")
ALL_SCOPES = "read,create,exec,files,audit,metrics"
NDJSON, FRAMES, BYTES = "application/x-ndjson", "application/vnd.cay.frames", "application/octet-stream"
SECONDS = 30.0  # what any one answer may take, unless told otherwise

_serial = itertools.count(1)


class Answer(typing.NamedTuple):
    """body is parsed when it is JSON, and bytes otherwise; headers look up without regard to case."""

    status: int
    headers: typing.Any
    body: typing.Any

    @property
    def code(self):
        """The code of an error, such as "not_found"; None if it is none."""
        return self.body["error"]["code"] if isinstance(self.body, dict) and "error" in self.body else None

    @property
    def error(self):
        return self.body["error"]


def full_path(path):
    bare = path.partition("?")[0]
    return path if bare in AT_THE_ROOT or bare == API or path.startswith((API + "/", "/aio/")) else API + path


class _Connection(http.client.HTTPConnection):
    """An HTTP connection on whatever `dial` connects to."""

    def __init__(self, dial, timeout):
        super().__init__("localhost", timeout=timeout)
        self.dial = dial

    def connect(self):
        self.sock = self.dial(self.timeout)


class Verbs:
    """The methods of HTTP, for whatever has request(method, path, ...)."""

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, json=None, **options):
        return self.request("POST", path, json=json, **options)

    def put(self, path, body=b"", **options):
        return self.request("PUT", path, body=body, **options)

    def patch(self, path, json, **options):
        return self.request("PATCH", path, json=json, **options)

    def delete(self, path, **options):
        return self.request("DELETE", path, **options)


class Client(Verbs):
    """One connection, kept alive between requests. `dial(timeout)` gives a connected socket."""

    def __init__(self, dial, token=None, timeout=SECONDS):
        self.token, self.timeout = token, timeout
        self.connection = _Connection(dial, timeout)

    def send(self, method, path, json=None, body=None, headers=None, token=None, timeout=None):
        """Sends a request and returns http.client's response, body unread."""
        wanted = dict(headers or {})
        if json is not None:
            body = jsonlib.dumps(json).encode()
            wanted.setdefault("Content-Type", "application/json")
        token = token if token is not None else self.token
        if token is not None:
            wanted.setdefault("Authorization", f"Bearer {token}")
        if timeout is not None:
            self.connection.timeout = timeout
            if self.connection.sock:
                self.connection.sock.settimeout(timeout)
        with contextlib.suppress(BrokenPipeError):  # answered before all of the body was sent
            self.connection.request(method, full_path(path), body=body, headers=wanted)
        return self.connection.getresponse()

    def request(self, method, path, **options):
        response = self.send(method, path, **options)
        body = response.read()
        if response.headers.get_content_type() == "application/json" and body:
            body = jsonlib.loads(body)
        return Answer(response.status, response.headers, body)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Stream:
    """An answer that is read as it comes. Iterating gives NDJSON events; frames() the binary ones."""

    def __init__(self, client, response):
        self.client, self.response = client, response
        self.status, self.headers = response.status, response.headers

    def __iter__(self):
        return self

    def __next__(self):
        line = self.response.readline()
        if not line:
            raise StopIteration
        return jsonlib.loads(line)

    def read(self, size=None):
        return self.response.read(size)

    def some(self, size=65536):
        """What is there, at least one byte; empty at the end."""
        return self.response.read1(size)

    def frames(self):
        """(kind, offset, payload); payload is JSON from kind 3 on."""
        while True:
            head = self.response.read(16)
            if not head:
                return
            kind, zeros, length, offset = struct.unpack(">B3sIQ", head)
            assert zeros == bytes(3) and length <= 16 << 20, head
            payload = self.response.read(length)
            assert len(payload) == length
            yield kind, offset, jsonlib.loads(payload) if kind >= 3 else payload

    def close(self):
        self.response.close()
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def event_bytes(event):
    """The bytes of an "output" event, whichever way they came."""
    return base64.b64decode(event["data_base64"]) if "data_base64" in event else event["data"].encode()


class WebSocket:
    """A client of RFC 6455, as small as can be. upgrade=False: the handshake was refused; see .answer."""

    TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

    def __init__(self, sock, path, token=None, headers=None, host="localhost"):
        self.sock, self.rest = sock, b""
        self.key = base64.b64encode(os.urandom(16)).decode()
        wanted = {"Host": host, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": self.key,
                  "Sec-WebSocket-Version": "13"}
        if token:
            wanted["Authorization"] = f"Bearer {token}"
        wanted.update(headers or {})
        lines = [f"GET {full_path(path)} HTTP/1.1"] + [f"{k}: {v}" for k, v in wanted.items() if v is not None]
        sock.sendall("\r\n".join(lines + ["", ""]).encode())
        while b"\r\n\r\n" not in self.rest:
            data = sock.recv(65536)
            if not data:
                break
            self.rest += data
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        self.head = head.decode("latin-1")
        self.status = int(self.head.split()[1]) if self.head else 0
        self.upgraded = self.status == 101
        if self.upgraded:
            digest = hashlib.sha1((self.key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
            assert f"sec-websocket-accept: {base64.b64encode(digest).decode()}".lower() in self.head.lower()

    def _need(self, size):
        while len(self.rest) < size:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the WebSocket ended without a close frame")
            self.rest += data
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def receive(self):
        """(opcode, payload) of one whole message; pings are answered."""
        opcode, whole = None, b""
        while True:
            first, second = self._need(2)
            assert not second & 0x80, "a server does not mask"
            length = second & 0x7F
            if length == 126:
                length = struct.unpack(">H", self._need(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", self._need(8))[0]
            payload = self._need(length)
            kind = first & 0xF
            if kind == self.PING:
                self.send(payload, self.PONG)
                continue
            opcode = opcode if kind == 0 else kind
            whole += payload
            if first & 0x80:
                return opcode, whole

    def send(self, payload, opcode=BINARY, masked=True, final=True, reserved=0):
        size = len(payload)
        head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
        mark = 0x80 if masked else 0
        if size < 126:
            head += bytes([mark | size])
        elif size < 65536:
            head += bytes([mark | 126]) + struct.pack(">H", size)
        else:
            head += bytes([mark | 127]) + struct.pack(">Q", size)
        if masked:
            mask = os.urandom(4)
            wide = int.from_bytes(payload, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
            self.sock.sendall(head + mask + wide.to_bytes(size, "big"))
        else:
            self.sock.sendall(head + payload)

    def send_json(self, value):
        self.send(jsonlib.dumps(value).encode(), self.TEXT)

    def until_close(self):
        """(all bytes, all JSON messages, close code) up to the end."""
        data, messages = b"", []
        while True:
            opcode, payload = self.receive()
            if opcode == self.BINARY:
                data += payload
            elif opcode == self.TEXT:
                messages.append(jsonlib.loads(payload))
            else:
                assert opcode == self.CLOSE, opcode
                return data, messages, struct.unpack(">H", payload[:2])[0] if payload else None

    def expect(self, wanted):
        """Reads binary messages until `wanted` is in them; returns all of it."""
        data = b""
        while wanted not in data:
            opcode, payload = self.receive()
            assert opcode == self.BINARY, (opcode, payload, data)
            data += payload
        return data

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Daemon(Verbs):
    """cayd with a state and run directory, cgroup, config, tokens file and log of its own.

    engine   an Engine whose directories it serves (closed by whoever made it); otherwise one of its own
    tcp      True: also on 127.0.0.1 with a port of the kernel's choice; or an address of yours
    tls      True: with a certificate made on the spot (TCP becomes https)
    wrap     words before the program: ["prlimit", "--nofile=64"]
    options  lines of the config file: pool=0, drain="2s", hosts=["a", "b"], policy="text of the policy file"
    """

    def __init__(self, engine=None, tcp=False, tls=False, wrap=(), env=None, start=True, **options):
        self.own = engine is None
        self.cay = engine or Engine(prefix="cayd-")
        self.cay.env.setdefault("CAY_CGROUP", f"cayd{os.getpid()}-{next(_serial)}")
        self.cgroup = self.cay.env["CAY_CGROUP"]
        self.top, self.state, self.run_dir = self.cay.top, self.cay.state, self.cay.run_dir
        self.sock = self.top / "cayd.sock"
        self.config, self.log = self.top / "cayd.conf", self.top / "cayd.log"
        self.tokens_file, self.policy_file = self.top / "tokens", self.top / "policy"
        self.cert, self.key = self.top / "cert.pem", self.top / "key.pem"
        self.program = PROGRAM
        self.wrap, self.env = list(wrap), dict(self.cay.env, **(env or {}))
        self.tls, self.process, self.log_from, self.port = tls, None, 0, None
        self.options = {"listen": f"unix:{self.sock}", "pool": 0, "drain": "5s", "tokens": self.tokens_file,
                        **options}
        if not self.tokens_file.exists():
            self.tokens_file.touch(mode=0o600)
        if "policy" in self.options:
            self.write_policy(self.options["policy"])
            self.options["policy"] = self.policy_file
        if tcp:
            self.options["tcp"] = "127.0.0.1:0" if tcp is True else tcp
        if tls:
            self._certificate()
        if start:
            self.start()

    # -- life

    def write_policy(self, text):
        self.policy_file.write_text(text)
        self.policy_file.chmod(0o600)

    def write_config(self):
        lines = ["[cayd]"]
        for key, value in self.options.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if one is not None:
                    lines.append(f"{key} = {'yes' if one is True else 'no' if one is False else one}")
        self.config.write_text("\n".join(lines) + "\n")
        self.config.chmod(0o600)

    def _certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.key, "-out", self.cert],
                       check=True, capture_output=True)
        self.key.chmod(0o600)
        self.options.update(tls_cert=self.cert, tls_key=self.key)

    def share_image(self, other):
        """Takes over the host image as another daemon's engine prepared it: making it anew takes a second."""
        images = other.state / "images"
        if images.exists() and not self.state.exists():
            self.state.mkdir(mode=0o755)
            subprocess.run(["cp", "-al", images, self.state / "images"], check=True)

    def argv(self):
        return [*self.wrap, str(self.program), "--config", str(self.config)]

    def spawn(self):
        """Starts it without waiting."""
        self.write_config()
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv(), env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)
        return self

    def start(self, seconds=SECONDS):
        self.spawn()
        self.wait_log("ready", seconds)
        for line in self.lines():
            found = re.fullmatch(r"tcp:.*:(\d+)", line.get("address", "")) if line["msg"] == "listening" else None
            if found:
                self.port = int(found[1])
        return self

    def refused(self, seconds=SECONDS):
        """Starts it where it must not start: (exit code, what it said)."""
        self.spawn()
        return self.process.wait(seconds), self.log_text()

    def stop(self, seconds=SECONDS):
        """SIGTERM; the exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(seconds)
        self.process = None
        return code

    def kill9(self):
        self.process.kill()
        self.process.wait(SECONDS)
        self.process = None

    def restart(self, how="stop"):
        getattr(self, how)()
        return self.start()

    def signal(self, number):
        self.process.send_signal(number)

    def reload(self, seconds=SECONDS):
        """SIGHUP, and waits until it has read its files."""
        done = len([1 for line in self.lines() if line["msg"].startswith("reload")])
        self.signal(signal.SIGHUP)
        self._wait(lambda: len([1 for line in self.lines() if line["msg"].startswith("reload")]) > done, seconds,
                   "reload")

    def upgrade(self, seconds=SECONDS):
        """SIGUSR2, and waits until the next one serves."""
        served = len([1 for line in self.lines() if line["msg"] == "ready"])
        self.signal(signal.SIGUSR2)
        self._wait(lambda: len([1 for line in self.lines() if line["msg"] == "ready"]) > served, seconds, "ready")

    # -- what it says and uses

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def log_text(self):
        with open(self.log, errors="replace") as f:
            f.seek(self.log_from)
            return f.read()

    def lines(self):
        """The log since the last start; what is not JSON comes as {"msg": "", "text": line}."""
        found = []
        for line in self.log_text().splitlines():
            try:
                value = jsonlib.loads(line)
                found.append(value if isinstance(value, dict) and "msg" in value else {"msg": "", "text": line})
            except ValueError:
                found.append({"msg": "", "text": line})
        return found

    def _wait(self, what, seconds, name):
        deadline = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None:
                raise AssertionError(f"cayd ended with {self.process.returncode}:\n{self.log_text()[-3000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"cayd did not say {name!r} in {seconds:g} s:\n{self.log_text()[-3000:]}")
            time.sleep(0.005)

    def wait_log(self, msg, seconds=SECONDS):
        self._wait(lambda: any(line["msg"] == msg for line in self.lines()), seconds, msg)

    def rss(self, key="VmRSS"):
        """Bytes."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s*(\d+) kB", text, re.M)[1]) * 1024

    def fds(self):
        return fd_count(self.pid)

    # -- tokens

    def token(self, name, tenant=None, scopes=ALL_SCOPES, expires=None, load=True):
        """Adds a token and returns its text. load=False: without telling the running daemon."""
        argv = [str(PROGRAM), "token", "add", name, "--scopes", scopes, "--file", str(self.tokens_file)]
        argv += ["--tenant", tenant] if tenant else []
        argv += ["--expires", expires] if expires else []
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done
        token = done.stdout.strip()
        if load and self.alive():
            self.signal(signal.SIGHUP)
            self._wait(lambda: self.get("/sandboxes?limit=1", token=token).status != 401, 5.0, f"token {name}")
        return token

    # -- clients

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def dial(self, timeout=SECONDS, tcp=False):
        """A connected socket."""
        if not tcp:
            sock = socket.socket(socket.AF_UNIX)
            # Blocking, so that a full backlog is waited for.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(timeout)), 0))
            try:
                sock.connect(str(self.sock))
            except OSError:
                sock.close()
                raise
            sock.settimeout(timeout)
            return sock
        sock = socket.create_connection(("127.0.0.1", self.port), timeout)
        if self.tls:
            context = ssl.create_default_context(cafile=self.cert)
            sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
        return sock

    def client(self, token=None, tcp=False, timeout=SECONDS):
        """A connection that stays."""
        return Client(lambda seconds: self.dial(seconds, tcp), token, timeout)

    def request(self, method, path, tcp=False, token=None, timeout=SECONDS, **options):
        with self.client(token, tcp, timeout) as client:
            return client.request(method, path, **options)

    def stream(self, path, method="GET", tcp=False, token=None, timeout=SECONDS, accept=None, **options):
        """A Stream; check .status yourself if it may be refused."""
        client = self.client(token, tcp, timeout)
        if accept:
            options["headers"] = {**options.get("headers", {}), "Accept": accept}
        return Stream(client, client.send(method, path, **options))

    def websocket(self, path, tcp=False, token=None, timeout=SECONDS, headers=None, host="localhost"):
        return WebSocket(self.dial(timeout, tcp), path, token, headers, host)

    def raw(self, data, tcp=False, timeout=5.0, until_close=True):
        """Sends bytes as they are; what came back until the other side closed, or said nothing for `timeout`."""
        with self.dial(timeout, tcp) as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            got = b""
            with contextlib.suppress(socket.timeout, ConnectionResetError):
                while True:
                    more = sock.recv(65536)
                    if not more:
                        break
                    got += more
                    if not until_close and b"\r\n\r\n" in got:
                        break
            return got

    # -- what tests do all the time

    def create(self, tcp=False, token=None, **spec):
        answer = self.post("/sandboxes", spec, tcp=tcp, token=token)
        assert answer.status == 201, answer
        return answer.body["id"]

    def exec(self, box, shell=None, tcp=False, token=None, patience=SECONDS, status=200, **body):
        body = {"shell": shell, **body} if shell is not None else body
        answer = self.post(f"/sandboxes/{box}/exec", body, tcp=tcp, token=token, timeout=patience)
        assert answer.status == status, answer
        return answer.body

    def start_process(self, box, shell=None, tcp=False, token=None, **body):
        body = {"shell": shell, **body} if shell is not None else body
        answer = self.post(f"/sandboxes/{box}/processes", body, tcp=tcp, token=token)
        assert answer.status == 201, answer
        return answer.body["pid"]

    def wait_process(self, box, pid, seconds=SECONDS, **options):
        answer = self.post(f"/sandboxes/{box}/processes/{pid}/wait", {"timeout": seconds}, timeout=seconds + 5,
                           **options)
        assert answer.status == 200, answer
        return answer.body

    def output(self, box, pid, **options):
        """All bytes that a process has written so far."""
        with self.stream(f"/sandboxes/{box}/processes/{pid}/output", accept=BYTES, **options) as stream:
            assert stream.status == 200, stream.status
            return stream.read()

    def state_of(self, box, **options):
        answer = self.get(f"/sandboxes/{box}", **options)
        return answer.body["state"] if answer.status == 200 else answer.code

    def remove(self, *boxes):
        for box in boxes:
            self.delete(f"/sandboxes/{box}")

    # -- the end

    def leaks(self, seconds=5.0):
        """What is left on the host when it has stopped and all sandboxes are removed."""
        oracle = Oracle(self.state, self.run_dir, cgroup=self.cgroup)
        nothing = {kind: set() for kind in ("mount", "namespace", "cgroup", "process", "loop", "file", "socket")}
        sandboxes = str(self.state / "sandboxes") + "/"
        deadline = time.monotonic() + seconds
        while True:
            now = oracle.snapshot()
            now["file"] = {f for f in now["file"] if f.startswith(sandboxes)}
            left = [f"{kind}: {item}" for kind in nothing for item in sorted(now[kind])]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def close(self):
        """Stops it and removes all its sandboxes; the leaks, of which there should be none."""
        try:
            if self.alive():
                self.stop()
        except subprocess.TimeoutExpired:
            self.kill9()
            raise
        finally:
            self.cay.clean()
            left = self.leaks()
            for mount in cgroup_mounts():
                with contextlib.suppress(OSError):
                    os.rmdir(pathlib.Path(mount) / self.cgroup)
            if self.own:
                self.cay.close()
        return left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        left = self.close()
        assert left == [] or _[0] is not None, left
