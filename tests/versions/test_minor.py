# SPDX-License-Identifier: Apache-2.0
"""Versions of one major version work together in both directions: an upgrade, and the way back.

"next" is this version with a field more in every message and every record, and a higher minor version.
"""
import os
import signal
import threading
import time

import pytest

from lib.daemon import event_bytes
from versions.conftest import REF

PAIRS = [("own", "next"), ("next", "own"), *([("own", "ref"), ("ref", "own")] if REF else [])]
both_ways = pytest.mark.parametrize(("first", "second"), PAIRS)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def listed(cay, *options):
    return {box["id"]: box for box in cay.json("ps", "--json", *options)}


@both_ways
def test_the_command_line_goes_on_with_what_is_there(machine, first, second, tmp_path):
    cay = machine.install(first).cay
    cay.create("--name", "x", "--label", "k=v", "--memory", "256M")
    pid = cay.run("exec", "-d", "x", "--", "sh", "-c", "echo early; read line; echo $line").stdout.strip()
    running = cay.run("exec", "-d", "x", "--", "sleep", "1000", check=True).stdout.strip()
    machine.install(second)
    box = listed(cay)["x"]
    assert box["state"] == "running" and box["labels"] == {"k": "v"}, box
    assert cay.json("inspect", "x")["spec"]["memory"] == 256 << 20
    assert cay.create("--name", "x", "--label", "k=v", "--memory", "256M") == "x", "the same create, the same sandbox"
    assert cay.sh("x", "cat; exit 3", "-i", input="in").returncode == 3
    assert cay.run("attach", "x", pid, check=True).stdout.startswith("early")
    assert running in cay.run("procs", "x", check=True).stdout
    (tmp_path / "f").write_text("content")
    cay.run("cp", tmp_path / "f", "x:/tmp/f", check=True)
    assert cay.run("fs", "cat", "x", "/tmp/f", check=True).stdout == "content"
    assert "f" in cay.run("fs", "ls", "x", "/tmp", check=True).stdout.split()
    assert cay.json("stats", "--json", "x")["memory_max"] == 256 << 20
    for command in ("pause", "resume"):
        cay.run(command, "x", check=True)
    cay.run("update", "--ttl", "1h", "x", check=True)
    cay.run("signal", "x", running, "KILL", check=True)
    assert cay.run("wait", "x", running).returncode == 137
    assert "early" in cay.run("logs", "x", check=True).stdout
    cay.run("stop", "x", check=True)
    assert cay.run("run", "--", "echo", "new", check=True).stdout == "new\n"


@both_ways
def test_what_has_ended_is_seen_by_the_other(machine, first, second):
    """A rollback sees what the newer version left, and removes it."""
    cay = machine.install(first).cay
    cay.create("--name", "x", "--label", "k=v")
    cay.sh("x", "echo said", check=True)
    cay.run("stop", "x", check=True)
    cay.create("--name", "y")
    machine.install(second)
    box = listed(cay, "-a", "--label", "k=v")["x"]
    assert (box["state"], box["reason"], box["image"]) == ("exited", "stopped", "host"), box
    assert cay.json("inspect", "x")["spec"]["labels"] == {"k": "v"}
    assert cay.run("logs", "x", check=True).stdout == "said\n"
    assert "has ended" in cay.run("exec", "x", "true").stderr
    cay.run("kill", "y", check=True)
    cay.run("rm", "x", "y", check=True)
    assert cay.ids() == []


@both_ways
def test_a_dead_keeper_is_swept_by_the_other(machine, first, second):
    cay = machine.install(first).cay
    cay.create("--name", "x", "--label", "k=v")
    keeper = listed(cay)["x"]["keeper_pid"]
    machine.install(second)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: listed(cay, "-a")["x"]["state"] == "lost")
    assert listed(cay, "-a")["x"]["labels"] == {"k": "v"}
    cay.run("rm", "x", check=True)


@both_ways
def test_a_daemon_takes_over_what_is_there(machine, first, second):
    machine.install(first).start()
    machine.create(id="x", labels={"k": "v"}, memory="256M")
    machine.put("/sandboxes/x/files?path=/tmp/f", b"content")
    pid = machine.start_process("x", "echo early; read line; echo $line", stdin=True, key="a-start")
    machine.cay.create("--name", "y")
    machine.stop()
    machine.install(second).start()
    assert {box["id"]: box["state"] for box in machine.get("/sandboxes").body["sandboxes"]} == \
        {"x": "running", "y": "running"}
    assert machine.exec("x", "cat /tmp/f")["stdout"] == "content"
    assert machine.get("/sandboxes/x/files?path=/tmp/f").body == b"content"
    assert machine.get("/sandboxes/x/spec").body["memory"] == 256 << 20
    assert machine.get("/sandboxes/x/stats").body["memory_max"] == 256 << 20
    assert machine.post("/sandboxes", {"id": "x", "labels": {"k": "v"}, "memory": "256M"}).status == 200
    again = machine.post("/sandboxes/x/processes", {"shell": "echo early; read line; echo $line", "stdin": True,
                                                    "key": "a-start"})
    assert again.body["pid"] == pid, "the same start"
    machine.request("POST", f"/sandboxes/x/processes/{pid}/stdin", body=b"late\n")
    assert machine.wait_process("x", pid)["exit_code"] == 0
    assert machine.output("x", pid) == b"early\nlate\n"
    assert machine.patch("/sandboxes/x", {"ttl": 3600}).status == 200
    assert machine.post("/sandboxes/y/stop", {"grace": 1}).status == 204
    assert machine.delete("/sandboxes/x").status == machine.delete("/sandboxes/y").status == 204
    assert machine.get("/sandboxes?state=all").body["sandboxes"] == []


@pytest.mark.parametrize(("first", "second"), [*PAIRS, ("own", "major"), ("major", "own")])
def test_what_runs_is_counted_or_the_log_says_that_it_is_not(machine, first, second):
    machine.options["policy"] = machine.policy_file
    machine.write_policy("[tenant acme]\nexecs_max = 1\n")
    machine.install(first).start()
    token = machine.token("t", tenant="acme")
    machine.create(id="x", token=token)
    machine.start_process("x", "exec sleep 1000", token=token)
    machine.stop()
    machine.install(second).start()
    counted = "major" not in (first, second)
    logged = [line for line in machine.lines() if "not counted" in line["msg"]]
    assert [line["sandbox"] for line in logged] == ([] if counted else ["acme~x"])
    assert counted or machine.who(first) in logged[0]["error"]
    answer = machine.post("/sandboxes/x/exec", {"shell": "true"}, token=token)
    assert answer.code == ("limit" if counted else "version"), answer
    assert [box["id"] for box in machine.get("/sandboxes", token=token).body["sandboxes"]] == ["x"]
    assert machine.delete("/sandboxes/x", token=token).status == 204


class Follower(threading.Thread):
    """Reads the output of a process to its end, at its offset again whenever the stream is cut."""

    def __init__(self, machine, box, pid):
        super().__init__(daemon=True)
        self.machine, self.path = machine, f"/sandboxes/{box}/processes/{pid}/output"
        self.got, self.over, self.cuts = b"", False, 0
        self.start()

    def run(self):
        while not self.over:
            try:
                self.follow()
            except (OSError, ValueError):
                pass
            self.cuts += not self.over
            time.sleep(0.01)

    def follow(self):
        with self.machine.stream(f"{self.path}?follow=true&from={len(self.got)}") as stream:
            for event in stream if stream.status == 200 else ():
                if event["type"] == "output":
                    assert event["offset"] == len(self.got), event
                    self.got += event_bytes(event)
                self.over = event["type"] == "exit"


@both_ways
def test_a_daemon_becomes_the_other_under_live_streams(machine, first, second):
    """SIGUSR2 executes what is installed now, and again after the way back."""
    machine.options["drain"] = "100ms"
    machine.install(first).start()
    machine.create(id="x")
    pid = machine.start_process("x", "i=0; while [ ! -e /tmp/enough ]; do i=$((i+1)); echo line $i; sleep 0.01; done",
                                key="lines")
    follower = Follower(machine, "x", pid)
    for version in (second, first):
        until(lambda: follower.got, 30)
        seen = len(follower.got)
        machine.install(version)
        machine.upgrade()
        assert machine.get("/version").body["version"] == machine.version(version), "the other program serves"
        until(lambda: len(follower.got) > seen)
        assert machine.exec("x", "echo $0")["exit_code"] == 0
    machine.exec("x", "touch /tmp/enough")
    follower.join(30)
    lines = follower.got.decode().splitlines()
    assert follower.over and follower.cuts >= 2
    assert lines == [f"line {i + 1}" for i in range(len(lines))], "every byte once"
    assert machine.delete("/sandboxes/x").status == 204


def pool_ready(machine):
    text = machine.get("/metrics").body.decode()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("cay_pool_ready"))


@both_ways
def test_prepared_sandboxes_of_the_other_are_used(machine, first, second):
    """The keeper is another one before the daemon is, and both kinds of prepared sandboxes are good."""
    machine.options["pool"] = 1
    machine.install(first).start()
    until(lambda: pool_ready(machine) == 1)
    machine.install(second)
    boxes = []
    for _ in range(2):  # prepared by the keeper that was there, then by the other one
        boxes.append(machine.create())
        assert machine.exec(boxes[-1], "echo hi")["stdout"] == "hi\n"
        until(lambda: pool_ready(machine) == 1)
    text = machine.get("/metrics").body.decode()
    assert "cay_pool_hits_total 2" in text, text
    machine.upgrade()
    until(lambda: pool_ready(machine) == 1)
    boxes.append(machine.create())
    for box in boxes:
        assert machine.exec(box, "echo hi")["stdout"] == "hi\n"
        assert machine.delete(f"/sandboxes/{box}").status == 204
