# SPDX-License-Identifier: Apache-2.0
# Generated from _async/process.py by tools/unasync.py: do not edit.
"""One process in a sandbox: its output from any offset, its input, its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

from .._errors import Gone, NotFound, Timeout, Unavailable, from_body
from .._frames import END, ERROR, EXIT, STREAMS, Frame, FrameParser
from .._models import Exit, Output, ProcessInfo
from .._requests import query
from .._retry import Patience
from ._http import Http
from ._runtime import Content, Stream


class Process:
    """It lives on without this object; `sandbox.process(pid)` gives another one."""

    def __init__(self, http: Http, above: str, pid: int) -> None:
        self.pid = pid
        self._exit: Exit | None = None  # once it is known: it does not change
        self._http = http
        self._path = f"{above}/processes/{pid:d}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pid}>"

    def output(self, *, since: int = 0, follow: bool = True) -> Stream[Output]:
        """What it wrote from offset `since` on, piece by piece as it comes, to its end; without `follow`: so far.

        A lost connection is taken up again where it broke off, also if the daemon was restarted. What the sandbox no
        longer keeps is left out: the first `offset` is then larger than `since`. Gone: the sandbox ended first.
        """
        patience = Patience()
        while True:
            parser = FrameParser()
            path = f"{self._path}/output" + query(from_=since, follow=follow)
            try:
                with closing(self._http.chunks(path, "application/vnd.cay.frames")) as chunks:
                    for chunk in chunks:
                        patience.restart(bool(chunk))
                        for frame in parser.feed(chunk):
                            if self._is_last(frame):
                                return
                            stream = cast(Any, STREAMS[frame.kind])
                            since = frame.offset + len(frame.payload)
                            yield Output(stream, frame.payload, frame.offset)
                raise Unavailable(f"the output of process {self.pid} was cut off")
            except Unavailable as error:
                self._http.pause_after(error, patience)

    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended, when it has. Timeout: it still runs after `timeout` seconds; 0 only asks."""
        if self._exit is not None:
            return self._exit
        takes = None if timeout is None else max(0.0, timeout)
        deadline = None if takes is None else time.monotonic() + takes

        def body() -> Mapping[str, float]:
            return {} if deadline is None else {"timeout": max(0.0, deadline - time.monotonic())}

        answer = self._http.send("POST", self._path + "/wait", json=body, repeat=True, takes=takes)
        self._exit = Exit.from_json(answer.json())
        return self._exit

    def poll(self) -> Exit | None:
        """How it ended, or None if it runs."""
        try:
            return self.wait(0)
        except Timeout:
            return None

    def write(self, data: Content, *, eof: bool = False) -> None:
        """Writes to its standard input, as fast as it reads; `eof`: and closes it."""
        self._http.send("POST", f"{self._path}/stdin" + query(eof=eof), content=data, takes=None)

    def close_stdin(self) -> None:
        """The end of its standard input."""
        self.write(b"", eof=True)

    def signal(self, sig: int | str, *, tree: bool = False) -> None:
        """Sends a signal, "TERM" or 15; `tree`: also to all that it started. No error if it has ended."""
        self._http.send("POST", self._path + "/signal", json={"signal": sig, "tree": tree})

    def kill(self) -> None:
        """SIGKILL to it and to all that it started. No error if it has ended, or the sandbox has."""
        try:
            self._http.send("DELETE", self._path, repeat=True)
        except (Gone, NotFound):
            pass

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        self._http.send("POST", self._path + "/resize", json={"rows": rows, "cols": cols})

    def info(self) -> ProcessInfo:
        """Its command, whether it runs, which output is kept."""
        return ProcessInfo.from_json(self._http.get(self._path))

    def _is_last(self, frame: Frame) -> bool:
        if frame.kind == EXIT:
            self._exit = Exit.from_json(frame.json()["exit"])
        elif frame.kind == ERROR:
            raise from_body(frame.json()["error"])
        return frame.kind in (EXIT, END)
