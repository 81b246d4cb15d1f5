#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""System calls of cay, keeper and init fail, one at a time, and lasting; the outcome must be a documented one.

    tests/soak/faults.py [--runs N] [--seed S] [--scene NAME] [--call NAME] [--most K] [--json FILE] [--docs]

A run is a scene, a system call, an error and a number k: in every process of the scene the k-th such call fails (with
"+" also all that follow), by strace. k goes up until a run in which nothing was hit. --runs takes that many of all runs
at random; without it all are made. After each run:

    no call took longer than its limit                                      else: hang
    cay said 0 and the thing is so, or 125 and one line that says why       else: wrong
    the same again without the fault succeeds                               else: wrong
    ps, processes, cgroups, directories and id links agree, nothing is left else: leak

Exit code 1 if anything was flagged.
"""
import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from engine import Cay, oracle  # noqa: E402
import figures  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "faulty"
SECONDS = 75.0  # for any one call: more than every patience of the engine
SHORTAGE = ("ENOMEM", "EMFILE", "EIO")
CALLS = {
    "openat": ("EMFILE", "ENOMEM", "EIO"), "openat2": ("EMFILE", "ENOMEM"), "mkdirat": ("ENOSPC", "ENOMEM"),
    "unlinkat": ("EIO",), "renameat": ("EIO", "ENOSPC"), "linkat": ("EIO",), "symlinkat": ("ENOSPC",),
    "pread64": ("EIO",), "pwrite64": ("ENOSPC", "EIO"), "write": ("ENOSPC", "EIO"), "fdatasync": ("EIO",),
    "ftruncate": ("EIO",), "fcntl": ("EMFILE",), "dup3": ("EMFILE",), "pipe2": ("EMFILE",),
    "socket": ("EMFILE", "ENOMEM"), "socketpair": ("EMFILE", "ENOMEM"), "bind": ("ENOMEM",), "listen": ("ENOMEM",),
    "accept4": ("EMFILE", "ENOMEM"), "connect": ("ENOMEM",), "sendmsg": ("ENOMEM", "ENOBUFS"),
    "recvmsg": ("ENOMEM",), "epoll_create1": ("EMFILE",), "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "memfd_create": ("EMFILE", "ENOMEM"), "mmap": ("ENOMEM",), "clone3": ("EAGAIN", "ENOMEM"),
    "fork": ("EAGAIN",), "vfork": ("EAGAIN",), "clone": ("EAGAIN",), "fstat": ("EIO",), "newfstatat": ("EIO",),
    "statx": ("EIO",), "getdents64": ("EIO",), "fsopen": ("ENOMEM",), "fsmount": ("ENOMEM",),
    "open_tree": ("ENOMEM",), "move_mount": ("ENOMEM",), "mount_setattr": ("ENOMEM",), "mount": ("ENOMEM",),
    "prctl": ("ENOMEM",), "seccomp": ("ENOMEM",), "pidfd_open": ("EMFILE",), "fchown": ("EIO",),
    "fchownat": ("EIO",), "eventfd2": ("EMFILE",), "inotify_init1": ("EMFILE",), "ioctl": ("EIO",),
}
# What a keeper calls while it serves one: where runs are drawn at random, others would hit nothing.
LIVING = ("openat", "epoll_ctl", "sendmsg", "recvmsg", "accept4", "socketpair", "pipe2", "mkdirat", "fcntl",
          "pwrite64", "write", "fstat", "memfd_create", "mmap", "unlinkat", "renameat", "clone3", "dup3")


class Flagged(Exception):
    """(kind, words)"""


class Traced:
    """A cay, or a keeper that lives, whose calls fail."""

    def __init__(self, log, rule, argv=None, pid=None, env=None):
        call, error, k, lasting = rule
        self.log = log
        command = ["strace", "-f", "-qq", "-o", log, "-e", f"trace={call}", "-e",
                   f"inject={call}:error={error}:when={k}{'+' if lasting else ''}"]
        command += ["-p", str(pid)] if pid else ["--", *argv]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        if pid:
            self._attached(pid)

    @staticmethod
    def _attached(pid):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if re.search(r"^TracerPid:\t[1-9]", oracle.read(f"/proc/{pid}/status"), re.M):
                return
            time.sleep(0.005)
        raise Flagged("wrong", "strace did not attach")

    def _main_lives(self):
        """strace goes on as long as the keeper does; what it started first is the call itself."""
        pid = self.process.pid
        children = oracle.read(f"/proc/{pid}/task/{pid}/children").split()
        return any(oracle.state_and_start(child)[0] not in (None, "Z", "X") for child in children)

    def said(self):
        """What it printed, once it is at its end; its exit code comes with done()."""
        ends, out = (self.process.stdout, self.process.stderr), ["", ""]
        for end in ends:
            os.set_blocking(end.fileno(), False)
        deadline, begun = time.monotonic() + SECONDS, time.monotonic() + 2
        while True:
            lives = self._main_lives()
            out = [text + (end.read() or b"").decode() for text, end in zip(out, ends)]
            if not lives and (any(out) or self.process.poll() is not None or time.monotonic() > begun):
                return out
            if time.monotonic() > deadline:
                raise Flagged("hang", "the traced call did not come back")
            time.sleep(0.002)

    def done(self):
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            raise Flagged("leak", "a process of it is still there") from None

    def detach(self):
        """A strace that still traces lets go of what it traces."""
        for end in (self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)

    def hits(self):
        return oracle.read(self.log).count("(INJECTED)")


class Faults:
    def __init__(self, place, build):
        self.cay = Cay(build, place, "cay-faults-%d" % os.getpid(), None)
        self.oracle = oracle.Oracle(self.cay.state, self.cay.run_dir, self.cay.cgroup)
        self.log = os.path.join(place, "strace")
        self.program, self.env = self.cay.program, self.cay.env
        self.call("run", "--", "true")  # makes the image
        self.known = set()  # leaks that were told already

    def call(self, *args, code=None):
        """One call of cay that is not traced: it must come back, and with `code` if that is given."""
        try:
            done = subprocess.run([self.program, *args], env=self.env, stdin=subprocess.DEVNULL, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Flagged("hang", f"cay {' '.join(args)}") from None
        if code is not None and done.returncode != code:
            raise Flagged("wrong", f"cay {' '.join(args)}: {done.returncode} {done.stderr.strip()}")
        return done

    def state(self):
        done = self.call("ps", "-a", "--json", code=0)
        return next((s["state"] for s in json.loads(done.stdout) if s["id"] == NAME), None)

    # -- scenes: what is done under the fault, and whether what was said is so

    def create(self, rule):
        traced = Traced(self.log, rule, [self.program, "create", "--name", NAME], env=self.env)
        try:
            out, err = traced.said()
            state = self.state()
            if out.strip() == NAME:
                # The fault may be in one of these, too; then the other works, unless it lasts.
                tries = [self.call("exec", NAME, "--", "true").returncode for _ in range(2)]
                harmed = 0 not in tries and rule[0] != "mmap"  # which every command needs, too
                if state != "running" or (harmed and not rule[3]):
                    raise Flagged("wrong", f"create said 0, the sandbox is {state}, and exec says {tries}")
            # What a keeper can never do again, such as removing a directory, cannot be asked of it.
            self.call("rm", "-f", NAME, code=None if rule[3] else 0)
            code = traced.done() if not rule[3] else 0 if out.strip() == NAME else 125
        finally:
            traced.detach()
            hits = traced.hits()
        self.call("rm", "-f", NAME, code=0)
        self.judge(rule, code, out, err, NAME)
        return hits

    def run(self, rule):
        traced = Traced(self.log, rule, [self.program, "run", "--", "echo", "hello"], env=self.env)
        try:
            out, err = traced.said()
            code = traced.done()
        finally:
            traced.detach()
            hits = traced.hits()
        self.judge(rule, code, out, err, "hello")
        return hits

    @staticmethod
    def judge(rule, code, out, err, wanted):
        if code == 0:
            if out.strip() != wanted:
                raise Flagged("wrong", f"0, and {out!r} {err!r}")
        elif rule[0] != "write" and len(err.strip().splitlines()) != 1:  # which is what prints the words
            raise Flagged("wrong", f"{code}, and these words: {err!r}")

    def living(self, rule, *args):
        """The keeper of a sandbox that lives fails in the middle of a call."""
        self.call("create", "--name", NAME, code=0)
        keeper = next(s["keeper_pid"] for s in json.loads(self.call("ps", "--json", code=0).stdout))
        traced = Traced(self.log, rule, pid=keeper)
        try:
            done = self.call(*args)
            if done.returncode == 0 and args[0] == "exec" and done.stdout != "hello\n":
                raise Flagged("wrong", f"exec said 0 and {done.stdout!r}")
            if done.returncode != 0 and len(done.stderr.strip().splitlines()) != 1:
                raise Flagged("wrong", f"{done.returncode}, and these words: {done.stderr!r}")
        finally:
            traced.detach()
            hits = traced.hits()
        self.call("rm", "-f", NAME, code=0)
        return hits

    def scenes(self):
        return {
            "create": self.create,
            "run": self.run,
            "exec": lambda rule: self.living(rule, "exec", NAME, "--", "echo", "hello"),
            "cp": lambda rule: self.living(rule, "cp", "/etc/hostname", f"{NAME}:/tmp/x"),
            "pause": lambda rule: self.living(rule, "pause", NAME),
            "stop": lambda rule: self.living(rule, "stop", NAME),
            "rm": lambda rule: self.living(rule, "rm", "-f", NAME),
        }

    def one(self, scene, rule):
        """How many calls failed; Flagged if that did harm."""
        hits = self.scenes()[scene](rule)
        self.call("create", "--name", NAME, code=0)
        self.call("rm", "-f", NAME, code=0)
        self.check_nothing_left()
        return hits

    def check_nothing_left(self):
        nothing = {kind: set() for kind in oracle.KINDS}
        kept = ("/images", "/sandboxes", "/spools", "/ids")
        deadline = time.monotonic() + 8
        while True:
            self.call("ps", "-a", "-q", code=0)  # what a keeper left that could not remove it is swept by the next look
            now = self.oracle.snapshot()
            now["file"] = {f for f in now["file"] if "/images/" not in f and not f.endswith(kept)}
            left = [f"{kind}: {item}" for kind in nothing for item in sorted(now[kind])]
            left = [leak for leak in left if leak not in self.known]
            if not left:
                return
            if time.monotonic() > deadline:
                self.known.update(left)
                raise Flagged("leak", "; ".join(left[:4]))
            time.sleep(0.1)

    def clean(self):
        for name in self.call("ps", "-a", "-q").stdout.split():
            subprocess.run([self.program, "rm", "-f", name], env=self.env, timeout=120, stderr=subprocess.DEVNULL)


def rules(args, rng):
    """(scene, call, error, lasting), in the order in which k is raised for each."""
    scenes = [args.scene] if args.scene else ["create", "run", "exec", "cp", "pause", "stop", "rm"]
    found = [(scene, call, error, lasting) for scene in scenes for call in ([args.call] if args.call else CALLS)
             for error in CALLS[call] for lasting in (False, True)]
    if args.runs:  # a keeper that can never again watch or accept anything takes every patience, minutes
        found = [rule for rule in found if (rule[0] in ("create", "run") or rule[1] in LIVING)
                 and not (rule[1] in ("epoll_ctl", "accept4") and rule[3])]
        rng.shuffle(found)
    return found


def attempt(faults, counts, scene, rule):
    """One run; whether anything was hit."""
    counts["runs"] += 1
    try:
        hits = faults.one(scene, rule)
    except Flagged as why:
        kind, words = why.args
        counts[kind] += 1
        call, error, k, lasting = rule
        print(f"{kind}: {scene}: {call} {error} k={k}{'+' if lasting else ''}: {words}", flush=True)
        faults.clean()
        return True
    counts["hit"] += bool(hits)
    return bool(hits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scene")
    parser.add_argument("--call", choices=CALLS)
    parser.add_argument("--most", type=int, default=40, metavar="K", help="the last call of a process that fails")
    parser.add_argument("--build", default=os.path.join(TOP, "build"))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--docs", action="store_true", help="put the figures into docs/RELIABILITY.md")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    counts = dict.fromkeys(("runs", "hit", "hang", "leak", "wrong"), 0)
    with tempfile.TemporaryDirectory(prefix="cay-faults-", dir="/tmp") as place:
        os.chmod(place, 0o711)
        faults = Faults(place, args.build)
        for scene, call, error, lasting in rules(args, rng):
            ks = [rng.randint(1, 4)] if args.runs else range(1, args.most + 1)
            for k in ks:
                if not attempt(faults, counts, scene, (call, error, k, lasting)):
                    break
            if args.runs and counts["runs"] >= args.runs:
                break
        faults.clean()
    text = (f"faults: {counts['runs']} runs, seed {args.seed}: {counts['hit']} hits, {counts['hang']} hangs, "
            f"{counts['leak']} leaks, {counts['wrong']} wrong answers")
    print(text, flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"seed": args.seed, **counts}, f)
    if args.docs:
        figures.replace_section("RELIABILITY.md", "System call faults", "tests/soak/faults.py"
                                + (f" --runs {args.runs} --seed {args.seed}" if args.runs else ""), text)
    return 1 if counts["hang"] or counts["leak"] or counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
