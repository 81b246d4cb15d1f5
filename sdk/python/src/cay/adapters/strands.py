# SPDX-License-Identifier: Apache-2.0
"""Strands Agents on cay: `Agent(sandbox=CaySandbox())`.

CaySandbox is the abstract class `strands.sandbox.Sandbox` over a sandbox of cay; strands-agents is not a dependency of
this package.

A command is read by `_supervise` into a short queue from which the consumer of the generator takes at its own speed; a
slow one holds the command back. When its time is up, the command and all it started gets SIGTERM and a second later
SIGKILL; when its consumer is cancelled or closes the generator, SIGKILL at once; when this program dies, SIGKILL within
seconds.

Strands runs each synchronous call of an agent in an event loop and a thread of its own. So nothing here belongs to a
loop, and the sandbox is made in a thread, under a lock.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import errno
import json
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from strands.sandbox import LANGUAGE_PATTERN, ExecutionResult, FileInfo, Sandbox, StreamChunk, StreamType
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.posix_shell import validate_env_keys
from strands.types.tools import AgentTool
from strands.vended_tools import make_file_editor, make_shell
from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
from strands.vended_tools.shell.types import SANDBOX_SHELL_DESCRIPTION

try:  # releases of strands-agents without Sandbox.request have neither of them
    from strands.sandbox.errors import SandboxHttpError  # type: ignore[attr-defined, unused-ignore]
    from strands.sandbox.types import HttpResult  # type: ignore[attr-defined, unused-ignore]
except ImportError:

    class SandboxHttpError(Exception):  # type: ignore[no-redef, unused-ignore]
        """No answer to an HTTP request, or one that is too large."""

    @dataclass
    class HttpResult:  # type: ignore[no-redef, unused-ignore]
        """`headers` have names in lower case; the values of a repeated one are joined by a newline."""

        status: int
        status_text: str
        resolved_url: str
        headers: dict[str, str]
        body: bytes


from cay import AsyncCay, AsyncProcess, AsyncSandbox, Cay, CayError, Exit, Gone, Invalid, Spec
from cay import FileInfo as Entry
from cay._async._runtime import protected
from cay._async.client import LIFE
from cay._errors import is_missing

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

GRACE = 1.0  # seconds between SIGTERM and SIGKILL
SPARE = 5.0  # the daemon ends a command itself so long after its time, in case this client cannot any more
LONGEST_TIMEOUT = 2e6  # what the daemon is told of one that is longer or infinite
# Linux takes 128 KiB in one argument. A longer command goes in by standard input, which is then empty again.
LONGEST_ARGUMENT = 100_000
EVAL_INPUT = 'eval "$(cat)" < /dev/null'
# Chunks that wait for the consumer. The daemon gives it an hour before it takes it for stuck.
WAITING = 64
STALL = 3600
# So much of a command's output is kept until it is read; it costs nothing before it is written.
KEPT: Spec = {"output": "64M"}

Chunks = AsyncGenerator[StreamChunk | ExecutionResult, None]


class CaySandbox(Sandbox):
    """A Strands sandbox on a cay sandbox that exists, or on one of its own, which is made when it is first used.

    `working_dir` is where commands run and relative paths start. `host` and `token` are those of `AsyncCay`, all
    other options those of `AsyncCay.create`. Leaving `with` or `async with` removes a sandbox that was made here;
    one that was given stays.
    """

    def __init__(self, box: AsyncSandbox | None = None, *, working_dir: str = "/workspace", host: str | None = None,
                 token: str | None = None, **spec: Unpack[Spec]) -> None:
        if not working_dir.startswith("/"):
            raise Invalid(f"working_dir '{working_dir}' is not absolute")
        if box is not None and (host or token or spec):
            raise TypeError("options of a new sandbox do not go with one that exists")
        self.working_dir = working_dir
        self._access: dict[str, Any] = {"host": host, "token": token}
        self._spec: Spec = spec
        self._box = box
        self._client: AsyncCay | None = None  # of a box that was made here
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    async def create(cls, **options: Any) -> Self:
        """Makes the sandbox now instead of at its first use."""
        sandbox = cls(**options)
        try:
            await sandbox.box()
        except BaseException:  # a thread is not cancelled: what it makes has to go
            await protected(sandbox.aclose)
            raise
        return sandbox

    async def box(self) -> AsyncSandbox:
        """The sandbox of cay behind it, for all that Strands has no call for."""
        box = self._box
        return await asyncio.to_thread(self._make) if box is None else box

    def _make(self) -> AsyncSandbox:
        with self._lock:
            if self._closed:
                raise Gone("the sandbox was closed")
            if self._box is None:
                id = _create(Cay(**self._access), self._spec, self.working_dir)
                self._client = AsyncCay(**self._access)
                self._box = self._client.attach(id)
            return self._box

    def close(self) -> None:
        """Removes the sandbox if it was made here; one that was given stays."""
        with self._lock:
            self._closed = True
            if self._box is not None and self._client is not None:
                with Cay(**self._access) as cay:
                    cay.attach(self._box.id).remove()
            self._box = None

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)
        if self._client is not None:
            await self._client.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def execute_streaming(self, command: str, *, timeout: float | None = None, cwd: str | None = None,
                          env: dict[str, str] | None = None, **kwargs: Any) -> Chunks:
        if len(command.encode()) <= LONGEST_ARGUMENT:
            return self._run(["sh", "-c", command], None, timeout, cwd, env)
        return self._run(["sh", "-c", EVAL_INPUT], command, timeout, cwd, env)

    async def execute_code_streaming(self, code: str, language: str, *, timeout: float | None = None,
                                     cwd: str | None = None, env: dict[str, str] | None = None,
                                     **kwargs: Any) -> Chunks:
        if not LANGUAGE_PATTERN.fullmatch(language):
            raise ValueError(f"language parameter contains invalid characters: {language}")
        # By a shell, which tells of a missing interpreter as of any other command: 127.
        argv = ["sh", "-c", '"$1"', "sh", language]
        async with aclosing(self._run(argv, code, timeout, cwd, env)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _run(self, argv: list[str], input: str | None, timeout: float | None, cwd: str | None,
                   env: dict[str, str] | None) -> Chunks:
        validate_env_keys(env or {})
        box = await self.box()
        process = await box.start(argv, env=env, cwd=self._resolve(cwd or "."), stdin=input is not None,
                                  timeout=None if timeout is None else min(timeout, LONGEST_TIMEOUT) + SPARE,
                                  kill_on_disconnect=True)
        feed = _Feed()
        text: dict[StreamType, list[str]] = {"stdout": [], "stderr": []}
        task = asyncio.create_task(_supervise(process, input, timeout, feed))
        task.add_done_callback(lambda _: feed.end())
        try:
            while (chunk := await feed.get()) is not None:
                text[chunk.stream_type].append(chunk.data)
                yield chunk
            exit = await task
            stdout, stderr = "".join(text["stdout"]), "".join(text["stderr"])
            if exit is None or exit.timed_out:
                raise SandboxTimeoutError(timeout, stdout, stderr)
            yield ExecutionResult(exit.exit_code, stdout, stderr + exit.note)
        finally:
            task.cancel()  # nothing, if it is done
            await protected(lambda: _end_of(task))

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        box = await self.box()
        try:
            return await box.files.read(self._resolve(path))
        except CayError as error:
            raise _os_error(error, path) from error

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        box = await self.box()
        try:
            await box.files.write(self._resolve(path), content)
        except CayError as error:
            raise _os_error(error, path) from error

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        box, full = await self.box(), self._resolve(path)
        try:
            if (await box.files.stat(full)).type == "directory":
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            await box.files.remove(full)
        except CayError as error:
            raise _os_error(error, path) from error

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        box, full = await self.box(), self._resolve(path)
        try:
            entries = await box.files.list(full)
        except CayError as error:
            if await _is_no_directory(box, full, error):
                raise SandboxPathNotFoundError(path) from error
            raise _os_error(error, path) from error
        return [await _file_info(box, entry) for entry in entries]

    def get_tools(self) -> list[AgentTool]:
        return [
            make_file_editor(sandbox=self, name="sandbox_file_editor",
                             description=f"{DEFAULT_FILE_EDITOR_DESCRIPTION} Files are in a cay sandbox."),
            make_shell(sandbox=self, name="sandbox_shell",
                       description=f"{SANDBOX_SHELL_DESCRIPTION} Runs in a cay sandbox. "
                                   f"Working directory: {self.working_dir}."),
        ]

    async def request(self, method: str, url: str, *, headers: dict[str, str] | None = None,
                      body: bytes | str | None = None, timeout: float | None = None, max_bytes: int | None = None,
                      **kwargs: Any) -> HttpResult:
        """An HTTP request from inside of the sandbox, by its python3: what it reaches is what its commands reach.

        4xx and 5xx are results. SandboxHttpError: there was no answer, or one of more than `max_bytes`.
        """
        _check_request(method, url, headers or {})
        content = body.encode() if isinstance(body, str) else body
        order = {"method": method.upper(), "url": url, "headers": headers or {}, "max_bytes": max_bytes,
                 "body": None if content is None else base64.b64encode(content).decode()}
        try:
            done = await self.execute_code(f"order = {json.dumps(json.dumps(order))}\n{REQUEST}", "python3",
                                           timeout=timeout)
        except SandboxTimeoutError as error:
            raise SandboxHttpError(f"request timed out after {timeout} seconds") from error
        if done.exit_code != 0:
            raise SandboxHttpError(done.stderr.strip().rpartition("\n")[2] or f"python3 ended with {done.exit_code}")
        answer = json.loads(done.stdout)
        return HttpResult(**{**answer, "body": base64.b64decode(answer["body"])})

    def _resolve(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.working_dir}/{path}"


def _create(cay: Cay, spec: Spec, working_dir: str) -> str:
    wishes: Spec = KEPT if "ttl" in spec or "idle" in spec else {**KEPT, **LIFE}
    with cay:
        box = cay._create_wishing(spec, wishes)
        try:
            box.files.mkdir(working_dir)
        except BaseException:
            box.remove()
            raise
        return box.id


class _Feed:
    """Chunks on their way to a consumer that may be slow: only so many wait for it."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[StreamChunk | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(WAITING)

    async def put(self, text: str, stream: StreamType) -> None:
        if text:
            await self._room.acquire()
            self._chunks.put_nowait(StreamChunk(text, stream))

    def end(self) -> None:
        self._chunks.put_nowait(None)

    async def get(self) -> StreamChunk | None:
        chunk = await self._chunks.get()
        self._room.release()
        return chunk


async def _supervise(process: AsyncProcess, input: str | None, timeout: float | None, feed: _Feed) -> Exit | None:
    """Sees a process to its end, which it returns; None if its time was up. Afterwards nothing of it runs."""
    work = asyncio.gather(_read_all(process, feed), _write_all(process, input))
    try:
        done, _ = await asyncio.wait([work], timeout=timeout)
        if done:
            return (await work)[0]
        await process.signal("TERM", tree=True)
        await asyncio.wait([work], timeout=GRACE)
        await process.kill()  # also what the command started and left behind
        await work
        return None
    except BaseException:
        with suppress(CayError):  # the first error says more
            await protected(process.kill)
        raise
    finally:
        work.cancel()
        await _end_of(work)


async def _end_of(work: asyncio.Future[Any]) -> None:
    """Waits for it. An error of it that nobody was there to see is not one that asyncio should complain of."""
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


async def _read_all(process: AsyncProcess, feed: _Feed) -> Exit:
    new_decoder = codecs.getincrementaldecoder("utf-8")  # holds back a character until it is complete
    decoders = {"stdout": new_decoder("replace"), "stderr": new_decoder("replace")}
    async with aclosing(process.output(stall=STALL)) as outputs:
        async for output in outputs:
            await feed.put(decoders[output.stream].decode(output.data), output.stream)
    await feed.put(decoders["stdout"].decode(b"", final=True), "stdout")
    await feed.put(decoders["stderr"].decode(b"", final=True), "stderr")
    return await process.wait()


async def _write_all(process: AsyncProcess, input: str | None) -> None:
    if input is not None:
        await process.write_all(input.encode())


def _os_error(error: CayError, path: str) -> OSError:
    """As Python's own functions tell it. Only errors about a path carry an errno: a lost sandbox is no lost file."""
    number = error.detail.get("errno") or ERRNO.get(error.code, errno.EIO)
    return OSError(number, error.message, path)  # of the subclass that belongs to the number


ERRNO = {"invalid": errno.EINVAL, "denied": errno.EACCES, "no_space": errno.ENOSPC}


async def _is_no_directory(box: AsyncSandbox, path: str, error: CayError) -> bool:
    if is_missing(error):
        return True
    if not isinstance(error, Invalid):
        return False
    try:
        return (await box.files.stat(path, follow=True)).type != "directory"
    except CayError as other:
        return is_missing(other)


async def _file_info(box: AsyncSandbox, entry: Entry) -> FileInfo:
    """A link is told as what it leads to, and as unknown where it leads nowhere."""
    if entry.type == "link":
        try:
            target = await box.files.stat(entry.path, follow=True)
        except CayError:
            return FileInfo(entry.name)
        return FileInfo(entry.name, target.type == "directory", target.size)
    return FileInfo(entry.name, entry.type == "directory", entry.size)


def _check_request(method: str, url: str, headers: dict[str, str]) -> None:
    if method.upper() not in METHODS:
        raise SandboxHttpError(f"unsupported HTTP method '{method}'")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not URL_PATTERN.fullmatch(url):
        raise SandboxHttpError(f"'{url}' is not an http(s) URL of RFC 3986")
    for name, value in headers.items():
        if not HEADER_PATTERN.fullmatch(name) or re.search(r"[\r\n\0]", value):
            raise SandboxHttpError(f"invalid header '{name}'")


METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
URL_PATTERN = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
HEADER_PATTERN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Runs in the sandbox, behind a line that sets `order`. What goes wrong ends it with its last line on stderr.
REQUEST = """
import base64, http.client, json, sys, urllib.error, urllib.request
order = json.loads(order)
body = None if order["body"] is None else base64.b64decode(order["body"])
request = urllib.request.Request(order["url"], body, order["headers"], method=order["method"])
limit = order["max_bytes"]
try:
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        answer = error
    content = answer.read(-1 if limit is None else limit + 1)
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"request failed: {error}")
if limit is not None and len(content) > limit:
    sys.exit(f"response body exceeded max_bytes ({limit})")
headers = {}
for name, value in answer.headers.items():
    name = name.lower()
    headers[name] = headers[name] + "\\n" + value if name in headers else value
print(json.dumps({"status": answer.status, "status_text": answer.reason or "", "resolved_url": answer.geturl(),
                  "headers": headers, "body": base64.b64encode(content).decode()}))
"""
