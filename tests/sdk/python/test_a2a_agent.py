# SPDX-License-Identifier: Apache-2.0
"""cay as `ctx.sandbox` of the published a2a-pack: contexts, agents, its workspace flows, adoption, older revisions."""
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import types
import uuid

import a2a_pack as a2a
import pytest
from a2a_pack.auth import NoAuth
from a2a_pack.deepagents import WorkspaceBackend
from a2a_pack.sandbox import ExecResult, SandboxSpec, SandboxUnavailable
from a2a_pack.workspace import FileSystemWorkspaceClient, WorkspaceAccess

from cay.adapters.a2a import CaySandboxClient

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def client(host, tmp_path):
    """A client of an owner of its own, whose workspaces are in tmp_path; all of its sandboxes are removed."""
    client = CaySandboxClient(host, owner=f"test-{uuid.uuid4().hex}", workspaces=str(tmp_path))
    yield client

    async def clear():
        async with client:
            for name in await client.list():
                await client.remove(name)

    asyncio.run(clear())


@pytest.fixture
def context(client, tmp_path):
    """a2a's own local context, with files of the workspace "local" and with sandboxes of cay."""
    workspace = FileSystemWorkspaceClient(tmp_path / "local", access=WorkspaceAccess.none())
    return a2a.LocalRunContext(auth=NoAuth(), workspace=workspace, sandbox=client)


class Coder(a2a.A2AAgent):
    name = "coder"
    description = "Runs code."

    @a2a.skill(description="Runs Python code.")
    async def compute(self, ctx: a2a.RunContext, code: str) -> str:
        return (await ctx.sandbox.run_python(code, timeout_seconds=20)).stdout

    @a2a.skill(description="Works in one sandbox.")
    async def session(self, ctx: a2a.RunContext) -> list[str]:
        box = await ctx.sandbox.create(SandboxSpec(name="session", cpus=1, memory_mib=128))
        try:
            await box.shell("echo kept > /tmp/file")
            return [(await box.exec("cat", ["/tmp/file"])).stdout, *await ctx.sandbox.list()]
        finally:
            await box.stop()


def test_context_hands_out_the_client(client):
    """LocalRunContext(auth=..., sandbox=client).sandbox is the client; without one it raises SandboxUnavailable."""
    assert a2a.LocalRunContext(auth=NoAuth(), sandbox=client).sandbox is client
    with pytest.raises(SandboxUnavailable):
        a2a.LocalRunContext(auth=NoAuth()).sandbox


def test_skills_of_an_agent(client):
    """agent.local_invoke("skill", sandbox=client): its skills run in cay."""

    async def main():
        agent = Coder()
        return (await agent.local_invoke("compute", sandbox=client, code="print(6 * 7)"),
                await agent.local_invoke("session", sandbox=client), await client.list())

    assert asyncio.run(main()) == ("42\n", ["kept\n", "session"], [])


def test_workspace_shell_and_python(context, client, tmp_path):
    """ctx.workspace_shell and workspace_python: the workspace is mounted, all of it writable; then all is removed."""
    (tmp_path / "local" / "in.txt").write_text("input\n")

    async def main():
        shell = await context.workspace_shell("cat /workspace/in.txt && echo s > /workspace/from-shell",
                                              timeout_seconds=20, memory_mib=128)
        code = "print(open('/from-shell').read()); open('/workspace/from-python', 'w')"
        python = await context.workspace_python(code)
        slow = await context.workspace_shell("sleep 300", timeout_seconds=0.2)
        return shell, python, slow, await client.list()

    shell, python, slow, left = asyncio.run(main())
    assert shell == ExecResult(stdout="input\n") and python == ExecResult(stdout="s\n\n")
    assert slow.exit_code == 124 and slow.stderr == "sandbox timeout after 0.2s"
    assert (tmp_path / "local" / "from-python").exists() and left == []


def test_workspace_backend_executes(context, client, tmp_path):
    """WorkspaceBackend.aexecute: run_shell(cmd, image=, workspace=bucket, timeout_seconds=t), on the same files."""
    backend = WorkspaceBackend(context.workspace, sandbox=client)

    async def main():
        context.workspace.write_bytes("data/a.txt", b"from the file tools\n")
        good = await backend.aexecute("cat /data/a.txt; echo made > /outputs/b.txt; exit 3", timeout=20)
        slow = await backend.aexecute("echo begun; sleep 300", timeout=2)
        return good, slow, await backend.aexecute("true"), await client.list()

    good, slow, plain, left = asyncio.run(main())
    assert (good.output, good.exit_code, good.truncated) == ("from the file tools\n", 3, False)
    assert (slow.output, slow.exit_code) == ("begun\nsandbox timeout after 2s", 124)
    assert plain.exit_code == 0 and left == []
    assert (tmp_path / "local" / "outputs" / "b.txt").read_text() == "made\n"


def test_workspace_backend_without_a_loop(context, client):
    """WorkspaceBackend.execute runs each call in an event loop of its own, with the same client."""
    backend = WorkspaceBackend(context.workspace, sandbox=client)
    assert [backend.execute(f"echo {number}").output for number in (1, 2)] == ["1\n", "2\n"]


def test_context_makes_the_backend(context):
    """ctx.workspace_backend() passes the client on."""
    assert asyncio.run(context.workspace_backend().aexecute("echo hi")).output == "hi\n"


# ---- other processes


CREATOR = """
import asyncio, sys
from a2a_pack.sandbox import SandboxSpec
from cay.adapters.a2a import CaySandboxClient

async def main():
    client = CaySandboxClient(sys.argv[1], owner=sys.argv[2], workspaces=sys.argv[3])
    box = await client.create(SandboxSpec(name="Left Behind", workspace="local"))
    await box.shell("echo alive > /tmp/mark; (while :; do date > /tmp/clock; sleep 0.1; done) > /dev/null 2>&1 &")
    print("ready", flush=True)
    await box.shell("sleep 300")

asyncio.run(main())
"""


def test_adoption_after_the_creator_was_killed(client, host, tmp_path):
    """get(name) and list() work in another process, also after kill -9 of the one that made it; all of it is there."""
    creator = subprocess.Popen([sys.executable, "-c", CREATOR, host, client.owner, tmp_path], stdout=subprocess.PIPE,
                               text=True)
    try:
        assert creator.stdout.readline() == "ready\n"
    finally:
        creator.send_signal(signal.SIGKILL)
        creator.wait()
        creator.stdout.close()

    async def main():
        assert await client.list() == ["Left Behind"]
        box = await client.get("Left Behind")
        (tmp_path / "local" / "late").mkdir()
        ticks = "rm /tmp/clock; until [ -e /tmp/clock ]; do sleep 0.01; done"
        result = await box.shell(f"cat /tmp/mark; {ticks}; readlink /late")
        assert "alive\n" in await box.logs()
        await box.stop()
        return box.name, result.stdout, await client.list()

    assert asyncio.run(main()) == ("Left Behind", "alive\n/workspace/late\n", [])


def test_one_client_in_many_tasks(client):
    """One client serves concurrent calls."""

    async def main():
        results = await asyncio.gather(*(client.run_shell(f"echo {number}") for number in range(6)))
        return [result.stdout for result in results]

    assert asyncio.run(main()) == [f"{number}\n" for number in range(6)]


def test_in_the_place_of_the_runtimes_own_client(host, tmp_path):
    """The runtime's service makes its client with minio_* arguments, uses it by names and removes all that is left."""
    service = types.ModuleType("service")
    service.LocalMicrosandboxClient = lambda **options: CaySandboxClient(
        host, owner=f"test-{uuid.uuid4().hex}", workspaces=str(tmp_path), **options)

    @contextlib.asynccontextmanager
    async def lifespan():
        client = service.LocalMicrosandboxClient(minio_endpoint="http://minio", minio_access_key="a",
                                                 minio_secret_key=None)
        try:
            yield client
        finally:
            for name in await client.list():
                await client.remove(name)
            assert await client.list() == []
            await client.aclose()

    async def main():
        labels = {"network_disabled": "false", "workspace_mode": "read_write_overlay", "workspace_deny_patterns": "[]",
                  "workspace_allow_patterns": '["**"]', "workspace_outputs_prefix": "outputs/"}
        async with lifespan() as client:
            name = f"sb-{uuid.uuid4().hex}"
            await client.create(SandboxSpec(name=name, workspace="user-1-files", labels=labels))
            return await (await client.get(name)).shell("echo a > /outputs/a", timeout=120.0)

    assert asyncio.run(main()).ok
    assert (tmp_path / "user-1-files" / "outputs" / "a").exists()


# ---- older revisions


OLDER = """
import abc, asyncio, dataclasses, json, sys, types

# What a revision before SandboxRuntimeError and ExecResult.files has.
@dataclasses.dataclass(frozen=True)
class ExecResult:
    stdout: str
    stderr: str = ""
    exit_code: int = 0
    truncated: bool = False

@dataclasses.dataclass(frozen=True)
class SandboxSpec:
    name: str
    image: str = "python:3.11-slim"
    memory_mib: int = 512
    cpus: int = 1
    workspace: str | None = None
    secrets: tuple = ()
    egress: tuple = ()
    labels: dict = dataclasses.field(default_factory=dict)

def abstract(name, *methods):
    return abc.ABCMeta(name, (), {method: abc.abstractmethod(lambda self: None) for method in methods})

module = types.ModuleType("a2a_pack.sandbox")
module.ExecResult, module.SandboxSpec = ExecResult, SandboxSpec
module.SandboxHandle = abstract("SandboxHandle", "exec", "shell", "stop", "kill", "logs")
module.SandboxClient = abstract("SandboxClient", "create", "get", "list", "remove")
sys.modules["a2a_pack"] = package = types.ModuleType("a2a_pack")
sys.modules["a2a_pack.sandbox"] = package.sandbox = module

from cay.adapters.a2a import CaySandboxClient

async def main():
    async with CaySandboxClient(sys.argv[1], owner=sys.argv[2]) as client:
        assert isinstance(client, module.SandboxClient)
        box = await client.create(SandboxSpec(name="box"))
        results = [await box.shell("echo hi; exit 2"), await box.exec("sleep", ["300"], timeout=0.1)]
        await client.remove("box")
        try:
            await box.shell("true")
        except RuntimeError as error:
            results.append(await client.run_python("print(6 * 7)", timeout_seconds=20))
            assert all(type(result) is ExecResult for result in results)
            results = [dataclasses.astuple(result) for result in results]
            return results, type(error).__name__, str(error), await client.list()

print(json.dumps(asyncio.run(main())))
"""


def test_revisions_without_files_and_runtime_errors(host):
    """An older revision, without ExecResult.files and SandboxRuntimeError, is served, too: errors are RuntimeError."""
    done = subprocess.run([sys.executable, "-c", OLDER, host, f"test-{uuid.uuid4().hex}"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results, kind, text, left = json.loads(done.stdout)
    assert results == [["hi\n", "", 2, False], ["", "sandbox timeout after 0.1s", 124, False], ["42\n", "", 0, False]]
    assert kind == "RuntimeError" and "sandbox exec failed" in text and left == []


def test_the_example_runs(host):
    """examples/a2a/agent.py, which the user's page shows, runs as it is."""
    done = subprocess.run([sys.executable, ROOT / "examples" / "a2a" / "agent.py"], capture_output=True, text=True,
                          env={**os.environ, "CAY_HOST": host}, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "45\n2 numbers.csv\non the host: 2 numbers.csv\n"


def test_the_page_shows_the_example():
    """The program on the user's page is the example's text."""
    page, program = ROOT / "docs" / "frameworks" / "a2a.md", ROOT / "examples" / "a2a" / "agent.py"
    assert f"```python\n{program.read_text()}```\n" in page.read_text()
