# SPDX-License-Identifier: Apache-2.0
"""The part of bench/run that measures cayd: requests by bench/http.c over its unix socket.

Every time is taken beside its yardstick in the same run: the bare C limit for a first command, fork+exec for
a further one, and a static answer of nginx for small requests. docs/BENCHMARKS.md says what each row means.
"""
import contextlib
import os
import re
import shutil
import socket
import subprocess
import time

from measure import BenchError

API = "/api/v1"
SANDBOXES = API + "/sandboxes"
TRUE = '{"argv":["/bin/true"]}'
SECONDS = 30.0
RSS_LIMIT_MIB = 20.0
SLOW_OUTPUT = 1 << 20  # bytes that each slow reader could have


def wait_for(what, name, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise BenchError(f"{name}: not after {seconds:g} s")
        time.sleep(0.01)


class Cayd:
    """A daemon on the directories of a Place, with a given pool; gone at the end of the `with`."""

    def __init__(self, place, pool=8):
        self.place, self.pool = place, pool
        self.sock = os.path.join(place.run, "cayd.sock")
        self.config, self.log = place.path("cayd.conf"), place.path("cayd.log")
        self.process = None

    @staticmethod
    def program(place):
        return os.path.join(place.build, "lib", "cayd")

    def __enter__(self):
        with open(self.config, "w") as f:
            f.write(f"[cayd]\nlisten = unix:{self.sock}\npool = {self.pool}\ntokens = {self.place.path('tokens')}\n"
                    f"policy = {self.place.path('policy')}\n")
        os.chmod(self.config, 0o600)
        for name in ("tokens", "policy"):
            with open(self.place.path(name), "w") as f:
                os.fchmod(f.fileno(), 0o600)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program(self.place), "--config", self.config], env=self.place.env,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._serves, "cayd does not listen")
        return self

    def _serves(self):
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as f:
                raise BenchError(f"cayd ended with {self.process.returncode}: {f.read()[-500:]}")
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.sock)
            return True
        return False

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.place.remove_all()

    def http(self, *argv, **options):
        return http(self.place, self.sock, *argv, **options)

    def get(self, path):
        """The text of an answer."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.sock)
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            with sock.makefile("rb") as f:
                return f.read().decode(errors="replace")

    def metric(self, name):
        found = re.search(rf"^{name} (\d+)", self.get("/metrics"), re.M)
        if not found:
            raise BenchError(f"no metric {name}")
        return int(found[1])

    def fill(self, count):
        wait_for(lambda: self.metric("cay_pool_ready") >= count, f"a pool of {count}")

    def rss_mib(self, key="VmRSS"):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(rf"^{key}:\s*(\d+) kB", f.read(), re.M)[1]) / 1024


def http(place, sock, *requests, command=(), **options):
    """Runs bench/http.c: {label: Series}."""
    argv = [place.path("http")]
    for name, value in options.items():
        argv += ["--" + name.replace("_", "-"), str(value)]
    return place.program(argv + [sock, *requests] + (["--", *command] if command else []))


class Nginx:
    """One worker of nginx that answers everything with the same bytes; none of it is written to disk."""

    def __init__(self, place, body):
        self.place, self.body = place, body
        self.sock = os.path.join(place.run, "nginx.sock")
        self.process = None

    @staticmethod
    def program():
        return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")

    def __enter__(self):
        config, answer = self.place.path("nginx.conf"), self.body.replace("\\", "\\\\").replace("'", "\\'")
        scratch = "".join(f"{kind}_temp_path {self.place.dir}/nginx;" for kind in
                          ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(config, "w") as f:
            f.write(f"daemon off; user root; worker_processes 1; pid {self.place.path('nginx.pid')};\n"
                    f"error_log {self.place.path('nginx.log')};\nevents {{ worker_connections 4096; }}\n"
                    f"http {{ access_log off; keepalive_requests 1000000000; {scratch}\n"
                    f"server {{ listen unix:{self.sock}; default_type application/json;\n"
                    f"location / {{ return 200 '{answer}'; }} }} }}\n")
        self.process = subprocess.Popen([self.program(), "-e", self.place.path("nginx.log"), "-c", config],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(self.sock) or self.process.poll() is not None, "nginx does not listen")
        if self.process.poll() is not None:
            raise BenchError(f"nginx ended with {self.process.returncode}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def http(self, *argv, **options):
        return http(self.place, self.sock, *argv, **options)


def ratio(a, b):
    return a / b if a and b else None


def total(found, label):
    """How often bench/http.c counted something."""
    return sum(int(s.samples[0]) for name, s in found.items() if name == label or name.startswith(label + " "))


def must_be_whole(found, what, refusals=False):
    """Every answer came, and was a success or (with `refusals`) an error of the API's."""
    bad = total(found, "closed") + total(found, "broken") + (0 if refusals else total(found, "refused"))
    if bad:
        counts = {name: int(s.samples[0]) for name, s in found.items()
                  if name.split()[0] in ("closed", "broken", "refused", "status")}
        raise BenchError(f"{what}: {counts}")


def create_body(place, image):
    return '{"image":"dir:%s"}' % place.rootfs if image == "rootfs" else "{}"


# ---- create and the first command -----------------------------------------------------------------------

def bench_first(place, report, rounds):
    print(f"cayd: create and first exec, {rounds} rounds", flush=True)
    limit = [place.path("limit"), place.rootfs, place.mnt, "/bin/true"]
    rows = []
    for pool in (8, 0):
        for image in ("rootfs", "host image"):
            with Cayd(place, pool) as cayd:
                rows += first_rows(cayd, image, limit, rounds if pool else max(5, rounds // 3), report)
    report.rows("first", rows)


def first_rows(cayd, image, limit, rounds, report):
    """The pool learns what is wanted from the warm-up; what it could not serve is told, not timed."""
    found = cayd.http(f"POST {SANDBOXES} {create_body(cayd.place, image)}", f"POST {SANDBOXES}/{{id}}/exec {TRUE}",
                      f"DELETE {SANDBOXES}/{{id}}", command=limit, rounds=rounds, warmup=10, timed=2, pause=10,
                      pool=cayd.pool)
    must_be_whole(found, "create and exec")
    whole, yardstick = found["turn"], found["command"]
    how = "from the pool" if cayd.pool else "cold"
    rows = []
    for label, series in ((f"bare C limit, beside {how}, {image}", yardstick),
                          (f"create + exec, {how}, {image}", whole),
                          (f"... create, {how}, {image}", found["request 1"]),
                          (f"... exec, {how}, {image}", found["request 2"])):
        rows.append({**series.record(), "label": label, "x_limit": ratio(series.p50, yardstick.p50),
                     "hits": len(whole.samples) / rounds if cayd.pool and series is whole else None})
    if cayd.pool:
        report.budget(f"cayd: create + first exec from the pool, {image}, against the bare C limit", 1.2,
                      ratio(whole.p50, yardstick.p50))
    return rows


# ---- many creates ---------------------------------------------------------------------------------------

def one_create(cayd, body, rounds):
    found = cayd.http(f"POST {SANDBOXES} {body}", f"DELETE {SANDBOXES}/{{id}}", rounds=rounds, warmup=5, timed=1,
                      pause=40, pool=cayd.pool)
    must_be_whole(found, "one create")
    return found["turn"].p50


def burst_of(cayd, body, count):
    """Time until the last of them is there, and how many came from the pool."""
    hits = cayd.metric("cay_pool_hits_total")
    found = cayd.http(f"POST {SANDBOXES} {body}", clients=count, rounds=count, at_once=1)
    must_be_whole(found, f"{count} creates")
    hits = cayd.metric("cay_pool_hits_total") - hits
    cayd.place.remove_all()
    return found["turn"].samples[-1] / 1000, hits


def bench_burst(place, report, burst, rounds):
    print(f"cayd: {burst} creates at once", flush=True)
    body, rows = create_body(place, "rootfs"), []
    for pool in (burst, 8, 0):
        with Cayd(place, pool) as cayd:
            cayd.fill(pool)
            single = one_create(cayd, body, max(5, rounds // 10))
            times = []
            for _ in range(3):
                cayd.fill(pool)
                time.sleep(0.3 + pool * 0.05)  # until those that are ready are of this kind
                times.append(burst_of(cayd, body, burst))
            last, hits = sorted(times)[1]
            rows += [{"label": f"one create, pool {pool}", "us": single},
                     {"label": f"last of {burst}, pool {pool}", "us": last, "x_single": last / single, "hits": hits}]
    report.rows("cayd_burst", rows)
    # As for the command line: in proportion to what is stated for 100.
    budget = 60.0 * burst / 100
    report.budget(f"cayd: {burst} creates at once from a pool of {burst}, the last against one alone", budget,
                  rows[1]["x_single"])
    report.budget(f"cayd: {burst} creates at once, pool 8, the last against one from nothing", budget,
                  rows[3]["us"] / rows[4]["us"])


def bench_flood(place, report, creates, clients):
    print(f"cayd: {creates} creates by {clients} clients", flush=True)
    create, rows = f"POST {SANDBOXES} {create_body(place, 'rootfs')}", []
    run, remove = f"POST {SANDBOXES}/{{id}}/exec {TRUE}", f"DELETE {SANDBOXES}/{{id}}"
    with Cayd(place) as cayd:
        for label, requests in (("create, remove", [create, remove]), ("create, exec, remove", [create, run, remove])):
            hits = cayd.metric("cay_pool_hits_total")
            found = cayd.http(*requests, clients=clients, rounds=creates)
            must_be_whole(found, label, refusals=True)
            rows.append({"label": f"{label}, {clients} clients", "n": creates, "made": total(found, "status 201"),
                         "refused": total(found, "refused"), "hits": cayd.metric("cay_pool_hits_total") - hits,
                         "p50_us": found["turn"].p50, "p99_us": found["turn"].p99,
                         "per_second": creates / (found["took"].samples[0] / 1e9)})
    report.rows("flood", rows)


# ---- small requests -------------------------------------------------------------------------------------

def bench_requests(place, report, requests, slices=5):
    print(f"cayd: small requests, {requests} in each of {slices} slices", flush=True)
    with contextlib.ExitStack() as stack:
        cayd = stack.enter_context(Cayd(place, 0))
        cayd.http(f'POST {SANDBOXES} {{"id":"one","image":"dir:{place.rootfs}"}}', rounds=1)
        answer = cayd.get(f"{SANDBOXES}/one").partition("\r\n\r\n")[2]
        servers = {"get": (cayd, f"GET {SANDBOXES}/one", 1),
                   "fs/stat": (cayd, f"GET {SANDBOXES}/one/fs/stat?path=/bin/true", 4),
                   "version": (cayd, f"GET {API}/version", 1),
                   "exec": (cayd, f"POST {SANDBOXES}/one/exec {TRUE}", 20)}
        if Nginx.program():
            nginx = stack.enter_context(Nginx(place, answer.strip()))
            servers = {"nginx, the same bytes": (nginx, "GET /", 1), **servers}
        else:
            report.note("nginx is not installed")
        rows = []
        for clients in (1, 16):
            rates, p50 = {label: [] for label in servers}, {}
            for _ in range(slices):
                for label, (server, request, share) in servers.items():
                    count = max(clients, requests // share)
                    found = server.http(request, clients=clients, rounds=count, warmup=count // 10)
                    must_be_whole(found, label)
                    rates[label].append(1e9 * (count + count // 10) / found["took"].samples[0])
                    p50.setdefault(label, []).append(found["turn"].p50)
            middle = {label: sorted(r)[len(r) // 2] for label, r in rates.items()}
            peer = middle.get("nginx, the same bytes")
            rows += [{"label": label, "clients": clients, "per_second": middle[label],
                      "p50_us": sorted(p50[label])[slices // 2], "x_nginx": ratio(middle[label], peer)}
                     for label in servers]
    report.rows("requests", rows)


def bench_exec(place, report, rounds):
    print(f"cayd: exec in a live sandbox, {rounds} rounds", flush=True)
    with Cayd(place, 0) as cayd:
        cayd.http(f'POST {SANDBOXES} {{"id":"one","image":"dir:{place.rootfs}"}}', rounds=1)
        found = cayd.http(f"POST {SANDBOXES}/one/exec {TRUE}", command=["/bin/true"], rounds=rounds, warmup=10)
    must_be_whole(found, "exec")
    x = ratio(found["turn"].p50, found["command"].p50)
    report.rows("live", [{**found["command"].record(), "label": "fork+exec, by the client", "x_fork": 1.0},
                         {**found["turn"].record(), "label": "exec, cayd", "x_fork": x}])
    report.budget("cayd: exec in a live sandbox, against fork+exec", 2.0, x)


# ---- memory ---------------------------------------------------------------------------------------------

def slow_readers(cayd, count, seconds):
    """RSS while many clients take a byte each second of an output that has far more for them."""
    script = f"head -c {SLOW_OUTPUT} /dev/zero; exec sleep 3600"
    cayd.http(f'POST {SANDBOXES} {{"id":"loud"}}',
              f'POST {SANDBOXES}/loud/processes {{"argv":["/bin/sh","-c","{script}"]}}', rounds=1)
    processes = cayd.get(f"{SANDBOXES}/loud/processes")
    pid = int(re.search(r'"pid":(\d+)', processes)[1])
    readers, most = [], 0.0
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(cayd.sock)
            sock.sendall(f"GET {SANDBOXES}/loud/processes/{pid}/output?follow=true HTTP/1.1\r\nHost: localhost\r\n"
                         "Accept: application/octet-stream\r\n\r\n".encode())
            readers.append(sock)
        for _ in range(seconds):
            started = time.monotonic()
            got = sum(len(sock.recv(1)) for sock in readers)
            if got != count:
                raise BenchError(f"{count - got} of {count} streams ended")
            most = max(most, cayd.rss_mib())
            time.sleep(max(0.0, 1.0 - (time.monotonic() - started)))
    return most


def bench_memory(place, report, scale, seconds):
    print(f"cayd: memory with {scale} sandboxes, and with {scale} slow readers", flush=True)
    with Cayd(place) as cayd:
        cayd.fill(8)
        rows = [{"label": "no sandbox", "rss_mib": cayd.rss_mib(), "peak_mib": cayd.rss_mib("VmHWM")}]
        found = cayd.http(f"POST {SANDBOXES} {create_body(place, 'rootfs')}", clients=4, rounds=scale)
        must_be_whole(found, f"{scale} creates")
        if cayd.metric("cay_sandboxes") < scale:
            raise BenchError(f"{cayd.metric('cay_sandboxes')} of {scale} sandboxes live")
        cayd.fill(8)
        rows.append({"label": f"{scale} sandboxes", "rss_mib": cayd.rss_mib(), "peak_mib": cayd.rss_mib("VmHWM")})
        cayd.get(f"{SANDBOXES}?limit=1000")
        rows.append({"label": "... after a list of all", "rss_mib": cayd.rss_mib(), "peak_mib": cayd.rss_mib("VmHWM")})
        report.budget(f"cayd: RSS with {scale} sandboxes", RSS_LIMIT_MIB, rows[-1]["rss_mib"], unit="MiB")
    with Cayd(place, 0) as cayd:
        most = slow_readers(cayd, scale, seconds)
        rows.append({"label": f"{scale} slow readers", "rss_mib": most, "peak_mib": cayd.rss_mib("VmHWM")})
    report.rows("cayd_memory", rows)


def steps(place, report, args):
    """What bench/run runs, each by itself."""
    quick = args.quick
    return [lambda: bench_first(place, report, args.rounds),
            lambda: bench_exec(place, report, args.rounds),
            lambda: bench_burst(place, report, args.burst, args.rounds),
            lambda: bench_flood(place, report, 2 * args.scale, min(64, args.scale)),
            lambda: bench_requests(place, report, 500 if quick else 10000, 3 if quick else 5),
            lambda: bench_memory(place, report, args.scale, 2 if quick else 10)]
