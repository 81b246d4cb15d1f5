# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the suites that drive the real programs (tests/integration, tests/security).

cay      one engine for the whole session: cay.run("run", "--", "true").returncode; see lib/engine.py
sandbox  the id of a fresh sandbox with the defaults, removed afterwards
fresh    an engine of its own for one test, for tests that kill keepers or look at directories
cayd     one daemon for the whole session, on a unix socket and on TCP; see lib/daemon.py
cayd_box a sandbox of cayd that the tests of one module share; cayd_make(**spec) makes ones for one test
daemons  daemons(pool=2, tcp=True) -> a daemon of its own for one test; several may be made
"""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lib import daemon as lib_daemon  # noqa: E402
from lib.engine import PROG, Engine  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


def pytest_report_header(config):
    return f"cay: {PROG}, as {'root' if os.geteuid() == 0 else 'an ordinary user'}"


@pytest.fixture(scope="session")
def cay():
    if not (PROG / "cay").exists():
        pytest.exit(f"{PROG}/cay is not built; run make", returncode=2)
    engine = Engine()
    yield engine
    engine.close()


@pytest.fixture
def fresh():
    engine = Engine(prefix="cayf-")
    yield engine
    engine.close()


@pytest.fixture
def sandbox(cay):
    identifier = cay.create()
    yield identifier
    cay.run("rm", "-f", identifier)


@pytest.fixture(scope="session")
def cayd():
    if not lib_daemon.PROGRAM.exists():
        pytest.fail(f"{lib_daemon.PROGRAM} is not built; run make")
    daemon = lib_daemon.Daemon(tcp=True, origins="https://app.example", hosts="cay.example")
    daemon.remove(daemon.create())  # the first one makes the image
    yield daemon
    assert daemon.close() == []


@pytest.fixture(scope="module")
def cayd_box(cayd):
    identifier = cayd.create(labels={"shared": "yes"})
    yield identifier
    cayd.remove(identifier)


@pytest.fixture
def cayd_make(cayd):
    made = []

    def make(**spec):
        made.append(cayd.create(**spec))
        return made[-1]

    yield make
    cayd.remove(*made)


@pytest.fixture
def daemons(cayd):
    made = []

    def make(*args, **options):
        made.append(lib_daemon.Daemon(*args, start=False, **options))
        made[-1].share_image(cayd)
        return made[-1].start()

    make.made = made
    yield make
    left = [leak for daemon in made for leak in daemon.close()]
    assert left == []
