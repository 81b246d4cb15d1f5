# SPDX-License-Identifier: Apache-2.0
"""What the integration tests share: waiting with a deadline, and reading what cay says."""
import contextlib
import os
import pathlib
import signal
import time

CGROUP = f"cayi{os.getpid()}"


def until(what, seconds=10.0, every=0.01):
    """Calls `what` until it is true; returns its value. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {getattr(what, '__name__', what)}")
        time.sleep(every)


def info(cay, identifier):
    """The sandbox's entry of `ps -a --json`, or None."""
    for entry in cay.json("ps", "-a", "--json"):
        if entry["id"] == identifier:
            return entry
    return None


def state(cay, identifier):
    entry = info(cay, identifier)
    return entry["state"] if entry else None


def procs(cay, identifier):
    return {p["pid"]: p for p in cay.json("procs", "--json", identifier)}


def background(cay, identifier, script, *options):
    """Starts a shell string in the background and returns its number."""
    return int(cay.run("exec", "-d", *options, identifier, "-c", script, check=True).stdout)


def refused(done, *words, code=125):
    """A failure as every failure should be: one line from cay, its exit code, and the words in it."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("cay: "), done.stderr
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


def alive(pid):
    """A process that runs; a zombie does not."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def host_pids(marker):
    """Host processes whose command line has the marker as one of its words."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if marker.encode() in words and alive(name):
                found.append(int(name))
    return found


def end(process, how=signal.SIGKILL):
    """Ends a Popen that a test left running, and closes its pipes."""
    if process.poll() is None:
        process.send_signal(how)
    process.wait(timeout=30)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
