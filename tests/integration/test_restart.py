# SPDX-License-Identifier: Apache-2.0
"""What a daemon finds that an earlier one left: prepared sandboxes, whole and in parts, and
commands that run."""
import contextlib
import http.client
import os
import pathlib
import signal
import stat

import pytest

from integration.support import until
from integration.test_api_tenants import refused

# -- what is left of prepared sandboxes

LEFT = {
    "before its status file": lambda place: None,
    "before its keeper was told": lambda place: (place / "status").touch(mode=0o600),
    "with a damaged status file": lambda place: (place / "status").write_bytes(b"\0" * 40),
    "half removed": lambda place: os.mknod(place / "ctl", stat.S_IFSOCK | 0o600),
}


def prepared(daemon):
    return {path.name for path in daemon.run_dir.glob("pool~*")}


def keepers(names):
    """The keepers of these instances."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if words[0].endswith("cay-keeper") and words[1] in names:
                found[words[1]] = int(path.parent.name)
    return found


def filled(daemon, number):
    until(lambda: f"cay_pool_ready {number}\n" in daemon.get("/metrics").body.decode())
    return prepared(daemon)


@pytest.mark.parametrize("stage", LEFT)
def test_prepared_ones_that_a_killed_daemon_left(daemons, stage):
    """The next daemon removes them, however young they are, also if it is stopped at once and nobody asks it."""
    daemon = daemons(pool=0)
    daemon.kill9()
    place = daemon.run_dir / "pool~0123456789ab"
    place.mkdir(mode=0o700)
    LEFT[stage](place)
    daemon.start()
    assert daemon.stop() == 0
    assert not place.exists()
    daemon.start()


def test_prepared_ones_whose_keepers_die_later(daemons):
    """A keeper that lives when the next daemon starts is left alone; killed after that, it leaves nothing for long."""
    daemon = daemons(pool=2)
    names = filled(daemon, 2)
    pids = keepers(names)
    assert set(pids) == names and len(names) == 2
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        daemon.kill9()
        daemon.options["pool"] = 0
        daemon.start()
        daemon.restart()  # the first look of the one before is over
        assert prepared(daemon) == names
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
    until(lambda: not prepared(daemon), 20)


def test_a_prepared_one_whose_keeper_is_killed(daemons):
    daemon = daemons(pool=1)
    name, = filled(daemon, 1)
    os.kill(keepers([name])[name], signal.SIGKILL)
    until(lambda: name not in prepared(daemon), 20)


def test_prepared_ones_that_were_given_away_stay(daemons):
    """They have two names, and what stands under the first is theirs as long as they live."""
    daemon = daemons(pool=1)
    name, = filled(daemon, 1)
    box = daemon.create()
    pid = keepers([name])[name]
    assert daemon.get(f"/sandboxes/{box}").body["keeper_pid"] == pid
    daemon.options["pool"] = 0
    daemon.restart("kill9")
    daemon.restart()
    assert prepared(daemon) == {name} and daemon.exec(box, "echo hi")["stdout"] == "hi\n"
    daemon.remove(box)
    until(lambda: not prepared(daemon))


# -- commands that run

QUOTA = "[tenant acme]\nexecs_max = 2\n"


@pytest.fixture
def limited(daemons):
    """A daemon where acme may run two commands at a time, acme's token, and a sandbox of acme's."""
    daemon = daemons(policy=QUOTA)
    token = daemon.token("t", tenant="acme")
    return daemon, token, daemon.create(token=token)


def one_more(daemon, token, box):
    return daemon.post(f"/sandboxes/{box}/exec", {"argv": ["true"]}, token=token, timeout=5)


def first_answer(daemon, *more):
    """Of the first request that a daemon which is just being started takes."""
    def answer():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return one_more(daemon, *more)
    return until(answer, every=0)


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_execs_max_counts_what_runs(limited, how):
    """However early a request comes; and what ends makes room, as it did before."""
    daemon, token, box = limited
    pids = [daemon.start_process(box, "exec sleep 600", token=token) for _ in range(2)]
    refused(one_more(daemon, token, box), 429, "limit", "execs_max")
    for _ in range(5):
        getattr(daemon, how)()
        daemon.spawn()
        refused(first_answer(daemon, token, box), 429, "limit", "execs_max")
        until(lambda: any(line["msg"] == "ready" for line in daemon.lines()))
    path = f"/sandboxes/{box}/processes/{pids[0]}/signal"
    assert daemon.post(path, {"signal": "KILL"}, token=token).status == 204
    until(lambda: one_more(daemon, token, box).status == 200)
    daemon.start_process(box, "exec sleep 600", token=token)
    refused(one_more(daemon, token, box), 429, "limit", "execs_max")


def test_execs_max_counts_each_tenant_by_itself_and_nothing_that_ended(limited):
    daemon, token, box = limited
    other = daemon.create(token=token)
    free = daemon.create()
    for _ in range(3):
        daemon.start_process(free, "exec sleep 600")
        daemon.exec(box, "true", token=token)
    for each in (box, other):
        daemon.start_process(each, "exec sleep 600", token=token)
    daemon.restart("kill9")
    refused(one_more(daemon, token, box), 429, "limit", "execs_max")
    daemon.delete(f"/sandboxes/{other}", token=token)
    until(lambda: one_more(daemon, token, box).status == 200)
    assert one_more(daemon, None, free).status == 200


def test_a_keeper_that_does_not_answer_does_not_hold_up_the_start(limited):
    """What runs in its sandbox is not counted, and the log says so."""
    daemon, token, box = limited
    other = daemon.create(token=token)
    for each in (box, other):
        daemon.start_process(each, "exec sleep 600", token=token)
    pid = daemon.get(f"/sandboxes/acme~{other}").body["keeper_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        daemon.restart("kill9")
        assert [line["sandbox"] for line in daemon.lines() if "not counted" in line["msg"]] == [f"acme~{other}"]
        assert one_more(daemon, token, box).status == 200
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_is_left_of_a_create_does_not_hold_up_its_tenant(limited):
    """A directory without a keeper, which is swept some seconds later, has no commands to be counted."""
    daemon, token, box = limited
    daemon.kill9()
    (daemon.run_dir / "acme~half").mkdir(mode=0o700)
    daemon.start()
    assert one_more(daemon, token, box).status == 200
    until(lambda: not (daemon.run_dir / "acme~half").exists(), 20)
