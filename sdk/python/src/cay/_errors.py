# SPDX-License-Identifier: Apache-2.0
"""One exception for each error code of cay, and how an answer becomes one.

The codes, their HTTP statuses and meanings are those of CAY_ERROR_TABLE in include/cay/cay.h; a test compares them.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any


class CayError(RuntimeError):
    """What every error of cay is. `code` is for programs, `message` for people; `detail` names the field or rule.

    `found`: of `files.list`, `find` and `grep`, what was found in spite of it, as they would have returned it.
    """

    code: str = "internal"
    status: int = 500

    def __init__(self, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail: Mapping[str, Any] = dict(detail or {})
        self.found: list[Any] = []


class Invalid(CayError):
    """The request itself is wrong."""

    code, status = "invalid", 400


class Unauthorized(CayError):
    """No token, or one that is not known or has expired."""

    code, status = "unauthorized", 401


class Denied(CayError):
    """Not permitted."""

    code, status = "denied", 403


class NotFound(CayError):
    """No such sandbox, process, file or image."""

    code, status = "not_found", 404


class Timeout(CayError, TimeoutError):
    """The time given ran out."""

    code, status = "timeout", 408


class Conflict(CayError):
    """Exists already, with another content or in another state."""

    code, status = "conflict", 409


class VersionMismatch(CayError):
    """The keeper of the sandbox is of another version of cay. The sandbox can still be stopped and removed."""

    code, status = "version", 409


class Gone(CayError):
    """The sandbox has ended."""

    code, status = "gone", 410


class OutputLost(CayError):
    """Bytes of output that were asked for are gone: from `detail["from"]` to before `detail["to"]`."""

    code, status = "lost", 410


class Stalled(CayError):
    """A reader took nothing for too long and was cut off. The process goes on; so may another reader."""

    code, status = "stalled", 408


class TooLarge(CayError):
    """Larger than a stated maximum."""

    code, status = "too_large", 413


class Limit(CayError):
    """A limit on number or rate is reached."""

    code, status = "limit", 429


class Internal(CayError):
    """A fault in cay, or an unexpected answer."""

    code, status = "internal", 500


class Unsupported(CayError):
    """This host, image or version cannot do it."""

    code, status = "unsupported", 501


class Unavailable(CayError):
    """Not now, or not to be reached; trying again may help."""

    code, status = "unavailable", 503


class NoSpace(CayError):
    """Out of disk space, inodes or memory."""

    code, status = "no_space", 507


ERRORS: tuple[type[CayError], ...] = (
    Invalid, Unauthorized, Denied, NotFound, Timeout, Conflict, Gone, TooLarge, Limit, Internal, Unsupported,
    Unavailable, NoSpace, OutputLost, Stalled, VersionMismatch,
)
_BY_CODE = {error.code: error for error in ERRORS}
# Statuses that only HTTP servers and proxies give, without a code of cay.
_BY_STATUS = {error.status: error for error in reversed(ERRORS)}  # the first of those with the same
_BY_STATUS |= {414: TooLarge, 431: TooLarge, 502: Unavailable, 504: Unavailable}


def unexpected(what: str) -> Internal:
    """For an answer that is a success and yet cannot be used: mostly that of another server."""
    return Internal(f"the server's answer is not what this call expects: {what}")


def from_body(body: object, status: int = 500) -> CayError:
    """The exception for the `error` object of an answer or event."""
    if not isinstance(body, Mapping):
        return unexpected("'error' is no object")
    code, message, detail = body.get("code"), body.get("message"), body.get("detail")
    kind = _BY_CODE.get(str(code), _by_status(status))
    return kind(str(message or code), detail if isinstance(detail, Mapping) else None)


def from_answer(status: int, content: bytes) -> CayError:
    """The exception for an answer that is no success; by its status alone if it is no error of cay's."""
    try:
        body = json.loads(content)["error"]
        if isinstance(body, Mapping):
            return from_body(body, status)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    text = content[:200].decode("utf-8", "replace").strip()
    return _by_status(status)(f"HTTP status {status}" + (f": {text}" if text else ""))


def is_missing(error: CayError) -> bool:
    """Whether it was a path that led nowhere: only errors about files have an errno, a lost sandbox has none."""
    return error.detail.get("errno") in (errno.ENOENT, errno.ENOTDIR)


def is_hung(error: CayError) -> bool:
    """Whether the daemon waited in vain for the keeper of the sandbox (Linux's ETIMEDOUT): it will the next time."""
    return isinstance(error, Unavailable) and error.detail.get("errno") == 110


def _by_status(status: int) -> type[CayError]:
    return _BY_STATUS.get(status, Invalid if 400 <= status < 500 else Internal)
