# SPDX-License-Identifier: Apache-2.0
"""The requests of the API: bodies, paths and queries, without I/O."""

from __future__ import annotations

import secrets as random
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast
from urllib.parse import quote

from ._errors import Invalid, Limit, Unsupported
from ._models import Mount
from ._policy import NetworkPolicy, require_deny_all

Size = int | str  # bytes, or "512M"
Duration = float | str  # seconds, or "15m"
Command = str | Sequence[str]  # of a shell, or a program and its arguments


class Spec(TypedDict, total=False):
    """What `create` and `sandbox` take; see CreateSandbox in api/openapi.yaml."""

    id: str | None
    image: str | None
    user: str | None
    cwd: str | None
    network: NetworkPolicy | None
    profile: str | None
    memory: Size | None
    cpus: float | None
    pids: int | None
    disk: Size | None
    inodes: int | None
    fds: int | None
    output: Size | None
    ttl: Duration | None
    idle: Duration | None
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    mounts: Sequence[Mount | Mapping[str, Any]] | None
    secrets: Mapping[str, Any] | Sequence[Any] | None


def spec_body(spec: Spec) -> dict[str, Any]:
    """The body of a create request, with an id in any case."""
    unknown = set(spec) - set(Spec.__annotations__)
    if unknown:
        raise TypeError(f"unknown options of a sandbox: {', '.join(sorted(unknown))}")
    body: dict[str, Any] = {name: value for name, value in spec.items() if value is not None}
    if body.pop("secrets", None):
        raise Unsupported("secrets are not part of this version", {"field": "secrets"})
    if "network" in body:
        require_deny_all(body["network"])
    for name in ("env", "labels"):
        if name in body:
            body[name] = dict(body[name])
    if "mounts" in body:
        body["mounts"] = [_mount(mount) for mount in body["mounts"]]
    body.setdefault("id", random.token_hex(6))
    return body


def with_wishes(spec: Spec, wishes: Spec) -> Spec:
    """What the caller gave, and `wishes` for what the caller left open."""
    return cast(Spec, {**wishes, **{name: value for name, value in spec.items() if value is not None}})


def without_refused(wishes: Spec, error: Limit) -> Spec:
    """`wishes` without that which an operator's rule refused, such as "tenant acme.ttl_max"."""
    refused = str(error.detail.get("rule")).rpartition(".")[2].removesuffix("_max")
    return cast(Spec, {name: value for name, value in wishes.items() if name != refused})


def _mount(mount: Mount | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(mount, Mount):
        return {"source": mount.source, "target": mount.target, "read_only": mount.read_only}
    return dict(mount)


def command_body(command: Command, env: Mapping[str, str] | None, cwd: str | None, user: str | None,
                 timeout: Duration | None) -> dict[str, Any]:
    body: dict[str, Any] = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
    if env:
        body["env"] = dict(env)
    if cwd is not None:
        body["cwd"] = cwd
    if user is not None:
        body["user"] = user
    if timeout is not None:
        body["timeout"] = timeout
    return body


def input_bytes(data: str | bytes | None) -> bytes | None:
    """Text as UTF-8; what was decoded with surrogateescape, as the bytes that it came from."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def new_key() -> str:
    """Names a command, so that a start whose answer was lost may be repeated without starting another one."""
    return random.token_hex(12)


def as_whole(content: object) -> bytes | None:
    """The bytes of content that is there at once; None: it comes in pieces, or there is none."""
    if isinstance(content, str):
        return content.encode()
    return bytes(content) if isinstance(content, (bytes, bytearray, memoryview)) else None


def as_bytes(piece: object) -> bytes:
    """A piece of a body. TypeError: it is none, such as that of a file which was opened as text."""
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise TypeError(f"pieces of content are bytes, not {type(piece).__name__}")
    return bytes(piece)


def sandbox_path(id: str) -> str:
    if id in ("", ".", ".."):
        raise Invalid(f"'{id}' is not the id of a sandbox", {"field": "id"})
    return "/sandboxes/" + quote(id, safe="")


def byte_range(start: int | None, end: int | None) -> str | None:
    """The value of a Range header: from `start` to before `end`; None: there is nothing in it."""
    first = start or 0
    for name, value in (("start", start), ("end", end)):
        if value is not None and value < 0:
            raise Invalid(f"{name} is {value}, less than 0", {"field": name})
    if end is not None and end <= first:
        return None
    return f"bytes={first}-" + ("" if end is None else str(end - 1))


def query(**parameters: str | float | bool | None | Sequence[str]) -> str:
    """"?name=value&...", without those that are None. A trailing underscore avoids Python's own words."""
    pairs = []
    for name, value in parameters.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        pairs += [f"{name.rstrip('_')}={_quoted(one)}" for one in values if one is not None]
    return "?" + "&".join(pairs) if pairs else ""


def _quoted(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # surrogateescape: names that are not UTF-8 go back to the bytes that they came from.
    return quote(str(value).encode("utf-8", "surrogateescape"), safe="/")


def last_lines(text: str, count: int) -> str:
    """Only a newline ends a line; str.splitlines would also cut at a progress bar's carriage returns."""
    lines = text.split("\n")
    ended = lines[-1] == ""
    kept = lines[-count - ended:] if count else []
    return "\n".join(kept)


def mode_text(mode: int | str | None) -> str | None:
    """Permission bits as the API takes them: octal digits."""
    return f"{mode:o}" if isinstance(mode, int) else mode
