# SPDX-License-Identifier: Apache-2.0
"""a2a's SandboxHandle and SandboxClient.create on cay: what the contract says of results, timeouts, specs, errors."""
import asyncio

import pytest
from a2a_pack.sandbox import ExecResult, SandboxClient, SandboxHandle, SandboxRuntimeError, SandboxSpec
from a2a_kit import runner

import cay as sdk
from cay.adapters.a2a import CaySandboxClient, CaySandboxHandle, SandboxImageRejected


@pytest.fixture
def run(host):
    """run(body, **options); see a2a_kit.py."""
    return runner(host)


@pytest.fixture
def in_box(run):
    """in_box(body, **options): the same with `await body(handle)`, of a sandbox with the defaults."""

    def go(body, **options):
        async def main(client):
            return await body(await client.create(SandboxSpec(name="box")))

        return run(main, **options)

    return go


def ids(cay):
    return {info.id for info in cay.list(state="all")}


# ---- types


def test_subclasses_of_the_installed_abstract_classes(host):
    """Client and handle subclass the installed a2a_pack's SandboxClient and SandboxHandle; nothing is left abstract."""
    assert issubclass(CaySandboxClient, SandboxClient) and issubclass(CaySandboxHandle, SandboxHandle)
    assert not CaySandboxClient.__abstractmethods__ and not CaySandboxHandle.__abstractmethods__
    client = CaySandboxClient(host)
    assert isinstance(client, SandboxClient)
    assert isinstance(CaySandboxHandle(client, "x", False), SandboxHandle)


def test_results_are_the_packs_own_exec_result(in_box):
    """ExecResult: stdout, stderr, exit_code, truncated; output is both texts, ok is exit code 0; files is ()."""

    async def body(box):
        return await box.shell("echo out; echo err >&2; exit 3"), await box.shell("true")

    bad, good = in_box(body)
    assert bad == ExecResult(stdout="out\n", stderr="err\n", exit_code=3, truncated=False, files=())
    assert bad.output == "out\nerr\n" and not bad.ok
    assert good == ExecResult(stdout="") and good.ok


# ---- the handle


def test_exec_is_argv_without_a_shell(in_box):
    """exec(cmd, args) passes arguments as they are: no shell looks at them. args may be left out."""

    async def body(box):
        return await box.exec("printf", ["%s|", "$HOME", "a b", "*", ""]), await box.exec("pwd")

    printed, alone = in_box(body)
    assert printed.stdout == "$HOME|a b|*||"
    assert alone.ok and alone.stdout == "/root\n"


def test_exec_of_what_cannot_run_is_a_result(in_box):
    """A program that is not there is exit code 127, one that may not run 126, as a shell tells it."""

    async def body(box):
        return await box.exec("no-such-program"), await box.exec("/etc/passwd")

    missing, denied = in_box(body)
    assert missing.exit_code == 127 and "no-such-program" in missing.stderr
    assert denied.exit_code == 126 and "/etc/passwd" in denied.stderr


def test_shell_runs_a_script(in_box):
    """shell(script) is a shell script, state of the file system stays between calls; an empty one does nothing."""

    async def body(box):
        await box.shell("cd /tmp && for i in 1 2; do echo $i; done | tee numbers")
        return await box.shell("cat /tmp/numbers"), await box.shell("")

    kept, empty = in_box(body)
    assert kept.stdout == "1\n2\n"
    assert empty == ExecResult(stdout="")


def test_timeout_is_a_result(in_box):
    """On timeout: exit code 124 and the exact text in stderr, no exception. Partial stdout and the sandbox are kept."""

    async def body(box):
        timed_out = await box.shell("echo begun; echo lost >&2; sleep 300 & sleep 300", timeout=1.5)
        return timed_out, await box.exec("pgrep", ["sleep"])

    timed_out, after = in_box(body)
    assert timed_out == ExecResult(stdout="begun\n", stderr="sandbox timeout after 1.5s", exit_code=124)
    assert after.exit_code == 1, "all that it started is gone, and the sandbox lives"


@pytest.mark.parametrize("seconds, text", [(0.25, "sandbox timeout after 0.25s"), (1.0, "sandbox timeout after 1s")])
def test_timeout_of_exec(in_box, seconds, text):
    """exec takes the same timeout as shell; the text has the number in its shortest form."""
    assert in_box(lambda box: box.exec("sleep", ["300"], timeout=seconds)).stderr == text


def test_timeout_none_and_zero_mean_the_clients(in_box):
    """timeout None is unbounded by default; a client's timeout_seconds takes its place, and that of 0."""

    async def body(box):
        return [await box.shell("sleep 0.4", timeout=timeout) for timeout in (None, 0)]

    assert [result.exit_code for result in in_box(body)] == [0, 0]
    assert [result.stderr for result in in_box(body, timeout_seconds=0.1)] == ["sandbox timeout after 0.1s"] * 2


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_timeout_that_is_none(in_box, timeout):
    """A timeout that is not a positive number of seconds is refused."""
    with pytest.raises(ValueError, match="timeout"):
        in_box(lambda box: box.shell("true", timeout=timeout))


def test_output_is_never_truncated(in_box):
    """More than cay keeps of a process: the command waits for its reader, and the result is whole."""
    result = in_box(lambda box: box.shell("head -c 9000000 /dev/zero | tr '\\0' x; echo end"))
    assert result.stdout == "x" * 9_000_000 + "end\n" and result.ok and not result.truncated


def test_stop_deletes_and_may_be_repeated(run, cay):
    """stop(): ends and deletes the sandbox; idempotent. What is called afterwards finds no sandbox."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box"))
        await box.stop()
        await box.stop()
        with pytest.raises(SandboxRuntimeError) as caught:
            await box.shell("true")
        return await client.list(), client.id_of("box"), caught.value

    names, identifier, error = run(body)
    assert names == [] and identifier not in ids(cay)
    assert error.status_code == 404


def test_kill_deletes_and_may_be_repeated(run, cay):
    """kill(): ends all processes at once and deletes; idempotent, also after stop()."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box"))
        await box.shell("trap '' TERM; sleep 300 > /dev/null 2>&1 &")
        await box.kill()
        await box.kill()
        await box.stop()
        return await client.list(), client.id_of("box")

    names, identifier = run(body)
    assert names == [] and identifier not in ids(cay)


def test_logs_are_lines(in_box):
    """logs(tail): the output of the sandbox's commands; with tail its last lines."""

    async def body(box):
        await box.shell("echo one; echo two")
        await box.shell("echo three")
        with pytest.raises(ValueError):
            await box.logs(tail=-1)
        return [await box.logs(), await box.logs(tail=2), await box.logs(tail=0)]

    everything, two, none = in_box(body)
    assert everything == "one\ntwo\nthree\n"
    assert two == "two\nthree\n" and none == ""


def test_files_of_a_handle_are_cays(in_box):
    """Beyond the contract: `files` of a handle reads and writes the sandbox's files."""

    async def body(box):
        await box.files.write("/tmp/in", b"\0\1")
        return (await box.exec("od", ["-An", "-tx1", "/tmp/in"])).stdout.split()

    assert in_box(body) == ["00", "01"]


def test_runtime_error_tells_all(run):
    """SandboxRuntimeError has operation, method, url, status, body, cause and name; to_error_payload() gives them."""

    async def body(client):
        box = await client.create(SandboxSpec(name="box"))
        await box.kill()
        with pytest.raises(SandboxRuntimeError) as caught:
            await box.exec("true", timeout=7)
        return caught.value, client.id_of("box")

    error, identifier = run(body)
    payload = error.to_error_payload()
    assert payload["operation"] == "exec" and payload["method"] == "POST" and payload["timeout_seconds"] == 7
    assert payload["url"].startswith("unix:/") and payload["url"].endswith(f"/sandboxes/{identifier}/exec")
    assert payload["status_code"] == 404 and payload["sandbox_name"] == "box" and payload["cause_type"] == "NotFound"
    assert identifier in payload["response_body"] and isinstance(error.__cause__, sdk.NotFound)


def test_no_daemon_is_a_runtime_error(tmp_path):
    """A runtime that cannot be reached is a SandboxRuntimeError in every call of the client."""
    client = CaySandboxClient(f"unix:{tmp_path}/none.sock")
    calls = {"create": lambda: client.create(SandboxSpec(name="x")), "get": lambda: client.get("x"),
             "list": client.list, "stop": lambda: client.remove("x")}
    for operation, call in calls.items():
        with pytest.raises(SandboxRuntimeError, match="cannot reach cayd") as caught:
            asyncio.run(call())
        assert caught.value.operation == operation


# ---- create


def test_create_keeps_the_name(run):
    """handle.name is spec.name, although ids of cay are of another form."""
    names = ["box", "Workspace SH/42", "größe", "-", "x" * 255, "a.b_c"]

    async def body(client):
        handles = [await client.create(SandboxSpec(name=name)) for name in names]
        assert [handle.name for handle in handles] == names
        assert await client.list() == names
        return [(await (await client.get(name)).shell("echo here")).stdout for name in names]

    assert run(body) == ["here\n"] * len(names)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0", None])
def test_create_refuses_names_that_are_none(run, name):
    """A name that cannot be kept is a ValueError."""
    with pytest.raises(ValueError, match="name"):
        run(lambda client: client.create(SandboxSpec(name=name)))


def test_create_applies_the_spec(run):
    """memory_mib (512), cpus (1) and labels of a spec are those of the sandbox; without network, as egress is empty."""

    async def body(client):
        usual = await client.create(SandboxSpec(name="usual"))
        chosen = await client.create(SandboxSpec(name="chosen", memory_mib=128, cpus=2, labels={"team": "a"}))
        return await usual.sandbox.spec(), await chosen.sandbox.spec()

    usual, chosen = run(body)
    assert (usual["memory"], usual["cpus"], usual["image"], usual["mounts"]) == (512 << 20, 1, "host", [])
    assert (chosen["memory"], chosen["cpus"]) == (128 << 20, 2)
    assert chosen["labels"]["team"] == "a" and chosen["network"] == "deny-all"


def test_create_refuses_what_is_over_the_operators_cap(run, cay):
    """ValueError("sandbox memory exceeds operator cap") and of CPU; what is not over it is made."""
    before = ids(cay)
    options = {"max_memory_mib": 256, "max_cpus": 2}
    for fields, text in (({"memory_mib": 257}, "sandbox memory exceeds operator cap"),
                         ({"memory_mib": 256, "cpus": 3}, "sandbox CPU exceeds operator cap")):
        with pytest.raises(ValueError) as caught:
            run(lambda client: client.create(SandboxSpec(name="box", **fields)), **options)
        assert str(caught.value) == text
    run(lambda client: client.create(SandboxSpec(name="box", memory_mib=256, cpus=2)), **options)
    assert ids(cay) == before


@pytest.mark.parametrize("fields", [{"memory_mib": 0}, {"memory_mib": -1}, {"memory_mib": "1G"}, {"memory_mib": 1},
                                    {"cpus": 0}, {"cpus": float("nan")}, {"cpus": True}])
def test_create_refuses_sizes_that_are_none(run, fields):
    """Memory and CPUs have to be positive numbers, and such that a sandbox can live with."""
    with pytest.raises(ValueError):
        run(lambda client: client.create(SandboxSpec(name="box", **fields)))


def test_create_refuses_images_that_are_not_listed(run, cay):
    """SandboxImageRejected, a ValueError that speaks of the operator allowlist; what is not chosen is allowed."""
    before = ids(cay)
    with pytest.raises(SandboxImageRejected, match="operator allowlist") as caught:
        run(lambda client: client.create(SandboxSpec(name="box", image="node:20-slim")), allowed_images=["host"])
    assert isinstance(caught.value, ValueError)
    for image in ("host", "python:3.11-slim"):
        run(lambda client, image=image: client.create(SandboxSpec(name="box", image=image)), allowed_images=["host"])
    assert ids(cay) == before


def test_create_of_an_image_that_cay_has_not(run, cay):
    """Any other image goes to cayd as it is; one that it does not have is cay.Unsupported, and a ValueError."""
    before = ids(cay)
    for kind in (sdk.Unsupported, SandboxImageRejected, ValueError):
        with pytest.raises(kind, match="node:20-slim': registry images are not supported yet"):
            run(lambda client: client.create(SandboxSpec(name="box", image="node:20-slim")))
    assert ids(cay) == before


def test_images_are_aliases_of_cayd(daemons, run):
    """The spec's default image means the client's `image`; others are aliases of the operator's, resolved by cayd."""
    daemon = daemons()
    daemon.cay.config.write_text("[image]\nown-tools = host\nusual = host\n")
    daemon.restart()

    async def body(client):
        specs = SandboxSpec(name="a"), SandboxSpec(name="b", image="own-tools")
        boxes = [await client.create(spec) for spec in specs]
        return [(await box.sandbox.spec())["image"] for box in boxes]

    assert run(body, host=f"unix:{daemon.sock}", image="usual") == ["usual", "own-tools"]


def test_the_rules_of_cayds_operator_are_told_as_the_clients_own(daemons, run):
    """Refusals by cayd's policy: caps and images are ValueError with the same texts, the rest SandboxRuntimeError."""
    daemon = daemons(policy="[policy]\nimages = host\nmemory_max = 256M\ncpus_max = 1\nsandboxes_max = 1\n"
                            "operator_exempt = no\n")

    def refused(kind, **fields):
        async def body(client):
            await client.create(SandboxSpec(name="first", memory_mib=128))
            with pytest.raises(kind) as caught:
                await client.create(SandboxSpec(name="second", **fields))
            return await client.list(), caught.value

        names, error = run(body, host=f"unix:{daemon.sock}")
        assert names == ["first"]
        return error

    assert str(refused(ValueError, memory_mib=512)) == "sandbox memory exceeds operator cap"
    assert str(refused(ValueError, memory_mib=128, cpus=2)) == "sandbox CPU exceeds operator cap"
    assert "operator allowlist" in str(refused(SandboxImageRejected, memory_mib=128, image="dir:/srv"))
    assert refused(SandboxRuntimeError, memory_mib=128).status_code == 429


def test_create_does_not_replace(run):
    """A name that is live is refused (SandboxRuntimeError, 409), also with the same spec; the first is left alone."""

    async def body(client):
        spec = SandboxSpec(name="box")
        first = await client.create(spec)
        await first.shell("echo mine > /tmp/mark")
        for _ in range(2):
            with pytest.raises(SandboxRuntimeError) as caught:
                await client.create(spec)
            assert caught.value.status_code == 409
        return await first.shell("cat /tmp/mark"), await client.list()

    assert run(body) == (ExecResult(stdout="mine\n"), ["box"])


def test_create_takes_the_name_of_an_ended_one(run):
    """A sandbox that has ended by itself keeps its name from nobody."""

    async def body(client):
        first = await client.create(SandboxSpec(name="box"))
        await first.sandbox.kill()
        with pytest.raises(KeyError):
            await client.get("box")
        assert await client.list() == []
        second = await client.create(SandboxSpec(name="box"))
        return await second.shell("echo alive")

    assert run(body).stdout == "alive\n"


def test_failed_create_leaves_nothing(run, cay):
    """Any failure of create, also after the sandbox was made, leaves nothing behind."""
    before = ids(cay)

    async def broken(*_):
        raise sdk.Internal("set up failed")

    async def fails_late(client):
        client._set_up = broken
        await client.create(SandboxSpec(name="box"))

    with pytest.raises(SandboxRuntimeError, match="set up failed"):
        run(fails_late)
    with pytest.raises(ValueError):
        run(lambda client: client.create(SandboxSpec(name="box", labels={"bad key": "x"})))
    assert ids(cay) == before


def test_cancelled_create_leaves_nothing(run, cay):
    """A create that is cancelled, at whatever point, leaves nothing behind."""
    before = ids(cay)

    async def body(client):
        for pause in (0, 0.001, 0.003, 0.01):
            task = asyncio.ensure_future(client.create(SandboxSpec(name=f"box-{pause}")))
            await asyncio.sleep(pause)
            task.cancel()
            try:
                await (await task).stop()  # it was faster
            except asyncio.CancelledError:
                pass
        return await client.list()

    assert run(body) == []
    assert ids(cay) == before
