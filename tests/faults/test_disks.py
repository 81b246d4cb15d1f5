# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, fails, is read-only or has no inodes left, under the state directory and under the run directory.

Each is done to an engine with a sandbox that runs and one that has ended, with the command line and with a daemon. What
is asked for then is done, or refused with one line that says why; nothing is half made; what runs runs on; once the disk
is good again, or the file system is gone, everything works and nothing is left.
"""
import contextlib
import errno
import fcntl
import os
import pathlib
import signal
import struct
import subprocess
import time

import pytest

from lib import invariants, oracle

EXT4_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
NO_LOG_FLUSH = 2
REFUSED = (400, 403, 409, 500, 503, 507)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems")


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True)


class Disk:
    """A small file system at `place`; spoil() makes it bad, heal() good again, if it can be."""

    def __init__(self, kind, place, image):
        self.place, self.kind = place, kind
        place.mkdir(mode=0o700, exist_ok=True)
        if kind == "tmpfs":
            mount("-t", "tmpfs", "-o", "size=96m,nr_inodes=20k,mode=700", "cay-faults", place)
            return
        with open(image, "wb") as f:
            f.truncate(96 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
        mount("-o", "loop,errors=remount-ro", image, place)
        (place / "lost+found").rmdir()
        place.chmod(0o700)

    def fill(self):
        with open(self.place / "filler", "wb", buffering=0) as f:
            for size in (1 << 20, 1 << 16, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        f.write(b"x" * size)

    def use_inodes(self):
        (self.place / "inodes").mkdir()
        number = 0
        while True:
            try:
                os.mknod(self.place / "inodes" / str(number))
            except OSError as why:
                assert why.errno == errno.ENOSPC
                return
            number += 1

    def fail(self):
        fd = os.open(self.place, os.O_RDONLY)
        fcntl.ioctl(fd, EXT4_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(fd)

    def freeze(self):
        """As ext4 does when it finds a fault: there are writers, so that nobody could ask for it."""
        source = subprocess.run(["findmnt", "-no", "SOURCE", self.place], check=True, text=True, stdout=subprocess.PIPE)
        name = os.path.basename(source.stdout.strip())
        pathlib.Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test\n")

    def heal(self, how):
        if how == "full":
            (self.place / "filler").unlink(missing_ok=True)
        elif how == "inodes":
            subprocess.run(["rm", "-rf", self.place / "inodes"], check=True)
        return how in ("full", "inodes")

    def spoil(self, how):
        {"full": self.fill, "inodes": self.use_inodes, "failing": self.fail, "read-only": self.freeze}[how]()

    def close(self):
        deadline = time.monotonic() + 20  # a keeper may be in it for a moment
        while subprocess.run(["umount", self.place], capture_output=True).returncode and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not os.path.ismount(self.place), f"{self.place} is still in use"


CASES = [(where, how, kind) for where in ("state", "run")
         for how, kind in (("full", "ext4"), ("full", "tmpfs"), ("failing", "ext4"), ("read-only", "ext4"),
                           ("inodes", "tmpfs"))]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def spoiled(request, yard, tmp_path):
    """(daemon with a sandbox that runs and one that has ended, disk, how); spoiled when the test says so."""
    where, how, kind = request.param
    daemon = yard()
    if where == "state":  # it has the image in it, which would be hidden
        subprocess.run(["rm", "-rf", daemon.state], check=True)
    disk = Disk(kind, daemon.state if where == "state" else daemon.run_dir, tmp_path / "disk")
    try:
        yield daemon, disk, where, how
    finally:
        if daemon.alive():
            daemon.stop()
        if disk.heal(how):
            daemon.cay.clean()
        else:  # nothing can be removed on it: all of it dies, and the next look finds what is left elsewhere
            end_keepers(daemon)
        disk.close()
        daemon.cay.clean()


def end_keepers(daemon):
    """Those of this engine, by the directory that they were started with."""
    mark = f"CAY_RUN_DIR={daemon.run_dir}\0"
    for pid in oracle.pids():
        words = oracle.read(f"/proc/{pid}/cmdline").split("\0")
        if words[0] == "cay-keeper" and mark in oracle.read(f"/proc/{pid}/environ"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def call(daemon, *args, codes=(0, 125)):
    done = daemon.cay.run(*args, timeout=60)
    assert done.returncode in codes, done
    assert done.returncode == 0 or len(done.stderr.strip().splitlines()) == 1 and len(done.stderr) > 20, done
    assert "the host restarted" not in done.stdout + done.stderr, done
    return done


def ask(daemon, method, path, body=None):
    answer = daemon.request(method, path, json=body)
    assert answer.status < 300 or answer.status in REFUSED and len(answer.error["message"]) > 10, answer
    return answer


def check_spoiled(daemon, init, readable):
    """What runs runs on, and what is asked for is done or refused."""
    assert daemon.get("/healthz").status == 200
    answer = ask(daemon, "GET", "/sandboxes/runs")
    assert not readable or answer.body["init_pid"] == init
    assert daemon.get("/readyz").status in (200, 503)
    ask(daemon, "GET", "/audit?limit=3")
    done = call(daemon, "exec", "runs", "--", "echo", "up")
    assert done.stdout == "up\n" or not readable and done.returncode == 125, done
    for number, create in enumerate((lambda name: call(daemon, "create", "--name", name).returncode == 0,
                                     lambda name: ask(daemon, "POST", "/sandboxes", {"id": name}).status < 300)):
        name = f"new{number}"
        made = create(name)
        found = daemon.cay.run("exec", name, "--", "echo", "new")
        assert (found.returncode == 0) == made, (made, found)
    ask(daemon, "POST", "/sandboxes/runs/exec", {"argv": ["true"]})
    ask(daemon, "DELETE", "/sandboxes/ended")
    call(daemon, "logs", "runs")
    call(daemon, "stop", "stopped")
    assert call(daemon, "ps", "-a").returncode == 0 or not readable


def test_a_disk_that_is_spoiled(spoiled):
    daemon, disk, where, how = spoiled
    daemon.start()
    for name in ("runs", "stopped", "ended"):
        daemon.create(id=name)
    daemon.cay.run("kill", "ended", check=True)
    init = daemon.get("/sandboxes/runs").body["init_pid"]
    disk.spoil(how)
    check_spoiled(daemon, init, how != "failing")
    os.kill(init, 0)
    assert daemon.alive(), daemon.log_text()[-1000:]
    if not disk.heal(how):
        return  # not before it is unmounted; that all goes then is checked by the fixture
    for name in ("new0", "new1", "ended", "stopped"):
        call(daemon, "rm", "-f", name, codes=(0,))
    assert ask(daemon, "POST", "/sandboxes", {"id": "new0"}).status == 201
    assert daemon.exec("new0", "echo anew")["stdout"] == "anew\n"
    assert call(daemon, "exec", "runs", "--", "echo", "up", codes=(0,)).stdout == "up\n"
    daemon.restart("kill9")
    assert daemon.get("/sandboxes/runs").body["init_pid"] == init
    assert daemon.cay.run("audit", "--verify").returncode == 0
    daemon.remove("runs", "new0")
    assert invariants.differences(daemon.cay, daemon.cgroup) == []
