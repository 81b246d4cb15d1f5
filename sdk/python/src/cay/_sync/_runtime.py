# SPDX-License-Identifier: Apache-2.0
"""The twin of cay/_async/_runtime.py, which says what these are for. This one is written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, TypeVar

import httpx

from .._host import Host

T = TypeVar("T")
Stream = Generator[T, None, None]
Content = str | bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]

CHUNK = 1 << 16

sleep = time.sleep


class Clients:
    """One httpx client, which any number of threads may use."""

    def __init__(self, host: Host) -> None:
        options = host.options()
        if host.proxies:
            self._client = httpx.Client(**options)
        else:
            self._client = httpx.Client(transport=httpx.HTTPTransport(**options), trust_env=False)

    def current(self) -> httpx.Client:
        return self._client

    def close(self) -> None:
        self._client.close()


def protected(work: Callable[[], T]) -> T:
    """Nothing cancels a thread."""
    return work()


def settle(request: Callable[[], T], undo: Callable[[T | None], object]) -> T:
    """Does a request that makes something. If that is interrupted (KeyboardInterrupt), undoes what it may have made."""
    try:
        return request()
    except Exception:
        raise
    except BaseException:
        try:
            undo(None)
        except Exception:
            pass
        raise


def body(content: Content) -> bytes | Iterator[bytes]:
    """What httpx sends: text as UTF-8, files and iterables piece by piece."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    return _pieces(content)


def _pieces(content: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    if hasattr(content, "read"):
        yield from iter(lambda: content.read(CHUNK), b"")
    else:
        yield from content
