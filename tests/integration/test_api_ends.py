# SPDX-License-Identifier: Apache-2.0
"""Ends of the daemon, of clients and of sandboxes under running commands.

A daemon that ends is not a client that went: commands live on, and their clients get the whole result from the next
one. A client that went takes its command along if that was asked for, across a restart too. Whoever waits for a
command that did not end by itself is told why.
"""
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from integration.support import until
from lib.aio import Aio
from lib.daemon import BYTES, FRAMES
from lib.patient import followed, whole

LEASE = 10.0  # seconds that a command with kill_on_disconnect lives without a client that is not known to be gone
WAYS = ("stop", "upgrade", "kill9")
# Once: it counts its runs. Both streams, before and after the cut.
COMMAND = "echo ran >> /tmp/runs; echo begun; echo bad >&2; sleep 2; echo done; exit 3"


def end_daemon(daemon, how):
    """Ends it and brings the next one up."""
    if how == "upgrade":
        daemon.upgrade()
    else:
        daemon.restart(how)


def processes(daemon, box, **options):
    return daemon.get(f"/sandboxes/{box}/processes", **options).body["processes"]


def running(daemon, box):
    return [p for p in processes(daemon, box) if p["running"]]


def in_thread(call):
    """(thread, what call returns, as a list)."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    return thread, got


# -- daemons that end

@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_an_exec_outlives_its_daemon_and_its_client_gets_all_of_it(daemons, how, kill):
    daemon = daemons(drain="100ms")
    box = daemon.create()
    body = {"shell": COMMAND, "kill_on_disconnect": kill}
    thread, got = in_thread(lambda: whole(daemon, box, body))
    until(lambda: running(daemon, box))
    end_daemon(daemon, how)
    thread.join(60)
    result = got[0]
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "begun\ndone\n", "bad\n"), result
    assert "reason" not in result
    assert daemon.exec(box, "cat /tmp/runs")["stdout"] == "ran\n", "it ran once"


@pytest.mark.parametrize("how", WAYS)
def test_a_followed_process_outlives_its_daemon(daemons, how):
    daemon = daemons(drain="100ms")
    box = daemon.create()
    counter = "echo ran >> /tmp/runs; for i in $(seq 400); do echo $i; sleep 0.01; done"
    thread, got = in_thread(lambda: followed(daemon, box, {"shell": counter, "kill_on_disconnect": True}))
    for _ in range(2):
        time.sleep(0.5)
        end_daemon(daemon, how)
    thread.join(60)
    result = got[0]
    assert result.exit["exit_code"] == 0 and result.cuts >= 2, result
    assert result.stdout == b"".join(b"%d\n" % i for i in range(1, 401))
    assert daemon.exec(box, "cat /tmp/runs")["stdout"] == "ran\n"


@pytest.mark.parametrize("how", ["stop", "upgrade"])
def test_streams_say_that_the_daemon_ends(daemons, how):
    """An orderly end is told apart from a lost connection: the last event is an error, and the answer is whole."""
    daemon = daemons(drain="100ms", tcp=True, tls=True)
    token = daemon.token("op")
    box = daemon.create()
    pid = daemon.start_process(box, "echo up; exec sleep 1000", stdin=True)
    output, watch = f"/sandboxes/{box}/processes/{pid}/output?follow=true", f"/sandboxes/{box}/fs/watch?path=/tmp"
    paths = [output, f"/sandboxes/{box}/logs?follow=true", watch, "/events?follow=true"]
    lines = [daemon.stream(path, tcp=tcp, token=token) for path in paths for tcp in (False, True)]
    framed, raw = daemon.stream(output, accept=FRAMES), daemon.stream(output, accept=BYTES)
    sockets = [daemon.websocket(f"/sandboxes/{box}/processes/{pid}/attach", tcp=tcp, token=token)
               for tcp in (False, True)]
    for stream in lines:
        assert next(stream)["type"] != "error"
    frames = framed.frames()
    assert next(frames)[2] == b"up\n" and raw.read(3) == b"up\n"
    for attached in sockets:
        attached.expect(b"up\n")
    end_daemon(daemon, how)
    for stream in lines:
        last = list(stream)[-1]
        assert (last["type"], last["error"]["code"]) == ("error", "unavailable"), last
    kind, offset, event = list(frames)[-1]
    assert (kind, offset, event["error"]["code"]) == (5, 3, "unavailable")
    with pytest.raises(http.client.IncompleteRead):
        raw.read()  # bytes have no room for an event: it is cut
    for attached in sockets:
        _, messages, code = attached.until_close()
        assert (messages[-1]["error"]["code"], code) == ("unavailable", 1001), messages
    for stream in (*lines, framed, raw, *sockets):
        stream.close()
    assert daemon.get(f"/sandboxes/{box}/processes/{pid}").body["running"]


def test_an_exec_without_a_key_goes_on_as_well(daemons):
    """Whoever has no key loses the answer, and not the command."""
    daemon = daemons(drain="100ms")
    box = daemon.create()
    client = daemon.client()
    client.connection.request("POST", f"/api/v1/sandboxes/{box}/exec", headers={"Content-Type": "application/json"},
                              body=b'{"shell":"sleep 2; echo all > /tmp/done","kill_on_disconnect":true}')
    until(lambda: running(daemon, box))
    daemon.restart("stop")
    client.close()
    until(lambda: not running(daemon, box), LEASE)
    assert daemon.exec(box, "cat /tmp/done")["stdout"] == "all\n"


@pytest.mark.parametrize("how", WAYS)
def test_input_comes_once_and_whole(daemons, how):
    """The process reads slowly, and its daemon goes in the middle: the next one sends what is missing."""
    daemon = daemons(drain="100ms")
    box = daemon.create()
    text = "".join(f"{i:09}\n" for i in range(70000))
    thread, got = in_thread(lambda: whole(daemon, box, {"shell": "sleep 1.5; cksum", "input": text}))
    until(lambda: running(daemon, box))
    end_daemon(daemon, how)
    thread.join(60)
    wanted = subprocess.run(["cksum"], input=text.encode(), capture_output=True, check=True).stdout.decode()
    assert got[0]["stdout"] == wanted, got[0]


def test_input_at_an_offset_can_be_sent_again(cayd, cayd_make):
    box = cayd_make()
    pid = cayd.start_process(box, "cat", stdin=True)
    path = f"/sandboxes/{box}/processes/{pid}/stdin"
    for query, data in (("offset=0", b"abc"), ("offset=0", b"abcd"), ("offset=2", b"cde"), ("offset=1", b"bc"),
                        ("offset=0&eof=true", b"abcdef")):
        assert cayd.request("POST", f"{path}?{query}", body=data).status == 204
    cayd.wait_process(box, pid)
    assert cayd.output(box, pid) == b"abcdef"


# -- keys

def test_a_key_starts_one_process(cayd, cayd_make):
    box = cayd_make()
    body = {"shell": "echo ran >> /tmp/runs; echo out; sleep 0.5", "key": "a.key_1-2"}
    pids = {cayd.start_process(box, **body) for _ in range(3)}
    assert len(pids) == 1
    assert whole(cayd, box, body)["pid"] in pids, "and an exec with it joins"
    assert followed(cayd, box, body).stdout == b"out\n", "after its end, too"
    with cayd.stream(f"/sandboxes/{box}/processes?follow=true&from=2", method="POST", json=body) as stream:
        events = list(stream)
    assert [e.get("data") for e in events if e["type"] == "output"] == ["t\n"] and events[-1]["type"] == "exit"
    assert cayd.exec(box, "cat /tmp/runs")["stdout"] == "ran\n"
    assert cayd.start_process(box, **{**body, "key": "other"}) not in pids


@pytest.mark.parametrize("change", [{"shell": "true"}, {"argv": ["sleep", "0"], "shell": None}, {"cwd": "/tmp"},
                                    {"env": {"A": "b"}}, {"user": "root"}])
def test_a_key_is_for_one_command(cayd, cayd_box, change):
    key = str(uuid.uuid4())
    cayd.start_process(cayd_box, "sleep 0", key=key)
    body = {k: v for k, v in {"shell": "sleep 0", "key": key, **change}.items() if v is not None}
    for route in ("processes", "exec"):
        answer = cayd.post(f"/sandboxes/{cayd_box}/{route}", body)
        assert answer.status == 409 and answer.code == "conflict", answer


@pytest.mark.parametrize("follow", ["", "?follow=true"])
def test_a_key_that_is_only_asked_for_starts_nothing(cayd, cayd_make, follow):
    box = cayd_make()
    body = {"shell": "echo ran >> /tmp/runs; echo out", "key": "k"}
    path = f"/sandboxes/{box}/processes{follow}"
    answer = cayd.post(path, {**body, "known": True})
    assert answer.status == 404 and answer.code == "not_found", answer
    assert cayd.get(f"/sandboxes/{box}/processes").body["processes"] == []
    pid = cayd.start_process(box, **body, known=False)
    cayd.wait_process(box, pid)
    if follow:
        with cayd.stream(path, method="POST", json={**body, "known": True}) as stream:
            assert int(stream.headers["X-Cay-Pid"]) == pid and [e["type"] for e in stream][-1] == "exit"
    else:
        assert cayd.start_process(box, **body, known=True) == pid
    assert cayd.post(path, {**body, "shell": "true", "known": True}).code == "conflict"
    answer = cayd.post(path, {"shell": "true", "known": True})
    assert answer.status == 400 and answer.error["detail"] == {"field": "known"}, answer
    assert cayd.post(f"/sandboxes/{box}/exec", {**body, "known": True}).status == 400
    assert cayd.exec(box, "cat /tmp/runs")["stdout"] == "ran\n"


def test_a_key_that_is_only_asked_for_needs_no_place(daemons):
    """It is found while the tenant's commands are as many as they may be, and is none of them."""
    daemon = daemons(tcp=True, policy="[tenant acme]\nexecs_max = 1\n")
    token = daemon.token("t", tenant="acme")
    box = daemon.create(token=token, tcp=True)
    body = {"shell": "sleep 60", "key": "k"}
    for _ in range(3):
        answer = daemon.post(f"/sandboxes/{box}/processes", {**body, "known": True}, token=token, tcp=True)
        assert answer.status == 404, answer
    pid = daemon.start_process(box, **body, token=token, tcp=True)
    for _ in range(3):
        assert daemon.start_process(box, **body, known=True, token=token, tcp=True) == pid
    missing = daemon.post(f"/sandboxes/{box}/processes", {**body, "key": "l", "known": True}, token=token, tcp=True)
    assert missing.status == 404, missing
    assert daemon.delete(f"/sandboxes/{box}/processes/{pid}", token=token, tcp=True).status == 204


@pytest.mark.parametrize("key", ["", "a b", "é", "k" * 65, 7])
def test_wrong_keys(cayd, cayd_box, key):
    for route in ("processes", "exec"):
        answer = cayd.post(f"/sandboxes/{cayd_box}/{route}", {"argv": ["true"], "key": key})
        assert answer.status == 400 and answer.code == "invalid" and "key" in str(answer.error), answer


def test_a_start_that_failed_leaves_its_key_free(cayd, cayd_make):
    box = cayd_make()
    for _ in range(2):
        answer = cayd.post(f"/sandboxes/{box}/processes", {"argv": ["/tmp/prog"], "key": "k"})
        assert answer.status == 404, answer
    cayd.exec(box, "printf '#!/bin/sh\\necho now\\n' > /tmp/prog; chmod +x /tmp/prog")
    assert cayd.exec(box, argv=["/tmp/prog"], key="k")["stdout"] == "now\n"


def test_a_key_whose_process_is_forgotten_runs_nothing(cayd, cayd_make):
    """The keeper remembers 256 processes that have ended: then the result is lost, and told to be."""
    box = cayd_make()
    assert cayd.exec(box, "echo ran >> /tmp/runs", key="first")["exit_code"] == 0
    with cayd.client() as client:
        for i in range(260):
            assert client.post(f"/sandboxes/{box}/exec", {"argv": ["true"], "key": f"k{i}"}).status == 200
    for route in ("exec", "processes", "processes?follow=true"):
        answer = cayd.post(f"/sandboxes/{box}/{route}", {"shell": "echo ran >> /tmp/runs", "key": "first"})
        assert answer.status == 410 and answer.code == "lost", answer
    assert cayd.exec(box, "cat /tmp/runs")["stdout"] == "ran\n"


def test_starts_of_one_key_at_once(cayd, cayd_make):
    box = cayd_make()
    body = {"shell": "echo ran >> /tmp/runs; sleep 0.3; echo out", "key": "k"}
    threads = [in_thread(lambda: whole(cayd, box, body)) for _ in range(8)]
    for thread, _ in threads:
        thread.join(30)
    assert len({got[0]["pid"] for _, got in threads}) == 1
    assert all(got[0]["stdout"] == "out\n" for _, got in threads)
    assert cayd.exec(box, "cat /tmp/runs")["stdout"] == "ran\n"


def test_a_known_key_is_answered_while_paused(cayd, cayd_make):
    box = cayd_make()
    pid = cayd.start_process(box, "echo up; sleep 60", key="k")
    assert cayd.post(f"/sandboxes/{box}/pause").status == 204
    assert cayd.start_process(box, "echo up; sleep 60", key="k") == pid
    assert cayd.post(f"/sandboxes/{box}/processes", {"argv": ["true"], "key": "l"}).code == "conflict"


# -- clients that go

# Asks for a command that would take a minute, and waits.
CLIENT = r"""
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
body = b'{"argv":["sleep","61"],"kill_on_disconnect":true}'
s.sendall(f"POST /api/v1/sandboxes/{sys.argv[2]}/{sys.argv[3]} HTTP/1.1\r\nHost: localhost\r\n"
          f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
time.sleep(100)
"""


@pytest.mark.parametrize("how", [None, *WAYS])
def test_a_client_that_is_killed_takes_its_command_along(daemons, how):
    """Clients in processes of their own that are killed; with the end of the daemon in between, or not."""
    daemon = daemons(drain="100ms")
    box = daemon.create()
    clients = [subprocess.Popen([sys.executable, "-c", CLIENT, str(daemon.sock), box, route])
               for route in ("exec", "processes?follow=true")]
    until(lambda: len(running(daemon, box)) == 2)
    if how:
        end_daemon(daemon, how)
    assert len(running(daemon, box)) == 2
    for client in clients:
        client.kill()
        client.wait()
    if not how:
        until(lambda: len(running(daemon, box)) < 2, LEASE / 2)
    until(lambda: not running(daemon, box), LEASE + 5)
    assert [p["exit"]["reason"] for p in processes(daemon, box)] == ["its client went away"] * 2


def test_a_process_that_nobody_is_to_stay_with_goes_on(daemons):
    """Its tenant's commands are counted, for which the daemon waits for their ends: that is not staying with them."""
    daemon = daemons(tcp=True, policy="[tenant acme]\nexecs_max = 5\n")
    token = daemon.token("t", tenant="acme")
    box = f"acme~{daemon.create(token=token)}"
    pid = daemon.start_process(box, "sleep 61")
    leased = daemon.start_process(box[5:], "sleep 61", kill_on_disconnect=True, token=token)
    daemon.restart("kill9")
    later = daemon.start_process(box[5:], "sleep 61", kill_on_disconnect=True, token=token)
    until(lambda: [p["pid"] for p in running(daemon, box)] == [pid], LEASE + 5)
    for one in (leased, later):
        assert daemon.wait_process(box, one)["reason"] == "its client went away"


def test_whoever_follows_or_waits_keeps_it(daemons):
    daemon = daemons()
    box = daemon.create()
    body = {"shell": "sleep 61", "kill_on_disconnect": True}
    waited, read = (daemon.start_process(box, **body) for _ in range(2))
    with daemon.stream(f"/sandboxes/{box}/processes/{read}/output?follow=true"):
        answer = daemon.post(f"/sandboxes/{box}/processes/{waited}/wait", {"timeout": LEASE + 4}, timeout=60)
        assert answer.code == "timeout", answer
        assert {p["pid"] for p in running(daemon, box)} == {waited, read}
    until(lambda: not running(daemon, box), LEASE + 5)


def test_a_lease_stands_still_while_paused(daemons):
    daemon = daemons()
    box = daemon.create()
    pid = daemon.start_process(box, "sleep 61", kill_on_disconnect=True)
    time.sleep(LEASE / 2)
    assert daemon.post(f"/sandboxes/{box}/pause").status == 204
    time.sleep(LEASE)
    assert daemon.post(f"/sandboxes/{box}/resume").status == 204
    resumed = time.monotonic()
    assert running(daemon, box)
    until(lambda: not running(daemon, box), LEASE)
    assert time.monotonic() - resumed > LEASE / 4, "it had half of its time left"
    assert daemon.wait_process(box, pid)["reason"] == "its client went away"


@pytest.mark.parametrize("how", [None, "stop"])
def test_commands_of_the_aio_front_end_with_their_client(daemons, how):
    daemon = daemons(drain="100ms", tcp=True)
    box = daemon.create()
    aio = Aio(daemon, box, tcp=False)
    background = aio.data("bash/exec", command="sleep 62", async_mode=True)
    late = aio.data("bash/exec", command="sleep 63", timeout=0.3)
    assert background["status"] == late["status"] == "running"
    client = daemon.client()
    client.connection.request("POST", f"{aio.path}/v1/bash/exec", headers={"Content-Type": "application/json"},
                              body=b'{"command":"sleep 61"}')
    until(lambda: len(running(daemon, box)) == 3)
    if how:
        daemon.restart(how)
    assert len(running(daemon, box)) == 3
    client.close()
    until(lambda: len(running(daemon, box)) == 2, LEASE + 5)
    gone = [p for p in processes(daemon, box) if not p["running"]]
    assert [p["exit"]["reason"] for p in gone] == ["its client went away"] and "sleep 61" in gone[0]["command"]
    time.sleep(LEASE / 4)
    assert len(running(daemon, box)) == 2, "what was answered for, or asked for so, goes on"


# -- quotas

@pytest.mark.parametrize("how", WAYS)
def test_what_runs_counts_after_a_restart(daemons, how):
    daemon = daemons(drain="100ms", policy="[tenant acme]\nexecs_max = 2\n", tcp=True)
    token = daemon.token("t", tenant="acme")
    box = daemon.create(token=token)
    first = daemon.start_process(box, "sleep 61", token=token, key="first")
    daemon.start_process(box, "sleep 61", token=token)
    end_daemon(daemon, how)

    def ask(**body):
        """Right after the start it may not be counted yet, and then says so."""
        return until(lambda: (lambda a: a if a.status != 503 else None)(
            daemon.post(f"/sandboxes/{box}/processes", body, token=token)))

    answer = ask(argv=["true"])
    assert answer.status == 429 and "execs_max" in str(answer.error), answer
    answer = ask(argv=["true"], key="new")
    assert answer.status == 429 and "execs_max" in str(answer.error), answer
    assert ask(shell="sleep 61", key="first").body["pid"] == first, "what has a place needs no other"
    for route in ("exec", "processes?follow=true"):
        answer = daemon.post(f"/sandboxes/{box}/{route}", {"argv": ["true"], "key": "new"}, token=token)
        assert answer.status == 429, answer
    assert daemon.delete(f"/sandboxes/{box}/processes/{first}", token=token).status == 204
    until(lambda: ask(argv=["true"]).status == 201, 5)
    daemon.delete(f"/sandboxes/{box}", token=token)


# -- reasons

def ended(daemon, box, act, **body):
    """How a command ends under `act`: as POST exec says it, and as a stream does."""
    body = {"shell": "echo up; sleep 61", **body}
    one = in_thread(lambda: daemon.exec(box, **body))

    def follow():
        with daemon.stream(f"/sandboxes/{box}/processes?follow=true", method="POST", json=body) as stream:
            return list(stream)[-1]["exit"]

    two = in_thread(follow)
    until(lambda: len(running(daemon, box)) == 2)
    act()
    for thread, _ in (one, two):
        thread.join(30)
    return [got[0] for _, got in (one, two)]


@pytest.mark.parametrize("act, reason, code", [
    (lambda d, b: d.delete(f"/sandboxes/{b}"), "the sandbox was removed", 137),
    (lambda d, b: d.post(f"/sandboxes/{b}/kill"), "the sandbox was killed", 137),
    (lambda d, b: d.post(f"/sandboxes/{b}/stop"), "the sandbox was stopped", 143),
    (lambda d, b: d.patch(f"/sandboxes/{b}", {"ttl": "100ms"}), "its time to live is over", 137),
    (lambda d, b: [d.delete(f"/sandboxes/{b}/processes/{p['pid']}") for p in running(d, b)], "killed on request", 137),
    (lambda d, b: [d.post(f"/sandboxes/{b}/processes/{p['pid']}/signal", {"signal": "TERM", "tree": True})
                   for p in running(d, b)], None, 143)])
def test_whoever_waits_is_told_why(cayd, cayd_make, act, reason, code):
    box = cayd_make()
    for exit in ended(cayd, box, lambda: act(cayd, box)):
        assert (exit["exit_code"], exit.get("reason")) == (code, reason), exit


def test_a_timeout_is_a_reason(cayd, cayd_make):
    for exit in ended(cayd, cayd_make(), lambda: None, timeout=1):
        assert exit["reason"] == "timed out" and exit["timed_out"] and exit["exit_code"] == 124


def test_what_ends_by_itself_has_no_reason(cayd, cayd_box):
    for shell in ("true", "exit 7", "kill -9 $$", "kill -TERM $$"):
        assert "reason" not in cayd.exec(cayd_box, shell)


def test_a_process_in_the_list_has_its_reason(cayd, cayd_make):
    box = cayd_make()
    pid = cayd.start_process(box, "sleep 61")
    cayd.delete(f"/sandboxes/{box}/processes/{pid}")
    until(lambda: not running(cayd, box))
    assert processes(cayd, box)[0]["exit"]["reason"] == "killed on request"
    assert cayd.wait_process(box, pid)["reason"] == "killed on request"


@pytest.mark.parametrize("host", [False, True])
def test_the_command_line_says_why(cayd, host):
    options = ["--host", f"unix:{cayd.sock}"] if host else []
    done = cayd.cay.run(*options, "run", "--ttl", "1s", "--", "sleep", "9")
    assert done.returncode == 137
    assert "cay: the command was ended: its time to live is over\n" in done.stderr, done.stderr
    box = cayd.create()
    process = cayd.cay.popen(*options, "exec", box, "-c", "echo up; exec sleep 61", stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"  # it is followed, and not only started
    cayd.delete(f"/sandboxes/{box}")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 137 and "cay: the command was ended: the sandbox was removed\n" in said, said
    for script in ("exit 5", "kill -9 $$"):
        assert cayd.cay.run(*options, "run", "--", "sh", "-c", script).stderr == ""


def test_a_signal_of_the_user_is_no_news(cay, make):
    process = cay.popen("exec", make(), "--", "sleep", "61", stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and said == "", said
