# SPDX-License-Identifier: Apache-2.0
"""Walls that stop work are taken down by their users: everyday tools run in the default profile on the host
image, with no network and no help. A test is skipped only if the host does not have the tool at all."""

import base64
import hashlib
import os
import subprocess
import zipfile

import pytest

from security import harness
from security.everyday import TOOLS

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"


def has(tool):
    return any(os.access(os.path.join(folder, tool), os.X_OK) for folder in PATH.split(":"))


@pytest.fixture(scope="module")
def desk(cay, probe_dir):
    """One sandbox for all of this module, with a little more memory for the compilers."""
    sandbox = harness.Sandbox(cay, probe_dir, "--memory", "4G", "--disk", "2G")
    yield sandbox
    sandbox.remove()


@pytest.mark.parametrize("tools,script,expected", [row[1:] for row in TOOLS], ids=[row[0] for row in TOOLS])
def test_tool(desk, tools, script, expected):
    missing = [tool for tool in tools.split() if not has(tool)]
    if missing:
        pytest.skip(f"not on this host below /usr: {' '.join(missing)}")
    done = desk.sh(script, options=("-e", f"PATH={PATH}"), timeout=180)
    assert expected in done.stdout, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


# -- tools that need something to work on


@pytest.fixture(scope="module")
def package(workshop):
    """A small Debian package with a program and a script that runs at its installation."""
    top = workshop / "deb"
    (top / "DEBIAN").mkdir(parents=True)
    (top / "usr/bin").mkdir(parents=True)
    (top / "DEBIAN/control").write_text(
        "Package: cay-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\n"
        "Description: says hello\n"
    )
    (top / "DEBIAN/postinst").write_text(
        "#!/bin/sh\nset -e\nchown 33:33 /usr/bin/cay-hello\nchmod 4755 /usr/bin/cay-hello\n"
    )
    (top / "DEBIAN/postinst").chmod(0o755)
    (top / "usr/bin/cay-hello").write_text("#!/bin/sh\necho hello from a package\n")
    (top / "usr/bin/cay-hello").chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", top, workshop / "cay-hello.deb"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return workshop / "cay-hello.deb"


needs_apt = pytest.mark.skipif(
    not (has("dpkg-deb") and has("apt-get")), reason="no Debian package tools on this host"
)


@needs_apt
@pytest.mark.parametrize(
    "how", ["dpkg -i /tmp/cay-hello.deb", "apt-get install -y /tmp/cay-hello.deb"], ids=["dpkg", "apt"]
)
def test_install_a_package(cay, box, package, how):
    sandbox = box()
    cay.run("cp", package, f"{sandbox.id}:/tmp/cay-hello.deb", check=True)
    done = sandbox.sh(
        f"export DEBIAN_FRONTEND=noninteractive; {how} && cay-hello && dpkg -s cay-hello"
        " && apt-get remove -y cay-hello && ! test -e /usr/bin/cay-hello"
        " && echo removed",
        timeout=120,
    )
    assert (
        "hello from a package" in done.stdout and "removed" in done.stdout
    ), f"{done.stdout[-1500:]}{done.stderr[-1500:]}"


@needs_apt
def test_apt_update_from_a_local_repository(cay, box, package):
    sandbox = box()
    cay.run("cp", package, f"{sandbox.id}:/tmp/cay-hello.deb", check=True)
    done = sandbox.sh(
        "mkdir -p /tmp/repo && mv /tmp/cay-hello.deb /tmp/repo && cd /tmp/repo && "
        "(dpkg-deb -f cay-hello.deb; echo Filename: ./cay-hello.deb; echo Size: $(stat -c %s cay-hello.deb);"
        " echo SHA256: $(sha256sum cay-hello.deb | cut -d' ' -f1)) > Packages && "
        "echo 'deb [trusted=yes] file:/tmp/repo ./' > /etc/apt/sources.list && rm -rf /etc/apt/sources.list.d && "
        "apt-get update && apt-get install -y cay-hello && cay-hello",
        timeout=180,
    )
    assert "hello from a package" in done.stdout, f"{done.stdout[-1500:]}{done.stderr[-1500:]}"


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def wheel(workshop):
    """A wheel made by hand: pip needs no build tools and no network for it."""
    path = workshop / "cayhello-1.0-py3-none-any.whl"
    files = {
        "cayhello.py": "def main():\n    print('hello from a wheel')\n",
        "cayhello-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: cayhello\nVersion: 1.0\n",
        "cayhello-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "cayhello-1.0.dist-info/entry_points.txt": "[console_scripts]\ncayhello = cayhello:main\n",
    }
    record = "".join(f"{name},sha256={digest(text)},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("cayhello-1.0.dist-info/RECORD", record + "cayhello-1.0.dist-info/RECORD,,\n")
    return path


@pytest.mark.skipif(not has("python3"), reason="no python3 on this host")
def test_pip_installs_a_wheel_into_a_venv(cay, box, wheel):
    if (
        subprocess.run(
            ["/usr/bin/python3", "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL
        ).returncode
        != 0
    ):
        pytest.skip("no python3-venv on this host")
    sandbox = box()
    cay.run("cp", wheel, f"{sandbox.id}:/tmp/{wheel.name}", check=True)
    done = sandbox.sh(
        f"cd /tmp && /usr/bin/python3 -m venv v && v/bin/pip install --no-index /tmp/{wheel.name}"
        " && v/bin/cayhello && v/bin/pip list --disable-pip-version-check",
        timeout=180,
    )
    assert "hello from a wheel" in done.stdout, f"{done.stdout[-1500:]}{done.stderr[-1500:]}"


def test_work_as_an_ordinary_user(desk):
    """uid 1000 has a place to write, sees itself, and can use a compiler."""
    done = desk.sh(
        "cd $(mktemp -d) && id -u && touch f && python3 -c 'print(6*7)' && echo fine", options=("-u", "1000")
    )
    assert "1000" in done.stdout and "fine" in done.stdout, done.stderr


@pytest.mark.skipif(not has("bash"), reason="no bash on this host")
def test_interactive_shell_on_a_terminal(cay, desk):
    done = cay.run(
        "exec", "-t", desk.id, "--", "bash", "-c", "tty; stty size; test -t 0 && test -t 1 && echo terminal"
    )
    assert "terminal" in done.stdout and "/dev/pts/" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "tool,script",
    [
        ("unshare", "unshare -Ur id -u"),
        ("bwrap", "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-user true && echo 0"),
    ],
)
def test_nested_profile_lets_agents_bring_their_own_sandbox(sandboxes, tool, script):
    if not has(tool):
        pytest.skip(f"no {tool} on this host")
    done = sandboxes("nested").sh(script)
    assert done.stdout.strip().endswith("0"), done.stderr
