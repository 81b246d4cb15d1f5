# SPDX-License-Identifier: Apache-2.0
"""OpenEnv rollouts in cay: an agent that owns its loop runs in a sandbox, and a check in the same sandbox rewards it.

    pip install ./sdk/python openenv
    python rollout.py
"""
from openenv.core.harness import (
    CLIHarnessAdapter, HarnessRolloutResult, ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult,
)

from cay.adapters.openenv import CaySandboxBackend

HOME = "/home/user"
# In place of a coding agent such as opencode: it reads its task and leaves its work in a directory.
AGENT = "#!/bin/bash\nmkdir -p workdir && cd workdir && echo \"print($(cat ~/task/instruction.md))\" > answer.py\n"


class AgentSession(ResourceSession):
    """One agent in one sandbox."""

    def __init__(self, sandbox, task):
        self.sandbox, self.task = sandbox, task
        sandbox.write_text(f"{HOME}/bin/agent", AGENT)
        sandbox.write_text(f"{HOME}/task/instruction.md", task["instruction"])
        self.job = sandbox.start_bg(f"bash {HOME}/bin/agent 2>&1 | tee {HOME}/agent.log")

    def initial_messages(self):
        return [{"role": "user", "content": self.task["instruction"]}]

    def list_tools(self):
        return []  # the agent has tools of its own

    def call_tool(self, name, arguments):
        return ToolResult(error=f"no tool {name}")

    def wait_for_completion(self, timeout_s=None):
        return self.job.wait(timeout_s)

    def fetch_proxy_trace(self):
        return []

    def verify(self, transcript, final_state=None):
        done = self.sandbox.exec("python3 workdir/answer.py", timeout=30)
        right = done.exit_code == 0 and done.stdout.strip() == self.task["answer"]
        return VerifyResult(env_reward=float(right), done=True, artifacts={"stdout": done.stdout})

    def close(self):
        self.job.kill()
        self.sandbox.kill()


class AgentSessionFactory(ResourceSessionFactory[AgentSession]):
    def __init__(self, backend):
        self.backend = backend

    def create(self, task, seed=None, episode_id=None):
        sandbox = self.backend.create(timeout_s=300, metadata={"episode_id": episode_id} if episode_id else None)
        try:
            return AgentSession(sandbox, task)
        except BaseException:
            sandbox.kill()
            raise


def run_agent(bridge, session, limits):
    """What CLIHarnessAdapter calls: the rollout is over when the agent is."""
    code = session.wait_for_completion(60)
    return HarnessRolloutResult(messages=session.initial_messages(), done=True, metrics={"exit_code": code})


def main():
    factory = AgentSessionFactory(CaySandboxBackend())
    harness = CLIHarnessAdapter(run_agent)
    tasks = [{"instruction": "6 * 7", "answer": "42"}, {"instruction": "2 ** 10", "answer": "1024"}]
    for number, task in enumerate(tasks):
        session = factory.create(task, episode_id=f"episode-{number}")
        try:
            rollout = harness.run_black_box(session)
            print(task["instruction"], "->", session.verify(rollout.messages).env_reward, rollout.metrics)
        finally:
            session.close()


if __name__ == "__main__":
    main()
