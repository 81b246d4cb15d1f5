# SPDX-License-Identifier: Apache-2.0
"""What `make deb` and `make tarball` make: what is in it, what it depends on, and that the tarball works where it is
unpacked. That the packages work on a new machine is in tests/fresh/test_packages.py."""
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess

import pytest

from lib.engine import BUILD, ROOT

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
LIB = f"usr/lib/{platform.machine()}-linux-gnu"
# The older of Debian 12 and Ubuntu 22.04.
OLDEST = {"libc6": "2.35", "libcurl3-gnutls": "7.81.0", "libgnutls30": "3.7.3", "libmicrohttpd12": "0.9.75",
          "libsqlite3-0": "3.37.2"}


def make(target):
    done = subprocess.run(["make", "-s", target], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return [ROOT / line for line in done.stdout.splitlines() if line.startswith("build/dist/")]


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    """{package: (file, directory with its content and DEBIAN)}"""
    if not shutil.which("dpkg-gencontrol"):
        pytest.skip("dpkg-dev is not installed")
    top = tmp_path_factory.mktemp("debs")
    found = {}
    for path in make("deb"):
        package = path.name.partition("_")[0]
        subprocess.run(["dpkg-deb", "-R", path, top / package], check=True)
        found[package] = path, top / package
    return found


@pytest.fixture
def unpacked(tmp_path):
    (archive,) = make("tarball")
    subprocess.run(["sha256sum", "--quiet", "-c", f"{archive.name}.sha256"], cwd=archive.parent, check=True)
    subprocess.run(["tar", "-C", tmp_path, "-xf", archive], check=True)
    (top,) = tmp_path.iterdir()
    assert top.name == archive.name.removesuffix(".tar.gz")
    return top


@pytest.fixture
def plain(cay):
    """The environment of a user who sets nothing but where this test keeps its sandboxes."""
    return {name: value for name, value in cay.env.items() if name != "CAY_LIBEXEC_DIR"}


def run(*argv, env=None):
    return subprocess.run([str(word) for word in argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)


def files(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir() or path.is_symlink())


def test_debs_have_everything_once(debs):
    assert set(debs) == {"cay", "libcay0", "libcay-dev"}
    wanted = {
        "cay": ["usr/bin/cay", "usr/bin/cayd", "usr/libexec/cay/cay-keeper", "usr/libexec/cay/cay-remote",
                "usr/libexec/cay/cay-audit", "usr/lib/systemd/system/cayd.service",
                "usr/lib/systemd/system/cayd.socket", "usr/share/man/man1/cay.1.gz", "usr/share/man/man8/cayd.8.gz",
                "usr/share/man/man5/cay.conf.5.gz", "usr/share/man/man5/cayd.conf.5.gz",
                "usr/share/bash-completion/completions/cay", "usr/share/zsh/site-functions/_cay",
                "usr/share/fish/vendor_completions.d/cay.fish", "usr/share/doc/cay/openapi.yaml",
                "usr/share/doc/cay/copyright", "etc/cay/cay.conf", "etc/cay/cayd.conf"],
        "libcay0": [f"{LIB}/libcay.so.0", "DEBIAN/shlibs", "DEBIAN/triggers"],
        "libcay-dev": [f"{LIB}/libcay.so", f"{LIB}/libcay.a", f"{LIB}/pkgconfig/cay.pc", "usr/include/cay/cay.h"],
    }
    there = {package: set(files(top)) for package, (_, top) in debs.items()}
    for package, names in wanted.items():
        assert set(names) - there[package] == set(), package
    everything = [name for names in there.values() for name in names if not name.startswith("DEBIAN/")]
    assert len(everything) == len(set(everything)) and not [name for name in everything if "/local/" in name]
    top = debs["cay"][1]
    assert (top / "DEBIAN/conffiles").read_text() == "/etc/cay/cay.conf\n/etc/cay/cayd.conf\n"
    assert "ExecStart=/usr/bin/cayd\n" in (top / "usr/lib/systemd/system/cayd.service").read_text()
    assert b"/usr/libexec/cay" in (top / "usr/bin/cay").read_bytes()


def test_debs_depend_on_what_both_distributions_have(debs):
    release = platform.freedesktop_os_release()
    if (release["ID"], release["VERSION_ID"]) not in (("debian", "12"), ("ubuntu", "22.04")):
        pytest.skip("packages for both distributions are built on the older ones")
    for path, _ in debs.values():
        depends = run("dpkg-deb", "-f", path, "Depends").stdout
        for name, version in re.findall(r"([\w.-]+) \(>= ([^)]+)\)", depends):
            assert run("dpkg", "--compare-versions", version, "le", OLDEST[name]).returncode == 0, depends
    assert "libmicrohttpd12" in run("dpkg-deb", "-f", debs["cay"][0], "Depends").stdout


def test_debs_are_the_same_again(debs):
    before = {path: path.read_bytes() for path, _ in debs.values()}
    again = make("deb")
    assert sorted(again) == sorted(before)
    assert [path.name for path in again if path.read_bytes() != before[path]] == []


def test_example_against_the_development_package(cay, debs, tmp_path):
    for _, top in debs.values():
        shutil.copytree(top, tmp_path / "root", dirs_exist_ok=True, symlinks=True)
    root = tmp_path / "root"
    env = {**os.environ, "PKG_CONFIG_PATH": str(root / LIB / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    flags = run("pkg-config", "--cflags", "--libs", "cay", env=env).stdout.split()
    example = root / "usr/share/doc/libcay-dev/examples/hello.c"
    for kind, libs in (("shared", flags), ("static", [f.replace("-lcay", str(root / LIB / "libcay.a")) for f in flags])):
        subprocess.run(["cc", example, "-o", tmp_path / kind, *libs], check=True)
        done = run(tmp_path / kind, env={**cay.env, "LD_LIBRARY_PATH": str(root / LIB)})
        assert (done.returncode, done.stderr) == (0, ""), kind
        assert "hello from pid" in done.stdout


def test_tarball_works_where_it_is_unpacked(unpacked, plain):
    for cay in (unpacked / "bin/cay", unpacked.parent / "link"):
        if not cay.exists():
            cay.symlink_to(unpacked / "bin/cay")
        done = run(cay, "run", "--", "sh", "-c", "echo $((6 * 7))", env=plain)
        assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    for name in ("bin/cay", "libexec/cay/cay-keeper"):
        assert "INTERP" not in run("readelf", "-lW", unpacked / name).stdout
    assert not (unpacked / "bin/cayd").exists() and "cayd" in (unpacked / "README").read_text()


def test_tarball_installs_and_goes_again(unpacked, plain, tmp_path):
    prefix = tmp_path / "some where"
    done = run(unpacked / "install.sh", "--prefix", prefix, env=plain)
    assert done.returncode == 0, done.stderr
    assert "share/man/man1/cay.1" in files(prefix) and "share/bash-completion/completions/cay" in files(prefix)
    shutil.move(unpacked / "bin", unpacked / "away")  # what is installed needs nothing of what was unpacked
    assert run(prefix / "bin/cay", "run", "--", "echo", "hello", env=plain).stdout == "hello\n"
    shutil.move(unpacked / "away", unpacked / "bin")
    assert run(unpacked / "install.sh", "--prefix", prefix, "--remove", env=plain).returncode == 0
    assert files(prefix) == []


def test_tarball_that_was_changed_is_refused(unpacked, plain, tmp_path):
    with open(unpacked / "libexec/cay/cay-keeper", "ab") as keeper:
        keeper.write(b"x")
    done = run(unpacked / "install.sh", f"--prefix={tmp_path}/p", env=plain)
    assert done.returncode == 1 and "not the files" in done.stderr
    assert not pathlib.Path(tmp_path / "p").exists()


# -- the system call filters of both architectures

LD, JEQ, JGE, JSET, AND, JA, RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x05, 0x06
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def judge(program, audit, number, *args):
    """What the kernel would answer: the instructions that seccomp-gen makes."""
    data = struct.pack("<iIQ6Q", number, audit, 0, *(*args, *[0] * 6)[:6])
    at = a = 0
    while True:
        code, jt, jf, k = program[at]
        at += 1
        if code == RET:
            return k
        if code == LD:
            (a,) = struct.unpack_from("<I", data, k)
        elif code == AND:
            a &= k
        elif code == JA:
            at += k
        else:
            at += jt if {JEQ: a == k, JGE: a >= k, JSET: bool(a & k)}[code] else jf


@pytest.mark.parametrize("arch,numbers", [
    ("x86_64", {"openat": 257, "socket": 41, "mount": 165, "reboot": 169, "bpf": 321, "clone": 56, "ptrace": 101}),
    ("aarch64", {"openat": 56, "socket": 198, "mount": 40, "reboot": 142, "bpf": 280, "clone": 220, "ptrace": 117}),
])
def test_filters_have_the_numbers_of_their_architecture(arch, numbers, tmp_path):
    programs = {}
    for profile in ("strict", "default", "nested"):
        done = run(BUILD / "prog/seccomp-gen", arch, profile, tmp_path / profile)
        assert done.returncode == 0, done.stderr
        programs[profile] = list(struct.iter_unpack("<HBBI", (tmp_path / profile).read_bytes()))

    def says(profile, name, *args):
        return judge(programs[profile], AUDIT[arch], numbers[name], *args)

    assert says("default", "openat") == ALLOW
    assert [says("default", name) for name in ("mount", "reboot", "bpf")] == [EPERM] * 3
    assert says("nested", "mount") == ALLOW and says("strict", "ptrace") == EPERM
    assert says("default", "clone", 17) == ALLOW and says("default", "clone", 0x10000000) == EPERM
    assert says("default", "socket", 2, 1, 0) == ALLOW and says("default", "socket", 2, 3, 0) == EPERM
    assert judge(programs["default"], AUDIT[arch], 900) == ENOSYS
    other = next(audit for name, audit in AUDIT.items() if name != arch)
    assert judge(programs["default"], other, numbers["openat"]) == KILL
