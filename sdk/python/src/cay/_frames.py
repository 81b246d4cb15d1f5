# SPDX-License-Identifier: Apache-2.0
"""Parsers of cayd's streams: bytes in, events out, no I/O, no more memory than one event.

application/vnd.cay.frames: u8 kind, three zero bytes, u32 length, u64 offset (big-endian), then `length` bytes.
application/x-ndjson: one JSON object on each line.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ._errors import Internal, OutputLost, from_body, unexpected
from ._models import Exit, Output, member

STDOUT, STDERR, EXIT, END, ERROR, GAP = 1, 2, 3, 4, 5, 6
STREAMS: dict[int, Literal["stdout", "stderr"]] = {STDOUT: "stdout", STDERR: "stderr"}
# What is longer was not sent by cayd, which sends what it reads in pieces of far less.
MAX_FRAME = 16 << 20
MAX_LINE = 16 << 20

_HEAD = struct.Struct(">B3sIQ")


class Frame(NamedTuple):
    kind: int
    offset: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The event of a frame from EXIT on."""
        return parse_object(self.payload)


class FrameParser:
    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Internal: this is no stream of frames."""
        if self._rest:
            self._rest += data
            data = bytes(self._rest)
        frames, at = [], 0
        while len(data) - at >= _HEAD.size:
            kind, zeros, length, offset = _HEAD.unpack_from(data, at)
            if not STDOUT <= kind <= GAP or zeros != b"\0\0\0" or length > MAX_FRAME:
                raise Internal(f"not a frame of cayd: kind {kind}, {length} bytes")
            end = at + _HEAD.size + length
            if len(data) < end:
                break
            frames.append(Frame(kind, offset, data[at + _HEAD.size : end]))
            at = end
        self._rest = bytearray(data[at:])
        return frames


class Follower:
    """What a process wrote, over any number of connections: each byte once and in order, or an error that says so.

    at    the offset of the next byte; None: whatever comes first
    exit  how the process ended, when the stream has said it; `done`: nothing more comes
    """

    def __init__(self, since: int | None) -> None:
        self.at = since
        self.exit: Exit | None = None
        self.done = False
        self._parser = FrameParser()

    def connected(self) -> None:
        """What comes now is the beginning of another answer."""
        self._parser = FrameParser()

    def feed(self, data: bytes) -> Iterator[Output]:
        """What is complete now. OutputLost: some of it is missing. Else the error that the daemon tells."""
        for frame in self._parser.feed(data):
            if frame.kind in STREAMS:
                piece = self._piece(frame)
                if piece.data:
                    yield piece
            else:
                self._event(frame)

    def _piece(self, frame: Frame) -> Output:
        at = frame.offset if self.at is None else self.at
        self._expect(frame.offset)
        self.at = max(at, frame.offset + len(frame.payload))
        return Output(STREAMS[frame.kind], frame.payload[at - frame.offset:], at)

    def _event(self, frame: Frame) -> None:
        event = frame.json()
        if frame.kind == ERROR:
            raise from_body(event.get("error"))
        if frame.kind == GAP:
            raise lost(member(event, "from", int), member(event, "to", int), str(event.get("code")))
        self._expect(frame.offset)
        if frame.kind == EXIT:
            self.exit = Exit.from_json(member(event, "exit", dict))
        self.done = True

    def _expect(self, offset: int) -> None:
        if self.at is not None and offset > self.at:
            raise lost(self.at, offset)


CAUSES = {
    "limit": ": the process wrote more than the sandbox keeps",
    "no_space": ": the disk of the host is full, or fails",
}


def lost(start: int, end: int, code: str | None = None) -> OutputLost:
    """`code`: why, if the daemon says it."""
    what = f"{end - start} bytes of output were lost, from offset {start} on"
    return OutputLost(what + CAUSES.get(code or "", ""), {"from": start, "to": end})


class LineParser:
    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects whose lines are complete now. Internal: this is no stream of them."""
        self._rest += data
        if b"\n" not in data:
            lines = []
        else:
            *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise Internal(f"a line of more than {MAX_LINE} bytes")
        return [parse_object(line) for line in lines if line]


def parse_object(text: bytes | bytearray) -> dict[str, Any]:
    """An object of JSON. Internal: it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unexpected(f"not JSON: {bytes(text[:80])!r}") from error
    if not isinstance(value, dict):
        raise unexpected(f"not an object: {bytes(text[:80])!r}")
    return value
