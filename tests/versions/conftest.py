# SPDX-License-Identifier: Apache-2.0
"""Fixtures for programs of several versions on one machine.

machine  a Machine of its own for one test: machine.install("next") puts other programs in the place of those that are
         installed, as a package manager would; sandboxes, and a daemon that runs, stay
"""
import os
import re
import shutil
import subprocess

import pytest

from lib.daemon import Daemon
from lib.engine import ROOT
from versions.build import builds

REF = os.environ.get("CAY_TEST_REF")  # a commit that this version is to work with; see tests/versions/run
OWN = re.findall(r"#define WIRE_(?:MAJOR|MINOR) (\d+)", (ROOT / "src/wire/version.h").read_text())
LATER = f"{OWN[0]}.99"
PROTOCOLS = {"own": ".".join(OWN), "next": LATER, "must": LATER, "major": f"99.{OWN[1]}"}


class Machine(Daemon):
    """A daemon that is not started, with its directories and the command line (.cay)."""

    def __init__(self, trees, **options):
        super().__init__(start=False, **options)
        self.trees, self.bin = trees, self.top / "bin"
        self.bin.mkdir()
        self.cay.program = str(self.bin / "cay")
        for env in (self.cay.env, self.env):
            env["CAY_LIBEXEC_DIR"] = str(self.bin)
        self.install("own")

    def install(self, version, *programs):
        """All programs, or only those that are named."""
        for place, program in (("prog", "cay"), ("prog", "cay-keeper"), ("lib", "cayd")):
            if not programs or program in programs:
                shutil.copy2(self.trees[version] / place / program, self.bin / "new")
                os.replace(self.bin / "new", self.bin / program)
        return self

    def argv(self):
        return [str(self.bin / "cayd"), "--config", str(self.config)]

    def version(self, name):
        done = subprocess.run([self.trees[name] / "prog" / "cay", "--version"], stdout=subprocess.PIPE, text=True,
                              check=True)
        return done.stdout.split()[1]

    def who(self, name):
        """As an error names it."""
        return f"cay {self.version(name)} (protocol {PROTOCOLS[name]})"


@pytest.fixture(scope="session")
def trees():
    if os.geteuid() != 0:
        pytest.skip("pauses, and limits memory: takes root")
    return builds(REF)


@pytest.fixture(scope="session")
def first_machine(trees):
    """Makes the image, which the others share."""
    machine = Machine(trees)
    machine.cay.run("run", "--", "true", check=True)
    yield machine
    assert machine.close() == []


@pytest.fixture
def machine(first_machine, trees):
    made = Machine(trees, pool=0)
    made.share_image(first_machine)
    yield made
    assert made.close() == []
