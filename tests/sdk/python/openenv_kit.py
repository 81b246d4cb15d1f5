# SPDX-License-Identifier: Apache-2.0
"""What the tests of cay.adapters.openenv share: fixtures, to be imported, and waiting.

backend  a CaySandboxBackend on the session's cayd
box      a handle that the tests of a module share; what ends a sandbox makes its own
fresh    fresh(**options) -> a handle for one test; several may be made
"""
import itertools
import time

import pytest

from cay.adapters.openenv import CaySandboxBackend


@pytest.fixture(scope="module")
def backend(host):
    made = CaySandboxBackend(host)
    yield made
    made.close()


@pytest.fixture(scope="module")
def box(backend):
    handle = backend.create(envs={"FROM_CREATE": "made", "BOTH": "create"})
    yield handle
    handle.kill()


@pytest.fixture
def fresh(backend):
    made = []

    def make(**options):
        made.append(backend.create(**options))
        return made[-1]

    yield make
    for handle in made:
        handle.kill()


def until(what, seconds=20):
    """Waits for something that must come; how long it takes is not asserted."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


_serial = itertools.count(1)


def name():
    """A path that no other test uses."""
    return f"/home/user/t{next(_serial)}"
