# SPDX-License-Identifier: Apache-2.0
"""a2a's SandboxClient on cay: names and owners, one-shots, egress, secrets and labels."""
import asyncio

import pytest
from a2a_pack.sandbox import ExecResult, SandboxClient, SandboxSpec
from a2a_kit import runner

import cay as sdk
from cay.adapters.a2a import CaySandboxClient, CaySandboxHandle


@pytest.fixture
def run(host):
    """run(body, **options); see a2a_kit.py."""
    return runner(host)


def ids(cay):
    return {info.id for info in cay.list(state="all")}


# ---- get, list, remove


def test_get_of_an_unknown_name(run):
    """get(name) of none that lives: KeyError("no live sandbox: name")."""
    with pytest.raises(KeyError) as caught:
        run(lambda client: client.get("nobody"))
    assert caught.value.args == ("no live sandbox: nobody",)


def test_list_is_names(run):
    """list() gives the names of the live ones."""

    async def body(client):
        boxes = [await client.create(SandboxSpec(name=name)) for name in ("b", "a")]
        both = await client.list()
        await boxes[0].stop()
        return both, await client.list()

    assert run(body) == (["b", "a"], ["a"])


def test_remove_stops_and_drops(run, cay):
    """remove(name): an unknown one is a no-op; else it is stopped and dropped."""

    async def body(client):
        await client.remove("nobody")
        await client.create(SandboxSpec(name="box"))
        await client.remove("box")
        await client.remove("box")
        return await client.list(), client.id_of("box")

    names, identifier = run(body)
    assert names == [] and identifier not in ids(cay)


def test_owners_do_not_see_each_other(host):
    """Clients of two owners have names of their own: neither lists, gets, replaces or removes the other's."""

    async def main():
        mine, yours = CaySandboxClient(host, owner="test-mine"), CaySandboxClient(host, owner="test-yours")
        async with mine, yours:
            box = await mine.create(SandboxSpec(name="box"))
            try:
                assert await yours.list() == []
                with pytest.raises(KeyError):
                    await yours.get("box")
                await yours.remove("box")
                other = await yours.create(SandboxSpec(name="box"))
                await other.shell("echo yours > /tmp/mark")
                await other.stop()
                return (await box.shell("cat /tmp/mark")).exit_code, await mine.list()
            finally:
                await box.stop()

    assert asyncio.run(main()) == (1, ["box"])


# ---- one-shots


def test_run_shell_and_python_take_all_arguments(run, cay):
    """run_shell/run_python accept timeout_seconds, workspace/bucket, memory_mib, cpus, network_disabled and labels."""
    before = ids(cay)
    options = {"image": "python:3.11-slim", "timeout_seconds": 30, "workspace": None, "bucket": None, "memory_mib": 256,
               "cpus": 1, "network_disabled": True, "labels": {"team": "a"}, "egress": (), "secrets": ()}

    async def body(client):
        return await client.run_shell("echo $((6 * 7))", **options), await client.run_python("print(6 * 7)", **options)

    assert run(body) == (ExecResult(stdout="42\n"), ExecResult(stdout="42\n"))
    assert ids(cay) == before


def test_run_shell_labels(run):
    """network_disabled becomes the label of that name; memory and labels arrive at the sandbox."""

    async def body(client):
        task = asyncio.ensure_future(client.run_shell("sleep 300", network_disabled=True, labels={"team": "a"},
                                                      memory_mib=96))
        while not (names := await client.list()):
            await asyncio.sleep(0.01)
        spec = await (await client.get(names[0])).sandbox.spec()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return names[0], spec

    name, spec = run(body)
    assert name.startswith("sh-") and spec["memory"] == 96 << 20
    assert spec["labels"]["network_disabled"] == "true" and spec["labels"]["team"] == "a"


def test_run_shell_times_out(run, cay):
    """timeout_seconds of a one-shot: 124 and the text, and the sandbox is gone."""
    before = ids(cay)
    assert run(lambda client: client.run_shell("sleep 300", timeout_seconds=0.3)) == ExecResult(
        stdout="", stderr="sandbox timeout after 0.3s", exit_code=124)
    assert run(lambda client: client.run_python("import time; time.sleep(300)", timeout_seconds=0.3)).exit_code == 124
    assert ids(cay) == before


def test_run_shell_refuses_unknown_arguments(run):
    """An argument that is none of a spec is a TypeError; workspace and bucket that differ a ValueError."""
    with pytest.raises(TypeError, match="tiemout"):
        run(lambda client: client.run_shell("true", tiemout=3))
    with pytest.raises(ValueError, match="bucket"):
        run(lambda client: client.run_shell("true", workspace="a", bucket="b"))


def test_one_shots_stop_then_remove_and_swallow(run, monkeypatch):
    """At the end of a one-shot: stop(), then remove(); what they raise does not hide the result."""
    calls = []
    stop, remove = CaySandboxHandle.stop, CaySandboxClient.remove

    async def noisy_stop(self):
        calls.append(("stop", self.name))
        await stop(self)
        raise RuntimeError("stop")

    async def noisy_remove(self, name):
        calls.append(("remove", name))
        await remove(self, name)

    async def body(client):
        with monkeypatch.context() as patch:
            patch.setattr(CaySandboxHandle, "stop", noisy_stop)
            patch.setattr(CaySandboxClient, "remove", noisy_remove)
            return await client.run_shell("echo result")

    assert run(body).stdout == "result\n"
    names = {name for _, name in calls}
    assert len(names) == 1 and [what for what, _ in calls][:2] == ["stop", "remove"]


def test_cancelled_one_shot_leaves_nothing(run, cay):
    """A one-shot that is cancelled while its command runs removes its sandbox."""
    before = ids(cay)

    async def body(client):
        task = asyncio.ensure_future(client.run_shell("sleep 300"))
        while not await client.list():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await client.list()

    assert run(body) == []
    assert ids(cay) == before


def test_base_class_defaults_work(run):
    """The one-shots that SandboxClient itself has work on this client's create, exec, stop and remove."""

    async def body(client):
        return (await SandboxClient.run_python(client, "print(6 * 7)"),
                await SandboxClient.run_shell(client, "echo hi"), await client.list())

    assert run(body) == (ExecResult(stdout="42\n"), ExecResult(stdout="hi\n"), [])


# ---- egress, secrets, labels


def test_no_egress_is_no_network(run):
    """egress empty = deny all: there is loopback and nothing else. It cannot fail with exit code 126 in the command."""
    result = run(lambda client: client.run_python("import socket; print(socket.if_nameindex())"))
    assert result.ok and result.stdout == "[(1, 'lo')]\n"


@pytest.mark.parametrize("egress", [("pypi.org",), ("*.example.com", "localhost"), ("*",)])
def test_egress_is_not_in_this_version(run, egress):
    """A valid hostname allowlist is cay.Unsupported, never ignored."""
    with pytest.raises(sdk.Unsupported, match="egress"):
        run(lambda client: client.create(SandboxSpec(name="box", egress=egress)))


@pytest.mark.parametrize("egress", [("",), ("https://pypi.org",), ("a b",), ("-x.org",), ("a..b",), "pypi.org", (7,)])
def test_egress_is_hostnames(run, egress):
    """What is not a hostname pattern is a ValueError, before anything else."""
    with pytest.raises(ValueError, match="egress") as caught:
        run(lambda client: client.create(SandboxSpec(name="box", egress=egress)))
    assert not isinstance(caught.value, sdk.CayError)


def test_secrets_are_not_in_this_version(run):
    """secrets: logical names; valid ones are cay.Unsupported, others a ValueError."""
    with pytest.raises(sdk.Unsupported, match="secrets"):
        run(lambda client: client.create(SandboxSpec(name="box", secrets=("OPENAI_API_KEY",))))
    for secrets in (("a=b",), ("",), "KEY"):
        with pytest.raises(ValueError, match="secrets"):
            run(lambda client, secrets=secrets: client.create(SandboxSpec(name="box", secrets=secrets)))


def test_labels_of_this_client_are_reserved(run):
    """Labels by which a sandbox is found cannot be given by a spec."""
    with pytest.raises(ValueError, match="cay.a2a/"):
        run(lambda client: client.create(SandboxSpec(name="box", labels={"cay.a2a/owner": "somebody"})))


@pytest.mark.parametrize("options", [{"workspaces": "relative"}, {"write_policy": "all"}, {"timeout_seconds": -1}])
def test_options_are_checked(host, options):
    """Options that make no sense are refused when the client is made."""
    with pytest.raises(ValueError):
        CaySandboxClient(host, **options)
