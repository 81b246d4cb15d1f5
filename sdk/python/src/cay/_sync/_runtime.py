# SPDX-License-Identifier: Apache-2.0
"""The twin of cay/_async/_runtime.py, which says what these are for. This one is written by hand."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, Any, TypeVar, cast

import httpx

from .._host import Host
from .._requests import as_bytes, as_whole

T = TypeVar("T")
Stream = Generator[T, None, None]
Content = str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]

CHUNK = 1 << 16
CLEANUP_SECONDS = 10.0
ASK_SECONDS = 5.0

sleep = time.sleep


class Clients:
    """One httpx client for each process, which any number of threads may use.

    A fork inherits the connections: two processes on one of them would read each other's answers.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_process: dict[int, httpx.Client] = {}

    def current(self) -> httpx.Client:
        process = os.getpid()
        client = self._by_process.get(process)
        if client is None:
            for parent in list(self._by_process):
                if parent != process:
                    self._by_process.pop(parent, None)
            client = self._by_process.setdefault(process, self._new())  # which of several threads was the first
        return client

    def _new(self) -> httpx.Client:
        options = self._host.options()
        if self._host.proxies:
            return httpx.Client(**options)
        return httpx.Client(transport=httpx.HTTPTransport(**options), trust_env=False)

    def close(self) -> None:
        client = self._by_process.pop(os.getpid(), None)
        if client is not None:
            client.close()


def protected(work: Callable[[], T], seconds: float = CLEANUP_SECONDS) -> T:
    """Nothing cancels a thread: it takes as long as it takes."""
    return work()


def settle(
    request: Callable[[], T], undo: Callable[[T | None], object], given_up: Callable[[], object] = lambda: None,
) -> T:
    """Does a request that makes something. If that is interrupted (KeyboardInterrupt), undoes what it may have made."""
    try:
        return request()
    except Exception:
        raise
    except BaseException:
        given_up()
        try:
            undo(None)
        except Exception:
            pass
        raise


class Beside:
    """Work in a thread. Nothing stops a thread: this one ends when the process does that it writes to."""

    def __init__(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="cay-input", daemon=True).start()

    def stop(self) -> None:
        pass


def body(content: Content) -> bytes | Iterator[bytes]:
    """What httpx sends: text as UTF-8, files and iterables piece by piece, and many bytes, too."""
    whole = as_whole(content)
    if whole is None:
        return _pieces(cast(Any, content))
    return whole if len(whole) <= CHUNK else _cut(whole)


def _cut(whole: bytes) -> Iterator[bytes]:
    for at in range(0, len(whole), CHUNK):
        yield whole[at : at + CHUNK]


def _pieces(content: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(content, Iterable) and not hasattr(content, "read"):
        yield from map(as_bytes, content)
    else:
        while piece := as_bytes(content.read(CHUNK)):
            yield piece
