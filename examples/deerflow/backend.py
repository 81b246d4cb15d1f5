# SPDX-License-Identifier: Apache-2.0
"""A sandbox as DeerFlow's provider gets it from a backend, used by the client that DeerFlow uses.

    pip install ./sdk/python agent-sandbox
    python backend.py
"""
import pathlib
import tempfile

import agent_sandbox

from cay.adapters.deerflow import CayBackend

with tempfile.TemporaryDirectory() as workspace:
    backend = CayBackend(prefix="example", memory="512M")
    info = backend.create("thread-1", "0123abcd", extra_mounts=[(workspace, "/mnt/user-data/workspace", False)])
    try:
        client = agent_sandbox.Sandbox(base_url=info.sandbox_url)
        client.file.write_file(file="/mnt/user-data/workspace/sum.py", content="print(sum(range(10)))\n")
        done = client.shell.exec_command(command="cd /mnt/user-data/workspace; python sum.py > result.txt; cat result.txt")
        print("in the sandbox:", done.data.output.strip())
        print("on the host:", pathlib.Path(workspace, "result.txt").read_text().strip())
        print("found again:", CayBackend(prefix="example").discover("0123abcd") == info)
    finally:
        backend.destroy(info)
