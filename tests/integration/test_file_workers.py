# SPDX-License-Identifier: Apache-2.0
"""A file worker is a process inside: one that was stopped there is given up, one that is at work, or whose sandbox is
paused, or whose caller takes its time, is waited for."""
import concurrent.futures
import contextlib
import http.client
import subprocess
import time

import pytest

from integration.support import until
from lib.daemon import Daemon, full_path
from security import hostile

SILENT = 60  # CAY_SILENT_MS of src/base/limits.h, in seconds
LONG = SILENT + 15
STALL = 120  # STALL_S of src/daemon/server.c: an upload without progress is cut
MIB = 1 << 20
WORKERS = "for p in /proc/[0-9]*; do read -r name < $p/comm; case $name in *cay-init) echo ${p#/proc/};; esac; done"
FILES = ("mkdir -p /tmp/tree /tmp/quiet; yes 'a line of it' | head -c 16000000 > /tmp/tree/large; "
         "for i in $(seq 3000); do : > /tmp/tree/$i; done")


@pytest.fixture(scope="module")
def daemon():
    with Daemon() as made:
        yield made


def workers(daemon, box):
    """Their pids inside; init is the first process."""
    return [pid for pid in daemon.cay.sh(box, WORKERS + " 2>/dev/null; true").stdout.split() if pid != "1"]


def stop(daemon, box, count):
    """Stops all workers from inside, when there are so many."""
    until(lambda: len(workers(daemon, box)) == count, seconds=30)
    daemon.cay.sh(box, "kill -STOP " + " ".join(workers(daemon, box)), check=True)


class Calls:
    """Calls in the middle of their work, each held by its caller; go_on() lets it finish."""

    def __init__(self, daemon, box, stack):
        self.daemon, self.box, self.stack = daemon, box, stack
        self.count = 0

    def command(self, *args, **options):
        process = self.daemon.cay.popen(*args, stderr=subprocess.PIPE, **options)
        self.stack.callback(process.wait, 30)
        self.stack.callback(process.kill)
        self.count += 1
        return process

    def upload(self):
        """cay fs put, in the middle of its input."""
        process = self.command("fs", "put", self.box, "/tmp/put", stdin=subprocess.PIPE, bufsize=0)
        process.stdin.write(b"x" * MIB)

        def go_on():
            with contextlib.suppress(OSError):
                for _ in range(8):
                    process.stdin.write(b"x" * MIB)
                process.stdin.close()
            return process.wait(LONG + 30), process.stderr.read().decode()
        return go_on

    def download(self, *args):
        """A command that prints more than a pipe holds."""
        process = self.command(*args, stdin=subprocess.DEVNULL)
        assert process.stdout.read(1)

        def go_on():
            while process.stdout.read(MIB):
                pass
            return process.wait(LONG + 30), process.stderr.read().decode()
        return go_on

    def http(self, method, path, body=None, size=None):
        sock = self.stack.enter_context(contextlib.closing(self.daemon.dial(timeout=LONG + 60)))
        head = f"{method} {full_path(f'/sandboxes/{self.box}/{path}')} HTTP/1.1\r\nHost: localhost\r\n"
        sock.sendall((head + f"Content-Length: {size or len(body or b'')}\r\n\r\n").encode() + (body or b""))
        self.count += 1
        return sock

    def http_upload(self, method, path):
        size = 9 * MIB
        sock = self.http(method, path, b"\0" * MIB, size)

        def go_on():
            with contextlib.suppress(OSError):
                sock.sendall(b"\0" * (size - MIB))
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            return (0 if answer.status < 300 else answer.status), answer.read().decode()
        return go_on

    def http_download(self, method, path, body=None):
        sock = self.http(method, path, body)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 200, answer.read()

        def go_on():
            try:
                text = answer.read()
            except (http.client.HTTPException, OSError) as error:
                return 1, f"does not answer: {error!r}"  # a stream that has begun can only break
            return (1 if b"does not answer" in text[-2000:] else 0), text[-2000:].decode(errors="replace")
        return go_on

    def all(self):
        return {
            "put": self.upload(),
            "cat": self.download("fs", "cat", self.box, "/tmp/tree/large"),
            "grep": self.download("fs", "grep", self.box, "/tmp/tree", "line"),
            "PUT file": self.http_upload("PUT", "files?path=/tmp/PUT"),
            "PUT archive": self.http_upload("PUT", "archive?path=/tmp/tree"),
            "GET file": self.http_download("GET", "files?path=/tmp/tree/large"),
            "GET archive": self.http_download("GET", "archive?path=/tmp/tree"),
            "grep of cayd": self.http_download("GET", "fs/grep?path=/tmp/tree&pattern=line&limit=1000000"),
        }


def finish(pool, calls):
    return {name: future.result() for name, future in {n: pool.submit(c) for n, c in calls.items()}.items()}


def said(result):
    return result[0] != 0 and "does not answer" in result[1]


def held(daemon, name, stack):
    box = daemon.create(id=name, memory="512M", disk="128M")
    daemon.cay.sh(box, FILES, check=True)
    calls = Calls(daemon, box, stack)
    return calls, calls.all()


@pytest.mark.slow
def test_who_is_waited_for_and_who_is_not(daemon):
    """All at the same time: the longest silence that is borne is a minute."""
    start = time.monotonic()
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(40) as pool:
        stopped, of_stopped = held(daemon, "stopped", stack)
        _, of_paused = held(daemon, "paused", stack)
        slow, of_slow = held(daemon, "slow", stack)
        watch = slow.command("fs", "watch", "slow", "/tmp/quiet", stdin=subprocess.DEVNULL)
        until(lambda: len(workers(daemon, "slow")) == slow.count, seconds=30)
        silent = []
        for name, minor in (("older", 0), ("hung", 1)):
            daemon.create(id=name)
            stack.enter_context(hostile.HostileWorker(daemon.cay, name, lambda *_: None, minor=minor))
            silent.append(Calls(daemon, name, stack).command("fs", "ls", name, "/", stdin=subprocess.DEVNULL))
        listing = pool.submit(daemon.get, "/sandboxes/hung/fs/list?path=/", timeout=LONG + 60)
        stop(daemon, "stopped", stopped.count)
        daemon.post("/sandboxes/paused/pause")
        began = time.monotonic()
        if began - start > STALL - LONG - 10:
            pytest.skip("on a machine as slow as this uploads are cut before the test is over")
        results = pool.submit(finish, pool, of_stopped)
        resumed = {name: pool.submit(call) for name, call in of_paused.items()}

        results = results.result()
        assert {name: result for name, result in results.items() if not said(result)} == {}
        assert silent[1].wait(60) == 125
        assert b"the file worker in sandbox 'hung' does not answer" in silent[1].stderr.read()
        assert (listing.result().status, listing.result().code) == (503, "unavailable"), listing.result()
        time.sleep(max(0, began + LONG - time.monotonic()))
        assert silent[0].poll() is None, "a worker of a version that does not say that it lives"
        assert [name for name, call in resumed.items() if call.done()] == []
        daemon.post("/sandboxes/paused/resume")
        done = {name: call.result() for name, call in resumed.items()}
        assert {name: result for name, result in done.items() if result[0] != 0} == {}
        done = finish(pool, of_slow)
        assert {name: result for name, result in done.items() if result[0] != 0} == {}
        assert watch.poll() is None
        daemon.cay.sh("slow", ": > /tmp/quiet/seen", check=True)
        assert b"/tmp/quiet/seen" in watch.stdout.readline()
