# SPDX-License-Identifier: Apache-2.0
"""The shipped configuration works, and what documents name exists."""
import re
import subprocess

import pytest

from lib.engine import ROOT


def test_example_configuration_loads(cay):
    done = cay.run("run", "--", "true", env={"CAY_CONFIG": str(ROOT / "examples/cay.conf")})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["ubuntu:22.04", "python:3.12", "node:22", "debian"])
def test_example_configuration_gives_no_registry_name_to_the_host(cay, name):
    done = cay.run("run", "--image", name, "--", "true", env={"CAY_CONFIG": str(ROOT / "examples/cay.conf")})
    assert done.returncode == 125 and f"image '{name}': registry images are not supported yet" in done.stderr


def test_make_targets_in_documents_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "docs/INSTALL.md"):
        path = ROOT / name
        if not path.exists():
            continue
        for target in re.findall(r"(?:^|`)make ([a-z]+)\b(?=[`\s])", path.read_text(), re.M):
            assert re.search(rf"^{target}:", makefile, re.M), f"{name}: make {target}"


@pytest.mark.parametrize("script", ["quickstart", "tools/install", "tools/unit", "tools/fuzz", "tools/make-archive", "tools/make-sdk", ".ci/run",
                                    "tests/fresh/boot", "tests/soak/qemu/guest-init", "tests/soak/qemu/guest-smoke",
                                    "tests/soak/qemu/guest-daemon", "tools/cross-file", "tools/package",
                                    "dist/tarball/install.sh", "dist/deb/cay.postinst", "dist/deb/cay.prerm",
                                    "dist/deb/cay.postrm"])
def test_scripts_parse(script):
    shell = "bash" if script in ("quickstart", "tools/package") else "sh"
    subprocess.run([shell, "-n", ROOT / script], check=True)


def test_quickstart_refuses_what_it_does_not_know():
    done = subprocess.run([ROOT / "quickstart", "tset"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0 and "usage" in done.stderr


def test_ci_types_the_two_commands_of_the_readme():
    block = (ROOT / "README.md").read_text().partition("## Start\n")[2].partition("```sh\n")[2].partition("```")[0]
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert len(commands) == 2
    assert " && exec ".join(commands) in (ROOT / ".ci/run").read_text()
