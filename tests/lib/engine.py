# SPDX-License-Identifier: Apache-2.0
"""A cay of its own: the programs of the build tree with a state and a run directory of their own.

Used by the fixtures in tests/conftest.py, and directly by whatever needs a second engine or another user.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("CAY_TEST_BUILD", ROOT / "build")).resolve()
PROG = BUILD / "prog"


class Engine:
    """cay.run("ps", "-a"): the CLI against this engine's directories.

    state, run_dir  its directories; short, because a unix socket's path ends at 108 bytes
    env             what every call gets: a clean environment, not the one of the test run
    """

    def __init__(self, prefix="cayt-"):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        self.top.chmod(0o711)
        self.state = self.top / "s"
        self.run_dir = self.top / "r"
        self.config = self.top / "cay.conf"
        self.config.write_text("")
        self.program = str(PROG / "cay")
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "CAY_STATE_DIR": str(self.state),
            "CAY_RUN_DIR": str(self.run_dir),
            "CAY_CONFIG": str(self.config),
            "CAY_LIBEXEC_DIR": str(PROG),
        }

    def run(self, *args, input=None, timeout=60, text=True, check=False, env=None, **popen):
        """Runs `cay ARGS` to its end. Text unless text=False; input may be str or bytes accordingly.

        check=True fails the test with cay's own words when the exit code is not 0.
        """
        if input is None and "stdin" not in popen:
            popen["stdin"] = subprocess.DEVNULL
        elif input is not None:
            popen["input"] = input
        done = subprocess.run([self.program, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=timeout, text=text, errors="replace" if text else None,
                              env={**self.env, **(env or {})}, **popen)
        if check and done.returncode != 0:
            raise AssertionError(f"cay {' '.join(map(str, args))}: exit {done.returncode}\n"
                                 f"stdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def popen(self, *args, env=None, **popen):
        """Starts `cay ARGS` with pipes and leaves it running."""
        popen = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen([self.program, *map(str, args)], env={**self.env, **(env or {})}, **popen)

    def json(self, *args, **options):
        """The parsed standard output of a call that must succeed; add --json yourself."""
        return json.loads(self.run(*args, check=True, **options).stdout)

    def create(self, *args, **options):
        """Creates a sandbox and returns its id."""
        return self.run("create", *args, check=True, **options).stdout.strip()

    def sh(self, sandbox, script, *args, **options):
        """Runs a shell script in a sandbox."""
        return self.run("exec", *args, sandbox, "--", "/bin/sh", "-c", script, **options)

    def ids(self):
        return self.run("ps", "-a", "-q").stdout.split()

    def clean(self):
        """Removes every sandbox of this engine."""
        ids = self.ids()
        if ids:
            self.run("rm", "-f", *ids, timeout=120)

    def close(self):
        try:
            self.clean()
        finally:
            shutil.rmtree(self.top, ignore_errors=True)
