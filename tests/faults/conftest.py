# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the fault injection tests. CAY_FAULTS=long makes every case, without it a sample that a seed picks.

yard   a daemon, not started, with an engine of its own and the host image; what it leaves is a failure
"""
import os

import pytest

from lib.daemon import Daemon

LONG = os.environ.get("CAY_FAULTS") == "long"
SEED = int(os.environ.get("CAY_FAULTS_SEED", "1"))


@pytest.fixture(scope="session")
def first():
    """Makes the image that the others take over."""
    daemon = Daemon(start=False)
    daemon.cay.run("run", "--", "true", check=True)
    yield daemon
    assert daemon.close() == []


@pytest.fixture
def yard(first):
    made = []

    def make(**options):
        daemon = Daemon(start=False, **options)
        daemon.share_image(first)
        made.append(daemon)
        return daemon

    yield make
    assert [leak for daemon in made for leak in daemon.close()] == []
