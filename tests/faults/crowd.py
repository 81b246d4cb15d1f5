# SPDX-License-Identifier: Apache-2.0
"""Many callers on few ids: the command line and the API at once, each doing any of the operations at any time.

Every answer must be one that its operation may give in a race: `ALLOWED` says which exit code goes with which words,
and which status with which code. What is left afterwards is for the caller to check.
"""
import collections
import random
import re
import threading
import time

IDS = ("r0", "r1", "r2", "r3")
PATIENCE = 75  # seconds for any one operation: more than every patience of the engine

# What a command line that fails may say, whichever the operation: the sandbox is not, not yet, or no more what it was.
GONE = (r"sandbox 'r\d' is there again", r"no sandbox 'r\d'", r"sandbox 'r\d' has ended: (exited|lost) ",
        r"sandbox 'r\d' ended before the command started", r"the keeper of sandbox 'r\d' hung up",
        r"the sandbox is ending", r"the sandbox ended, or its file worker was killed")
PAUSED = (r"the sandbox is paused; 'cay resume' lets it go on",)
WORDS = {
    "create": (r"sandbox 'r\d' has ended and its record is still there", r"is being made", r"cannot be removed yet",
               r"the keeper died while it made sandbox 'r\d'", *GONE),
    "exec": GONE + PAUSED,
    "cp": GONE + PAUSED,
    "pause": GONE,
    "resume": GONE,
    "stop": (r"no sandbox 'r\d'", r"is there again", r"the keeper of sandbox 'r\d' hung up"),
    "rm": (r"is there again", r"is being made again", r"does not end"),
    "ps": (),
}
STATUSES = {
    "create": {200, 201, 409, 410, 503},
    "exec": {200, 404, 409, 410, 503},
    "cp": {200, 201, 204, 404, 409, 410, 503},
    "pause": {204, 404, 409, 410, 503},
    "resume": {204, 404, 409, 410, 503},
    "stop": {204, 404, 410, 503},
    "rm": {204, 404, 409, 503},
    "ps": {200},
}
UNTRUE = "the host restarted"
# Sandboxes come and go, so that there is mostly one to work on.
WEIGHTS = {"create": 5, "exec": 5, "cp": 3, "pause": 2, "resume": 2, "stop": 1, "rm": 2, "ps": 2}


class Caller(threading.Thread):
    def __init__(self, crowd, number):
        super().__init__(daemon=True)
        self.crowd, self.rng = crowd, random.Random(f"{crowd.seed} {number}")
        self.over_api = number % 2 == 0
        self.client = crowd.daemon.client(timeout=PATIENCE) if self.over_api else None

    def run(self):
        while time.monotonic() < self.crowd.deadline:
            operation = self.rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
            name = self.rng.choice(IDS)
            start = time.monotonic()
            try:
                (self.ask if self.over_api else self.call)(operation, name)
            except Exception as why:  # a thread's death must be told
                self.crowd.wrong(operation, f"{type(why).__name__}: {why}")
                self.client = self.crowd.daemon.client(timeout=PATIENCE) if self.over_api else None
            took = time.monotonic() - start
            self.crowd.slowest = max(self.crowd.slowest, (took, f"{operation} {'api' if self.over_api else 'cli'}"))
        if self.client:
            self.client.close()

    def call(self, operation, name):
        args = {
            "create": ("create", "--name", name), "exec": ("exec", "--timeout", "20s", name, "--", "echo", name),
            "cp": ("cp", "/etc/hostname", f"{name}:/tmp/x"), "pause": ("pause", name), "resume": ("resume", name),
            "stop": ("stop", name), "rm": ("rm", "-f", name), "ps": ("ps", "-a", "--json"),
        }[operation]
        done = self.crowd.daemon.cay.run(*args, timeout=PATIENCE)
        self.crowd.count("cli", operation, done.returncode)
        text = f"cay {' '.join(args)}: {done.returncode} {done.stdout!r} {done.stderr!r}"
        if UNTRUE in done.stdout + done.stderr:
            self.crowd.wrong(operation, text)
        elif done.returncode == 0:
            if operation == "exec" and done.stdout != name + "\n":
                self.crowd.wrong(operation, text)
        elif operation == "exec" and done.returncode in (124, 137, 143):
            pass  # it ran out of its time while paused, or was killed with its sandbox
        elif done.returncode != 125 or not any(re.search(w, done.stderr) for w in WORDS[operation]):
            self.crowd.wrong(operation, text)

    def ask(self, operation, name):
        box = f"/sandboxes/{name}"
        method, path, body = {
            "create": ("POST", "/sandboxes", {"id": name}),
            "exec": ("POST", f"{box}/exec", {"argv": ["echo", name], "timeout": 20}),
            "cp": ("PUT", f"{box}/files?path=/tmp/x", None), "pause": ("POST", f"{box}/pause", None),
            "resume": ("POST", f"{box}/resume", None), "stop": ("POST", f"{box}/stop", {}),
            "rm": ("DELETE", box, None), "ps": ("GET", "/sandboxes?state=all", None),
        }[operation]
        more = {"body": b"some bytes"} if operation == "cp" else {"json": body}
        answer = self.client.request(method, path, **more)
        self.crowd.count("api", operation, answer.status)
        text = f"{method} {path}: {answer.status} {answer.body}"
        if answer.status not in STATUSES[operation] or UNTRUE in str(answer.body):
            self.crowd.wrong(operation, text)
        elif answer.status >= 300 and (not answer.error["message"] or answer.code == "internal"):
            self.crowd.wrong(operation, text)
        elif operation == "exec" and answer.status == 200 and answer.body["exit_code"] == 0 and \
                answer.body["stdout"] != name + "\n":
            self.crowd.wrong(operation, text)


class Crowd:
    """`callers` threads for `seconds`; each starts processes of the command line, or is a client of the API."""

    def __init__(self, daemon, callers, seconds, seed):
        self.daemon, self.seed = daemon, seed
        self.lock, self.counts, self.faults = threading.Lock(), collections.Counter(), collections.Counter()
        self.examples, self.slowest = {}, (0.0, "")
        self.deadline = time.monotonic() + seconds
        self.callers = [Caller(self, number) for number in range(callers)]

    def count(self, way, operation, code):
        with self.lock:
            self.counts[f"{way} {operation} {code}"] += 1

    def wrong(self, operation, text):
        shape = f"{operation}: " + re.sub(r"\br\d\b|\d+", "N", text)[:160]
        with self.lock:
            self.faults[shape] += 1
            self.examples.setdefault(shape, text[:600])

    def release(self):
        """An exec in a paused sandbox waits until somebody goes on with it: at the end that is us."""
        end = time.monotonic() + 2 * PATIENCE
        while (waiting := [c for c in self.callers if c.is_alive()]) and time.monotonic() < end:
            for name in IDS:
                self.daemon.cay.run("resume", name, timeout=PATIENCE)
            waiting[0].join(0.2)
        return ["hang: a caller did not come back" for _ in waiting]

    def run(self):
        """Lines: what was answered that must not be, and who did not come back."""
        for caller in self.callers:
            caller.start()
        time.sleep(max(0.0, self.deadline - time.monotonic()))
        found = self.release()
        with self.lock:
            return found + [f"{count} x {self.examples[shape]}" for shape, count in self.faults.most_common()]


