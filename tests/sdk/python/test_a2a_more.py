# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.a2a: the interface as it was published first, what a2a's own suites pin, and what this version leaves
out."""
from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import pathlib
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Sequence

import a2a_pack.sandbox as installed
import pytest
from a2a_kit import runner

import cay as sdk
from cay.adapters.a2a import CaySandboxClient, CaySandboxHandle, SandboxImageRejected

SpecOfPack = installed.SandboxSpec


# ---- the interface, declaration by declaration. A program below runs with these classes instead of the installed ones.


@dataclass(frozen=True)
class ExecResult:
    stdout: str
    stderr: str = ""
    exit_code: int = 0
    truncated: bool = False

    @property
    def output(self) -> str:
        return self.stdout + (self.stderr or "")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class SandboxSpec:
    name: str
    image: str = "python:3.11-slim"
    memory_mib: int = 512
    cpus: int = 1
    workspace: str | None = None
    secrets: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


class SandboxHandle(ABC):
    name: str

    @abstractmethod
    async def exec(self, cmd: str, args: Sequence[str] | None = None, *,
                   timeout: float | None = None) -> ExecResult: ...

    @abstractmethod
    async def shell(self, script: str, *, timeout: float | None = None) -> ExecResult: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def kill(self) -> None: ...

    @abstractmethod
    async def logs(self, *, tail: int | None = None) -> str: ...


class SandboxClient(ABC):
    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxHandle: ...

    @abstractmethod
    async def get(self, name: str) -> SandboxHandle: ...

    @abstractmethod
    async def list(self) -> list[str]: ...

    @abstractmethod
    async def remove(self, name: str) -> None: ...

    async def run_python(self, code: str, *, image: str = "python:3.11-slim", **kwargs: Any) -> ExecResult:
        return await self._once(SandboxSpec(name=f"py-{id(code)}", image=image, **kwargs), "python", ["-c", code])

    async def run_shell(self, script: str, *, image: str = "python:3.11-slim", **kwargs: Any) -> ExecResult:
        return await self._once(SandboxSpec(name=f"sh-{id(script)}", image=image, **kwargs), script, None)

    async def _once(self, spec, command, arguments):
        box = await self.create(spec)
        try:
            return await (box.shell(command) if arguments is None else box.exec(command, arguments))
        finally:
            await box.stop()
            await self.remove(spec.name)


PROGRAM = """
import asyncio, dataclasses, json, sys, types

def stand_in(names):
    '''The first revision's a2a_pack.sandbox, made of the declarations of the test.'''
    module = types.ModuleType("a2a_pack.sandbox")
    for name in ("ExecResult", "SandboxSpec", "SandboxHandle", "SandboxClient"):
        setattr(module, name, names[name])
    sys.modules["a2a_pack"] = package = types.ModuleType("a2a_pack")
    sys.modules["a2a_pack.sandbox"] = package.sandbox = module
    return module

names = {}
exec(compile(sys.argv[3], "declarations", "exec"), names)
module = stand_in(names)
from cay.adapters.a2a import CaySandboxClient

async def main():
    async with CaySandboxClient(sys.argv[1], owner=sys.argv[2]) as client:
        assert isinstance(client, module.SandboxClient)
        base = module.SandboxClient
        results = [await base.run_python(client, "print(6 * 7)"),
                   await base.run_shell(client, "echo $((6 * 7)); exit 3", memory_mib=128, cpus=1, labels={"a": "b"}),
                   await client.run_python("print(1)", image="python:3.11-slim", timeout_seconds=20),
                   await client.run_shell("echo 1")]
        try:
            await base.run_shell(client, "true", timeout_seconds=1)
        except TypeError as error:
            refused = str(error)
        box = await client.create(module.SandboxSpec("box"))
        assert isinstance(box, module.SandboxHandle) and box.name == "box"
        results.append(await box.exec("printf", ("%s", "a b"), timeout=None))
        await box.stop()
        assert all(type(result) is module.ExecResult for result in results)
        return [dataclasses.astuple(result) for result in results], refused, await client.list()

print(json.dumps(asyncio.run(main())))
"""


def declarations():
    """The text of the classes above."""
    text = pathlib.Path(__file__).read_text()
    head = "from __future__ import annotations\nfrom abc import ABC, abstractmethod\n" \
           "from dataclasses import dataclass, field\nfrom typing import Any, Sequence\n"
    return head + text[text.index("@dataclass(frozen=True)\nclass ExecResult"):text.index("PROGRAM = ")]


def test_with_the_classes_that_were_published_first(host):
    """The first revision: subclasses of its ABCs, results of its class; its own one-shots work with **kwargs of a spec
    and refuse timeout_seconds, ours take it."""
    done = subprocess.run([sys.executable, "-B", "-c", PROGRAM, host, f"test-{uuid.uuid4().hex}", declarations()],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results, refused, left = json.loads(done.stdout)
    assert results == [["42\n", "", 0, False], ["42\n", "", 3, False], ["1\n", "", 0, False], ["1\n", "", 0, False],
                       ["a b", "", 0, False]]
    assert "timeout_seconds" in refused and left == []


@pytest.mark.parametrize("first, now, ours", [
    (SandboxHandle, installed.SandboxHandle, CaySandboxHandle),
    (SandboxClient, installed.SandboxClient, CaySandboxClient)], ids=["handle", "client"])
def test_signatures_are_those_of_the_abstract_classes(first, now, ours):
    """Every method is async and takes what both revisions take: names, keyword-only ones, defaults; what ours takes
    beyond has a default. run_python and run_shell: image="python:3.11-slim" and **kwargs."""
    for method in [name for name in vars(first) if not name.startswith("_")]:
        found = getattr(ours, method)
        assert inspect.iscoroutinefunction(found), method
        for declared in (getattr(first, method), getattr(now, method)):
            left = dict(inspect.signature(found).parameters)
            for one in inspect.signature(declared).parameters.values():
                if one.kind is one.VAR_KEYWORD:
                    assert any(more.kind is one.kind for more in left.values()), method
                    continue
                same = left.pop(one.name)
                assert (same.kind, same.default) == (one.kind, one.default), (method, one.name)
            for more in left.values():
                assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, (method, more.name)


def test_fields_are_those_of_the_first_revision():
    """ExecResult and SandboxSpec: the installed ones are frozen and begin with the same fields and defaults."""
    for first, now in ((ExecResult, installed.ExecResult), (SandboxSpec, installed.SandboxSpec)):
        wanted = [(f.name, f.default, f.default_factory) for f in dataclasses.fields(first)]
        assert [(f.name, f.default, f.default_factory) for f in dataclasses.fields(now)][:len(wanted)] == wanted
        assert now.__dataclass_params__.frozen


# ---- against cayd


@pytest.fixture
def run(host, tmp_path):
    """run(body, **options); see a2a_kit.py."""
    return runner(host, workspaces=str(tmp_path))


def ids(cay):
    return {info.id for info in cay.list(state="all")}


@pytest.mark.parametrize("timeout, text", [(0.01, "sandbox timeout after 0.01s"), (0.1, "sandbox timeout after 0.1s")])
def test_texts_of_timeouts_that_a2a_pins(run, timeout, text):
    """The suite of a2a's runtime: exit code 124, this text, files ()."""

    async def body(client):
        box = await client.create(SpecOfPack(name="sb-timeout"))
        return [await box.shell("sleep 60", timeout=timeout),
                await box.exec("python", ["-c", "while True: pass"], timeout=timeout)]

    for result in run(body):
        assert (result.exit_code, result.stderr, result.files) == (124, text, ())


@pytest.mark.parametrize("image", [
    "http://127.0.0.1:5000/private:latest", "169.254.169.254/repository:latest",
    "registry.example/repo:latest?redirect=http://127.0.0.1", "registry.example/repo:latest#fragment",
    "registry.example\\repo:latest", "python:3.11-slim/../private:latest", "python:3.11-slim@sha256:" + "a" * 64])
def test_images_outside_of_the_exact_allowlist(run, cay, image):
    """The allowlist is exact: what is not in it word for word is a ValueError that speaks of the operator allowlist."""
    before = ids(cay)
    with pytest.raises(ValueError, match="operator allowlist"):
        run(lambda client: client.create(SpecOfPack(name="sb-image", image=image)), allowed_images=["python:3.11-slim"])
    assert ids(cay) == before


@pytest.mark.parametrize("memory_mib, cpus, word", [(513, 1, "memory"), (512, 2, "CPU")])
def test_resources_above_the_operators_caps(run, memory_mib, cpus, word):
    """One above the cap is refused with the text that names it."""
    spec = SpecOfPack(name="sb-caps", memory_mib=memory_mib, cpus=cpus)
    with pytest.raises(ValueError, match=f"sandbox {word} exceeds operator cap"):
        run(lambda client: client.create(spec), max_memory_mib=512, max_cpus=1)


def test_one_shots_swallow_what_both_raise(run, monkeypatch):
    """stop() and then remove() at the end of a one-shot, each once; neither's exception hides the result or the
    command's own exception."""
    calls = []

    async def body(client):
        with monkeypatch.context() as patch:
            async def stop(self):
                calls.append("stop")
                raise RuntimeError("stop")

            async def remove(self, name):
                calls.append("remove")
                raise RuntimeError("remove")

            patch.setattr(CaySandboxHandle, "stop", stop)
            patch.setattr(CaySandboxClient, "remove", remove)
            result = await client.run_shell("echo result")
            with pytest.raises(ValueError, match="timeout"):
                await client.run_python("print(1)", timeout_seconds=-1)
            return result

    assert run(body).stdout == "result\n"
    assert calls == ["stop", "remove"] * 2


def test_get_is_as_good_as_create(run):
    """get(name) gives a handle with that name; exec, shell, logs, stop and kill work as on the one from create."""

    async def body(client):
        await client.create(SpecOfPack(name="box"))
        box = await client.get("box")
        assert box.name == "box"
        seen = [(await box.exec("echo", ["a"])).stdout, (await box.shell("echo b")).stdout, await box.logs(tail=1)]
        await box.kill()
        with pytest.raises(KeyError, match="no live sandbox: box"):
            await client.get("box")
        return seen

    assert run(body) == ["a\n", "b\n", "b\n"]


# ---- a workspace is a real file system


def test_no_stale_tails_and_no_stale_caches(run, tmp_path):
    """What a file becomes from outside is seen at the next command, also when it becomes shorter or goes; and the other
    way round: O_TRUNC leaves no old tail. Directories can be made, files renamed."""

    async def body(client):
        box = await client.create(SpecOfPack(name="box", workspace="w", labels={"workspace_write_policy": "workspace"}))
        top, seen = tmp_path / "w", []
        (top / "f").write_text("long " * 10_000)
        seen.append((await box.shell("wc -c < /workspace/f")).stdout)
        (top / "f").write_text("short")
        seen.append((await box.shell("cat /workspace/f; test -e /workspace/none")).stdout)
        await box.shell("echo new > /workspace/f; mkdir -p /workspace/d/e; mv /workspace/f /workspace/d/e/g")
        seen.append((top / "d/e/g").read_text())
        (top / "d/e/g").unlink()
        seen.append((await box.shell("ls -A /workspace/d/e")).stdout)
        return seen

    assert run(body) == ["50000\n", "short", "new\n", ""]


def test_there_is_no_cap_of_open_files(run):
    """The limits of a2a's FUSE file system (64 open files) are none of a directory's."""
    code = "files = [open(f'/workspace/outputs/{i}', 'w') for i in range(200)]; print(len(files))"
    assert run(lambda client: client.run_python(code, workspace="w")).stdout == "200\n"


# ---- not in this version


def test_memories_are_not_writable_by_default(run):
    """Of the default policy /memories/AGENTS.md is missing: it is read-only (EROFS), unless a prefix names it."""
    script = "mkdir -p /workspace/memories && echo m > /workspace/memories/AGENTS.md"

    async def body(client):
        labels = {"workspace_write_prefixes": '["outputs", "memories"]'}
        return (await client.run_shell(script, workspace="w"),
                await client.run_shell(script + " && cat /memories/AGENTS.md", workspace="w", labels=labels))

    refused, allowed = run(body)
    assert not refused.ok and "Read-only file system" in refused.stderr
    assert allowed.stdout == "m\n"


def test_hidden_entries_are_not_linked(run, tmp_path):
    """Entries whose names begin with a dot are in /workspace and not at /."""
    (tmp_path / "w" / ".git").mkdir(parents=True)
    assert run(lambda client: client.run_shell("ls -d /workspace/.git; ls -d /.git", workspace="w")).stdout \
        == "/workspace/.git\n"


def test_changes_outside_of_the_workspace_are_not_captured(run, tmp_path):
    """ExecResult.files is (), and there is no outputs/rootfs-captures."""
    result = run(lambda client: client.run_shell("echo a > /etc/changed; echo b > /tmp/b", workspace="w"))
    assert result.ok and result.files == ()
    assert not (tmp_path / "w" / "outputs" / "rootfs-captures").exists()


def test_no_bucket_of_its_own_without_a_workspace(run, tmp_path):
    """A spec without a workspace gets no agent-<name>: /workspace is the sandbox's own, and goes with it."""
    result = run(lambda client: client.run_shell("echo a > /workspace/a && cat /workspace/a"))
    assert result.stdout == "a\n" and list(tmp_path.iterdir()) == []


def test_images_by_digest_are_unsupported(run):
    """An image of a registry by its digest: cay.Unsupported that is a SandboxImageRejected."""
    image = "python:3.11-slim@sha256:" + "a" * 64
    with pytest.raises(sdk.Unsupported) as caught:
        run(lambda client: client.create(SpecOfPack(name="box", image=image)))
    assert isinstance(caught.value, SandboxImageRejected)


def test_one_shots_refuse_what_create_refuses(run, cay):
    """egress and secrets of run_shell and run_python: cay.Unsupported, and nothing is left."""
    before = ids(cay)
    for fields in ({"egress": ("pypi.org",)}, {"secrets": ("KEY",)}, {"image": "node:20-slim"}):
        for call in (lambda client: client.run_shell("true", **fields),
                     lambda client: client.run_python("0", **fields)):
            with pytest.raises(sdk.Unsupported):
                run(call)
    assert ids(cay) == before


def test_the_runtimes_client_needs_a_place_for_workspaces(host):
    """In the runtime's service without `workspaces`: cay.Unsupported that names the option; minio_* are not used."""

    async def main():
        async with CaySandboxClient(host, minio_endpoint="http://minio.test", minio_access_key="key",
                                    minio_secret_key="secret") as client:
            await client.create(SpecOfPack(name="sb-test", workspace="user-1-files"))

    with pytest.raises(sdk.Unsupported, match="`workspaces`"):
        asyncio.run(main())


def test_cayd_is_not_the_runtimes_http_api(cayd):
    """A2A_SANDBOX_URL at cayd: HttpSandboxClient gets not_found (404) for every call, as SandboxRuntimeError."""
    client = installed.HttpSandboxClient(cayd.url, auth_token=cayd.token("a2a-http"), timeout_seconds=20)
    calls = (lambda: client.run_shell("true"), lambda: client.run_python("0"), client.list,
             lambda: client.create(SpecOfPack(name="box")), lambda: client.remove("box"))
    for call in calls:
        with pytest.raises(installed.SandboxRuntimeError) as caught:
            asyncio.run(call())
        assert caught.value.status_code == 404 and "not_found" in caught.value.response_body
