# SPDX-License-Identifier: Apache-2.0
"""The TypeScript SDK and its adapters: runs tests/sdk/node/*.test.mjs, one case per file, against a cayd.

The tests find in their environment
    CAY_HOST, CAY_TEST_TCP, CAY_TEST_TOKEN   the daemon on its unix socket, on TCP, and a token for the latter
    CAY_TEST_CONTROL                         for *restart*.test.mjs, which have a daemon of their own: a unix socket;
                                             a line such as "restart kill9" is answered with "ok" when it is done
    CAY_TEST_CA                              for *tls*.test.mjs, which have a daemon of their own: its certificate
Files that need Node 24 have a second line "// node24".
"""
import contextlib
import fcntl
import os
import pathlib
import re
import socket
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = sorted((ROOT / "tests" / "sdk" / "node").glob("*.test.mjs"))
EXAMPLES = sorted((ROOT / "examples" / "typescript").glob("*.mjs"))
SECONDS = 240


@pytest.fixture(scope="session")
def node_home():
    done = subprocess.run([ROOT / "tests" / "tools" / "sdk-node"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


@contextlib.contextmanager
def control(daemon, path):
    """A unix socket that takes lines "method argument..." of the daemon, one per connection."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                with client, client.makefile("rw") as lines:
                    name, *words = lines.readline().split()
                    getattr(daemon, name)(*words)
                    lines.write("ok\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def environment(daemon, token, **more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CAY_", "NODE_"))}
    return {**clean, "CAY_HOST": f"unix:{daemon.sock}", "CAY_TEST_TCP": daemon.url, "CAY_TEST_TOKEN": token,
            **{name: str(value) for name, value in more.items()}}


def run(argv, env, home):
    """Runs it in a session of its own, so that nothing of it is left when it takes too long."""
    with open(home / "in-use") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return run_alone(argv, env)


def run_alone(argv, env):
    process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        pytest.fail(f"took more than {SECONDS} s:\n{output[-5000:]}")
    assert process.returncode == 0, output[-8000:]
    return output


def node_for(path, home):
    lines = path.read_text().splitlines()[:2]
    return home / "node24" / "bin" / "node" if "// node24" in lines else "node"


@pytest.fixture(scope="session")
def token(cayd):
    return cayd.token("sdk-node")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_file(path, node_home, cayd, token, request, tmp_path):
    """Every test of the file passes."""
    with contextlib.ExitStack() as stack:
        daemon, more = cayd, {}
        if "restart" in path.name or "tls" in path.name:
            daemon = request.getfixturevalue("daemons")(tcp=True, tls="tls" in path.name)
            token = daemon.token("sdk-node")
        if "restart" in path.name:
            more["CAY_TEST_CONTROL"] = stack.enter_context(control(daemon, tmp_path / "control"))
        if "tls" in path.name:
            more["CAY_TEST_CA"] = daemon.cert
        run([node_for(path, node_home), "--test", "--test-reporter=spec", path], environment(daemon, token, **more),
            node_home)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path, node_home, cayd, token):
    """The examples run as they are, and are what docs/TYPESCRIPT.md shows."""
    program = path.read_text().partition("\n\n")[2]
    assert f"```js\n{program}```" in (ROOT / "docs" / "TYPESCRIPT.md").read_text()
    run(["node", path], environment(cayd, token), node_home)


def test_readme(node_home, cayd, token):
    """The program of README.md runs as it stands there."""
    (program,) = re.findall(r"^```js\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    argv = ["node", "--input-type=module", "--eval", program]
    assert run(argv, environment(cayd, token), node_home) == "42\n\n"


def test_types(node_home):
    """The SDK compiles without a type error, and so do programs that use every part of it (*.test-d.ts)."""
    assert (node_home / "tsc.log").read_text() == ""
    tsc = node_home / "node_modules" / "typescript" / "bin" / "tsc"
    for config in ("tsconfig.sdk.json", "tsconfig.json"):
        run(["node", tsc, "-p", ROOT / "tests" / "sdk" / "node" / config], dict(os.environ), node_home)
