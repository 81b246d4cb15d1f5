# SPDX-License-Identifier: Apache-2.0
"""A Strands agent that writes a program and runs it, in a sandbox of cay."""
import json

from strands import Agent
from strands.models import Model

from cay.adapters.strands import CaySandbox

# Stands in for a real model, so that this program runs without one: it calls these tools, then says what came out.
STEPS = [
    ("sandbox_file_editor",
     {"command": "create", "path": "/workspace/sum.py", "file_text": "print(sum(range(101)))\n"}),
    ("sandbox_shell", {"command": "python3 sum.py", "timeout": 10}),
]


class Script(Model):
    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, output_model, prompt, system_prompt=None, **kwargs):
        raise NotImplementedError

    async def stream(self, messages, *args, **kwargs):
        yield {"messageStart": {"role": "assistant"}}
        if STEPS:
            name, arguments = STEPS.pop(0)
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": f"call-{len(messages)}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
        else:
            said = json.loads(messages[-1]["content"][0]["toolResult"]["content"][0]["text"])
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": said["output"]}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}


with CaySandbox(memory="512M") as sandbox:
    agent = Agent(sandbox=sandbox, model=Script(), callback_handler=None)
    answer = agent("What is the sum of all numbers up to 100? Write a program and run it.")
    print(f"The sandbox says: {answer}")
