# SPDX-License-Identifier: Apache-2.0
"""a2a's `ctx.sandbox` on cay: a SandboxClient of a2a-pack whose sandboxes are those of cayd.

    client = CaySandboxClient(workspaces="/srv/a2a")
    await agent.local_invoke("skill", sandbox=client)            # or LocalRunContext(auth=..., sandbox=client)

Nothing is kept in this process. A sandbox is found by its name and its client's owner, which are labels of it, so a
handle from `get` is as good as the one from `create`, in any process and at any later time.

A workspace is a directory of cayd's host, mounted at /workspace: as a whole read-only, with what may be written mounted
once more on top. Code that could write in a workspace before may have put a symbolic link where such a mount begins,
which cayd would follow out of the workspace. Therefore, before anything else runs in a sandbox, the kernel's own list
of its mounts must say that each of them is the directory of that name in the workspace.

Works with every revision of a2a-pack, the first one included: what only later ones have is looked up.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import math
import posixpath
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import a2a_pack.sandbox as a2a  # type: ignore[import-untyped]
from a2a_pack.sandbox import ExecResult, SandboxClient, SandboxHandle, SandboxSpec

from .. import (
    AsyncCay, AsyncFiles, AsyncSandbox, CayError, Conflict, Denied, Gone, Invalid, Limit, Mount, NotFound, Spec,
    TooLarge, Unsupported,
)
from .._async._runtime import protected

NAME, OWNER, WORKSPACE, CREATION = "cay.a2a/name", "cay.a2a/owner", "cay.a2a/workspace", "cay.a2a/creation"

# The image of a spec that says nothing: it means that none was chosen.
UNCHOSEN_IMAGE: str = SandboxSpec.__dataclass_fields__["image"].default
MEMORY_CAP, CPU_CAP = "sandbox memory exceeds operator cap", "sandbox CPU exceeds operator cap"
IMAGE_LIST = "sandbox image is not in the operator allowlist"
IDLE_SECONDS = 3600.0
STOP_GRACE = 2.0
SETUP_SECONDS = 30.0

# Not "proc": a link to ../proc is /proc inside, and on the host that workspace, which could then deceive `verify`.
_BUCKET = re.compile(r"(?!proc$)[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOST_PART = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}$)(\*|(\*\.)?({_HOST_PART}\.)*{_HOST_PART})")
_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MODES = ("read_only", "read_write_overlay", "read_write_direct")
_POLICIES = ("outputs", "workspace")

# /outputs is the workspace's, if that has one or may get one.
_SETUP = """mkdir -p "/workspace/$1" 2> /dev/null
[ -e /outputs ] || [ -L /outputs ] || {
    if [ -d "/workspace/$1" ]; then ln -s "/workspace/$1" /outputs; else mkdir /outputs; fi
}
[ -d /outputs ]"""
# Before each command, as entries may come from outside: /data -> /workspace/data, where / has no such name.
_LINK = """for entry in /workspace/*; do
    name=/${entry##*/}
    [ -e "$name" ] || [ -L "$name" ] || [ ! -e "$entry" ] || ln -s "$entry" "$name"
done 2> /dev/null
"""
_LINK_EXEC = _LINK + 'exec "$@"'
_LINK_SHELL = _LINK + 'exec "$(command -v bash || command -v sh)" -c "$1"'
_MAKE_DIRECTORIES = 'cd /below && for name; do [ -e "$name" ] || mkdir -p -- "$name" || exit 1; done'


class SandboxImageRejected(ValueError):
    """The image is not one that the operator allows."""


class SandboxImageUnsupported(Unsupported, SandboxImageRejected):
    """The image is none that this cayd has; images of registries are not part of this version."""


# ---- what a spec means ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Workspace:
    """A directory of the host and what of it may be written: relative paths; "" is all of it."""

    bucket: str
    source: str
    writable: tuple[str, ...]

    @property
    def nested(self) -> tuple[str, ...]:
        return tuple(path for path in self.writable if path)

    def mounts(self) -> list[Mount]:
        top = Mount(self.source, "/workspace", read_only=self.writable != ("",))
        return [top, *(Mount(f"{self.source}/{path}", f"/workspace/{path}") for path in self.nested)]

    def verify(self, mountinfo: str) -> None:
        """Denied, unless each nested mount is what has that name in the workspace. See proc(5) for the fields."""
        found: dict[str, tuple[str, str]] = {}
        for line in mountinfo.strip("\n").split("\n"):
            _, _, device, root, point, *_ = line.split(" ")
            found[_unescape(point)] = (device, _unescape(root))
        device, top = found.get("/workspace", ("", ""))
        for path in self.nested:
            if found.get(f"/workspace/{path}") != (device, f"{top.rstrip('/')}/{path}"):
                raise Denied(f"'{path}' of the workspace '{self.bucket}' is not a directory of its own: a link, "
                             "another mount, or just being moved")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _write_rules(labels: Mapping[str, str], default_policy: str) -> tuple[tuple[str, ...], str]:
    """What of a workspace may be written, and where its outputs go, by the labels that a2a's runtime knows."""
    allow = _json_list(labels, "workspace_allow_patterns", ("**",))
    deny = _json_list(labels, "workspace_deny_patterns", ())
    prefixes = [_relative(prefix) for prefix in _json_list(labels, "workspace_write_prefixes", ())]
    outputs = _relative(labels.get("workspace_outputs_prefix") or "outputs") or "outputs"
    mode = labels.get("workspace_mode", "read_write_overlay")
    policy = labels.get("workspace_write_policy", default_policy)
    if mode not in _MODES:
        raise ValueError(f"label workspace_mode is {mode!r}, not one of {', '.join(_MODES)}")
    if policy not in _POLICIES:
        raise ValueError(f"label workspace_write_policy is {policy!r}, not one of {', '.join(_POLICIES)}")
    if deny or set(allow) - {"**"}:
        raise Unsupported("workspace_allow_patterns other than '**' and workspace_deny_patterns cannot be enforced: "
                          "mounts know directories, not patterns; use workspace_write_prefixes")
    if mode == "read_only":
        return (), outputs
    if labels.get("workspace_outputs_prefix"):
        prefixes.append(outputs)
    if not prefixes:
        prefixes = ["" if policy == "workspace" else outputs]
    return _outermost(prefixes), outputs


def _json_list(labels: Mapping[str, str], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    text = labels.get(key)
    if not text:
        return default
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"label {key} is not a JSON list of strings")
    return tuple(value)


def _relative(prefix: str) -> str:
    """A prefix of a workspace as a path below it: "a/b/" and "a/b/**" are "a/b", "**" is ""."""
    path = prefix.replace("\\", "/").strip("/")
    path = "" if path == "**" else path.removesuffix("/**")
    if any(part in ("", ".", "..") for part in path.split("/") if path) or _CONTROL.search(path):
        raise ValueError(f"workspace prefix {prefix!r} is not a path below the workspace")
    if re.search(r"[*?\[]", path):
        raise Unsupported(f"workspace prefix {prefix!r} is a pattern, which mounts cannot enforce; name a directory")
    return path


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(above == "" or path.startswith(above + "/") for above in kept):
            kept.append(path)
    return tuple(kept)


def _check_names(what: str, values: Sequence[str], pattern: re.Pattern[str]) -> None:
    if isinstance(values, str):
        raise ValueError(f"{what} is a sequence of names, not one string")
    for value in values:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{what}: {value!r} is not a valid name")


def _check_spec(spec: SandboxSpec) -> None:
    if not isinstance(spec.name, str) or not 0 < len(spec.name.encode()) <= 255 or _CONTROL.search(spec.name):
        raise ValueError("a sandbox name has 1 to 255 bytes and no control characters")
    for field in ("memory_mib", "cpus"):
        value = getattr(spec, field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{field} is {value!r}, not a positive number")
    for key in spec.labels:
        if key.startswith("cay.a2a/"):
            raise ValueError(f"label {key}: names that begin with cay.a2a/ are kept for this client")
    _check_names("egress", spec.egress, _HOSTNAME)
    _check_names("secrets", spec.secrets, _SECRET)
    if spec.egress:
        raise Unsupported("egress to hosts is not part of this version: sandboxes have no network")
    if spec.secrets:
        raise Unsupported("secrets are not part of this version")


# ---- errors --------------------------------------------------------------------------------------------------------


def _fail(operation: str, method: str, url: str, name: str | None, error: CayError,
          timeout: float | None = None) -> NoReturn:
    """Raises what a2a's callers expect instead of an error of cay."""
    if isinstance(error, Unsupported):
        raise error
    if isinstance(error, (Invalid, TooLarge)):
        raise ValueError(error.message) from error
    kind = getattr(a2a, "SandboxRuntimeError", None)
    if kind is None:
        raise RuntimeError(f"sandbox {operation} failed; sandbox={name}; {error.message}") from error
    raise kind(operation=operation, method=method, url=url, timeout_seconds=timeout, status_code=error.status,
               response_body=error.message, cause_type=type(error).__name__, cause_message=error.message,
               sandbox_name=name) from error


def _refuse(error: CayError) -> None:
    """Raises what a2a knows for a spec that the rules of cayd's operator refuse."""
    rule = str(error.detail.get("rule", ""))
    if isinstance(error, Limit) and rule.endswith(".memory_max"):
        raise ValueError(MEMORY_CAP) from error
    if isinstance(error, Limit) and rule.endswith(".cpus_max"):
        raise ValueError(CPU_CAP) from error
    if isinstance(error, Denied) and error.detail.get("field") == "image":
        raise SandboxImageRejected(f"{IMAGE_LIST}: {error.message}") from error


async def _finish(cleanup: Callable[[], Awaitable[None]]) -> None:
    """Runs a cleanup to its end, also if this task is cancelled meanwhile; what it raises does not matter."""
    with contextlib.suppress(Exception):
        await protected(cleanup)


# ---- handle and client ---------------------------------------------------------------------------------------------


class CaySandboxHandle(SandboxHandle):  # type: ignore[misc]
    """One sandbox, by its name. `files` and `sandbox` are cay's own view of it."""

    def __init__(self, client: CaySandboxClient, name: str, has_workspace: bool) -> None:
        self.name = name
        self.sandbox: AsyncSandbox = client.cay.attach(client.id_of(name))
        self._client = client
        self._has_workspace = has_workspace

    @property
    def files(self) -> AsyncFiles:
        return self.sandbox.files

    async def exec(self, cmd: str, args: Sequence[str] | None = None, *, timeout: float | None = None) -> ExecResult:
        """Runs a program, without a shell. A program that cannot be run is exit code 127 or 126."""
        argv = [cmd, *(args or ())]
        return await self._run(["sh", "-c", _LINK_EXEC, "sh", *argv] if self._has_workspace else argv, timeout)

    async def shell(self, script: str, *, timeout: float | None = None) -> ExecResult:
        command = ["sh", "-c", _LINK_SHELL, "sh", script] if self._has_workspace else script or ":"
        return await self._run(command, timeout)

    async def _run(self, command: str | list[str], timeout: float | None) -> ExecResult:
        seconds = self._client.seconds(timeout)
        try:
            done = await self.sandbox.exec(command, timeout=seconds)
        except CayError as error:
            if isinstance(error, (NotFound, Denied)) and "errno" in error.detail:
                code = 127 if isinstance(error, NotFound) else 126
                return ExecResult(stdout="", stderr=error.message, exit_code=code)
            _fail("exec", "POST", self._url("/exec"), self.name, error, seconds)
        if done.timed_out and seconds is not None:
            return ExecResult(stdout=done.stdout, stderr=f"sandbox timeout after {seconds:g}s", exit_code=124,
                              truncated=done.truncated)
        return ExecResult(stdout=done.stdout, stderr=done.stderr + done.note, exit_code=done.exit_code,
                          truncated=done.truncated)

    async def stop(self) -> None:
        """Ends its processes with SIGTERM, after a short grace with SIGKILL, and deletes it. Again: nothing happens."""
        try:
            with contextlib.suppress(NotFound, Gone, Conflict):  # gone, or ended by itself
                await self.sandbox.stop(grace=STOP_GRACE)
            await self.sandbox.remove()
        except CayError as error:
            _fail("stop", "POST", self._url("/stop"), self.name, error)

    async def kill(self) -> None:
        """Ends its processes at once and deletes it. Again: nothing happens."""
        try:
            await self.sandbox.remove()
        except CayError as error:
            _fail("delete", "DELETE", self._url(), self.name, error)

    async def logs(self, *, tail: int | None = None) -> str:
        """The output of all its commands, or the last `tail` lines of it."""
        try:
            return await self.sandbox.logs(tail=tail)
        except CayError as error:
            _fail("logs", "GET", self._url("/logs"), self.name, error)

    def _url(self, path: str = "") -> str:
        return self._client.url_of(self.name, path)


class CaySandboxClient(SandboxClient):  # type: ignore[misc]
    """Sandboxes of cayd for `ctx.sandbox`.

    host, token       as of AsyncCay
    owner             clients of different owners have names of their own and do not see each other's sandboxes
    image             for specs that choose none; None: the default of cayd
    allowed_images    what else specs may choose; None: whatever cayd allows
    max_memory_mib, max_cpus   of one sandbox
    workspaces        directory on cayd's host that holds one directory for each workspace; None: no workspaces
    default_workspace for specs that name none
    write_policy      "outputs" or "workspace", for specs without the label workspace_write_policy
    timeout_seconds   for commands whose timeout is None or 0; None: they may take for ever
    idle              seconds without use after which a sandbox ends; 0: never. None: an hour, or the ceiling of cayd's
                      operator if that is lower, so that a killed client leaves nothing for ever
    minio_*           what a2a's own runtime passes to its client; not used, as workspaces are directories
    """

    def __init__(self, host: str | None = None, *, token: str | None = None, owner: str = "default",
                 image: str | None = None, allowed_images: Sequence[str] | None = None,
                 max_memory_mib: int | None = None, max_cpus: float | None = None, workspaces: str | None = None,
                 default_workspace: str | None = None, write_policy: str = "outputs",
                 timeout_seconds: float | None = None, idle: float | None = None, minio_endpoint: str | None = None,
                 minio_access_key: str | None = None, minio_secret_key: str | None = None) -> None:
        if workspaces is not None and not posixpath.isabs(workspaces):
            raise ValueError(f"workspaces is {workspaces!r}, not an absolute path")
        if write_policy not in _POLICIES:
            raise ValueError(f"write_policy is {write_policy!r}, not one of {', '.join(_POLICIES)}")
        self.cay = AsyncCay(host, token=token)
        self.owner, self._idle = owner, idle
        self._image, self._allowed_images = image, allowed_images
        self._max_memory_mib, self._max_cpus = max_memory_mib, max_cpus
        self._workspaces = posixpath.normpath(workspaces) if workspaces else None
        self._default_workspace, self._write_policy = default_workspace, write_policy
        self._timeout_seconds: float | None = None
        self._timeout_seconds = self.seconds(timeout_seconds)

    async def aclose(self) -> None:
        await self.cay.aclose()

    async def __aenter__(self) -> CaySandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- SandboxClient

    async def create(self, spec: SandboxSpec) -> CaySandboxHandle:
        """A new sandbox. The name of a live one is refused, and that one left alone."""
        _check_spec(spec)
        image = self._choose_image(spec.image)
        if self._max_memory_mib is not None and spec.memory_mib > self._max_memory_mib:
            raise ValueError(MEMORY_CAP)
        if self._max_cpus is not None and spec.cpus > self._max_cpus:
            raise ValueError(CPU_CAP)
        workspace, outputs = self._find_workspace(spec)
        creation = uuid.uuid4().hex  # equals no other one's: cayd would give two creates that are equal one sandbox
        labels = {**spec.labels, NAME: spec.name, OWNER: self.owner, CREATION: creation}
        if workspace:
            labels[WORKSPACE] = workspace.bucket
        request = dict(id=self.id_of(spec.name), image=image, memory=int(spec.memory_mib * 1024 * 1024), cpus=spec.cpus,
                       idle=self._idle, labels=labels, mounts=workspace.mounts() if workspace else None)
        try:
            sandbox = await self._make(cast(Spec, request), workspace)
            await self._set_up(sandbox, workspace, outputs)
        except BaseException as error:
            await _finish(lambda: self._discard(spec.name, creation))
            if isinstance(error, CayError):
                _refuse(error)
                _fail("create", "POST", self.url_of(), spec.name, error)
            raise
        return CaySandboxHandle(self, spec.name, workspace is not None)

    async def get(self, name: str) -> CaySandboxHandle:
        try:
            info = (await self.cay.get(self.id_of(name))).info
        except NotFound:
            info = None
        except CayError as error:
            _fail("get", "GET", self.url_of(name), name, error)
        if info is None or not info.live or info.labels.get(NAME) != name or info.labels.get(OWNER) != self.owner:
            raise KeyError(f"no live sandbox: {name}")
        return CaySandboxHandle(self, name, WORKSPACE in info.labels)

    async def list(self) -> builtins.list[str]:
        """Names of the owner's live sandboxes."""
        try:
            found = await self.cay.list(labels={OWNER: self.owner})
        except CayError as error:
            _fail("list", "GET", self.url_of(), None, error)
        return [info.labels[NAME] for info in found if info.live and NAME in info.labels]

    async def remove(self, name: str) -> None:
        await CaySandboxHandle(self, name, False).stop()

    async def run_python(self, code: str, *, image: str | None = UNCHOSEN_IMAGE, timeout_seconds: float | None = None,
                         **spec: Any) -> ExecResult:
        """Runs Python code in a sandbox of its own. `spec`: see `run_shell`."""
        return await self._one_shot("py", image, spec,
                                    lambda box: box.exec("python", ["-c", code], timeout=timeout_seconds))

    async def run_shell(self, script: str, *, image: str | None = UNCHOSEN_IMAGE, timeout_seconds: float | None = None,
                        **spec: Any) -> ExecResult:
        """Runs a script in a sandbox of its own.

        `spec`: fields of SandboxSpec; also `bucket`, another name of workspace, and `network_disabled`, a label.
        """
        return await self._one_shot("sh", image, spec, lambda box: box.shell(script, timeout=timeout_seconds))

    async def _one_shot(self, kind: str, image: str | None, fields: dict[str, Any],
                        run: Callable[[CaySandboxHandle], Awaitable[ExecResult]]) -> ExecResult:
        fields = {key: value for key, value in fields.items() if value is not None}
        bucket = fields.pop("bucket", None)
        if bucket and fields.setdefault("workspace", bucket) != bucket:
            raise ValueError("workspace and bucket are two names of one thing, and differ")
        if "network_disabled" in fields:
            disabled = "true" if fields.pop("network_disabled") else "false"
            fields["labels"] = {**fields.get("labels", {}), "network_disabled": disabled}
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        handle = await self.create(SandboxSpec(name=name, image=image or UNCHOSEN_IMAGE, **fields))
        try:
            return await run(handle)
        finally:
            await _finish(handle.stop)
            await _finish(lambda: self.remove(name))  # the order that a2a has; for a stop that failed

    # -- names, and what the options mean

    def id_of(self, name: str) -> str:
        """The id of a name in cayd: readable, and another one for each owner. Names may be what ids cannot."""
        readable = re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:40].strip("-._") or "sandbox"
        digest = hashlib.sha256(f"{self.owner}\0{name}".encode()).hexdigest()
        return f"{readable}-{digest[:16]}"

    def url_of(self, name: str | None = None, path: str = "") -> str:
        return f"{self.cay.host}/api/v1/sandboxes" + (f"/{self.id_of(name)}{path}" if name is not None else "")

    def seconds(self, timeout: float | None) -> float | None:
        if not timeout:
            return self._timeout_seconds
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout!r}, not a positive number of seconds")
        return float(timeout)

    def _choose_image(self, wanted: str | None) -> str | None:
        if wanted is None or wanted in (UNCHOSEN_IMAGE, self._image):
            return self._image
        if self._allowed_images is not None and wanted not in self._allowed_images:
            raise SandboxImageRejected(IMAGE_LIST)
        return wanted

    def _find_workspace(self, spec: SandboxSpec) -> tuple[_Workspace | None, str]:
        writable, outputs = _write_rules(spec.labels, self._write_policy)
        bucket = spec.workspace or self._default_workspace
        if not bucket:
            return None, outputs
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"invalid workspace bucket: {bucket!r}")
        if self._workspaces is None:
            raise Unsupported(f"workspace {bucket!r}: this client has no place for workspaces; give it the option "
                              "`workspaces`, a directory on cayd's host")
        return _Workspace(bucket, f"{self._workspaces.rstrip('/')}/{bucket}", writable), outputs

    # -- making one

    async def _make(self, request: Spec, workspace: _Workspace | None) -> AsyncSandbox:
        handled: set[type[CayError]] = set()
        while True:
            try:
                return await self.cay._create_wishing(request, {"idle": IDLE_SECONDS})
            except Unsupported as error:
                if error.detail.get("field") != "image":
                    raise
                raise SandboxImageUnsupported(error.message, error.detail) from error
            except (Conflict, Denied, NotFound) as error:
                if type(error) in handled or not await self._put_aside(error, request, workspace):
                    raise
                handled.add(type(error))

    async def _put_aside(self, error: CayError, request: Spec, workspace: _Workspace | None) -> bool:
        """Whether what was in the way is gone: an ended sandbox of that name, or missing directories."""
        if isinstance(error, Conflict):
            return await self._clear_ended(str(request["id"]))
        # Of a source that is not there tenants learn only that it is not allowed.
        if workspace is None or (isinstance(error, Denied) and error.detail.get("field") != "mounts"):
            return False
        await self._make_directories(workspace)
        return True

    async def _clear_ended(self, identifier: str) -> bool:
        try:
            sandbox = await self.cay.get(identifier)
        except NotFound:
            return True
        if sandbox.info is None or sandbox.info.live:
            return False
        await sandbox.remove()
        return True

    async def _make_directories(self, workspace: _Workspace) -> None:
        """First the workspace, then what is in it, where a link of its own leads to no other workspace."""
        await self._make_below(str(self._workspaces), [workspace.bucket])
        await self._make_below(workspace.source, workspace.nested)

    async def _make_below(self, source: str, names: Sequence[str]) -> None:
        """In a sandbox: it can be done from anywhere, and no link leads to the host's files."""
        if not names:
            return
        async with self.cay.sandbox(image=self._image, mounts=[Mount(source, "/below")], idle=SETUP_SECONDS) as sandbox:
            done = await sandbox.exec(["sh", "-c", _MAKE_DIRECTORIES, "sh", *names], timeout=SETUP_SECONDS)
        if not done.ok:
            raise Denied(f"cannot make directories in '{source}': {done.stderr.strip()}")

    async def _set_up(self, sandbox: AsyncSandbox, workspace: _Workspace | None, outputs: str) -> None:
        if workspace and workspace.nested:
            workspace.verify(await sandbox.files.read_text("/proc/self/mountinfo", errors="replace"))
        done = await sandbox.exec(["sh", "-c", _SETUP, "sh", outputs], timeout=SETUP_SECONDS)
        if not done.ok:
            raise Denied(f"cannot make /outputs: {done.stderr.strip()}")

    async def _discard(self, name: str, creation: str) -> None:
        """Removes what a create has made, if it has made anything, and no other one of that name."""
        sandbox = await self.cay.get(self.id_of(name))
        if sandbox.info is not None and sandbox.info.labels.get(CREATION) == creation:
            await sandbox.remove()
