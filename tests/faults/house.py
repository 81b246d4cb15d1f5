# SPDX-License-Identifier: Apache-2.0
"""Damage to one file of the daemon itself: tokens, secret, locks, audit log, its head and its index.

A case is a file, a Damage and a mode: "running" (it happens under a daemon, which is then started anew) or "stopped".
After each:

    every call comes back in time, with an answer or one line that says why     (hang, wrong)
    cayd lives; or it does not start, with exit code 125 and one line that names the file
    its sandbox runs on, and is served again when the file is put back          (wrong)
"""
import http.client
import os
import shutil
import signal
import stat
import subprocess

from faults.ground import Flagged
from lib import mutate

PATIENCE = 30
BOX = "box"
MODES = ("running", "stopped")
FILES = {
    "tokens": lambda d: d.tokens_file,
    "front.key": lambda d: d.state / "front.key",
    "cayd.lock": lambda d: d.state / "cayd.lock",
    "audit/audit.jsonl": lambda d: d.state / "audit" / "audit.jsonl",
    "audit/rotated": lambda d: sorted((d.state / "audit").glob("audit-*.jsonl"))[-1],
    "audit/head": lambda d: d.state / "audit" / "head",
    "audit/known": lambda d: d.state / "audit" / "known",
    "audit/index.sqlite": lambda d: d.state / "audit" / "index.sqlite",
    "audit/index.lock": lambda d: d.state / "audit" / "index.lock",
    # Names that only have a file for a moment.
    "audit/head.new": lambda d: d.state / "audit" / "head.new",
    "audit/known.new": lambda d: d.state / "audit" / "known.new",
    "audit/audit.new": lambda d: d.state / "audit" / "audit.new",
    "audit/index.sqlite-journal": lambda d: d.state / "audit" / "index.sqlite-journal",
    "audit/index.sqlite-wal": lambda d: d.state / "audit" / "index.sqlite-wal",
}
# They do not need it to start: the line that a start refuses with need not name them.
KEPT = ("tokens", "state/front.key", "state/audit")


class House:
    def __init__(self, daemon):
        self.daemon, self.cay = daemon, daemon.cay
        self.counts = dict.fromkeys(("cases", "calls", "refused", "hang", "wrong"), 0)
        self.flagged = []
        daemon.start()
        daemon.token("someone")
        daemon.create(id=BOX)
        daemon.get(f"/sandboxes/{BOX}/aio")
        for _ in range(8):  # enough for a file to be put aside
            daemon.exec(BOX, "true")
        daemon.get("/audit?limit=5")
        self.init = daemon.get(f"/sandboxes/{BOX}").body["init_pid"]
        daemon.stop()
        # A start writes lines: what belongs together is taken from one that is over.
        self.good = daemon.top / "good"
        self.good.mkdir()
        for name in KEPT:
            source = self._kept(name)
            if source.is_dir():
                shutil.copytree(source, self.good / source.name)
            elif source.exists():
                shutil.copy2(source, self.good / source.name)

    def _kept(self, name):
        return self.daemon.tokens_file if name == "tokens" else self.daemon.state / name.removeprefix("state/")

    def restore(self):
        """All files as they were, and no daemon."""
        if self.daemon.alive():
            self.stop()
        self.daemon.process = None
        for name in KEPT:
            place = self._kept(name)
            mutate.remove(place)
            good = self.good / place.name
            if good.is_dir():
                shutil.copytree(good, place)
            elif good.exists():
                shutil.copy2(good, place)
        lock = self.daemon.state / "cayd.lock"
        mutate.remove(lock)
        lock.touch(mode=0o600)

    # -- bounded steps

    def ask(self, method, path, body=None, allowed=(503, 507)):
        self.counts["calls"] += 1
        try:
            answer = self.daemon.request(method, path, json=body, timeout=PATIENCE)
        except TimeoutError:
            raise Flagged("hang", f"{method} {path}") from None
        except (OSError, http.client.HTTPException) as why:
            raise Flagged("wrong", f"{method} {path}: {why!r}; cayd: {self.daemon.process.poll()}") from None
        if answer.status >= 300 and (answer.status not in allowed or not answer.error["message"]):
            raise Flagged("wrong", f"{method} {path}: {answer.status} {answer.body}")
        return answer

    def events(self):
        """A stream is cut where it cannot be read on, and the log says why."""
        try:
            self.ask("GET", "/events")
        except Flagged as why:
            if "IncompleteRead" not in why.args[1] or "events cannot be read" not in self.daemon.log_text():
                raise

    def call(self, *args, codes):
        self.counts["calls"] += 1
        try:
            done = self.cay.run(*args, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Flagged("hang", f"cay {' '.join(args)}") from None
        if done.returncode not in codes or (done.returncode and not (done.stdout + done.stderr).strip()):
            raise Flagged("wrong", f"cay {' '.join(args)}: {done.returncode} {done.stderr!r}")
        return done

    def stop(self):
        try:
            code = self.daemon.stop(PATIENCE)
        except subprocess.TimeoutExpired:
            self.daemon.kill9()
            raise Flagged("hang", "cayd does not end on SIGTERM") from None
        if code != 0:
            raise Flagged("wrong", f"cayd ended with {code}: {self.daemon.log_text()[-400:]}")

    def start(self, path):
        """True if it serves; False if it said why not."""
        try:
            self.daemon.start(PATIENCE)
            return True
        except AssertionError:
            code = self.daemon.process.poll()
        if code is None:
            self.daemon.kill9()
            raise Flagged("hang", f"cayd does not start: {self.daemon.log_text()[-400:]}")
        text = self.daemon.log_text().strip().splitlines()
        self.daemon.process = None
        if code != 125 or len(text) != 1 or str(path.parent) not in text[0] or path.name not in text[0]:
            raise Flagged("wrong", f"cayd did not start, with {code}: {text}")
        self.counts["refused"] += 1
        return False

    # -- looks

    def look(self, running):
        """What is asked of a daemon; of one that has just started all of it must work."""
        listed = self.ask("GET", "/sandboxes").body["sandboxes"]
        if [(b["id"], b["state"], b["init_pid"]) for b in listed] != [(BOX, "running", self.init)]:
            raise Flagged("wrong", f"the list is {listed}")
        answer = self.ask("POST", f"/sandboxes/{BOX}/exec", {"argv": ["echo", "up"]})
        if answer.status != 200 and not running or answer.status == 200 and answer.body["stdout"] != "up\n":
            raise Flagged("wrong", f"exec: {answer.status} {answer.body}")
        self.ask("GET", "/audit?limit=5")
        self.ask("GET", "/audit?sandbox=box")
        self.events()
        self.ask("GET", f"/sandboxes/{BOX}/aio", allowed=(404, 500, 503))
        self.call("audit", "--verify", codes=(0, 1, 125))
        self.call("audit", codes=(0, 125))
        self.call("exec", BOX, "--", "true", codes=(0,))

    # -- cases

    def damages(self, name, rng, bits):
        self.restore()
        path = FILES[name](self.daemon)
        if not path.exists():
            found = mutate.all_of_special(None)
            return [d for d in found if d.kind != "removed"]
        return mutate.all_of(path, b"something else\n" * 5, rng, bits)

    def case(self, name, damage, mode):
        self.counts["cases"] += 1
        try:
            self._case(name, damage, mode)
        except Flagged as why:
            kind, words = why.args
            self.counts[kind] += 1
            self.flagged.append(f"{kind}: {mode}: {name}: {damage.kind} {damage.name}: {words}")

    def _case(self, name, damage, mode):
        self.restore()
        if mode == "running":
            self.daemon.start()
        path = FILES[name](self.daemon)
        damage.apply(path)
        if os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode):
            os.chmod(path, 0o600)
        if mode == "running":
            self.daemon.signal(signal.SIGHUP)
            self.look(True)
            self.daemon.kill9() if damage.kind == "flip" else self.stop()
        if self.start(path):
            self.look(False)
            self.stop()

    def finish(self):
        """With the files put back all is as it was."""
        self.restore()
        self.daemon.start()
        self.look(False)
