# SPDX-License-Identifier: Apache-2.0
"""Who may do what: tokens, scopes, tenants, the operator's policy and quotas, and what the audit says of it."""
import concurrent.futures
import json
import os
import subprocess
import time

import pytest

from integration.support import until
from integration.test_api import SANDBOX, refused
from lib.daemon import ALL_SCOPES, PROGRAM

POLICY = """
[policy]
memory_max = 256M
memory_default = 64M
ttl_max = 1h
mounts = none

[tenant acme]
sandboxes_max = 3
images = host

[tenant small]
memory_max = 32M
memory_default = 32M
memory_total = 64M
execs_max = 2
"""


@pytest.fixture(scope="module")
def ruled(request):
    """A daemon with a policy, and tokens of two tenants and the operator."""
    from lib.daemon import Daemon
    daemon = Daemon(tcp=True, policy=POLICY)
    daemon.acme = daemon.token("acme-all", tenant="acme")
    daemon.other = daemon.token("other-all", tenant="other")
    daemon.small = daemon.token("small-all", tenant="small")
    daemon.root = daemon.token("root")
    yield daemon
    assert daemon.close() == []


@pytest.fixture
def made(ruled):
    """made(token, **spec) -> id as the tenant knows it; removed afterwards."""
    made = []

    def make(token, **spec):
        made.append((token, ruled.create(token=token, **spec)))
        return made[-1][1]

    yield make
    for token, box in made:
        ruled.delete(f"/sandboxes/{box}", token=token)


# -- tokens

def test_tcp_needs_a_token(ruled):
    answer = refused(ruled.get("/sandboxes", tcp=True), 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert ruled.get("/sandboxes", tcp=True, token=ruled.root).status == 200
    assert ruled.get("/sandboxes").status == 200, "the unix socket is the operator's"
    for path in ("/metrics", "/api/v1/metrics", "/capabilities", "/events", "/audit"):
        refused(ruled.get(path, tcp=True), 401, "unauthorized")


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer cay_wrong", "Basic YTpi", "{}", "Token {}",
                                    "Bearer {}x",
                                    "Bearer {} {}", "Bearer {}\t", "bearer{}"])
@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_wrong_authorization(ruled, header, tcp):
    """Even on the unix socket: who sends a token wants to be held to it."""
    text = header.format(ruled.acme, ruled.acme)
    answer = ruled.get("/sandboxes", tcp=tcp, headers={"Authorization": text})
    if header.endswith("\t") and answer.status == 200:
        return  # blanks at the end are no part of a header's value
    refused(answer, 401, "unauthorized")
    assert ruled.acme not in json.dumps(answer.body)


def test_the_file_keeps_no_token(ruled):
    text = ruled.tokens_file.read_text()
    assert "acme-all" in text and ruled.acme not in text and ruled.acme[4:] not in text
    assert os.stat(ruled.tokens_file).st_mode & 0o777 == 0o600


def test_an_expired_token(ruled):
    token = ruled.token("brief", expires="1s")
    assert ruled.get("/sandboxes", token=token).status == 200
    until(lambda: ruled.get("/sandboxes", token=token).status == 401, 5, every=0.1)
    refused(ruled.get("/sandboxes", token=token), 401, "unauthorized")


def test_a_token_that_is_removed_ends(ruled):
    token = ruled.token("gone")
    assert ruled.get("/sandboxes", token=token).status == 200
    subprocess.run([PROGRAM, "token", "rm", "gone", "--file", ruled.tokens_file], check=True, timeout=10)
    ruled.reload()
    refused(ruled.get("/sandboxes", token=token), 401, "unauthorized")


NEEDS = [("read", "GET", "/sandboxes", None), ("read", "GET", "/sandboxes/{}", None),
         ("read", "GET", "/sandboxes/{}/spec", None),
         ("read", "GET", "/sandboxes/{}/stats", None), ("read", "GET", "/sandboxes/{}/logs", None),
         ("read", "GET", "/sandboxes/{}/processes", None), ("read", "GET", "/events", None),
         ("create", "POST", "/sandboxes", {"id": "scoped"}), ("create", "PATCH", "/sandboxes/{}", {"ttl": 60}),
         ("create", "POST", "/sandboxes/{}/pause", {}), ("create", "POST", "/sandboxes/{}/resume", {}),
         ("exec", "POST", "/sandboxes/{}/exec", {"argv": ["true"]}),
         ("exec", "POST", "/sandboxes/{}/processes", {"argv": ["true"]}),
         ("files", "GET", "/sandboxes/{}/files?path=/etc/hostname", None),
         ("files", "GET", "/sandboxes/{}/fs/list?path=/", None),
         ("audit", "GET", "/audit", None), ("metrics", "GET", "/metrics", None),
         ("create", "DELETE", "/sandboxes/scoped", None)]


@pytest.fixture(scope="module")
def by_scope(ruled):
    box = ruled.create(token=ruled.token("scopes", tenant="scopes"), id="scopes")
    tokens = {}
    for scope in ALL_SCOPES.split(","):
        others = ",".join(s for s in ALL_SCOPES.split(",") if s != scope)
        tokens[scope] = (ruled.token(f"only-{scope}", tenant="scopes", scopes=scope),
                         ruled.token(f"not-{scope}", tenant="scopes", scopes=others))
    yield box, tokens
    ruled.remove("scopes~scopes", "scopes~scoped")


@pytest.mark.parametrize("scope,method,path,body", NEEDS, ids=[f"{m}{p}" for _, m, p, _ in NEEDS])
def test_each_route_needs_its_scope(ruled, by_scope, scope, method, path, body):
    box, tokens = by_scope
    only, without = tokens[scope]
    answer = ruled.request(method, path.format(box), json=body, token=without)
    refused(answer, 403, "denied", scope)
    answer = ruled.request(method, path.format(box), json=body, token=only)
    assert answer.status < 300, answer


# -- tenants

def test_names_do_not_clash(ruled, made):
    assert made(ruled.acme, id="box", memory="32M") == "box"
    assert made(ruled.other, id="box", memory="48M") == "box"
    assert made(ruled.root, id="box", memory="64M") == "box"
    ids = {b["id"]: b for b in ruled.get("/sandboxes").body["sandboxes"]}
    assert {"box", "acme~box", "other~box"} <= set(ids)
    assert ids["acme~box"]["tenant"] == "acme" and "tenant" not in ids["box"]
    for token, memory in ((ruled.acme, 32 << 20), (ruled.other, 48 << 20)):
        assert ruled.get("/sandboxes/box/stats", token=token).body["memory_max"] == memory
        body = ruled.get("/sandboxes/box", token=token).body
        assert body["id"] == "box" and set(body) == SANDBOX, "a tenant does not see its own name"
        assert body["init_pid"] == 0 and body["keeper_pid"] == 0, "nor pids of the host"
    assert ruled.get("/sandboxes/acme~box").body["init_pid"] > 0
    assert "acme~box" in ruled.cay.ids(), "the command line sees them in full"


def test_a_tenant_sees_only_its_own(ruled, made):
    mine, theirs = made(ruled.acme, labels={"x": "1"}), made(ruled.other, labels={"x": "1"})
    for query in ("", "?state=all", "?label=x%3D1"):
        listed = [b["id"] for b in ruled.get("/sandboxes" + query, token=ruled.acme).body["sandboxes"]]
        assert mine in listed and theirs not in listed
    assert ruled.get(f"/sandboxes/{mine}", token=ruled.acme).status == 200
    absent = ruled.get("/sandboxes/absent", token=ruled.acme)
    hidden = ruled.get(f"/sandboxes/{theirs}", token=ruled.acme)
    refused(hidden, 404, "not_found")
    assert hidden.error["message"].replace(theirs, "absent") == absent.error["message"], "no word tells it from none"


def test_pages_of_a_tenant(ruled, made):
    mine = [made(ruled.other) for _ in range(3)]
    for _ in range(2):
        made(ruled.acme)
    found, cursor = [], None
    while True:
        body = ruled.get("/sandboxes?limit=1" + (f"&cursor={cursor}" if cursor else ""), token=ruled.other).body
        found += [b["id"] for b in body["sandboxes"]]
        cursor = body["next_cursor"]
        if cursor is None:
            break
    assert found == mine


def test_events_of_a_tenant(ruled, made):
    mark = [e["seq"] for e in ruled.stream("/events")]
    start = mark[-1] + 1 if mark else 0
    with ruled.stream(f"/events?follow=true&from={start}", token=ruled.acme) as stream:
        theirs = made(ruled.other)
        mine = made(ruled.acme)
        event = next(stream)
        assert event["sandbox"] == mine and event["type"] == "created", event
    seen = {e["sandbox"] for e in ruled.stream(f"/events?from={start}", token=ruled.acme)}
    assert seen == {mine}
    assert {f"other~{theirs}", f"acme~{mine}"} <= {e["sandbox"] for e in ruled.stream(f"/events?from={start}")}


def test_generated_names_of_a_tenant(ruled, made):
    box = made(ruled.acme)
    assert "~" not in box and f"acme~{box}" in ruled.cay.ids()
    done = ruled.exec(box, "echo from $(hostname)", token=ruled.acme)
    assert done["exit_code"] == 0 and "acme" not in json.dumps(ruled.get(f"/sandboxes/{box}", token=ruled.acme).body)


# -- policy

@pytest.mark.parametrize("spec,status,rule", [
    ({"memory": "512M"}, 429, "policy.memory_max"), ({"ttl": "2h"}, 429, "policy.ttl_max"),
    ({"image": "dir:/"}, 403, "images"), ({"mounts": [{"source": "/tmp", "target": "/t", "read_only": True}]}, 403,
     "policy.mounts")])
def test_what_goes_beyond_the_policy_is_refused_by_name(ruled, spec, status, rule):
    answer = refused(ruled.post("/sandboxes", spec, token=ruled.acme), status, "denied" if status == 403 else "limit")
    assert answer.error["detail"]["rule"].endswith(rule) and rule in answer.error["message"], answer.error


def test_defaults_of_the_policy(ruled, made):
    box = made(ruled.acme)
    assert ruled.get(f"/sandboxes/{box}/stats", token=ruled.acme).body["memory_max"] == 64 << 20
    assert 0 < ruled.get(f"/sandboxes/{box}", token=ruled.acme).body["ttl_left_ms"] <= 3600_000, "a ceiling binds"
    refused(ruled.patch(f"/sandboxes/{box}", {"ttl": "3h"}, token=ruled.acme), 429, "limit", "ttl_max")
    refused(ruled.patch(f"/sandboxes/{box}", {"ttl": 0}, token=ruled.acme), 429, "limit", "ttl_max")
    assert ruled.patch(f"/sandboxes/{box}", {"ttl": "30m"}, token=ruled.acme).status == 200


def test_number_of_sandboxes(ruled, made):
    boxes = [made(ruled.acme) for _ in range(3)]
    answer = refused(ruled.post("/sandboxes", {}, token=ruled.acme), 429, "limit")
    assert answer.error["detail"]["rule"] == "tenant acme.sandboxes_max", answer.error
    assert made(ruled.other), "another tenant has room"
    assert ruled.delete(f"/sandboxes/{boxes[0]}", token=ruled.acme).status == 204
    made(ruled.acme)


def test_the_limit_holds_for_creates_at_once(ruled):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ruled.post("/sandboxes", {}, token=ruled.acme), range(12)))
    try:
        assert sorted(a.status for a in answers) == [201] * 3 + [429] * 9
    finally:
        for answer in answers:
            if answer.status == 201:
                ruled.delete(f"/sandboxes/{answer.body['id']}", token=ruled.acme)


def test_totals_and_what_ended_does_not_count(ruled, made):
    first = made(ruled.small)
    made(ruled.small)
    answer = refused(ruled.post("/sandboxes", {}, token=ruled.small), 429, "limit")
    assert answer.error["detail"]["rule"] == "tenant small.memory_total", answer.error
    assert ruled.post(f"/sandboxes/{first}/kill", token=ruled.small).status == 204
    until(lambda: ruled.state_of(first, token=ruled.small) == "exited")
    third = ruled.post("/sandboxes", {}, token=ruled.small)
    assert third.status == 201, third
    ruled.delete(f"/sandboxes/{third.body['id']}", token=ruled.small)


def test_number_of_execs(ruled, made):
    box = made(ruled.small)
    pids = [ruled.start_process(box, "sleep 60", token=ruled.small) for _ in range(2)]
    answer = ruled.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=ruled.small)
    refused(answer, 429, "limit", "execs_max")
    assert ruled.delete(f"/sandboxes/{box}/processes/{pids[0]}", token=ruled.small).status == 204
    until(lambda: ruled.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=ruled.small).status == 200, 5)


def test_a_reload_changes_the_rules_for_what_comes(ruled, made):
    box = made(ruled.acme, memory="256M")
    try:
        ruled.write_policy(POLICY.replace("memory_max = 256M", "memory_max = 128M"))
        ruled.reload()
        refused(ruled.post("/sandboxes", {"memory": "256M"}, token=ruled.acme), 429, "limit", "memory_max")
        assert ruled.exec(box, "echo still here", token=ruled.acme)["exit_code"] == 0
    finally:
        ruled.write_policy(POLICY)
        ruled.reload()
    made(ruled.acme, memory="256M")


def test_mounts_by_what_they_resolve_to(daemons, tmp_path):
    """A link out of an allowed directory leads nowhere; the directory itself can be mounted."""
    os.chmod(tmp_path, 0o755)
    allowed = tmp_path.resolve() / "allowed"
    (allowed / "sub").mkdir(parents=True)
    (allowed / "sub" / "f").write_text("inside\n")
    (allowed / "out").symlink_to("/etc")
    beside = tmp_path.resolve() / "allowed-not"
    beside.mkdir()
    daemon = daemons(policy=f"[policy]\nmounts = {allowed}\n")
    token = daemon.token("t", tenant="acme")

    def create(source, read_only=True):
        spec = {"mounts": [{"source": str(source), "target": "/m", "read_only": read_only}]}
        return daemon.post("/sandboxes", spec, token=token)

    answer = create(allowed / "sub")
    assert answer.status == 201, answer
    assert daemon.exec(answer.body["id"], "cat /m/f", token=token)["stdout"] == "inside\n"
    for source in (allowed / "out", allowed / "out" / "ssl", beside, "/etc", f"{allowed}/../allowed-not", "/",
                   allowed / "nosuch"):
        refused(create(source), 403, "denied", "mounts")
    refused(create(allowed / "sub", read_only=False), 403, "denied", "mounts_rw")


# -- audit

def audit(daemon, query="", **options):
    answer = daemon.get("/audit" + query, **options)
    assert answer.status == 200, answer
    return answer.body["entries"]


def test_audit_tells_who_did_what(ruled, made):
    start = audit(ruled, "?limit=1000")
    after = start[-1]["seq"] if start else 0
    box = made(ruled.acme, labels={"job": "7"}, env={"SECRET": "hunter2"})
    ruled.exec(box, argv=["echo", "seen"], token=ruled.acme, env={"PASSWORD": "hunter3"}, input="hunter4")
    ruled.put(f"/sandboxes/{box}/files?path=/tmp/f", b"hunter5", token=ruled.acme)
    refused(ruled.post("/sandboxes", {"memory": "512M"}, token=ruled.acme), 429, "limit")
    refused(ruled.get("/audit", token=ruled.token("blind", tenant="acme", scopes="read")), 403, "denied")
    assert ruled.delete(f"/sandboxes/{box}", token=ruled.acme).status == 204
    entries = until(lambda: (lambda e: e if any(x["action"] == "delete" for x in e) else None)(
        audit(ruled, f"?after={after}&limit=1000")))
    mine = [e for e in entries if e.get("sandbox") == f"acme~{box}"]
    assert [e["action"] for e in mine if e["action"] in ("create", "exec", "write", "delete")] == \
        ["create", "exec", "write", "delete"], mine
    by = {e["action"]: e for e in mine}
    assert all(e["who"] == "acme-all" for e in by.values() if e["action"] != "ended")
    assert all(e["tenant"] == "acme" for e in mine)
    text = json.dumps(by["exec"])
    assert '"echo"' in text and '"seen"' in text and "/tmp/f" in json.dumps(by["write"])
    assert "7" in json.dumps(by["create"].get("labels")), by["create"]
    whole = json.dumps(entries)
    assert "hunter" not in whole and ruled.acme not in whole, "never a secret, never contents"
    assert "policy.memory_max" in whole and "scope.audit" in whole or "refused" in whole
    assert [e["seq"] for e in entries] == sorted({e["seq"] for e in entries})


def test_audit_queries(ruled, made):
    box = made(ruled.acme, labels={"audit": "q"})
    other = made(ruled.other)
    full = f"acme~{box}"
    until(lambda: audit(ruled, f"?sandbox={full}"), 5)
    assert {e["sandbox"] for e in audit(ruled, f"?sandbox={full}")} == {full}
    assert {e["tenant"] for e in audit(ruled, "?tenant=other")} == {"other"}
    assert full in {e["sandbox"] for e in audit(ruled, "?label=audit%3Dq")}
    assert f"other~{other}" not in {e.get("sandbox") for e in audit(ruled, "?label=audit%3Dq")}
    first = ruled.get("/audit?limit=2").body
    assert len(first["entries"]) == 2 and first["next_after"] == first["entries"][-1]["seq"]
    second = ruled.get(f"/audit?limit=2&after={first['next_after']}").body["entries"]
    assert second[0]["seq"] > first["entries"][-1]["seq"]
    for query in ("limit=0", "limit=x", "after=x", "since=yesterday%20at%20noon", "who=me"):
        answer = ruled.get("/audit?" + query)
        assert answer.status == 400 and answer.code == "invalid", (query, answer)


def test_audit_of_a_tenant_is_its_own(ruled, made):
    mine, theirs = made(ruled.acme), made(ruled.other)
    until(lambda: any((e.get("sandbox") or "").endswith(mine) for e in audit(ruled, "?limit=1000", token=ruled.acme)),
          5)
    for query in ("?limit=1000", "?limit=1000&tenant=other", f"?sandbox={theirs}", f"?sandbox=other~{theirs}"):
        answer = ruled.get("/audit" + query, token=ruled.acme)
        assert answer.status in (200, 400, 403, 404), answer
        text = json.dumps(answer.body)
        if answer.status == 200:
            assert all((e.get("tenant") or "acme") == "acme" for e in answer.body["entries"]), text
            assert f"other~{theirs}" not in text and theirs not in [e.get("sandbox") for e in answer.body["entries"]]


def test_the_audit_log_verifies(ruled, made):
    box = made(ruled.acme)
    ruled.exec(box, argv=["true"], token=ruled.acme)
    done = ruled.cay.run("audit", "--verify")
    assert done.returncode == 0, done
    kill = time.monotonic()
    ruled.restart("kill9")
    assert time.monotonic() - kill < 10
    ruled.exec(box, argv=["true"], token=ruled.acme)
    done = ruled.cay.run("audit", "--verify")
    assert done.returncode == 0, done
