# SPDX-License-Identifier: Apache-2.0
"""cay-mcp: a sandbox for any client of the Model Context Protocol, by one line of its configuration.

    {"mcpServers": {"sandbox": {"command": "cay-mcp"}}}

A server has one sandbox. It is made when a tool is called for the first time, and removed when the client goes or the
server gets a signal. While the server lives it keeps the sandbox from being idle; if it is killed, the sandbox ends by
itself. Standard output belongs to the protocol: everything else is said on standard error.
"""

from __future__ import annotations

import argparse
import codecs
import logging
import os
import posixpath
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, NamedTuple

import anyio

import cay

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
    from pydantic import Field
    from typing_extensions import TypedDict
except ImportError as error:
    raise ImportError("cay-mcp needs the package mcp, 2.1 or newer: pip install 'mcp>=2.1'") from error

_log = logging.getLogger("cay-mcp")

# What a result may hold: a model reads all of it.
OUTPUT_CHARACTERS = 30_000  # of each of stdout and stderr, and of a file
ENTRIES = 1000  # of a directory
MATCHES = 200
MATCH_CHARACTERS = 500
IDLE = 600.0
DAY = 86_400.0  # how long a sandbox in which something runs may outlive a server that was killed

INSTRUCTIONS = """\
These are tools of one Linux sandbox with bash, python3 and the usual programs. It is apart from the user's machine \
and has no network. Files and background processes stay from call to call. Relative paths are below the directory in \
which commands run. Everything is gone when the session ends."""

RUN = """\
Run a command in the sandbox and wait for its end. Returns what it printed, and its exit code if that is not 0 (124: \
it took too long and was killed). Standard input is empty. For a server or another long-lived process, end the command \
with & and redirect its output to a file."""

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)


class Options(argparse.Namespace):
    host: str | None
    token_file: Path | None
    id: str | None
    image: str | None
    user: str | None
    memory: str | None
    cpus: float | None
    ttl: float | None
    idle: float | None


class RunResult(TypedDict):
    """How the command ended and what it printed, for programs; models read the text of it."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class Place(NamedTuple):
    sandbox: cay.AsyncSandbox
    cwd: str
    home: str

    def path(self, path: str) -> str:
        """As a shell in the working directory would take it."""
        if path in ("", "."):
            return self.cwd
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return posixpath.join(self.cwd, path)


# -- the sandbox


class Box:
    """The sandbox of this server."""

    def __init__(self, client: cay.AsyncCay, options: Options) -> None:
        self._client, self._options = client, options
        self._lock = anyio.Lock()
        self._made = anyio.Event()
        self._bounds: dict[str, float] = {}  # of the sandbox that was made, which `keep` renews
        self._place: Place | None = None
        self._closed = False

    async def __aenter__(self) -> Box:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Place]:
        """The sandbox, made if there is none. Errors of cay become errors of the tool that uses it."""
        place = None
        try:
            place = await self._open()
            yield place
        except cay.CayError as error:
            raise ToolError(await self._told(error, place)) from error

    async def close(self) -> None:
        """Removes what was made here. What is only attached stays."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                self._closed = True
                place, self._place = self._place, None
                if place is None or self._options.id:
                    return
                try:
                    await place.sandbox.remove()
                    _log.info("sandbox %s is removed", place.sandbox.id)
                except cay.CayError as error:
                    _log.warning("sandbox %s is left to end by itself: %s", place.sandbox.id, error)

    async def keep(self) -> None:
        """For as long as this server lives: the sandbox is not idle, and its end, unless the user set it, not near."""
        await self._made.wait()
        while True:
            await anyio.sleep(min([DAY, *(bound for bound in self._bounds.values() if bound)]) / 3)
            if self._place is not None:
                sandbox = self._place.sandbox
                try:
                    await sandbox.extend(**self._bounds)
                except cay.CayError as error:
                    _log.warning("cannot keep sandbox %s: %s", sandbox.id, error)

    async def _open(self) -> Place:
        async with self._lock:
            if self._closed:
                raise ToolError("this server is about to end")
            if self._place is None:
                self._place = await self._attach(self._options.id) if self._options.id else await self._create()
            return self._place

    async def _told(self, error: cay.CayError, place: Place | None) -> str:
        """What the model is told, with what there is to be done about it."""
        if isinstance(error, cay.Unavailable) and error.__cause__ is not None:
            return f"{error}. Start cayd there, or name another with --host or CAY_HOST."
        if place is None or self._options.id or not _has_ended(error, place):
            return str(error)
        async with self._lock:
            if self._place is place:  # else another call was here before
                self._place = None
                with suppress(cay.CayError):  # only its record is left
                    await place.sandbox.remove()
        return f"{error}. All that was in it is lost; the next call gets a new sandbox."

    async def _create(self) -> Place:
        o = self._options
        sandbox = await self._client._create_wishing(
            {"image": o.image, "user": o.user, "memory": o.memory, "cpus": o.cpus, "ttl": o.ttl, "idle": o.idle,
             "labels": {"created-by": "cay-mcp"}}, {"idle": IDLE, "ttl": DAY})
        _log.info("sandbox %s is made", sandbox.id)
        try:
            place, spec = await self._place_of(sandbox), await sandbox.spec()
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(cay.CayError):  # the first error says more
                await sandbox.remove()
            raise
        self._bounds = {"idle": spec["idle_ms"] / 1000} | ({"ttl": spec["ttl_ms"] / 1000} if o.ttl is None else {})
        self._made.set()
        return place

    async def _attach(self, id: str) -> Place:
        return await self._place_of(await self._client.get(id))

    async def _place_of(self, sandbox: cay.AsyncSandbox) -> Place:
        """Where its commands run depends on image and user: it is asked."""
        done = await sandbox.exec('pwd && echo "$HOME"')
        if not done.ok:
            raise ToolError(f"sandbox {sandbox.id} runs no shell: {done.stderr.strip()}")
        cwd, home, *_ = done.stdout.split("\n")
        return Place(sandbox, cwd, home)


def _has_ended(error: cay.CayError, place: Place) -> bool:
    """Gone, or removed: then it is not a file that was not found."""
    return isinstance(error, cay.Gone) or (isinstance(error, cay.NotFound) and f"'{place.sandbox.id}'" in str(error))


# -- the tools


def build(box: Box) -> MCPServer[None]:
    """The server with its tools."""
    server: MCPServer[None] = MCPServer("cay", title="cay sandbox", version=cay.__version__, instructions=INSTRUCTIONS,
                                        log_level="WARNING")

    @server.tool(annotations=RUNS, description=RUN)
    async def run(
        command: Annotated[str, Field(min_length=1, description="A bash command line, or a script of many lines.")],
        cwd: Annotated[str, Field(description="Working directory, if another than the usual one.")] = "",
        timeout: Annotated[float, Field(gt=0, le=DAY, description="Seconds after which it is killed.")] = 120,
        env: Annotated[dict[str, str] | None, Field(description="Variables to add to its environment.")] = None,
    ) -> Annotated[CallToolResult, RunResult]:
        async with box.use() as place:
            done = await place.sandbox.exec(command, cwd=place.path(cwd), timeout=timeout, env=env)
        return _run_result(done, timeout)

    @server.tool(annotations=WRITES, structured_output=False)
    async def write(
        path: Annotated[str, Field(min_length=1, description="Where to write; missing directories are made.")],
        content: Annotated[str, Field(description="The whole new text of the file.")],
    ) -> str:
        """Write a text file in the sandbox. A file that is there is replaced."""
        data = content.encode()
        async with box.use() as place:
            await place.sandbox.files.write(place.path(path), data)
        return f"{len(data)} bytes written to {place.path(path)}"

    @server.tool(annotations=READS, structured_output=False)
    async def read(
        path: Annotated[str, Field(min_length=1, description="The file.")],
        start_line: Annotated[int, Field(ge=1, description="The first line wanted.")] = 1,
        end_line: Annotated[int | None, Field(ge=1, description="The last line wanted. Default: the end.")] = None,
    ) -> str:
        """Read a text file in the sandbox, or some lines of it. Long files come in parts, with a note how to go on."""
        async with box.use() as place:
            return await _read(place.sandbox.files, place.path(path), start_line, end_line)

    @server.tool(name="list", annotations=READS, structured_output=False)
    async def list_(
        path: Annotated[str, Field(description="The directory. Default: the working directory.")] = ".",
        depth: Annotated[int, Field(ge=1, le=512, description="How many levels to go down.")] = 1,
    ) -> str:
        """List a directory in the sandbox: a line for each entry, with / behind directories and the size of files."""
        async with box.use() as place:
            above = place.path(path)
            found = await place.sandbox.files.list(above, depth=depth, limit=ENTRIES + 1)
        lines = [_entry(info, above) for info in found[:ENTRIES]]
        more = ["[more than these; list a directory below]"] if len(found) > ENTRIES else []
        return _joined(lines + more) or f"{above} is empty"

    @server.tool(annotations=READS, structured_output=False)
    async def search(
        pattern: Annotated[str, Field(min_length=1, description="A POSIX extended regular expression.")],
        path: Annotated[str, Field(description="A file, or a directory to go through.")] = ".",
        glob: Annotated[str, Field(description='Only files such as "*.py" or "src/**/*.c". Default: all.')] = "",
    ) -> str:
        """Search the text of files in the sandbox. Returns lines of the form path:line:text."""
        async with box.use() as place:
            found = await place.sandbox.files.grep(place.path(path), pattern, glob=glob or None, limit=MATCHES + 1)
        lines = [f"{one.path}:{one.line}:{_cut(one.text, MATCH_CHARACTERS)}" for one in found[:MATCHES]]
        more = ["[more than these; narrow the search]"] if len(found) > MATCHES else []
        return _joined(lines + more) or "nothing found"

    return server


def _run_result(done: cay.ExecResult, timeout: float) -> CallToolResult:
    stdout, stderr = _cut(done.stdout), _cut(done.stderr)
    notes = []
    if done.oom:
        notes.append("[killed: the sandbox was out of memory]")
    if done.note:
        notes.append(done.note.strip())
    if done.timed_out:
        notes.append(f"[killed after {timeout:g} seconds; exit code {done.exit_code}]")
    elif done.exit_code:
        notes.append(f"[exit code {done.exit_code}]")
    parts = [stdout, f"[stderr]\n{stderr}" if stderr else "", *notes]
    text = "\n".join(part.removesuffix("\n") for part in parts if part) or "[no output]"
    structured = RunResult(exit_code=done.exit_code, stdout=stdout, stderr=stderr, timed_out=done.timed_out)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(structured))


def _cut(text: str, most: int = OUTPUT_CHARACTERS) -> str:
    """Leaves out the middle of what is too long: the beginning and the end tell most."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _joined(lines: list[str]) -> str:
    """Names and lines that are not UTF-8 come as surrogates, which JSON cannot carry."""
    return "\n".join(lines).encode("utf-8", "replace").decode()


def _entry(info: cay.FileInfo, above: str) -> str:
    name = posixpath.relpath(info.path, above)
    if info.is_dir:
        return name + "/"
    if info.type == "link":
        return f"{name} -> {info.target}"
    return f"{name}  {info.size}" if info.is_file else f"{name}  ({info.type})"


async def _read(files: cay.AsyncFiles, path: str, first: int, last: int | None) -> str:
    """Lines first to last, in constant memory: a file may be larger than this machine's memory."""
    if last is not None and last < first:
        raise ToolError(f"end_line {last} is before start_line {first}")
    text, whole, line = "", 0, 1  # what is taken, how much of it is whole lines, the line that comes next
    async with aclosing(_pieces(files, path)) as pieces:
        async for piece in pieces:
            if last is not None and line > last:
                break
            if line >= first:
                text += piece
            if len(text) > OUTPUT_CHARACTERS:
                if whole:
                    return text[:whole] + f"[cut; go on with start_line={line}]"
                return text[:OUTPUT_CHARACTERS] + f"\n[line {line} goes on; see more of it with run]"
            if piece.endswith("\n"):
                line, whole = line + 1, len(text)
    if not text and first > 1:
        raise ToolError(f"{path} has fewer than {first} lines")
    return text


async def _pieces(files: cay.AsyncFiles, path: str) -> AsyncGenerator[str, None]:
    """The text of a file, cut behind each newline, and where a line is too long to be kept."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        async with aclosing(files.stream(path)) as chunks:
            async for chunk in chunks:
                for piece in re.findall("[^\n]*\n|[^\n]+", decoder.decode(chunk)):
                    yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not text (UTF-8); use run to look at it") from error


# -- the program


async def serve(options: Options) -> None:
    """Serves one client on standard input and output until it goes."""
    token = options.token_file.read_text().strip() if options.token_file else None
    async with cay.AsyncCay(options.host, token=token) as client, Box(client, options) as box:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.keep)
            tasks.start_soon(_end_at_signal, box)
            await build(box).run_stdio_async()
            tasks.cancel_scope.cancel()


async def _end_at_signal(box: Box) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            await box.close()
            # A thread of the transport sits in a read of standard input, which nothing but its end ends.
            os._exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """The program cay-mcp; the exit code."""
    parser = _parser()
    options = parser.parse_args(argv, Options())
    others = [name for name in ("image", "user", "memory", "cpus", "ttl", "idle") if getattr(options, name) is not None]
    if options.id and others:
        parser.error(f"--id takes a sandbox as it is: without --{others[0]}")
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    _log.setLevel(logging.INFO)
    try:
        anyio.run(serve, options)
    except (cay.CayError, OSError) as error:
        print(f"cay-mcp: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cay-mcp", description="MCP server on standard input and output: the tools run, write, read, list and "
        "search of one sandbox, which is made at the first call and removed when the client goes.")
    option = parser.add_argument
    option("--host", metavar="HOST", help="cayd: unix:/path, http://host:port, https://host; default: $CAY_HOST, "
           "else unix:/run/cay/cayd.sock")
    option("--token-file", metavar="FILE", type=Path,
           help="holds the token; default: $CAY_TOKEN, else what is in $CAY_TOKEN_FILE")
    option("--id", metavar="ID", help="use this sandbox, which exists, and leave it there at the end")
    option("--image", metavar="IMAGE", help="of a new sandbox; default: what cayd has as its default")
    option("--user", metavar="USER", help="whom commands run as; default: root of the sandbox")
    option("--memory", metavar="SIZE", help="of a new sandbox: 512M, 2G")
    option("--cpus", metavar="N", type=float, help="of a new sandbox: 0.5, 2")
    option("--ttl", metavar="TIME", type=_seconds,
           help="it ends after this long: 90, 15m, 8h; default: when the client goes")
    option("--idle", metavar="TIME", type=_seconds,
           help="it ends this long after a server that was killed; default: 10m")
    option("--version", action="version", version=f"cay-mcp {cay.__version__}")
    return parser


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d|)", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no time; use 90, 15m, 8h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


if __name__ == "__main__":
    sys.exit(main())
