# SPDX-License-Identifier: Apache-2.0
"""As an ordinary user of the host: one with ranges in /etc/subuid and /etc/subgid, one without."""
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from integration.support import alive, background, host_pids, info, refused, state, until
from lib.engine import PROG, Engine

USERS = {"ranges": "cayt1", "single": "cayt2"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes users")


class UserEngine(Engine):
    """The CLI as another user, with that user's environment and directories."""

    def __init__(self, name, programs):
        self.user = pwd.getpwnam(name)
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="cayu-", dir="/tmp"))
        os.chown(self.top, self.user.pw_uid, self.user.pw_gid)
        self.top.chmod(0o755)
        self.state, self.run_dir = self.top / "data" / "cay", self.top / "run" / "cay"
        (self.top / "run").mkdir(mode=0o700)
        os.chown(self.top / "run", self.user.pw_uid, self.user.pw_gid)
        self.program = str(programs / "cay")
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.top), "USER": name, "LANG": "C.UTF-8",
            "XDG_DATA_HOME": str(self.top / "data"), "XDG_RUNTIME_DIR": str(self.top / "run"),
            "XDG_CONFIG_HOME": str(self.top / "config"), "CAY_LIBEXEC_DIR": str(programs),
        }

    def _as_user(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "cwd": "/"}

    def run(self, *args, **options):
        return super().run(*args, **{**self._as_user(), **options})

    def popen(self, *args, **options):
        return super().popen(*args, **{**self._as_user(), **options})

    def folder(self, name):
        path = self.top / name
        path.mkdir()
        os.chown(path, self.user.pw_uid, self.user.pw_gid)
        return path


def _ranges(name):
    for file in ("/etc/subuid", "/etc/subgid"):
        if any(line.startswith(name + ":") for line in open(file)):
            return True
    return False


@pytest.fixture(scope="module")
def users():
    """The two users of the host, removed afterwards."""
    def remove():
        for name in USERS.values():
            with open(os.devnull, "w") as null:
                subprocess.run(["userdel", "-f", name], stdout=null, stderr=null)
            for file in ("/etc/subuid", "/etc/subgid"):
                path = pathlib.Path(file)
                lines = path.read_text().splitlines(True) if path.exists() else []
                if any(line.startswith(name + ":") for line in lines):
                    path.write_text("".join(line for line in lines if not line.startswith(name + ":")))

    remove()
    for name in USERS.values():
        subprocess.run(["useradd", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh", name], check=True)
    if not _ranges("cayt1"):
        subprocess.run(["usermod", "--add-subuids", "900000-965535", "--add-subgids", "900000-965535", "cayt1"], check=True)
    for file in ("/etc/subuid", "/etc/subgid"):
        path = pathlib.Path(file)
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("cayt2:")))
    yield USERS
    remove()


@pytest.fixture(scope="module")
def programs():
    """The programs where everybody may run them."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="cayp-", dir="/tmp"))
    for name in ("cay", "cay-keeper", "cay-init"):
        shutil.copy(PROG / name, top / name)
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


@pytest.fixture(scope="module", params=list(USERS))
def user(request, users, programs):
    engine = UserEngine(users[request.param], programs)
    engine.kind = request.param
    yield engine
    engine.clean()
    left = [p for p in engine.run_dir.rglob("*") if p.name not in ("ids", ".cay")] if engine.run_dir.exists() else []
    if (engine.state / "sandboxes").exists():
        left += list((engine.state / "sandboxes").iterdir())
    until(lambda: not _processes(engine), 5)
    engine.close()
    assert left == []


def _processes(engine):
    uid = engine.user.pw_uid
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid and alive(name):
                    found.append(int(name))
            except OSError:
                pass
    return found


@pytest.fixture(scope="module")
def ubox(user):
    identifier = user.create()
    yield identifier
    user.run("rm", "-f", identifier)


def test_a_home_that_is_no_absolute_path(user):
    env = {"HOME": "here", "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    refused(user.run("ps", env=env), "$HOME is 'here', not an absolute path")
    refused(user.run("ps", env={**env, "HOME": ""}), "neither", "nor $HOME is set")


def test_run(user):
    done = user.run("run", "--", "/bin/sh", "-c", "echo out; echo err >&2; id -u; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n0\n", "err\n"), done
    assert user.json("ps", "-a", "--json") == []


def test_its_directories_are_its_own(user, ubox):
    assert user.run_dir.stat().st_uid == user.user.pw_uid and user.run_dir.stat().st_mode & 0o077 == 0
    assert (user.run_dir / ubox / "ctl").exists()


def test_nothing_of_it_runs_as_root(user, ubox):
    entry = info(user, ubox)
    for pid in (entry["keeper_pid"], entry["init_pid"]):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{user.user.pw_uid}\t" in status, status
    maps = pathlib.Path(f"/proc/{entry['init_pid']}/uid_map").read_text().split()
    assert maps[1] == str(user.user.pw_uid) and len(maps) == (6 if user.kind == "ranges" else 3)


def test_exec(user, ubox):
    done = user.run("exec", "-e", "A=1", "-w", "/tmp", ubox, "-c", "echo $A; pwd; cat", "-i", input="in\n")
    assert done.stdout == "1\n/tmp\nin\n", done
    result = json.loads(user.run("exec", "--json", ubox, "-c", "kill -TERM $$").stdout)
    assert result["exit_code"] == 143
    assert user.run("exec", ubox, "--", "/no/such").returncode == 127


def test_system_is_writable_inside_only(user, ubox):
    """All but directories of the host's /usr: they are root's there, and rootless nobody may shift owners."""
    places = "/etc /opt /home/user /var/lib /root /srv /tmp /usr /workspace"
    done = user.sh(ubox, f"for d in {places}; do echo x > $d/cay-rootless && cat $d/cay-rootless; done")
    assert done.stdout == "x\n" * len(places.split()), done
    assert not os.path.exists("/usr/cay-rootless") and not os.path.exists("/etc/cay-rootless")


def test_other_users_inside(user, ubox):
    done = user.run("exec", "-u", "user", ubox, "--", "id", "-u")
    if user.kind == "ranges":
        assert done.stdout == "1000\n", done
    else:
        line = refused(done)
        assert "subuid" in line or "range" in line, line


def test_files(user, ubox):
    data = os.urandom(300_000)
    user.run("fs", "put", ubox, "/tmp/a/b", input=data, text=False, check=True)
    assert user.run("fs", "cat", ubox, "/tmp/a/b", text=False).stdout == data
    assert user.run("fs", "ls", ubox, "/tmp/a").stdout == "b\n"
    folder = user.folder("copy")
    user.run("cp", f"{ubox}:/tmp/a", folder / "out", check=True)
    assert (folder / "out" / "b").read_bytes() == data
    user.run("cp", folder / "out", f"{ubox}:/tmp/back", check=True)
    assert user.run("fs", "cat", ubox, "/tmp/back/b", text=False).stdout == data
    user.run("fs", "rm", "-r", ubox, "/tmp/a", "/tmp/back", check=True)


def test_background_wait_attach_signal(user, ubox):
    number = background(user, ubox, "echo up; sleep 1000; exit 1")
    assert user.run("wait", "--timeout", "0", ubox, number).returncode == 124
    user.run("signal", "--tree", ubox, number, "TERM", check=True)
    assert user.run("wait", "--timeout", "5s", ubox, number).returncode == 143
    assert "up\n" in user.run("attach", ubox, number).stdout


DAEMONS = "setsid -f sleep 64001; (setsid sleep 64001 &); sleep 64001 & sleep 64001"


def test_timeout_kills_the_whole_tree_and_nothing_else(user, ubox):
    bystander = background(user, ubox, "exec sleep 64002")
    done = user.run("exec", "--timeout", "1s", ubox, "-c", DAEMONS)
    assert done.returncode == 124
    until(lambda: host_pids("64001") == [], 5)
    assert user.run("wait", "--timeout", "0", ubox, bystander).returncode == 124
    user.run("signal", ubox, bystander, "KILL", check=True)


def test_tree_kill(user, ubox):
    number = background(user, ubox, DAEMONS)
    until(lambda: len(host_pids("64001")) == 4, 5)
    user.run("signal", "--tree", ubox, number, "KILL", check=True)
    until(lambda: host_pids("64001") == [], 5)


def test_a_background_child_does_not_hold_the_exec(user, ubox):
    start = time.monotonic()
    done = user.run("exec", ubox, "-c", "sleep 64003 & echo started")
    assert done.stdout == "started\n" and time.monotonic() - start < 5
    until(lambda: len(host_pids("64003")) == 1, 5)
    user.sh(ubox, "pkill -f 'sleep 64003'")


def test_ttl_and_idle(user):
    a, b = user.create("--ttl", "400ms"), user.create("--idle", "400ms")
    until(lambda: state(user, a) == "ttl" and state(user, b) == "idle", 10)
    user.run("rm", a, b, check=True)


def test_lost(user):
    box = user.create()
    background(user, box, "sleep 64004")
    pids = until(lambda: host_pids("64004"))
    start = time.monotonic()
    os.kill(info(user, box)["keeper_pid"], signal.SIGKILL)
    until(lambda: state(user, box) == "lost", 5)
    assert time.monotonic() - start < 1
    until(lambda: not any(alive(p) for p in pids), 2)
    user.run("rm", box, check=True)


def test_run_that_is_killed_leaves_nothing(user):
    caller = user.popen("run", "--", "sleep", "64005")
    until(lambda: host_pids("64005"))
    caller.kill()
    caller.communicate()
    until(lambda: host_pids("64005") == [], 2)
    until(lambda: not [e for e in user.json("ps", "-a", "--json") if e["state"] != "running"], 5)


def test_stop_and_kill(user):
    box = user.create()
    background(user, box, "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    start = time.monotonic()
    user.run("stop", box, check=True)
    assert time.monotonic() - start < 8 and state(user, box) == "exited"
    user.run("rm", box, check=True)


def test_bind_mount_of_its_own_directory(user):
    folder = user.folder("work")
    (folder / "old").write_text("old")
    os.chown(folder / "old", user.user.pw_uid, user.user.pw_gid)
    done = user.run("run", "-v", f"{folder}:/work", "--", "/bin/sh", "-c", "cat /work/old; echo new > /work/new; stat -c %u /work/old")
    assert done.stdout == "old0\n", done
    assert (folder / "new").stat().st_uid == user.user.pw_uid
    done = user.run("run", "-v", f"{folder}:/work:ro", "--", "/bin/sh", "-c", "echo x > /work/x")
    assert done.returncode != 0 and not (folder / "x").exists()


def test_bind_mount_as_another_user_inside(user):
    folder = user.folder("work-user")
    done = user.run("run", "-u", "user", "-v", f"{folder}:/work", "--", "/bin/sh", "-c", "id -u; echo new > /work/new")
    if done.returncode == 0:
        assert (folder / "new").stat().st_uid == user.user.pw_uid, "what it wrote is its owner's"
    else:
        refused(done)
        assert user.kind == "single" or "unsupported" in done.stderr or "idmapped" in done.stderr or "mount" in done.stderr, done


def test_no_way_to_what_is_not_its_own(user):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        secret = pathlib.Path(top) / "secret"
        secret.write_text("root's")
        secret.chmod(0o600)
        os.chmod(top, 0o755)
        done = user.run("run", "-v", f"{top}:/x", "--", "cat", "/x/secret")
        assert "root's" not in done.stdout and done.returncode != 0


def test_what_cannot_be_had_is_unsupported(user):
    """A limit that was asked for is a promise: it is kept, or refused with its type."""
    for options in (("--cpus", "0.5"),):
        done = user.run("run", "--json", *options, "--", "true")
        if done.returncode:
            assert done.returncode == 125 and json.loads(done.stderr)["error"]["code"] == "unsupported", done
        refused_line = user.run("run", *options, "--", "true")
        assert refused_line.returncode in (0, 125)
    done = user.run("create", "--json", "--memory", "128M", "--disk", "512M")
    if done.returncode:
        assert json.loads(done.stderr)["error"]["code"] == "unsupported", done
    else:
        user.run("rm", "-f", json.loads(done.stdout)["id"], check=True)
    box = user.create()
    done = user.run("pause", box)
    if done.returncode:
        refused(done, "cgroup")
    user.run("rm", "-f", box, check=True)


def test_asked_memory_limit_is_kept_or_refused(user):
    hog = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('fits')"
    done = user.run("run", "--json", "--memory", "64M", "--", "python3", "-c", hog, timeout=60)
    if done.returncode == 125:
        assert json.loads(done.stderr)["error"]["code"] == "unsupported"
    else:
        assert "fits" not in json.loads(done.stdout)["stdout"], "a limit that was asked for was ignored"


def test_asked_process_limit_is_kept_or_refused(user):
    done = user.run("run", "--json", "--pids", "20", "--", "/bin/sh", "-c",
                    "for i in $(seq 60); do sleep 1 & done; jobs | wc -l; echo all", timeout=60)
    if done.returncode == 125:
        assert json.loads(done.stderr)["error"]["code"] == "unsupported"
    else:
        result = json.loads(done.stdout)
        assert "fork" in result["stderr"].lower() or "resource" in result["stderr"].lower(), result


def test_disk_limit(user):
    done = user.run("run", "--disk", "16M", "--", "/bin/sh", "-c", "head -c 64M /dev/zero > /tmp/x")
    assert "No space left" in done.stderr, done


def test_network_is_closed_and_loopback_works(user, ubox):
    script = ("import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n"
              "print('lo')\ntry: socket.create_connection(('1.1.1.1', 53), 2); print('open')\nexcept OSError: print('closed')")
    assert user.run("exec", ubox, "--", "python3", "-c", script).stdout == "lo\nclosed\n"


THREADS = "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=[600], daemon=True).start()\n"
HOARD = """
import fcntl, os, time
if os.fork():
    time.sleep(200)
os.setsid()
for _ in range(4000):
    lock = os.memfd_create("locks")
    for i in range(500):
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, 2 * i)
time.sleep(120)
"""


def test_who_hoards_what_nobody_counts_is_ended(user):
    """Without cgroups, too: who is in the sandbox is told by who started whom, whatever threads it has."""
    identifier = user.create()
    user.run("exec", "-d", identifier, "--", "python3", "-c", THREADS + HOARD)
    until(lambda: state(user, identifier) == "oom", 150)
    assert info(user, identifier)["reason"].startswith("file locks: ")
    user.run("rm", "-f", identifier)


def test_doctor(user):
    done = user.run("doctor")
    assert done.returncode == 0, done
    checks = {c["name"]: c for c in user.json("doctor", "--json")}
    assert checks["user namespaces"]["level"] == "ok"
    ids = checks["user id ranges"]
    assert ids["level"] == ("ok" if user.kind == "ranges" else "loss")
    if user.kind == "single":
        assert "subuid" in ids["advice"] or "subuid" in ids["finding"]


def test_root_s_sandboxes_are_not_its_business(user, cay, make):
    box = make()
    done = user.run("ps", "-a", env={"CAY_STATE_DIR": str(cay.state), "CAY_RUN_DIR": str(cay.run_dir)})
    assert done.returncode == 125 and box not in done.stdout
    refused(user.run("exec", box, "--", "true"), box)


def test_default_run_directory_without_a_session(user):
    """No XDG_RUNTIME_DIR, as over su or in cron."""
    env = {**user.env, "XDG_RUNTIME_DIR": ""}
    place = pathlib.Path(f"/tmp/cay-{user.user.pw_uid}")
    assert not place.exists()
    try:
        done = user.run("run", "--", "echo", "hi", env=env)
        assert done.stdout == "hi\n", done
        assert place.stat().st_uid == user.user.pw_uid and place.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_default_run_directory_that_somebody_else_made(user):
    place = pathlib.Path(f"/tmp/cay-{user.user.pw_uid}")
    place.mkdir(mode=0o755)
    try:
        refused(user.run("run", "--", "true", env={"XDG_RUNTIME_DIR": ""}), str(place))
    finally:
        place.rmdir()
