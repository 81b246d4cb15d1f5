# SPDX-License-Identifier: Apache-2.0
"""Crash rounds of cayd: tests/soak/run --daemon-rounds N.

Fifty sandboxes count aloud, each in a process that was started over the API; a client follows each of them. In
every round the daemon is killed with SIGKILL at a random instant, in one round of five also in the middle of its
start, while other clients create, use and remove sandboxes. Then it is started anew: every sandbox must be there,
the same and running, and every client reads on at its offset with no number missing and none twice. At the end,
and every 250 rounds, all are removed and the leak oracle must read zero.
"""
import contextlib
import datetime
import http.client
import json
import os
import random
import selectors
import signal
import sys
import threading
import time
import traceback

from engine import Victim, Violation, oracle

ORACLE_EVERY = 250
SANDBOXES = 50
LONGEST = 0.16        # seconds from serving to the kill, at most
SERVING_SECONDS = 10  # until a daemon that was started answers
COUNTER = ("i=0; while :; do j=0; while [ $j -lt 25 ]; do echo $i; i=$((i+1)); j=$((j+1)); done; sleep 0.2; done")
# What a daemon may add to its own files from round to round.
JOURNAL = ("audit",)


class Follower:
    """Reads one counter over HTTP, from one daemon to the next."""

    def __init__(self, soak, name, pid):
        self.soak, self.name, self.pid = soak, name, pid
        self.offset = self.number = 0
        self.partial = b""
        self.sock = None

    def attach(self):
        sock = self.soak.daemon.dial(5)
        sock.sendall(f"GET /api/v1/sandboxes/{self.name}/processes/{self.pid}/output?follow=true&from={self.offset} "
                     "HTTP/1.1\r\nHost: localhost\r\nAccept: application/octet-stream\r\n\r\n".encode())
        sock.setblocking(False)
        self.sock, self.raw, self.left, self.head = sock, b"", 0, True
        self.soak.selector.register(sock, selectors.EVENT_READ, self)

    def detach(self):
        if self.sock:
            self.soak.selector.unregister(self.sock)
            self.sock.close()
        self.sock = None

    def ready(self):
        """Takes in what has come; False at the end of the connection."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.detach()
            return False
        self.raw += data
        if self.head:
            head, found, self.raw = self.raw.partition(b"\r\n\r\n")
            if not found:
                self.raw = head
                return True
            if not head.startswith(b"HTTP/1.1 200"):
                raise Violation(f"{self.name}: no stream at {self.offset}: {(head + self.raw)[:300]!r}")
            self.head = False
        self._chunks()
        return True

    def _chunks(self):
        while self.raw:
            if self.left == 0:
                line, found, rest = self.raw.partition(b"\r\n")
                if not found:
                    return
                if not line:  # the end of the chunk before
                    self.raw = rest
                    continue
                self.left, self.raw = int(line, 16), rest
                if self.left == 0:
                    raise Violation(f"{self.name}: its output ended at {self.offset}")
                continue
            taken, self.raw = self.raw[:self.left], self.raw[self.left:]
            self.left -= len(taken)
            self._numbers(taken)

    def _numbers(self, data):
        self.offset += len(data)
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            if line != b"%d" % self.number:
                raise Violation(f"{self.name}: {line[:40]!r} came where {self.number} was due")
            self.number += 1
        self.soak.numbers += len(lines)


class Churn(threading.Thread):
    """A client that makes, uses and removes sandboxes; where it was cut off it does the same again."""

    def __init__(self, soak, index):
        super().__init__(daemon=True)
        self.soak, self.index, self.serial = soak, index, 0
        self.stop, self.error, self.done, self.repeated = threading.Event(), None, 0, 0

    def again(self, method, path, body=None):
        """Until it is answered: an answer that got lost makes a second request, which must do as well."""
        repeated, deadline = False, time.monotonic() + 30
        while True:
            try:
                answer = self.soak.daemon.request(method, path, json=body, timeout=10)
                if answer.status != 503:
                    return answer, repeated
            except (OSError, http.client.HTTPException, ValueError):
                pass
            repeated = True
            self.repeated += 1
            if time.monotonic() > deadline:
                raise Violation(f"{method} {path} has no answer for 30 s")
            time.sleep(0.005)

    def life(self):
        self.serial += 1
        name = f"churn-{self.index}-{self.serial}"
        answer, _ = self.again("POST", "/sandboxes", {"id": name, "labels": {"churn": "1"}})
        if answer.status not in (200, 201):
            raise Violation(f"create {name}: {answer}")
        answer, _ = self.again("POST", f"/sandboxes/{name}/exec", {"argv": ["echo", name]})
        if answer.status != 200 or answer.body["stdout"] != name + "\n":
            raise Violation(f"exec in {name}: {answer}")
        answer, repeated = self.again("DELETE", f"/sandboxes/{name}")
        if answer.status != 204 and not (repeated and answer.status == 404):
            raise Violation(f"delete {name}: {answer}")
        answer, _ = self.again("GET", f"/sandboxes/{name}")
        if answer.status != 404:
            raise Violation(f"{name} was removed and is {answer}")
        self.done += 1

    def run(self):
        try:
            while not self.stop.is_set():
                self.life()
        except Violation as violation:
            self.error = str(violation)
        except Exception:  # a thread's death must be told
            self.error = traceback.format_exc()


class DaemonSoak:
    def __init__(self, args):
        os.environ["CAY_TEST_BUILD"] = args.build
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        from lib.daemon import Daemon
        self.args, self.rng = args, random.Random(args.seed)
        self.daemon = Daemon(start=False, pool=2, drain="2s")
        self.oracle = oracle.Oracle(self.daemon.state, self.daemon.run_dir, self.daemon.cgroup, args.whole_host)
        self.selector = selectors.DefaultSelector()
        self.followers, self.inits, self.churns = [], {}, []
        self.serving, self.whole, self.violations = [], [], []
        self.numbers = self.in_start = self.leaks = self.readings = self.lives = self.repeated = 0

    # -- the daemon

    def start(self):
        """Starts it; the seconds until it answers."""
        daemon, began = self.daemon, time.monotonic()
        daemon.spawn()
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if daemon.get("/readyz", timeout=5).status == 200:
                    return time.monotonic() - began
            if daemon.process.poll() is not None:
                raise Violation(f"cayd ended with {daemon.process.returncode}: {daemon.log_text()[-500:]}")
            if time.monotonic() - began > SERVING_SECONDS:
                raise Violation(f"cayd does not serve after {SERVING_SECONDS} s: {daemon.log_text()[-500:]}")
            time.sleep(0.001)

    def kill(self):
        victim = Victim(self.daemon.pid, "cayd")
        victim.send(signal.SIGKILL)
        victim.close()
        code = self.daemon.process.wait(10)
        if code != -signal.SIGKILL:
            raise Violation(f"cayd had ended by itself with {code}: {self.daemon.log_text()[-500:]}")

    # -- sandboxes

    def fill(self):
        for number in range(self.args.live):
            name = f"count-{number}"
            answer = self.daemon.post("/sandboxes", {"id": name, "memory": "64M", "labels": {"count": "1"}})
            if answer.status != 201:
                raise Violation(f"create {name}: {answer}")
            self.inits[name] = answer.body["init_pid"]
            pid = self.daemon.start_process(name, COUNTER)
            self.followers.append(Follower(self, name, pid))
        self.churns = [Churn(self, index) for index in range(2)]
        for churn in self.churns:
            churn.start()

    def clear(self):
        for churn in self.churns:
            churn.stop.set()
        for churn in self.churns:
            churn.join(60)
            self.lives, self.repeated = self.lives + churn.done, self.repeated + churn.repeated
            if churn.error:
                self.violation(None, churn.error)
        for follower in self.followers:
            follower.detach()
        self.churns, self.followers, self.inits = [], [], {}
        if self.daemon.alive():
            for box in self.daemon.get("/sandboxes?state=all").body["sandboxes"]:
                self.daemon.delete(f"/sandboxes/{box['id']}")

    def check_all_there(self):
        found = {b["id"]: b for b in self.daemon.get("/sandboxes?state=all&label=count%3D1").body["sandboxes"]}
        for name, init in self.inits.items():
            box = found.get(name)
            if not box or box["state"] != "running" or box["init_pid"] != init:
                raise Violation(f"{name} with init {init} is {box}")
        if len(found) != len(self.inits):
            raise Violation(f"{len(found)} sandboxes where {len(self.inits)} are due")
        for churn in self.churns:
            if churn.error:
                raise Violation(churn.error)

    # -- rounds

    def pump(self, seconds, enough=lambda: False):
        """Lets all followers read for a while; True if `enough` became true."""
        deadline = time.monotonic() + seconds
        while True:
            if enough():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(min(left, 0.02)):
                if not key.data.ready() and self.daemon.process.poll() is None:
                    raise Violation(f"{key.data.name}: its stream was cut by a daemon that lives")

    def round(self, number):
        for follower in self.followers:
            if not follower.sock:
                follower.attach()
        self.pump(self.rng.uniform(0, LONGEST))
        self.kill()
        # What the daemon had sent before it died still counts.
        self.pump(5, lambda: not any(f.sock for f in self.followers))
        began = time.monotonic()
        if self.rng.random() < 0.2:
            self.daemon.spawn()
            time.sleep(self.rng.uniform(0, 0.05))
            self.kill()
            self.in_start += 1
            began = time.monotonic()
        self.serving.append(self.start())
        self.check_all_there()
        marks = {f: f.number for f in self.followers}
        for follower in self.followers:
            follower.attach()
        if number % 10 == 0 or number == self.args.daemon_rounds:
            # All counters live and their numbers arrive.
            if not self.pump(10, lambda: all(f.number > marks[f] for f in self.followers)):
                still = [f.name for f in self.followers if f.number == marks[f]]
                raise Violation(f"{len(still)} counters stand still: {still[:5]}")
        else:
            self.pump(5, lambda: not any(f.head for f in self.followers))
        self.whole.append(time.monotonic() - began)

    def violation(self, number, text):
        self.violations.append({"round": number, "scene": "cayd", "text": text})
        print(f"VIOLATION round {number}: {text}", flush=True)

    def anew(self):
        """All sandboxes again, on a daemon that lives: one fault must not be counted many times."""
        deadline = time.monotonic() + SERVING_SECONDS
        while not self.daemon.alive():
            try:
                self.start()
            except Violation:
                if time.monotonic() > deadline:
                    raise
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.clear()
        self.daemon.cay.clean()
        self.fill()

    def warm_up(self):
        self.start()
        box = self.daemon.create()
        self.daemon.exec(box, "true")
        self.daemon.remove(box)
        self.daemon.stop()
        self.daemon.cay.clean()
        time.sleep(0.3)
        blind = oracle.positive_control(self.oracle)
        if blind:
            raise Violation("the oracle does not see a leaked " + ", ".join(blind))
        self.before = self.oracle.snapshot()

    def read_oracle(self, number):
        """With the daemon stopped and all sandboxes removed nothing is left but the daemon's own files."""
        self.clear()
        code = self.daemon.stop()
        if code != 0:
            self.violation(number, f"cayd ended with {code} on SIGTERM: {self.daemon.log_text()[-500:]}")
        own = [d + os.sep + name + os.sep for d in self.oracle.dirs for name in JOURNAL]
        leaks = [leak for leak in self.oracle.settle(self.before, 10.0)
                 if not (leak.startswith("file: ") and any(leak[6:].startswith(o) for o in own))]
        self.readings += 1
        self.leaks += len(leaks)
        for leak in leaks[:20]:
            print(f"LEAK after round {number}: {leak}", flush=True)
        if leaks:
            self.daemon.cay.clean()
            self.before = self.oracle.snapshot()

    def run(self):
        self.warm_up()
        self.start()
        self.fill()
        began = time.monotonic()
        for number in range(1, self.args.daemon_rounds + 1):
            try:
                self.round(number)
            except Violation as violation:
                self.violation(number, str(violation))
                self.anew()
            except (OSError, ValueError, KeyError, TypeError, AssertionError, http.client.HTTPException):
                self.violation(number, traceback.format_exc())
                self.anew()
            last = number == self.args.daemon_rounds
            if number % 50 == 0 or last:
                print(f"round {number}/{self.args.daemon_rounds}: {time.monotonic() - began:.0f} s, "
                      f"{len(self.violations)} violations, {self.leaks} leaks", flush=True)
            if number % ORACLE_EVERY == 0 or last:
                self.read_oracle(number)
                if not last:
                    self.start()
                    self.fill()
        self.seconds = time.monotonic() - began

    def close(self):
        with contextlib.suppress(Exception):
            self.clear()
        self.daemon.close()

    # -- the end

    def data(self):
        def at(values, share):
            return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000

        times = {name: {"n": len(v), "p50_ms": at(v, 0.5), "p99_ms": at(v, 0.99), "max_ms": max(v) * 1000}
                 for name, v in (("restart to serving", self.serving), ("restart to all streams", self.whole)) if v}
        return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "rounds": self.args.daemon_rounds, "seed": self.args.seed, "seconds": self.seconds,
                "sandboxes": self.args.live, "numbers": self.numbers, "killed_in_start": self.in_start,
                "lives": self.lives, "repeated": self.repeated, "times": times, "violations": self.violations,
                "leaks": self.leaks}

    def text(self):
        data = self.data()
        lines = [f"{self.args.live} sandboxes with a counter and a follower each; {self.numbers} numbers came, "
                 "none missing and none twice" if not self.violations else f"{self.numbers} numbers came",
                 f"killed once more in the middle of the start: {self.in_start}",
                 f"sandboxes made, used and removed meanwhile: {self.lives}, with {self.repeated} requests repeated",
                 "",
                 "time from                       n      p50      p99      max"]
        lines += ["%-28s %4d %5.0f ms %5.0f ms %5.0f ms" % (name, *row.values()) for name, row in data["times"].items()]
        lines += ["", f"soak of cayd: {self.args.daemon_rounds} rounds, seed {self.args.seed}, {self.seconds:.0f} s: "
                  f"{len(self.violations)} violations, {self.leaks} leaks in {self.readings} readings of the oracle"]
        return "\n".join(lines)


def main(args, figures):
    if not args.live_given:
        args.live = SANDBOXES
    print(f"soak of cayd: {args.daemon_rounds} rounds, seed {args.seed}, {args.live} sandboxes", flush=True)
    soak = DaemonSoak(args)
    try:
        soak.run()
    finally:
        soak.close()
    print("\n" + soak.text())
    if args.json:
        with open(args.json, "w") as f:
            json.dump(soak.data(), f, indent=1)
    if args.docs:
        figures.replace_section("RELIABILITY.md", "Crash rounds of the daemon",
                                f"tests/soak/run --daemon-rounds {args.daemon_rounds} --seed {args.seed}", soak.text())
    return 1 if soak.violations or soak.leaks else 0
