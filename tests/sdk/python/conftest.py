# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the Python SDK, beside those of tests/conftest.py (cayd, daemons).

host    the session's cayd as the SDK takes it: "unix:/..."
cay     a client of it, for the whole session (the sync twin)
acay    acay(body) -> what `await body(client)` gives, with an AsyncCay, in an event loop of its own
box     a sandbox for one test; shared_box: one for all tests of a module
twin    each test twice, for both twins; see twins.py. client, sandbox: a client and a sandbox of that twin
relay   a socket in front of the session's cayd that loses answers; see relay.py
"""
import asyncio
import pathlib
import sys

import pytest

import cay as sdk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from relay import Relay  # noqa: E402
from twins import Twin  # noqa: E402


@pytest.fixture(scope="session")
def host(cayd):
    return f"unix:{cayd.sock}"


@pytest.fixture(scope="session")
def cay(host):
    with sdk.Cay(host) as client:
        yield client


@pytest.fixture
def acay(host):
    def run(body):
        async def main():
            async with sdk.AsyncCay(host) as client:
                return await body(client)

        return asyncio.run(main())

    return run


@pytest.fixture
def box(cay):
    with cay.sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared_box(cay):
    with cay.sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module", params=["sync", "async"])
def twin(request):
    twin = Twin(request.param)
    yield twin
    twin.end()


@pytest.fixture(scope="module")
def client(twin, host):
    with twin.within(twin.new(host)) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(twin, client):
    with twin.within(client.sandbox()) as sandbox:
        yield sandbox


@pytest.fixture
def relay(cayd, tmp_path):
    relay = Relay(cayd.sock, tmp_path / "relay.sock")
    yield relay
    relay.close()
