# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attack tests. `cay` (the engine) comes from tests/conftest.py."""

import os
import pathlib
import shutil
import tempfile
import uuid

import pytest

from lib.engine import PROG, Engine
from security import harness


def pytest_configure(config):
    config.addinivalue_line("markers", "attack(id, group, what): one attack of the suite, for the count")


@pytest.fixture(scope="session")
def workshop():
    """A directory that every user of the host may enter, for the probe and the tests' own files."""
    if os.geteuid() != 0:
        pytest.exit("the attack tests need root for their controls", returncode=2)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cay-attacks-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def probe_dir(workshop):
    folder = workshop / "probe"
    folder.mkdir()
    harness.compile_probe(folder)
    return folder


@pytest.fixture(scope="session")
def places(probe_dir):
    """Where the walls are absent: host, ns, nobody."""
    return harness.host_places(probe_dir / "probe")


@pytest.fixture(scope="session")
def sandboxes(request, probe_dir):
    """One sandbox for each profile, made when first asked for, shared by the attacks that leave no trace."""
    made = {}

    def get(profile="default"):
        if profile not in made:
            made[profile] = harness.Sandbox(request.getfixturevalue("cay"), probe_dir, "--profile", profile)
        return made[profile]

    yield get
    for box in made.values():
        box.remove()


@pytest.fixture
def box(cay, probe_dir):
    """A sandbox of its own for one test: box("--pids", 64). Several may be made."""
    made = []

    def make(*spec):
        made.append(harness.Sandbox(cay, probe_dir, *spec))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.remove()


@pytest.fixture
def scratch(workshop):
    """A host directory for one test."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=workshop))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rootless(workshop):
    """An engine of a user without any right."""
    top = pathlib.Path(tempfile.mkdtemp(dir=workshop))
    os.chown(top, harness.USER, harness.USER)
    engine = Engine.__new__(Engine)
    programs = pathlib.Path(tempfile.mkdtemp(dir=workshop))
    programs.chmod(0o755)
    for name in ("cay", "cay-keeper"):
        shutil.copy(PROG / name, programs / name)
    engine.top, engine.program = top, str(programs / "cay")
    engine.state, engine.run_dir = top / "state", top / "run"
    engine.env = {"PATH": os.environ["PATH"], "HOME": str(top), "LANG": "C.UTF-8", "CAY_LIBEXEC_DIR": str(programs),
                  "CAY_STATE_DIR": str(engine.state), "CAY_RUN_DIR": str(engine.run_dir)}
    yield engine
    harness.as_user(engine, "rm", "-f", *harness.as_user(engine, "ps", "-aq").stdout.split())


class Marker:
    """A file on the host that no sandbox may see."""

    def __init__(self, folder):
        self.text = uuid.uuid4().hex
        self.path = folder / f"marker-{self.text[:12]}"
        self.path.write_text(self.text + "\n")
        self.path.chmod(0o644)

    def untouched(self):
        return self.path.read_text() == self.text + "\n"


@pytest.fixture
def marker(scratch):
    return Marker(scratch)
