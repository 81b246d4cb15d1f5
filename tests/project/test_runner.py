# SPDX-License-Identifier: Apache-2.0
"""A smaller suite must not look like a good one: what is missing is an error for the tests, and is told."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from lib.engine import ROOT

UNITS = {path.stem: len(re.findall(r"^TEST\(", path.read_text(), re.M))
         for path in (ROOT / "tests/unit").glob("*_test.c")}


def run(*command, env=None, cwd=ROOT):
    return subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_every_unit_test_is_counted():
    assert len(UNITS) >= 19 and all(UNITS.values())


def test_a_program_that_was_not_built_is_missed(tmp_path):
    done = run("tools/unit", tmp_path)
    assert done.returncode == 1
    for name in UNITS:
        assert f"not ok - {name}: was not built\n" in done.stdout
    for target in (ROOT / "tests/fuzz").glob("*.c"):
        assert target.stem == "runner" or f"not ok - {target.stem}_corpus: was not built\n" in done.stdout


def test_a_program_that_ran_fewer_tests_is_missed(tmp_path):
    count = UNITS["buf_test"]
    lines = "".join(f"echo 'ok {n} - number_{n}'\n" for n in range(1, count + 1))
    program(tmp_path / "tests/unit/buf_test", lines)
    assert "not ok - buf_test" not in run("tools/unit", tmp_path).stdout
    program(tmp_path / "tests/unit/buf_test", lines.partition("\n")[2])
    assert f"not ok - buf_test: {count - 1} tests ran, its source has {count}\n" in run("tools/unit", tmp_path).stdout


def test_a_fuzz_target_that_was_not_built_is_missed(tmp_path):
    done = run("tools/fuzz", tmp_path, 1)
    assert done.returncode == 1 and "not ok - fuzz chan\n" in done.stdout and "\nok" not in done.stdout


def test_a_check_without_its_tool_fails(tmp_path):
    for name in ("cppcheck", "clang-tidy", "clang-format"):
        assert shutil.which(name), name
    done = run(sys.executable, "tools/check", "cppcheck", "tidy", "style", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert re.findall(r"^not ok - (\w+)$", done.stdout, re.M) == ["style", "cppcheck", "tidy"]
    assert "cppcheck is not installed" in done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what meson reads, and what pkg-config knows: (tree, directory without cmocka, environment)."""
    top = tmp_path_factory.mktemp("tree")
    for name in ("Makefile", "meson.build", "meson_options.txt", "src", "include", "tests", "tools", "examples"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, top / name)
    known = top / "pkgconfig"
    known.mkdir()
    for place in run("pkg-config", "--variable", "pc_path", "pkg-config").stdout.strip().split(":"):
        for path in pathlib.Path(place).glob("*.pc"):
            if not (known / path.name).exists():
                shutil.copy(path, known / path.name)
    return top, known / "cmocka.pc", {"PKG_CONFIG_LIBDIR": str(known)}


def test_a_package_that_came_later_is_found(tree):
    top, cmocka, env = tree
    target = "build/lib/build.ninja"
    cmocka.rename(top / "cmocka.pc")
    done = run("make", "-s", target, env=env, cwd=top)
    assert done.returncode == 0 and "buf_test" not in (top / target).read_text(), done.stdout
    done = run("make", "-s", "unit", env=env, cwd=top)
    assert done.returncode != 0 and "cmocka" in done.stdout, done.stdout
    (top / "cmocka.pc").rename(cmocka)
    done = run("make", "-s", target, env=env, cwd=top)
    text = (top / target).read_text()
    assert done.returncode == 0 and [name for name in UNITS if f"/{name}:" not in text.replace(" ", ":")] == [], done.stdout
