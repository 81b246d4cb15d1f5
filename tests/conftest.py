# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the suites that drive the real programs (tests/integration, tests/security).

cay      one engine for the whole session: cay.run("run", "--", "true").returncode; see lib/engine.py
sandbox  the id of a fresh sandbox with the defaults, removed afterwards
fresh    an engine of its own for one test, for tests that kill keepers or look at directories
"""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

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
