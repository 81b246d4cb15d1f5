# SPDX-License-Identifier: Apache-2.0
"""Quotas of a tenant under races: the sum of what lives is the oracle."""

import threading

import pytest

from security import harness

MIB = 1 << 20
POLICY = "[policy]\nmemory_default = 64M\nmemory_total = 128M\nsandboxes_max = 2\n"
IDS = [f"box{i}" for i in range(8)]
ROUNDS = 12


def live(daemon, token):
    answer = daemon.get("/sandboxes", token=token)
    assert answer.status == 200, answer
    return [box["id"] for box in answer.body["sandboxes"]]


def memory(daemon, token, names):
    specs = [daemon.get(f"/sandboxes/{name}/spec", token=token) for name in names]
    return sum(spec.body["memory"] for spec in specs if spec.status == 200)


def end(daemon, token, names):
    """Leaves the records of the names, and nothing that lives."""
    for name in names:
        daemon.delete(f"/sandboxes/{name}", token=token)
    for name in names:
        assert daemon.post("/sandboxes", {"id": name}, token=token).status == 201
        assert daemon.post(f"/sandboxes/{name}/kill", token=token).status in (200, 204)


def at_once(jobs):
    gate = threading.Barrier(len(jobs))
    found = [None] * len(jobs)

    def work(i):
        gate.wait()
        found[i] = jobs[i]()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.attack("quota-race", "exhaustion", "a quota against create and delete of one id at once")
def test_a_quota_holds_while_records_go(daemons):
    daemon = daemons(policy=POLICY)
    token = daemon.token("t", tenant="acme")
    statuses = set()
    for _ in range(ROUNDS):
        end(daemon, token, IDS)
        jobs = []
        for name in IDS:
            def create(name=name):
                return daemon.post("/sandboxes", {"id": name}, token=token).status

            def delete(name=name):
                return daemon.delete(f"/sandboxes/{name}", token=token).status

            jobs += [create, delete, create]
        statuses.update(at_once(jobs))
        # one that was refused after all may take a moment to go
        harness.wait_for(lambda: len(live(daemon, token)) <= 2, 10, "the quota to be kept")
    assert 201 in statuses, "nothing was made, so nothing was tried"
    assert statuses <= {200, 201, 204, 404, 409, 429, 503}, statuses
    # the control: without a race the quota is met exactly
    end(daemon, token, IDS)
    for name in IDS:
        daemon.delete(f"/sandboxes/{name}", token=token)
    assert [daemon.post("/sandboxes", {"id": name}, token=token).status for name in IDS] == [201] * 2 + [429] * 6


@pytest.mark.attack("quota-race-larger", "exhaustion", "a larger sandbox in place of one that goes meanwhile")
def test_a_quota_holds_while_sandboxes_go(daemons):
    daemon = daemons(policy=POLICY)
    token = daemon.token("t", tenant="acme")
    names, statuses = IDS[:2], set()

    def create(name, memory):
        return daemon.post("/sandboxes", {"id": name, "memory": memory}, token=token).status

    for _ in range(ROUNDS):
        assert [create(name, "32M") for name in names] == [201, 201]
        jobs = []
        for name in names:
            jobs += [lambda name=name: create(name, "96M")] * 3
            jobs += [lambda name=name: daemon.delete(f"/sandboxes/{name}", token=token).status]
        statuses.update(at_once(jobs))
        harness.wait_for(lambda: memory(daemon, token, names) <= 128 * MIB, 10, "the quota to be kept")
        for name in names:
            daemon.delete(f"/sandboxes/{name}", token=token)
    assert 409 in statuses and statuses <= {200, 201, 204, 404, 409, 429, 503}, statuses
    assert [create(name, "96M") for name in names] == [201, 429]  # the control: one of them is within the quota


@pytest.mark.attack("kept-output", "exhaustion", "kept output, which lies on the host's disk and no quota counts")
def test_kept_output_is_disk(daemons):
    daemon = daemons(policy="[tenant acme]\ndisk_total = 215M\n")
    token = daemon.token("t", tenant="acme")
    huge = daemon.post("/sandboxes", {"output": 1 << 40}, token=token)
    assert huge.status == 429 and "builtin.output_max" in str(huge.body), huge
    assert daemon.post("/sandboxes", {"output": 1 << 40}).status == 201  # the control: the operator may
    # 100M to write, and 4 x 1M + 4M of output: two of them are 216M
    first = daemon.post("/sandboxes", {"disk": 100 << 20, "output": 1 << 20}, token=token)
    assert first.status == 201, first
    second = daemon.post("/sandboxes", {"disk": 100 << 20, "output": 1 << 20}, token=token)
    assert second.status == 429 and "disk_total" in str(second.body), second
    assert daemon.post("/sandboxes", {"disk": 98 << 20, "output": 1 << 20}, token=token).status == 201  # the control
