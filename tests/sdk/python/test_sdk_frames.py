# SPDX-License-Identifier: Apache-2.0
"""The parsers of cayd's streams, without a daemon."""
import struct

import pytest
from cay import Internal
from cay import _frames as frames


def frame(kind, offset, payload):
    return struct.pack(">B3xIQ", kind, len(payload), offset) + payload


STREAM = [(1, 0, b"hello\n"), (2, 6, b"\xff\0"), (1, 8, b""), (3, 8, b'{"type": "exit", "exit": {"pid": 7}}')]
BYTES = b"".join(frame(*one) for one in STREAM)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 15, 16, 17, len(BYTES)])
def test_frames_in_pieces_of_any_size(size):
    """Frames come out the same, however the bytes are cut into chunks."""
    parser, found = frames.FrameParser(), []
    for at in range(0, len(BYTES), size):
        found += parser.feed(BYTES[at : at + size])
    assert found == STREAM
    assert found[-1].json()["exit"] == {"pid": 7}


def test_frames_cut_at_every_byte():
    """Two chunks, cut anywhere; a frame is given as soon as its last byte is there."""
    for at in range(len(BYTES) + 1):
        parser = frames.FrameParser()
        first, second = parser.feed(BYTES[:at]), parser.feed(BYTES[at:])
        assert first + second == STREAM
        complete = [one for n, one in enumerate(STREAM) if sum(16 + len(s[2]) for s in STREAM[: n + 1]) <= at]
        assert first == complete


@pytest.mark.parametrize("bad", [frame(0, 0, b""), frame(7, 0, b""), b"\1\0\0\1" + bytes(12),
                                 struct.pack(">B3xIQ", 1, frames.MAX_FRAME + 1, 0), b"HTTP/1.1 200 OK\r\n"])
def test_what_is_no_frame(bad):
    """A wrong kind, padding or length is an error at once: nothing is collected in memory."""
    with pytest.raises(Internal):
        frames.FrameParser().feed(bad)


@pytest.mark.parametrize("bad", [b"nonsense", b"[1]", b"\xff"])
def test_a_frame_with_wrong_json(bad):
    with pytest.raises(Internal):
        frames.FrameParser().feed(frame(3, 0, bad))[0].json()


LINES = '{"a": 1}\n{"b": "\u2028 é"}\n\n{"c": "x\\ny"}\n'.encode()


def test_lines_cut_at_every_byte():
    """Lines end at newlines only, not at what else Unicode counts as the end of one."""
    wanted = [{"a": 1}, {"b": "\u2028 é"}, {"c": "x\ny"}]
    for at in range(len(LINES) + 1):
        parser = frames.LineParser()
        assert parser.feed(LINES[:at]) + parser.feed(LINES[at:]) == wanted


def test_a_line_without_an_end(monkeypatch):
    """The memory for one line is bounded."""
    monkeypatch.setattr(frames, "MAX_LINE", 100)
    parser = frames.LineParser()
    with pytest.raises(Internal):
        for _ in range(20):
            parser.feed(b"x" * 10)


@pytest.mark.parametrize("bad", [b"nonsense\n", b"[1]\n", b"\xff\n"])
def test_lines_that_are_no_objects(bad):
    with pytest.raises(Internal):
        frames.LineParser().feed(bad)
