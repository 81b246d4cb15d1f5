# SPDX-License-Identifier: Apache-2.0
"""What cayd tells, as frozen dataclasses. Members that this version does not know are ignored.

Names and paths that are not UTF-8 are decoded as Python's own file functions do (surrogateescape), and may be
passed back as they are where they go in a query; JSON has no place for them (mkdir, move, commands).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar

from ._errors import unexpected

M = TypeVar("M", bound="Model")


class Model:
    """A dataclass whose fields are members of a JSON object."""

    __slots__ = ()

    @classmethod
    def from_json(cls: type[M], data: Mapping[str, Any]) -> M:
        """Internal: it lacks a member, or has one of another type."""
        return cls(**_members(cls, data))


NONE = type(None)
# By their annotations. JSON gives no subclasses, and true is no number.
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "Mapping[str, str]": (dict,),
    "int | None": (int, NONE), "str | None": (str, NONE), "Exit | None": (dict, NONE),
}
_known: dict[type, list[tuple[str, tuple[type, ...], bool]]] = {}


def _members(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of its fields that are there; the others have a default."""
    if cls not in _known:
        _known[cls] = [(one.name, _KINDS[str(one.type)], one.default is MISSING) for one in fields(cls)]
    return {name: member(data, name, *kinds) for name, kinds, needed in _known[cls]
            if needed or name in data}


def member(data: object, name: str, *kinds: type) -> Any:
    """A member of an object of JSON. Internal: it is not there, or of another type."""
    if not isinstance(data, Mapping):
        raise unexpected(f"{type(data).__name__} in the place of an object")
    if name not in data or type(data[name]) not in kinds:
        raise unexpected(f"'{name}' is " + ("of a wrong type" if name in data else "missing"))
    return data[name]


@dataclass(frozen=True, slots=True)
class SandboxInfo(Model):
    id: str
    state: str  # creating, running, paused; or how it ended: exited, oom, ttl, idle, lost
    reason: str
    image: str
    created_ms: int
    ended_ms: int
    ttl_left_ms: int | None
    keeper_pid: int
    init_pid: int
    processes: int
    labels: Mapping[str, str]
    tenant: str | None = None

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("creating", "running", "paused")


@dataclass(frozen=True, slots=True)
class Exit(Model):
    """How a process ended."""

    pid: int
    exit_code: int  # as a shell tells it: 128 + signal, 124 on timeout, 126 and 127 if it could not be started
    signal: int
    timed_out: bool
    truncated: bool  # output was dropped, oldest first; never of a result, which is whole
    oom: bool  # killed with all it started, because the sandbox was out of memory
    duration_ms: float
    cpu_ms: float
    peak_memory: int
    reason: str | None = field(default=None, kw_only=True)  # why it did not end by itself, in words; None: it did

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def note(self) -> str:
        """For who reads the output: that it was ended from outside, and why. Empty if it was not, or timed out."""
        return f"\n[cay: the command was ended: {self.reason}]\n" if self.reason and not self.timed_out else ""


@dataclass(frozen=True, slots=True)
class ExecResult(Exit):
    """How a command ended and what it wrote. Bytes that are not UTF-8 are U+FFFD; see `exec_bytes`."""

    stdout: str
    stderr: str

    @classmethod
    def made(cls, exit: Exit, stdout: bytes, stderr: bytes) -> ExecResult:
        text, errors = stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
        return cls(**_whole(exit), stdout=text, stderr=errors)


@dataclass(frozen=True, slots=True)
class ExecBytes(Exit):
    """How a command ended and what it wrote, byte for byte."""

    stdout: bytes
    stderr: bytes

    @classmethod
    def made(cls, exit: Exit, stdout: bytes, stderr: bytes) -> ExecBytes:
        return cls(**_whole(exit), stdout=stdout, stderr=stderr)


def _whole(exit: Exit) -> dict[str, Any]:
    """Of a result. That the sandbox no longer keeps what was read is nothing that its reader misses."""
    return {**{one.name: getattr(exit, one.name) for one in fields(Exit)}, "truncated": False}


@dataclass(frozen=True, slots=True)
class ProcessInfo(Model):
    pid: int
    running: bool
    pty: bool
    command: str  # for people: shortened
    started_ms: int
    output_start: int  # offset of the first byte that is kept
    output_end: int
    exit: Exit | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessInfo:
        known = _members(cls, data)
        known["exit"] = None if known["exit"] is None else Exit.from_json(known["exit"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes that a process wrote. `offset` counts the bytes of both streams together."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    offset: int

    @property
    def end(self) -> int:
        """The offset behind it: `since` of a reader that has it."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Stats(Model):
    """Bytes, microseconds of CPU time, numbers."""

    id: str
    cpu_us: int
    cpu_user_us: int
    cpu_system_us: int
    memory: int
    memory_peak: int
    memory_max: int
    pids: int
    pids_max: int
    io_read: int
    io_write: int
    disk: int
    disk_max: int
    inodes: int
    inodes_max: int
    oom_kills: int
    output: int = 0  # kept for later readers, on the host's disk
    output_max: int = 0


@dataclass(frozen=True, slots=True)
class Event(Model):
    """Something that happened to a sandbox: created, paused, resumed, ended, removed."""

    seq: int
    time_ms: int
    type: str
    sandbox: str
    state: str | None
    reason: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, directory or link. `name` is the last part of `path`, which is absolute."""

    name: str
    path: str
    type: str  # file, directory, link, pipe, socket, char_device, block_device
    size: int
    mode: int  # permission bits
    mtime_ns: int
    uid: int
    gid: int
    inode: int
    links: int
    target: str | None = None  # of a link

    @property
    def is_file(self) -> bool:
        return self.type == "file"

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @classmethod
    def from_json(cls, data: Mapping[str, Any], above: str) -> FileInfo:
        """`above`: the path that was asked for, to which names are relative."""
        path = join(above, text_of(data, "name"))
        target = text_of(data, "target") if "target" in data or "target_base64" in data else None
        numbers = {key: member(data, key, int) for key in ("size", "mode", "mtime_ns", "uid", "gid", "inode", "links")}
        kind = member(data, "type", str)
        return cls(name=path.rpartition("/")[2] or "/", path=path, target=target, type=kind, **numbers)


@dataclass(frozen=True, slots=True)
class Match:
    """A line that `grep` found."""

    path: str  # absolute
    line: int  # the first is 1
    text: str  # without its newline, cut at 4 KiB

    @classmethod
    def from_json(cls, data: Mapping[str, Any], above: str) -> Match:
        return cls(join(above, text_of(data, "path")), member(data, "line", int), text_of(data, "text"))


@dataclass(frozen=True, slots=True)
class Change:
    """What `watch` saw: created, modified, deleted, renamed; overflow: events were lost, look at everything again."""

    kind: str
    path: str  # absolute

    @classmethod
    def from_json(cls, data: Mapping[str, Any], above: str) -> Change:
        return cls(member(data, "kind", str), join(above, text_of(data, "path")))


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the host inside of a sandbox, where the operator's rules allow it."""

    source: str
    target: str
    read_only: bool = False


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A member that has a twin in base64 where its bytes are not UTF-8."""
    if not isinstance(data, Mapping) or name + "_base64" not in data:
        return str(member(data, name, str))
    try:
        return base64.b64decode(member(data, name + "_base64", str)).decode("utf-8", "surrogateescape")
    except ValueError as error:
        raise unexpected(f"'{name}_base64' is no base64") from error


def join(above: str, name: str) -> str:
    if name.startswith("/") or name in ("", "."):
        return name if name.startswith("/") else above
    return above.rstrip("/") + "/" + name
