# SPDX-License-Identifier: Apache-2.0
"""The two commands of README.md, in their order, on a machine that has the base system and nothing else.

CAY_TEST_FRESH_SUITES: the suites of the second command; all are possible but this one.
"""
import os
import re

import pytest

from fresh.machine import Machine
from lib import base

SUITES = os.environ.get("CAY_TEST_FRESH_SUITES", "check unit fuzz project programs").split()
FUZZ_SECONDS = "1"


@pytest.fixture(scope="module")
def machine():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with base.locked(base.cache_dir()) as cache:
        with Machine(cache) as made:
            yield made


def last_lines(done, count):
    return done.stdout.rstrip("\n").split("\n")[-count:]


def ok(done):
    assert done.returncode == 0, done.stdout[-8000:]
    return done


def show(capsys, lines):
    """What a user would have seen last."""
    with capsys.disabled():
        print("", *(f"| {line}" for line in lines), sep="\n", flush=True)


def test_the_machine_has_the_base_system_only(machine):
    for program in ("cc", "python3", "meson", "git", "cay"):
        assert machine.run("sh", "-c", f"command -v {program}", timeout=20).returncode != 0, program
    assert machine.run("git", "status", timeout=20).returncode == 127
    assert machine.run("ls", "build", timeout=20).returncode != 0


def test_quickstart(machine, capsys):
    done = ok(machine.run("./quickstart", timeout=400))
    show(capsys, [line for line in done.stdout.splitlines() if line.startswith("==>")])
    assert "hello from Python" in done.stdout and "the network is closed" in done.stdout
    assert last_lines(done, 1) == ["    cay help                             everything else"]


def test_quickstart_again_has_nothing_to_do(machine):
    done = ok(machine.run("./quickstart", timeout=120))
    assert "installing" not in done.stdout and "hello from Python" in done.stdout


def test_quickstart_test(machine, capsys):
    done = ok(machine.run("./quickstart", "test", *SUITES, timeout=800, env={"CAY_TEST_FUZZ_SECONDS": FUZZ_SECONDS}))
    *lines, total = last_lines(done, len(SUITES) + 1)
    show(capsys, [*lines, total])
    assert {line.split()[0] for line in lines} == set(SUITES)
    assert re.fullmatch(r"\d+ passed, 0 failed, 0 skipped", total), total
    # Each unit test of the sources, whatever was or was not installed when the first command configured the build.
    units = machine.run("sh", "-c", "cat tests/unit/*_test.c | grep -c '^TEST('", timeout=20)
    assert int(re.search(r"^unit +(\d+) passed", done.stdout, re.M)[1]) >= int(units.stdout)


def test_nothing_is_left_of_it(machine):
    assert ok(machine.run("/usr/local/bin/cay", "ps", "-a", "-q", timeout=20)).stdout == ""
    ok(machine.run("apt-get", "-q", "autoclean", timeout=60))  # the next one needs no packages that were replaced
    machine.close()
    assert machine.left() == []
