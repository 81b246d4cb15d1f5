# SPDX-License-Identifier: Apache-2.0
"""Whether all that an engine has on the host agrees: list, processes, cgroups, directories and links of ids.

    differences(cay, cgroup)   [] or lines; waits until they agree, as what ends takes a moment

Without prepared sandboxes (pool = 0): those have two names.
"""
import json
import os
import time
import zlib

from lib import oracle

LIVING = ("running", "paused")


def keepers(run_dir):
    """Names of the sandboxes whose keepers run."""
    found = []
    for pid in oracle.pids():
        words = oracle.read(f"/proc/{pid}/cmdline").split("\0")
        if words[0] == "cay-keeper" and f"CAY_RUN_DIR={run_dir}\0" in oracle.read(f"/proc/{pid}/environ") + "\0":
            found.append(words[1])
    return sorted(found)


def groups(run_dir, cgroup):
    mark = f".{zlib.crc32(str(run_dir).encode()):08x}"
    return sorted({name[:-len(mark)] for _, name in oracle.groups_of(cgroup) if name.endswith(mark)})


def _names(path, but=()):
    return sorted(name for name in os.listdir(path) if name not in but) if os.path.isdir(path) else []


def _links(run_dir):
    place = os.path.join(run_dir, "ids")
    paths = [os.path.join(place, name) for name in _names(place)]
    return sorted(os.readlink(path) for path in paths if os.path.islink(path))


def views(cay, cgroup):
    """{name: sorted ids} of those that live, and of all that have a record."""
    done = cay.run("ps", "-a", "--json")
    if done.returncode != 0:
        return {"ps": [done.stderr]}, {"ps": []}
    listed = json.loads(done.stdout)
    living = {
        "ps": sorted(e["id"] for e in listed if e["state"] in LIVING),
        "keepers": keepers(cay.run_dir),
        "cgroups": groups(cay.run_dir, cgroup),
        "run directories": _names(cay.run_dir, ("ids", ".cay")),
    }
    if os.geteuid() == 0:
        living["links of ids"] = _links(cay.run_dir)
    return living, {"ps": sorted(e["id"] for e in listed), "records": _names(cay.state / "sandboxes")}


def differences(cay, cgroup, seconds=15.0):
    deadline = time.monotonic() + seconds
    while True:
        found = [f"{name}: {ids}, but ps: {view['ps']}" for view in views(cay, cgroup)
                 for name, ids in view.items() if ids != view["ps"]]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
