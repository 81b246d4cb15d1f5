# SPDX-License-Identifier: Apache-2.0
"""Damage to one record of one sandbox, and what the command line and the API then say of it and of its neighbours.

A case is a file of a sandbox (live or ended), a Damage (lib/mutate.py) and a mode: "cli" (no daemon runs), "cayd" (one
runs while it happens) or "restart" (it is started anew afterwards). After each:

    every call comes back in time, with 0, or with one line that says why       (hang, wrong)
    the neighbours are as they were, and answer; cayd lives                     (wrong)
    one that has ended is not shown as living, none as "the host restarted"     (wrong)
    the damaged one can be removed with rm -f, and made anew under its name     (wrong)
    ps = keepers = cgroups = directories = links of ids                         (leak)
"""
import json
import os
import subprocess
import typing

from lib import invariants, mutate

PATIENCE = 30  # seconds for any one call
LIVE, ENDED, OTHER, DONE = "live", "ended", "other", "done"
STATES = {"creating", "running", "paused", "exited", "oom", "ttl", "idle", "lost"}
UNTRUE = "the host restarted"


class Flagged(Exception):
    """(kind, words): hang, wrong or leak."""


class Target(typing.NamedTuple):
    """A file of a sandbox: where it is now, and where the same file of another is. Special: it is no regular file."""

    victim: str
    find: typing.Callable
    foreign: typing.Callable
    special: bool = False


def _in(place, name):
    return lambda daemon: (daemon.run_dir if place == "run" else daemon.state / "sandboxes") / name


def _link(name):
    """The link that says which range of ids it has."""
    return lambda daemon: next(p for p in (daemon.run_dir / "ids").iterdir() if os.readlink(p) == name)


TARGETS = {
    "run/live/status": Target(LIVE, _in("run", f"{LIVE}/status"), _in("run", f"{OTHER}/status")),
    "state/live/spec": Target(LIVE, _in("state", f"{LIVE}/spec"), _in("state", f"{OTHER}/spec")),
    "state/live/status": Target(LIVE, _in("state", f"{LIVE}/status"), _in("state", f"{OTHER}/status")),
    "state/ended/spec": Target(ENDED, _in("state", f"{ENDED}/spec"), _in("state", f"{DONE}/spec")),
    "state/ended/status": Target(ENDED, _in("state", f"{ENDED}/status"), _in("run", f"{OTHER}/status")),
    "state/ended/log": Target(ENDED, _in("state", f"{ENDED}/log"), _in("state", f"{DONE}/log")),
    "run/live/ctl": Target(LIVE, _in("run", f"{LIVE}/ctl"), _in("run", f"{OTHER}/ctl"), True),
    "run/live": Target(LIVE, _in("run", LIVE), _in("run", OTHER), True),
    "run/ids/live": Target(LIVE, _link(LIVE), lambda daemon: OTHER, True),
    "state/live": Target(LIVE, _in("state", LIVE), _in("state", OTHER), True),
    "state/ended": Target(ENDED, _in("state", ENDED), _in("state", DONE), True),
}
# A keeper whose socket is gone is waited for: ten seconds for each call.
SLOW = {("run/live/ctl", "removed"), ("run/live/ctl", "socket")}
# A directory without a status file may be that of a create at work: it is left alone for two seconds.
PATIENT = {"run/live/status", "run/live"}


class Ground:
    """A daemon's directories with two neighbours that live and have ended, and the two that are damaged."""

    def __init__(self, daemon):
        self.daemon, self.cay = daemon, daemon.cay
        self.counts = dict.fromkeys(("cases", "calls", "hang", "wrong", "leak"), 0)
        self.flagged = []
        self.begin(OTHER)
        self.begin(DONE)
        self.neighbours = self.look_at_neighbours()

    # -- calls

    def call(self, *args, code=None):
        self.counts["calls"] += 1
        try:
            done = self.cay.run(*args, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Flagged("hang", f"cay {' '.join(args)}") from None
        lines = done.stderr.splitlines()
        said = f"cay {' '.join(args)}: {done.returncode} {done.stderr!r}"
        if done.returncode not in (0, 125) or (code is not None and done.returncode != code):
            raise Flagged("wrong", said)
        if done.returncode == 125 and (len(lines) != 1 or len(lines[0]) < 20 or UNTRUE in lines[0]):
            raise Flagged("wrong", said)
        return done

    def ask(self, method, path, body=None, allowed=(), patience=PATIENCE):
        """An answer of the API: below 300 or one of `allowed`, never without words."""
        self.counts["calls"] += 1
        try:
            answer = self.daemon.request(method, path, json=body, timeout=patience)
        except TimeoutError:
            raise Flagged("hang", f"{method} {path}") from None
        except OSError as why:
            raise Flagged("wrong", f"{method} {path}: {why!r}; cayd: {self.daemon.process.poll()}") from None
        if answer.status >= 300 and (answer.status not in allowed or not answer.error["message"]
                                     or UNTRUE in answer.error["message"]):
            raise Flagged("wrong", f"{method} {path}: {answer.status} {answer.body}")
        return answer

    # -- sandboxes

    def begin(self, name):
        self.call("create", "--name", name, "--label", f"is={name}", code=0)
        self.call("exec", name, "--", "echo", name, code=0)
        if name in (ENDED, DONE):
            self.call("kill", name, code=0)

    def look_at_neighbours(self):
        listed = {e["id"]: e for e in json.loads(self.call("ps", "-a", "--json", code=0).stdout)}
        for entry in listed.values():
            if entry["state"] not in STATES or UNTRUE in entry["reason"]:
                raise Flagged("wrong", f"ps -a: {entry}")
        for entry in listed.values():
            entry.pop("processes")  # a command may be on its way out
        found = {name: listed.get(name) for name in (OTHER, DONE)}
        found["log"] = self.call("logs", DONE, code=0).stdout
        found["exec"] = self.call("exec", OTHER, "--", "echo", "up", code=0).stdout
        found["spec"] = [json.loads(self.call("inspect", name, code=0).stdout)["spec"] for name in (OTHER, DONE)]
        self.listed = listed
        return found

    def check_neighbours(self):
        now = self.look_at_neighbours()
        for what, was in self.neighbours.items():
            if now[what] != was:
                raise Flagged("wrong", f"a neighbour was {was} and is {now[what]}")

    # -- what is said of the damaged one

    def check_cli(self, victim):
        self.check_neighbours()
        entry = self.listed.get(victim)
        if victim == ENDED and entry and entry["state"] in ("creating", "running", "paused"):
            raise Flagged("wrong", f"it has ended and is shown as {entry}")
        for args in (("inspect", victim), ("logs", victim), ("stats", victim), ("procs", victim)):
            self.call(*args)
        done = self.call("exec", victim, "--", "echo", "hi")
        if done.returncode == 0 and (victim == ENDED or done.stdout != "hi\n"):
            raise Flagged("wrong", f"exec in it said 0 and {done.stdout!r}")

    def check_api(self, victim):
        allowed = (400, 404, 409, 410, 503)
        listed = {b["id"]: b for b in self.ask("GET", "/sandboxes?state=all").body["sandboxes"]}
        for name in (OTHER, DONE):
            if listed.get(name, {}).get("state") != self.neighbours[name]["state"]:
                raise Flagged("wrong", f"the list of the API has {listed.get(name)}")
        answer = self.ask("GET", f"/sandboxes/{victim}", allowed=allowed)
        if answer.status == 200 and (answer.body["id"] != victim or answer.body.get("state") not in STATES):
            raise Flagged("wrong", f"GET of it: {answer.body}")
        if answer.status == 200 and victim == ENDED and answer.body["state"] in ("creating", "running", "paused"):
            raise Flagged("wrong", f"it has ended, GET says {answer.body}")
        for what in ("spec", "logs", "stats", "processes"):
            self.ask("GET", f"/sandboxes/{victim}/{what}", allowed=allowed)
        answer = self.ask("POST", f"/sandboxes/{victim}/exec", {"argv": ["echo", "hi"]}, allowed)
        if answer.status == 200 and (victim == ENDED or answer.body["stdout"] != "hi\n"):
            raise Flagged("wrong", f"exec in it: {answer.body}")
        answer = self.ask("POST", f"/sandboxes/{OTHER}/exec", {"argv": ["echo", "up"]})
        if answer.body["stdout"] != "up\n":
            raise Flagged("wrong", f"exec in its neighbour: {answer.body}")

    def remove(self, victim, path, over_api):
        if over_api:
            self.ask("DELETE", f"/sandboxes/{victim}", allowed=(404,))
        self.call("rm", "-f", victim, code=0)
        if path.parent.name == "ids":
            mutate.remove(path)  # a file, or another's name, among the links of ids is nobody's to remove
        if os.path.lexists(path):
            raise Flagged("leak", f"{path} is still there after rm -f")
        if victim in self.call("ps", "-a", "-q", code=0).stdout.split():
            raise Flagged("wrong", "it is listed after rm -f")

    # -- cases

    def damages(self, name, rng, bits):
        """All that can be done to this file."""
        target = TARGETS[name]
        self.begin(target.victim)
        path, foreign = target.find(self.daemon), target.foreign(self.daemon)
        found = (mutate.all_of_special(str(foreign)) if target.special
                 else mutate.all_of(path, foreign.read_bytes(), rng, bits))
        self.call("rm", "-f", target.victim, code=0)
        # A socket among the sandboxes may be a daemon's: cay never removes it.
        return [d for d in found if (name, d.kind) != ("run/live", "socket")]

    def case(self, name, damage, mode):
        """One of them. What it finds is in `flagged`, and the ground is made good again."""
        self.counts["cases"] += 1
        place = []
        try:
            self._case(TARGETS[name], damage, mode, place)
        except Flagged as why:
            kind, words = why.args
            self.counts[kind] += 1
            self.flagged.append(f"{kind}: {mode}: {name}: {damage.kind} {damage.name}: {words}")
            self.mend(place[0])

    def _case(self, target, damage, mode, place):
        if (mode == "cli") == self.daemon.alive():
            self.daemon.start() if mode != "cli" else self.daemon.stop()
        self.begin(target.victim)
        path = target.find(self.daemon)
        place.append(path)
        damage.apply(path)
        if mode == "restart":
            self.daemon.kill9()
            self.daemon.start()
        if mode != "cli":
            self.check_api(target.victim)
        self.check_cli(target.victim)
        if mode != "cli" and not self.daemon.alive():
            raise Flagged("wrong", f"cayd ended: {self.daemon.log_text()[-500:]}")
        self.remove(target.victim, path, mode != "cli")
        self.begin(target.victim)
        self.call("rm", "-f", target.victim, code=0)
        left = invariants.differences(self.cay, self.daemon.cgroup)
        if left:
            raise Flagged("leak", "; ".join(left))

    def mend(self, path):
        """Whatever is left of a case that failed."""
        mutate.remove(path)
        if not self.daemon.alive():
            self.daemon.process = None
        for name in (LIVE, ENDED):
            self.cay.run("rm", "-f", name, timeout=60)
        invariants.differences(self.cay, self.daemon.cgroup)
        names = self.cay.run("ps", "-a", "-q").stdout.split()
        for name in (OTHER, DONE):
            if name not in names:
                self.begin(name)
        self.neighbours = self.look_at_neighbours()
