# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts where, and that a program outside of the tree can use it."""
import os
import pathlib
import re
import subprocess

import pytest

from lib.engine import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    dest = tmp_path_factory.mktemp("dest")
    subprocess.run(["tools/install", "/usr/local", str(dest)], cwd=ROOT, check=True, timeout=120)
    return dest


def test_everything_is_there(installed):
    prefix = installed / "usr/local"
    for name in ("bin/cay", "libexec/cay/cay-keeper", "lib/libcay.so", "lib/libcay.so.0", "lib/libcay.a",
                 "include/cay/cay.h", "lib/pkgconfig/cay.pc", "share/man/man1/cay.1",
                 "share/bash-completion/completions/cay", "share/zsh/site-functions/_cay",
                 "share/fish/vendor_completions.d/cay.fish"):
        assert (prefix / name).stat().st_size > 0, name
    assert (installed / "etc/cay/cay.conf").exists()


def test_programs_are_static_and_stripped(installed):
    for name in ("bin/cay", "libexec/cay/cay-keeper"):
        data = (installed / "usr/local" / name).read_bytes()
        assert data[:4] == b"\x7fELF"
        out = subprocess.run(["readelf", "-lS", installed / "usr/local" / name], stdout=subprocess.PIPE, text=True,
                             check=True).stdout
        assert "INTERP" not in out and ".debug_info" not in out
        stack = re.search(r"GNU_STACK\s+\S+ \S+ \S+\s+\S+ \S+\s+(\w+)", out)
        assert stack and "E" not in stack[1]


def test_configuration_of_the_operator_is_kept(installed):
    conf = installed / "etc/cay/cay.conf"
    conf.write_text("# mine\n")
    subprocess.run(["tools/install", "/usr/local", str(installed)], cwd=ROOT, check=True, timeout=120)
    assert conf.read_text() == "# mine\n"


@pytest.mark.parametrize("how", ["shared", "static"])
def test_example_against_the_installed_library(cay, installed, tmp_path, how):
    lib = installed / "usr/local/lib"
    env = {**os.environ, "PKG_CONFIG_PATH": str(lib / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(installed)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "cay"], env=env, stdout=subprocess.PIPE, text=True,
                           check=True).stdout.split()
    if how == "static":
        flags = [flag if flag != "-lcay" else str(lib / "libcay.a") for flag in flags]
    program = tmp_path / "hello"
    subprocess.run(["cc", "-Wall", "-Werror", ROOT / "examples/hello.c", "-o", program, *flags], check=True)
    done = subprocess.run([program], env={**cay.env, "LD_LIBRARY_PATH": str(lib)}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hello from pid" in done.stdout and "(exit code 0)" in done.stdout
    assert cay.ids() == []


def test_uninstall_leaves_only_configuration(installed):
    subprocess.run(["tools/install", "--remove", "/usr/local", str(installed)], cwd=ROOT, check=True, timeout=60)
    left = [str(p.relative_to(installed)) for p in pathlib.Path(installed).rglob("*") if not p.is_dir()]
    assert left == ["etc/cay/cay.conf"]


def test_example_is_short():
    lines = (ROOT / "examples/hello.c").read_text().splitlines()
    assert len(lines) <= 45


def test_version_is_the_projects(cay):
    version = next(line.split("'")[1] for line in (ROOT / "meson.build").read_text().splitlines() if "version :" in line)
    assert version in cay.run("--version", check=True).stdout


def test_init_is_small():
    assert (ROOT / "build/prog/cay-init").stat().st_size < 200 * 1024
