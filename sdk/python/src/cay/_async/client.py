# SPDX-License-Identifier: Apache-2.0
"""The client of a cayd: makes, finds and lists sandboxes."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .._errors import CayError, Limit, Unavailable, from_body
from .._frames import LineParser
from .._host import find_host
from .._models import NONE, Event, SandboxInfo, member
from .._requests import Spec, query, sandbox_path, spec_body, with_wishes, without_refused
from .._retry import Patience
from ._http import Answer, AsyncHttp
from ._runtime import ASK_SECONDS, CLEANUP_SECONDS, Stream, protected, settle
from .sandbox import AsyncSandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

# Idle alone would never end a sandbox in which a process runs.
LIFE: Spec = {"idle": 3600, "ttl": 86400}


class AsyncCay:
    """A cayd and the right to use it.

    host     "unix:/path", "http://host:port" or "https://host:port"; else $CAY_HOST, else unix:/run/cay/cayd.sock
    token    needed over TCP; else $CAY_TOKEN, else what is in the file $CAY_TOKEN_FILE
    timeout  seconds without a byte of an answer; commands and streams take as long as they do

    Nothing is sent before the first call. One client may be used in several event loops and threads.
    """

    def __init__(self, host: str | None = None, *, token: str | None = None, timeout: float = 30.0) -> None:
        found = find_host(host, token)
        self.host = found.shown
        self._http = AsyncHttp(found, timeout)

    async def __aenter__(self) -> AsyncCay:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; a later call opens new ones. Sandboxes and what runs in them stay."""
        await protected(self._http.aclose)

    async def create(self, **spec: Unpack[Spec]) -> AsyncSandbox:
        """A new sandbox, ready to run commands.

        With an `id` that exists: the same sandbox if it has the same spec, else Conflict. If this is cancelled or
        fails, what was made is removed; one that was there before is not.
        """
        return await self._create(spec, mine=spec.get("id") is None)

    @asynccontextmanager
    async def sandbox(self, **spec: Unpack[Spec]) -> AsyncIterator[AsyncSandbox]:
        """A sandbox for a block of code, removed at its end, whatever happens.

        Unless `ttl` or `idle` is given, it ends by itself after an hour without use or after a day, in case that this
        process is killed; earlier if the operator's policy says so.
        """
        async with await self._create_bounded(spec) as sandbox:
            yield sandbox

    async def get(self, id: str) -> AsyncSandbox:
        """The sandbox of that id, also if it has ended; NotFound."""
        info = SandboxInfo.from_json(await self._http.get(sandbox_path(id)))
        return AsyncSandbox(self._http, info.id, info)

    def attach(self, id: str) -> AsyncSandbox:
        """The sandbox of that id, without asking whether there is one."""
        return AsyncSandbox(self._http, id)

    async def list(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """Sandboxes in the order of their creation: those with all of `labels`, and in `state` ("live", "all", ...)."""
        wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
        found: builtins.list[SandboxInfo] = []
        cursor = None
        while True:
            page = await self._http.get("/sandboxes" + query(label=wanted, state=state, cursor=cursor))
            found += [SandboxInfo.from_json(one) for one in member(page, "sandboxes", list)]
            cursor = member(page, "next_cursor", str, NONE)
            if cursor is None:
                return found

    async def events(self, *, since: int = 0, follow: bool = True) -> Stream[Event]:
        """What happened to sandboxes, from sequence number `since` on; `follow`: and what happens, without an end."""
        patience = Patience()
        while True:
            parser = LineParser()
            path = "/events" + query(from_=since, follow=follow)
            try:
                async with aclosing(self._http.chunks(path, "application/x-ndjson")) as chunks:
                    async for chunk in chunks:
                        if not chunk:
                            patience.connected()
                        for line in parser.feed(chunk):
                            if member(line, "type", str) == "error":
                                raise from_body(line.get("error"))
                            event = Event.from_json(line)
                            since = event.seq + 1
                            patience.progress()
                            yield event
                if not follow:
                    return
                patience.ended()  # which a daemon that lives does not do without a word
                raise Unavailable("the stream of events was cut off")
            except Unavailable as error:
                await self._http.pause_after(error, patience)

    async def version(self) -> dict[str, Any]:
        """The versions of the daemon and of its API."""
        return await self._http.get("/version")

    async def capabilities(self) -> dict[str, Any]:
        """What this host and this version can do."""
        return await self._http.get("/capabilities")

    async def _create_bounded(self, spec: Spec) -> AsyncSandbox:
        bounded = spec.get("ttl") is not None or spec.get("idle") is not None
        return await self._create_wishing(spec, {} if bounded else LIFE, mine=True)

    async def _create_wishing(self, spec: Spec, wishes: Spec, *, mine: bool = False) -> AsyncSandbox:
        """As `create`, with `wishes` that the caller has not expressed.

        Where one of them is more than the operator's rules allow, the operator's own bound takes its place.
        """
        while True:
            try:
                return await self._create(with_wishes(spec, wishes), mine=mine)
            except Limit as error:
                granted = without_refused(wishes, error)
                if granted == wishes:
                    raise
                wishes = granted

    async def _create(self, spec: Spec, *, mine: bool) -> AsyncSandbox:
        """`mine`: also a sandbox that was there before is the caller's to remove, if it has this very spec."""
        request = spec_body(spec)
        id, chosen = request["id"], spec.get("id") is not None

        async def post() -> Answer:
            return await self._http.send("POST", "/sandboxes", json=request, repeat=True)

        async def undo(made: Answer | None) -> None:
            # Without an answer it may still be on its way, where a remove would find nothing yet. Asked for once more,
            # it is there; or it is refused, if the id is somebody else's. A daemon that takes long to say so is told
            # to remove it all the same: it does so after what it was asked before.
            if made is None:
                made = await _if_told(post, ASK_SECONDS)
            if not chosen or (made is not None and (mine or made.status == 201)):
                await self.attach(id).remove()

        try:
            made = await settle(post, undo)
        except Unavailable:
            # Any other error is a refusal, which made nothing.
            await _if_told(lambda: undo(None))
            raise
        info = SandboxInfo.from_json(made.json())
        return AsyncSandbox(self._http, info.id, info)


async def _if_told(request: Callable[[], Awaitable[T]], seconds: float = CLEANUP_SECONDS) -> T | None:
    """What a request gives in time; None if it fails, where another error is what counts."""
    try:
        return await protected(request, seconds)
    except CayError:
        return None
