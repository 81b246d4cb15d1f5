# SPDX-License-Identifier: Apache-2.0
"""A keeper with as many callers as it takes: who looks at its sandbox, or ends it, is let in all the same."""
import contextlib
import socket

import pytest

from integration.support import until
from integration.test_api import refused

PLACES, SPARE = 1024, 16  # CAY_MAX_CLIENTS, CAY_SPARE_CLIENTS
QUOTA = "[tenant acme]\nexecs_max = 2\n"


@contextlib.contextmanager
def crowd(daemon, box, n):
    """So many callers that say nothing. A keeper takes them in order: who comes later finds all of them there."""
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(daemon.run_dir / box / "ctl"))
        yield


@pytest.mark.parametrize("end", ["stop", "kill", None])
def test_a_crowded_sandbox_can_be_looked_at_and_ended(daemons, end):
    daemon = daemons()
    box = daemon.create()
    pid = daemon.start_process(box, "exec sleep 600")
    with crowd(daemon, box, PLACES - 1):
        assert daemon.exec(box, "echo hi")["stdout"] == "hi\n", "there is one place left"
        with crowd(daemon, box, 1):
            answer = daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]})
            refused(answer, 429, "limit")
            assert "callers are connected" in answer.error["message"]
            assert daemon.get(f"/sandboxes/{box}/files?path=/etc/passwd").status == 429
            for _ in range(3 * SPARE):
                assert [p["pid"] for p in daemon.get(f"/sandboxes/{box}/processes").body["processes"]
                        if p["running"]] == [pid]
                refused(daemon.post(f"/sandboxes/{box}/processes", {"argv": ["true"]}), 429, "limit")
            assert daemon.get(f"/sandboxes/{box}/stats").status == 200
            assert daemon.post(f"/sandboxes/{box}/processes/{pid}/signal", {"signal": "TERM"}).status == 204
            if end:
                assert daemon.post(f"/sandboxes/{box}/{end}").status == 204
                assert daemon.state_of(box) == "exited"
            assert daemon.delete(f"/sandboxes/{box}").status == 204
    assert daemon.state_of(box) == "not_found"


@pytest.mark.parametrize("how", ["api", "cay"])
def test_without_any_place_it_is_removed_by_force(daemons, how):
    daemon = daemons()
    box = daemon.create()
    with crowd(daemon, box, PLACES + SPARE):
        refused(daemon.get(f"/sandboxes/{box}/processes"), 429, "limit")
        if how == "api":
            assert daemon.delete(f"/sandboxes/{box}").status == 204
        else:
            daemon.cay.run("rm", "-f", box, check=True)
    assert daemon.state_of(box) == "not_found"


def test_without_any_place_it_is_killed(daemons):
    daemon = daemons()
    one, two = daemon.create(), daemon.create()
    with crowd(daemon, one, PLACES + SPARE), crowd(daemon, two, PLACES + SPARE):
        assert daemon.post(f"/sandboxes/{one}/kill").status == 204
        daemon.cay.run("kill", two, check=True)
    assert daemon.state_of(one) == daemon.state_of(two) == "lost"


def test_what_runs_counts_although_nobody_can_wait_for_it(daemons):
    """The daemon needs a place of its own to hear of the end of a command: it counts until then."""
    daemon = daemons(policy=QUOTA)
    token = daemon.token("t", tenant="acme")
    box = daemon.create(token=token)
    pids = [daemon.start_process(box, "exec sleep 600", token=token)]
    with crowd(daemon, f"acme~{box}", PLACES - 2):
        pids += [daemon.start_process(box, "exec sleep 600", token=token)]
        answer = daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=token)
        refused(answer, 429, "limit", "execs_max")
    refused(daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=token), 429, "limit", "execs_max")
    for pid in pids:
        assert daemon.delete(f"/sandboxes/{box}/processes/{pid}", token=token).status == 204
    for _ in pids:  # each is given back when the daemon hears of its end, and once
        until(lambda: daemon.post(f"/sandboxes/{box}/processes", {"shell": "exec sleep 600"}, token=token).status == 201)
    refused(daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=token), 429, "limit", "execs_max")
