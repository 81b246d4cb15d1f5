# SPDX-License-Identifier: Apache-2.0
"""Create, find, end and remove sandboxes; every state with its reason."""
import os
import re
import signal
import subprocess
import time

import pytest

from integration.support import alive, background, end, host_pids, info, parent_of, refused, state, until


def test_create_prints_an_id_that_ps_and_inspect_know(cay, make):
    identifier = make("--label", "team=blue", "-e", "A=1", "--memory", "256M", "--pids", "50", "--ttl", "1h")
    assert re.fullmatch(r"[0-9a-f]{12}", identifier)
    entry = info(cay, identifier)
    assert (entry["state"], entry["reason"], entry["image"]) == ("running", "up", "host")
    assert entry["labels"] == {"team": "blue"}
    assert 0 < entry["ttl_left_ms"] <= 3600_000
    assert alive(entry["keeper_pid"]) and alive(entry["init_pid"])
    assert abs(entry["created_ms"] / 1000 - time.time()) < 60
    seen = cay.json("inspect", "--json", identifier)
    assert (seen["spec"]["memory"], seen["spec"]["pids"], seen["spec"]["env"]) == (256 << 20, 50, {"A": "1"})
    assert seen["spec"]["network"] == "deny-all" and seen["spec"]["ttl_ms"] == 3600_000
    table = cay.run("ps", check=True).stdout
    assert re.search(rf"^{identifier}\s+running\s+host\s", table, re.M)
    assert identifier in cay.run("ps", "-q").stdout.split()


def test_create_json(cay):
    identifier = cay.json("create", "--json")["id"]
    assert state(cay, identifier) == "running"
    cay.run("rm", "-f", identifier, check=True)


def test_chosen_id_and_the_same_spec_is_the_same_sandbox(cay, make):
    options = ("--name", "same-1", "--memory", "128M", "-e", "K=V", "--label", "a=b")
    assert make(*options) == "same-1"
    first = info(cay, "same-1")
    assert make(*options) == "same-1"
    assert info(cay, "same-1")["keeper_pid"] == first["keeper_pid"]


@pytest.mark.parametrize("field,options", [
    ("memory", ["--memory", "96M"]),
    ("env", ["-e", "OTHER=1"]),
    ("labels", ["--label", "x=y"]),
    ("pids", ["--pids", "77"]),
    ("mounts", ["-v", "/usr/share:/mnt/share:ro"]),
    ("user", ["-u", "user"]),
    ("cwd", ["-w", "/tmp"]),
    ("ttl_ms", ["--ttl", "2h"]),
    ("profile", ["--profile", "strict"]),
])
def test_chosen_id_and_another_spec_is_a_conflict_that_names_the_field(cay, make, field, options):
    make("--name", "taken")
    refused(cay.run("create", "--name", "taken", *options), "taken", field)
    assert state(cay, "taken") == "running"


def test_many_creators_of_one_id_get_one_sandbox(cay, make):
    creators = [cay.popen("create", "--name", "crowd", "--memory", "64M") for _ in range(8)]
    results = [(p.communicate(timeout=60), p.returncode) for p in creators]
    try:
        assert [(out, code) for (out, _), code in results] == [(b"crowd\n", 0)] * 8, results
        assert [e["id"] for e in cay.json("ps", "-a", "--json")].count("crowd") == 1
        keeper = info(cay, "crowd")["keeper_pid"]
        assert cay.sh("crowd", "echo up").stdout == "up\n"
        assert [p for p in host_pids("crowd") if keeper not in (p, parent_of(p))] == []
    finally:
        cay.run("rm", "-f", "crowd", check=True)


def test_an_id_is_free_again_after_rm_and_taken_by_a_record(cay, make):
    make("--name", "again")
    cay.run("kill", "again", check=True)
    refused(cay.run("create", "--name", "again"), "again", "ended")
    cay.run("rm", "again", check=True)
    make("--name", "again", "--memory", "64M")
    assert cay.sh("again", "echo new").stdout == "new\n"


def test_labels_filter(cay, make):
    a = make("--label", "color=red", "--label", "set=lf")
    b = make("--label", "color=blue", "--label", "set=lf")
    c = make("--label", "set=lf2")

    def found(*filters):
        words = [w for f in filters for w in ("--label", f)]
        return set(cay.run("ps", "-q", *words, check=True).stdout.split())

    assert found("set=lf") == {a, b}
    assert found("set=lf", "color=red") == {a}
    assert found("color") == {a, b}
    assert found("set") >= {a, b, c}
    assert found("color=re") == found("colo") == found("color=green") == set()


def test_listing_is_ordered_by_creation(cay, make):
    made = [make("--label", "order=1") for _ in range(3)]
    assert cay.run("ps", "-q", "--label", "order=1").stdout.split() == made


def test_stop_asks_first_and_keeps_the_record_and_the_log(cay, make):
    box = make()
    background(cay, box, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: "ready" in cay.run("logs", box).stdout)
    start = time.monotonic()
    cay.run("stop", box, check=True)
    assert time.monotonic() - start < 8
    entry = info(cay, box)
    assert (entry["state"], entry["reason"]) == ("exited", "stopped")
    assert entry["ended_ms"] >= entry["created_ms"] and entry["keeper_pid"] == 0
    lines = cay.run("logs", box).stdout.splitlines()
    assert lines[0] == "ready" and lines[-1] == "bye"
    assert box not in cay.run("ps", "-q").stdout.split()
    assert cay.json("inspect", "--json", box)["spec"]["image"] == "host"
    cay.run("rm", box, check=True)
    refused(cay.run("inspect", box), box)


def test_stop_kills_what_does_not_listen(cay, make):
    box = make()
    background(cay, box, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: "ready" in cay.run("logs", box).stdout)
    start = time.monotonic()
    cay.run("stop", "--grace", "300ms", box, check=True)
    assert 0.25 < time.monotonic() - start < 5
    assert state(cay, box) == "exited"


def test_kill_ends_at_once(cay, make):
    box = make()
    background(cay, box, "trap '' TERM; sleep 1000")
    init = info(cay, box)["init_pid"]
    cay.run("kill", box, check=True)
    entry = info(cay, box)
    assert (entry["state"], entry["reason"]) == ("exited", "killed")
    assert not alive(init)
    cay.run("kill", box, check=True)  # what has ended has ended
    refused(cay.run("exec", box, "--", "true"), box, "exited", "killed")


def test_stop_and_rm_take_many(cay, make):
    boxes = [make() for _ in range(3)]
    cay.run("stop", *boxes, check=True)
    assert {state(cay, b) for b in boxes} == {"exited"}
    cay.run("rm", *boxes, check=True)
    assert {state(cay, b) for b in boxes} == {None}


def test_rm_of_a_running_one_needs_force(cay, make):
    box = make()
    refused(cay.run("rm", box), box, "running", "-f")
    assert cay.sh(box, "echo up").stdout == "up\n"
    cay.run("rm", "-f", box, check=True)
    assert info(cay, box) is None


def test_rm_of_a_missing_one(cay):
    refused(cay.run("rm", "no-such"), "no-such")
    assert cay.run("rm", "-f", "no-such").returncode == 0


def test_rm_of_several_goes_on_after_an_error(cay, make):
    box = make()
    cay.run("kill", box, check=True)
    done = cay.run("rm", "no-such", box)
    assert done.returncode == 125 and "no-such" in done.stderr
    assert info(cay, box) is None


def test_pause_and_resume(cay, make):
    box = make()
    background(cay, box, "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.01; done")
    until(lambda: cay.run("fs", "cat", box, "/tmp/n").stdout.strip())
    cay.run("pause", box, check=True)
    entry = info(cay, box)
    assert (entry["state"], entry["reason"]) == ("paused", "paused on request")
    cpu = cay.json("stats", "--json", box)["cpu_us"]
    time.sleep(0.3)
    assert cay.json("stats", "--json", box)["cpu_us"] - cpu < 20_000
    refused(cay.run("exec", box, "--", "true"), "paused")
    refused(cay.run("fs", "cat", box, "/tmp/n"), "paused")
    cay.run("pause", box, check=True)
    cay.run("resume", box, check=True)
    assert state(cay, box) == "running"
    before = int(cay.run("fs", "cat", box, "/tmp/n").stdout or 0)
    until(lambda: int(cay.run("fs", "cat", box, "/tmp/n").stdout or 0) > before)
    cay.run("resume", box, check=True)


@pytest.mark.parametrize("command", [("stop",), ("kill",), ("rm", "-f")])
def test_a_paused_one_can_be_ended(cay, make, command):
    box = make()
    background(cay, box, "sleep 1000")
    init = info(cay, box)["init_pid"]
    cay.run("pause", box, check=True)
    start = time.monotonic()
    cay.run(*command, box, check=True)
    assert time.monotonic() - start < 5 and not alive(init)


def test_ttl_ends_it_whatever_it_does(cay, make):
    box = make("--ttl", "500ms")
    background(cay, box, "trap '' TERM; while :; do :; done")
    entry = until(lambda: (e := info(cay, box)) and e["ended_ms"] and e, 10)
    assert (entry["state"], entry["reason"]) == ("ttl", "its time to live is over")
    assert 450 <= entry["ended_ms"] - entry["created_ms"] < 4000
    refused(cay.run("exec", box, "--", "true"), "ttl")


def test_ttl_of_a_paused_one(cay, make):
    box = make("--ttl", "500ms")
    cay.run("pause", box, check=True)
    until(lambda: state(cay, box) == "ttl", 5)


def test_ttl_cuts_a_running_exec(cay, make):
    box = make("--ttl", "400ms")
    done = cay.run("exec", box, "--", "sleep", "100", timeout=20)
    assert done.returncode in (125, 137), (done.returncode, done.stderr)


def test_idle_ends_it_only_when_nothing_uses_it(cay, make):
    box = make("--idle", "600ms")
    number = background(cay, box, "sleep 1.5")
    cay.run("wait", box, number, check=True)
    assert state(cay, box) == "running"
    entry = until(lambda: (e := info(cay, box)) and e["ended_ms"] and e, 10)
    assert (entry["state"], entry["reason"]) == ("idle", "nobody used it for its idle time")


def test_idle_is_put_off_by_use(cay, make):
    box = make("--idle", "800ms")
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        assert cay.sh(box, "echo x").stdout == "x\n"
        time.sleep(0.1)
    until(lambda: state(cay, box) == "idle", 10)


def test_update_sets_and_clears_the_ttl(cay, make):
    box = make("--ttl", "1h")
    cay.run("update", "--ttl", "0", box, check=True)
    assert info(cay, box)["ttl_left_ms"] == 0
    cay.run("update", "--ttl", "2h", box, check=True)
    assert 7000_000 < info(cay, box)["ttl_left_ms"] <= 7200_000
    cay.run("update", "--ttl", "200ms", box, check=True)
    until(lambda: state(cay, box) == "ttl", 5)


def test_update_sets_idle(cay, make):
    box = make()
    cay.run("update", "--idle", "200ms", box, check=True)
    until(lambda: state(cay, box) == "idle", 5)


def test_a_dead_keeper_is_lost_with_its_reason_within_a_second(cay, make):
    box = make()
    background(cay, box, "sleep 98765")
    entry = info(cay, box)
    until(lambda: host_pids("98765"))
    marker = host_pids("98765")
    start = time.monotonic()
    os.kill(entry["keeper_pid"], signal.SIGKILL)
    until(lambda: state(cay, box) == "lost", 5)
    assert time.monotonic() - start < 1
    entry = info(cay, box)
    assert entry["reason"] == "its keeper was killed" and entry["ended_ms"]
    until(lambda: not any(alive(p) for p in marker), 2)
    refused(cay.run("exec", box, "--", "true"), "lost", "keeper")
    assert not (cay.run_dir / box).exists()
    cay.run("rm", box, check=True)


def test_callers_of_a_lost_sandbox_are_told(cay, make):
    box = make()
    caller = cay.popen("exec", box, "--", "sleep", "1000")
    until(lambda: info(cay, box)["processes"])
    os.kill(info(cay, box)["keeper_pid"], signal.SIGKILL)
    _, err = caller.communicate(timeout=10)
    assert caller.returncode == 125
    assert err.decode().startswith("cay: ") and err.count(b"\n") == 1, err


def test_a_dead_init_ends_the_sandbox(cay, make):
    box = make()
    os.kill(info(cay, box)["init_pid"], signal.SIGKILL)
    entry = until(lambda: (e := info(cay, box)) and e["ended_ms"] and e, 5)
    assert entry["state"] == "exited" and "init" in entry["reason"]


def test_sigterm_to_the_keeper_ends_the_sandbox(cay, make):
    box = make()
    init = info(cay, box)["init_pid"]
    os.kill(info(cay, box)["keeper_pid"], signal.SIGTERM)
    entry = until(lambda: (e := info(cay, box)) and e["ended_ms"] and e, 5)
    assert entry["state"] in ("exited", "lost") and not alive(init)


def test_a_lost_id_can_be_removed_and_used_again(cay, make):
    make("--name", "phoenix")
    os.kill(info(cay, "phoenix")["keeper_pid"], signal.SIGKILL)
    until(lambda: state(cay, "phoenix") == "lost", 5)
    cay.run("rm", "phoenix", check=True)
    make("--name", "phoenix")
    assert cay.sh("phoenix", "echo back").stdout == "back\n"


def test_run_leaves_nothing(fresh):
    done = fresh.run("run", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert fresh.json("ps", "-a", "--json") == []
    until(lambda: [p.name for p in fresh.run_dir.iterdir() if p.name not in ("ids", ".cay")] == [], 5)  # removed after its answer
    assert list((fresh.state / "sandboxes").iterdir()) == []


def test_run_that_is_killed_leaves_nothing(fresh):
    caller = fresh.popen("run", "--", "/bin/sh", "-c", "sleep 87654 & sleep 87654")
    pids = until(lambda: (p := host_pids("87654")) and len(p) == 2 and p)
    start = time.monotonic()
    end(caller)
    until(lambda: not any(alive(p) for p in pids), 5)
    until(lambda: fresh.json("ps", "-a", "--json") == [], 5)
    assert time.monotonic() - start < 2
    until(lambda: [p.name for p in fresh.run_dir.iterdir() if p.name not in ("ids", ".cay")] == [], 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_passes_signals_on(cay, number):
    name = signal.Signals(number).name[3:]
    caller = cay.popen("run", "--", "/bin/sh", "-c", f"trap 'echo got {name}; exit 5' {name}; echo up; "
                       "while :; do sleep 0.02; done")
    assert caller.stdout.readline() == b"up\n"
    caller.send_signal(number)
    out, _ = caller.communicate(timeout=20)
    assert (out, caller.returncode) == (f"got {name}\n".encode(), 5)


def test_run_second_interrupt_kills(cay):
    caller = cay.popen("run", "--", "/bin/sh", "-c", "trap '' INT; echo up; while :; do sleep 0.02; done")
    assert caller.stdout.readline() == b"up\n"
    caller.send_signal(signal.SIGINT)
    time.sleep(0.1)
    caller.send_signal(signal.SIGINT)
    caller.communicate(timeout=20)
    assert caller.returncode == 137


def test_run_detached_stays(cay):
    identifier = cay.run("run", "-d", "--label", "kind=d", "--", "sleep", "1000", check=True).stdout.strip()
    try:
        until(lambda: info(cay, identifier)["processes"] == 1, 5)
    finally:
        cay.run("rm", "-f", identifier, check=True)


def test_run_does_not_touch_an_ended_sandbox_of_the_same_name(cay, make):
    make("--name", "kept", "--label", "keep=me")
    cay.run("kill", "kept", check=True)
    done = cay.run("run", "--name", "kept", "--", "echo", "hi")
    assert (done.returncode, done.stdout) in ((0, "hi\n"), (125, ""))
    entry = info(cay, "kept")
    assert entry and entry["state"] == "exited" and entry["labels"] == {"keep": "me"}


def test_run_of_a_running_name_is_a_conflict(cay, make):
    make("--name", "busy")
    refused(cay.run("run", "--name", "busy", "--", "true"), "busy")
    assert state(cay, "busy") == "running"


def test_sandboxes_live_without_their_creator(cay):
    # The creator is the leader of a session that ends: no hangup reaches the sandbox.
    script = "import os,subprocess,sys; os.setsid(); subprocess.run(sys.argv[1:])"
    done = subprocess.run(["/usr/bin/python3", "-c", script, cay.program, "create"], env=cay.env, text=True,
                          stdout=subprocess.PIPE, check=True)
    identifier = done.stdout.strip()
    try:
        assert cay.sh(identifier, "echo alive").stdout == "alive\n"
    finally:
        cay.run("rm", "-f", identifier, check=True)


def test_fifty_sandboxes_at_once(cay):
    creators = [cay.popen("create", "--label", "many=1", "--memory", "64M") for _ in range(50)]
    results = [p.communicate(timeout=120) for p in creators]
    ids = [out.decode().strip() for out, _ in results]
    try:
        assert [p.returncode for p in creators] == [0] * 50, results
        assert sorted(cay.run("ps", "-q", "--label", "many=1").stdout.split()) == sorted(ids)
        inits = {info["init_pid"] for info in cay.json("ps", "--label", "many=1", "--json")}
        assert len(inits) == 50
        ranges = {next(line for line in open(f"/proc/{pid}/uid_map")).split()[1] for pid in inits}
        assert len(ranges) == (50 if os.geteuid() == 0 else 1)
    finally:
        cay.run("rm", "-f", *ids, check=True, timeout=120)
