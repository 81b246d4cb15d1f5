// SPDX-License-Identifier: Apache-2.0
//
// A Strands agent that writes a program and runs it, in a sandbox of cay.
import { Agent, Model } from "@strands-agents/sdk";
import { CaySandbox } from "cay-sandbox/strands";

// Stands in for a real model, so that this program runs without one: it calls these tools, then says what came out.
const steps = [
  {
    name: "sandbox_file_editor",
    input: { command: "create", path: "/workspace/sum.py", file_text: "print(sum(range(101)))\n" },
  },
  { name: "sandbox_shell", input: { command: "python3 sum.py", timeout: 10 } },
];

class Script extends Model {
  updateConfig() {}

  getConfig() {
    return {};
  }

  async *stream(messages) {
    const step = steps.shift();
    yield { type: "modelMessageStartEvent", role: "assistant" };
    if (step) {
      yield {
        type: "modelContentBlockStartEvent",
        start: { type: "toolUseStart", name: step.name, toolUseId: `call-${messages.length}` },
      };
      yield {
        type: "modelContentBlockDeltaEvent",
        delta: { type: "toolUseInputDelta", input: JSON.stringify(step.input) },
      };
    } else {
      const text = messages.at(-1).content[0].content[0].json.output;
      yield { type: "modelContentBlockStartEvent" };
      yield { type: "modelContentBlockDeltaEvent", delta: { type: "textDelta", text } };
    }
    yield { type: "modelContentBlockStopEvent" };
    yield { type: "modelMessageStopEvent", stopReason: step ? "toolUse" : "endTurn" };
  }
}

const sandbox = new CaySandbox({ memory: "512M" });
try {
  const agent = new Agent({ sandbox, model: new Script(), printer: false });
  const answer = await agent.invoke("What is the sum of all numbers up to 100? Write a program and run it.");
  console.log(`The sandbox says: ${answer}`);
} finally {
  await sandbox.close();
}
