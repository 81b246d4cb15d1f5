# SPDX-License-Identifier: Apache-2.0
"""The section of README.md about the daemon, from its first command to its last, in one shell."""
import os
import re
import subprocess

from lib.daemon import PROGRAM, Daemon
from lib.engine import PROG, ROOT

HEADING = "## Over HTTP"


def test_commands_of_the_daemon(tmp_path):
    section = (ROOT / "README.md").read_text().partition(HEADING + "\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    assert len(blocks) >= 4
    with Daemon(start=False, listen=None) as d:  # where its files are; it is started by the text
        d.write_config()
        tools = tmp_path / "bin"
        tools.mkdir()
        # The daemon of this test is one with files of its own, and is not called otherwise for it.
        (tools / "cayd").write_text("#!/bin/sh\ncase ${1:-} in\n"
                                    f"token) exec {PROGRAM} \"$@\" --file {d.tokens_file} ;;\n"
                                    f"*) exec {PROGRAM} --config {d.config} \"$@\" ;;\nesac\n")
        (tools / "cayd").chmod(0o755)
        script = "set -eu -o pipefail\n" + "".join(blocks).replace("/run/cay/cayd.sock", str(d.run_dir / "cayd.sock"))
        done = subprocess.run(["bash", "-c", script + "wait\n"], cwd=tmp_path, stdin=subprocess.DEVNULL,
                              env={**d.env, "PATH": f"{tools}:{PROG}:{os.environ['PATH']}"}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)
        assert done.returncode == 0, (done.stdout, done.stderr)
        for part in ('"id":"web1"', '"stdout":"42\\n"', "\nweb1\n", "uid=0", "config, tokens and policy are fine",
                     "ci@acme", "ok"):
            assert part in done.stdout, (part, done.stdout)
        assert re.fullmatch(r"cay_\S{43}\n", (tmp_path / "ci.token").read_text())
        assert d.cay.ids() == []
