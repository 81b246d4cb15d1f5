# SPDX-License-Identifier: Apache-2.0
"""Scenes of tests/soak/run --faults: a system call fails, or a record is damaged, at a random instant.

As in scenes.py: each takes (soak, sandbox) and returns whether the sandbox must live on. Every fourth round is one with
a sandbox that is paused when it happens. Whatever is done must come back in time, with success or one line that says
why; the sandbox then runs, with its counter whole, or it has ended with a reason and nothing of it is left.
"""
import os
import subprocess
import time

import mutate
from engine import Violation, inside, wait_gone
from faults import CALLS, LIVING, Flagged, Traced

SECONDS = 75.0  # for any one call: more than every patience of the engine
GONE_SECONDS = 15.0
UNTRUE = "the host restarted"
# What a caller calls in its short life.
CALLER_CALLS = ("openat", "connect", "sendmsg", "recvmsg", "fcntl", "fstat", "pread64", "mmap", "socket", "getdents64",
                "newfstatat", "unlinkat")


def operations(sandbox):
    """What a caller may want at that moment."""
    name = sandbox.name
    return (("exec", name, "--", "echo", "here"), ("cp", "/etc/hostname", f"{name}:/tmp/x"), ("pause", name),
            ("resume", name), ("stats", name), ("procs", name), ("inspect", name), ("ps", "-a"), ("stop", name),
            ("exec", "-d", name, "--", "true"))


def rule_of(soak, names):
    call = soak.rng.choice(names)
    return call, soak.rng.choice(CALLS[call]), soak.rng.randint(1, 6), False


def judge(what, code, err, faulty_write=False):
    """Success, or one line that says why not. What cannot write cannot say, either."""
    lines = err.strip().splitlines()
    if code == 0 or faulty_write and code == 125:
        return
    if code != 125 or len(lines) != 1 or len(lines[0]) < 12 or UNTRUE in err:
        raise Violation(f"{what}: exit {code}: {err.strip()!r}")


def settle(soak, sandbox, everything):
    """How it is afterwards: alive and whole, or ended with a reason and gone."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        info = soak.cay.inspect(sandbox.name)
        if info and info["state"] == "paused":
            soak.cay.must("resume", sandbox.name, timeout=SECONDS)
        elif info and info["state"] == "running":
            sandbox.reader = sandbox.reader.again()
            return True
        elif not info or info["state"] not in ("creating", "unavailable") or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if info and (info["state"] in ("creating", "unavailable") or not info["reason"] or UNTRUE in info["reason"]):
        raise Violation(f"after the fault it is {info}")
    wait_gone(everything, GONE_SECONDS, "ended after a fault")
    return False


def fault_in_keeper(soak, sandbox):
    """One of its calls fails while it serves one."""
    everything = inside(sandbox.init.pid)
    rule = rule_of(soak, LIVING)
    try:
        traced = Traced(soak.fault_log, rule, pid=sandbox.keeper.pid)
    except Flagged as why:
        raise Violation(why.args[1]) from why
    words = soak.rng.choice(operations(sandbox))
    try:
        code, _, err = soak.cay.call(*words, timeout=SECONDS)
    finally:
        traced.detach()
        soak.hits += bool(traced.hits())
    judge(f"cay {' '.join(words)} while {rule} of its keeper", code, err)
    return settle(soak, sandbox, everything)


def fault_in_caller(soak, sandbox):
    """One of the calls of a `cay` fails."""
    everything = inside(sandbox.init.pid)
    rule = rule_of(soak, CALLER_CALLS)
    words = soak.rng.choice(operations(sandbox))
    traced = Traced(soak.fault_log, rule, [soak.cay.program, *words], env=soak.cay.env)
    try:
        _, err = traced.process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        traced.detach()
        raise Violation(f"cay {' '.join(words)} with {rule} did not come back") from error
    soak.hits += bool(traced.hits())
    judge(f"cay {' '.join(words)} with {rule}", traced.process.returncode, err.decode(errors="replace"))
    return settle(soak, sandbox, everything)


def fault_in_create(soak, sandbox):
    """In any of the processes that make a sandbox: it is there, or it is not, and can be made again."""
    name, rule = soak.new_name(), rule_of(soak, tuple(CALLS))
    traced = Traced(soak.fault_log, rule, [soak.cay.program, "create", *soak.cay.create_options(name)],
                    env=soak.cay.env)
    try:
        out, _ = traced.said()
        soak.cay.call("exec", name, "--", "true", timeout=SECONDS)
        soak.cay.call("rm", "-f", name, timeout=SECONDS)
    except Flagged as why:
        raise Violation(f"create with {rule}: {why.args[1]}") from why
    finally:
        traced.detach()
        soak.hits += bool(traced.hits())
    soak.cay.must("rm", "-f", name, timeout=SECONDS)
    soak.cay.create(name)
    soak.cay.must("exec", name, "--", "true")
    soak.cay.remove(name)
    return True


def damaged_record(soak, sandbox):
    """Its own trouble and nobody else's; rm -f ends it and leaves nothing."""
    everything = inside(sandbox.init.pid)
    if soak.rng.random() < 0.3:
        soak.cay.must("kill", sandbox.name)
    records = [os.path.join(top, sandbox.name, name) for top, name in (
        (soak.cay.run_dir, "status"), (os.path.join(soak.cay.state, "sandboxes"), "spec"),
        (os.path.join(soak.cay.state, "sandboxes"), "status"))]
    path = soak.rng.choice([p for p in records if os.path.exists(p)])
    other = soak.rng.choice([s for s in soak.live if s is not sandbox]).name
    foreign = path.replace(f"/{sandbox.name}/", f"/{other}/")
    with open(foreign, "rb") as f:
        damage = soak.rng.choice(mutate.all_of(path, f.read(), soak.rng, 32))
    damage.apply(path)
    soak.hits += 1
    for words in (("ps", "-a"), *soak.rng.sample(operations(sandbox)[:-2], 2)):
        code, _, err = soak.cay.call(*words, timeout=SECONDS)
        judge(f"cay {' '.join(words)} after {damage.kind} {damage.name} of {path}", code, err)
        if words[0] == "ps" and code != 0:
            raise Violation(f"cay ps after {damage.kind} {damage.name} of {path}: {err.strip()}")
    soak.cay.must("rm", "-f", sandbox.name, timeout=SECONDS)
    wait_gone(everything, GONE_SECONDS, f"rm -f after {damage.kind} {damage.name} of {path}")
    if os.path.lexists(path):
        raise Violation(f"{path} is still there after rm -f")
    return False


SCENES = ((5, fault_in_keeper), (4, fault_in_caller), (2, fault_in_create), (4, damaged_record))


def paused(scene):
    """The same with a sandbox that is paused."""
    def play(soak, sandbox):
        soak.cay.must("pause", sandbox.name)
        lives = scene(soak, sandbox)
        if lives and soak.cay.inspect(sandbox.name)["state"] == "paused":
            soak.cay.must("resume", sandbox.name)
        return lives
    play.__name__ = f"{scene.__name__}_paused"
    return play
