# SPDX-License-Identifier: Apache-2.0
"""What is done to a sandbox in one round, and what must come of it.

Each scene takes (soak, sandbox), draws its instants from soak.rng and returns True when the sandbox must
live on, False when it has ended. Times that are promised are given to soak.record(). Anything that is not a
documented outcome (docs/RELIABILITY.md) is a Violation.
"""
import os
import signal
import subprocess
import time

from engine import Reader, Victim, Violation, inside, wait_gone

LOST_SECONDS = 1.0   # from the death of keeper or init until inspect says so
GONE_SECONDS = 2.0   # from the death of the caller of an ephemeral sandbox until it is gone
SWEPT_SECONDS = 3.0  # from the death of a create until its id is free again
CP_BYTES = 8 << 20


def kill_caller(soak, process, longest):
    """Lets a caller run for a random part of `longest` seconds and kills it, if it has not ended by then."""
    time.sleep(soak.rng.uniform(0, longest))
    victim = Victim(process.pid, "caller")
    killed = victim.send(signal.SIGKILL)
    victim.close()
    process.wait()
    if killed and process.returncode == -signal.SIGKILL:
        soak.in_the_middle += 1
    else:
        soak.too_late += 1


def caller_in_create(soak, sandbox):
    """The sandbox of the killed create is whole, or it is not there at all."""
    name = soak.new_name()
    kill_caller(soak, soak.cay.start("create", *soak.cay.create_options(name)), soak.create_seconds)
    start = time.monotonic()
    _, info = soak.cay.wait_state(name, ("running", None), SWEPT_SECONDS, start)
    if info is not None:
        soak.cay.must("exec", name, "--", "true")
    # The same create again must do, whatever the first one left.
    soak.cay.create(name)
    soak.cay.must("exec", name, "--", "true")
    soak.cay.remove(name)
    return True


def caller_in_exec(soak, sandbox):
    """The process goes on; another caller reads on at the offset where the first was killed."""
    caller = soak.cay.start("exec", sandbox.name, "--", "sh", "-c", "echo $$; exec sh -c '%s'" % (
        "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); [ $((i % 10)) = 0 ] && sleep 0.01; done; exit 5"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = b""
    while not first.endswith(b"\n"):
        byte = os.read(caller.stdout.fileno(), 1)
        if not byte:
            raise Violation(f"exec said nothing: {caller.stderr.read().decode(errors='replace').strip()}")
        first += byte
    reader = Reader(soak.cay, sandbox.name, int(first), offset=len(first), caller=caller)
    time.sleep(soak.rng.uniform(0, 0.5))
    reader = reader.again()
    code = soak.cay.call("wait", sandbox.name, str(reader.process), "--timeout", "15")[0]
    reader.caller.wait(10)
    reader.thread.join(5)
    reader.stop()
    reader.check()
    if code != 5 or reader.number != 400:
        raise Violation(f"exec of a killed caller: exit {code} instead of 5, {reader.number} of 400 numbers")
    return True


def caller_in_attach(soak, sandbox):
    """The reader of the counter is killed and another goes on at its offset, a few times."""
    for _ in range(soak.rng.randint(1, 4)):
        time.sleep(soak.rng.uniform(0, 0.1))
        sandbox.reader = sandbox.reader.again()
    return True


def caller_in_cp(soak, sandbox):
    """The file is the old one or the new one, whole; nothing else is left beside it."""
    old, new = soak.blobs
    target = f"{sandbox.name}:/tmp/cp/file"
    soak.cay.must("exec", sandbox.name, "--", "mkdir", "-p", "/tmp/cp")
    soak.cay.must("cp", old, target)
    kill_caller(soak, soak.cay.start("cp", new, target), 1.2 * soak.cp_seconds)
    wanted = [f"{soak.sums[old]}  -\n", f"{soak.sums[new]}  -\n"]
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        sum_ = soak.cay.must("exec", sandbox.name, "--", "sh", "-c", "sha256sum </tmp/cp/file")
        names = soak.cay.must("exec", sandbox.name, "--", "ls", "-A", "/tmp/cp").split()
        if sum_ not in wanted:
            raise Violation(f"half a file after cp: {sum_.strip()}")
        if names == ["file"]:
            return True
        if time.monotonic() > deadline:
            raise Violation(f"left beside the file after cp: {names}")
        time.sleep(0.02)


def caller_in_stop(soak, sandbox):
    """It is stopped, or it runs; a second stop stops it for good."""
    everything = inside(sandbox.init.pid)
    kill_caller(soak, soak.cay.start("stop", sandbox.name), 0.05)
    state = soak.cay.inspect(sandbox.name)
    if not state or state["state"] not in ("running", "exited"):
        raise Violation(f"{state} after a killed stop")
    code, _, err = soak.cay.call("stop", sandbox.name)
    state = soak.cay.inspect(sandbox.name)
    if not state or state["state"] != "exited" or code not in (0, 125):
        raise Violation(f"{state and state['state']} after a second stop (exit {code}: {err.strip()})")
    wait_gone(everything, LOST_SECONDS, "stop")
    return False


def caller_of_run(soak, sandbox):
    """An ephemeral sandbox goes with its caller."""
    label = soak.new_name()
    caller = soak.cay.start("run", "--image", soak.cay.image, "--label", "run=" + label, "--", "sleep", "600")
    kill_caller(soak, caller, 3 * soak.create_seconds)
    start = time.monotonic()
    while True:
        left = soak.cay.must("ps", "-a", "-q", "--label", "run=" + label).split()
        now = time.monotonic() - start
        if not left:
            soak.record("ephemeral gone", now)
            return True
        if now > GONE_SECONDS:
            raise Violation(f"cay run was killed and {left} is still there after {GONE_SECONDS:g} s")
        time.sleep(0.01)


def keeper(soak, sandbox):
    """Lost, with a reason, within a second, and nothing of it runs."""
    everything = inside(sandbox.init.pid)
    start = time.monotonic()
    sandbox.keeper.send(signal.SIGKILL)
    took, info = soak.cay.wait_state(sandbox.name, ("lost",), LOST_SECONDS, start)
    soak.record("keeper killed: lost", took)
    if not info.get("reason"):
        raise Violation("lost without a reason")
    wait_gone(everything, LOST_SECONDS, "keeper killed")
    soak.record("keeper killed: all gone", time.monotonic() - start)
    return False


def keeper_of_paused(soak, sandbox):
    """The same, with every process frozen: it must die all the same."""
    soak.cay.must("pause", sandbox.name)
    return keeper(soak, sandbox)


def init(soak, sandbox):
    """Exited, with a reason that tells of init, within a second."""
    everything = inside(sandbox.init.pid)
    start = time.monotonic()
    sandbox.init.send(signal.SIGKILL)
    took, info = soak.cay.wait_state(sandbox.name, ("exited",), LOST_SECONDS, start)
    soak.record("init killed: exited", took)
    reason = (info.get("reason") or "").lower()
    if "init" not in reason and "kill" not in reason:
        raise Violation(f"exited with the reason {reason!r}, which does not tell of init")
    wait_gone(everything, LOST_SECONDS, "init killed")
    wait_gone([sandbox.keeper], GONE_SECONDS, "init killed, keeper")
    return False


def caller_and_keeper(soak, sandbox):
    """Both at once, in the middle of an exec; the same outcome as the keeper alone."""
    everything = inside(sandbox.init.pid)
    caller = soak.cay.start("exec", sandbox.name, "--", "sleep", "600")
    time.sleep(soak.rng.uniform(0, 0.05))
    start = time.monotonic()
    sandbox.keeper.send(signal.SIGKILL)
    caller.kill()
    caller.wait()
    took, _ = soak.cay.wait_state(sandbox.name, ("lost",), LOST_SECONDS, start)
    soak.record("keeper killed: lost", took)
    wait_gone(everything, LOST_SECONDS, "caller and keeper killed")
    return False


def keeper_in_create(soak, sandbox):
    """The keeper of a sandbox that is being made: create fails with one line, or it is lost; then gone."""
    name = soak.new_name()
    caller = soak.cay.start("create", *soak.cay.create_options(name), stderr=subprocess.PIPE, text=True)
    time.sleep(soak.rng.uniform(0, soak.create_seconds))
    for pid in soak.keepers_of(name):
        try:
            victim = Victim(pid, "keeper of a create")
        except Violation:
            continue  # ended by itself
        if pid in soak.keepers_of(name):
            victim.send(signal.SIGKILL)
        victim.close()
    try:
        _, err = caller.communicate(timeout=10)
    except subprocess.TimeoutExpired as error:
        caller.kill()
        caller.communicate()
        raise Violation("create does not notice that its keeper is dead") from error
    if caller.returncode not in (0, 125):
        raise Violation(f"create without its keeper: exit {caller.returncode}: {err.strip()}")
    soak.cay.wait_state(name, ("running", "lost", None), SWEPT_SECONDS, time.monotonic())
    soak.cay.remove(name)
    if soak.cay.inspect(name) is not None:
        raise Violation(f"{name} is still there after rm -f")
    return True


def stopped_keeper(soak, sandbox):
    """A keeper that stands still loses nothing, and a listing does not hang on it."""
    sandbox.keeper.send(signal.SIGSTOP)
    try:
        time.sleep(soak.rng.uniform(0.02, 0.3))
        start = time.monotonic()
        soak.cay.must("ps", "-q", timeout=5)
        soak.record("ps beside a stopped keeper", time.monotonic() - start)
    finally:
        sandbox.keeper.send(signal.SIGCONT)
    return True


def remove_stopped_keeper(soak, sandbox):
    """rm -f does not depend on a keeper that stands still."""
    everything = inside(sandbox.init.pid)
    sandbox.keeper.send(signal.SIGSTOP)
    try:
        soak.cay.must("inspect", sandbox.name, timeout=10)
        soak.cay.remove(sandbox.name)
    finally:
        sandbox.keeper.send(signal.SIGCONT)
    wait_gone(everything, LOST_SECONDS, "rm -f beside a stopped keeper")
    return False


def remove_under_exec(soak, sandbox):
    """exec ends with some answer, rm with success, and nothing is left."""
    everything = inside(sandbox.init.pid)
    callers = [soak.cay.start("exec", sandbox.name, "--", "sleep", "600") for _ in range(3)]
    time.sleep(soak.rng.uniform(0, 0.03))
    soak.cay.remove(sandbox.name)
    for caller in callers:
        try:
            caller.wait(5)
        except subprocess.TimeoutExpired as error:
            caller.kill()
            caller.wait()
            raise Violation("exec hangs although its sandbox is removed") from error
        if caller.returncode == 0:
            raise Violation("exec of sleep says 0 although its sandbox was removed")
    if soak.cay.inspect(sandbox.name) is not None:
        raise Violation("still there after rm -f")
    wait_gone(everything, LOST_SECONDS, "rm -f")
    return False


def same_create_twice(soak, sandbox):
    """Two callers create the same at once: both succeed and there is one."""
    name = soak.new_name()
    callers = [soak.cay.start("create", *soak.cay.create_options(name), stderr=subprocess.PIPE, text=True)
               for _ in range(2)]
    for caller in callers:
        _, err = caller.communicate(timeout=20)
        if caller.returncode != 0:
            raise Violation(f"two equal creates at once: exit {caller.returncode}: {err.strip()}")
    if len([i for i in soak.cay.list() if i["id"] == name]) != 1:
        raise Violation("two equal creates at once made another number than one")
    soak.cay.remove(name)
    return True


# Weight and scene. Deaths of callers, keepers and inits come most often; what is not promised (yet) has
# weight 0 and is played with --only.
SCENES = (
    (3, caller_in_create), (3, caller_in_exec), (3, caller_in_attach), (2, caller_in_cp), (2, caller_in_stop),
    (3, caller_of_run), (4, keeper), (1, keeper_of_paused), (4, init), (3, caller_and_keeper),
    (2, keeper_in_create), (2, stopped_keeper), (0, remove_stopped_keeper), (3, remove_under_exec), (1, same_create_twice),
)
