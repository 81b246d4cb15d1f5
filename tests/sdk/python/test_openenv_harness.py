# SPDX-License-Identifier: Apache-2.0
"""cay.adapters.openenv the way OpenEnv uses it.

First the calls of its opencode harness, in their order, with a script in place of opencode and of its proxy: neither
can be had without a network, and no release on the package index has that harness. Then the harness that openenv
0.10.0 has, from a virtual environment of its own: it wants an older mcp than the rest of the tests.
"""
import json
import os
import pathlib
import subprocess
import textwrap
import time

import pytest

from cay.adapters.openenv import CaySandboxBackend

ROOT = pathlib.Path(__file__).resolve().parents[3]
HOME = "/home/user"
INSTALLER = textwrap.dedent("""\
    set -e
    mkdir -p "$HOME/.opencode/bin"
    cat > "$HOME/.opencode/bin/opencode" <<'END'
    #!/usr/bin/env bash
    [ "$1" = --version ] && { echo 0.0.1; exit; }
    [ "$1 $2 $3" = "run --format json" ] || exit 2
    curl -sf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" --data-binary "$4" > reply
    printf '{"type": "text", "text": "%s"}\\n' "$(cat reply)"
    echo "asked: $4" > answer.txt
    printf '\\xff' > odd.bin
    echo warning >&2
    END
    chmod +x "$HOME/.opencode/bin/opencode"
    """)
PROXY = textwrap.dedent("""\
    import argparse, http.server, json, os, sys

    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream-url")
    parser.add_argument("--port", type=int)
    parser.add_argument("--trace")
    options = parser.parse_args()


    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.answer(b"ok")

        def do_POST(self):
            request = self.rfile.read(int(self.headers["Content-Length"])).decode()
            record = {"request": request, "url": options.upstream_url, "key": os.environ["OPENCODE_UPSTREAM_API_KEY"],
                      "from": self.headers["Authorization"], "argv": sys.argv}
            with open(options.trace, "a") as trace:
                trace.write(json.dumps(record) + "\\n")
            self.answer(b"42")


    http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
    """)
INSTRUCTION = "Write \"what\" you $(were) 'asked'.\n\nTwice."


class Rollout:
    """The harness's calls in its order; what each of them gave is kept for the tests."""

    def __init__(self, backend):
        self.sandbox = backend.create(timeout_s=900 + 300, metadata={"episode_id": "ep-1"})
        self.info = self.sandbox.raw.refresh()
        try:
            self.install()
            self.write_task()
            self.start_proxy()
            self.run_agent()
            self.collect()
        finally:
            self.sandbox.kill()

    def install(self):
        self.probe = self.sandbox.exec("echo ok", timeout=5)
        self.version_before = self.sandbox.exec(f"{HOME}/.opencode/bin/opencode --version", timeout=10)
        self.sandbox.write_text(f"{HOME}/installer.sh", INSTALLER)  # what curl would bring
        self.installed = self.sandbox.exec(
            f"set -e && mkdir -p {HOME}/.config/opencode {HOME}/logs/agent {HOME}/logs/verifier {HOME}/task "
            f"{HOME}/workdir && cat {HOME}/installer.sh | bash && "
            'export PATH="$HOME/.opencode/bin:$PATH" && opencode --version', timeout=240)
        self.version_after = self.sandbox.exec(f"{HOME}/.opencode/bin/opencode --version", timeout=10)

    def write_task(self):
        self.sandbox.write_text(f"{HOME}/.config/opencode/opencode.json", '{"model": "a/b"}')
        self.sandbox.write_text(f"{HOME}/task/instruction.md", INSTRUCTION)
        self.sandbox.write_text(f"{HOME}/task/system.md", "Be brief.")
        self.sandbox.write_text(f"{HOME}/workdir/data/input.csv", "a,b\r\n1,2\r\n")
        self.setup = self.sandbox.exec("set -e && wc -l < workdir/data/input.csv && touch setup.done", timeout=300)

    def start_proxy(self):
        self.proxy_there = self.sandbox.exists(f"{HOME}/proxy/interception.py")
        self.sandbox.write_text(f"{HOME}/proxy/interception.py", PROXY)
        self.proxy = self.sandbox.start_bg(
            f"cd {HOME}/proxy && python interception.py --upstream-url http://llm.invalid/v1 --port 7000 "
            f"--trace {HOME}/logs/agent/proxy_trace.jsonl > {HOME}/logs/agent/proxy.log 2>&1",
            envs={"OPENCODE_UPSTREAM_API_KEY": "sk-'secret'"})
        for _ in range(120):
            self.health = self.sandbox.exec("curl -sf http://127.0.0.1:7000/healthz", timeout=5)
            if self.health.exit_code == 0:
                break
            time.sleep(0.1)
        self.sandbox.write_text(f"{HOME}/.config/opencode/opencode.json", '{"model": "proxied"}')

    def run_agent(self):
        self.agent = self.sandbox.start_bg(
            f'export PATH="$HOME/.opencode/bin:$PATH" && cd {HOME}/workdir && '
            f'opencode run --format json "$(cat {HOME}/task/instruction.md)" '
            f"2>&1 | tee {HOME}/logs/agent/opencode.jsonl",
            envs={"OPENAI_BASE_URL": "http://127.0.0.1:7000/v1", "OPENAI_API_KEY": "intercepted",
                  "OPENCODE_CONFIG": f"{HOME}/.config/opencode/opencode.json"})
        self.agent_code = self.agent.wait(timeout=900)

    def collect(self):
        read = self.sandbox.read_text
        self.verified = [self.sandbox.exec(command, timeout=120) for command in
                         (f"grep -q asked {HOME}/workdir/answer.txt", f"echo 0.75 > {HOME}/logs/verifier/reward.txt")]
        self.reward = float(read(f"{HOME}/logs/verifier/reward.txt"))
        found = self.sandbox.exec(f"find {HOME}/workdir -maxdepth 2 -type f -size -64k | head -32", timeout=10)
        self.files, self.extra = {}, []
        for path in found.stdout.split():
            try:
                self.files[path.removeprefix(f"{HOME}/workdir/")] = read(path)
            except Exception:
                self.extra.append(path.removeprefix(f"{HOME}/workdir/"))
        self.trace = [json.loads(line) for line in read(f"{HOME}/logs/agent/proxy_trace.jsonl").splitlines()]
        self.log = read(f"{HOME}/logs/agent/opencode.jsonl")
        self.config = read(f"{HOME}/.config/opencode/opencode.json")
        try:
            self.proxy.wait(timeout=0)
            self.proxy_ran = False
        except TimeoutError:
            self.proxy_ran = True
        self.agent.kill()
        self.proxy.kill()
        self.proxy_code = self.proxy.wait(timeout=5)


@pytest.fixture(scope="module")
def rollout(host):
    backend = CaySandboxBackend(host)
    yield Rollout(backend)
    backend.close()


def test_step_1_create(rollout):
    """1: create(timeout_s, metadata)."""
    assert rollout.info.labels == {"openenv.sandbox": "true", "openenv.episode_id": "ep-1"}
    assert rollout.info.ttl_left_ms <= 1_200_000


def test_step_2_probe(rollout):
    """2: the echo ok probe."""
    assert (rollout.probe.exit_code, rollout.probe.stdout) == (0, "ok\n")


def test_steps_3_and_4_install(rollout):
    """3 and 4: the version probe fails, the installer runs, the version probe succeeds."""
    assert rollout.version_before.exit_code == 127
    assert (rollout.installed.exit_code, rollout.installed.stdout) == (0, "0.0.1\n"), rollout.installed
    assert rollout.version_after.exit_code == 0


def test_steps_5_and_6_task_and_setup(rollout):
    """5 and 6: the task's files, then its setup_shell."""
    assert (rollout.setup.exit_code, rollout.setup.stdout.strip()) == (0, "2")
    assert rollout.config == '{"model": "proxied"}'


def test_step_7_proxy(rollout):
    """7: the proxy is uploaded, started in the background, answers on loopback, and its key is not in its argv."""
    assert not rollout.proxy_there and rollout.health.stdout == "ok"
    assert rollout.trace[0]["key"] == "sk-'secret'" and "secret" not in str(rollout.trace[0]["argv"])


def test_steps_8_and_9_agent(rollout):
    """8 and 9: opencode run through tee; its exit code is awaited; the instruction came through unharmed."""
    assert rollout.agent_code == 0
    assert [record["request"] for record in rollout.trace] == [INSTRUCTION]
    assert rollout.trace[0]["from"] == "Bearer intercepted"
    assert rollout.log == '{"type": "text", "text": "42"}\nwarning\n'


def test_step_10_verify_and_collect(rollout):
    """10: verify commands, reward.txt, the files of the work directory; what is not text is listed apart."""
    assert [done.exit_code for done in rollout.verified] == [0, 0] and rollout.reward == 0.75
    texts = {"answer.txt": f"asked: {INSTRUCTION}\n", "reply": "42", "data/input.csv": "a,b\r\n1,2\r\n"}
    assert rollout.files == texts
    assert rollout.extra == ["odd.bin"]


def test_step_11_kills(rollout, cay):
    """11: both jobs are killed, then the sandbox; nothing is left."""
    assert rollout.proxy_ran and rollout.proxy_code == 137
    assert rollout.sandbox.sandbox_id not in {info.id for info in cay.list(state="all")}


# -- the framework itself


@pytest.fixture(scope="module")
def openenv(host):
    """openenv(*arguments) -> what a Python that has openenv 0.10.0 printed."""
    made = subprocess.run([ROOT / "tests/tools/openenv-venv"], capture_output=True, text=True, timeout=280)
    assert made.returncode == 0, made.stderr
    env = dict(os.environ, PYTHONPATH=str(ROOT / "sdk/python/src"), CAY_HOST=host)

    def run(*arguments):
        done = subprocess.run([made.stdout.strip(), "-B", *map(str, arguments)], env=env, capture_output=True,
                              text=True, timeout=120)
        assert done.returncode == 0, done
        return done.stdout

    return run


def test_the_example_runs_with_openenv(openenv, cay):
    """The framework's CLIHarnessAdapter drives an agent in a sandbox, and its check rewards it; nothing is left."""
    program = ROOT / "examples/openenv/rollout.py"
    assert program.read_text() in (ROOT / "docs/frameworks/openenv.md").read_text()
    printed = openenv(program)
    assert printed.splitlines() == ["6 * 7 -> 1.0 {'exit_code': 0}", "2 ** 10 -> 1.0 {'exit_code': 0}"]
    assert cay.list(labels={"openenv.episode_id": "episode-0"}, state="all") == []


def test_collect_runner_with_tools_in_a_sandbox(openenv, tmp_path):
    """The framework's CollectRunner and MCPHarnessAdapter: a model's tool calls are commands in a sandbox."""
    program = tmp_path / "collect.py"
    program.write_text(textwrap.dedent("""\
        import json, sys
        sys.path.insert(0, sys.argv[1])
        from openenv.core.env_server.mcp_types import Tool
        from openenv.core.harness import (LoopOwningSession, MCPHarnessAdapter, ModelStepResult, ResourceSession,
                                          ToolResult)
        from openenv.core.harness.collect import CollectRunner, RolloutSerializer
        from openenv.core.llm_client import LLMResponse, ToolCall
        from cay.adapters.openenv import CaySandboxBackend
        import rollout

        class BashSession(rollout.AgentSession):
            def list_tools(self):
                schema = {"type": "object", "properties": {"cmd": {"type": "string"}}}
                return [Tool(name="bash", description="Runs a command.", input_schema=schema)]

            def call_tool(self, name, arguments):
                self.wait_for_completion(60)
                done = self.sandbox.exec(arguments["cmd"])
                return ToolResult(data={"exit_code": done.exit_code, "stdout": done.stdout})

        class Factory(rollout.AgentSessionFactory):
            def create(self, task, seed=None, episode_id=None):
                return BashSession(self.backend.create(metadata={"episode_id": episode_id}), task)

        def model(messages, tools, sampling):
            calls = [ToolCall(id="1", name="bash", args={"cmd": "cat task/instruction.md; exit 3"})]
            return ModelStepResult(LLMResponse(content="", tool_calls=[] if messages[-1]["role"] == "tool" else calls))

        assert issubclass(BashSession, ResourceSession) and issubclass(BashSession, LoopOwningSession)
        runner = CollectRunner(session_factory=Factory(CaySandboxBackend()), harness_adapter=MCPHarnessAdapter(),
                               serializer=RolloutSerializer(sys.argv[2]), tasks=json.loads(sys.argv[3]))
        result = runner.run(model_step=model, num_episodes=2)
        assert (result.num_collected, result.num_failed, result.avg_reward) == (2, 0, 1.0), result
        """))
    tasks = [{"instruction": "1 + 1", "answer": "2"}, {"instruction": "1 + 2", "answer": "3"}]
    openenv(program, ROOT / "examples" / "openenv", tmp_path / "out", json.dumps(tasks))
    episodes = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [one["tool_trace"][0]["result"]["data"] for one in episodes] \
        == [{"exit_code": 3, "stdout": "1 + 1"}, {"exit_code": 3, "stdout": "1 + 2"}]
