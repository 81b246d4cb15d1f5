#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""unasync.py [DIRECTORY]: writes src/cay/_sync (or DIRECTORY) from src/cay/_async.

The twins differ in words only, which the table below lists; it holds for comments and docstrings, too. What differs
in more than words is in _runtime.py, which is written by hand in both.
"""

import pathlib
import re
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "src" / "cay"
BY_HAND = "_runtime.py"
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Cay|Sandbox|Process|Run|Files|Http|Iterator|Iterable|Client)\b", r"\1"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"\ba(close|read)\b", r"\1"),
    (r"\baiter_(raw|bytes)\b", r"iter_\1"),
]


def convert(text: str, name: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    first, rest = text.split("\n", 1)
    return f"{first}\n# Generated from _async/{name} by tools/unasync.py: do not edit.\n{rest}"


def main() -> None:
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE / "_sync"
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name != BY_HAND:
            (target / source.name).write_text(convert(source.read_text(), source.name))


if __name__ == "__main__":
    main()
