# SPDX-License-Identifier: Apache-2.0
"""A command that is waited for: begun once, whatever becomes of the connection, and ended with who waits for it.

It has a key: a start whose answer was lost is repeated, and the sandbox that knows the key starts nothing. From then
on its output is read as that of any process. While nobody reads it the daemon gives it some seconds, then kills it:
enough for a daemon that is restarted, and not for a client that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from .._errors import CayError, NotFound, OutputLost, Stalled, Unavailable
from .._frames import Follower
from .._models import Exit, Output
from .._requests import new_key, query
from .._retry import Patience
from ._http import AsyncHttp
from ._runtime import Beside, Stream, protected
from .process import FRAMES, AsyncProcess, find_started

PID = "x-cay-pid"


class AsyncRun:
    """process  what was started, as soon as it is known
    exit     how it ended, after all of the output
    """

    def __init__(self, http: AsyncHttp, above: str, body: Mapping[str, Any], input: bytes | None = None) -> None:
        self.process: AsyncProcess | None = None
        self.exit: Exit | None = None
        self._http = http
        self._above = above
        self._input = input
        self._body = {**body, "key": new_key(), "kill_on_disconnect": True}
        if input is not None:
            self._body["stdin"] = True
        self._may_run = False  # it was asked for and not refused
        self._input_error: Exception | None = None

    async def output(self) -> Stream[Output]:
        """Starts it; what it writes, to its end. Whoever leaves earlier, in whatever way, kills it.

        OutputLost: some of it, or how it ended, can no longer be known.
        """
        follower, input = Follower(0), None
        try:
            patience = Patience(follows=True)
            while not follower.done:
                follower.connected()
                try:
                    async with aclosing(self._chunks(follower.at or 0)) as chunks:
                        async for chunk in chunks:
                            if not chunk:
                                patience.connected()
                            if input is None and self._input is not None:
                                input = Beside(self._write)
                            for output in follower.feed(chunk):
                                patience.progress()
                                yield output
                    if not follower.done:
                        patience.ended()  # which a daemon that lives does not do without a word
                        raise Unavailable("the output of the command was cut off")
                except (Unavailable, Stalled) as error:
                    if not follower.done:
                        await self._http.pause_after(error, patience)
            self.exit = follower.exit
        except BaseException:
            if not follower.done:
                await self._abandon()
            raise
        finally:
            if input is not None:
                await input.stop()
        if self._input_error is not None:
            raise self._input_error

    async def _chunks(self, since: int) -> Stream[bytes]:
        """One connection: the one that starts it, or another one to what was started."""
        if self.process is not None:
            path = f"{self._above}/processes/{self.process.pid}/output" + query(from_=since, follow=True)
            connection = self._http.chunks(path, FRAMES)
        else:
            path = f"{self._above}/processes" + query(follow=True, from_=since or None)
            connection = self._http.chunks(path, FRAMES, json=self._body, on_answer=self._started)
        known, self._may_run = self._may_run, True
        try:
            async with aclosing(connection) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (Unavailable, Stalled):
            raise
        except NotFound as error:
            if self.process is None:
                self._may_run = known
                raise
            raise OutputLost(f"the result of the command is lost: {error.message}") from error
        except CayError:
            self._may_run = known or self.process is not None
            raise

    def _started(self, headers: Mapping[str, str]) -> None:
        if headers.get(PID, "").isdecimal():
            self.process = AsyncProcess(self._http, self._above, int(headers[PID]))

    async def _find(self) -> AsyncProcess:
        """By its key. NotFound: the start has not arrived; if it does so yet, nobody follows it, and it is killed."""
        if self.process is None:
            self.process = await find_started(self._http, self._above, self._body)
        return self.process

    async def _write(self) -> None:
        """Without its input it would wait for ever, or do half of its work."""
        try:
            process = await self._find()
            await process.write_all(self._input or b"")
        except Exception as error:
            self._input_error = error
            await self._abandon()

    async def _abandon(self) -> None:
        if self._may_run:
            try:
                await protected(self._kill)
            except CayError:
                pass  # nobody follows it any more: the daemon kills it

    async def _kill(self) -> None:
        process = await self._find()
        await process.kill()
