# SPDX-License-Identifier: Apache-2.0
"""The life of cay-mcp and of its sandbox, and the program's options, by the official MCP client over stdio."""
import asyncio
import contextlib
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from mcp import Client, StdioServerParameters

import cay as sdk
from cay import mcp

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, "-B", "-m", "cay.mcp"]
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}


def talk(body, *options):
    """What `await body(client)` gives, with a server of its own."""
    server = StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *options])

    async def main():
        async with Client(server) as client:
            return await body(client)

    return asyncio.run(main())


async def text(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.content[0].text


async def error(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return result.content[0].text


async def identifier(client):
    """cay names a sandbox's host after it."""
    return await text(client, "run", command="hostname")


def ours(cay):
    return {info.id for info in cay.list(labels={"created-by": "cay-mcp"}, state="all")}


def until(what, seconds=20):
    """Waits for something that must come; how long it takes is not asserted."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


@contextlib.contextmanager
def started(*options):
    """A server by hand: the process, and a function that sends a request and returns the answer to it."""
    process = subprocess.Popen([*PROGRAM, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

    def ask(message):
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        ask(REQUEST)
        process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        yield process, ask
    finally:
        process.kill()
        process.communicate()


def run_message(command, number=2):
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": {"name": "run", "arguments": {"command": command}}}


# -- the sandbox


def test_the_sandbox_is_made_at_the_first_call_and_removed_at_the_end(host, cay):
    """Lazily created, one for the server, removed when the client goes; a process in it cannot keep it for ever."""
    before = ours(cay)

    async def body(client):
        await client.list_tools()
        assert ours(cay) == before
        made = await identifier(client)
        assert ours(cay) - before == {made} == {await identifier(client)}
        assert 0 < cay.get(made).info.ttl_left_ms <= 86_400_000
        await text(client, "run", command="sleep 1000 > /dev/null 2>&1 &")

    talk(body, "--host", host)
    assert ours(cay) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_it(host, cay, number):
    """SIGTERM and the like: removed, while the client still holds the other end; the exit code tells the signal."""
    before = ours(cay)
    with started("--host", host) as (process, ask):
        ask(run_message("sleep 1000 > /dev/null 2>&1 & echo ok"))
        assert len(ours(cay) - before) == 1
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert ours(cay) == before


def test_the_end_of_input_removes_it_in_the_middle_of_a_command(host, cay):
    """Stdio closed while a command runs: it is killed, and the sandbox removed."""
    before = ours(cay)
    with started("--host", host) as (process, ask):
        ask(run_message("true"))
        process.stdin.write(json.dumps(run_message("sleep 1000", 3)) + "\n")
        process.stdin.flush()
        (made,) = ours(cay) - before
        until(lambda: cay.get(made).info.processes == 1)
        process.stdin.close()
        assert process.wait(30) == 0
        assert ours(cay) == before
        process.stdin = None


def test_after_sigkill_it_ends_by_itself(host, cay):
    """SIGKILL of the server leaves a sandbox that ends by the idle rule; a command that ran is killed."""
    before = ours(cay)
    with started("--host", host, "--idle", "2") as (process, ask):
        ask(run_message("true"))
        (made,) = ours(cay) - before
        process.stdin.write(json.dumps(run_message("sleep 1000", 3)) + "\n")
        process.stdin.flush()
        until(lambda: cay.get(made).info.processes == 1)
        process.kill()
        process.wait()
    until(lambda: cay.get(made).info.state == "idle")
    cay.attach(made).remove()


def test_it_is_not_idle_while_the_server_lives(host):
    """A pause of the client longer than --idle does not end the sandbox."""
    async def body(client):
        await text(client, "write", path="kept", content="kept")
        await asyncio.sleep(4.8)
        assert await text(client, "read", path="kept") == "kept"

    talk(body, "--host", host, "--idle", "4")


def test_an_operator_who_allows_less(daemons, tmp_path):
    """The operator's bounds are shorter than ours: those hold, and are renewed while the server lives."""
    daemon = daemons(tcp=True, policy="[tenant acme]\nttl_max = 10m\nidle_max = 3s\n")
    token = daemon.token("acme", tenant="acme")
    (tmp_path / "token").write_text(token)
    with sdk.Cay(daemon.url, token=token) as client:

        async def body(session):
            made = await identifier(session)
            spec = client.attach(made).spec()
            assert (spec["ttl_ms"], spec["idle_ms"]) == (600_000, 3_000)
            await asyncio.sleep(3.6)
            assert await identifier(session) == made
            assert client.get(made).info.ttl_left_ms > 597_000

        talk(body, "--host", daemon.url, "--token-file", str(tmp_path / "token"))
        assert client.list() == []


def test_a_sandbox_that_is_gone_is_told_and_replaced(host, cay):
    """Removed, or ended, behind our back: an error that says what is lost; the next call has a new one."""
    async def body(client):
        for end in ("remove", "kill"):
            old = await identifier(client)
            getattr(cay.attach(old), end)()
            told = await error(client, "run", command="true")
            assert old in told and "is lost; the next call gets a new sandbox" in told
            assert await identifier(client) != old
            assert old not in ours(cay)

    talk(body, "--host", host)


def test_calls_that_come_at_once_share_one_sandbox(host, cay):
    """The first calls make one, and so do those that find it gone: all but one of the new ones would be left."""
    before = ours(cay)

    async def body(client):
        old = {await one for one in asyncio.as_completed([identifier(client) for _ in range(5)])}
        assert old == ours(cay) - before and len(old) == 1
        cay.attach(*old).kill()
        calls = [client.call_tool("run", {"command": "hostname"}) for _ in range(5)]
        results = await asyncio.gather(*calls)
        assert any(result.is_error and "is lost" in result.content[0].text for result in results)
        assert {await identifier(client)} == ours(cay) - before != old

    talk(body, "--host", host)
    assert ours(cay) == before


def test_attached_sandboxes_stay(host, cay):
    """--id: an existing sandbox is used, and left at the end."""
    with cay.sandbox() as sandbox:
        sandbox.files.write("/root/note", "mine")

        async def body(client):
            assert await text(client, "read", path="note") == "mine"
            return await identifier(client)

        assert talk(body, "--host", host, "--id", sandbox.id) == sandbox.id
        assert sandbox.refresh().state == "running"

        async def ends(client):
            assert await identifier(client) == sandbox.id
            sandbox.kill()
            assert "has ended" in await error(client, "run", command="true")
            sandbox.remove()
            assert f"no sandbox '{sandbox.id}'" in await error(client, "run", command="true")

        talk(ends, "--host", host, "--id", sandbox.id)


# -- reaching cayd


def test_without_cayd_the_error_says_what_to_do(daemons):
    """cayd not reachable: start it. Once it is there, the same server works."""
    daemon = daemons()
    daemon.stop()

    async def body(client):
        told = await error(client, "run", command="true")
        assert f"cannot reach cayd at unix:{daemon.sock}" in told
        assert "Start cayd there, or name another with --host or CAY_HOST." in told
        daemon.start()
        assert await text(client, "run", command="echo ok") == "ok"

    talk(body, "--host", f"unix:{daemon.sock}")


def test_token_file(cayd, tmp_path):
    """--token-file: over TCP, as a tenant."""
    file = tmp_path / "token"
    file.write_text(cayd.token("mcp-tcp", tenant="mcp") + "\n")

    async def body(client):
        assert await text(client, "run", command="echo ok") == "ok"

    talk(body, "--host", cayd.url, "--token-file", str(file))


# -- the program


def test_options_of_the_sandbox(host, cay):
    """--image --memory --cpus --user --ttl --idle are those of the sandbox."""
    async def body(client):
        assert await text(client, "run", command="id -un; pwd; echo ~") == "user\n/home/user\n/home/user"
        await text(client, "write", path="mine", content="x")
        assert await text(client, "run", command="stat -c %U mine") == "user"
        return cay.attach(await identifier(client)).spec()

    spec = talk(body, "--host", host, "--image", "host", "--memory", "128M", "--cpus", "0.5", "--user", "user",
                "--ttl", "15m", "--idle", "2m")
    assert (spec["memory"], spec["cpus"], spec["ttl_ms"], spec["idle_ms"]) == (128 << 20, 0.5, 900_000, 120_000)


def test_a_given_ttl_is_not_prolonged(host, cay):
    """--ttl is the end, whatever the client does."""
    async def body(client):
        made = await identifier(client)
        until(lambda: cay.get(made).info.state == "ttl")
        assert "ended: ttl" in await error(client, "run", command="true")

    talk(body, "--host", host, "--ttl", "2", "--idle", "3")


def test_an_image_that_is_not_there_is_an_error_of_the_tool(host):
    """Errors at create are told at the call."""
    async def body(client):
        assert "image 'ubuntu:22.04': registry images are not supported yet" in await error(client, "run", command="true")

    talk(body, "--host", host, "--image", "ubuntu:22.04")


def test_a_user_that_is_not_there_is_an_error_and_leaves_nothing(host, cay):
    """A sandbox in which no command can run is removed at once."""
    before = ours(cay)

    async def body(client):
        assert "no user 'nonesuch'" in await error(client, "run", command="true")
        assert ours(cay) == before

    talk(body, "--host", host, "--user", "nonesuch")


def test_only_the_protocol_is_on_standard_output(host):
    """Everything else is on standard error."""
    messages = [REQUEST, {"jsonrpc": "2.0", "method": "notifications/initialized"}, run_message("echo hi; echo no >&2")]
    process = subprocess.Popen([*PROGRAM, "--host", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for message in messages:
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    rest, log = process.communicate(timeout=30)
    assert [answer["id"] for answer in answers] == [1, 2] and rest == "" and process.returncode == 0
    assert "is made" in log and "is removed" in log and "HTTP Request" not in log


def test_help_and_version(capsys):
    """--help names every option; --version is the package's."""
    for option, code in (("--help", 0), ("--version", 0)):
        with pytest.raises(SystemExit) as caught:
            mcp.main([option])
        assert caught.value.code == code
    printed = capsys.readouterr().out
    for option in ("--host", "--token-file", "--image", "--memory", "--cpus", "--ttl", "--idle", "--user", "--id"):
        assert f"{option} " in printed
    assert printed.endswith(f"cay-mcp {sdk.__version__}\n")


@pytest.mark.parametrize("options, told", [
    (["--nonesuch"], "unrecognized arguments"), (["--ttl", "soon"], "'soon' is no time"), (["--idle", "0"], "no time"),
    (["--cpus", "many"], "invalid float"), (["surplus"], "unrecognized arguments"),
    (["--id", "box", "--memory", "1G"], "--id takes a sandbox as it is: without --memory")])
def test_bad_options_end_with_2(capsys, options, told):
    """Usage errors: exit code 2 and what is wrong, on standard error."""
    with pytest.raises(SystemExit) as caught:
        mcp.main(options)
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "") and told in err


def test_what_cannot_work_at_all_ends_with_1(capsys, tmp_path):
    """A token file or a host that cannot be used: exit code 1 at the start."""
    for options, told in ((["--token-file", f"{tmp_path}/none"], "none"), (["--host", "unix:relative"], "absolute")):
        assert mcp.main(options) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("cay-mcp: ") and told in err


def test_without_the_package_mcp_it_says_what_to_install():
    """The extra cay-sandbox[mcp]."""
    hide = "import sys; sys.modules['mcp'] = None\nimport cay.mcp"
    done = subprocess.run([sys.executable, "-B", "-c", hide], capture_output=True, text=True, timeout=30)
    assert "pip install 'mcp>=2.1'" in done.stderr


def test_the_console_script_is_the_main_function():
    """cay-mcp is installed with the package."""
    project = (ROOT / "sdk/python/pyproject.toml").read_text()
    module, function = re.search(r'^cay-mcp = "([\w.]+):(\w+)"$', project, re.M).groups()
    assert getattr(importlib.import_module(module), function) is mcp.main
    assert re.search(r'^mcp = \["mcp>=2', project, re.M)


def test_the_example_runs(host, tmp_path):
    """examples/mcp: the client as it is, with CAY_HOST, and the line of configuration that it stands for."""
    script = tmp_path / "cay-mcp"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -B -m cay.mcp "$@"\n')
    script.chmod(0o755)
    env = dict(os.environ, CAY_HOST=host, PATH=f"{tmp_path}:{os.environ['PATH']}")
    program, config = ROOT / "examples/mcp/client.py", ROOT / "examples/mcp/mcp.json"
    page = (ROOT / "docs/frameworks/mcp.md").read_text()
    assert program.read_text() in page and config.read_text() in page
    assert json.loads(config.read_text()) == {"mcpServers": {"sandbox": {"command": "cay-mcp"}}}
    done = subprocess.run([sys.executable, "-B", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[:2] == ["tools: list read run search write", "42"]
    assert done.stdout.endswith("[exit code 2]\nexit code: 2\n")
