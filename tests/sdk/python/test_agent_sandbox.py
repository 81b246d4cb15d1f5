# SPDX-License-Identifier: Apache-2.0
"""The published client of the AIO protocol (package agent-sandbox, as DeerFlow uses it), unmodified, against cayd's
/aio/KEY. It parses every answer into its own models: what they require has to be there."""
import asyncio
import base64
import os

import agent_sandbox
import httpx
import pydantic
import pytest
from agent_sandbox.core.api_error import ApiError


@pytest.fixture(scope="module")
def url(cayd, cayd_box):
    return cayd.get(f"/sandboxes/{cayd_box}/aio").body["url"]


@pytest.fixture(scope="module")
def client(url):
    """As DeerFlow makes it: a base_url, 600 seconds, and no headers for authentication."""
    return agent_sandbox.Sandbox(base_url=url, timeout=600)


def test_probe(url):
    """f"{url}/v1/sandbox" == 200 is what readiness means."""
    assert httpx.get(f"{url}/v1/sandbox", timeout=5, trust_env=False).status_code == 200


def test_get_context(client):
    """sandbox.get_context().home_dir; the model requires detail{system, runtime, utils}."""
    context = client.sandbox.get_context()
    assert context.home_dir == "/root" and context.version and context.detail.system.arch
    assert context.detail.runtime.python[0].bin == "/usr/bin/python3"


def test_exec_command(client):
    """shell.exec_command(command, no_change_timeout): data.output, exit_code and status."""
    result = client.shell.exec_command(command="echo out; echo err >&2; exit 3", no_change_timeout=600)
    assert result.success and result.data.output == "out\nerr\n"
    assert (result.data.status, result.data.exit_code) == ("completed", 3)
    assert client.shell.exec_command(command="test -s /etc/passwd && echo OK || echo MISSING").data.output.strip() == "OK"


def test_sessions(client):
    """create_session(id) and exec_command(id=); cleanup_session; then 404 "Session not found" as an ApiError."""
    made = client.shell.create_session(id="5f0c9a52-0000-4000-8000-000000000001")
    session = made.data.session_id
    assert made.data.working_dir == "/root"
    client.shell.exec_command(command="cd /usr; export A=1", id=session)
    assert client.shell.exec_command(command="pwd; echo $A", id=session).data.output == "/usr\n1\n"
    assert client.shell.list_sessions().data.sessions[session].working_dir == "/usr"
    assert client.shell.view(id=session).data.output == "/usr\n1\n"
    assert client.shell.wait_for_process(id=session).data.status == "completed"
    assert client.shell.cleanup_session(session).success
    with pytest.raises(ApiError) as caught:
        client.shell.exec_command(command="true", id=session)
    assert caught.value.status_code == 404 and "Session not found" in str(caught.value)


def test_kill_process(client):
    """async_mode and kill_process."""
    session = client.shell.exec_command(command="sleep 600", async_mode=True).data.session_id
    assert client.shell.kill_process(id=session).data.status == "terminated"


def test_bash_exec(client):
    """bash.exec(command, env, hard_timeout): stdout, stderr and exit_code; the env is for this command alone."""
    result = client.bash.exec(command="echo $TOKEN; echo e >&2; exit 2", env={"TOKEN": "secret"}, hard_timeout=600.0)
    assert (result.data.stdout, result.data.stderr, result.data.exit_code) == ("secret\n", "e\n", 2)
    again = client.bash.exec(command="echo [$TOKEN]", session_id=result.data.session_id)
    assert again.data.stdout == "[]\n"
    assert client.bash.exec(command="sleep 600", hard_timeout=0.3).data.status == "timed_out"
    with pytest.raises(agent_sandbox.UnprocessableEntityError) as caught:
        client.bash.exec(command="true", env={"not-a-name": "x"})
    assert caught.value.body.detail[0].loc == ["body", "env"]


def test_bash_sessions(client):
    """bash.create_session, bash.sessions, bash.output and bash.close_session."""
    session = client.bash.create_session(exec_dir="/usr").data.session_id
    assert client.bash.exec(command="pwd", session_id=session).data.stdout == "/usr\n"
    assert session in [one.session_id for one in client.bash.sessions().data]
    output = client.bash.output(session_id=session).data
    assert output.stdout == "/usr\n" and output.command.status == "completed"
    assert client.bash.close_session(session).success


def test_files(client):
    """write_file, read_file with lines, replace_in_file, and update_file's base64."""
    client.file.write_file(file="/mnt/user-data/workspace/a.txt", content="one\ntwo\nthree\n")
    assert client.file.read_file(file="/mnt/user-data/workspace/a.txt").data.content == "one\ntwo\nthree\n"
    ranged = client.file.read_file(file="/mnt/user-data/workspace/a.txt", start_line=1, end_line=2)
    assert ranged.data.content == "two"
    content = os.urandom(3 << 20)
    client.file.write_file(file="/tmp/blob", content=base64.b64encode(content).decode(), encoding="base64")
    assert b"".join(client.file.download_file(path="/tmp/blob")) == content
    replaced = client.file.replace_in_file(file="/mnt/user-data/workspace/a.txt", old_str="two", new_str="2")
    assert replaced.data.replaced_count == 1


def test_a_file_that_cannot_be_read_is_no_empty_file(client):
    """DeerFlow takes whatever read_file raises for the error's text; success=false alone it would not see."""
    with pytest.raises(pydantic.ValidationError) as caught:
        client.file.read_file(file="/nope")
    assert "such file or directory" in str(caught.value)


def test_a_write_that_fails_raises(client):
    """A 200 with success=false would be a silently lost write: it is an ApiError."""
    with pytest.raises(ApiError) as caught:
        client.file.write_file(file="/proc/nope/x", content="x")
    assert caught.value.status_code == 404
    with pytest.raises(ApiError):
        list(client.file.download_file(path="/nope"))


def test_find_list_grep_search(client):
    """find_files, list_path, grep_files as DeerFlow calls them, and the seed era's search_in_file."""
    top = "/mnt/user-data/uploads"
    for name, text in (("a.py", "alpha\n"), ("sub/b.py", "x\nALPHA\n"), ("c.txt", "alpha\n")):
        client.file.write_file(file=f"{top}/{name}", content=text)
    assert sorted(client.file.find_files(path=top, glob="**/*.py").data.files) == [f"{top}/a.py", f"{top}/sub/b.py"]
    entries = client.file.list_path(path=top, recursive=True, show_hidden=False).data.files
    assert [(e.path, e.is_directory) for e in entries if e.is_directory] == [(f"{top}/sub", True)]
    data = client.file.grep_files(path=top, pattern="alpha", case_insensitive=True, fixed_strings=False, max_results=400,
                                  max_file_size="1M", recursive=True).data
    assert sorted((m.file, m.line_number, m.line_content) for m in data.matches) == [
        (f"{top}/a.py", 1, "alpha"), (f"{top}/c.txt", 1, "alpha"), (f"{top}/sub/b.py", 2, "ALPHA")]
    assert data.truncated is False
    found = client.file.search_in_file(file=f"{top}/sub/b.py", regex="(?i)alpha").data
    assert (found.matches, found.line_numbers) == (["ALPHA"], [2])
    assert client.file.search_in_file(file="/nope", regex="x").data.matches is None
    assert client.file.find_files(path="/nope", glob="*").data.files is None


def test_async_client(url):
    """The client's other half, with commands side by side."""
    async def main():
        client = agent_sandbox.AsyncSandbox(base_url=url, timeout=60)
        results = await asyncio.gather(*(client.shell.exec_command(command=f"sleep 0.1; echo {i}") for i in range(8)))
        return [result.data.output for result in results]

    assert asyncio.run(main()) == [f"{i}\n" for i in range(8)]
