# SPDX-License-Identifier: Apache-2.0
# Generated from _async/_http.py by tools/unasync.py: do not edit.
"""Requests and answers: httpx below, JSON and cay's errors above, and what is repeated when the daemon is lost.

A request that could not be sent, since nobody listened, is repeated if this client has had an answer before: the
daemon is restarting. One whose connection broke is repeated only where that does no harm (`repeat`).
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx

from .._errors import CayError, Stalled, TooLarge, Unavailable, from_answer, is_hung, unexpected
from .._frames import parse_object
from .._host import API, CONNECT_SECONDS, Host
from .._requests import as_whole
from .._retry import Patience
from ._runtime import Clients, Content, Stream, body, sleep

Json = Mapping[str, Any]

# A result is in memory, all of it: of JSON this much.
MAX_JSON = 256 << 20
# The beginning of an error is enough.
MAX_ERROR = 64 << 10


class Answer(NamedTuple):
    status: int
    content: bytes

    def json(self) -> dict[str, Any]:
        return parse_object(self.content)


class Http:
    """`timeout`: how long an answer, or its next piece, may be waited for, beyond what it `takes` by itself.

    `takes` None: as long as a command.
    """

    def __init__(self, host: Host, timeout: float) -> None:
        self._host = host
        self._clients = Clients(host)
        self._answered = False
        self._timeout = timeout

    @property
    def base(self) -> str | None:
        """The address of the daemon's own paths, such as "http://127.0.0.1:7733"; None on a unix socket."""
        return None if self._host.socket else self._host.url.removesuffix(API)

    def close(self) -> None:
        self._clients.close()

    def get(self, path: str) -> dict[str, Any]:
        answer = self.send("GET", path, repeat=True)
        return answer.json()

    def send(
        self, method: str, path: str, *, json: Json | Callable[[], Json] | None = None, content: Content | None = None,
        repeat: bool = False, takes: float | None = 0.0, headers: Mapping[str, str] | None = None,
        follows: bool = False, most: int | None = MAX_JSON,
    ) -> Answer:
        """The answer, if it is a success. `json` may be a function: then it is asked before each attempt.

        `follows`: with the patience of one who waits for a command. TooLarge: the answer has more than `most` bytes.
        """
        patience = Patience(follows=follows)
        while True:
            request = self._request(method, path, content, takes, headers, json() if callable(json) else json)
            try:
                if follows:
                    patience.connected()
                return self._attempt(request, most)
            except CayError as error:
                pause = self._pause_after(error, repeat, patience)
                if pause is None:
                    raise
            sleep(pause)

    def chunks(
        self, path: str, accept: str, *, takes: float | None = None, headers: Mapping[str, str] | None = None,
        json: Json | None = None, on_answer: Callable[[Mapping[str, str]], object] | None = None,
    ) -> Stream[bytes]:
        """The body of an answer as it comes; at first an empty chunk, when there is an answer. Never repeated.

        With `json` it is that of a POST. `on_answer` gets the headers of a success.
        """
        method = "GET" if json is None else "POST"
        request = self._request(method, path, None, takes, {"accept": accept, **(headers or {})}, json)
        try:
            response = self._clients.current().send(request, stream=True)
            try:
                self._answered = True
                if response.status_code == 416:  # a range behind the end of a file
                    return
                if response.status_code >= 300:
                    raise _refused(response)
                if on_answer is not None:
                    on_answer(response.headers)
                yield b""
                for chunk in response.iter_raw():
                    yield chunk
            finally:
                response.close()
        except httpx.RequestError as error:
            raise self._lost(error) from error

    def pause_after(self, error: CayError, patience: Patience) -> None:
        """For readers of streams: waits before the next attempt, or raises the error if it is of no use."""
        pause = self._pause_after(error, True, patience)
        if pause is None:
            raise error
        sleep(pause)

    def _attempt(self, request: httpx.Request, most: int | None) -> Answer:
        try:
            response = self._clients.current().send(request, stream=True)
            try:
                self._answered = True
                if response.status_code >= 300:
                    raise _refused(response)
                content = _content(response, most)
                if most is not None and len(content) > most:
                    raise TooLarge(f"the answer has more than {most} bytes; ask for less")
                return Answer(response.status_code, content)
            finally:
                response.close()
        except httpx.RequestError as error:
            raise self._lost(error) from error

    def _request(
        self, method: str, path: str, content: Content | None = None, takes: float | None = 0.0,
        headers: Mapping[str, str] | None = None, json: Json | None = None,
    ) -> httpx.Request:
        if json is not None:
            content = jsonlib.dumps(json)
            headers = {"content-type": "application/json", **(headers or {})}
        all_headers = self._host.headers.copy()
        all_headers.update(headers)
        whole = as_whole(content)
        if whole is not None:  # httpx does not see the size of pieces
            all_headers["content-length"] = str(len(whole))
        given = content if whole is None else whole
        return httpx.Request(
            method, self._host.url + path, headers=all_headers, content=None if given is None else body(given),
            extensions={"timeout": _limits(None if takes is None else self._timeout + takes)},
        )

    def _pause_after(self, error: CayError, repeat: bool, patience: Patience) -> float | None:
        if not isinstance(error, (Unavailable, Stalled)) or not self._answered or is_hung(error):
            return None
        unsent = isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))
        if unsent or isinstance(error.__cause__, httpx.TimeoutException):
            patience.ended()
        return patience.next_pause() if repeat or unsent else None

    def _lost(self, error: httpx.RequestError) -> CayError:
        why = str(error) or type(error).__name__
        if not isinstance(error, httpx.TransportError):
            return unexpected(why)
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return Unavailable(f"cannot reach cayd at {self._host.shown}: {why}")
        return Unavailable(f"lost the connection to cayd at {self._host.shown}: {why}")


def _content(response: httpx.Response, most: int | None) -> bytes:
    """The body; of one that is longer than `most` bytes a little more than those."""
    pieces, size = [], 0
    for piece in response.iter_bytes():
        pieces.append(piece)
        size += len(piece)
        if most is not None and size > most:
            break
    return b"".join(pieces)


def _refused(response: httpx.Response) -> CayError:
    return from_answer(response.status_code, _content(response, MAX_ERROR))


def _limits(seconds: float | None) -> dict[str, float | None]:
    return {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": None}
