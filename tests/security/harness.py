# SPDX-License-Identifier: Apache-2.0
"""What the attack tests share: verdicts of the probe, places to run it in, sandboxes seen from the host.

Every attack has a positive control: the same probe where the wall is absent. The places without walls are
  host    root on the host, for probes that do no harm there (wrong arguments, own files, own children)
  ns      root in new namespaces, but without a user namespace, seccomp or limits: "a container as root"
  nobody  an ordinary user of the host
  inside  the same sandbox, where that one wall is legitimately open (its own child, its own directory)
  nested  a sandbox of the `nested` profile
"""

import dataclasses
import os
import pathlib
import subprocess
import time

WON, REFUSED, UNTRIED, KILLED = "won", "refused", "untried", "killed"
HERE = pathlib.Path(__file__).resolve().parent
IN_SANDBOX = "/probe/probe"

UNSHARE = [
    "unshare",
    "--fork",
    "--pid",
    "--kill-child",
    "--mount",
    "--uts",
    "--ipc",
    "--net",
    "--cgroup",
    "--mount-proc",
    "--propagation",
    "private",
]
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@dataclasses.dataclass
class Verdict:
    """What a probe said. `kind` is killed when it could say nothing because a limit ended it."""

    kind: str
    text: str
    code: int

    def must_win(self):
        assert self.kind == WON, f"the control does not show the attack at work: {self.text}"

    def must_be_refused(self, killed_too=False):
        assert self.kind == REFUSED or (killed_too and self.kind == KILLED), f"not refused: {self.text}"


def verdict(done):
    for line in reversed(done.stdout.splitlines()):
        word = line.partition(":")[0]
        if word in (WON, REFUSED, UNTRIED):
            return Verdict(word, line, done.returncode)
    text = f"exit {done.returncode}: {done.stdout} {done.stderr}"
    return Verdict(KILLED if done.returncode in (137, 159, -9) else UNTRIED, text, done.returncode)


def compile_probe(folder):
    """The probe, static, so that it runs in any root filesystem. musl where it is there: smaller."""
    sources = sorted(str(p) for p in (HERE / "probe").glob("*.c"))
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-static", "-pthread", "-o", str(folder / "probe")]
    musl = [
        "musl-gcc",
        "-idirafter",
        "/usr/include",
        "-idirafter",
        f"/usr/include/{os.uname().machine}-linux-gnu",
    ]
    errors = ""
    for compiler in (musl, ["gcc"]):
        try:
            done = subprocess.run([*compiler, *flags, *sources], capture_output=True, text=True)
        except FileNotFoundError as missing:
            errors += f"{missing}\n"
            continue
        if done.returncode == 0:
            return folder / "probe"
        errors += done.stderr
    raise RuntimeError(f"the probe does not compile:\n{errors}")


def run_host(argv, timeout=60, **options):
    return subprocess.run(
        [str(a) for a in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=timeout,
        **options,
    )


USER = 64321  # of nobody: no name, no home, no range of ids


def as_user(engine, *args, **options):
    return engine.run(*args, user=USER, group=USER, extra_groups=[], cwd="/", **options)


class Place:
    """Where a probe runs. run(NAME, ARG...) gives a Verdict."""

    def __init__(self, prefix, probe):
        self.prefix, self.probe = prefix, str(probe)

    def run(self, *args, timeout=60, **options):
        return verdict(run_host([*self.prefix, self.probe, *args], timeout=timeout, **options))


def host_places(probe):
    return {"host": Place([], probe), "ns": Place(UNSHARE, probe), "nobody": Place(NOBODY, probe)}


class Sandbox:
    """A sandbox with the probe in it (a read-only mount on /probe)."""

    def __init__(self, cay, probe_dir, *spec):
        self.cay = cay
        self.id = cay.create("-v", f"{probe_dir}:/probe:ro", *spec)

    def exec(self, *argv, options=(), **kwargs):
        return self.cay.run("exec", *options, self.id, "--", *argv, **kwargs)

    def sh(self, script, **kwargs):
        return self.exec("/bin/sh", "-c", script, **kwargs)

    def must(self, script, **kwargs):
        done = self.sh(script, **kwargs)
        assert done.returncode == 0, f"{script}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *args, options=(), **kwargs):
        """The probe inside."""
        return verdict(self.exec(IN_SANDBOX, *args, options=options, **kwargs))

    def background(self, *argv, options=()):
        done = self.cay.run("exec", "-d", *options, self.id, "--", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def host_pid(self):
        """The host's pid of a new process inside, found by an argument that nobody else has."""
        mark = f"86{time.monotonic_ns() % 10**9:09d}"
        self.background("sleep", mark)
        return wait_for(lambda: find_process(mark), 10, "the process on the host")

    def alive(self):
        done = self.sh("echo alive", timeout=20)
        return done.returncode == 0 and done.stdout == "alive\n"

    def remove(self):
        self.cay.run("rm", "-f", self.id, timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def find_process(mark):
    """A process whose last argument is `mark`, and that is the command itself, not cay that asked for it."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            words = read_bytes(f"/proc/{name}/cmdline").split(b"\0")
            if len(words) > 1 and words[-2] == mark.encode() and b"cay" not in os.path.basename(words[0]):
                return int(name)
    return None


def read_bytes(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def status(pid, key):
    """A line of /proc/PID/status as a list of words."""
    for line in read_bytes(f"/proc/{pid}/status").decode().splitlines():
        if line.startswith(key + ":"):
            return line.split(":", 1)[1].split()
    return []


def parent(pid):
    return int(status(pid, "PPid")[0])


def init_of(pid):
    """pid 1 of the sandbox that a host pid lives in, and its keeper."""
    while status(pid, "NSpid")[-1] != "1":
        pid = parent(pid)
    return pid, parent(pid)


def memory_of(pid):
    """Resident bytes."""
    words = status(pid, "VmRSS")
    return int(words[0]) * 1024 if words else 0


def wait_for(what, seconds, name):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {name}")
