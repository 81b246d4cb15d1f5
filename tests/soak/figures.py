# SPDX-License-Identifier: Apache-2.0
"""Keeps the figures in docs/ those of the last run: bench/run, tests/soak/run and tests/soak/qemu/run --docs."""
import datetime
import os
import platform
import re

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def host():
    return f"{os.cpu_count()} CPUs, Linux {platform.release()}"


def replace_section(document, heading, command, text, machine=None):
    """Replaces what stands below a heading, up to the next one, by the output of a command."""
    path = os.path.join(TOP, "docs", document)
    with open(path) as f:
        old = f.read()
    body = f"`{command}`, {today()}, {machine or host()}:\n\n```\n{text.strip()}\n```\n"
    pattern = re.compile(r"^(#+ %s\n).*?(?=^#|\Z)" % re.escape(heading), re.S | re.M)
    new, count = pattern.subn(lambda m: f"{m.group(1)}\n{body}\n", old)
    if count != 1:
        raise SystemExit(f"{path} has no heading {heading!r}")
    with open(path, "w") as f:
        f.write(new.rstrip("\n") + "\n")
