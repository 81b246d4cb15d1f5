# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.openenv: the protocols as OpenEnv declares them, what the test suites of its other back ends do, and
what this version refuses."""
from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import textwrap
import types
from typing import Protocol, runtime_checkable

import httpx
import pytest
from openenv_kit import backend, box, fresh, name, until  # noqa: F401 (fixtures)

import cay as sdk
from cay.adapters.openenv import CayBgJob, CaySandboxBackend, CaySandboxHandle, ExecResult


# -- the protocols, parameter by parameter as they were published first


@runtime_checkable
class BgJob(Protocol):
    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


@runtime_checkable
class SandboxHandle(Protocol):
    @property
    def sandbox_id(self) -> str: ...

    def exec(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None,
             timeout: float | None = 60) -> ExecResult: ...

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> BgJob: ...

    def write_text(self, path: str, content: str) -> None: ...

    def read_text(self, path: str) -> str: ...

    def exists(self, path: str) -> bool: ...

    def kill(self) -> None: ...


@runtime_checkable
class SandboxBackend(Protocol):
    def create(self, *, timeout_s: int = 900, envs: dict[str, str] | None = None,
               metadata: dict[str, str] | None = None) -> SandboxHandle: ...


@runtime_checkable
class LaterSandboxBackend(Protocol):
    def create(self, *, timeout_s: int = 900, envs: dict[str, str] | None = None,
               metadata: dict[str, str] | None = None, image: str | None = None) -> SandboxHandle: ...


PAIRS = [(SandboxBackend, CaySandboxBackend), (LaterSandboxBackend, CaySandboxBackend), (BgJob, CayBgJob),
         (SandboxHandle, CaySandboxHandle)]


@pytest.mark.parametrize("protocol, ours", PAIRS, ids=lambda one: one.__name__)
def test_declarations_are_the_protocols(protocol, ours):
    """Each member of a protocol: a property is one, a method has the same parameters, kinds and defaults; what ours
    takes beyond has a default."""
    for member in [m for m in vars(protocol) if not m.startswith("_")]:
        wanted, found = inspect.getattr_static(protocol, member), inspect.getattr_static(ours, member)
        assert type(found) is type(wanted), member
        if isinstance(wanted, property):
            continue
        left = dict(inspect.signature(found).parameters)
        for one in inspect.signature(wanted).parameters.values():
            same = left.pop(one.name)
            assert (same.kind, same.default) == (one.kind, one.default), (member, one.name)
        for more in left.values():
            assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, (member, more.name)


def test_isinstance_and_issubclass_as_upstream_asks(backend, box):
    """isinstance of handle, job and back end; issubclass of the back end. BgJob and SandboxHandle have properties, for
    which Python knows no issubclass: the classes need not inherit."""
    job = box.start_bg("true")
    assert isinstance(backend, SandboxBackend) and isinstance(backend, LaterSandboxBackend)
    assert isinstance(box, SandboxHandle) and isinstance(job, BgJob)
    assert issubclass(CaySandboxBackend, SandboxBackend) and issubclass(CaySandboxBackend, LaterSandboxBackend)
    with pytest.raises(TypeError):
        issubclass(CaySandboxHandle, SandboxHandle)
    assert job.wait() == 0
    assert [type(box.sandbox_id), type(job.pid), type(job.wait())] == [str, int, int]
    for method in ("sandbox_id", "exec", "start_bg", "write_text", "read_text", "exists", "kill", "raw"):
        assert hasattr(box, method)


def test_exec_result_has_three_fields_without_defaults(box):
    """ExecResult: exit_code: int, stdout: str, stderr: str; no default, mutable, equal by value."""
    fields = dataclasses.fields(ExecResult)
    assert [(f.name, f.type) for f in fields] == [("exit_code", "int"), ("stdout", "str"), ("stderr", "str")]
    assert all(f.default is f.default_factory is dataclasses.MISSING for f in fields)
    assert not ExecResult.__dataclass_params__.frozen
    done = box.exec("echo out; echo err >&2; exit 3")
    assert done == ExecResult(exit_code=3, stdout="out\n", stderr="err\n")
    done.stderr = done.stderr[-2000:]


def test_options_of_commands_are_keyword_only(box):
    """exec(cmd, *, envs, cwd, timeout) and start_bg(cmd, *, envs, cwd)."""
    for call in (box.exec, box.start_bg):
        with pytest.raises(TypeError):
            call("true", {})
    with pytest.raises(TypeError):
        box.start_bg("true", timeout=1)


# -- the suites of the other back ends


def test_what_the_suite_of_the_docker_back_end_does(fresh, cay):
    """create, exec with envs and cwd, files, jobs, metadata and kill, with the values of that suite."""
    box = fresh(timeout_s=60, envs={"INIT_VAR": "from_create"}, metadata={"episode_id": "ep-123"})
    assert box.sandbox_id and len(box.sandbox_id) == 12
    assert cay.get(box.sandbox_id).info.labels["openenv.episode_id"] == "ep-123"
    assert "hello world" in box.exec("echo hello world").stdout and box.exec("exit 42").exit_code == 42
    assert "test123" in box.exec("echo $MY_VAR", envs={"MY_VAR": "test123"}).stdout
    assert "from_create" in box.exec("echo $INIT_VAR").stdout and "/tmp" in box.exec("pwd", cwd="/tmp").stdout
    for path, text in (("/tmp/test.txt", "hello from test"), ("/home/user/deep/nested/file.txt", "nested content"),
                       ("/tmp/special.txt", "line1\nline2\n'quotes' and \"doubles\" and $vars")):
        assert not box.exists(path)
        box.write_text(path, text)
        assert box.exists(path) and box.read_text(path) == text
    with pytest.raises(FileNotFoundError):
        box.read_text("/nonexistent/path.txt")
    assert box.start_bg("sleep 0.1 && echo done > /tmp/bg_out.txt").wait(timeout=10) == 0
    assert "done" in box.read_text("/tmp/bg_out.txt")
    job = box.start_bg("sleep 300")
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.1)
    job.kill()
    assert isinstance(job.wait(timeout=5), int)
    box.kill()
    box.kill()


def test_files_may_be_anywhere_as_in_the_suite_of_the_e2b_back_end(fresh):
    """write_text: absolute path, parents auto-created, also where the user of exec could not make them."""
    box = fresh()
    for path in ("/task/instruction.md", "/opt/a/b c/$x", "/top.md"):
        box.write_text(path, "solve fizzbuzz")
        assert box.exists(path) and box.read_text(path) == "solve fizzbuzz"
    done = box.exec("stat -c '%U:%G %a' /task /task/instruction.md /opt/a '/opt/a/b c' '/opt/a/b c/$x' /top.md /opt")
    assert done.stdout == "user:user 755\nuser:user 644\nuser:user 755\nuser:user 755\nuser:user 644\nuser:user 644\n" \
                          "root:root 755\n"
    box.write_text("/task/instruction.md", "longer than it was before")
    box.write_text("/top.md", "again")
    done = box.exec("cat /task/instruction.md; touch /task/more; echo ! >> /top.md; cat /top.md; stat -c %U /top.md")
    assert done == ExecResult(0, "longer than it was beforeagain!\nuser\n", "")
    large = "x" * 3_000_000
    box.write_text("/srv/large", large)
    assert box.read_text("/srv/large") == large


def test_what_belongs_to_others_is_not_overwritten(box):
    """RuntimeError on failure: a file that is there and not the user's stays as it is."""
    before = box.read_text("/etc/passwd")
    with pytest.raises(RuntimeError, match="/etc/passwd"):
        box.write_text("/etc/passwd", "x")
    with pytest.raises(RuntimeError, match="/proc/x"):
        box.write_text("/proc/x/y", "x")
    assert box.read_text("/etc/passwd") == before


def test_what_the_suite_of_the_hf_back_end_does(box):
    """wait(timeout=0) of a job that has ended is one probe and its code; of one that runs a TimeoutError, twice."""
    job = box.start_bg("echo done > /tmp/bg_nowait.txt")
    until(lambda: not job._process.info().running)
    assert job.wait(timeout=0) == 0
    long = box.start_bg("sleep 300")
    for timeout in (0, 0.1):
        with pytest.raises(TimeoutError):
            long.wait(timeout=timeout)
    long.kill()
    assert long.wait(timeout=2) == 137


def test_a_key_in_envs_is_in_no_command_line(box):
    """The key of the proxy goes by envs: no command line of the sandbox has it, the process has."""
    job = box.start_bg("exec sleep 1000", envs={"OPENCODE_UPSTREAM_API_KEY": "sk-upstream"})
    until(lambda: "sleep" in box.exec(f"cat /proc/{job.pid}/comm").stdout)
    assert "sk-upstream" not in box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "sk-upstream" in box.exec(f"tr '\\0' '\\n' < /proc/{job.pid}/environ").stdout
    assert all("sk-upstream" not in process.command for process in box.raw.processes())
    job.kill()


def test_jobs_have_no_deadline(box, monkeypatch):
    """start_bg has no deadline: cay is asked for none, and without being asked has none."""
    asked = {}
    start = sdk.Sandbox.start
    monkeypatch.setattr(sdk.Sandbox, "start", lambda self, *a, **k: (asked.update(k), start(self, *a, **k))[1])
    job = box.start_bg("sleep 300")
    assert asked.get("timeout") is None
    job.kill()


def test_a_directory_that_is_not_there_is_a_runtime_error(box):
    """cwd: a directory that is missing is an error that names it, and nothing runs elsewhere."""
    for call in (box.exec, box.start_bg):
        with pytest.raises(RuntimeError, match="/no/such"):
            call("touch /tmp/ran-elsewhere", cwd="/no/such")
    assert not box.exists("/tmp/ran-elsewhere")


def test_numbers_that_are_no_time_are_refused(backend, box):
    """timeout and timeout_s are finite numbers of seconds; timeout=None is what means no limit."""
    for wrong in (float("inf"), float("nan"), -1, 0):
        with pytest.raises(ValueError, match="timeout"):
            box.exec("true", timeout=wrong)
        with pytest.raises(ValueError, match="timeout_s"):
            backend.create(timeout_s=wrong)


def test_timeouts_of_the_harness(box):
    """The timeouts that the call sites give: all of them are taken, as int and as float."""
    for timeout in (5, 10, 120, 180, 240.0, 300, None):
        assert box.exec("echo ok", timeout=timeout).stdout == "ok\n"


def test_a_timeout_has_something_in_stderr(box):
    """A failure with an empty stderr is tried again by the harness: a timeout never has an empty one."""
    done = box.exec("sleep 300", timeout=0.2)
    assert done.exit_code == 124 and done.stderr.strip()


# -- in the place of another back end


def test_in_the_place_of_the_e2b_back_end(host, monkeypatch):
    """opencode_env.E2BSandboxBackend = ours, before the environment imports it and makes one without arguments."""
    module = types.ModuleType("opencode_env")
    module.E2BSandboxBackend = CaySandboxBackend
    monkeypatch.setitem(sys.modules, "opencode_env", module)
    monkeypatch.setenv("CAY_HOST", host)
    from opencode_env import E2BSandboxBackend

    handle = E2BSandboxBackend().create(timeout_s=600 + 300, metadata=None)
    assert handle.exec("echo ok", timeout=5).stdout == "ok\n"
    handle.kill()


def test_types_fit_the_protocols(tmp_path):
    """For a type checker the classes are what the protocols ask for."""
    program = tmp_path / "fits.py"
    program.write_text(textwrap.dedent("""\
        import protocols
        from cay.adapters.openenv import CaySandboxBackend

        backend: protocols.SandboxBackend = CaySandboxBackend()
        later: protocols.LaterSandboxBackend = CaySandboxBackend()
        handle: protocols.SandboxHandle = CaySandboxBackend().create()
        job: protocols.BgJob = CaySandboxBackend().create().start_bg("true")
        """))
    source = inspect.getsource(sys.modules[__name__])
    begin, end = source.index("@runtime_checkable\nclass BgJob"), source.index("PAIRS = ")
    head = "from __future__ import annotations\nfrom typing import Protocol, runtime_checkable\n" \
           "from cay.adapters.openenv import ExecResult\n"
    (tmp_path / "protocols.py").write_text(head + source[begin:end])
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", program.name], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == 0, done.stdout


# -- not in this version


def test_images_of_registries_are_unsupported(backend, cay):
    """image: one that cayd has not is cay.Unsupported, which is a RuntimeError; nothing is made."""
    before = {info.id for info in cay.list(state="all")}
    for image in ("ubuntu:22.04", "ghcr.io/sst/opencode:latest"):
        with pytest.raises(sdk.Unsupported, match=f"'{image}': registry images are not supported yet") as caught:
            backend.create(image=image)
        assert isinstance(caught.value, RuntimeError) and caught.value.detail["field"] == "image"
    assert {info.id for info in cay.list(state="all")} == before


@pytest.mark.parametrize("network", ["open", "allow-all", {"allow": ["pypi.org"]}])
def test_networks_are_unsupported(backend, cay, network):
    """A network among the further keywords of create is cay.Unsupported, not one more that is ignored."""
    before = {info.id for info in cay.list(state="all")}
    with pytest.raises(sdk.Unsupported) as caught:
        backend.create(network=network)
    assert caught.value.detail == {"field": "network"}
    assert {info.id for info in cay.list(state="all")} == before


def test_there_is_no_way_out(box):
    """No network but loopback: an installer and a server on the trainer's host (interception_gate) fail at once, as
    results."""
    for url in ("https://opencode.ai/install", "http://host.docker.internal:9/rollout/1/v1"):
        assert box.exec(f"curl -fsS {url}").exit_code == 6, "the name is not found"
    assert box.exec("curl -fsS http://192.0.2.1/").exit_code == 7
    assert box.exec("ls /sys/class/net").stdout == "lo\n"


def test_cayd_is_not_an_e2b_api(cayd):
    """E2B_API_URL: cayd does not serve E2B's API in this version, and answers not_found."""
    key = {"X-API-Key": "dummy", "Authorization": f"Bearer {cayd.token('not-e2b')}"}
    answer = httpx.post(f"{cayd.url}/sandboxes", json={"templateID": "base"}, headers=key, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
