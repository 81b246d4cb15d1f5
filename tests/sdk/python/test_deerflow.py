# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.deerflow: what DeerFlow asks of a SandboxBackend and of a provider. See deerflow_standin/README.md."""
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import agent_sandbox
import pytest
from deerflow_kit import load

import cay as sdk

HERE = pathlib.Path(__file__).resolve().parent
STANDIN = HERE / "deerflow_standin"


@pytest.fixture
def adapter(monkeypatch):
    return load(monkeypatch, STANDIN)


@pytest.fixture
def backend(adapter, cay):
    backend = adapter.CayBackend(cay, prefix="t" + os.urandom(4).hex())
    yield backend
    for info in backend.list_running():
        backend.destroy(info)


def shell(info, command):
    return agent_sandbox.Sandbox(base_url=info.sandbox_url).shell.exec_command(command=command).data.output


# ---- the backend


def test_is_a_subclass_of_deerflows_abstract_backend(adapter, backend):
    """SandboxBackend is an ABC: ours is one, complete, and its infos are DeerFlow's own SandboxInfo."""
    from deerflow.community.aio_sandbox.backend import SandboxBackend
    from deerflow.community.aio_sandbox.sandbox_info import SandboxInfo

    assert issubclass(adapter.CayBackend, SandboxBackend)
    assert type(backend.create("thread", "aa11")) is SandboxInfo


def test_works_without_deerflow(monkeypatch, cay):
    """Without DeerFlow the backend works by itself, and the provider says what is missing."""
    alone = load(monkeypatch)
    info = alone.CayBackend(cay, prefix="alone").create("thread", "bb22")
    assert shell(info, "echo hi").strip() == "hi"
    alone.CayBackend(cay, prefix="alone").destroy(info)
    with pytest.raises(ImportError, match="DeerFlow is not installed"):
        alone.CayProvider


def test_create_positionally_as_the_first_version_did(backend):
    """create(thread_id, sandbox_id, extra_mounts=...): positional, with extra_mounts None."""
    info = backend.create("thread-1", "cc33", extra_mounts=None)
    assert info.sandbox_id == "cc33" and info.sandbox_url.startswith("http://127.0.0.1:")
    assert abs(info.created_at - time.time()) < 60
    assert info.container_name and info.container_id


def test_create_by_keyword_as_later_versions_do(backend):
    """user_id, provision_lark_cli_*, max_shell_sessions and what comes later: by keyword; thread_id may be None."""
    info = backend.create(thread_id=None, sandbox_id="dd44", extra_mounts=[], user_id="u1",
                          provision_lark_cli_runtime=False, provision_lark_cli_broker=False, max_shell_sessions=4)
    assert shell(info, "id -u").strip() == "0"


@pytest.mark.parametrize("option", ["provision_lark_cli_runtime", "provision_lark_cli_broker"])
def test_the_lark_cli_is_unsupported(backend, option):
    """What needs an image of a registry is refused with a typed error that is a RuntimeError, and nothing is made."""
    with pytest.raises(sdk.Unsupported) as refused:
        backend.create("t", "ee55", **{option: True})
    assert isinstance(refused.value, RuntimeError) and backend.is_absent("ee55")


def test_create_is_idempotent(backend):
    """An id that runs already is adopted and returned, even with other mounts."""
    first = backend.create("t", "ff66")
    shell(first, "echo kept > /tmp/mark")
    again = backend.create("t", "ff66", extra_mounts=[("/usr/share", "/mnt/share", True)])
    assert again == first
    assert shell(again, "cat /tmp/mark").strip() == "kept"


def test_create_after_it_has_ended(backend, cay):
    """One that died makes room for a new one of the same id, with another URL and generation."""
    first = backend.create("t", "ab01")
    cay.attach(first.container_name).kill()
    second = backend.create("t", "ab01")
    assert second.container_id != first.container_id and second.sandbox_url != first.sandbox_url
    assert shell(second, "echo up").strip() == "up"


def test_create_is_ready_when_it_returns(backend):
    """The provider probes GET {sandbox_url}/v1/sandbox at once and then every second: the first probe succeeds."""
    from deerflow.community.aio_sandbox.backend import probes_until_ready

    assert probes_until_ready(backend.create("t", "ab02").sandbox_url) == 1


def test_create_failures_are_runtime_errors(backend):
    """RuntimeError on failure; nothing is left behind."""
    with pytest.raises(RuntimeError):
        backend.create("t", "ab03", extra_mounts=[("/no/such/directory", "/mnt/x", True)])
    assert backend.is_absent("ab03")


def test_ids_that_cay_does_not_take(backend):
    """Any sandbox_id works: one that is no id of cay's is hashed, and found again by DeerFlow's own."""
    info = backend.create("t", "Thread/With Odd:Name")
    assert info.sandbox_id == "Thread/With Odd:Name"
    assert backend.discover("Thread/With Odd:Name") == info
    assert [i.sandbox_id for i in backend.list_running()] == ["Thread/With Odd:Name"]


def test_mounts(backend, tmp_path):
    """extra_mounts: user data read-write, skills read-only, nested ones below their parents, in any order."""
    for name in ("workspace", "skills", "config", "config/locks"):
        (tmp_path / name).mkdir()
    (tmp_path / "skills" / "a.md").write_text("skill")
    info = backend.create("t", "ab04", extra_mounts=[
        (str(tmp_path / "config/locks"), "/mnt/integrations/config/locks", False),
        (str(tmp_path / "workspace"), "/mnt/user-data/workspace", False),
        (str(tmp_path / "skills"), "/mnt/skills", True),
        (str(tmp_path / "config"), "/mnt/integrations/config", True)])
    shell(info, "echo data > /mnt/user-data/workspace/f; echo l > /mnt/integrations/config/locks/l")
    assert (tmp_path / "workspace" / "f").read_text() == "data\n" and (tmp_path / "config" / "locks" / "l").exists()
    assert shell(info, "cat /mnt/skills/a.md").strip() == "skill"
    denied = shell(info, "touch /mnt/skills/x /mnt/integrations/config/x || echo refused")
    assert "refused" in denied and not (tmp_path / "skills" / "x").exists() and not (tmp_path / "config" / "x").exists()


def test_mounts_are_deduplicated(backend, tmp_path):
    """The same container path twice: the first one counts."""
    (tmp_path / "f").write_text("one")
    info = backend.create("t", "ab05", extra_mounts=[(str(tmp_path), "/mnt/d", True), ("/usr/share", "/mnt/d/", True)])
    assert shell(info, "cat /mnt/d/f").strip() == "one"


def test_configured_mounts_and_environment(adapter, cay, tmp_path):
    """sandbox.mounts and sandbox.environment of the configuration reach every sandbox."""
    (tmp_path / "f").write_text("configured")
    backend = adapter.CayBackend(cay, prefix="conf", mounts=[(str(tmp_path), "/mnt/conf", True)],
                                 environment={"DEER": "flow"}, memory="256M")
    info = backend.create("t", "ab06")
    try:
        assert shell(info, "cat /mnt/conf/f; echo :$DEER").strip() == "configured:flow"
    finally:
        backend.destroy(info)


def test_destroy_removes_it_and_may_be_repeated(backend, cay):
    """Stop and free; idempotent for a missing one; info of list_running or discover will do (container_id None)."""
    info = backend.create("t", "ab07")
    info.container_id = None
    backend.destroy(info)
    backend.destroy(info)
    assert backend.is_absent("ab07")
    with pytest.raises(sdk.NotFound):
        cay.get(info.container_name)


def test_destroy_leaves_a_later_sandbox_alone(backend):
    """container_id is the generation: an old info does not destroy the new sandbox of the same id."""
    old = backend.create("t", "ab08")
    backend.destroy(old)
    new = backend.create("t", "ab08")
    backend.destroy(old)
    assert backend.is_alive(new) and not backend.is_alive(old)


def test_destroy_raises_if_it_may_still_be_there(adapter, backend, tmp_path):
    """A stop that may not have happened is told, not swallowed."""
    info = backend.create("t", "ab09")
    with pytest.raises(sdk.Unavailable):
        adapter.CayBackend(host=f"unix:{tmp_path}/nobody", prefix=backend._prefix).destroy(info)


def test_is_alive(backend, cay):
    """True while it runs, also paused; False only if it is certain that it does not."""
    info = backend.create("t", "ab10")
    assert backend.is_alive(info)
    cay.attach(info.container_name).pause()
    assert backend.is_alive(info)
    cay.attach(info.container_name).kill()
    assert not backend.is_alive(info)
    backend.destroy(info)
    assert not backend.is_alive(info)


def test_what_cannot_be_told_raises_or_is_nothing(adapter, tmp_path):
    """Without a daemon: is_alive, is_absent and inspect_runtime raise; discover is None and list_running []."""
    lost = adapter.CayBackend(host=f"unix:{tmp_path}/nobody", prefix="lost")
    info = adapter.SandboxInfo(sandbox_id="x", sandbox_url="")
    for ask in (lambda: lost.is_alive(info), lambda: lost.is_absent("x"), lambda: lost.inspect_runtime("x")):
        with pytest.raises(sdk.Unavailable):
            ask()
    assert lost.discover("x") is None
    assert lost.list_running() == []


def test_list_running_leaves_out_what_ended_meanwhile(backend, cay, monkeypatch):
    """One that ended between the list and the question for its URL does not hide the others."""
    kept, gone = backend.create("t", "ab20"), backend.create("t", "ab21")
    listed = [cay.get(info.container_name).info for info in (gone, kept)]
    cay.attach(gone.container_name).remove()
    with monkeypatch.context() as patch:
        patch.setattr(cay, "list", lambda **_: listed)
        assert [info.sandbox_id for info in backend.list_running()] == ["ab20"]


def test_operator_who_allows_less(adapter, daemons):
    """The operator's idle_max is shorter than ours: it holds, and the sandbox is made."""
    daemon = daemons(tcp=True, policy="[tenant acme]\nidle_max = 10m\n")
    token = daemon.token("acme", tenant="acme")
    backend = adapter.CayBackend(host=daemon.url, token=token)
    info = backend.create("t", "ab22")
    with sdk.Cay(daemon.url, token=token) as client:
        assert client.attach(info.container_name).spec()["idle_ms"] == 600_000
    backend.destroy(info)


def test_discover(backend, cay):
    """An info only if it runs and its URL answers; None for one that never was or has ended."""
    info = backend.create("t", "ab11")
    assert backend.discover("ab11") == info
    assert backend.discover("nothing") is None
    cay.attach(info.container_name).kill()
    assert backend.discover("ab11") is None


def test_list_running(adapter, backend, cay):
    """All that run, with their URLs and creation times; not those that ended, nor those of another prefix."""
    infos = [backend.create("t", f"ac{i}") for i in range(3)]
    cay.attach(infos[2].container_name).kill()
    other = adapter.CayBackend(cay, prefix=backend._prefix + "x")
    assert sorted(backend.list_running(), key=lambda i: i.sandbox_id) == infos[:2]
    assert other.list_running() == []
    cay.attach(infos[2].container_name).remove()


def test_absence_is_proved(backend, cay):
    """is_absent: one that has ended is not absent yet; complete_absent_teardown frees what is left of it."""
    info = backend.create("t", "ad01")
    assert not backend.is_absent("ad01")
    cay.attach(info.container_name).kill()
    assert not backend.is_absent("ad01")
    backend.complete_absent_teardown("ad01")
    backend.complete_absent_teardown("ad01")
    assert backend.is_absent("ad01")


def test_complete_absent_teardown_leaves_the_living(backend):
    """Teardown of what is absent touches nothing that runs."""
    info = backend.create("t", "ad02")
    backend.complete_absent_teardown("ad02")
    assert backend.is_alive(info)


def test_inspect_runtime(backend, cay):
    """Metadata whatever the health; None only when it is absent."""
    info = backend.create("t", "ad03")
    assert backend.inspect_runtime("ad03") == info
    cay.attach(info.container_name).kill()
    ended = backend.inspect_runtime("ad03")
    assert (ended.container_id, ended.sandbox_url) == (info.container_id, "")
    backend.destroy(info)
    assert backend.inspect_runtime("ad03") is None


def test_url_of_a_dead_sandbox_is_dead(backend):
    """The key in the URL is the only credential: it ends with its sandbox."""
    info = backend.create("t", "ad04")
    assert shell(info, "echo ok").strip() == "ok"
    backend.destroy(info)
    with pytest.raises(agent_sandbox.core.api_error.ApiError) as refused:
        shell(info, "echo ok")
    assert refused.value.status_code == 404


def test_a_daemon_without_tcp_says_so(adapter, daemons):
    """DeerFlow needs a URL: without a TCP listener the error tells what to do."""
    backend = adapter.CayBackend(host=f"unix:{daemons().sock}")
    with pytest.raises(sdk.Unsupported, match="tcp"):
        backend.create("t", "ad05")


def test_discovery_after_the_process_was_killed(adapter, cayd):
    """Another process finds, lists and uses what a process made that was ended by SIGKILL."""
    program = textwrap.dedent("""
        import sys, time
        from cay.adapters.deerflow import CayBackend
        info = CayBackend(host=sys.argv[1], prefix="killed").create("thread", "abc123")
        print(info.sandbox_url, flush=True)
        time.sleep(1000)
    """)
    host = f"unix:{cayd.sock}"
    maker = subprocess.Popen([sys.executable, "-c", program, host], stdout=subprocess.PIPE, text=True)
    url = maker.stdout.readline().strip()
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    backend = adapter.CayBackend(host=host, prefix="killed")
    found = backend.discover("abc123")
    assert found.sandbox_url == url and backend.list_running() == [found]
    assert shell(found, "echo alive").strip() == "alive"
    backend.destroy(found)


# ---- the provider


@pytest.fixture
def provider(adapter, cayd, monkeypatch):
    from deerflow.config import get_app_config

    settings = get_app_config().sandbox
    for name, value in (("cay_host", f"unix:{cayd.sock}"), ("container_prefix", "p" + os.urandom(4).hex()),
                        ("cay_spec", {"memory": "256M"}), ("environment", {"FROM": "config"})):
        monkeypatch.setattr(settings, name, value, raising=False)
    providers = []

    def make():
        providers.append(adapter.CayProvider())
        return providers[-1]

    yield make
    for one in providers:
        one.shutdown()


def test_provider_is_made_without_arguments(adapter, provider):
    """sandbox.use: module:Class is a subclass of DeerFlow's provider, built with no arguments from config.yaml."""
    from deerflow.community.aio_sandbox.aio_sandbox_provider import AioSandboxProvider

    assert isinstance(provider(), AioSandboxProvider)
    assert provider().uses_thread_data_mounts is True


def test_thread_data_mounts_can_be_turned_off(adapter, provider, monkeypatch):
    """sandbox.thread_data_mounts of the configuration overrides."""
    from deerflow.config import get_app_config

    monkeypatch.setattr(get_app_config().sandbox, "thread_data_mounts", False, raising=False)
    assert provider().uses_thread_data_mounts is False


def test_provider_drives_the_backend(provider, cay):
    """acquire makes one with a single probe, a second acquire reuses it, release keeps it, shutdown destroys it."""
    one = provider()
    name = one.acquire("thread-1")
    info = one.get(name)
    assert one._probes[name] == 1 and shell(info, "echo $FROM").strip() == "config"
    assert cay.attach(info.container_name).spec()["memory"] == 256 << 20
    assert one.acquire("thread-1") == name
    one.release(name)
    assert one.acquire("thread-1") == name and one.get(name) == info
    one.shutdown()
    with pytest.raises(sdk.NotFound):
        cay.get(info.container_name)


def test_a_second_provider_finds_what_the_first_made(provider):
    """A restarted gateway adopts by list_running, another worker by discover: one sandbox for each thread."""
    first, late = provider(), provider()
    name = first.acquire("thread-2")
    assert late.acquire("thread-2") == name and late.get(name) == first.get(name)
    restarted = provider()
    assert restarted._warm[name] == first.get(name)


def test_a_sandbox_that_died_is_made_again(provider, cay):
    """is_alive False leads to a new one; nobody is left with a URL that refuses until a restart."""
    one = provider()
    info = one.get(one.acquire("thread-3"))
    cay.attach(info.container_name).kill()
    again = one.get(one.acquire("thread-3"))
    assert again.sandbox_url != info.sandbox_url and shell(again, "echo up").strip() == "up"


def test_forgotten_sandboxes_end(provider, cay):
    """A DeerFlow that never comes back leaves nothing for ever: an idle time beyond its own; 0 turns both off."""
    one = provider()
    info = one.get(one.acquire("thread-4"))
    assert cay.attach(info.container_name).spec()["idle_ms"] == 3600 * 1000


def test_example(cayd, cay):
    """examples/deerflow/backend.py, as it is in the documentation."""
    path = HERE.parents[2] / "examples/deerflow/backend.py"
    assert path.read_text() in (HERE.parents[2] / "docs/frameworks/deerflow.md").read_text()
    done = subprocess.run([sys.executable, path], env={**os.environ, "CAY_HOST": f"unix:{cayd.sock}"}, timeout=60,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == "in the sandbox: 45\non the host: 45\nfound again: True\n"
    assert cay.list(labels={"deerflow": "example"}) == []
