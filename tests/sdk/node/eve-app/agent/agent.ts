// SPDX-License-Identifier: Apache-2.0
//
// An agent whose model is a script: it makes one tool call after the other, then answers with all of their results.
import { defineAgent } from "eve";
import { mockModel } from "eve/evals";

const call = (name: string, input: Record<string, unknown>) => ({ name, input });

const TURNS = [
  [
    call("bash", { command: "pwd; echo agent=$AI_AGENT; cat seed.py prepared.txt; nohup sleep 300 >/dev/null 2>&1 & echo $! >pid" }),
    call("write_file", { filePath: "/workspace/notes/todo.txt", content: "alpha\nbeta\ngamma\n" }),
    call("read_file", { filePath: "/workspace/notes/todo.txt", offset: 2, limit: 1 }),
    call("grep", { pattern: "gam+a", path: "/workspace/notes" }),
    call("glob", { pattern: "**/*.txt" }),
    call("bash", { command: "kill -0 $(cat pid) && echo still-alive; cat $HOME/.agents/skills/notes/references/list.md" }),
    call("inspect", {}),
  ],
  [call("bash", { command: "echo second-turn; wc -l < notes/todo.txt; kill -0 $(cat pid) && echo outlived-the-turn" })],
];

export default defineAgent({
  modelContextWindowTokens: 1_000_000,
  model: mockModel(({ toolResults, userMessageCount }) => {
    const step = TURNS.slice(0, userMessageCount).flat()[toolResults.length];
    return step ? { toolCalls: [step] } : toolResults.map(({ output }) => JSON.stringify(output)).join("\n");
  }),
});
