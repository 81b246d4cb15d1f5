# SPDX-License-Identifier: Apache-2.0
"""The engine as the soak sees it: the `cay` program, sandboxes, and processes that may be ended.

A process is ended only through Victim, which holds a pidfd and its start time: it is one that this harness
started, or one whose pid the engine gave for a sandbox of this harness.
"""
import json
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import oracle  # noqa: E402

CALL_TIMEOUT = 20.0
# Twenty numbers, then a pause: without it the counters would take the machine, and a fork for each number
# would too. The numbers are what readers check.
COUNTER = ("i=0; while :; do j=0; while [ $j -lt 20 ]; do echo $i; i=$((i+1)); j=$((j+1)); done; "
           "sleep 0.04; done")


class Violation(Exception):
    """An outcome that is not a documented one."""


class Victim:
    """A process known by pid and start time, held by a pidfd so that no other can take its place."""

    def __init__(self, pid, what):
        self.pid, self.what = pid, what
        try:
            self.fd = os.pidfd_open(pid)
        except OSError as error:
            raise Violation(f"{what} {pid} is not there: {error.strerror}") from error
        self.start = oracle.start_time(pid)

    def send(self, number):
        """False when it has ended by itself meanwhile."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return False
        return True

    def alive(self):
        """A zombie has ended: whose duty it is to reap it is for the oracle to tell."""
        state, start = oracle.state_and_start(self.pid)
        return start == self.start and state not in ("Z", "X")

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Cay:
    """Calls of the command line with a private state, run directory and cgroup."""

    def __init__(self, build, place, cgroup, image):
        self.program = os.path.join(build, "prog", "cay")
        self.state, self.run_dir, self.cgroup = os.path.join(place, "state"), os.path.join(place, "run"), cgroup
        self.image = image
        self.env = dict(os.environ, CAY_STATE_DIR=self.state, CAY_RUN_DIR=self.run_dir, CAY_CGROUP=cgroup,
                        CAY_LIBEXEC_DIR=os.path.join(build, "prog"))

    def start(self, *argv, **options):
        """Starts a caller; the harness may kill it."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.DEVNULL)
        options.setdefault("stderr", subprocess.DEVNULL)
        return subprocess.Popen([self.program, *argv], env=self.env, **options)

    def call(self, *argv, timeout=CALL_TIMEOUT):
        """(exit code, stdout, stderr). One that does not come back is a violation."""
        process = self.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise Violation(f"cay {' '.join(argv)} did not come back in {timeout:.0f} s") from error
        return process.returncode, out, err

    def must(self, *argv, timeout=CALL_TIMEOUT):
        code, out, err = self.call(*argv, timeout=timeout)
        if code != 0:
            raise Violation(f"cay {' '.join(argv)}: exit {code}: {err.strip()}")
        return out

    def create_options(self, name):
        return ["--name", name, "--image", self.image, "--label", "soak=1"]

    def create(self, name):
        self.must("create", *self.create_options(name))

    def inspect(self, name):
        """The sandbox's record, or None when there is no such sandbox."""
        code, out, err = self.call("inspect", "--json", name)
        try:
            data = json.loads(out if code == 0 else err.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise Violation(f"cay inspect {name}: exit {code} without JSON: {(out + err)[:300]!r}") from error
        if code == 0:
            return data
        kind = data.get("error", data).get("code")
        if kind == "not_found":
            return None
        if kind == "unavailable":  # half made or half removed, and somebody is at it
            return {"state": "unavailable", "reason": err.strip()}
        raise Violation(f"cay inspect {name}: exit {code}: {err.strip()}")

    def list(self):
        return json.loads(self.must("ps", "-a", "--json") or "[]")

    def remove(self, *names):
        if names:
            self.must("rm", "-f", *names, timeout=CALL_TIMEOUT + len(names))

    def wait_state(self, name, wanted, seconds, since):
        """Seconds from `since` until inspect says one of the wanted states (None: not found)."""
        seen = "nothing"
        while True:
            info = self.inspect(name)
            now = time.monotonic()
            seen = info["state"] if info else None
            if seen in wanted:
                return now - since, info
            if now - since > seconds:
                raise Violation(f"{name} is {seen} after {seconds:g} s, not {' or '.join(map(str, wanted))}")
            time.sleep(0.002)


def wait_gone(processes, seconds, what):
    """Seconds until the last of them has ended; closes them."""
    start = time.monotonic()
    while True:
        left = [p for p in processes if p.alive()]
        if not left:
            for process in processes:
                process.close()
            return time.monotonic() - start
        if time.monotonic() - start > seconds:
            names = ", ".join(f"{p.pid} {oracle.read(f'/proc/{p.pid}/comm').strip()}" for p in left[:5])
            raise Violation(f"{what}: {len(left)} processes live on after {seconds:g} s: {names}")
        time.sleep(0.005)


def inside(init_pid):
    """Every process of a sandbox, by the pid namespace of its init."""
    try:
        space = os.readlink(f"/proc/{init_pid}/ns/pid")
    except OSError as error:
        raise Violation(f"init {init_pid} is not there: {error.strerror}") from error
    found = []
    for pid in oracle.pids():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == space:
                found.append(Victim(pid, "process"))
        except (OSError, Violation):
            continue
    return found


class Reader:
    """Follows a counter's output from any offset and checks that no number is missing or comes twice."""

    def __init__(self, cay, name, process, offset=0, number=0, partial=b"", caller=None):
        self.cay, self.name, self.process = cay, name, process
        self.offset, self.number, self.partial, self.error = offset, number, partial, None
        self.caller = caller or cay.start("attach", "--from", str(offset), name, str(process),
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self):
        while True:
            data = os.read(self.caller.stdout.fileno(), 65536)
            if not data:
                return
            self.offset += len(data)
            *lines, self.partial = (self.partial + data).split(b"\n")
            for line in lines:
                if line != b"%d" % self.number and not self.error:
                    self.error = f"{self.name}: {line[:40]!r} came where {self.number} was due"
                self.number += 1

    def check(self):
        if self.error:
            raise Violation(self.error)

    def wait_past(self, number, seconds=5.0):
        """Until the counter has come beyond the number: it lives and its output arrives."""
        deadline = time.monotonic() + seconds
        while self.number <= number:
            self.check()
            if time.monotonic() > deadline:
                end = self.caller.poll()
                text = self.caller.stderr.read().decode(errors="replace").strip() if end is not None else ""
                raise Violation(f"{self.name}: the counter stands at {self.number} for {seconds:g} s"
                                + (f"; the reader ended with {end}: {text}" if end is not None else ""))
            time.sleep(0.005)

    def stop(self):
        """Kills the caller that reads, and takes in what it still had to say."""
        self.caller.kill()
        self.caller.wait()
        self.thread.join(5)
        for pipe in (self.caller.stdout, self.caller.stderr):
            if pipe:
                pipe.close()

    def again(self):
        """Another caller at the offset where the last one was killed."""
        self.stop()
        self.check()
        return Reader(self.cay, self.name, self.process, self.offset, self.number, self.partial)


class Sandbox:
    """One sandbox with a counter in it and a reader on the counter."""

    def __init__(self, cay, name):
        self.cay, self.name, self.reader = cay, name, None
        cay.create(name)
        info = cay.inspect(name)
        if not info or info["state"] != "running":
            raise Violation(f"{name} is not running after create: {info}")
        self.keeper = Victim(info["keeper_pid"], "keeper")
        self.init = Victim(info["init_pid"], "init")
        self.process = int(cay.must("exec", "-d", name, "--", "sh", "-c", COUNTER).split()[-1])
        self.reader = Reader(cay, name, self.process)
        self.reader.wait_past(0)
        self.fds = oracle.fd_count(self.keeper.pid)

    def check_alive(self):
        """It runs, answers, its counter goes on without gap or double, and its keeper keeps no fds."""
        info = self.cay.inspect(self.name)
        if not info or info["state"] != "running":
            raise Violation(f"{self.name} should live and is {info['state'] if info else 'gone'}: "
                            f"{info and info.get('reason')}")
        out = self.cay.must("exec", self.name, "--", "echo", "here")
        if out != "here\n":
            raise Violation(f"{self.name}: exec answered {out!r}")
        self.reader.wait_past(self.reader.number)
        deadline = time.monotonic() + 2
        while oracle.fd_count(self.keeper.pid) > self.fds + 4:
            if time.monotonic() > deadline:
                raise Violation(f"{self.name}: its keeper had {self.fds} descriptors and has "
                                f"{oracle.fd_count(self.keeper.pid)}")
            time.sleep(0.02)

    def close(self):
        if self.reader:
            self.reader.stop()
            self.reader = None
        self.keeper.close()
        self.init.close()
