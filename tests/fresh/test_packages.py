# SPDX-License-Identifier: Apache-2.0
"""The packages on a machine that has the base system and nothing else: installed, used without systemd, with a program
for each SDK from its built package, upgraded and removed."""
import os
import pathlib
import shutil
import subprocess

import pytest

from fresh.machine import HOME, Machine
from lib import base
from lib.engine import ROOT

PACKAGES = ("cay", "libcay0", "libcay-dev")
# Not from the packages: what their programs in Python run on.
INTERPRETER = ("python3-venv",)
PYTHON = """
from cay import Cay
with Cay() as cay, cay.sandbox(memory="256M") as box:
    print(box.exec(["python3", "-c", "print(6 * 7)"]).stdout, end="")
"""
NODE = """
import { Cay } from "cay-sandbox";
import { cayProvider } from "cay-sandbox/eve";
await new Cay().withSandbox({ memory: "256M" }, async (box) => {
  process.stdout.write((await box.exec(["python3", "-c", "print(6 * 7)"])).stdout);
});
"""
# What the system keeps about packages that came and went, and what Python made of itself.
NOISE = ("/root/", "/var/lib/dpkg/", "/var/lib/apt/", "/var/cache/", "/var/log/", "/tmp/", "/proc/", "/sys/", "/dev/",
         "/etc/ld.so.cache", "/etc/host", "/var/lib/systemd/deb-systemd-helper-enabled")


def ok(done):
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def built():
    """The files that a user would have downloaded."""
    if not shutil.which("dpkg-gencontrol"):
        pytest.skip("dpkg-dev is not installed")
    done = subprocess.run(["make", "-s", "deb"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=900)
    assert done.returncode == 0, done.stdout
    subprocess.run(["tools/make-sdk"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600)
    node = subprocess.run(["tests/tools/sdk-node"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, timeout=600)
    return [*(ROOT / line for line in done.stdout.splitlines() if line.endswith(".deb")),
            *(ROOT / "build/sdk").glob("cay*sandbox-*"), pathlib.Path(node.stdout.strip()) / "node24/bin/node"]


def listing(machine):
    names = ok(machine.run("find", "/", "-xdev", "-not", "-type", "d", timeout=60)).splitlines()
    return {name for name in names if not name.startswith(NOISE)}


def in_background(machine, command):
    ok(machine.run("sh", "-c", f"{command} > /tmp/daemon.log 2>&1 & for i in $(seq 100); do "
                               "[ ! -S /run/cay/cayd.sock ] || exit 0; sleep 0.1; done; cat /tmp/daemon.log; exit 1",
                   timeout=60))


@pytest.fixture(scope="module")
def machine():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    files = built()
    with base.locked(base.cache_dir()) as cache:
        with Machine(cache) as made:
            downloads = pathlib.Path(f"/proc/{made.pid}/root{HOME}")
            for path in files:
                shutil.copy(path, downloads)
            ok(made.run("apt-get", "-q", "update", timeout=120))
            ok(made.run("apt-get", "-q", "-y", "--no-install-recommends", "install", *INTERPRETER, timeout=240))
            made.before = listing(made)
            yield made


def test_install(machine):
    assert machine.run("sh", "-c", "command -v cay cc", timeout=20).returncode != 0
    said = ok(machine.run("sh", "-c", "apt-get -q -y --no-install-recommends install ./*cay*.deb", timeout=240))
    assert "Setting up cay " in said
    assert ok(machine.run("dpkg", "--verify", *PACKAGES, timeout=30)) == ""
    links = ok(machine.run("ls", "/etc/systemd/system/sockets.target.wants", timeout=20))
    assert "cayd.socket" in links
    for program in ("cay", "cayd"):
        assert ok(machine.run(program, "--version", timeout=20)).startswith(program)


def test_run(machine):
    assert ok(machine.run("cay", "run", "--", "python3", "-c", "print(1)", timeout=60)) == "1\n"
    ok(machine.run("cay", "doctor", timeout=60))


def test_daemon_without_systemd(machine):
    ok(machine.run("cayd", "--check", timeout=30))
    in_background(machine, "cayd")
    assert ok(machine.run("cay", "--host", "unix:/run/cay/cayd.sock", "run", "--", "echo", "hello",
                          timeout=60)) == "hello\n"
    assert "create" in ok(machine.run("cay", "audit", timeout=60))


def test_program_in_python(machine):
    ok(machine.run("sh", "-c", "python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -q ./cay_sandbox-*.whl",
                   timeout=240))
    assert ok(machine.run("/tmp/venv/bin/python", "-c", PYTHON, timeout=60)) == "42\n"
    assert ok(machine.run("/tmp/venv/bin/python", "-m", "pip", "show", "-q", "cay-sandbox", timeout=60)) == ""


def test_program_in_typescript(machine):
    # What npm does with a package that has no dependencies; npm itself would be three hundred more packages here.
    ok(machine.run("sh", "-c", "mkdir -p /tmp/app/node_modules/cay-sandbox && tar -C /tmp/app/node_modules/cay-sandbox "
                               "--strip-components=1 -xf cay-sandbox-*.tgz", timeout=60))
    program = pathlib.Path(f"/proc/{machine.pid}/root/tmp/app/program.mjs")
    program.write_text(NODE)
    assert ok(machine.run("./node", "/tmp/app/program.mjs", timeout=60)) == "42\n"


def test_upgrade_leaves_sandboxes_alone(machine):
    ok(machine.run("cay", "create", "--name", "stays", timeout=60))
    ok(machine.run("cay", "exec", "stays", "--", "sh", "-c", "echo here > /tmp/file", timeout=60))
    ok(machine.run("sh", "-c", "echo '# mine' >> /etc/cay/cay.conf", timeout=20))
    ok(machine.run("sh", "-c", "apt-get -q -y reinstall ./cay_*.deb", timeout=120))
    assert ok(machine.run("cay", "exec", "stays", "--", "cat", "/tmp/file", timeout=60)) == "here\n"
    assert "# mine" in ok(machine.run("cat", "/etc/cay/cay.conf", timeout=20))


def test_remove_ends_what_runs_and_keeps_the_configuration(machine):
    ok(machine.run("apt-get", "-q", "-y", "remove", "cay", timeout=120))
    processes = ok(machine.run("sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null || :", timeout=20)).splitlines()
    assert [name for name in processes if "cay" in name] == []
    assert machine.run("test", "-e", "/run/cay", timeout=20).returncode != 0
    assert ok(machine.run("ls", "/etc/cay", timeout=20)).split() == ["cay.conf", "cayd.conf"]
    assert ok(machine.run("find", "/sys/fs/cgroup", "-name", "cay*", timeout=20)) == ""


def test_purge_leaves_nothing(machine):
    ok(machine.run("apt-get", "-q", "-y", "purge", "cay", timeout=120))
    ok(machine.run("apt-get", "-q", "-y", "autoremove", "--purge", timeout=120))
    assert sorted(listing(machine) - machine.before) == []
    for path in ("/etc/cay", "/var/lib/cay", "/usr/libexec/cay", "/usr/share/doc/cay"):
        assert machine.run("test", "-e", path, timeout=20).returncode != 0, path
    assert ok(machine.run("sh", "-c", "grep -l cayd -r /etc/systemd /var/lib/systemd 2>/dev/null || :",
                          timeout=20)) == ""
    machine.close()
    assert machine.left() == []
