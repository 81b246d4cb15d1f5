# SPDX-License-Identifier: Apache-2.0
"""Sandboxes from create to remove, lists, events and figures, for both twins."""
import asyncio
import re
import threading

import pytest

import cay as sdk


def test_create_with_the_defaults(twin, client):
    """The SDK chooses the id: 12 hex digits."""
    sandbox = twin(client.create())
    assert re.fullmatch("[0-9a-f]{12}", sandbox.id)
    assert (sandbox.info.id, sandbox.info.state, sandbox.info.image) == (sandbox.id, "running", "host")
    assert sandbox.info.live and sandbox.id in repr(sandbox)
    spec = twin(sandbox.spec())
    assert (spec["ttl_ms"], spec["idle_ms"], spec["network"]) == (0, 0, "deny-all")
    twin(sandbox.remove())


def test_create_with_everything(twin, client):
    """Every option reaches the daemon."""
    wanted = dict(image="host", user="user", cwd="/tmp", network="deny-all", profile="nested", memory="64M", cpus=0.5,
                  pids=64, disk=8 << 20, inodes=1000, fds=256, output="64K", ttl="15m", idle=600, env={"A": "b c"},
                  labels={"team": "ä=b"}, mounts=[], secrets={})
    with twin.within(client.sandbox(id="all-of-it", **wanted)) as sandbox:
        assert sandbox.id == "all-of-it" and sandbox.info.labels == {"team": "ä=b"}
        spec = twin(sandbox.spec())
        assert {name: spec[name] for name in ("user", "cwd", "profile", "memory", "cpus", "pids", "disk", "inodes",
                                              "fds", "output", "ttl_ms", "idle_ms", "env")} == {
            "user": "user", "cwd": "/tmp", "profile": "nested", "memory": 64 << 20, "cpus": 0.5, "pids": 64,
            "disk": 8 << 20, "inodes": 1000, "fds": 256, "output": 64 << 10, "ttl_ms": 900_000, "idle_ms": 600_000,
            "env": {"A": "b c"}}
        assert twin(sandbox.exec("id -un; pwd; echo $A")).stdout == "user\n/tmp\nb c\n"


def test_mounts(twin, client, tmp_path):
    """As `Mount` or as a mapping; the operator's rules decide."""
    (tmp_path / "file").write_text("of the host")
    for mount in (sdk.Mount(str(tmp_path), "/data", read_only=True), {"source": str(tmp_path), "target": "/data"}):
        try:
            with twin.within(client.sandbox(mounts=[mount])) as sandbox:
                assert twin(sandbox.exec("cat /data/file")).stdout == "of the host"
        except sdk.Denied as error:
            assert "mount" in error.message


def test_what_cannot_be_created(twin, client):
    """Secrets and registry images are not part of this version; an unknown option is a TypeError of Python's."""
    with pytest.raises(sdk.Unsupported) as caught:
        twin(client.create(secrets={"KEY": "x"}))
    assert caught.value.detail == {"field": "secrets"}
    with pytest.raises(TypeError, match="memroy"):
        twin(client.create(memroy="1G"))
    with pytest.raises(sdk.Unsupported, match="image 'ubuntu:22.04': registry images are not supported yet") as caught:
        twin(client.create(image="ubuntu:22.04"))
    assert caught.value.detail == {"field": "image"}
    for wrong in (dict(id="Not An Id"), dict(cpus=-1), dict(ttl="soon"), dict(env={"": "x"})):
        with pytest.raises(sdk.CayError):
            twin(client.create(**wrong))


def test_the_same_id_again(twin, client):
    """The same spec is the same sandbox; another one is a Conflict; neither removes it."""
    with twin.within(client.sandbox(id="twice", memory="64M", ttl=0, idle=0)) as first:
        twin(first.files.write("/tmp/mark", "x"))
        again = twin(client.create(id="twice", memory="64M", ttl=0, idle=0))
        assert twin(again.files.read_text("/tmp/mark")) == "x"
        for call in (lambda: twin(client.create(id="twice", memory="65M")),
                     lambda: twin.within(client.sandbox(id="twice", memory="65M")).__enter__()):
            with pytest.raises(sdk.Conflict):
                call()
        assert twin(first.files.read_text("/tmp/mark")) == "x"


def test_a_block_removes_its_sandbox(twin, client):
    """Also when its body raises, whose exception it is that comes out."""
    with twin.within(client.sandbox()) as sandbox:
        spec = twin(sandbox.spec())
        assert (spec["ttl_ms"], spec["idle_ms"]) == (86_400_000, 3_600_000), "a killed client would leave it for ever"
    with pytest.raises(sdk.NotFound):
        twin(sandbox.refresh())
    with pytest.raises(ZeroDivisionError):
        with twin.within(client.sandbox(ttl=60)) as sandbox:
            assert twin(sandbox.spec())["idle_ms"] == 0
            raise ZeroDivisionError
    with pytest.raises(sdk.NotFound):
        twin(client.get(sandbox.id))
    made = twin(client.create())
    with twin.within(made):
        assert twin(made.exec("true")).ok
    with pytest.raises(sdk.NotFound):
        twin(made.refresh())


def test_an_error_of_the_removal_does_not_hide_that_of_the_body(twin, daemons, monkeypatch):
    """The daemon is gone when the block ends: the body's exception comes out; without one, Unavailable."""
    monkeypatch.setattr("cay._retry.SECONDS", 0.1)
    daemon = daemons()
    client = twin.new(f"unix:{daemon.sock}", timeout=1)
    with pytest.raises(ZeroDivisionError):
        with twin.within(client.sandbox()):
            daemon.kill9()
            raise ZeroDivisionError
    daemon.start()
    with pytest.raises(sdk.Unavailable):
        with twin.within(client.sandbox()):
            daemon.kill9()
    daemon.start()
    for info in twin(client.list()):
        twin(client.attach(info.id).remove())
    twin.close(client)


def test_get_attach_refresh(twin, client, sandbox):
    found = twin(client.get(sandbox.id))
    assert found.id == sandbox.id and found.info.state == "running"
    attached = client.attach(sandbox.id)
    assert attached.info is None
    info = twin(attached.refresh())
    assert info == attached.info and info.created_ms == found.info.created_ms
    assert client.attach("no-such").id == "no-such"


def test_lists(twin, client):
    """By labels, all of which must match, and by state; ended ones only if asked for."""
    with twin.within(client.sandbox(labels={"a": "1", "b": "x y"})) as one, \
            twin.within(client.sandbox(labels={"a": "1"})) as two:
        def ids(**wanted):
            return [info.id for info in twin(client.list(**wanted))]

        assert ids(labels={"a": "1"}) == [one.id, two.id]
        assert ids(labels={"a": "1", "b": "x y"}) == [one.id]
        assert ids(labels={"a": "2"}) == []
        twin(two.kill())
        assert ids(labels={"a": "1"}) == [one.id]
        assert ids(labels={"a": "1"}, state="all") == [one.id, two.id]
        assert ids(labels={"a": "1"}, state="exited") == [two.id]
        assert not twin(two.refresh()).live
        with pytest.raises(sdk.Invalid):
            ids(state="asleep")


def test_lists_of_many_pages(twin, client, monkeypatch):
    """All pages are read."""
    from cay._async import client as _async
    from cay._sync import client as _sync
    for module in (_async, _sync):
        plain = module.query
        monkeypatch.setattr(module, "query", lambda plain=plain, **wanted: plain(limit=1, **wanted))
    page = {"page": "y"}
    with twin.within(client.sandbox(labels=page)) as one, twin.within(client.sandbox(labels=page)) as two, \
            twin.within(client.sandbox(labels=page)) as three:
        assert [info.id for info in twin(client.list(labels=page))] == [one.id, two.id, three.id]


def test_pause_and_resume(twin, client):
    with twin.within(client.sandbox()) as sandbox:
        twin(sandbox.pause())
        assert twin(sandbox.refresh()).state == "paused"
        twin(sandbox.resume())
        assert twin(sandbox.refresh()).state == "running"
        assert twin(sandbox.exec("true")).ok


def test_stop_and_kill(twin, client):
    """SIGTERM and some time, or at once; the record stays, and what it holds is Gone."""
    with twin.within(client.sandbox()) as sandbox:
        process = twin(sandbox.start("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done"))
        output = process.output()
        twin.next(output)
        twin(sandbox.stop(grace=5))
        assert b"bye" in b"".join(piece.data for piece in twin(output))
        assert twin(sandbox.refresh()).state == "exited"
        assert "bye" in twin(sandbox.logs())
        with pytest.raises(sdk.Gone):
            twin(sandbox.exec("true"))
    with twin.within(client.sandbox()) as sandbox:
        twin(sandbox.kill())
        assert twin(sandbox.refresh()).ended_ms > 0


def test_remove_may_be_repeated(twin, client):
    sandbox = twin(client.create())
    for _ in range(3):
        twin(sandbox.remove())


def test_extend(twin, client):
    with twin.within(client.sandbox(ttl=60)) as sandbox:
        assert 3_000_000 < twin(sandbox.extend(ttl="1h")).ttl_left_ms <= 3_600_000
        assert sandbox.info.ttl_left_ms > 3_000_000
        assert twin(sandbox.extend(ttl=0)).ttl_left_ms == 0
        twin(sandbox.extend(idle=0.1))
        assert _end_of(twin, client, sandbox).state == "idle"


def test_a_sandbox_that_ends_by_itself(twin, client):
    """`ttl`: it ends, and tells so."""
    sandbox = twin(client.create(ttl=0.3))
    process = twin(sandbox.start("sleep 1000"))
    twin(process.output())
    assert _end_of(twin, client, sandbox).state == "ttl"
    twin(sandbox.remove())


def _end_of(twin, client, sandbox):
    """The event of its end, when it comes."""
    events = client.events()
    while ((event := twin.next(events)).sandbox, event.type) != (sandbox.id, "ended"):
        pass
    twin.close(events)
    return event


def test_figures(twin, sandbox):
    twin(sandbox.exec("dd if=/dev/zero of=/tmp/f bs=1M count=2 2> /dev/null"))
    stats = twin(sandbox.stats())
    assert stats.id == sandbox.id and stats.memory_max > stats.memory > 0 and stats.cpu_us > 0
    assert stats.pids_max > stats.pids > 0 and stats.disk >= 2 << 20 and stats.oom_kills == 0


def test_logs(twin, client):
    """The output of all processes, or the last lines of it."""
    with twin.within(client.sandbox()) as sandbox:
        assert twin(sandbox.logs()) == ""
        twin(sandbox.exec("seq 3"))
        twin(sandbox.exec(r"printf 'x\377\nlast'; echo err >&2"))
        logs = twin(sandbox.logs())
        assert logs.startswith("1\n2\n3\n") and "x\N{REPLACEMENT CHARACTER}\n" in logs and "err\n" in logs
        lines = logs.splitlines(keepends=True)
        for tail in (0, 1, 2, 100):
            assert twin(sandbox.logs(tail=tail)) == "".join(lines[len(lines) - tail:] if tail < len(lines) else lines)
        twin(sandbox.exec(r"printf '\n1%%\r2%%\r3%%\ndone\f\n'"))
        assert twin(sandbox.logs(tail=2)) == "1%\r2%\r3%\ndone\f\n"
        with pytest.raises(sdk.Invalid):
            twin(sandbox.logs(tail=-1))


def test_version_and_capabilities(twin, client):
    assert twin(client.version())["api"] == "v1"
    assert twin(client.capabilities())["features"]["exec"] is True


@pytest.mark.parametrize("good, bad", [(lambda box: box.snapshot("s"), lambda box: box.snapshot("")),
                                       (lambda box: box.fork(2), lambda box: box.fork(0)),
                                       (lambda box: box.publish(8080), lambda box: box.publish(0)),
                                       (lambda box: box.publish(65535), lambda box: box.publish(65536))])
def test_what_later_versions_do(twin, sandbox, good, bad):
    """Unsupported, after the arguments were found to be good; Invalid otherwise."""
    with pytest.raises(sdk.Unsupported):
        twin(good(sandbox))
    with pytest.raises(sdk.Invalid):
        twin(bad(sandbox))


# -- events

def test_events_so_far(twin, client):
    """From any sequence number, in order."""
    with twin.within(client.sandbox(labels={"for": "events"})) as sandbox:
        twin(sandbox.pause())
        twin(sandbox.resume())
    found = [event for event in twin(client.events(follow=False)) if event.sandbox == sandbox.id]
    assert [event.type for event in found] == ["created", "paused", "resumed", "removed"]
    assert found[0].labels == {"for": "events"} and found[0].state == "running"
    assert [event.seq for event in found] == sorted(event.seq for event in found)
    rest = twin(client.events(since=found[2].seq, follow=False))
    assert rest[0] == found[2] and rest[-1].seq >= found[3].seq


def test_following_events(cay):
    """They come as they happen."""
    begun = threading.Event()
    made = []

    def work():
        begun.wait()
        with cay.sandbox() as box:
            made.append(box.id)

    worker = threading.Thread(target=work)
    worker.start()
    last = max((event.seq for event in cay.events(follow=False)), default=-1)
    events = cay.events(since=last + 1)
    begun.set()
    kinds = [(event.type, event.sandbox) for _, event in zip(range(2), events)]
    worker.join()
    events.close()
    assert kinds == [("created", made[0]), ("removed", made[0])]


def test_following_events_async(acay):
    """A reader that waits does not hold up the other calls of its loop."""
    async def body(client):
        last = max([event.seq async for event in client.events(follow=False)], default=-1)
        events = client.events(since=last + 1)
        first = asyncio.ensure_future(events.__anext__())
        async with client.sandbox() as box:
            event = await first
            assert (event.type, event.sandbox) == ("created", box.id)
        await events.aclose()

    acay(body)


def test_bounds_of_a_block_give_way_to_the_operators(daemons):
    """Without ttl and idle a block's sandbox has ours, a day and an hour; or the operator's, where those are shorter."""
    daemon = daemons(tcp=True, policy="[tenant acme]\nttl_max = 10m\nttl_default = 5m\n")
    with sdk.Cay(f"unix:{daemon.sock}") as client, client.sandbox() as sandbox:
        assert (sandbox.spec()["ttl_ms"], sandbox.spec()["idle_ms"]) == (86_400_000, 3_600_000)
    token = daemon.token("acme", tenant="acme")
    with sdk.Cay(daemon.url, token=token) as client, client.sandbox() as sandbox:
        assert (sandbox.spec()["ttl_ms"], sandbox.spec()["idle_ms"]) == (300_000, 3_600_000)
    with sdk.Cay(daemon.url, token=token) as client, pytest.raises(sdk.Limit, match="ttl"):
        with client.sandbox(ttl="1h"):
            pass
