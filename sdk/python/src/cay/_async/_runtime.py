# SPDX-License-Identifier: Apache-2.0
"""What has no twin: clients of event loops, cancellation, sleeping, work beside, bodies. cay/_sync/_runtime.py has the same names.

Cleanup runs in a task of its own, which no cancellation of the caller reaches, neither asyncio's own, which may come
several times, nor that of anyio's scopes, which lasts. A loop that shuts down cancels that task, too: then it is begun
once more. It has a bound in time, so that nothing hangs on a daemon that does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import IO, Any, TypeVar, cast

import anyio
import httpx

from .._errors import Timeout
from .._host import Host
from .._requests import as_bytes, as_whole

T = TypeVar("T")
Stream = AsyncGenerator[T, None]
Content = str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

CLEANUP_SECONDS = 10.0
ASK_SECONDS = 5.0  # of these, for finding out what there is to clean up
CHUNK = 1 << 16

sleep = anyio.sleep


class Clients:
    """One httpx client for each event loop, since connections belong to the loop that opened them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_loop: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    def current(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            self._forget_closed()
            client = self._by_loop[loop] = self._new()
        return client

    def _new(self) -> httpx.AsyncClient:
        options = self._host.options()
        if self._host.proxies:
            return httpx.AsyncClient(**options)
        return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(**options), trust_env=False)

    async def aclose(self) -> None:
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        self._forget_closed()
        if client is not None:
            await client.aclose()

    def _forget_closed(self) -> None:
        for loop in list(self._by_loop):
            if loop.is_closed():
                self._by_loop.pop(loop, None)


async def protected(work: Callable[[], Awaitable[T]], seconds: float = CLEANUP_SECONDS) -> T:
    """Does all of it, however often the caller is cancelled meanwhile; then the cancellation goes on.

    `work` may be begun several times. Timeout: it was given up after `seconds`.
    """
    task = asyncio.ensure_future(work())
    deadline = time.monotonic() + seconds
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done() and time.monotonic() < deadline:
            try:
                await asyncio.wait({task}, timeout=deadline - time.monotonic())
            except asyncio.CancelledError as error:
                cancelled = error
            if task.cancelled():  # by asyncio.run, which cancels all that it finds when its main task has ended
                task = asyncio.ensure_future(work())
    if not task.done():
        task.cancel()
        raise cancelled or Timeout(f"cleaning up was given up after {seconds:g} s")
    if cancelled is not None:
        task.exception()  # seen, so that asyncio does not complain of it
        raise cancelled
    return task.result()


async def settle(
    request: Callable[[], Awaitable[T]], undo: Callable[[T | None], Awaitable[object]],
    given_up: Callable[[], object] = lambda: None,
) -> T:
    """Awaits a request that makes something. If this is cancelled, waits for what comes of it and undoes that.

    `given_up` is called first: what is repeated from then on need not make anything.

    `undo` gets the answer, or None if there is none; what it raises does not hide the cancellation.
    """
    task = asyncio.ensure_future(request())

    async def take_back() -> None:
        await asyncio.wait({task})
        failed = task.cancelled() or task.exception() is not None
        await undo(None if failed else task.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        given_up()
        try:
            await protected(take_back)
        except Exception:
            pass
        raise


class Beside:
    """Work that goes on beside that of the caller, until it is done or stopped. It does not raise."""

    def __init__(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self._task = asyncio.create_task(work())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def body(content: Content) -> bytes | AsyncIterator[bytes]:
    """What httpx sends: text as UTF-8, files and iterables piece by piece.

    Many bytes go in pieces, too: of what a socket did not take at once, httpx copies all the rest each time.
    """
    whole = as_whole(content)
    if whole is None:
        return _pieces(cast(Any, content))
    return whole if len(whole) <= CHUNK else _cut(whole)


async def _cut(whole: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(whole), CHUNK):
        yield whole[at : at + CHUNK]


async def _pieces(content: IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """A file is read in a thread: it may be a pipe, or far away."""
    if isinstance(content, AsyncIterable):
        async for piece in content:
            yield as_bytes(piece)
    elif isinstance(content, Iterable) and not hasattr(content, "read"):
        for piece in content:
            yield as_bytes(piece)
    else:
        while piece := as_bytes(await asyncio.to_thread(content.read, CHUNK)):
            yield piece
