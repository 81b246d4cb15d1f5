# SPDX-License-Identifier: Apache-2.0
"""The tests of the Python SDK and its adapters: one case for each file of tests/sdk/python, run by the Python of
tests/tools/sdk-venv, which has the frameworks. Each has a daemon of its own, and several run at a time."""
import concurrent.futures
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests/sdk/python").glob("test_*.py"))
AT_ONCE = min(4, os.cpu_count() or 1)
SECONDS = 300


def run(python, file):
    return subprocess.run([python, "-B", "-m", "pytest", "-q", "-c", "tests/pytest.ini", "--rootdir", "tests", file],
                          cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def results(request):
    """What comes of each file that was asked for."""
    made = subprocess.run([ROOT / "tests/tools/sdk-venv"], stdout=subprocess.PIPE, text=True)
    assert made.returncode == 0, "tests/tools/sdk-venv failed; it takes packages from the Python package index"
    wanted = [item.callspec.params["file"] for item in request.session.items
              if item.path == pathlib.Path(__file__) and item.originalname == "test_file"]
    pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
    yield {file: pool.submit(run, made.stdout.strip(), file) for file in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file(results, file):
    done = results[file].result()
    assert done.returncode == 0, done.stdout
