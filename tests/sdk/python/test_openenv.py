# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.openenv against a real cayd: each line of OpenEnv's contract for sandbox back ends.

test_openenv_jobs.py has background jobs, files and the end; test_openenv_harness.py drives it as OpenEnv does.
"""
import dataclasses
import hashlib
import inspect
import logging
import subprocess
import sys
import textwrap
import typing
from concurrent.futures import ThreadPoolExecutor

import pytest
from openenv_kit import backend, box, fresh, name, until  # noqa: F401 (fixtures)

import cay as sdk
from cay.adapters.openenv import CayBgJob, CaySandboxBackend, CaySandboxHandle, ExecResult


@typing.runtime_checkable
class BgJob(typing.Protocol):
    @property
    def pid(self) -> int: ...
    def wait(self, timeout=None): ...
    def kill(self): ...


@typing.runtime_checkable
class SandboxHandle(typing.Protocol):
    @property
    def sandbox_id(self) -> str: ...
    def exec(self, cmd, *, envs=None, cwd=None, timeout=60): ...
    def start_bg(self, cmd, *, envs=None, cwd=None): ...
    def write_text(self, path, content): ...
    def read_text(self, path): ...
    def exists(self, path): ...
    def kill(self): ...


@typing.runtime_checkable
class SandboxBackend(typing.Protocol):
    def create(self, *, timeout_s=900, envs=None, metadata=None, image=None): ...


# -- types


def test_exec_result_is_a_mutable_dataclass_in_the_order_exit_code_stdout_stderr():
    """ExecResult(exit_code, stdout, stderr): plain mutable dataclass, positional order."""
    result = ExecResult(3, "out", "err")
    assert [field.name for field in dataclasses.fields(ExecResult)] == ["exit_code", "stdout", "stderr"]
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out", "err")
    result.stdout = "changed"
    assert result == ExecResult(3, "changed", "err")


def test_stdout_and_stderr_are_always_text(box):
    """stdout/stderr must be str, never None; bytes that are not UTF-8 do not raise."""
    silent, odd = box.exec("true"), box.exec(r"printf 'a\xffb'")
    assert (silent.stdout, silent.stderr) == ("", "")
    assert odd.stdout == "a\ufffdb"
    assert silent.stdout[-2000:] == ""


def test_protocols_hold_at_run_time(backend, box):
    """The protocols are runtime_checkable: isinstance of handle and job, issubclass of the back end."""
    job = box.start_bg("true")
    assert isinstance(box, SandboxHandle) and isinstance(job, BgJob) and isinstance(backend, SandboxBackend)
    assert issubclass(CaySandboxBackend, SandboxBackend)
    assert job.wait() == 0


def test_signatures_take_what_the_protocols_say():
    """Parameter names, keyword-only ones and defaults are those of the protocols."""
    pairs = [(SandboxBackend, CaySandboxBackend, ["create"]), (BgJob, CayBgJob, ["wait", "kill"]),
             (SandboxHandle, CaySandboxHandle, ["exec", "start_bg", "write_text", "read_text", "exists", "kill"])]
    for protocol, ours, methods in pairs:
        for method in methods:
            wanted = inspect.signature(getattr(protocol, method)).parameters
            found = inspect.signature(getattr(ours, method)).parameters
            for one in wanted.values():
                assert (found[one.name].kind, found[one.name].default) == (one.kind, one.default), (method, one.name)


def test_the_frameworks_own_exec_result_is_used_where_it_is_loaded(host, tmp_path):
    """If the framework's ExecResult is there, exec returns that class."""
    package = tmp_path / "opencode_env" / "sandbox"
    package.mkdir(parents=True)
    (tmp_path / "opencode_env" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "base.py").write_text(textwrap.dedent("""\
        from dataclasses import dataclass

        @dataclass
        class ExecResult:
            exit_code: int
            stdout: str
            stderr: str
        """))
    program = textwrap.dedent("""\
        import sys
        from cay.adapters.openenv import CaySandboxBackend
        backend = CaySandboxBackend(sys.argv[1])
        from opencode_env.sandbox.base import ExecResult
        handle = backend.create()
        try:
            assert handle.exec("echo hi") == ExecResult(0, "hi\\n", ""), handle.exec("echo hi")
        finally:
            handle.kill()
        """)
    subprocess.run([sys.executable, "-B", "-c", program, host], cwd=tmp_path, check=True, timeout=60)


# -- create


def test_create_takes_keywords_only(backend):
    """create(*, timeout_s, envs, metadata, image) is keyword-only."""
    with pytest.raises(TypeError):
        backend.create(900)


def test_create_defaults_to_a_lifetime_of_900_seconds(backend, fresh):
    """timeout_s=900 is the sandbox's lifetime."""
    left = fresh().raw.refresh().ttl_left_ms
    assert 0 < left <= 900_000
    assert 0 < fresh(timeout_s=1200).raw.refresh().ttl_left_ms <= 1_200_000


def test_lifetime_is_enforced_without_this_process(cayd, host):
    """The TTL destroys everything, even if the Python process died."""
    program = "import sys; from cay.adapters.openenv import CaySandboxBackend as B; " \
              "h = B(sys.argv[1]).create(timeout_s=1); h.start_bg('sleep 1000'); print(h.sandbox_id, flush=True); " \
              "import os; os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-B", "-c", program, host], capture_output=True, text=True, timeout=60)
    identifier = done.stdout.strip()
    assert identifier, done
    until(lambda: cayd.get(f"/sandboxes/{identifier}").body["state"] == "ttl")
    assert cayd.get(f"/sandboxes/{identifier}").body["processes"] == 0
    cayd.remove(identifier)


def test_a_lifetime_must_be_positive(backend):
    """0 would be a sandbox that never ends: it is refused."""
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout_s"):
            backend.create(timeout_s=wrong)


def test_create_envs_are_visible_to_every_command(box):
    """envs of create are visible to every later exec and start_bg."""
    assert box.exec('printf %s "$FROM_CREATE"').stdout == "made"
    path = name()
    assert box.start_bg(f'printf %s "$FROM_CREATE" > {path}').wait() == 0
    assert box.read_text(path) == "made"


def test_metadata_are_labels(fresh, cay):
    """metadata: labels openenv.<k>=<v> plus openenv.sandbox=true."""
    handle = fresh(metadata={"episode_id": "ep-000001 of 7", "seed": 3})
    labels = {"openenv.sandbox": "true", "openenv.episode_id": "ep-000001 of 7", "openenv.seed": "3"}
    assert handle.raw.refresh().labels == labels
    assert [info.id for info in cay.list(labels={"openenv.episode_id": "ep-000001 of 7"})] == [handle.sandbox_id]
    assert fresh(metadata=None).raw.refresh().labels == {"openenv.sandbox": "true"}


@pytest.mark.parametrize("metadata", [
    {"a b": "x"}, {"a": "x\ny"}, {"a": "x" * 600}, {"k" * 600: "x"}, {f"k{i}": "x" for i in range(70)},
], ids=["blank in key", "newline in value", "long value", "long key", "many"])
def test_metadata_that_cannot_be_labels_are_refused(backend, cay, metadata):
    """Labels are stricter than metadata: what does not fit is refused, with nothing made and nothing changed."""
    before = {info.id for info in cay.list()}
    with pytest.raises((sdk.Invalid, sdk.TooLarge, sdk.Limit)):
        backend.create(metadata=metadata)
    assert {info.id for info in cay.list()} == before


def test_metadata_cannot_hide_the_mark(backend):
    """openenv.sandbox=true is on every sandbox of OpenEnv's."""
    with pytest.raises(ValueError, match="openenv.sandbox"):
        backend.create(metadata={"sandbox": "false"})


def test_create_takes_an_image(daemons):
    """image: passed to cayd, which knows the operator's aliases; that of create goes before the constructor's."""
    daemon = daemons()
    daemon.cay.config.write_text("[image]\nown-tools = host\n")
    daemon.restart()
    backend = CaySandboxBackend(f"unix:{daemon.sock}", image="nonesuch")
    handle = backend.create(image="own-tools")
    assert handle.exec("echo ok").stdout == "ok\n"
    handle.kill()
    with pytest.raises(RuntimeError, match="nonesuch"):
        backend.create()
    backend.close()


def test_an_image_that_cayd_does_not_know_is_an_error(backend, cay):
    """Errors at create are RuntimeErrors, of cay's own classes; nothing is left."""
    before = {info.id for info in cay.list()}
    with pytest.raises(RuntimeError, match="ubuntu:22.04") as caught:
        backend.create(image="ubuntu:22.04")
    assert isinstance(caught.value, sdk.Unsupported)
    assert {info.id for info in cay.list()} == before


def test_create_without_a_daemon_is_a_runtime_error(tmp_path):
    """Errors at create: RuntimeError."""
    with pytest.raises(RuntimeError, match="cannot reach cayd"):
        CaySandboxBackend(f"unix:{tmp_path}/none.sock").create()


def test_create_tolerates_unknown_keywords(fresh, caplog):
    """Unknown keywords of later protocols are tolerated, and said aloud."""
    with caplog.at_level(logging.WARNING, logger="cay.adapters.openenv"):
        assert fresh(template="x", region="y").exec("echo ok").stdout == "ok\n"
    assert "region, template" in caplog.text


def test_create_returns_a_sandbox_that_is_ready(fresh):
    """The harness's first probe, echo ok, succeeds at once."""
    assert fresh().exec("echo ok", timeout=5) == ExecResult(0, "ok\n", "")


def test_limits_and_the_default_image_come_from_the_constructor(host):
    """image, memory, cpus, user and home are options of the back end."""
    backend = CaySandboxBackend(host, image="host", memory="128M", cpus=0.5, user="root", home="/root")
    handle = backend.create()
    spec = handle.raw.spec()
    assert (spec["memory"], spec["cpus"], spec["image"]) == (128 << 20, 0.5, "host")
    assert handle.exec("id -u; pwd; echo $HOME").stdout == "0\n/root\n/root\n"
    handle.kill()
    backend.close()


def test_an_existing_client_is_used_and_left_open(cay):
    """host and token, or a cay.Cay of the caller's."""
    backend = CaySandboxBackend(client=cay)
    handle = backend.create()
    assert handle.exec("echo ok").stdout == "ok\n"
    handle.kill()
    backend.close()
    assert isinstance(cay.list(), list)
    with pytest.raises(ValueError, match="client"):
        CaySandboxBackend("unix:/nowhere", client=cay)


def test_a_token_works_over_tcp(cayd):
    """The same over TCP with a token, as a tenant."""
    token = cayd.token("openenv-tcp", tenant="openenv")
    backend = CaySandboxBackend(cayd.url, token=token)
    handle = backend.create()
    assert handle.exec("echo ok").stdout == "ok\n"
    handle.kill()
    backend.close()


def test_the_host_comes_from_the_environment(host, monkeypatch):
    """The class can stand in where a back end is made without arguments."""
    monkeypatch.setenv("CAY_HOST", host)
    backend = CaySandboxBackend()
    handle = backend.create()
    assert handle.exec("echo ok").stdout == "ok\n"
    handle.kill()
    backend.close()


# -- the handle


def test_sandbox_id_is_12_hex_digits(box, cay):
    """sandbox_id: a non-empty str of 12 hex digits, the sandbox's name in cay."""
    assert len(box.sandbox_id) == 12 and set(box.sandbox_id) <= set("0123456789abcdef")
    assert cay.get(box.sandbox_id).id == box.sandbox_id


def test_raw_is_cays_own_object(box):
    """raw: an escape hatch."""
    assert isinstance(box.raw, sdk.Sandbox) and box.raw.id == box.sandbox_id


# -- exec


def test_exec_is_bash(box):
    """cmd is run by bash: pipes, export, arrays, process substitution, $(...)."""
    assert box.exec("set -e && a=(x y) && echo ${a[1]} | tr y z && cat <(echo sub) && echo \"$(printf %s q)\"").stdout \
        == "z\nsub\nq\n"
    assert box.exec('export PATH="$HOME/.opencode/bin:$PATH" && printf %s "${PATH%%:*}"').stdout \
        == "/home/user/.opencode/bin"
    assert box.exec("seq 100 | tail -20 | head -2").stdout == "81\n82\n"


def test_exec_is_a_login_shell(fresh):
    """bash -l: the profile of the user is read."""
    handle = fresh()
    handle.write_text("/home/user/.bash_profile", "export FROM_PROFILE=yes\n")
    assert handle.exec("shopt -q login_shell && printf %s $FROM_PROFILE").stdout == "yes"
    assert handle.start_bg("shopt -q login_shell && test $FROM_PROFILE = yes").wait() == 0


def test_home_is_set_and_right(box):
    """$HOME is /home/user, writable, and the default working directory; commands run as `user`."""
    assert box.exec('printf %s "$HOME"').stdout == "/home/user"
    assert box.exec("id -un; pwd; mkdir -p $HOME/.opencode/bin && echo made").stdout == "user\n/home/user\nmade\n"


def test_stdin_is_at_its_end(box):
    """stdin must be EOF."""
    assert box.exec("cat; echo after", timeout=20).stdout == "after\n"


def test_a_failure_is_a_result(box):
    """A non-zero exit is a result, never an exception."""
    failed = box.exec("echo out; echo err >&2; exit 3")
    assert failed == ExecResult(3, "out\n", "err\n")
    missing = box.exec("/home/user/.no/such/program --version", timeout=10)
    assert missing.exit_code == 127 and "No such file" in missing.stderr
    assert box.exec("kill -9 $$").exit_code == 137
    assert box.exec("syntax ( error").exit_code == 2


def test_exec_envs_override_those_of_create(box):
    """envs per call override create-time ones, for that call alone."""
    assert box.exec('printf %s "$BOTH"', envs={"BOTH": "call"}).stdout == "call"
    assert box.exec('printf %s "$BOTH"').stdout == "create"


def test_env_values_are_passed_as_they_are(box):
    """Values are arbitrary text; they go beside the command, never into it."""
    value = "a 'b' \"c\" $(touch /home/user/owned) `id` \\ \n\t\u00e9 ;|&"
    done = box.exec('printf %s "$V"; tr "\\0" "\\n" < /proc/$$/cmdline >&2', envs={"V": value})
    assert done.stdout == value
    assert "owned" not in done.stderr and not box.exists("/home/user/owned")


def test_exec_cwd(box):
    """cwd: absolute; one that is not there is an error and not another directory."""
    assert box.exec("pwd", cwd="/tmp").stdout == "/tmp\n"
    box.exec("mkdir -p /home/user/below")
    assert box.exec("pwd", cwd="below").stdout == "/home/user/below\n"
    missing = None
    try:
        missing = box.exec("pwd", cwd="/no/such").exit_code
    except RuntimeError as error:
        assert "/no/such" in str(error)
    assert missing in (None, 126, 127)


def test_exec_timeout_is_124_with_what_was_printed(box):
    """timeout: 124, partial output kept, stderr + "\\n[timed out after Ns]"."""
    done = box.exec("echo part; echo warn >&2; sleep 1000", timeout=0.5)
    assert done == ExecResult(124, "part\n", "warn\n\n[timed out after 0.5s]")
    assert box.exec("sleep 1000", timeout=1).stderr == "\n[timed out after 1s]"
    assert box.exec("exit 124").stderr == ""


def test_exec_timeout_kills_the_whole_tree(box):
    """No process of a command that timed out is left."""
    box.exec("(setsid sleep 4242 &) ; sleep 4243 | cat", timeout=0.5)
    assert box.exec("pgrep -f 'sleep 424[23]'").stdout == ""


def test_exec_without_a_limit(box):
    """timeout=None: no limit. 0 and less are refused."""
    assert box.exec("sleep 0.2; echo done", timeout=None).stdout == "done\n"
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="timeout"):
            box.exec("true", timeout=wrong)


def test_exec_default_timeout_is_60_seconds():
    """exec(..., timeout=60)."""
    assert inspect.signature(CaySandboxHandle.exec).parameters["timeout"].default == 60


def test_exec_output_is_not_truncated(box):
    """No truncation: all of 12 MB come, more than cayd keeps by default."""
    done = box.exec("yes 0123456789abcdef | head -c 12000000; head -c 1000000 /dev/zero | tr '\\0' e >&2")
    whole = ("0123456789abcdef\n" * (12_000_000 // 17 + 1))[:12_000_000]
    assert hashlib.sha256(done.stdout.encode()).digest() == hashlib.sha256(whole.encode()).digest()
    assert done.stderr == "e" * 1_000_000


def test_an_operator_who_keeps_less(daemons):
    """The operator keeps less output than this adapter would like: a sandbox is made all the same."""
    daemon = daemons(tcp=True, policy="[tenant acme]\noutput_max = 1M\n")
    token = daemon.token("acme", tenant="acme")
    backend = CaySandboxBackend(daemon.url, token=token)
    handle = backend.create()
    assert handle.exec("echo hi").stdout == "hi\n" and handle.raw.spec()["output"] == 1 << 20
    handle.kill()
    backend.close()
    with pytest.raises(sdk.Limit):
        CaySandboxBackend(daemon.url, token=token, output="2M").create()


def test_output_beyond_what_is_kept_is_whole(host):
    """Where the sandbox keeps less, the command waits for its reader."""
    backend = CaySandboxBackend(host, output=65536)
    handle = backend.create()
    done = handle.exec("seq 100000")
    assert (done.stdout, done.stderr) == ("".join(f"{n}\n" for n in range(1, 100_001)), "")
    handle.kill()
    backend.close()


def test_exec_after_the_end_of_the_sandbox_is_a_runtime_error(fresh):
    """RuntimeError, which the harness takes as a failed command."""
    handle = fresh()
    handle.kill()
    for call in (lambda: handle.exec("true"), lambda: handle.start_bg("true"), lambda: handle.read_text("/etc/passwd"),
                 lambda: handle.write_text("/tmp/x", "x")):
        with pytest.raises(RuntimeError, match=handle.sandbox_id):
            call()


def test_many_threads_share_a_handle(box):
    """Thread-safe: polling runs while background jobs do, in many threads."""
    jobs = [box.start_bg("while :; do sleep 0.05; done") for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: box.exec(f"echo {i}; echo {i} >&2; exit {i}"), range(24)))
        texts = list(pool.map(lambda i: (box.write_text(f"/tmp/th/{i}", f"text {i}"), box.read_text(f"/tmp/th/{i}"))[1],
                              range(24)))
    assert answers == [ExecResult(i, f"{i}\n", f"{i}\n") for i in range(24)]
    assert texts == [f"text {i}" for i in range(24)]
    for job in jobs:
        job.kill()
        assert job.wait() == 137


def test_many_threads_share_a_backend(backend):
    """Trainers run many sandboxes in threads."""
    def rollout(i):
        handle = backend.create(metadata={"episode_id": f"ep-{i}"})
        try:
            return handle.sandbox_id, handle.exec("echo $N > n; cat n", envs={"N": str(i)}).stdout
        finally:
            handle.kill()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(rollout, range(8)))
    assert [text for _, text in found] == [f"{i}\n" for i in range(8)]
    assert len({identifier for identifier, _ in found}) == 8
