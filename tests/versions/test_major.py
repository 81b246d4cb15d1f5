# SPDX-License-Identifier: Apache-2.0
"""What does not fit is said to be that, and can be listed, stopped and removed all the same.

"must" is a later version whose every message and record has a field that must be understood; "major" is the next
major version. Each is tried with this version in both directions.
"""
import os
import signal
import socket
import threading

import pytest

from versions.conftest import LATER
from versions.test_minor import Follower, listed, pool_ready, until

MAJOR = [("own", "major"), ("major", "own")]
MUST = [("own", "must"), ("must", "own")]


def versions(pairs):
    return pytest.mark.parametrize(("keeper", "caller"), pairs)


def says_version(machine, text, keeper, caller):
    assert f"the keeper of sandbox 'x' is {machine.who(keeper)}, this is {machine.who(caller)}" in text, text
    assert "stop and remove" in text


@versions(MAJOR + MUST)
def test_every_version_is_listed_stopped_and_removed(machine, keeper, caller):
    cay = machine.install(keeper).cay
    for name in ("x", "y", "z", "w"):
        cay.create("--name", name, "--label", "k=v")
    cay.run("exec", "-d", "x", "--", "sh", "-c", "trap 'touch /tmp/asked; exit' TERM; while :; do sleep 0.1; done",
            check=True)
    keepers = {name: box["keeper_pid"] for name, box in listed(cay).items()}
    machine.install(caller)
    assert {name: box["state"] for name, box in listed(cay).items()} == dict.fromkeys("wxyz", "running")
    assert listed(cay, "--label", "k=v").keys() == keepers.keys()
    cay.run("stop", "--grace", "20s", "x", check=True)
    cay.run("kill", "y", check=True)
    os.kill(keepers["w"], signal.SIGKILL)
    until(lambda: listed(cay, "-a")["w"]["state"] == "lost")
    ended = listed(cay, "-a")
    assert (ended["x"]["state"], ended["y"]["state"]) == ("exited", "exited"), "they were asked, and not just killed"
    assert ended["x"]["reason"].startswith("stopped"), ended["x"]
    assert ended["x"]["created_ms"] and ended["x"]["image"] == "host"
    cay.run("rm", "x", "y", "w", check=True)
    cay.run("rm", "-f", "z", check=True)
    assert cay.ids() == []


@versions(MAJOR)
def test_calls_name_both_versions(machine, keeper, caller):
    cay = machine.install(keeper).cay
    cay.create("--name", "x")
    pid = cay.run("exec", "-d", "x", "--", "sleep", "1000", check=True).stdout.strip()
    machine.install(caller)
    for args in (["exec", "x", "--", "true"], ["logs", "x"], ["stats", "x"], ["procs", "x"], ["pause", "x"],
                 ["fs", "ls", "x", "/"], ["attach", "x", pid], ["wait", "x", pid], ["signal", "x", pid, "KILL"],
                 ["update", "--ttl", "1h", "x"], ["inspect", "x"], ["create", "--name", "x"], ["exec", "x", "--", "true", *["x" * 100000] * 8]):
        done = cay.run(*args)
        assert done.returncode == 125, (args, done)
        says_version(machine, done.stderr, keeper, caller)
    assert listed(cay)["x"]["state"] == "running", "and none of that hurt it"
    machine.install(keeper)
    assert cay.sh("x", "echo fine").stdout == "fine\n"


@versions(MAJOR)
def test_a_keeper_that_does_not_fit_makes_nothing(machine, keeper, caller):
    cay = machine.install(caller).install(keeper, "cay-keeper").cay
    for args in (["create", "--name", "x"], ["run", "--", "true"],
                 ["create", "--name", "x", *[f"--env=A{i}=" + "x" * 100000 for i in range(5)]]):
        done = cay.run(*args)
        assert done.returncode == 125, done
        assert f"is {machine.who(keeper)}, this is {machine.who(caller)}; making sandboxes" in done.stderr, done.stderr
    assert cay.ids() == []


@versions(MUST)
def test_what_must_be_understood_is_refused_by_number(machine, keeper, caller):
    cay = machine.install(keeper).cay
    cay.create("--name", "x")
    cay.sh("x", "echo said", check=True)
    machine.install(caller)
    for args in (["exec", "x", "--", "true"], ["stats", "x"], ["fs", "ls", "x", "/"], ["logs", "x"]):
        done = cay.run(*args)
        assert done.returncode == 125 and f"{machine.who('own')} does not know field 1000" in done.stderr, (args, done)
        assert f"the other side speaks protocol {LATER}" in done.stderr
    # A keeper of the other version is started: it must not make a sandbox by halves.
    machine.install(keeper, "cay-keeper")
    done = cay.run("create", "--name", "new")
    assert done.returncode == 125 and "does not know field 1000" in done.stderr, done
    assert "new" not in cay.ids()
    assert not (machine.run_dir / "new").exists()


@versions(MAJOR)
def test_the_api_says_so(machine, keeper, caller):
    machine.install(keeper)
    for name in ("x", "y", "z"):
        machine.cay.create("--name", name)
    machine.install(caller).start()
    states = {box["id"]: box["state"] for box in machine.get("/sandboxes").body["sandboxes"]}
    assert states == dict.fromkeys("xyz", "running")
    assert machine.get("/sandboxes/x").body["state"] == "running"
    for answer in (machine.post("/sandboxes/x/exec", {"shell": "true"}), machine.get("/sandboxes/x/stats"),
                   machine.post("/sandboxes/x/processes", {"shell": "true"}), machine.get("/sandboxes/x/logs"),
                   machine.put("/sandboxes/x/files?path=/tmp/f", b"x"), machine.get("/sandboxes/x/spec"),
                   machine.post("/sandboxes/x/pause"), machine.patch("/sandboxes/x", {"ttl": 60}),
                   machine.post("/sandboxes", {"id": "x"})):
        assert (answer.status, answer.code) == (409, "version"), answer
        says_version(machine, answer.error["message"], keeper, caller)
    assert machine.post("/sandboxes/x/stop").status == 204
    assert machine.post("/sandboxes/y/kill").status == 204
    states = {box["id"]: box["state"] for box in machine.get("/sandboxes?state=all").body["sandboxes"]}
    assert states == {"x": "exited", "y": "exited", "z": "running"}
    for name in ("x", "y", "z"):
        assert machine.delete(f"/sandboxes/{name}").status == 204
    assert machine.get("/sandboxes?state=all").body["sandboxes"] == []


@versions(MUST)
def test_the_api_refuses_what_must_be_understood(machine, keeper, caller):
    machine.install(keeper)
    machine.cay.create("--name", "x")
    machine.install(caller).start()
    for answer in (machine.post("/sandboxes/x/exec", {"shell": "true"}), machine.get("/sandboxes/x/stats"),
                   machine.get("/sandboxes/x/fs/stat?path=/tmp")):
        assert (answer.status, answer.code) == (501, "unsupported"), answer
        assert "does not know field 1000" in answer.error["message"]
    assert machine.post("/sandboxes/x/stop").status == 204
    assert machine.state_of("x") == "exited"
    assert machine.delete("/sandboxes/x").status == 204


@versions(MAJOR)
def test_a_daemon_whose_keeper_was_replaced(machine, keeper, caller):
    """Nothing can be made until it is restarted, and that is said; what it has prepared is good until then."""
    machine.options["pool"] = 1
    machine.install(caller).start()
    until(lambda: pool_ready(machine) == 1)
    machine.install(keeper)
    box = machine.create()
    assert machine.exec(box, "echo hi")["stdout"] == "hi\n"
    until(lambda: machine.post("/sandboxes", {"id": "x"}).code == "version")
    message = machine.post("/sandboxes", {"id": "x"}).error["message"]
    assert f"is {machine.who(keeper)}, this is {machine.who(caller)}; making sandboxes" in message
    assert "x" not in machine.cay.ids()
    machine.upgrade()
    assert machine.create(id="x") == "x"
    assert machine.exec("x", "echo hi")["stdout"] == "hi\n"
    assert {b["id"]: b["state"] for b in machine.get("/sandboxes").body["sandboxes"]} == dict.fromkeys((box, "x"),
                                                                                                     "running")
    assert machine.delete(f"/sandboxes/{box}").status == machine.delete("/sandboxes/x").status == 204


@versions(MAJOR)
def test_a_daemon_goes_there_and_back(machine, keeper, caller):
    """What cannot be reached in between is not hurt, and followers lose no byte."""
    machine.options["drain"] = "100ms"
    machine.install(keeper).start()
    machine.create(id="x")
    pid = machine.start_process("x", "i=0; while [ ! -e /tmp/enough ]; do i=$((i+1)); echo line $i; sleep 0.01; done")
    follower = Follower(machine, "x", pid)
    until(lambda: follower.got)
    machine.install(caller).upgrade()
    assert machine.get(f"/sandboxes/x/processes/{pid}/output").code == "version"
    assert machine.state_of("x") == "running"
    assert machine.exec(machine.create(id="y"), "echo hi")["stdout"] == "hi\n"
    machine.install(keeper).upgrade()
    assert machine.exec("x", "touch /tmp/enough")["exit_code"] == 0
    follower.join(30)
    lines = follower.got.decode().splitlines()
    assert follower.over and lines == [f"line {i + 1}" for i in range(len(lines))]
    assert machine.get("/sandboxes/y/stats").code == "version"
    assert machine.delete("/sandboxes/x").status == machine.delete("/sandboxes/y").status == 204


@pytest.fixture
def stranger(machine):
    """stranger(id): whoever connects to that sandbox gets an answer of no version at all."""
    sockets = []

    def answer(listener):
        while True:
            try:
                with listener.accept()[0] as client:
                    client.recv(65536)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

    def replace(name):
        path = machine.run_dir / name / "ctl"
        path.unlink()
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(str(path))
        sockets[-1].listen(8)
        threading.Thread(target=answer, args=[sockets[-1]], daemon=True).start()

    yield replace
    for one in sockets:
        one.shutdown(socket.SHUT_RDWR)
        one.close()


def test_what_is_not_even_the_protocol(machine, stranger):
    """The keeper is killed, since it cannot be asked."""
    cay = machine.cay
    for name in ("a", "b", "c", "d", "e"):
        cay.create("--name", name)
        stranger(name)
    done = cay.run("exec", "a", "--", "true")
    assert done.returncode == 125 and "does not understand" in done.stderr and machine.who("own") in done.stderr, done
    cay.run("stop", "a", check=True)
    cay.run("rm", "-f", "b", check=True)
    machine.start()
    answer = machine.post("/sandboxes/c/exec", {"shell": "true"})
    assert (answer.status, answer.code) == (409, "version"), answer
    assert machine.post("/sandboxes/c/stop").status == 204
    assert machine.post("/sandboxes/d/kill").status == 204
    assert machine.delete("/sandboxes/e").status == 204
    states = {box["id"]: box["state"] for box in machine.get("/sandboxes?state=all").body["sandboxes"]}
    assert states == dict.fromkeys("acd", "lost")
    events = [e for e in machine.get("/audit?limit=100").body.get("entries", []) if e["action"] in ("stop", "kill")]
    assert {e["action"] for e in events} == {"stop", "kill"}
