# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of cay from Python.

    import cay

    with cay.Cay() as client, client.sandbox(memory="512M") as box:
        print(box.exec("echo $((6 * 7))").stdout)

`AsyncCay` is the same with async and await. Errors are subclasses of `CayError`.
"""

from ._async.client import AsyncCay
from ._async.files import AsyncFiles
from ._async.process import AsyncProcess
from ._async.sandbox import AsyncSandbox
from ._errors import (
    CayError, Conflict, Denied, Gone, Internal, Invalid, Limit, NoSpace, NotFound, OutputLost, Stalled, Timeout,
    TooLarge, Unauthorized, Unavailable, Unsupported, VersionMismatch,
)
from ._models import (
    Change, Event, ExecBytes, ExecResult, Exit, FileInfo, Match, Mount, Output, ProcessInfo, SandboxInfo, Stats,
)
from ._requests import Spec
from ._sync.client import Cay
from ._sync.files import Files
from ._sync.process import Process
from ._sync.sandbox import Sandbox

__version__ = "0.1.0"

__all__ = [
    "AsyncCay", "AsyncFiles", "AsyncProcess", "AsyncSandbox", "Cay", "CayError", "Change", "Conflict", "Denied",
    "Event", "ExecBytes", "ExecResult", "Exit", "FileInfo", "Files", "Gone", "Internal", "Invalid", "Limit", "Match",
    "Mount", "NoSpace", "NotFound", "Output", "OutputLost", "Process", "ProcessInfo", "Sandbox", "SandboxInfo", "Spec",
    "Stalled", "Stats", "Timeout", "TooLarge", "Unauthorized", "Unavailable", "Unsupported",
    "VersionMismatch",
]
