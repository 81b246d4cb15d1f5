# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.strands under the published strands-agents: agents whose model follows a script, the vended tools,
plugins and storages. Agents are called in the synchronous way, each time in an event loop and a thread of its own."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys

import pytest
from strands import Agent, tool
from strands.models import Model
from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment
from strands.storage import LocalFileStorage
from strands.vended_plugins.context_offloader import ContextOffloader
from strands.vended_plugins.skills import AgentSkills
from strands.vended_tools import file_editor, make_shell, python_repl

from cay import AsyncCay
from cay.adapters.strands import CaySandbox

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def sandbox(host):
    with CaySandbox(host=host) as made:
        yield made


class Script(Model):
    """A model that says what its script says: (name, arguments) calls a tool, a text ends the turn."""

    def __init__(self, *turns):
        self.turns, self.heard = list(turns), []

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, output_model, prompt, system_prompt=None, **kwargs):
        raise NotImplementedError

    async def stream(self, messages, tool_specs=None, system_prompt=None, **kwargs):
        self.heard.append(json.dumps([messages, system_prompt]))
        turn = self.turns.pop(0)
        calls = turn if isinstance(turn, list) else [turn]
        yield {"messageStart": {"role": "assistant"}}
        for number, call in enumerate(calls):
            if isinstance(call, str):
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": call}}}
            else:
                use = {"name": call[0], "toolUseId": f"call-{len(self.heard)}{number or ''}"}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(call[1])}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(turn, str) else "tool_use"}}


def shell(command, **more):
    return "sandbox_shell", {"command": command, **more}


def editor(command, path, **more):
    return "sandbox_file_editor", {"command": command, "path": path, **more}


def results_of(agent):
    """What the tools of an agent answered: (status, text)."""
    blocks = [block for message in agent.messages for block in message["content"]]
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    return [(result["status"], result["content"][0]["text"]) for result in results]


def play(sandbox, *calls, **config):
    """An agent does these calls, one after the other; what the tools answered."""
    agent = Agent(model=Script(*calls, "done"), sandbox=sandbox, callback_handler=None, **config)
    assert agent("go").stop_reason == "end_turn"
    return results_of(agent)


def shell_answer(output, error="", exit_code=0):
    return "success", json.dumps({"output": output, "error": error, "exit_code": exit_code})


# -- agents


def test_agent_has_the_sandbox_and_its_tools(sandbox):
    """Agent(sandbox=...) has it, and registers its tools."""
    agent = Agent(model=Script(), sandbox=sandbox, callback_handler=None)
    assert agent.sandbox is sandbox
    assert sorted(agent.tool_names) == ["sandbox_file_editor", "sandbox_shell"]


def test_tool_of_the_same_name(sandbox):
    """A tool of the user's with the same name is kept."""
    @tool(name="sandbox_shell")
    def own() -> str:
        """A shell of one's own."""
        return "mine"

    assert play(sandbox, ("sandbox_shell", {}), tools=[own]) == [("success", "mine")]


def test_without_a_sandbox():
    """Without one it is the host, which vends no tools; what is no Sandbox is refused."""
    agent = Agent(model=Script(), callback_handler=None)
    assert isinstance(agent.sandbox, NotASandboxLocalEnvironment) and agent.tool_names == []
    with pytest.raises(TypeError):
        Agent(model=Script(), sandbox=object())


def test_an_agent_works(sandbox):
    """An agent works in its sandbox: writes a program, runs it, corrects it."""
    file = "/workspace/app/sum.py"
    results = play(sandbox, editor("create", file, file_text="print(sum(range(10))\n"), shell("python3 app/sum.py"),
                   editor("str_replace", file, old_str="(10))", new_str="(10)))"), shell("python3 app/sum.py"))
    assert [status for status, _ in results] == ["success"] * 4
    assert "SyntaxError" in results[1][1] and json.loads(results[1][1])["exit_code"] == 1
    assert results[3] == shell_answer("45\n")


def test_one_sandbox_for_many_calls(cay, host):
    """A sandbox that is not made yet is made by the first tool; later calls, in other event loops, find it again."""
    labels = {"test": "strands-agent"}
    with CaySandbox(host=host, labels=labels) as lazy:
        agent = Agent(model=Script(shell("echo 1 > n"), "done", shell("cat n"), "done"), sandbox=lazy,
                      callback_handler=None)
        assert cay.list(labels=labels) == []
        agent("one")
        agent("two")
        assert results_of(agent)[1] == shell_answer("1\n")

        async def asynchronously():
            other = Agent(model=Script(shell("cat n"), "done"), sandbox=lazy, callback_handler=None)
            await other.invoke_async("three")
            return results_of(other)

        assert asyncio.run(asynchronously()) == [shell_answer("1\n")]
        assert len(cay.list(labels=labels)) == 1
    assert cay.list(labels=labels) == []


def test_tools_at_once(sandbox):
    """Several tools in one turn run at once, in one sandbox."""
    waits = "while [ ! -e /tmp/meet{0} ]; do sleep 0.01; done; echo {1}"
    results = play(sandbox, [shell("touch /tmp/meet1; " + waits.format(2, "a")),
                             shell("touch /tmp/meet2; " + waits.format(1, "b"))])
    assert sorted(results) == [shell_answer("a\n"), shell_answer("b\n")]


def test_direct_call_of_a_tool(sandbox):
    """agent.tool.sandbox_shell(...) without a model."""
    agent = Agent(model=Script(), sandbox=sandbox, callback_handler=None)
    assert json.loads(agent.tool.sandbox_shell(command="pwd")["content"][0]["text"])["output"] == "/workspace\n"


# -- sandbox_shell


def test_shell(sandbox):
    """sandbox_shell answers with output, error and exit_code; each call is a fresh shell."""
    results = play(sandbox, shell("echo out; echo err >&2; exit 7"), shell("cd /tmp; X=1"), shell("echo $PWD$X"))
    assert results[0] == shell_answer("out\n", "err\n", 7)
    assert results[2] == shell_answer("/workspace\n")


def test_shell_timeout(sandbox):
    """A timeout is an error with the partial output and exit_code 124, and nothing of the command is alive."""
    [(status, text)] = play(sandbox, shell("echo partial; sleep 3999", timeout=1))
    assert status == "error"
    assert "Execution timed out after 1 seconds" in text
    assert '{"output": "partial\\n", "error": "", "exit_code": 124}' in text
    assert asyncio.run(sandbox.execute("while pgrep -f 'sleep 399[9]'; do :; done", timeout=10)).exit_code == 0


def test_shell_passes_a_timeout_alone(host, box):
    """sandbox_shell passes a timeout and nothing else: 120 seconds, or what the model says."""
    seen = []

    class Recording(CaySandbox):
        async def execute(self, command, **options):
            seen.append(options)
            return await super().execute(command, **options)

    play(Recording(AsyncCay(host).attach(box.id)), shell("true"), shell("true", timeout=3))
    assert seen == [{"timeout": 120}, {"timeout": 3}]


def test_shell_of_a_lost_sandbox(cay, host):
    """An error of the sandbox is an error of the tool, with its message."""
    box = cay.create()
    box.remove()
    [(status, text)] = play(CaySandbox(AsyncCay(host).attach(box.id)), shell("true"))
    assert status == "error" and f"no sandbox '{box.id}'" in text


def test_tools_that_are_not_bound(sandbox):
    """make_shell, file_editor and python_repl that are not bound take the agent's sandbox."""
    results = play(sandbox, ("sh", {"command": "pwd"}),
                   ("file_editor", {"command": "create", "path": "/tmp/unbound", "file_text": "here"}),
                   ("python_repl", {"code": "print(open('/tmp/unbound').read())"}),
                   tools=[make_shell(name="sh"), file_editor, python_repl])
    assert results[0] == shell_answer("/workspace\n")
    assert results[2] == shell_answer("here\n")


# -- sandbox_file_editor


def test_editor(sandbox):
    """sandbox_file_editor creates, views, replaces and inserts."""
    file = "/workspace/edit/poem.txt"
    results = play(sandbox, editor("create", file, file_text="one\ntwo\nthree"), editor("view", file),
                   editor("str_replace", file, old_str="two", new_str="2"),
                   editor("insert", file, insert_line=1, new_str="one and a half"),
                   editor("view", file, view_range=[2, 3]))
    assert [status for status, _ in results] == ["success"] * 5
    assert results[1][1].endswith("     1  one\n     2  two\n     3  three\n")
    assert results[4][1].endswith("     2  one and a half\n     3  2\n")
    assert asyncio.run(sandbox.read_text(file)) == "one\none and a half\n2\nthree"


def test_editor_views_a_directory(sandbox):
    """sandbox_file_editor views a directory two levels deep, without hidden files."""
    asyncio.run(sandbox.execute("mkdir -p tree/a/b/c && touch tree/.hidden tree/a/b/deep tree/a/b/c/deeper tree/z"))
    [(_, text)] = play(sandbox, editor("view", "/workspace/tree/"))
    assert text.endswith(":\na\na/b\na/b/c\na/b/deep\nz\n")


@pytest.mark.parametrize("call, reason", [
    (editor("view", "relative.txt"), "not an absolute path"),
    (editor("view", "/workspace/../etc/passwd"), "path traversal is not allowed"),
    (editor("view", "/workspace/big.txt"), "exceeds maximum allowed size"),
    (editor("view", "/workspace/nowhere"), "does not exist"),
    (editor("view", "/no/such/parent"), "does not exist"),
    (editor("view", "/etc/passwd/x"), "does not exist"),
    (editor("create", "/workspace/twice.txt", file_text=""), "already exists"),
    (editor("str_replace", "/workspace/twice.txt", old_str="a", new_str="b"), "Multiple occurrences"),
    (editor("insert", "/workspace", insert_line=0, new_str="x"), "is a directory"),
    (editor("view", "/proc/1/root/x"), "Permission denied"),
])
def test_editor_refuses(sandbox, call, reason):
    """sandbox_file_editor wants absolute paths without '..', at most 1 MiB, and files that are there or not."""
    asyncio.run(sandbox.write_text("big.txt", "x" * 1_048_577))
    asyncio.run(sandbox.write_text("twice.txt", "a a"))
    [(status, text)] = play(sandbox, call)
    assert status == "error" and reason in text


# -- plugins and storages


def test_skills(sandbox):
    """Skills are read from the sandbox."""
    text = "---\nname: greeting\ndescription: How to greet\n---\nSay hello politely.\n"
    asyncio.run(sandbox.write_text("/srv/skills/greeting/SKILL.md", text))
    asyncio.run(sandbox.write_text("/srv/skills/greeting/scripts/hello.sh", "echo hello"))
    model = Script(("skills", {"skill_name": "greeting"}), "done")
    agent = Agent(model=model, sandbox=sandbox, callback_handler=None, plugins=[AgentSkills(skills=["/srv/skills"])])
    agent("go")
    assert "How to greet" in model.heard[0]
    assert "Say hello politely" in model.heard[1] and "scripts/hello.sh" in model.heard[1]


def test_storage(sandbox):
    """LocalFileStorage.for_sandbox writes, reads, lists and deletes."""
    async def main():
        storage = LocalFileStorage("./.strands/").for_sandbox(sandbox)
        assert await storage.list() == []
        assert await storage.read("sessions/none") is None
        await storage.delete("sessions/none")
        await storage.write("sessions/b/state.json", b"{}")
        await storage.write("sessions/a", b"\0\xff")
        assert await storage.list("sessions/") == ["sessions/a", "sessions/b/state.json"]
        assert await storage.read("sessions/a") == b"\0\xff"
        assert (await sandbox.execute("cat /workspace/.strands/sessions/b/state.json")).stdout == "{}"
        await storage.delete("sessions/a")
        assert await storage.read("sessions/a") is None

    asyncio.run(main())


def test_context_offloader(sandbox):
    """The context offloader keeps long results in the sandbox, and finds them again."""
    offloader = ContextOffloader(storage=LocalFileStorage("/srv/off"), max_result_tokens=100, preview_tokens=50)
    retrieve = ("retrieve_offloaded_content", {"reference": "call-1_0"})
    results = play(sandbox, shell("seq 2000"), retrieve, plugins=[offloader])
    assert asyncio.run(sandbox.execute("grep -rl 1999 /srv/off | wc -l")).stdout == "1\n"
    assert "call-1_0" in results[0][1] and "1999" not in results[0][1]
    assert "1999" in results[1][1]


def test_example(host):
    """The example runs as it is, and the page for users has both of them."""
    page = (ROOT / "docs/frameworks/strands.md").read_text()
    assert all((ROOT / "examples/strands" / name).read_text() in page for name in ("agent.mjs", "agent.py"))
    done = subprocess.run([sys.executable, "-B", "examples/strands/agent.py"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "CAY_HOST": host}, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "The sandbox says: 5050\n\n\n"
