# SPDX-License-Identifier: Apache-2.0
"""Cancellation, interruption and lost answers: what was begun is undone, and nobody else's sandbox is touched."""
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest
from relay import lose

import cay as sdk

SECONDS = 15


def eventually(what):
    """Polls until it holds."""
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_ended(box):
    """Whether no process of a sandbox runs any more, those among them that its processes started."""
    return not any(process.running for process in box.processes()) and box.stats().pids <= 1


def begun(box):
    return any(process.running for process in box.processes())


async def cancelled(awaitable, when):
    """Runs it as a task until `when()` holds, then cancels it."""
    task = asyncio.ensure_future(awaitable)
    while not await asyncio.to_thread(when):
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


TREE = "sleep 1000 & setsid sleep 1000 & (trap '' TERM; sleep 1000); sleep 1000"


# -- exec

def test_a_cancelled_exec_kills_the_tree(acay, box):
    """Also what left its session or ignores signals."""
    acay(lambda client: cancelled(client.attach(box.id).exec(TREE), lambda: box.stats().pids > 4))
    eventually(lambda: all_ended(box))
    assert box.processes()[-1].exit.signal == 9


def test_an_exec_that_runs_out_of_its_callers_time(acay, box):
    """asyncio's wait_for and anyio's cancel scopes are cancellations."""
    async def body(client):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.attach(box.id).exec(TREE), 0.1)
        with anyio.move_on_after(0.1) as scope:
            await client.attach(box.id).exec(TREE)
        assert scope.cancelled_caught
        assert (await client.attach(box.id).exec("echo usable")).stdout == "usable\n"

    acay(body)
    eventually(lambda: all_ended(box))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("program", [
    "cay.Cay().attach(sys.argv[1]).exec(sys.argv[2])",
    "asyncio.run(cay.AsyncCay().attach(sys.argv[1]).exec(sys.argv[2]))",
], ids=["sync", "async"])
def test_a_program_that_dies_in_exec(box, host, number, program):
    """^C, and kill -9: its command goes with it."""
    child = subprocess.Popen([sys.executable, "-c", "import asyncio, cay, sys; " + program, box.id, TREE],
                             env={**os.environ, "CAY_HOST": host}, stderr=subprocess.PIPE)
    eventually(lambda: begun(box))
    child.send_signal(number)
    assert (number == signal.SIGKILL) == (b"KeyboardInterrupt" not in child.communicate(timeout=SECONDS)[1])
    eventually(lambda: all_ended(box))


# -- start

def test_a_cancelled_start_kills_what_it_started(acay, box, relay):
    """The answer is on its way when the call is cancelled: it is waited for, and the process killed."""
    arrived, go_on = threading.Event(), threading.Event()

    def hold(_):
        arrived.set()
        go_on.wait(SECONDS)

    relay.rules.append((b"POST ", hold))

    async def body(_):
        async with sdk.AsyncCay(relay.host) as client:
            task = asyncio.ensure_future(client.attach(box.id).start(TREE))
            await asyncio.to_thread(arrived.wait)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    acay(body)
    eventually(lambda: all_ended(box))
    assert len(box.processes()) == 1


@pytest.mark.parametrize("how", ["exec", "start"])
def test_what_is_cancelled_before_it_arrived_is_not_started(acay, box, relay, how):
    """The request is lost on its way. To kill what may have come of it is not to start it."""
    start = b"POST /api/v1/sandboxes/" + box.id.encode() + b"/processes"
    relay.swallowed.append(start + (b"?" if how == "exec" else b" "))

    async def body(_):
        async with sdk.AsyncCay(relay.host) as client:
            mine = client.attach(box.id)
            await client.version()  # what was answered before is repeated when its connection is lost
            if how == "exec":
                await cancelled(mine.exec("touch /tmp/ran"), lambda: relay.count(start.decode()) == 1)
            else:
                task = asyncio.ensure_future(mine.start("touch /tmp/ran"))
                while relay.count(start.decode()) == 0:
                    await asyncio.sleep(0.01)
                relay.swallowed.clear()
                task.cancel()
                await asyncio.sleep(0.2)
                await client.aclose()
                with pytest.raises(asyncio.CancelledError):
                    await task

    acay(body)
    assert relay.count(start.decode()) >= 2, "it was asked for"
    assert box.processes() == []


def test_a_cancelled_reader_leaves_the_process(acay, box):
    """Reading, waiting and following are not owning."""
    process = box.start("echo begun; sleep 1000")

    async def body(client):
        again = client.attach(box.id).process(process.pid)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(again.wait(), 0.1)

        async def read():
            async for _ in again.output():
                pass

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read(), 0.1)

    acay(body)
    assert process.poll() is None
    process.kill()


# -- create

def left(cay):
    return [info.id for info in cay.list(labels={"of": "cancel"}, state="all")]


def hold_until_cancelled(task, loop):
    """A rule: cancels the task when the daemon has answered, and then lets the answer through."""
    def rule(_):
        done = threading.Event()
        loop.call_soon_threadsafe(lambda: (task.cancel(), done.set()))
        done.wait(SECONDS)

    return rule


@pytest.mark.parametrize("id", [None, "cancel-given"])
@pytest.mark.parametrize("how", ["create", "sandbox"])
def test_a_cancelled_create_leaves_nothing(acay, cay, relay, id, how):
    """Whoever chose the id, since this call made it."""
    async def make(client):
        if how == "create":
            await client.create(id=id, labels={"of": "cancel"})
        async with client.sandbox(id=id, labels={"of": "cancel"}):
            pytest.fail("it was cancelled")

    async def body(_):
        async with sdk.AsyncCay(relay.host) as client:
            task = asyncio.ensure_future(make(client))
            relay.rules.append((b"POST ", hold_until_cancelled(task, asyncio.get_running_loop())))
            with pytest.raises(asyncio.CancelledError):
                await task

    acay(body)
    assert relay.count("POST") == 1 and left(cay) == []


def test_cancelling_at_any_moment_leaves_nothing(acay, cay):
    """From before anything is sent to after the answer has come, by tasks and by anyio's scopes."""
    async def body(client):
        for step in range(24):
            if step % 2:
                with anyio.move_on_after(step * 0.0005):
                    async with client.sandbox(labels={"of": "cancel"}):
                        await anyio.sleep(SECONDS)
            else:
                async def use():
                    async with client.sandbox(labels={"of": "cancel"}) as box:
                        await box.exec("sleep 1000")

                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(use(), step * 0.0005)

    acay(body)
    assert left(cay) == []


def test_a_cancelled_create_of_what_was_there(acay, cay, relay):
    """The same id and spec: it was there before this call, and stays."""
    with cay.sandbox(id="cancel-mine", labels={"of": "cancel"}, ttl=60) as mine:
        async def body(_):
            async with sdk.AsyncCay(relay.host) as client:
                task = asyncio.ensure_future(client.create(id=mine.id, labels={"of": "cancel"}, ttl=60))
                relay.rules.append((b"POST ", hold_until_cancelled(task, asyncio.get_running_loop())))
                with pytest.raises(asyncio.CancelledError):
                    await task

        acay(body)
        assert mine.exec("true").ok


@pytest.mark.parametrize("how", ["create", "sandbox"])
def test_a_cancelled_create_of_somebody_elses(acay, cay, relay, how):
    """The same id, another spec: a Conflict, cancelled or not, and the other one stays."""
    with cay.sandbox(id="cancel-other", labels={"of": "cancel"}) as other:
        async def make(client):
            if how == "create":
                await client.create(id=other.id, memory="99M")
            async with client.sandbox(id=other.id, memory="99M"):
                pass

        async def body(_):
            async with sdk.AsyncCay(relay.host) as client:
                task = asyncio.ensure_future(make(client))
                relay.rules.append((b"POST ", hold_until_cancelled(task, asyncio.get_running_loop())))
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(sdk.Conflict):
                    await make(client)

        acay(body)
        assert other.exec("true").ok and relay.count("DELETE") == 0


class Interrupt:
    """^C in the main thread, which waits for an answer."""

    def __call__(self, _):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)  # the answer comes too late
        return 0


@pytest.mark.parametrize("how", ["create", "sandbox"])
def test_an_interrupted_create_leaves_nothing(cay, relay, how):
    """KeyboardInterrupt while the answer is waited for."""
    relay.rules.append((b"POST ", Interrupt()))
    with sdk.Cay(relay.host) as client:
        with pytest.raises(KeyboardInterrupt):
            if how == "create":
                client.create(labels={"of": "cancel"})
            with client.sandbox(labels={"of": "cancel"}):
                pytest.fail("it was interrupted")
        assert client.version()
    assert left(cay) == []


def test_an_interrupted_create_of_somebody_elses(cay, relay):
    """The other sandbox of that id stays."""
    with cay.sandbox(id="cancel-other", labels={"of": "cancel"}) as other, sdk.Cay(relay.host) as client:
        for make in (lambda: client.create(id=other.id, memory="99M"),
                     lambda: client.sandbox(id=other.id, memory="99M").__enter__()):
            relay.rules.append((b"POST ", Interrupt()))
            with pytest.raises(KeyboardInterrupt):
                make()
        assert other.exec("true").ok and relay.count("DELETE") == 0


def test_a_create_whose_answer_is_lost(twin, relay, cay):
    """It is asked for again, and there is one sandbox."""
    with twin.within(twin.new(relay.host)) as client:
        twin(client.version())
        relay.rules.append((b"POST ", lose))
        with twin.within(client.sandbox(labels={"of": "cancel"})) as sandbox:
            assert left(cay) == [sandbox.id] and relay.count("POST /api/v1/sandboxes ") == 2
    assert left(cay) == []


def test_a_create_whose_answers_are_all_lost(twin, relay, cay, monkeypatch):
    """Unavailable, and what was made is removed as soon as that can be said."""
    monkeypatch.setattr("cay._retry.SECONDS", 0.1)
    with twin.within(twin.new(relay.host)) as client:
        twin(client.version())
        relay.rules += [(b"POST ", lose)] * 100
        with pytest.raises(sdk.Unavailable):
            twin(client.create(labels={"of": "cancel"}))
    assert relay.count("DELETE") == 1 and left(cay) == []


def test_lost_answers_of_somebody_elses(twin, relay, cay):
    """Nobody knows whether it was made, until the daemon says that the id is taken: the other one stays."""
    with cay.sandbox(id="cancel-other") as other, twin.within(twin.new(relay.host)) as client:
        twin(client.version())
        for make in (client.create, lambda **spec: twin.within(client.sandbox(**spec)).__enter__()):
            relay.rules += [(b"POST ", lose)] * 2
            with pytest.raises(sdk.Conflict):
                twin(make(id=other.id, memory="99M"))
        assert other.exec("true").ok and relay.count("DELETE") == 0


def test_lost_answers_of_somebody_elses_to_the_end(twin, relay, cay, monkeypatch):
    """Nobody ever says so: Unavailable, and an id that the caller chose is not removed on a guess."""
    monkeypatch.setattr("cay._retry.SECONDS", 0.1)
    with cay.sandbox(id="cancel-other") as other, twin.within(twin.new(relay.host)) as client:
        twin(client.version())
        for make in (client.create, lambda **spec: twin.within(client.sandbox(**spec)).__enter__()):
            relay.rules[:] = [(b"POST ", lose)] * 100
            with pytest.raises(sdk.Unavailable):
                twin(make(id=other.id, memory="99M"))
        assert other.exec("true").ok and relay.count("DELETE") == 0


# -- bodies of blocks

def test_a_block_that_is_cancelled(acay, cay):
    """In the middle of a command, twice over: the sandbox is removed before the cancellation goes on."""
    async def use(client):
        async with client.sandbox(labels={"of": "cancel"}) as box:
            await box.exec("sleep 1000")

    acay(lambda client: cancelled(use(client), lambda: left(cay)))
    assert left(cay) == []

    async def scoped(client):
        with anyio.CancelScope() as outer:
            async with client.sandbox(labels={"of": "cancel"}) as box:
                outer.cancel()
                await box.exec("sleep 1000")
        assert outer.cancelled_caught

    acay(scoped)
    assert left(cay) == []


def test_a_block_that_is_cancelled_again_and_again(acay, cay, relay):
    """Nested timeouts, a loop that shuts down: the removal is done all the same, before the cancellation goes on."""
    arrived, go_on = threading.Event(), threading.Event()

    def hold(_):
        arrived.set()
        go_on.wait(SECONDS)

    async def use(client):
        async with client.sandbox(labels={"of": "cancel"}) as box:
            await box.exec("sleep 1000")

    async def body(_):
        async with sdk.AsyncCay(relay.host) as client:
            task = asyncio.ensure_future(use(client))
            await asyncio.to_thread(eventually, lambda: left(cay) and begun(cay.attach(left(cay)[0])))
            relay.rules.append((b"DELETE", hold))
            task.cancel()
            await asyncio.to_thread(arrived.wait)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0.01)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    acay(body)
    assert left(cay) == []


def test_cleanup_is_bounded_in_time(acay, cay, relay, monkeypatch):
    """A daemon that does not answer holds nobody up for ever."""
    monkeypatch.setattr("cay._async._runtime.CLEANUP_SECONDS", 0.1)
    go_on = threading.Event()
    relay.rules.append((b"DELETE", lambda _: go_on.wait(SECONDS) and None))

    async def body(_):
        async with sdk.AsyncCay(relay.host) as client:
            with pytest.raises(sdk.Timeout):
                async with client.sandbox(labels={"of": "cancel"}):
                    pass

    acay(body)
    go_on.set()
    eventually(lambda: left(cay) == [])


def test_a_program_that_is_interrupted_in_a_block(cay, host):
    """^C in the body: removed on the way out, by both twins."""
    programs = ["with cay.Cay() as c, c.sandbox(labels={'of': 'cancel'}) as b: b.exec('sleep 1000')",
                "async def main():\n async with cay.AsyncCay() as c, c.sandbox(labels={'of': 'cancel'}) as b:\n"
                "  await b.exec('sleep 1000')\nasyncio.run(main())"]
    for program in programs:
        child = subprocess.Popen([sys.executable, "-c", "import asyncio, cay\n" + program],
                                 env={**os.environ, "CAY_HOST": host}, stderr=subprocess.PIPE)
        eventually(lambda: left(cay) and begun(cay.attach(left(cay)[0])))
        child.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in child.communicate(timeout=SECONDS)[1]
        assert left(cay) == []
