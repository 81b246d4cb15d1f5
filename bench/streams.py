# SPDX-License-Identifier: Apache-2.0
"""The part of bench/run that measures streams: a gigabyte out of a command and into one, every way there is.

The yardstick is a pipe between the same two programs on the host, measured in turn with each way. Every way must pass
all bytes: what arrives is counted.
"""
import os
import shutil
import subprocess
import time

from daemon import SANDBOXES, Cayd
from measure import TOP, BenchError

BOX = "stream"
SECONDS = 900


def shell(*words):
    return ["/bin/sh", "-c", *words]


def quoted(words):
    return " ".join("'" + str(w).replace("'", "'\\''") + "'" for w in words)


def sdk(script, cayd):
    """The argv of one SDK's program, if that is prepared here."""
    here = os.path.join(TOP, "bench", "sdk", script)
    if script.endswith(".py"):
        python = os.path.join(TOP, "build", "sdk-venv", "bin", "python")
        argv = ["env", f"PYTHONPATH={TOP}/sdk/python/src", python, "-B", here] if os.path.exists(python) else None
    else:
        package = os.path.join(TOP, "build", "sdk-node", "node_modules", "cay-sandbox", "dist", "index.js")
        node = shutil.which("node")
        argv = ["env", f"CAY_BENCH_SDK={package}", node, here] if node and os.path.exists(package) else None
    return argv and [*argv, f"unix:{cayd.sock}", BOX]


def ways_out(place, cayd, size):
    cay, head = [place.cay], ["head", "-c", size, "/dev/zero"]
    host = [place.cay, "--host", f"unix:{cayd.sock}"]
    url = f"http://localhost{SANDBOXES}/{BOX}/processes?follow=true"
    curl = ["curl", "-sS", "--unix-socket", cayd.sock, "-H", "Content-Type: application/json", "-d",
            f'{{"argv":["head","-c","{size}","/dev/zero"]}}', url]
    raw = ["/bin/sh", "-c", f"stty raw; exec head -c {size} /dev/zero"]
    yield "cay run", quoted([*cay, "run", "--", *head])
    yield "cay exec", quoted([*cay, "exec", BOX, "--", *head])
    yield "cay exec -t, raw", quoted([*cay, "exec", "-t", BOX, "--", *raw])
    yield "cay --host exec", quoted([*host, "exec", BOX, "--", *head])
    yield "HTTP, bytes", quoted([*curl, "-H", "Accept: application/octet-stream"])


def ways_in(place, cayd, size):
    host = [place.cay, "--host", f"unix:{cayd.sock}"]
    yield "cay run -i", quoted([place.cay, "run", "-i", "--", "wc", "-c"])
    yield "cay exec -i", quoted([place.cay, "exec", "-i", BOX, "--", "wc", "-c"])
    yield "cay --host exec -i", quoted([*host, "exec", "-i", BOX, "--", "wc", "-c"])


def timed(place, command, size, counts):
    """Seconds that it took; it must have passed all bytes."""
    start = time.monotonic()
    done = subprocess.run(shell(command), env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=SECONDS)
    took = time.monotonic() - start
    if done.returncode != 0 or (counts and done.stdout.strip() != str(size)):
        raise BenchError(f"{command}: {done.stdout.strip() or 'nothing'} of {size} bytes; {done.stderr.strip()}")
    return took


def commands(place, cayd, size):
    """(direction, label, shell command, whether it prints the number of bytes)"""
    yield "out", "a pipe", f"head -c {size} /dev/zero | wc -c", True
    for label, command in ways_out(place, cayd, size):
        yield "out", label, f"{command} | wc -c", True
    for label, command in ways_in(place, cayd, size):
        yield "in", label, f"head -c {size} /dev/zero | {command}", True
    for script, label in (("stream.py", "Python"), ("stream.mjs", "TypeScript")):
        argv = sdk(script, cayd)
        for way in ("out", "in") if argv else ():
            yield way, label, quoted([*argv, way, size]), False


def bench_streams(place, report, size):
    print(f"streams: {size >> 20} MiB each way", flush=True)
    rows, pipe = [], None
    with Cayd(place, 0) as cayd:
        subprocess.run([place.cay, "create", "--name", BOX], env=place.env, check=True, stdout=subprocess.DEVNULL)
        for way, label, command, counts in commands(place, cayd, size):
            took = min(timed(place, command, size, counts) for _ in range(2))
            pipe = pipe or took
            rows.append({"way": way, "label": label, "seconds": took, "mib_per_second": (size >> 20) / took,
                         "x_pipe": took / pipe})
    report.rows("streams", rows)
    place.remove_all()


def steps(place, report, args):
    return [lambda: bench_streams(place, report, (16 << 20) if args.quick else 1 << 30)]
