# SPDX-License-Identifier: Apache-2.0
"""OpenEnv's SandboxBackend, SandboxHandle and BgJob on cay.

    factory = OpenCodeSessionFactory(config=config, sandbox_backend=CaySandboxBackend())

OpenEnv's protocols are structural, so nothing of it is imported here. Commands are run by a login bash as the user
`user` in /home/user, which is where OpenEnv's harnesses expect to be. A sandbox ends with its `timeout_s`, whether or
not this process still lives. Errors are those of cay, which are RuntimeErrors.

Backend and handles may be used by many threads at once.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import posixpath
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import cay
from cay._errors import is_missing

_log = logging.getLogger(__name__)

# The homes that OpenEnv's protocols had so far. No release on the package index has one of them yet.
_PROTOCOL_MODULES = ("openenv.core.harness.sandbox.base", "opencode_env.sandbox.base")
_KILLED = 137
# As root: $2 and the directories above it that are missing are made, and belong to $1.
_MAKE = """set -e
[ ! -e "$2" ]
top=$2
while [ ! -d "${top%/*}/" ]; do top=${top%/*}; done
mkdir -p -- "${2%/*}/"
: > "$2"
chown -R -- "$1" "$top"
"""


@dataclass
class ExecResult:
    """How a command ended. The framework's own class takes its place where one is loaded."""

    exit_code: int
    stdout: str
    stderr: str


def _result_class() -> type[ExecResult]:
    for name in _PROTOCOL_MODULES:
        found: type[ExecResult] | None = getattr(sys.modules.get(name), "ExecResult", None)
        if found is not None:
            return found
    return ExecResult


class CayBgJob:
    """A process that runs in the background until it ends, is killed, or its sandbox is."""

    def __init__(self, process: cay.Process) -> None:
        self._process = process
        self._exit_code: int | None = None
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, 128 + n for a signal. TimeoutError if it still runs; 0 looks once."""
        if self._exit_code is None:
            try:
                self._exit_code = self._process.wait(timeout).exit_code
            except (cay.Gone, cay.NotFound):  # the sandbox went, and nobody knows how this ended
                if not self._killed:
                    raise
                self._exit_code = _KILLED
        return self._exit_code

    def kill(self) -> None:
        """Kills it and everything it started. Never raises."""
        self._killed = True
        try:
            self._process.kill()
        except (cay.Gone, cay.NotFound):
            pass  # nothing is left to be killed
        except Exception as error:  # a session that is being closed has no use for it
            _log.warning("process %d may still run: %s", self.pid, error)


class CaySandboxHandle:
    """One sandbox. Relative paths are below its home."""

    def __init__(self, sandbox: cay.Sandbox, home: str, user: str = "user") -> None:
        self._sandbox, self._home, self._user = sandbox, home, user
        self._result = _result_class()

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.id

    @property
    def raw(self) -> cay.Sandbox:
        """cay's own object, for what OpenEnv has no name for."""
        return self._sandbox

    def exec(
        self,
        cmd: str,
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = 60,
    ) -> ExecResult:
        """Runs a bash command to its end. On timeout: exit code 124, what was printed so far, a note in stderr."""
        if timeout is not None and not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds, or None for no limit: {timeout!r}")
        done = self._sandbox.exec(_bash(cmd), env=envs, cwd=self._cwd(cwd), timeout=timeout)
        stderr = done.stderr
        stderr += done.note
        if done.timed_out:
            stderr += f"\n[timed out after {timeout:g}s]"
        return self._result(done.exit_code, done.stdout, stderr)

    def start_bg(self, cmd: str, *, envs: Mapping[str, str] | None = None, cwd: str | None = None) -> CayBgJob:
        """Starts a bash command and returns at once. cayd reads its output, so it never blocks on a full pipe."""
        return CayBgJob(self._sandbox.start(_bash(cmd), env=envs, cwd=self._cwd(cwd), hold=False))

    def write_text(self, path: str, content: str) -> None:
        """Makes the directories above it. The file belongs to the user that commands run as.

        A new file may be anywhere, also where that user could not make one. One that is there has to be writable.
        """
        where, data = self._path(path), content.encode()
        try:
            self._sandbox.files.write(where, data)
        except cay.Denied:
            if not self._make(where) and not self._sandbox.exec(["test", "-w", where]).ok:
                raise
            self._sandbox.files.write(where, data, user="root")  # whom the file belongs to stays the same

    def read_text(self, path: str) -> str:
        """FileNotFoundError if there is none, UnicodeDecodeError if it is not UTF-8. Newlines stay as they are."""
        try:
            return self._sandbox.files.read(self._path(path)).decode()
        except cay.CayError as error:
            if not is_missing(error):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def exists(self, path: str) -> bool:
        """As `test -e`: links are followed, and what cannot be seen is not there. Never raises."""
        try:
            self._sandbox.files.stat(self._path(path), follow=True)
        except cay.CayError as error:
            if not is_missing(error):
                _log.warning("cannot tell whether %r exists: %s", path, error)
            return False
        return True

    def kill(self) -> None:
        """Removes the sandbox with all that runs in it. Never raises; its ttl removes what this could not."""
        try:
            self._sandbox.remove()
        except Exception as error:
            _log.warning("sandbox %s is left to its ttl: %s", self.sandbox_id, error)

    def _make(self, path: str) -> bool:
        """Makes an empty file of the user's, as root; False if there is something, or none can be."""
        owner = self._user if ":" in self._user else f"{self._user}:"  # with the group of that user
        return self._sandbox.exec(["sh", "-c", _MAKE, "sh", owner, path], user="root", cwd="/").ok

    def _path(self, path: str) -> str:
        return posixpath.join(self._home, path)

    def _cwd(self, cwd: str | None) -> str | None:
        return self._path(cwd) if cwd else None


class CaySandboxBackend:
    """Makes sandboxes. Without arguments: on the cayd that $CAY_HOST names, or on this machine's.

    client  a cay.Cay to use instead of host and token; the caller closes it
    image   default of `create`; it must have bash, `user` and `home`
    user    whom commands run as and files belong to; `home` is its home and the default working directory
    output  how much is kept of what a background job prints. None: 64 MiB, or what the operator of cayd allows
    """

    def __init__(
        self,
        host: str | None = None,
        *,
        token: str | None = None,
        client: cay.Cay | None = None,
        image: str | None = None,
        user: str = "user",
        home: str = "/home/user",
        memory: int | str | None = None,
        cpus: float | None = None,
        output: int | str | None = None,
    ) -> None:
        if client is not None and (host is not None or token is not None):
            raise ValueError("give either a client or its host and token")
        self._own = client is None
        self._client = cay.Cay(host, token=token) if client is None else client
        self._image, self._user, self._home = image, user, home
        self._memory, self._cpus, self._output = memory, cpus, output

    def create(
        self,
        *,
        timeout_s: float = 900,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        image: str | None = None,
        **unknown: object,
    ) -> CaySandboxHandle:
        """A new sandbox, ready, that lives for `timeout_s` at most.

        `metadata` become labels `openenv.KEY`; what cannot be a label is refused, and nothing is made.
        """
        if not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s must be a number of seconds: {timeout_s!r}")
        network = unknown.pop("network", None)
        if unknown:
            _log.warning("create: not known, ignored: %s", ", ".join(sorted(unknown)))
        spec: cay.Spec = {
            "image": image or self._image,
            "user": self._user,
            "cwd": self._home,
            "network": cast(Any, network),  # whatever it is: refused unless it is deny-all
            "env": {"HOME": self._home, **(envs or {})},
            "labels": _labels(metadata or {}),
            "ttl": timeout_s,
            "memory": self._memory,
            "cpus": self._cpus,
            "output": self._output,
        }
        sandbox = self._client._create_wishing(spec, {"output": "64M"})
        return CaySandboxHandle(sandbox, self._home, self._user)

    def close(self) -> None:
        """Closes the connections to cayd. Sandboxes live on."""
        if self._own:
            self._client.close()


def _bash(cmd: str) -> list[str]:
    return ["bash", "-lc", cmd]


def _labels(metadata: Mapping[str, str]) -> dict[str, str]:
    if "sandbox" in metadata:
        raise ValueError("metadata 'sandbox': openenv.sandbox is the mark of every sandbox of OpenEnv's")
    return {"openenv.sandbox": "true"} | {f"openenv.{key}": str(value) for key, value in metadata.items()}
