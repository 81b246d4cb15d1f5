# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the integration tests, on top of tests/conftest.py.

cay    one engine for the session, with a cgroup of its own; at the end of the session it must have left
       nothing on the host
fresh  an engine for one test, with the same check
make   make(*options) -> id: sandboxes that are removed after the test
"""
import contextlib
import os
import pathlib
import time

import pytest

from integration.support import CGROUP
from lib.engine import PROG, Engine
from lib.oracle import Oracle, cgroup_mounts

# What an engine keeps when its last sandbox is gone: directories, and the skeletons of the host image.
KEPT = ("images", "sandboxes", "spools", "ids", ".cay")


def _start(prefix):
    engine = Engine(prefix=prefix)
    engine.env["CAY_CGROUP"] = CGROUP
    return engine


def leaks(engine, seconds=5.0):
    """What the engine left on the host after all its sandboxes were removed."""
    oracle = Oracle(engine.state, engine.run_dir, cgroup=CGROUP)
    deadline = time.monotonic() + seconds
    while True:
        found = []
        for kind, items in oracle.snapshot().items():
            if kind == "file":
                items = {i for i in items if "/s/images/" not in i and os.path.basename(i) not in KEPT}
            if kind in ("cgroup", "process", "namespace"):
                continue  # shared by all engines of the session: looked at when the session ends
            found += [f"{kind}: {i}" for i in sorted(items)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _finish(engine):
    engine.clean()
    left = leaks(engine)
    engine.close()
    return left


@pytest.fixture(scope="session", autouse=True)
def _session():
    if not (PROG / "cay").exists():
        pytest.exit(f"{PROG}/cay is not built; run make", returncode=2)
    yield
    oracle = Oracle("/nonexistent", "/nonexistent", cgroup=CGROUP)
    before = {kind: set() for kind in oracle.snapshot()}
    left = [leak for leak in oracle.settle(before) if leak.split(":")[0] in ("cgroup", "process")]
    bases = [base for mount in cgroup_mounts() if (base := pathlib.Path(mount) / CGROUP).exists()]
    for base in bases:
        with contextlib.suppress(OSError):
            os.rmdir(base)
    assert left == [] and bases == []


@pytest.fixture(scope="session")
def cay(_session):
    engine = _start("cayi-")
    yield engine
    assert _finish(engine) == []


@pytest.fixture
def fresh(_session):
    engine = _start("cayf-")
    yield engine
    assert _finish(engine) == []


@pytest.fixture
def make(cay):
    made = []

    def one(*options, **more):
        made.append(cay.create(*options, **more))
        return made[-1]

    yield one
    if made:
        cay.run("rm", "-f", *made, timeout=120)


@pytest.fixture(scope="module")
def box(cay):
    """A sandbox that the tests of one module share: for those that do not end or fill it."""
    identifier = cay.create("--label", "shared=yes")
    yield identifier
    cay.run("rm", "-f", identifier)
