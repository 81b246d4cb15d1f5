# SPDX-License-Identifier: Apache-2.0
"""cayd as its clients see it: sandboxes over HTTP, answers to what is wrong, health, metrics, listeners."""
import json
import os
import re
import signal
import socket
import stat
import time

import pytest

from integration.support import until
from lib.daemon import PROGRAM, Daemon

REGISTRY = "registry images are not supported yet; use --image host or dir:PATH"
SANDBOX = {"id", "state", "reason", "image", "created_ms", "ended_ms", "ttl_left_ms", "keeper_pid", "init_pid",
           "processes", "labels"}
STATS = {"id", "cpu_us", "cpu_user_us", "cpu_system_us", "memory", "memory_peak", "memory_max", "pids", "pids_max",
         "io_read", "io_write", "disk", "disk_max", "inodes", "inodes_max", "oom_kills", "output", "output_max"}


def refused(answer, status, code, *words):
    """An error as all errors are: its status, its code, and words for a human."""
    assert answer.status == status and answer.code == code, answer
    assert set(answer.body) == {"error"} and set(answer.error) <= {"code", "message", "detail"}, answer.body
    assert answer.error["message"] and "\n" not in answer.error["message"]
    for word in words:
        assert word in json.dumps(answer.error), answer.error
    return answer


# -- the daemon itself

@pytest.mark.parametrize("prefix", ["", "/api/v1"])
@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_health_needs_no_token(cayd, prefix, tcp):
    assert cayd.get(prefix + "/healthz", tcp=tcp)[::2] == (200, {"status": "ok"})
    assert cayd.get(prefix + "/readyz", tcp=tcp)[::2] == (200, {"status": "ready"})
    version = cayd.get(prefix + "/version", tcp=tcp)
    assert version.status == 200 and version.body["api"] == "v1"
    assert version.body["version"] in cayd.cay.run("--version", check=True).stdout


def test_capabilities(cayd):
    answer = cayd.get("/capabilities")
    assert answer.status == 200 and answer.body["version"] and isinstance(answer.body["features"], dict)
    assert answer.body["checks"]
    for check in answer.body["checks"]:
        assert {"name", "level", "finding"} <= set(check) and check["level"] in ("ok", "loss", "fail"), check


def metrics(cayd, **options):
    answer = cayd.get("/metrics", **options)
    assert answer.status == 200 and answer.headers.get_content_type() == "text/plain"
    return answer.body.decode()


def test_metrics_are_prometheus_text(cayd, cayd_make):
    cayd_make()
    text = metrics(cayd)
    assert text.endswith("\n")
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
            continue
        if line.startswith("#") or not line:
            continue
        sample = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-z_]+="[^"]*",?)*\})? (-?[0-9.e+-]+|\+Inf|NaN)', line)
        assert sample, line
        name = sample[1]
        assert name in typed or re.sub(r"_(bucket|sum|count)$", "", name) in typed, line
    live = re.search(r"^(cayd?_\w*sandboxes\w*)(\{[^}]*\})? ([0-9.]+)$", text, re.M)
    assert live and float(live[3]) >= 1, text


def test_metrics_count_requests(cayd):
    def total():
        return sum(float(line.rsplit(" ", 1)[1]) for line in metrics(cayd).splitlines()
                   if re.match(r"cayd?_\w*requests_total", line))
    before = total()
    for _ in range(5):
        cayd.get("/capabilities")
    assert total() >= before + 5


def test_keep_alive_serves_many_requests_and_survives_errors(cayd):
    with cayd.client() as client:
        sockets = set()
        for number in range(60):
            answer = client.get("/version" if number % 3 else "/sandboxes/nosuch")
            assert answer.status == (200 if number % 3 else 404)
            sockets.add(id(client.connection.sock))
        assert len(sockets) == 1, "the connection was closed in between"


def test_pipelined_requests_are_answered_in_order(cayd):
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    got = cayd.raw(request % b"/healthz" + request % b"/api/v1/sandboxes/nosuch" + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200", b"404", b"200"]


# -- methods, paths, parameters

@pytest.mark.parametrize("path", ["/", "/api", "/api/v1/nosuch", "/api/v2/sandboxes", "/api/v1/sandboxes/x/nosuch",
                                  "/api/v1/sandboxes/x/processes/1/nosuch"])
def test_unknown_path(cayd, path):
    with cayd.client() as client:
        client.connection.request("GET", path)
        response = client.connection.getresponse()
        body = json.loads(response.read())
    assert response.status == 404 and body["error"]["code"] == "not_found"


@pytest.mark.parametrize("method,path,allowed", [
    ("PUT", "/sandboxes", {"GET", "POST"}), ("DELETE", "/sandboxes", {"GET", "POST"}),
    ("POST", "/sandboxes/x", {"GET", "PATCH", "DELETE"}), ("GET", "/sandboxes/x/pause", {"POST"}),
    ("GET", "/sandboxes/x/exec", {"POST"}), ("POST", "/healthz", {"GET"}),
    ("PATCH", "/sandboxes/x/processes/1", {"GET", "DELETE"})])
def test_wrong_method(cayd, method, path, allowed):
    answer = cayd.request(method, path, json={} if method != "DELETE" else None)
    assert answer.status == 405 and answer.body["error"]["message"], answer
    assert allowed <= set(re.split(r",\s*", answer.headers["Allow"])), answer.headers["Allow"]


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW", "get"])
def test_unknown_method(cayd, method):
    got = cayd.raw(f"{method} /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert re.match(rb"HTTP/1.1 (400|405|501) ", got), got[:200]


@pytest.mark.parametrize("path", ["/healthz", "/version", "/sandboxes", "/capabilities"])
def test_head_is_get_without_a_body(cayd, path):
    answer = cayd.request("HEAD", path)
    assert answer.status == 200 and answer.body == b""
    assert answer.headers.get_content_type() == "application/json"


def test_options_tells_the_methods(cayd):
    answer = cayd.request("OPTIONS", "/sandboxes")
    assert answer.status in (200, 204, 405), answer
    assert {"GET", "POST"} <= set(re.split(r",\s*", answer.headers["Allow"])), answer
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("method,path,body", [
    ("GET", "/sandboxes?colour=red", None), ("GET", "/sandboxes?Limit=1", None), ("GET", "/version?x=1", None),
    ("POST", "/sandboxes?dry=true", {}), ("DELETE", "/sandboxes/nosuch?forced=true", None),
    ("GET", "/events?form=1", None), ("GET", "/sandboxes/nosuch/logs?follow=maybe", None),
    ("GET", "/sandboxes?limit=0", None), ("GET", "/sandboxes?limit=1001", None), ("GET", "/sandboxes?limit=ten", None),
    ("GET", "/sandboxes?limit=-1", None), ("GET", "/sandboxes?state=happy", None),
    ("GET", "/sandboxes?cursor=bogus", None)])
def test_wrong_parameters(cayd, method, path, body):
    answer = refused(cayd.request(method, path, json=body), 400, "invalid")
    name = re.search(r"[?&](\w+)=", path)[1]
    assert name in json.dumps(answer.error), answer.error


@pytest.mark.parametrize("method,path", [
    ("POST", "/sandboxes/{}/snapshot"), ("POST", "/sandboxes/{}/fork"), ("GET", "/sandboxes/{}/changes"),
    ("GET", "/sandboxes/{}/network"), ("PUT", "/sandboxes/{}/ports/80"), ("GET", "/sandboxes/{}/proxy/80/"),
    ("GET", "/images"), ("POST", "/images"), ("GET", "/snapshots"), ("PUT", "/secrets/key"), ("GET", "/secrets/key")])
def test_what_comes_later_is_unsupported(cayd, cayd_box, method, path):
    body = {} if method != "GET" else None
    refused(cayd.request(method, path.format(cayd_box), json=body), 501, "unsupported")


@pytest.mark.parametrize("size", [2, 100_000, 900_000])
@pytest.mark.parametrize("path,status", [("/nosuch", 404), ("/healthz", 405), ("/images", 501), ("/sandboxes", 401)])
def test_an_early_error_reaches_a_client_that_is_still_sending(cayd, path, status, size):
    """Over TCP, where closing with unread bytes would take the answer with it."""
    token = None if status == 401 else cayd.token(f"early-{status}-{size}")
    for _ in range(3):
        with cayd.dial(10, tcp=True) as sock:
            who = f"Authorization: Bearer {token}\r\n" if token else ""
            sock.sendall(f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\n{who}Content-Type: application/json\r\n"
                         f"Content-Length: {size}\r\n\r\n".encode())
            time.sleep(0.01)
            sock.sendall(b" " * size)
            got = sock.recv(65536)
        assert got.startswith(f"HTTP/1.1 {status} ".encode()), got[:100]


# -- create

def test_create_and_get(cayd, cayd_make):
    before = time.time() * 1000
    answer = cayd.post("/sandboxes", {"labels": {"k": "v"}})
    try:
        assert answer.status == 201 and set(answer.body) == SANDBOX
        box = answer.body
        assert re.fullmatch("[0-9a-f]{12}", box["id"]) and box["state"] == "running" and box["image"] == "host"
        assert before - 1000 <= box["created_ms"] <= time.time() * 1000 + 1000
        assert box["ended_ms"] == 0 and box["ttl_left_ms"] == 0 and box["labels"] == {"k": "v"}
        assert os.path.exists(f"/proc/{box['init_pid']}") and os.path.exists(f"/proc/{box['keeper_pid']}")
        got = cayd.get(f"/sandboxes/{box['id']}")
        assert got.status == 200 and got.body == box
    finally:
        cayd.remove(answer.body["id"])


def test_create_without_a_body_is_the_default(cayd):
    answer = cayd.request("POST", "/sandboxes")
    assert answer.status == 201, answer
    cayd.remove(answer.body["id"])


def test_spec_comes_back_as_it_was_asked_for(cayd, cayd_make, tmp_path):
    os.chmod(tmp_path, 0o755)
    box = cayd_make(id="full", image="host", cwd="/tmp", network="deny-all", profile="strict", memory="64M", cpus=1.5,
                    pids=77, disk="16M", inodes=500, fds=99, output="1M", ttl="10m", idle=3600, env={"A": "1"},
                    labels={"x": "y"}, mounts=[{"source": str(tmp_path), "target": "/mnt/t", "read_only": True}])
    spec = cayd.get(f"/sandboxes/{box}/spec").body
    assert spec == cayd.cay.json("inspect", "--json", box)["spec"]
    text = json.dumps(spec)
    for word in ("strict", str(64 << 20), str(tmp_path), "deny-all", "77"):
        assert word in text, spec
    assert cayd.exec(box, "echo $A; pwd; ulimit -n")["stdout"] == "1\n/tmp\n99\n"


def test_create_is_idempotent(cayd, cayd_make):
    spec = {"id": "same", "memory": "64M", "labels": {"a": "1"}}
    cayd_make(**spec)
    first = cayd.get("/sandboxes/same").body
    again = cayd.post("/sandboxes", {**spec, "memory": 64 << 20})
    assert again.status == 200 and again.body["created_ms"] == first["created_ms"]
    refused(cayd.post("/sandboxes", {**spec, "memory": "65M"}), 409, "conflict", "same")
    assert cayd.get("/sandboxes/same").body == first


@pytest.mark.parametrize("body,field", [
    ({"memry": 1}, "memry"), ({"memory": "lots"}, "memory"), ({"memory": -1}, "memory"), ({"memory": 1.5}, "memory"),
    ({"memory": True}, "memory"), ({"memory": [1]}, "memory"), ({"pids": "x"}, "pids"), ({"cpus": "x"}, "cpus"),
    ({"ttl": "x"}, "ttl"), ({"ttl": -5}, "ttl"), ({"id": "UPPER"}, "id"), ({"id": "a b"}, "id"), ({"id": ""}, "id"),
    ({"id": "x" * 64}, "id"), ({"id": "../etc"}, "id"), ({"id": 7}, "id"), ({"profile": "weak"}, "profile"),
    ({"env": {"A=B": "1"}}, "env"), ({"env": ["A=1"]}, "env"), ({"env": {"A": 1}}, "env"),
    ({"labels": {"": "v"}}, "labels"), ({"labels": "a=b"}, "labels"), ({"mounts": {}}, "mounts"),
    ({"mounts": [{"source": "/tmp"}]}, "mounts"), ({"mounts": [{"source": "/tmp", "target": "/t", "mode": 1}]},
                                                   "mounts"),
    ({"mounts": [{"source": "tmp", "target": "/t"}]}, "mounts"), ({"cwd": "relative"}, "relative")])
def test_wrong_specs(cayd, body, field):
    answer = refused(cayd.post("/sandboxes", body), 400, "invalid")
    detail = answer.error.get("detail", {}).get("field", "")
    assert field in detail or field.rstrip("s") in answer.error["message"], answer.error


@pytest.mark.parametrize("text", ["", "[]", "null", "3", '"x"', "{", '{"id":}', '{"id":"a",}', "{'id':'a'}",
                                  '{"a":1}{}',
                                  '{"id":"a" "b":1}', "\ufeff{}", '{"id":"\\ud800"}', '{"id":"a\\u0000b"}'])
def test_bodies_that_are_no_object(cayd, text):
    answer = cayd.request("POST", "/sandboxes", body=text.encode(), headers={"Content-Type": "application/json"})
    if text == "" and answer.status == 201:
        cayd.remove(answer.body["id"])
        return
    refused(answer, 400, "invalid")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                                  "application/jsonx", ""])
def test_other_content_types_are_refused(cayd, kind):
    answer = cayd.request("POST", "/sandboxes", body=b'{"id":"typed"}', headers={"Content-Type": kind})
    refused(answer, 400, "invalid")
    assert cayd.get("/sandboxes/typed").status == 404


def test_content_type_may_name_a_charset(cayd):
    answer = cayd.request("POST", "/sandboxes", body=b'{"id":"typed"}',
                          headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert answer.status == 201
    cayd.remove("typed")


def test_what_this_host_cannot_do_is_said(cayd):
    answer = cayd.post("/sandboxes", {"network": "open"})
    refused(answer, 501, "unsupported")
    assert answer.error["detail"] == {"field": "network"}
    for name in ("ubuntu:22.04", "nosuch"):
        answer = cayd.post("/sandboxes", {"image": name})
        refused(answer, 501, "unsupported")
        assert answer.error["message"] == f"image '{name}': {REGISTRY}" and answer.error["detail"] == {"field": "image"}
    answer = cayd.post("/sandboxes", {"image": "dir:/nosuch/place"})
    assert answer.status in (400, 404) and answer.error["message"]


def test_a_body_over_a_mebibyte_is_too_large(cayd):
    big = {"id": "big", "env": {"A": "x" * (1 << 20)}}
    refused(cayd.post("/sandboxes", big), 413, "too_large")
    assert cayd.get("/sandboxes/big").status == 404


# -- list

def test_list_filters(cayd, cayd_make):
    red = cayd_make(labels={"suite": "list", "colour": "red"})
    blue = cayd_make(labels={"suite": "list", "colour": "blue"})
    gone = cayd_make(labels={"suite": "list", "colour": "red"})
    paused = cayd_make(labels={"suite": "list", "colour": "green"})
    assert cayd.post(f"/sandboxes/{gone}/kill").status == 204
    assert cayd.post(f"/sandboxes/{paused}/pause").status == 204

    def ids(query):
        answer = cayd.get("/sandboxes?label=suite%3Dlist&" + query)
        assert answer.status == 200 and answer.body["next_cursor"] is None, answer
        return [b["id"] for b in answer.body["sandboxes"]]

    assert ids("") == [red, blue, paused]
    assert ids("state=live") == [red, blue, paused]
    assert ids("state=all") == [red, blue, gone, paused]
    assert ids("state=exited") == [gone]
    assert ids("state=paused") == [paused]
    assert ids("state=running") == [red, blue]
    assert ids("state=lost") == []
    assert ids("label=colour%3Dred") == [red]
    assert ids("label=colour%3Dred&state=all") == [red, gone]
    assert ids("label=colour%3Dpurple&state=all") == []
    assert ids("label=colour") == [red, blue, paused] and ids("label=taste") == []


def test_pages_give_each_once_in_order(cayd, cayd_make):
    made = [cayd_make(labels={"suite": "pages"}) for _ in range(7)]

    def pages(size, between=lambda number: None):
        found, cursor, number = [], None, 0
        while True:
            query = f"/sandboxes?label=suite%3Dpages&limit={size}" + (f"&cursor={cursor}" if cursor else "")
            body = cayd.get(query).body
            assert len(body["sandboxes"]) <= size
            found += body["sandboxes"]
            cursor = body["next_cursor"]
            if cursor is None:
                return found
            between(number)
            number += 1

    for size in (1, 3, 7, 1000):
        found = pages(size)
        assert [b["id"] for b in found] == made
        assert found == sorted(found, key=lambda b: (b["created_ms"], b["id"]))
    # One that goes between two pages, even the one at the seam, hides no other.
    found = [b["id"] for b in pages(3, lambda number: cayd.remove(made[2]) if number == 0 else None)]
    assert found == made


# -- life

def test_patch_sets_the_time_to_live(cayd, cayd_make):
    box = cayd_make(ttl=300)
    assert 290_000 < cayd.get(f"/sandboxes/{box}").body["ttl_left_ms"] <= 300_000
    answer = cayd.patch(f"/sandboxes/{box}", {"ttl": 0})
    assert answer.status == 200 and answer.body["ttl_left_ms"] == 0
    answer = cayd.patch(f"/sandboxes/{box}", {"ttl": "15m", "idle": "1h"})
    assert answer.status == 200 and 890_000 < answer.body["ttl_left_ms"] <= 900_000
    assert cayd.patch(f"/sandboxes/{box}", {"ttl": 0.2}).status == 200
    until(lambda: cayd.state_of(box) == "ttl", 5)
    body = cayd.get(f"/sandboxes/{box}").body
    assert body["ended_ms"] >= body["created_ms"] and body["reason"] and body["init_pid"] == 0
    refused(cayd.patch(f"/sandboxes/{box}", {"ttl": 5}), 410, "gone")


@pytest.mark.parametrize("body", [{"memory": "1G"}, {"ttl": "soon"}, {"ttl": -1}, {"labels": {}}, {"id": "x"}])
def test_patch_refuses_everything_else(cayd, cayd_box, body):
    refused(cayd.patch(f"/sandboxes/{cayd_box}", body), 400, "invalid", next(iter(body)))


def test_idle_ends_an_unused_sandbox(cayd, cayd_make):
    box = cayd_make(idle=0.3)
    until(lambda: box not in [b["id"] for b in cayd.get("/sandboxes").body["sandboxes"]], 10, every=0.1)
    assert cayd.state_of(box) == "idle"


def test_pause_and_resume(cayd, cayd_make):
    box = cayd_make()
    pid = cayd.start_process(box, "while :; do echo tick; sleep 0.02; done")
    until(lambda: cayd.output(box, pid))
    assert cayd.post(f"/sandboxes/{box}/pause").status == 204
    assert cayd.state_of(box) == "paused"
    size = len(cayd.output(box, pid))
    time.sleep(0.15)
    assert len(cayd.output(box, pid)) == size
    assert cayd.post(f"/sandboxes/{box}/resume").status == 204
    assert cayd.state_of(box) == "running"
    until(lambda: len(cayd.output(box, pid)) > size)


def test_stop_gives_grace(cayd, cayd_make):
    polite, stubborn = cayd_make(), cayd_make()
    said = cayd.start_process(polite, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    kept = cayd.start_process(stubborn, "trap '' TERM; echo up; while :; do sleep 0.01; done")
    until(lambda: cayd.output(polite, said) and cayd.output(stubborn, kept))
    assert cayd.post(f"/sandboxes/{polite}/stop", {"grace": 10}).status == 204
    assert cayd.state_of(polite) == "exited"
    logs = cayd.get(f"/sandboxes/{polite}/logs", headers={"Accept": "text/plain"})
    assert logs.status == 200 and logs.body.startswith(b"up\n") and logs.body.endswith(b"bye\n")
    start = time.monotonic()
    assert cayd.post(f"/sandboxes/{stubborn}/stop", {"grace": 0.3}).status == 204
    assert 0.2 < time.monotonic() - start < 8 and cayd.state_of(stubborn) == "exited"


def test_an_ended_sandbox_answers_gone(cayd, cayd_make):
    box = cayd_make()
    pid = cayd.start_process(box, "echo out; sleep 60")
    until(lambda: cayd.output(box, pid) == b"out\n")
    assert cayd.post(f"/sandboxes/{box}/kill").status == 204
    assert cayd.state_of(box) == "exited"
    for method, path, body in (("POST", "exec", {"argv": ["true"]}), ("POST", "processes", {"argv": ["true"]}),
                               ("POST", "pause", {}), ("GET", "fs/list?path=/", None)):
        refused(cayd.request(method, f"/sandboxes/{box}/{path}", json=body), 410, "gone")
    events = list(cayd.stream(f"/sandboxes/{box}/logs"))
    assert events[0]["data"] == "out\n" and events[-1]["type"] == "end", "the log outlives the sandbox"


def test_delete(cayd, cayd_make):
    box = cayd_make()
    refused(cayd.delete(f"/sandboxes/{box}?force=false"), 409, "conflict")
    assert cayd.state_of(box) == "running"
    assert cayd.delete(f"/sandboxes/{box}").status == 204
    refused(cayd.get(f"/sandboxes/{box}"), 404, "not_found", box)
    refused(cayd.delete(f"/sandboxes/{box}"), 404, "not_found", box)
    ended = cayd_make()
    cayd.post(f"/sandboxes/{ended}/kill")
    assert cayd.delete(f"/sandboxes/{ended}?force=false").status == 204


@pytest.mark.parametrize("method,path,body", [
    ("GET", "", None), ("GET", "/spec", None), ("PATCH", "", {"ttl": 1}), ("DELETE", "", None), ("POST", "/pause", {}),
    ("POST", "/resume", {}), ("POST", "/kill", {}), ("POST", "/stop", {}), ("GET", "/stats", None),
    ("GET", "/logs", None), ("POST", "/exec", {"argv": ["true"]}), ("POST", "/processes", {"argv": ["true"]}),
    ("GET", "/processes", None), ("GET", "/processes/2", None), ("DELETE", "/processes/2", None),
    ("POST", "/processes/2/signal", {"signal": 15}), ("POST", "/processes/2/wait", {}),
    ("GET", "/processes/2/output", None), ("POST", "/processes/2/resize", {"rows": 1, "cols": 1})])
def test_no_such_sandbox(cayd, method, path, body):
    refused(cayd.request(method, "/sandboxes/nosuch" + path, json=body), 404, "not_found")


def test_stats(cayd, cayd_make):
    box = cayd_make(memory="64M", pids=50, disk="8M")
    cayd.exec(box, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; head -c 1000000 /dev/zero > /tmp/f")
    body = cayd.get(f"/sandboxes/{box}/stats").body
    assert set(body) == STATS and body["id"] == box
    assert body["memory_max"] == 64 << 20 and body["pids_max"] == 50 and body["disk_max"] == 8 << 20
    assert body["cpu_us"] > 1000 and body["disk"] >= 1_000_000 and body["oom_kills"] == 0


def test_memory_beyond_the_limit_is_told(cayd, cayd_make):
    box = cayd_make(memory="32M")
    done = cayd.exec(box, argv=["/bin/sh", "-c", "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $x | wc -c"])
    assert done["oom"] and done["exit_code"] == 137 and done["stdout"] == ""
    assert cayd.state_of(box) == "running" and cayd.get(f"/sandboxes/{box}/stats").body["oom_kills"] == 1


def test_many_at_once(cayd):
    """A listing in the middle of creates and removals sees whole sandboxes only."""
    import concurrent.futures

    def life(number):
        box = cayd.create(labels={"suite": "many"})
        done = cayd.exec(box, f"echo {number}")
        assert done["stdout"] == f"{number}\n"
        listed = cayd.get("/sandboxes?label=suite%3Dmany")
        assert listed.status == 200 and box in [b["id"] for b in listed.body["sandboxes"]]
        assert all(set(b) == SANDBOX for b in listed.body["sandboxes"])
        assert cayd.delete(f"/sandboxes/{box}").status == 204
        return True

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(life, range(64)))
    assert cayd.get("/sandboxes?label=suite%3Dmany&state=all").body["sandboxes"] == []


def test_the_same_create_at_once_makes_one(cayd):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: cayd.post("/sandboxes", {"id": "race"}), range(8)))
    try:
        assert {a.status for a in answers} <= {200, 201}, answers
        assert [a.status for a in answers].count(201) == 1
        assert len({a.body["init_pid"] for a in answers}) == 1
    finally:
        cayd.remove("race")


# -- listeners and the config

def test_the_socket_is_private(cayd):
    mode = os.stat(cayd.sock).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_tls(daemons):
    daemon = daemons(tcp=True, tls=True)
    token = daemon.token("t")
    assert daemon.get("/healthz", tcp=True).status == 200
    box = daemon.create(tcp=True, token=token)
    assert daemon.exec(box, "echo $((6*7))", tcp=True, token=token)["stdout"] == "42\n"
    assert daemon.get("/sandboxes", tcp=True).status == 401
    with socket.create_connection(("127.0.0.1", daemon.port), 5) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert b"200 OK" not in plain.recv(1000)
        except ConnectionResetError:
            pass


def test_default_socket_is_in_the_run_directory(daemons):
    daemon = daemons(listen=None)
    daemon.sock = daemon.run_dir / "cayd.sock"
    assert daemon.get("/healthz").status == 200
    assert daemon.stop() == 0 and not daemon.sock.exists()


@pytest.mark.parametrize("options,word", [
    ({"listen": "none"}, "listen"), ({"tcp": "localhost:80"}, "tcp"), ({"tcp": "127.0.0.1"}, "tcp"),
    ({"tcp": "127.0.0.1:99999"}, "tcp"), ({"tls_cert": "/nosuch"}, "tls"), ({"pool": "many"}, "pool"),
    ({"colour": "red"}, "colour"), ({"drain": "soon"}, "drain"), ({"audit": "maybe"}, "audit"),
    ({"listen": "unix:relative.sock"}, "relative"), ({"listen": "unix:/tmp/" + "x" * 120}, "long")])
def test_a_bad_config_is_one_line(options, word):
    daemon = Daemon(start=False, **options)
    try:
        code, text = daemon.refused()
        assert code == 125, text
        assert len(text.strip().splitlines()) == 1 and word in text, text
    finally:
        assert daemon.close() == []


def test_a_tokens_file_that_others_can_read_is_refused():
    daemon = Daemon(start=False)
    try:
        daemon.tokens_file.chmod(0o644)
        code, text = daemon.refused()
        assert code == 125 and "token" in text, text
        daemon.tokens_file.chmod(0o600)
        daemon.start()
        assert daemon.get("/healthz").status == 200
    finally:
        assert daemon.close() == []


def test_policy_that_does_not_parse_is_refused_at_start_and_kept_out_on_reload(daemons):
    daemon = daemons(policy="[policy]\nmemory_max = 64M\n")
    token = daemon.token("t", tenant="acme")
    daemon.write_policy("[policy]\nmemory_maximum = nonsense\n")
    daemon.reload()
    answer = daemon.post("/sandboxes", {"memory": "1G"}, token=token)
    refused(answer, 429, "limit", "memory_max")
    assert daemon.stop() == 0
    code, text = daemon.refused()
    assert code == 125 and "policy" in text
    daemon.write_policy("")
    daemon.start()


def test_signals_end_it_cleanly(daemons):
    for number in (signal.SIGTERM, signal.SIGINT):
        daemon = daemons()
        daemon.signal(number)
        assert daemon.process.wait(10) == 0
        assert not daemon.sock.exists()


def test_help_and_usage():
    import subprocess
    done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0 and "--config" in done.stdout
    done = subprocess.run([PROGRAM, "--nosuch"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 1


def test_records_are_kept_for_their_time(daemons):
    """What has ended is forgotten after keep_ended, with a note; what lives is not."""
    daemon = daemons(keep_ended="1s")
    ended, alive = daemon.create(), daemon.create()
    daemon.post(f"/sandboxes/{ended}/kill")
    assert daemon.get(f"/sandboxes/{ended}").body["state"] == "exited"
    until(lambda: daemon.get(f"/sandboxes/{ended}").code == "not_found", 20)
    assert daemon.get(f"/sandboxes/{alive}").body["state"] == "running"
    notes = [line for line in daemon.get(f"/audit?sandbox={ended}").body["entries"] if line["action"] == "delete"]
    assert [note["detail"]["reason"] for note in notes] == ["it ended long ago (keep_ended)"]
