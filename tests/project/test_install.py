# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts where, and that a program outside of the tree can use it."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from lib.daemon import Daemon
from lib.engine import BUILD, ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    dest = tmp_path_factory.mktemp("dest")
    subprocess.run(["tools/install", "/usr/local", str(dest)], cwd=ROOT, check=True, timeout=120)
    return dest


def test_everything_is_there(installed):
    prefix = installed / "usr/local"
    for name in ("bin/cay", "libexec/cay/cay-keeper", "lib/libcay.so", "lib/libcay.so.0", "lib/libcay.a",
                 "include/cay/cay.h", "lib/pkgconfig/cay.pc", "share/man/man1/cay.1", "share/man/man5/cay.conf.5",
                 "bin/cayd", "libexec/cay/cay-remote", "libexec/cay/cay-audit", "share/man/man8/cayd.8",
                 "share/man/man5/cayd.conf.5", "lib/systemd/system/cayd.service", "lib/systemd/system/cayd.socket",
                 "share/doc/cay/API.md", "share/doc/cay/POLICY.md", "share/doc/cay/AUDIT.md",
                 "share/doc/cay/openapi.yaml", "share/doc/cay/policy.example.conf", "share/doc/cay/cayd.example.conf",
                 "share/bash-completion/completions/cay", "share/zsh/site-functions/_cay",
                 "share/fish/vendor_completions.d/cay.fish"):
        assert (prefix / name).stat().st_size > 0, name
    assert (installed / "etc/cay/cay.conf").exists() and (installed / "etc/cay/cayd.conf").exists()
    assert not (installed / "etc/cay/policy.conf").exists() and not (installed / "etc/cay/tokens").exists()
    for name in ("bin/cay", "bin/cayd", "libexec/cay/cay-keeper", "libexec/cay/cay-remote", "libexec/cay/cay-audit"):
        assert os.access(prefix / name, os.X_OK), name


@pytest.mark.parametrize("page,program", [("cay.1", ["prog/cay", "help", "--man"]), ("cayd.8", ["lib/cayd", "--man"]),
                                          ("cayd.conf.5", ["lib/cayd", "--man-conf"])])
def test_pages_in_the_tree_are_those_of_the_programs(page, program):
    done = subprocess.run([BUILD / program[0], *program[1:]], stdout=subprocess.PIPE, text=True, check=True)
    text = (ROOT / "docs/man" / page).read_text()
    assert done.stdout == text, f"run: build/{' '.join(program)} > docs/man/{page}"
    if shutil.which("groff"):
        said = subprocess.run(["groff", "-man", "-ww", "-Tutf8", ROOT / "docs/man" / page], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=True).stderr
        assert said == ""


def test_page_of_the_daemon_tells_of_tokens_what_the_command_does():
    text = (ROOT / "docs/man/cayd.8").read_text().replace("\\-", "-")
    usage = subprocess.run([BUILD / "lib/cayd", "token", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    options = set(re.findall(r"--[a-z-]+", usage))
    assert {"--tenant", "--scopes", "--expires", "--file"} <= options
    assert [o for o in sorted(options) if o not in text] == []


def test_example_of_the_settings_names_them_all_and_loads(tmp_path):
    text = (ROOT / "docs/cayd.example.conf").read_text()
    page = (ROOT / "docs/man/cayd.conf.5").read_text()
    settings = re.findall(r"^\.TP\n\\fB([a-z_]+)\\fR = ", page, re.M)
    assert len(settings) > 10
    assert [s for s in settings if not re.search(rf"^# {s} = ", text, re.M)] == []
    path = tmp_path / "cayd.conf"
    for content in (text, re.sub(r"^# ([a-z_]+ = )", r"\1", text, flags=re.M)):
        path.write_text(content + f"tokens = {tmp_path}/tokens\npolicy = {tmp_path}/policy\n")
        done = subprocess.run([BUILD / "lib/cayd", "--check", "--config", path], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    # A setting that is told as it is by default, is.
    assert "connections = 4096\n" in text and "default: 4096" in page


def test_installed_daemon_finds_its_keeper(installed):
    """Where it was installed to; the prefix is compiled in, so that a staged one is told."""
    program = installed / "usr/local/bin/cayd"
    assert b"/usr/local/libexec/cay" in program.read_bytes()
    other = ["sh", "-c", f"shift; exec {program} \"$@\"", "sh"]
    with Daemon(wrap=other, env={"CAY_LIBEXEC_DIR": str(installed / "usr/local/libexec/cay")}) as d:
        box = d.create()
        assert d.exec(box, shell="echo $((6 * 7))")["stdout"] == "42\n"
        keeper = d.get(f"/sandboxes/{box}").body["keeper_pid"]
        assert os.readlink(f"/proc/{keeper}/exe") == str(installed / "usr/local/libexec/cay/cay-keeper")



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
    files = [installed / "etc/cay" / name for name in ("cay.conf", "cayd.conf")]
    for conf in files:
        conf.write_text("# mine\n")
    subprocess.run(["tools/install", "/usr/local", str(installed)], cwd=ROOT, check=True, timeout=120)
    assert [conf.read_text() for conf in files] == ["# mine\n"] * 2


@pytest.mark.parametrize("more", ["", "mine = host\n"])
def test_aliases_that_gave_registry_names_to_the_host_go(installed, more):
    """The file that was installed before, where nobody has changed it; an operator's own is kept."""
    conf = installed / "etc/cay/cay.conf"
    before = (ROOT / "tests/project/cay.conf.with-registry-names").read_text() + more
    conf.write_text(before)
    subprocess.run(["tools/install", "/usr/local", str(installed)], cwd=ROOT, check=True, timeout=120)
    assert conf.read_text() == (before if more else (ROOT / "examples/cay.conf").read_text())


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
    left = sorted(str(p.relative_to(installed)) for p in pathlib.Path(installed).rglob("*") if not p.is_dir())
    assert left == ["etc/cay/cay.conf", "etc/cay/cayd.conf"]
    assert not any((installed / "usr/local" / name).exists() for name in ("libexec/cay", "share/doc/cay", "include/cay"))


def test_example_is_short():
    lines = (ROOT / "examples/hello.c").read_text().splitlines()
    assert len(lines) <= 45


def test_version_is_the_projects(cay):
    version = next(line.split("'")[1] for line in (ROOT / "meson.build").read_text().splitlines() if "version :" in line)
    assert version in cay.run("--version", check=True).stdout


def test_init_is_small():
    assert (ROOT / "build/prog/cay-init").stat().st_size < 200 * 1024
