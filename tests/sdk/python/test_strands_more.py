# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.strands: what the SDK asks of its own sandboxes beyond test_strands.py: many calls at once, odd names,
a release of the SDK that has request(); and what is not in this version."""
import asyncio
import subprocess
import sys

import pytest
from strands.sandbox import ExecutionResult, StreamChunk
from strands.sandbox.errors import SandboxTimeoutError

from cay import Unsupported
from cay.adapters.strands import CaySandbox, SandboxHttpError


@pytest.fixture(scope="module")
def sandbox(host):
    with CaySandbox(host=host) as made:
        yield made


def do(coroutine):
    return asyncio.run(coroutine)


def test_at_once(sandbox):
    """Commands run at the same time, and so do writes."""
    names = ["one", "two", "three"]
    meet = "touch here-$N; while [ $(ls here-* | wc -l) -lt 3 ]; do sleep 0.01; done; echo $N"

    async def main():
        results = await asyncio.gather(*(sandbox.execute(meet, env={"N": name}, timeout=30) for name in names))
        await asyncio.gather(*(sandbox.write_text(name, name) for name in names))
        return [result.stdout.strip() for result in results], [await sandbox.read_text(name) for name in names]

    assert do(main()) == (names, names)


@pytest.mark.parametrize("name", ["with spaces", "it's", 'a "b"', "$(id)", "a\nb", "-rf", "ünïcödé ☕", "*"])
def test_odd_names(sandbox, name):
    """Paths with spaces, quotes, newlines and what is special to a shell."""
    async def main():
        path = f"odd/{name}/file"
        await sandbox.write_text(path, name)
        assert await sandbox.read_text(path) == name
        assert [info.name for info in await sandbox.list_files(f"odd/{name}")] == ["file"]
        assert (await sandbox.execute("cat file", cwd=f"odd/{name}")).stdout == name
        await sandbox.remove_file(path)
        assert await sandbox.list_files(f"odd/{name}") == []

    do(main())


def test_fresh_shell(sandbox):
    """Each command is a fresh shell: neither variables nor the directory stay."""
    do(sandbox.execute("export EPHEMERAL=1; cd /tmp"))
    assert do(sandbox.execute("echo ${EPHEMERAL:-unset} $PWD")).stdout == "unset /workspace\n"


def test_timeout_of_zero(sandbox):
    """A timeout of 0 is over at once."""
    with pytest.raises(SandboxTimeoutError, match="Execution timed out after 0 seconds"):
        do(sandbox.execute("sleep 60", timeout=0))


def test_output_files(sandbox):
    """output_files is empty, also when a command makes files: they stay in the sandbox."""
    done = do(sandbox.execute_code("open('plot.png', 'wb').write(b'png')", "python3"))
    assert (done.exit_code, done.output_files) == (0, [])
    assert do(sandbox.read_file("plot.png")) == b"png"


def test_unknown_keywords_of_all_other_methods(sandbox):
    """**kwargs are accepted by the streaming, the text and the HTTP methods as well."""
    async def main():
        for stream in (sandbox.execute_streaming("echo hi", later=1),
                       sandbox.execute_code_streaming("echo hi", "sh", later=1)):
            items = [item async for item in stream]
            assert items == [StreamChunk("hi\n", "stdout"), ExecutionResult(0, "hi\n", "", [])]
        await sandbox.write_text("kw", "x", later=1)
        assert await sandbox.read_text("kw", later=1) == "x"
        with pytest.raises(SandboxHttpError, match="refused"):
            await sandbox.request("GET", "http://127.0.0.1:9/", later=1)

    do(main())


SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path[1:]), "Of Its Own")
        self.send_header("X-Mixed-Case", "kept")
        self.end_headers()
        self.wfile.write(b"why")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8124), Handler)
if os.fork() == 0:
    server.serve_forever()
"""


def test_request_all_error_statuses(sandbox):
    """request(): 4xx and 5xx are returned, with their reason, their headers in lower case and their body."""
    assert do(sandbox.execute_code(SERVER, "python3")).exit_code == 0
    for status in (400, 401, 418, 500, 503):
        result = do(sandbox.request("GET", f"http://127.0.0.1:8124/{status}"))
        assert (result.status, result.status_text, result.body) == (status, "Of Its Own", b"why")
        assert result.headers["x-mixed-case"] == "kept"


NEWER = """
import dataclasses, strands.sandbox.errors, strands.sandbox.types
class SandboxHttpError(Exception): pass
@dataclasses.dataclass
class HttpResult:
    status: int
    status_text: str
    resolved_url: str
    headers: dict
    body: bytes
strands.sandbox.errors.SandboxHttpError = SandboxHttpError
strands.sandbox.types.HttpResult = HttpResult
from cay.adapters import strands as adapter
assert adapter.SandboxHttpError is SandboxHttpError and adapter.HttpResult is HttpResult
"""


def test_classes_of_a_newer_sdk():
    """request(): SandboxHttpError and HttpResult are the SDK's own where it has them, by which its tools know them."""
    done = subprocess.run([sys.executable, "-B", "-c", NEWER], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("options", [{"network": "allow-all"}, {"network": "open"}, {"secrets": {"KEY": "x"}},
                                     {"image": "ubuntu:22.04"}])
def test_not_in_this_version(host, options):
    """A network, secrets and registry images are refused with Unsupported, by create and at the first use."""
    with pytest.raises(Unsupported):
        do(CaySandbox.create(host=host, **options))
    with pytest.raises(Unsupported), CaySandbox(host=host, **options) as lazy:
        do(lazy.execute("true"))


def test_no_network(sandbox):
    """Commands reach nothing but the sandbox's own loopback."""
    done = do(sandbox.execute_code("exec 3<>/dev/tcp/192.0.2.1/80", "bash"))
    assert done.exit_code != 0 and "unreachable" in done.stderr
