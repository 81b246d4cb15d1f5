// SPDX-License-Identifier: Apache-2.0
//
// An agent of the AI SDK whose shell is a cay sandbox.
//
//     npm install ./build/sdk/cay-sandbox-0.1.0.tgz ai zod
//     node agent.mjs
import { ToolLoopAgent, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { createCaySandbox } from "cay-sandbox/ai-sdk";
import { z } from "zod";

const shell = tool({
  description: ({ experimental_sandbox }) => `Runs a shell command.\n${experimental_sandbox.description}`,
  inputSchema: z.object({ command: z.string() }),
  execute: ({ command }, { abortSignal, experimental_sandbox }) => experimental_sandbox.run({ command, abortSignal }),
});

// A model that plays its part from a script, so that this runs without an account: put a real one in its place.
const answers = [
  { type: "tool-call", toolCallId: "1", toolName: "shell", input: '{"command": "echo $((6 * 7)) | tee answer.txt"}' },
  { type: "text", text: "I have written it to answer.txt." },
];
const model = new MockLanguageModelV4({
  doGenerate: answers.map((answer) => ({
    content: [answer],
    finishReason: { unified: answer.type === "text" ? "stop" : "tool-calls" },
    usage: { inputTokens: {}, outputTokens: {} },
    warnings: [],
  })),
});

const sandbox = await createCaySandbox({ memory: "512M" });
try {
  const agent = new ToolLoopAgent({ model, tools: { shell } });
  const { text } = await agent.generate({ prompt: "What is 6 times 7?", experimental_sandbox: sandbox });
  console.log(text);
  console.log(await sandbox.readTextFile({ path: "answer.txt" }));
} finally {
  await sandbox.remove();
}
