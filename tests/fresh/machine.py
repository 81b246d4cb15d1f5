# SPDX-License-Identifier: Apache-2.0
"""A machine with the base system only, in namespaces of this host; it has the host's network and kernel.

    with Machine(cache) as machine:
        done = machine.run("./quickstart", timeout=300)     in a clean checkout of HEAD, as root
    machine.left()                                          what it left on the host: []

The first process reads a pipe that this one holds: when either ends, so does everything in the machine.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from lib import base
from lib.engine import ROOT
from lib.oracle import cgroup_mounts, pids, read

HERE = pathlib.Path(__file__).resolve().parent
HOME = "/root/cay"
DISK = "16G"  # of which a file system uses what is written to it
CERTIFICATES = "/etc/host-certificates.crt"
# Where the machine's processes are under v2 once it runs: a group with processes gives its children no controllers.
LEAF = "first"
V1_SETTINGS = ("cpuset.cpus", "cpuset.mems")  # empty in a new group, which then takes no process


def remove_group(group, seconds=10.0):
    """rmdir answers EBUSY for a moment after the last process has been reaped."""
    deadline = time.monotonic() + seconds
    while group.exists():
        try:
            for path, _, _ in os.walk(group, topdown=False):
                os.rmdir(path)
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)


class Machine:
    def __init__(self, cache):
        self.cache = cache
        self.group = f"cay-fresh-{os.getpid()}"
        self.place = cache / f"machine-{os.getpid()}"
        self.first = self.pid = None
        self.groups = [pathlib.Path(mount) / self.group for mount in cgroup_mounts()]

    def __enter__(self):
        try:
            self._sweep()
            self._furnish()
            for group in self.groups:
                self._make_group(group)
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _sweep(self):
        """Roots and groups of runs that were killed; nobody uses them, the cache is locked."""
        for old in self.cache.glob("machine-*"):
            subprocess.run(["rm", "-rf", "--one-file-system", old], check=True)
        for group in self.groups:
            for old in group.parent.glob("cay-fresh-*"):
                remove_group(old, seconds=0)

    def _furnish(self):
        """An empty disk, what an installation asks for (mirror, name servers), and the checkout."""
        extra = self.place / "extra"
        etc = extra / "etc"
        for path in (self.place / "root", etc / "apt/apt.conf.d", etc / "dpkg/dpkg.cfg.d"):
            path.mkdir(parents=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", self.place / "disk", DISK], check=True,
                       stdout=subprocess.DEVNULL)
        (etc / "apt/sources.list").write_text(base.sources())
        (etc / "apt/apt.conf.d/90host").write_text("\n".join(base.apt_options()) + "\n")
        # Written out when the machine is thrown away anyway: not at all.
        (etc / "dpkg/dpkg.cfg.d/fresh").write_text("force-unsafe-io\n")
        for name in ("resolv.conf", "hosts", "pip.conf"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copyfile(f"/etc/{name}", etc / name)
        (etc / "hostname").write_text("fresh\n")
        if os.path.exists(base.BUNDLE):
            shutil.copyfile(base.BUNDLE, extra / CERTIFICATES[1:])
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", "--depth", "1", f"file://{ROOT}",
                        f"{extra}{HOME}"], check=True)

    def _make_group(self, group):
        group.mkdir()
        for name in V1_SETTINGS:
            if (group / name).exists():
                (group / name).write_text((group.parent / name).read_text())

    def _enter_groups(self):
        """For a child before its exec."""
        for group in self.groups:
            leaf = group / LEAF
            ((leaf if leaf.exists() else group) / "cgroup.procs").write_text(str(os.getpid()))

    def _boot(self):
        self.first = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--cgroup", HERE / "boot",
             self.place, self.cache, base.tarball(self.cache)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=self._enter_groups)
        said = self.first.stdout.readline()
        assert said == "ready\n", f"the machine did not start: {said!r}"
        (self.pid,) = map(int, read(f"/proc/{self.first.pid}/task/{self.first.pid}/children").split())

    def run(self, *command, timeout, env=()):
        """Runs it in the checkout; returns a CompletedProcess with both outputs in stdout."""
        words = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                 "LANG": "C.UTF-8", **base.registry_environment(CERTIFICATES), **dict(env)}
        # To a file: who waits for the end of a pipe waits for whatever the command left behind, too.
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            done = subprocess.run(
                ["nsenter", "--target", str(self.pid), "--all", "--root", "--", "/bin/sh", "-c",
                 f'cd {HOME} && exec "$@"', "sh", *command],
                env=words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=timeout,
                preexec_fn=self._enter_groups)
            out.seek(0)
            done.stdout = out.read()
        return done

    def close(self):
        if self.first:
            if self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)  # with it goes its whole namespace
            self.first.kill()
            self.first.wait()
            self.first.stdin.close()
            self.first.stdout.close()
            self.first = None
        for group in self.groups:
            remove_group(group)
        subprocess.run(["rm", "-rf", "--one-file-system", self.place])

    def _there(self):
        loops = subprocess.run(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.splitlines()
        mounts = read("/proc/self/mountinfo").splitlines()
        processes = [pid for pid in pids() if self.group in read(f"/proc/{pid}/cgroup")]
        return ([line for line in loops + mounts if str(self.place) in line] + processes +
                [path for path in (self.place, *self.groups) if path.exists()])

    def left(self, seconds=10.0):
        """What is there of it after close(). The kernel gives the disk's loop device back a moment later."""
        deadline = time.monotonic() + seconds
        while (found := self._there()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found
