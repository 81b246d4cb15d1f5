# SPDX-License-Identifier: Apache-2.0
"""One process in a sandbox: its output from any offset, its input, its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from .._errors import Conflict, Gone, NotFound, Timeout, Unavailable
from .._frames import Follower
from .._models import Exit, Output, ProcessInfo, member
from .._requests import Duration, query
from .._retry import Patience
from ._http import AsyncHttp
from ._runtime import Content, Stream, sleep

FRAMES = "application/vnd.cay.frames"
INPUT_PIECE = 1 << 20
# A start that was given up on its way arrives within these, or not at all.
LATE_PAUSES = (0.1, 0.4)


class AsyncProcess:
    """It lives on without this object; `sandbox.process(pid)` gives another one."""

    def __init__(self, http: AsyncHttp, above: str, pid: int) -> None:
        self.pid = pid
        self._exit: Exit | None = None  # once it is known: it does not change
        self._http = http
        self._path = f"{above}/processes/{pid:d}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pid}>"

    async def output(
        self, *, since: int | None = 0, follow: bool = True, stall: Duration | None = None,
    ) -> Stream[Output]:
        """What it wrote from offset `since` on, piece by piece as it comes, to its end; without `follow`: so far.

        While it is followed, the process waits for its reader as it does at a pipe. A lost connection is taken up
        again where it broke off, also if the daemon was restarted.

        OutputLost: bytes from `since` on are no longer kept; None begins with the oldest that are. Stalled: nothing
        was read for `stall` (60 s). Gone: the sandbox ended first.
        """
        follower, patience = Follower(since), Patience(follows=True)
        while not follower.done:
            follower.connected()
            path = f"{self._path}/output" + query(from_=follower.at, follow=follow, stall=stall)
            try:
                async with aclosing(self._http.chunks(path, FRAMES)) as chunks:
                    async for chunk in chunks:
                        if not chunk:
                            patience.connected()
                        for output in follower.feed(chunk):
                            patience.progress()
                            yield output
                if not follower.done:
                    patience.ended()  # which a daemon that lives does not do without a word
                    raise Unavailable(f"the output of process {self.pid} was cut off")
            except Unavailable as error:
                if not follower.done:
                    await self._http.pause_after(error, patience)
        self._exit = follower.exit or self._exit

    async def wait(self, timeout: float | None = None) -> Exit:
        """How it ended, when it has. Timeout: it still runs after `timeout` seconds; 0 only asks."""
        if self._exit is not None:
            return self._exit
        takes = None if timeout is None else max(0.0, timeout)
        deadline = None if takes is None else time.monotonic() + takes

        def body() -> Mapping[str, float]:
            return {} if deadline is None else {"timeout": max(0.0, deadline - time.monotonic())}

        answer = await self._http.send("POST", self._path + "/wait", json=body, repeat=True, takes=takes,
                                       follows=True)
        self._exit = Exit.from_json(answer.json())
        return self._exit

    async def poll(self) -> Exit | None:
        """How it ended, or None if it runs."""
        try:
            return await self.wait(0)
        except Timeout:
            return None

    async def write(self, data: Content, *, eof: bool = False) -> None:
        """Writes to its standard input, as fast as it reads; `eof`: and closes it."""
        await self._http.send("POST", f"{self._path}/stdin" + query(eof=eof), content=data, takes=None)

    async def write_all(self, data: bytes) -> None:
        """The whole of its standard input. A lost connection is taken up again: each byte arrives once.

        That it reads no more is no error, as it is none for a program in front of a pipe to `head`.
        """
        try:
            for at in range(0, len(data) or 1, INPUT_PIECE):
                last = at + INPUT_PIECE >= len(data)
                path = f"{self._path}/stdin" + query(offset=at, eof=last)
                piece = data[at : at + INPUT_PIECE]
                await self._http.send("POST", path, content=piece, repeat=True, takes=None, follows=True)
        except Conflict:
            pass

    async def close_stdin(self) -> None:
        """The end of its standard input."""
        await self.write(b"", eof=True)

    async def signal(self, sig: int | str, *, tree: bool = False) -> None:
        """Sends a signal, "TERM" or 15; `tree`: also to all that it started. No error if it has ended."""
        await self._http.send("POST", self._path + "/signal", json={"signal": sig, "tree": tree})

    async def kill(self) -> None:
        """SIGKILL to it and to all that it started. No error if it has ended, or the sandbox has."""
        try:
            await self._http.send("DELETE", self._path, repeat=True)
        except (Gone, NotFound):
            pass

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        await self._http.send("POST", self._path + "/resize", json={"rows": rows, "cols": cols})

    async def info(self) -> ProcessInfo:
        """Its command, whether it runs, which output is kept."""
        return ProcessInfo.from_json(await self._http.get(self._path))


async def find_started(http: AsyncHttp, above: str, body: Mapping[str, Any]) -> AsyncProcess:
    """The process that a start with the key of `body` has made; nothing is started for this. NotFound: there is none."""
    pauses = list(LATE_PAUSES)
    while True:
        try:
            answer = await http.send("POST", f"{above}/processes", json={**body, "known": True}, repeat=True)
            return AsyncProcess(http, above, member(answer.json(), "pid", int))
        except NotFound:
            if not pauses:
                raise
        await sleep(pauses.pop(0))
