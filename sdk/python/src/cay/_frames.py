# SPDX-License-Identifier: Apache-2.0
"""Parsers of cayd's streams: bytes in, events out, no I/O, no more memory than one event.

application/vnd.cay.frames: u8 kind, three zero bytes, u32 length, u64 offset (big-endian), then `length` bytes.
application/x-ndjson: one JSON object on each line.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from ._errors import Internal

STDOUT, STDERR, EXIT, END, ERROR = 1, 2, 3, 4, 5
STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
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
        rest = self._rest
        rest += data
        frames, at = [], 0
        while len(rest) - at >= _HEAD.size:
            kind, zeros, length, offset = _HEAD.unpack_from(rest, at)
            if not STDOUT <= kind <= ERROR or zeros != b"\0\0\0" or length > MAX_FRAME:
                raise Internal(f"not a frame of cayd: kind {kind}, {length} bytes")
            end = at + _HEAD.size + length
            if len(rest) < end:
                break
            frames.append(Frame(kind, offset, bytes(rest[at + _HEAD.size : end])))
            at = end
        del rest[:at]
        return frames


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
    except ValueError as error:
        raise Internal(f"not JSON: {bytes(text[:80])!r}") from error
    if not isinstance(value, dict):
        raise Internal(f"not an object: {bytes(text[:80])!r}")
    return value
