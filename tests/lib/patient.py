# SPDX-License-Identifier: Apache-2.0
"""Clients that get a command's whole result from one daemon to the next, with nothing but HTTP and a key.

    whole(daemon, box, {"shell": "sleep 5; echo hi"})["stdout"]      # POST exec, again until it is answered
    followed(daemon, box, {"shell": "sleep 5; echo hi"}).stdout      # POST processes?follow=true, from where it was cut
"""
import contextlib
import http.client
import struct
import threading
import time
import typing
import uuid

from lib.daemon import FRAMES

PAUSE = 0.02
LOST = (OSError, http.client.HTTPException, ValueError)


class Followed(typing.NamedTuple):
    stdout: bytes
    stderr: bytes
    exit: dict
    cuts: int  # how often the connection was lost


def _refused(answer):
    """A daemon that is not there yet, or ends, says so; anything else is an answer."""
    return answer.status == 503 and answer.code == "unavailable"


def whole(daemon, box, body, seconds=60.0, token=None):
    """The answer of POST exec."""
    body = {"key": str(uuid.uuid4()), **body}
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(*LOST):
            answer = daemon.post(f"/sandboxes/{box}/exec", body, timeout=seconds, token=token)
            if not _refused(answer):
                assert answer.status == 200, answer
                return answer.body
        assert time.monotonic() < deadline, "no answer"
        time.sleep(PAUSE)


def _take(stream, got):
    """Reads frames into `got` until the exit, which is returned, or the end of the connection (None)."""
    for kind, offset, payload in stream.frames():
        if kind in (1, 2):
            assert offset == got["offset"], (offset, got["offset"])
            got[kind] += payload
            got["offset"] += len(payload)
        elif kind == 3:
            return payload["exit"]
        else:
            assert payload["error"]["code"] == "unavailable", payload
            return None
    return None


def _feed(daemon, box, pid, data, token):
    """All of its input, whatever of it is there already; one that reads no input is none of our business."""
    with contextlib.suppress(*LOST):
        answer = daemon.request("POST", f"/sandboxes/{box}/processes/{pid}/stdin?offset=0&eof=true", body=data, token=token)
        assert answer.status in (204, 409, 410, 503), answer


def followed(daemon, box, body, seconds=60.0, token=None, input=None):
    """input: its whole standard input (with "stdin": true in the body), sent anew after each cut."""
    body = {"key": str(uuid.uuid4()), **body}
    got, cuts, deadline = {1: b"", 2: b"", "offset": 0}, -1, time.monotonic() + seconds
    while True:
        assert time.monotonic() < deadline, "no end"
        cuts += 1
        with contextlib.suppress(*LOST, struct.error):
            path = f"/sandboxes/{box}/processes?follow=true&from={got['offset']}"
            with daemon.stream(path, method="POST", json=body, accept=FRAMES, token=token, timeout=seconds) as stream:
                if stream.status == 200:
                    if input is not None:
                        pid = stream.headers["X-Cay-Pid"]
                        threading.Thread(target=_feed, args=(daemon, box, pid, input, token), daemon=True).start()
                    end = _take(stream, got)
                    if end:
                        assert end.get("reason") is None, end
                        return Followed(got[1], got[2], end, cuts)
                else:
                    assert stream.status == 503, (stream.status, stream.read())
        time.sleep(PAUSE)
