# SPDX-License-Identifier: Apache-2.0
"""cayd when something goes wrong: killed, upgraded, with clocks
that jump, with clients that die or hardly read. No sandbox is lost, no byte twice or missing, nothing kept."""
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from integration.support import alive, end, until
from integration.test_api import refused
from lib import daemon as lib_daemon
from lib.daemon import BYTES, FRAMES, Daemon

COUNTER = "i=0; while :; do echo $i; i=$((i+1)); [ $((i % 20)) = 0 ] && sleep 0.01; done"


def check_numbers(data, start=0):
    """The numbers of COUNTER from `start`, without gap or double; the last line may be cut. What comes next."""
    lines = data.split(b"\n")[:-1]
    assert lines == [b"%d" % n for n in range(start, start + len(lines))]
    return start + len(lines)


def url(box, pid, what=""):
    return f"/sandboxes/{box}/processes/{pid}{what}"


# -- killed, ended, upgraded

def test_killed_while_a_client_streams(daemons):
    daemon = daemons()
    box = daemon.create(id="a", labels={"k": "v"}, ttl="10m")
    pid = daemon.start_process(box, COUNTER)
    before = daemon.get("/sandboxes/a").body
    data = b""
    with daemon.stream(url(box, pid, "/output?follow=true"), accept=BYTES) as stream:
        while len(data) < 4_000:
            data += stream.some()
        daemon.kill9()
        with contextlib.suppress(Exception):
            while more := stream.some():
                data += more
    daemon.start()
    after = daemon.get("/sandboxes/a").body
    for key in ("id", "state", "created_ms", "keeper_pid", "init_pid", "labels"):
        assert after[key] == before[key]
    with daemon.stream(url(box, pid, f"/output?follow=true&from={len(data)}"), accept=BYTES) as stream:
        until_size = len(data) + 4_000
        while len(data) < until_size:
            data += stream.some()
    assert check_numbers(data) > 1000
    assert daemon.exec(box, "echo up")["stdout"] == "up\n"


def test_ended_and_started_anew_while_sandboxes_run(daemons):
    daemon = daemons(pool=1)
    boxes = [daemon.create() for _ in range(5)]
    assert daemon.post(f"/sandboxes/{boxes[0]}/pause").status == 204
    pids = [daemon.get(f"/sandboxes/{b}").body["init_pid"] for b in boxes]
    assert daemon.stop() == 0
    assert all(map(alive, pids)), "sandboxes outlive the daemon"
    daemon.start()
    assert [daemon.get(f"/sandboxes/{b}").body["init_pid"] for b in boxes] == pids
    assert daemon.state_of(boxes[0]) == "paused"


def test_what_ended_while_no_daemon_ran(daemons):
    daemon = daemons()
    brief, killed, stays = daemon.create(ttl=0.5), daemon.create(), daemon.create()
    last = [e["seq"] for e in daemon.stream("/events")][-1]
    keeper = daemon.get(f"/sandboxes/{killed}").body["keeper_pid"]
    daemon.kill9()
    os.kill(keeper, signal.SIGKILL)
    time.sleep(0.7)
    daemon.start()
    until(lambda: daemon.state_of(brief) == "ttl" and daemon.state_of(killed) == "lost", 5)
    assert daemon.state_of(stays) == "running"
    def ended():
        found = {e["sandbox"]: e["state"] for e in daemon.stream(f"/events?from={last + 1}") if e["type"] == "ended"}
        return found if len(found) == 2 else None
    assert until(ended, 5) == {brief: "ttl", killed: "lost"}, "the journal catches up"


def test_two_daemons_on_one_state_directory(daemons):
    first = daemons()
    box = first.create()
    second = Daemon(engine=first.cay, start=False)
    second.config, second.log = first.top / "second.conf", first.top / "second.log"
    second.options["listen"] = f"unix:{first.top}/second.sock"
    code, text = second.refused(10)
    assert code == 125 and len(text.strip().splitlines()) == 1 and str(first.state) in text, text
    assert first.exec(box, "echo served")["stdout"] == "served\n"
    first.kill9()
    second.start()
    assert second.sock.exists() or (first.top / "second.sock").exists()
    second.sock = first.top / "second.sock"
    assert second.exec(box, "echo served")["stdout"] == "served\n"
    assert second.stop() == 0
    first.start()


def second_of(first, **paths):
    """Another daemon on the engine of `first`, but for `paths`."""
    second = Daemon(engine=first.cay, start=False)
    second.config, second.log = first.top / "second.conf", first.top / "second.log"
    second.sock = first.top / "second.sock"
    second.options["listen"] = f"unix:{second.sock}"
    second.env = {**second.env, **{name: str(path) for name, path in paths.items()}}
    return second


def test_two_daemons_on_one_run_directory(daemons):
    """With state directories of their own, or with one that was removed and made again."""
    first = daemons()
    box = first.create()
    second = second_of(first, CAY_STATE_DIR=first.top / "other")
    code, text = second.refused(10)
    assert code == 125 and len(text.strip().splitlines()) == 1 and f"{first.run_dir};" in text and "--run-dir" in text
    assert first.sock.exists() and first.exec(box, "echo served")["stdout"] == "served\n"
    first.restart("kill9")
    first.upgrade()
    assert second.refused(10)[0] == 125, "the lock outlives an upgrade"


def test_two_daemons_on_one_socket(daemons):
    first = daemons()
    box = first.create()
    second = second_of(first, CAY_STATE_DIR=first.top / "other", CAY_RUN_DIR=first.top / "run2")
    second.sock, second.options["listen"] = first.sock, first.options["listen"]
    code, text = second.refused(10)
    assert code == 125 and f"another program listens on {first.sock}; stop it" in text, text
    assert first.exec(box, "echo served")["stdout"] == "served\n"


def test_a_daemon_removes_no_socket_but_its_own(daemons):
    first = daemons()
    first.sock.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(first.sock))
        other.listen()
        assert first.stop() == 0
        assert first.sock.exists()
    first.start()
    assert first.get("/version").status == 200, "one that nobody listens on is replaced"
    assert first.stop() == 0 and not first.sock.exists()


def test_upgrade_in_place_refuses_nobody(daemons):
    daemon = daemons(tcp=True, drain="5s")
    box = daemon.create()
    pid, port = daemon.pid, daemon.port
    failed, served, stop = [], [0], threading.Event()

    def knock(tcp):
        while not stop.is_set():
            try:
                answer = daemon.get("/version", tcp=tcp)
                assert answer.status == 200
                served[0] += 1
            except Exception as error:  # told below
                failed.append((time.monotonic(), tcp, repr(error)))
            time.sleep(0.001)

    threads = [threading.Thread(target=knock, args=(tcp,)) for tcp in (False, True)]
    for thread in threads:
        thread.start()
    try:
        result = {}
        exec_thread = threading.Thread(target=lambda: result.update(daemon.exec(box, "sleep 0.7; echo whole")))
        exec_thread.start()
        time.sleep(0.2)
        for _ in range(3):
            daemon.upgrade()
            time.sleep(0.1)
        exec_thread.join(20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == [] and served[0] > 20
    assert result.get("stdout") == "whole\n", "what ran when it was upgraded came to its end"
    assert daemon.pid == pid and daemon.alive() and daemon.port == port
    assert daemon.exec(box, "echo up")["stdout"] == "up\n"
    assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2], ids=["hup", "usr2"])
def test_signals_that_come_during_an_upgrade(daemons, number):
    """They wait for the new daemon."""
    daemon = daemons()
    box = daemon.create()
    for i in range(12):
        daemon.signal(signal.SIGUSR2)
        time.sleep(i * 0.004)
        daemon.signal(number)
        daemon.upgrade()
        assert daemon.alive() and daemon.exec(box, "echo here")["stdout"] == "here\n"


def test_an_upgrade_to_nothing_is_refused(daemons, tmp_path):
    """The program is gone, or cannot be executed: the daemon goes on, and says so."""
    daemon = daemons()
    daemon.stop()
    daemon.program = tmp_path / "cayd"
    shutil.copy2(lib_daemon.PROGRAM, daemon.program)
    daemon.start()
    pid = daemon.pid
    daemon.program.chmod(0o644)
    for spoil in (lambda: None, daemon.program.unlink):
        spoil()
        told = len([line for line in daemon.lines() if line["msg"] == "cannot upgrade"])
        daemon.signal(signal.SIGUSR2)
        until(lambda: len([line for line in daemon.lines() if line["msg"] == "cannot upgrade"]) > told)
        assert daemon.get("/readyz").status == 200 and daemon.pid == pid


def test_drain_lets_a_running_exec_finish(daemons):
    daemon = daemons(drain="10s")
    box = daemon.create()
    result = {}
    thread = threading.Thread(target=lambda: result.update(daemon.exec(box, "sleep 0.6; echo whole")))
    thread.start()
    until(lambda: [p for p in daemon.get(f"/sandboxes/{box}/processes").body["processes"] if p["running"]])
    with daemon.client() as client:
        assert client.get("/readyz").status == 200
        daemon.signal(signal.SIGTERM)
        until(lambda: any("drain" in line["msg"] for line in daemon.lines()) or result, 5)
        try:
            answer = client.get("/readyz")
            assert answer.status == 503 and answer.body == {"status": "draining"}
            refused(client.get("/sandboxes"), 503, "unavailable")
        except (ConnectionError, OSError):
            pass  # idle connections may be closed at once
        except Exception as error:
            assert "RemoteDisconnected" in type(error).__name__, error
    start = time.monotonic()
    assert daemon.process.wait(10) == 0
    thread.join()
    assert result.get("stdout") == "whole\n" and time.monotonic() - start < 5


def test_drain_refuses_new_connections(daemons):
    """A client that is refused knows that nothing was done, and tries again; one that is left waiting does not."""
    daemon = daemons(tcp=True, drain="30s")
    box, result = daemon.create(), {}
    script = "while [ ! -e /tmp/go ]; do sleep 0.02; done; echo whole"

    def is_refused(tcp):
        try:
            daemon.get("/version", tcp=tcp, timeout=5)
        except ConnectionRefusedError:
            return True
        return False

    thread = threading.Thread(target=lambda: result.update(daemon.exec(box, script)))
    thread.start()
    until(lambda: [p for p in daemon.get(f"/sandboxes/{box}/processes").body["processes"] if p["running"]])
    with daemon.client() as client:
        assert client.get("/readyz").status == 200
        daemon.signal(signal.SIGTERM)
        daemon.wait_log("draining")
        until(lambda: is_refused(False) and is_refused(True))
        answer = client.get("/readyz")
        assert answer.status == 503 and answer.body == {"status": "draining"}
    daemon.cay.sh(box, "touch /tmp/go", check=True)
    thread.join()
    assert daemon.process.wait(20) == 0 and result["stdout"] == "whole\n"


def test_drain_has_an_end(daemons):
    daemon = daemons(drain="1s")
    box = daemon.create()
    pid = daemon.start_process(box, COUNTER)
    with daemon.stream(url(box, pid, "/output?follow=true"), accept=BYTES) as stream:
        stream.some()
        start = time.monotonic()
        assert daemon.stop(10) == 0
        assert time.monotonic() - start < 6
    daemon.start()
    assert daemon.state_of(box) == "running" and daemon.get(url(box, pid)).body["running"]


def test_the_command_line_and_the_daemon_share_sandboxes(daemons):
    daemon = daemons()
    cli = daemon.cay.create("--name", "by-cli", "--label", "from=cli")
    assert daemon.get(f"/sandboxes/{cli}").body["labels"] == {"from": "cli"}
    assert daemon.exec(cli, "echo x > /tmp/f; echo ok")["stdout"] == "ok\n"
    api = daemon.create(id="by-api")
    assert {"by-cli", "by-api"} <= set(daemon.cay.ids())
    assert daemon.cay.sh(api, "echo hi").stdout == "hi\n"
    daemon.cay.run("rm", "-f", api, check=True)
    until(lambda: daemon.get(f"/sandboxes/{api}").status == 404, 5)
    until(lambda: [b["id"] for b in daemon.get("/sandboxes").body["sandboxes"]] == [cli], 5)
    daemon.cay.run("kill", cli, check=True)
    until(lambda: daemon.state_of(cli) == "exited", 5)


def test_a_keeper_that_dies_is_told_and_harms_no_other(daemons):
    daemon = daemons()
    victim, other = daemon.create(), daemon.create()
    pid = daemon.start_process(victim, "echo up; sleep 60")
    keeper = daemon.get(f"/sandboxes/{victim}").body["keeper_pid"]
    with daemon.stream(url(victim, pid, "/output?follow=true")) as stream:
        assert next(stream)["data"] == "up\n"
        os.kill(keeper, signal.SIGKILL)
        last = list(stream)[-1]
    assert last["type"] == "error" and last["error"]["message"], last
    until(lambda: daemon.state_of(victim) == "lost", 2)
    assert daemon.get(f"/sandboxes/{victim}").body["reason"]
    assert daemon.exec(other, "echo fine")["stdout"] == "fine\n"


def test_a_keeper_that_stands_still_holds_up_nobody_else(daemons):
    daemon = daemons()
    still, other = daemon.create(), daemon.create()
    keeper = daemon.get(f"/sandboxes/{still}").body["keeper_pid"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        result = {}
        thread = threading.Thread(target=lambda: result.update(daemon.exec(still, "echo late", patience=60)))
        thread.start()
        start = time.monotonic()
        for _ in range(20):
            assert daemon.exec(other, "echo fine")["stdout"] == "fine\n"
        assert {still, other} <= {b["id"] for b in daemon.get("/sandboxes").body["sandboxes"]}
        assert daemon.get("/healthz").status == 200
        assert time.monotonic() - start < 5
    finally:
        os.kill(keeper, signal.SIGCONT)
    thread.join(60)
    assert result.get("stdout") == "late\n"


def with_one_worker(daemons):
    """A daemon, and the one thread that does its work so far. A second one comes when it is busy, which it may be
    already on a slow machine."""
    for _ in range(10):
        daemon = daemons()
        daemon.delete(f"/sandboxes/{daemon.create()}")
        threads = [int(name) for name in os.listdir(f"/proc/{daemon.pid}/task") if int(name) != daemon.pid]
        if len(threads) == 1:
            return daemon, threads[0]
    pytest.fail("every daemon had more than one worker at once")


def test_a_removal_does_not_overtake_a_create(daemons):
    """Its client is gone, and it is slow: it is over before the removal is answered, and nothing is left."""
    daemon, thread = with_one_worker(daemons)
    delay = ["-e", "trace=mkdirat", "-e", "inject=mkdirat:delay_enter=3000000:when=1"]
    tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", *delay, "-p", str(thread)])
    try:
        until(lambda: "TracerPid:\t0" not in open(f"/proc/{daemon.pid}/task/{thread}/status").read(), 10)
        client = daemon.client()
        client.connection.request("POST", "/api/v1/sandboxes", headers={"Content-Type": "application/json"},
                                  body=b'{"id":"x"}')
        until(lambda: open(f"/proc/{daemon.pid}/task/{thread}/stat").read().rpartition(") ")[2][0] == "t", 10)
        client.close()
        assert daemon.create(id="x") == "x", "another worker made it meanwhile"
        assert daemon.delete("/sandboxes/x").status == 204
        until(lambda: len([e for e in daemon.get("/audit?action=create&sandbox=x").body["entries"]]) == 2, 30)
        assert daemon.get("/sandboxes/x").status == 404 and daemon.cay.ids() == []
    finally:
        end(tracer, signal.SIGTERM)


# -- clocks

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *shift;
__attribute__((constructor)) static void init(void)
{
    int fd = open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
    shift = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
}
int clock_gettime(clockid_t id, struct timespec *ts)
{
    int result = (int)syscall(SYS_clock_gettime, id, ts);
    if (result == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        ts->tv_sec += *shift;
    return result;
}
time_t time(time_t *out)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return out ? (*out = ts.tv_sec) : ts.tv_sec;
}
int gettimeofday(struct timeval *tv, void *zone)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec, tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}
"""


@pytest.fixture
def shifted(tmp_path, cayd):
    """A daemon whose wall clock jumps: shifted.jump(seconds)."""
    (tmp_path / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "shim.so", tmp_path / "shim.c"], check=True)
    shift = tmp_path / "shift"
    shift.write_bytes(bytes(8))
    preload = f"{os.environ.get('LD_PRELOAD', '')} {tmp_path / 'shim.so'}".strip()
    daemon = Daemon(start=False, env={"LD_PRELOAD": preload, "CLOCK_SHIFT": str(shift)})
    daemon.share_image(cayd)

    def jump(seconds):
        with open(shift, "r+b", buffering=0) as f:
            f.write(struct.pack("<q", seconds))

    daemon.jump = jump
    try:
        yield daemon.start()
    finally:
        assert daemon.close() == []


def test_the_wall_clock_jumps(shifted):
    daemon = shifted
    token = daemon.token("hour", expires="1h")
    first = daemon.create(id="first", ttl=120, idle=120)
    pid = daemon.start_process(first, COUNTER)
    result = {}
    thread = threading.Thread(target=lambda: result.update(daemon.exec(first, "sleep 0.8; echo whole", timeout=30)))
    thread.start()
    with daemon.stream(url(first, pid, "/output?follow=true"), accept=BYTES) as stream, daemon.client() as client:
        data = stream.some()
        client.get("/healthz")
        for seconds in (7200, -86400, 10 * 365 * 86400, 0):
            daemon.jump(seconds)
            # The control: it sees another time.
            assert any(abs(jumped_ms(daemon) - (time.time() + seconds) * 1000) < 60_000 for _ in range(1))
            assert client.get("/healthz").status == 200, "a session that waits is not cut"
            size = len(data)
            while len(data) < size + 3000:
                data += stream.some()
            body = daemon.get("/sandboxes/first").body
            assert body["state"] == "running" and 60_000 < body["ttl_left_ms"] <= 120_000, body
            start = time.monotonic()
            refused(daemon.post(url(first, pid, "/wait"), {"timeout": 0.2}), 408, "timeout")
            assert 0.15 < time.monotonic() - start < 3
            done = daemon.exec(first, "sleep 30", timeout=0.2)
            assert done["exit_code"] == 124 and done["duration_ms"] < 5000
            assert daemon.get("/sandboxes", token=token).status == (401 if seconds >= 7200 else 200)
    check_numbers(data)
    thread.join()
    assert result["stdout"] == "whole\n"
    order = [e["seq"] for e in daemon.stream("/events")]
    assert order == sorted(order)


def jumped_ms(daemon):
    """What time it is for the daemon: that of the newest entry of its journal."""
    box = daemon.create()
    event = [e for e in daemon.stream("/events") if e["sandbox"] == box and e["type"] == "created"][0]
    daemon.remove(box)
    return event["time_ms"]


def test_the_journal_keeps_its_order_when_the_clock_goes_back(shifted):
    daemon = shifted
    for number, seconds in enumerate((0, 3600, -3600, 0, -7200)):
        daemon.jump(seconds)
        daemon.create(id=f"n{number}")
        if number == 2:
            daemon.restart("kill9")
    made = [e for e in daemon.stream("/events") if e["type"] == "created"]
    assert [e["sandbox"] for e in made] == [f"n{n}" for n in range(5)], "by sequence, whatever the clock said"
    assert [e["seq"] for e in made] == sorted(e["seq"] for e in made)
    assert made[2]["time_ms"] < made[1]["time_ms"], "the control: the clock did go back"
    assert daemon.cay.run("audit", "--verify").returncode == 0
    # Pages by age stay whole although ages are out of order.
    found, cursor = [], None
    while True:
        body = daemon.get("/sandboxes?limit=2" + (f"&cursor={cursor}" if cursor else "")).body
        found += [b["id"] for b in body["sandboxes"]]
        cursor = body["next_cursor"]
        if cursor is None:
            break
    assert sorted(found) == [f"n{n}" for n in range(5)]


# -- clients

def cut(sock):
    """Ends a connection as a machine that dies does."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def in_flight(daemon):
    for line in daemon.get("/metrics").body.decode().splitlines():
        if line.startswith("cay_requests_in_flight "):
            return float(line.split()[1])
    raise AssertionError("no cay_requests_in_flight")


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_dead_clients_leave_nothing_behind(daemons, tcp):
    daemon = daemons(tcp=True)
    token = daemon.token("t")
    box = daemon.create()
    pid = daemon.start_process(box, COUNTER)
    quiet = daemon.start_process(box, argv=["sleep", "300"], pty=True)
    sink = daemon.start_process(box, argv=["sleep", "300"], stdin=True)
    daemon.exec(box, "head -c 20000000 /dev/zero > /tmp/big")
    api = f"/api/v1/sandboxes/{box}"
    head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    def text(method, path, body="", size=None, more=""):
        size = len(body) if size is None else size
        return f"{method} {path} HTTP/1.1\r\n{head}{more}Content-Length: {size}\r\n\r\n{body}"

    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n" \
              "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    scenes = {
        "exec": text("POST", f"{api}/exec", '{"shell":"sleep 1; echo x","kill_on_disconnect":true}'),
        "exec that stays": text("POST", f"{api}/exec", '{"shell":"sleep 1; echo x"}'),
        "wait": text("POST", f"{api}/processes/{quiet}/wait", "{}"),
        "follow": text("GET", f"{api}/processes/{pid}/output?follow=true"),
        "follow of nothing": text("GET", f"{api}/processes/{quiet}/output?follow=true"),
        "logs": text("GET", f"{api}/logs?follow=true"),
        "events": text("GET", "/api/v1/events?follow=true"),
        "watch": text("GET", f"{api}/fs/watch?path=/tmp"),
        "terminal": text("GET", f"{api}/processes/{quiet}/attach", more=upgrade),
        "upload": text("PUT", f"{api}/files?path=/tmp/up", "x" * 100_000, 10_000_000),
        "archive": text("PUT", f"{api}/archive?path=/tmp/tar", "x" * 1000, 10_000_000),
        "download": text("GET", f"{api}/files?path=/tmp/big"),
        "stdin": text("POST", f"{api}/processes/{sink}/stdin", "x" * 300_000, 5_000_000),
        "body": text("POST", "/api/v1/sandboxes", '{"id":', 1000),
        "headers": "GET /api/v1/sandboxes HTTP/1.1\r\nHost: loc",
        "nothing": "",
        "half a create": text("POST", "/api/v1/sandboxes", '{"id":"half"}'),
    }
    daemon.get("/sandboxes", tcp=tcp, token=token)
    baseline, rss = daemon.fds(), daemon.rss()
    for turn in range(3):
        socks = []
        for data in scenes.values():
            sock = daemon.dial(10, tcp)
            socks.append(sock)
            sock.settimeout(0.5)
            with contextlib.suppress(OSError):
                sock.sendall(data.encode())
        time.sleep((0.3, 0.02, 0)[turn])
        for sock in socks:
            cut(sock)
        assert daemon.alive()
    until(lambda: in_flight(daemon) == 1, 10)
    until(lambda: daemon.fds() <= baseline + 1, 10)
    assert daemon.rss() - rss < 32 << 20
    assert daemon.exec(box, "ls /tmp | grep -vx -e big -e tar -e up; echo ok")["stdout"].endswith("ok\n")
    assert daemon.exec(box, "ls -A /tmp | grep -c cay || true")["stdout"].strip() == "0", "no half file is left"
    assert daemon.get(url(box, quiet)).body["running"] and daemon.get(url(box, pid)).body["running"]


READERS = 1000


def test_a_thousand_slow_readers(daemons, record_property):
    """Each takes a byte a second of 8 MiB: what they do not take stays in the sandbox's ring, not in the daemon."""
    daemon = daemons()
    loud, neighbour = daemon.create(output="8M", memory="256M"), daemon.create()
    pid = daemon.start_process(loud, "head -c 8388608 /dev/zero | tr '\\0' x; sleep 600")
    until(lambda: daemon.get(url(loud, pid)).body["output_end"] == 8 << 20, 20)

    def latency(turns=25):
        with daemon.client() as client:
            took = []
            for _ in range(turns):
                start = time.monotonic()
                answer = client.post(f"/sandboxes/{neighbour}/exec", {"argv": ["true"]})
                assert answer.status == 200, answer
                took.append(time.monotonic() - start)
            return sorted(took)[turns // 2]

    latency(5)
    idle, before, fds = latency(), daemon.rss(), daemon.fds()
    readers, stop = [], threading.Event()
    try:
        for number in range(READERS):
            sock = socket.socket(socket.AF_UNIX)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(str(daemon.sock))
            accept = (BYTES, FRAMES, "application/x-ndjson")[number % 3]
            sock.sendall(f"GET /api/v1{url(loud, pid, '/output?follow=true')} HTTP/1.1\r\nHost: localhost\r\n"
                         f"Accept: {accept}\r\n\r\n".encode())
            readers.append(sock)
        for sock in readers:
            assert sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"

        def trickle():
            while not stop.wait(1.0):
                for sock in readers:
                    assert sock.recv(1)

        thread = threading.Thread(target=trickle)
        thread.start()
        time.sleep(2.2)
        busy, grown = latency(), daemon.rss() - before
        stop.set()
        thread.join()
        # The last of them gets all of it, once it reads.
        whole, size = readers[0], 0
        while size < 8 << 20:
            more = whole.recv(1 << 20)
            assert more
            size += more.count(b"x")
    finally:
        stop.set()
        for sock in readers:
            sock.close()
    figures = (f"{READERS} readers: {grown / 1048576:.1f} MiB more, {grown / READERS / 1024:.1f} KiB each; "
               f"a neighbour's exec {idle * 1000:.2f} ms before, {busy * 1000:.2f} ms meanwhile, {busy / idle:.2f} x")
    print(figures)
    record_property("slow_readers", figures)
    assert grown < 160 << 20, figures
    assert busy < 20 * max(idle, 0.002), figures
    until(lambda: daemon.fds() <= fds + 2, 20)
    until(lambda: in_flight(daemon) == 1, 10)
    assert daemon.exec(neighbour, "echo fine")["stdout"] == "fine\n"


# -- the pool

def waiting(daemon):
    """Names in the run directory of what was made ahead."""
    return [p.name for p in daemon.run_dir.iterdir() if p.name.startswith("pool~")]


def pool_hits(daemon):
    for line in daemon.get("/metrics").body.decode().splitlines():
        if line.startswith("cay_pool_hits_total "):
            return float(line.split()[1])
    raise AssertionError("no cay_pool_hits_total")


def test_the_pool_gives_each_sandbox_once(daemons):
    daemon = daemons(pool=4)
    until(lambda: len(waiting(daemon)) == 4)
    seen = set()
    with concurrent.futures.ThreadPoolExecutor(8) as workers:
        for turn in range(3):
            boxes = list(workers.map(lambda _: daemon.create(env={"A": "1"}, labels={"l": "1"}), range(8)))
            pids = [daemon.get(f"/sandboxes/{box}").body["init_pid"] for box in boxes]
            assert len(set(boxes)) == 8 and len(set(pids)) == 8 and not seen & set(pids)
            seen |= set(pids)
            for box in boxes:
                assert daemon.exec(box, "echo $A; hostname; ls -A /tmp")["stdout"].startswith("1\n")
                assert "pool" not in json.dumps(daemon.get(f"/sandboxes/{box}").body)
            daemon.remove(*boxes)
            assert turn < 2 or pool_hits(daemon) > 0, "none came from the pool"
            until(lambda: len(waiting(daemon)) == 4)


def test_what_waits_in_the_pool_is_nobodys(daemons):
    """It is not listed, cannot be named or used, and goes with the daemon, however that ends."""
    daemon = daemons(pool=3)
    token = daemon.token("t", tenant="acme")
    daemon.create(id="mine")
    until(lambda: b"cay_pool_ready 3\n" in daemon.get("/metrics").body)
    names = waiting(daemon)  # perhaps with the one that was given away, under the name that it was made with
    for who in ({}, {"token": token}):
        listed = {b["id"] for b in daemon.get("/sandboxes?state=all", **who).body["sandboxes"]}
        assert listed == (set() if who else {"mine"})
        for name in names:
            for one in (name, name.rpartition("~")[2]):
                assert daemon.get(f"/sandboxes/{one}", **who).status in (400, 404)
                assert daemon.post(f"/sandboxes/{one}/exec", {"argv": ["true"]}, **who).status in (400, 404)
                assert daemon.delete(f"/sandboxes/{one}", **who).status in (400, 404)
            assert daemon.post("/sandboxes", {"id": name}, **who).status in (400, 403, 409)
    assert "mine" in daemon.cay.ids() and not set(daemon.cay.ids()) & set(names)
    assert waiting(daemon) == names
    # One that was given away keeps the name that its cgroup was made under.
    daemon.kill9()
    until(lambda: len(waiting(daemon)) <= 1, 5)
    daemon.start()
    until(lambda: len(waiting(daemon)) >= 3)
    assert daemon.exec("mine", "echo up")["stdout"] == "up\n"
    assert daemon.stop() == 0
    until(lambda: len(waiting(daemon)) <= 1, 5)
    daemon.cay.run("rm", "-f", "mine", check=True)
    until(lambda: waiting(daemon) == [], 5)


@pytest.mark.parametrize("how", ["crashes", "fails", "hangs"])
def test_an_upgrade_to_a_program_that_does_not_start_is_refused(daemons, tmp_path, how):
    """It is asked before anybody is sent away: the old one goes on, and says why."""
    daemon = daemons()
    box = daemon.create()
    daemon.stop()
    daemon.program = tmp_path / "cayd"
    shutil.copy2(lib_daemon.PROGRAM, daemon.program)
    daemon.start()
    good = tmp_path / "good"
    shutil.copy2(daemon.program, good)
    script = {"crashes": "kill -SEGV $$", "fails": "echo 'no libfoo.so.7' >&2; exit 127", "hangs": "exec sleep 600"}[how]
    new = tmp_path / "new"
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o755)
    os.rename(new, daemon.program)
    pid = daemon.pid
    daemon.signal(signal.SIGUSR2)
    assert daemon.exec(box, "echo here")["stdout"] == "here\n", "it serves meanwhile"
    daemon.wait_log("cannot upgrade", 30)
    line = [line for line in daemon.lines() if line["msg"] == "cannot upgrade"][-1]
    words = {"crashes": "signal 11", "fails": "127: no libfoo.so.7", "hangs": "does not end"}[how]
    assert words in line["why"] and "--check" in line["why"], line
    assert daemon.get("/readyz").status == 200 and daemon.pid == pid
    children = subprocess.run(["ps", "--ppid", str(pid), "-o", "args="], stdout=subprocess.PIPE, text=True).stdout
    assert "sleep 600" not in children and "defunct" not in children, children
    os.rename(good, daemon.program)
    daemon.upgrade()
    assert daemon.exec(box, "echo here")["stdout"] == "here\n"


def used(pid):
    """Seconds of processor time."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_descriptors_and_without_clients_it_does_not_spin(daemons):
    """Nobody is connected whose end could give it one: it waits, and goes on when there are some."""
    daemon = daemons()
    daemon.exec(daemon.create(), "true")
    until(lambda: daemon.lines())
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    with daemon.dial() as sock:  # each that waits is accepted while there is room
        sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(4096)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
    with daemon.dial() as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        before = used(daemon.pid)
        time.sleep(1.5)
        assert used(daemon.pid) - before < 0.3
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        sock.settimeout(10)
        assert b" 200 " in sock.recv(4096)
    assert daemon.get("/readyz").status == 200


def test_a_limit_on_file_sizes_is_an_error_and_not_the_end(daemons):
    """Of whoever starts it: what cannot be written is refused with its cause."""
    daemon = daemons()
    box = daemon.create()
    assert daemon.exec(box, "echo on")["stdout"] == "on\n"
    size = (daemon.state / "audit" / "audit.jsonl").stat().st_size
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, limits[1]))
    answers = [daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}), daemon.post("/sandboxes", {})]
    assert daemon.alive(), daemon.log_text()[-500:]
    for answer in answers:
        assert answer.status >= 400 and "ulimit -f" in answer.error["message"], answer
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, limits)
    until(lambda: daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}).status == 200)
