# SPDX-License-Identifier: Apache-2.0
"""System calls of cay, keeper and init fail: a sample of what tests/soak/faults.py does in full (make soak), and rounds of
tests/soak/run --faults, in which that and damage to records happens to sandboxes that are at work."""
import os
import shutil
import subprocess
import sys

import pytest

from faults.conftest import SEED
from lib.engine import BUILD, ROOT

RUNS = os.environ.get("CAY_FAULTS_RUNS", "80")
ROUNDS = os.environ.get("CAY_FAULTS_ROUNDS", "120")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the leak oracle looks at every process"),
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]


def soak(*words):
    done = subprocess.run([sys.executable, "-B", ROOT / "tests" / "soak" / words[0], *words[1:], "--seed", str(SEED),
                           "--build", BUILD], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:]


def test_calls_that_fail():
    soak("faults.py", "--runs", RUNS)


def test_rounds_with_faults():
    soak("run", "--faults", "--rounds", ROUNDS)
