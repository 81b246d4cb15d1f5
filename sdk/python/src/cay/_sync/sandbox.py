# SPDX-License-Identifier: Apache-2.0
# Generated from _async/sandbox.py by tools/unasync.py: do not edit.
"""One sandbox: its commands, files, life and figures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from types import TracebackType
from typing import Any

from .._errors import CayError, Invalid, NotFound, TooLarge, Unsupported
from .._models import NONE, ExecBytes, ExecResult, Exit, ProcessInfo, SandboxInfo, Stats, member
from .._policy import NetworkPolicy, require_deny_all
from .._requests import Command, Duration, command_body, input_bytes, last_lines, new_key, sandbox_path
from ._http import Answer, Http
from ._runtime import protected, settle
from .files import Files
from .process import Process, find_started
from .run import Run

# A result is in memory, all of it.
MAX_OUTPUT = 256 << 20


class Sandbox:
    """`with sandbox:` removes it at the end of the block.

    info   what was known when this object was made; None after `attach`. See `refresh`.
    files  its files
    """

    def __init__(self, http: Http, id: str, info: SandboxInfo | None = None) -> None:
        self.id = id
        self.info = info
        self._http = http
        self._path = sandbox_path(id)
        self.files = Files(http, self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        try:
            protected(self.remove)
        except CayError:
            if error is None:  # else the body's own exception is what counts
                raise

    def refresh(self) -> SandboxInfo:
        """Asks again; also sets `info`."""
        self.info = SandboxInfo.from_json(self._http.get(self._path))
        return self.info

    # -- commands

    def exec(
        self, command: Command, *, env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None =
        None, timeout: Duration | None = None, input: str | bytes | None = None, max_output: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Runs a command to its end: a text is run by a shell, a sequence is a program and its arguments.

        An exit code other than 0 is a result and not an error; 124 and `timed_out` if it took longer than `timeout`.
        If this is cancelled, the command and all that it started are killed; also, some seconds later, if this
        program dies. A daemon that is restarted meanwhile does not matter.

        The result is whole, or there is none. TooLarge: it wrote more than `max_output` bytes, and was killed;
        OutputLost: some of its output was lost while the daemon was away.
        """
        body = command_body(command, env, cwd, user, timeout)
        return ExecResult.made(*self._exec(body, input, max_output))

    def exec_bytes(
        self, command: Command, *, env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None =
        None, timeout: Duration | None = None, input: str | bytes | None = None, max_output: int = MAX_OUTPUT,
    ) -> ExecBytes:
        """As `exec`, with the output as bytes."""
        body = command_body(command, env, cwd, user, timeout)
        return ExecBytes.made(*self._exec(body, input, max_output))

    def start(
        self, command: Command, *, env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None =
        None, timeout: Duration | None = None, stdin: bool = False, pty: bool = False, rows: int | None = None, cols:
        int | None = None, kill_on_disconnect: bool = False, hold: bool = True,
    ) -> Process:
        """Starts a process that lives on without its caller. `stdin`: its standard input stays open for `write`.

        `kill_on_disconnect`: it is killed when for 10 seconds nobody has followed its output or waited for its end.
        `hold`: it does not write much before somebody follows or waits, for 10 seconds at most.
        """
        body = {**command_body(command, env, cwd, user, timeout), "key": new_key()}
        flags = {"stdin": stdin, "pty": pty, "kill_on_disconnect": kill_on_disconnect,
                 "hold": hold}
        body |= {name: True for name, wanted in flags.items() if wanted}
        body |= {name: size for name, size in (("rows", rows), ("cols", cols)) if size is not None}

        def post() -> Answer:
            return self._http.send("POST", self._path + "/processes", json=body, repeat=True)

        def only_find() -> None:
            body["known"] = True

        def undo(made: Answer | None) -> None:
            if made is None:  # by its key it is found, and not started again
                process = find_started(self._http, self._path, body)
            else:
                process = self.process(member(made.json(), "pid", int))
            process.kill()

        made = settle(post, undo, only_find)
        return self.process(member(made.json(), "pid", int))

    def process(self, pid: int) -> Process:
        """A process by its number, without asking whether there is one."""
        return Process(self._http, self._path, pid)

    def processes(self) -> list[ProcessInfo]:
        """All that were started and are remembered, running and ended."""
        answer = self._http.get(self._path + "/processes")
        return [ProcessInfo.from_json(one) for one in member(answer, "processes", list)]

    def _exec(
        self, body: dict[str, Any], input: str | bytes | None, max_output: int,
    ) -> tuple[Exit, bytes, bytes]:
        run = Run(self._http, self._path, body, input_bytes(input))
        written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        with closing(run.output()) as outputs:
            for output in outputs:
                if output.end > max_output:
                    raise TooLarge(f"the command wrote more than {max_output} bytes: start it and read its output")
                written[output.stream].append(output.data)
        assert run.exit is not None
        return run.exit, b"".join(written["stdout"]), b"".join(written["stderr"])

    # -- life

    def pause(self) -> None:
        """Freezes all of its processes."""
        self._http.send("POST", self._path + "/pause")

    def resume(self) -> None:
        """Lets its processes run again."""
        self._http.send("POST", self._path + "/resume")

    def stop(self, grace: Duration | None = None) -> None:
        """Ends its processes with SIGTERM, after `grace` (10 s) with SIGKILL; its record stays."""
        body = {} if grace is None else {"grace": grace}
        self._http.send("POST", self._path + "/stop", json=body, takes=None)

    def kill(self) -> None:
        """Ends all of its processes at once; its record stays."""
        self._http.send("POST", self._path + "/kill")

    def remove(self) -> None:
        """Ends it and deletes all that it holds. No error if it is gone already."""
        try:
            self._http.send("DELETE", self._path, repeat=True)
        except NotFound:
            pass

    def extend(self, *, ttl: Duration | None = None, idle: Duration | None = None) -> SandboxInfo:
        """Changes how long it may live, counted from now; 0: for ever. What is not given stays as it is."""
        body = {name: value for name, value in (("ttl", ttl), ("idle", idle)) if value is not None}
        answer = self._http.send("PATCH", self._path, json=body, repeat=True)
        self.info = SandboxInfo.from_json(answer.json())
        return self.info

    # -- figures

    def stats(self) -> Stats:
        """What it uses now, and its limits."""
        return Stats.from_json(self._http.get(self._path + "/stats"))

    def spec(self) -> dict[str, Any]:
        """What it was made from, with the defaults filled in."""
        return self._http.get(self._path + "/spec")

    def logs(self, *, tail: int | None = None) -> str:
        """The output of all its processes, merged; with `tail` the last lines of it."""
        if tail is not None and tail < 0:
            raise Invalid(f"tail is {tail}, less than 0", {"field": "tail"})
        answer = self._http.send("GET", self._path + "/logs", repeat=True, most=None,
                                       headers={"accept": "text/plain"})
        text = answer.content.decode("utf-8", "replace")
        return text if tail is None else last_lines(text, tail)

    def aio_url(self) -> str:
        """Where this sandbox speaks the protocol of the AIO sandbox: an address that is the right to use it."""
        answer = self._http.get(self._path + "/aio")
        if self._http.base is not None:
            return self._http.base + str(member(answer, "path", str))
        url = member(answer, "url", str, NONE)
        if url is None:
            raise Unsupported("cayd listens on no TCP address: add 'tcp = 127.0.0.1:7733' to cayd.conf")
        return str(url)

    # -- what later versions do

    def set_network(self, policy: NetworkPolicy) -> None:
        """"deny-all" is in force, always. Unsupported: other policies. Invalid: what is no policy."""
        require_deny_all(policy)
        self.refresh()

    def snapshot(self, name: str) -> None:
        """Unsupported in this version."""
        if not name:
            raise Invalid("a snapshot has a name", {"field": "name"})
        raise Unsupported("snapshots are not part of this version")

    def fork(self, n: int = 1) -> list[Sandbox]:
        """Unsupported in this version."""
        if n < 1:
            raise Invalid(f"{n} is no number of sandboxes", {"field": "n"})
        raise Unsupported("forks are not part of this version")

    def publish(self, port: int) -> str:
        """Unsupported in this version."""
        if not 1 <= port <= 65535:
            raise Invalid(f"{port} is no port", {"field": "port"})
        raise Unsupported("published ports are not part of this version")
