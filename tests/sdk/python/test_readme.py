# SPDX-License-Identifier: Apache-2.0
"""The Python program of README.md, as it stands there."""
import os
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"


def test_program(cayd, cay):
    """It runs, prints what it says, and leaves nothing."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "CAY_HOST": f"unix:{cayd.sock}"},
                          stdout=subprocess.PIPE, timeout=60, text=True)
    assert done.stdout == "42\n\nstdout b'hello\\n'\n"
    assert done.returncode == 0 and cay.list() == []
