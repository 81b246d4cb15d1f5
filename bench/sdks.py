# SPDX-License-Identifier: Apache-2.0
"""The part of bench/run that measures the SDKs: attach and exec in a live sandbox, as a program that uses them sees it.

The yardstick is the same request by curl on the unix socket, one process for each, as in a shell script; beside it
bench/http.c on a connection that stays, which is what the daemon itself needs. Slices take turns, so that all meet
the same machine.
"""
import os
import shutil

from daemon import SANDBOXES, TRUE, Cayd, must_be_whole, ratio
from measure import TOP, Series, parse_series

ATTACH_LIMIT_US = 1000.0
NEEDED = "bench: the SDKs are not measured: ./quickstart test prepares what they need"


def clients():
    """The argv of each SDK's program, for those that are prepared here."""
    python = os.path.join(TOP, "build", "sdk-venv", "bin", "python")
    package = os.path.join(TOP, "build", "sdk-node", "node_modules", "cay-sandbox", "dist", "index.js")
    node, here = shutil.which("node"), os.path.join(TOP, "bench", "sdk")
    found = []
    if os.path.exists(python):
        found.append(["env", f"PYTHONPATH={TOP}/sdk/python/src", python, "-B", os.path.join(here, "client.py")])
    if node and os.path.exists(package):
        found.append(["env", f"CAY_BENCH_SDK={package}", node, os.path.join(here, "client.mjs")])
    return found


def curl_of(cayd):
    curl, url = [shutil.which("curl"), "-sS", "--fail", "--output", "/dev/null", "--unix-socket", cayd.sock], "http://localhost"
    return {"attach, curl": [*curl, f"{url}{SANDBOXES}/one"],
            "exec, curl": [*curl, "-H", "Content-Type: application/json", "-d", TRUE, f"{url}{SANDBOXES}/one/exec"]}


def one_slice(place, cayd, rounds):
    found = dict(place.spawn(curl_of(cayd), max(5, rounds // 2), warmup=1))
    for what, request in (("attach", f"GET {SANDBOXES}/one"), ("exec", f"POST {SANDBOXES}/one/exec {TRUE}")):
        bare = cayd.http(request, rounds=rounds, warmup=5)
        must_be_whole(bare, what)
        found[f"{what}, bare HTTP"] = bare["turn"]
    for argv in clients():
        found.update(place.program([*argv, f"unix:{cayd.sock}", "one", str(rounds)]))
    return found


def bench_sdks(place, report, rounds, slices=3):
    print(f"SDKs: {rounds} rounds in each of {slices} slices", flush=True)
    found = {}
    with Cayd(place, 0) as cayd:
        cayd.http(f'POST {SANDBOXES} {{"id":"one","image":"dir:{place.rootfs}"}}', rounds=1)
        for _ in range(slices):
            for label, series in one_slice(place, cayd, rounds).items():
                found.setdefault(label, []).extend(series.samples)
    series = {label: Series(label, samples) for label, samples in found.items()}
    rows = []
    for what in ("attach", "exec"):
        curl = series[f"{what}, curl"].p50
        for label in (name for name in series if name.startswith(what)):
            rows.append({**series[label].record(), "x_curl": ratio(series[label].p50, curl)})
    report.rows("sdks", rows)
    for label in (name for name in series if name.startswith("attach") and name.split(", ")[1] not in ("curl", "bare HTTP")):
        report.budget(f"SDK: {label}", ATTACH_LIMIT_US, series[label].p50, unit="us")


def steps(place, report, args):
    if not clients() or not shutil.which("curl"):
        report.note(NEEDED)
        return []
    return [lambda: bench_sdks(place, report, args.rounds)]
