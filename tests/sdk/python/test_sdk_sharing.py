# SPDX-License-Identifier: Apache-2.0
"""One client in many threads, in the processes of a fork, after its close, and in loops that end too early."""
import asyncio
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from relay import lose

import cay as sdk

THREADS = 32


def left(cay):
    return [info.id for info in cay.list(labels={"of": "sharing"})]


def test_32_threads_that_begin_at_once(host, box):
    """A client that was never used before: each thread gets the answers to its own requests."""
    together = threading.Barrier(THREADS)
    with sdk.Cay(host) as client:
        files = client.attach(box.id).files

        def work(number):
            together.wait()
            for turn in range(5):
                files.write(f"/work/{number}", f"{number} {turn}")
                assert files.read_text(f"/work/{number}") == f"{number} {turn}"

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))


def test_a_fork_has_connections_of_its_own(host, box):
    """Parent and children go on with the same objects, and nobody reads another's answers."""
    program = textwrap.dedent("""
        import os, sys
        import cay

        def sockets():
            links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            return {os.readlink(link) for link in links if os.path.islink(link)}

        client = cay.Cay(sys.argv[1])
        box = client.attach(sys.argv[2])
        assert box.exec("echo first").stdout == "first\\n"
        inherited = sockets()
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                break
            children.append(child)
        me = str(os.getpid())
        good = all(box.exec(["echo", me]).stdout == me + "\\n" for _ in range(20))
        if child == 0:
            os._exit(0 if good and sockets() - inherited else 1)
        assert good and [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    """)
    argv = [sys.executable, "-B", "-c", program, host, box.id]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_after_its_close(twin, host):
    """A later call opens a connection again, so that cleanup which comes late is done all the same."""
    client = twin.new(host)
    box = twin(client.create(labels={"of": "sharing"}, ttl=600))
    twin.close(client)
    twin.close(client)
    assert twin(client.attach(box.id).exec("true")).ok
    twin(box.remove())
    twin.close(client)


@pytest.mark.parametrize("pause", [0, 0.001, 0.003, 0.01, 0.1])
def test_a_loop_that_ends_in_the_middle_of_a_create(host, cay, pause):
    """asyncio.run cancels all tasks that its main task left behind, those of the SDK among them: nothing is left."""
    async def use(client):
        async with client.sandbox(labels={"of": "sharing"}):
            await asyncio.sleep(1000)

    async def main():
        async with sdk.AsyncCay(host) as client:
            await client.version()
            main.task = asyncio.ensure_future(use(client))
            await asyncio.sleep(pause)

    asyncio.run(main())
    assert left(cay) == []


def test_a_loop_that_ends_while_the_daemon_takes_long(relay, cay):
    """What was asked for is removed, also if it cannot be found out in time what became of it."""
    held = threading.Event()

    async def main():
        async with sdk.AsyncCay(relay.host) as client:
            await client.version()
            relay.rules += [(b"POST ", lambda _: held.wait(60) and 0)] * 2
            main.task = asyncio.ensure_future(client.create(labels={"of": "sharing"}))
            while relay.count("POST") == 0:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    held.set()
    assert relay.count("POST") == 2 and relay.count("DELETE") == 1 and left(cay) == []


def test_a_loop_that_ends_in_the_middle_of_a_removal(relay, cay):
    """The same when the request to remove it is under way, and its answer is lost with its task."""
    arrived = threading.Event()

    def forget(_):
        arrived.set()

    async def use(client):
        async with client.sandbox(labels={"of": "sharing"}):
            relay.rules.append((b"DELETE", forget))

    async def main():
        main.client = sdk.AsyncCay(relay.host)
        main.task = asyncio.ensure_future(use(main.client))
        while not relay.count("POST"):
            await asyncio.sleep(0)
        while not (left(cay) and relay.rules):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert left(cay) == []


def test_a_start_is_not_repeated_at_the_end_of_a_loop(relay, box):
    """What may have been started once is not started again."""
    async def main():
        client = sdk.AsyncCay(relay.host)
        await client.version()
        relay.rules.append((b"POST", lose))
        main.task = asyncio.ensure_future(client.attach(box.id).start("sleep 1000"))
        while relay.count("POST") == 0:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert len([process for process in box.processes() if "sleep 1000" in process.command]) <= 1


def test_results_and_errors_travel(box):
    """Between processes: results, infos and errors are what they were after they were pickled."""
    done = box.exec("echo hi")
    for one in (done, box.info, box.start("true").wait(), box.stats(), box.files.stat("/")):
        assert pickle.loads(pickle.dumps(one)) == one
    for error in (sdk.Timeout("late", {"field": "x"}), sdk.Invalid("wrong")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.detail) == (type(error), str(error), error.detail)
