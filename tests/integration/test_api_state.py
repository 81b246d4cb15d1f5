# SPDX-License-Identifier: Apache-2.0
"""cayd when its directories are not as it left them: damaged and foreign records, a state directory that goes away,
disks that are full or fail, files of the audit log that are something else, no descriptors left."""
import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import time

import pytest

from integration.support import alive, until
from integration.test_api import refused
from integration.test_recovery import DAMAGE
from lib.daemon import Daemon


# -- records

def record(daemon, box, name):
    """The status of one that lives is in the run directory."""
    path = daemon.state / "sandboxes" / box / name
    return path if path.exists() else daemon.run_dir / box / name


def test_damaged_records_hide_no_good_ones(daemons):
    """Every kind of damage to either record, of ended and of running sandboxes, with the daemon there and anew."""
    daemon = daemons()
    daemon.create(id="good", labels={"keep": "1"})
    good = daemon.get("/sandboxes/good").body
    bad = []
    for number, (how, spoil) in enumerate(DAMAGE.items()):
        for name in ("status", "spec"):
            box = daemon.create(id=f"bad-{name}-{number}")
            if number % 2 == 0:
                assert daemon.post(f"/sandboxes/{box}/kill").status == 204
                until(lambda box=box: daemon.state_of(box) == "exited", 5)
            path = record(daemon, box, name)
            path.write_bytes(spoil(path.read_bytes()))
            bad.append(box)
    for _ in range(2):
        listed = daemon.get("/sandboxes?state=all")
        assert listed.status == 200
        states = {b["id"]: b["state"] for b in listed.body["sandboxes"]}
        assert states["good"] == "running"
        for box in bad:
            for what in ("", "/spec", "/stats", "/processes", "/logs"):
                answer = daemon.get(f"/sandboxes/{box}{what}")
                assert answer.status in (200, 400, 404, 409, 410, 500, 503), (box, what, answer)
            answer = daemon.post("/sandboxes", {"id": box})
            assert answer.status in (200, 400, 409, 500, 503), (box, answer)
        assert daemon.get("/sandboxes/good").body == good
        assert daemon.exec("good", "echo up")["stdout"] == "up\n"
        daemon.restart("kill9")
    for box in bad:
        assert daemon.delete(f"/sandboxes/{box}").status == 204, box
        assert daemon.create(id=box) == box
        assert daemon.exec(box, "echo anew")["stdout"] == "anew\n"


def test_swapped_records(daemons):
    daemon = daemons()
    boxes = [daemon.create(id=name, memory=size) for name, size in (("one", "32M"), ("two", "48M"), ("three", "64M"))]
    daemon.kill9()
    for name in ("spec", "status"):
        a, b = record(daemon, "one", name), record(daemon, "two", name)
        first, second = a.read_bytes(), b.read_bytes()
        a.write_bytes(second)
        b.write_bytes(first)
    daemon.start()
    assert daemon.exec("three", "echo up")["stdout"] == "up\n"
    assert daemon.get("/sandboxes?state=all").status == 200
    for box in ("one", "two"):
        answer = daemon.get(f"/sandboxes/{box}")
        # What it says of itself is either true or refused, never the other's.
        assert answer.status != 200 or answer.body["id"] == box, answer
        done = daemon.post(f"/sandboxes/{box}/exec", {"argv": ["hostname"]})
        assert done.status in (200, 404, 410, 409, 500, 503), done
    for box in boxes:
        assert daemon.delete(f"/sandboxes/{box}").status == 204


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "audit"])
def test_the_state_directory_goes_away(daemons, how):
    """Nothing is changed that cannot be written down; it is told which directory is missing, and readiness says so."""
    daemon = daemons()
    box = daemon.create()
    pid = daemon.start_process(box, "sleep 1000")
    place = daemon.state / ("audit" if how == "audit" else "")
    parts = ["audit"] if how == "audit" else ["audit", "sandboxes"]
    away = daemon.top / "away"
    away.mkdir()
    if how == "moved":
        daemon.state.rename(away)
    else:  # without the image, which is in use
        for part in parts:
            subprocess.run(["cp", "-a", daemon.state / part, away], check=True)
            shutil.rmtree(daemon.state / part)
    if how == "replaced":
        subprocess.run(["cp", "-a", *(away / part for part in parts), daemon.state], check=True)
    changing = [("POST", "/sandboxes", {}), ("POST", f"/sandboxes/{box}/exec", {"shell": "touch /tmp/done"}),
                ("POST", f"/sandboxes/{box}/processes", {"shell": "touch /tmp/done"}),
                ("POST", f"/sandboxes/{box}/pause", None), ("POST", f"/sandboxes/{box}/stop", None),
                ("PUT", f"/sandboxes/{box}/files?path=/tmp/done", None), ("DELETE", f"/sandboxes/{box}", None)]
    for method, path, body in changing:
        answer = daemon.request(method, path, json=body) if body is not None else daemon.request(method, path)
        refused(answer, 503, "unavailable")
        assert str(place) in answer.error["message"], answer
    answer = daemon.get("/readyz")
    assert answer.status == 503 and str(place) in answer.body["message"], answer
    assert daemon.state_of(box) == "running" and daemon.get(f"/sandboxes/{box}/processes/{pid}").body["running"]
    daemon.stop()
    if how == "moved":
        away.rename(daemon.state)
    elif how != "replaced":
        subprocess.run(["cp", "-a", *(away / part for part in parts), daemon.state], check=True)
    daemon.start()
    assert daemon.get("/readyz").status == 200
    assert daemon.exec(box, "ls /tmp/done")["exit_code"] != 0, "nothing of it was done"
    daemon.remove(box)


def test_foreign_things_among_the_sandboxes(daemons):
    daemon = daemons()
    daemon.create(id="good")
    top = daemon.state / "sandboxes"
    (top / "file").write_text("not a sandbox")
    (top / "empty").mkdir()
    (top / "UPPER and spaces").mkdir()
    (top / ".hidden").mkdir()
    (top / "link").symlink_to("good")
    (top / "loop").symlink_to("loop")
    (top / "away").symlink_to("/etc")
    (top / "pipes").mkdir()
    for name in ("status", "spec"):
        os.mkfifo(top / "pipes" / name)  # whoever opens it the plain way waits for ever
    (top / "dirs" / "status").mkdir(parents=True)
    (top / "dirs" / "spec").mkdir()
    (top / "tenant~x~y").mkdir()
    try:
        for _ in range(2):
            listed = daemon.get("/sandboxes?state=all", timeout=10)
            assert listed.status == 200
            states = {b["id"]: b["state"] for b in listed.body["sandboxes"]}
            assert states["good"] == "running" and "running" not in {v for k, v in states.items() if k != "good"}
            assert daemon.exec("good", "echo up")["stdout"] == "up\n"
            for name in ("empty", "pipes", "dirs", "away", "loop"):
                answer = daemon.get(f"/sandboxes/{name}", timeout=10)
                assert answer.status in (200, 404, 409, 500, 503), (name, answer)
                assert answer.status != 200 or answer.body["state"] == "lost", (name, answer)
            daemon.restart("kill9")
        assert os.path.exists("/etc/passwd")
    finally:
        for name in ("file", "link", "loop", "away"):
            (top / name).unlink(missing_ok=True)
        for name in ("empty", "UPPER and spaces", ".hidden", "pipes", "dirs", "tenant~x~y"):
            shutil.rmtree(top / name, ignore_errors=True)


# -- resources

@pytest.fixture
def small_state(daemons):
    """A daemon whose state directory is 48 MiB, of which the image takes its share."""
    daemon = Daemon(start=False)
    daemon.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=755", "cay-test", daemon.state], check=True)
    try:
        yield daemon.start()
    finally:
        if daemon.alive():
            daemon.stop()
        daemon.cay.clean()
        # A keeper that has just been told to go may be in it for a moment.
        until(lambda: subprocess.run(["umount", daemon.state], capture_output=True).returncode == 0, 10, every=0.05)
        assert daemon.close() == []


def fill(path):
    with open(path, "wb", buffering=0) as f:
        for size in (1 << 20, 1 << 16, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    f.write(b"x" * size)


def test_disk_full(small_state):
    daemon = small_state
    box = daemon.create(id="before")
    pid = daemon.start_process(box, "echo out; sleep 60")
    until(lambda: daemon.output(box, pid) == b"out\n")
    filler = daemon.state / "filler"
    fill(filler)
    # What cannot be written down is not done.
    answer = daemon.post("/sandboxes", {"id": "during"})
    assert answer.status in (503, 507) and answer.code in ("no_space", "unavailable"), answer
    for _ in range(100):  # the journal's last page may have room for some
        answer = daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]})
        if answer.status != 200:
            break
    assert answer.status in (503, 507) and answer.code in ("no_space", "unavailable"), answer
    assert daemon.get("/sandboxes/during").status == 404
    # What only reads goes on.
    assert daemon.get("/healthz").status == 200
    assert [b["id"] for b in daemon.get("/sandboxes").body["sandboxes"]] == [box]
    assert daemon.get(f"/sandboxes/{box}").body["state"] == "running"
    assert daemon.output(box, pid) == b"out\n"
    # Over a restart as well; and it comes back by itself when there is room.
    daemon.kill9()
    daemon.spawn()
    time.sleep(0.3)
    filler.unlink()
    if daemon.process.poll() is not None:
        assert daemon.process.returncode == 125
        daemon.start()
    daemon.wait_log("ready")
    assert until(lambda: daemon.post("/sandboxes", {"id": "after"}).status == 201, 5)
    assert daemon.exec(box, "echo up")["stdout"] == "up\n"
    done = daemon.cay.run("audit", "--verify")
    assert done.returncode == 0, done


def test_disk_full_recovers_without_a_restart(small_state):
    daemon = small_state
    box = daemon.create()
    filler = daemon.state / "filler"
    for turn in range(2):
        fill(filler)
        assert daemon.post("/sandboxes", {"id": f"x{turn}"}).status in (503, 507)
        filler.unlink()
        until(lambda turn=turn: daemon.post("/sandboxes", {"id": f"x{turn}"}).status == 201, 5)
        assert daemon.exec(box, "echo up")["stdout"] == "up\n"
    assert daemon.cay.run("audit", "--verify").returncode == 0


def test_a_full_disk_is_told_and_can_be_emptied(small_state):
    """Readiness and errors name the directory; what makes room is done, and written down."""
    daemon = small_state
    boxes = [daemon.create(id=f"b{i}") for i in range(4)]
    pid = daemon.start_process(boxes[3], "sleep 60")
    assert daemon.get("/readyz").body == {"status": "ready"}
    filler = daemon.state / "filler"
    fill(filler)
    answer = daemon.get("/readyz")
    assert answer.status == 503 and answer.body["status"] == "failing"
    assert answer.body["directory"] == str(daemon.state) and "is full" in answer.body["message"]
    for _ in range(200):  # until all that is left is for removals
        answer = daemon.post(f"/sandboxes/{boxes[3]}/exec", {"argv": ["true"]})
        if answer.status != 200:
            break
    assert answer.status == 507 and str(daemon.state) in answer.error["message"], answer
    for _ in range(50):
        answer = daemon.post(f"/sandboxes/{boxes[3]}/exec", {"argv": ["true"]})
        assert answer.status == 507 and "is full" in answer.error["message"], answer
    daemon.restart("kill9")
    assert daemon.delete(f"/sandboxes/{boxes[3]}/processes/{pid}").status == 204
    assert daemon.post(f"/sandboxes/{boxes[0]}/stop", {}).status in (200, 204)
    assert daemon.post(f"/sandboxes/{boxes[1]}/kill", {}).status in (200, 204)
    for box in boxes:
        assert daemon.delete(f"/sandboxes/{box}").status == 204
    assert {e["sandbox"] for e in daemon.stream("/events") if e["type"] == "removed"} == set(boxes)
    filler.unlink()
    assert daemon.get("/readyz").body == {"status": "ready"}
    daemon.create(id="again")
    assert daemon.cay.run("audit", "--verify").returncode == 0


@pytest.mark.parametrize("how", ["emptied", "removed"])
@pytest.mark.parametrize("running", [True, False])
def test_an_audit_log_that_is_lost_stays_a_fault(daemons, how, running):
    daemon = daemons()
    box = daemon.create()
    assert daemon.cay.run("audit", "--verify").returncode == 0
    time.sleep(1.5)  # head knows of it
    if not running:
        assert daemon.stop() == 0
    log = daemon.state / "audit" / "audit.jsonl"
    lost = len(log.read_bytes().splitlines())
    log.unlink() if how == "removed" else os.truncate(log, 0)
    if running:
        daemon.exec(box, "true")
        time.sleep(1.5)  # a file that is gone is noticed when it is synced
        daemon.exec(box, "true")
        daemon.restart("kill9")
    else:
        daemon.start()
    for how in ("stop", "kill9"):
        done = daemon.cay.run("audit", "--verify")
        assert done.returncode == 1 and "entries 1 to" in done.stdout + done.stderr, done
        daemon.restart(how)
    entry = json.loads(log.read_bytes().splitlines()[0])
    assert entry["action"] == "recovered" and entry["detail"]["from_seq"] == 1 and entry["detail"]["to_seq"] >= lost


@pytest.mark.parametrize("name", ["audit.jsonl", "index.sqlite", "index.sqlite-journal"])
@pytest.mark.parametrize("what", ["fifo", "link"])
def test_a_file_of_the_audit_log_that_is_none(daemons, name, what):
    """Nobody waits for a pipe, or follows a link in circles; an answer names the file."""
    daemon = daemons()
    box = daemon.create()
    daemon.get("/audit")
    path = daemon.state / "audit" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if what == "fifo" else path.symlink_to(name)
    answer = daemon.get("/audit?limit=5")
    done = daemon.cay.run("audit", "--verify")
    if name == "audit.jsonl":
        assert answer.status == 503 and str(path) in answer.error["message"], answer
        assert done.returncode == 125 and str(path) in done.stderr, done
        daemon.kill9()
        code, text = daemon.refused()
        assert code == 125 and str(path.parent) in text and name in text, text
        path.unlink()
        daemon.start()
    else:
        assert answer.status == 200 and done.returncode == 0, (answer, done)
    assert daemon.exec(box, "echo up")["stdout"] == "up\n"


@pytest.mark.parametrize("name", ["head", "head.new"])
def test_a_pipe_beside_the_audit_log(daemons, name):
    """cayd starts, and ends."""
    daemon = daemons()
    daemon.create()
    assert daemon.stop() == 0
    path = daemon.state / "audit" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    daemon.start()
    assert daemon.stop() == 0
    assert daemon.cay.run("audit", "--verify").returncode == 0
    daemon.start()


EXT4_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN


def test_a_disk_that_fails_is_told(tmp_path):
    """Nothing is changed that cannot be written down, and readiness says where the fault is."""
    daemon = Daemon(start=False)
    daemon.state.mkdir()
    image = tmp_path / "disk"
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, daemon.state], check=True)
    try:
        daemon.start()
        assert daemon.get("/readyz").status == 200
        fd = os.open(daemon.state, os.O_RDONLY)
        fcntl.ioctl(fd, EXT4_SHUTDOWN, struct.pack("I", 2))
        os.close(fd)
        answer = daemon.post("/sandboxes", {"id": "none"})
        assert answer.status >= 500 and str(daemon.state) in answer.error["message"], answer
        answer = daemon.get("/readyz")
        assert answer.status == 503 and answer.body["status"] == "failing", answer
        assert answer.body["directory"] == str(daemon.state)
        assert daemon.get("/healthz").status == 200
    finally:
        daemon.stop()
        until(lambda: subprocess.run(["umount", daemon.state], capture_output=True).returncode == 0, 10, every=0.05)
        daemon.close()


def test_out_of_descriptors(daemons):
    daemon = daemons(wrap=["prlimit", "--nofile=96:96"])
    box = daemon.create()
    baseline = daemon.fds()
    crowd = []
    with contextlib.suppress(OSError):
        for _ in range(200):
            crowd.append(daemon.dial(2))
            crowd[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    time.sleep(0.3)
    assert daemon.alive()
    cpu = os.times()
    before = sum(map(int, open(f"/proc/{daemon.pid}/stat").read().rpartition(")")[2].split()[11:13]))
    time.sleep(0.5)
    used = sum(map(int, open(f"/proc/{daemon.pid}/stat").read().rpartition(")")[2].split()[11:13])) - before
    assert used < 40, f"it spins while it waits for descriptors: {used} ticks in half a second ({cpu})"
    for sock in crowd:
        sock.close()
    assert until(lambda: daemon.exec(box, "echo again")["stdout"] == "again\n", 10)
    until(lambda: daemon.fds() <= baseline + 2, 10)
