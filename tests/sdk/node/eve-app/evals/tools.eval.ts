// SPDX-License-Identifier: Apache-2.0
//
// Two turns of one session: what the tools answered is in the agent's replies.
import { defineEval } from "eve/evals";
import { includes } from "eve/evals/expect";

const FIRST = [
  "/workspace\\nagent=eve\\n# SPDX-License-Identifier: Apache-2.0\\nprint(",
  "prepared\\nopened deny-all\\n",
  "2: beta",
  "todo.txt:3:gamma",
  "/workspace/notes/todo.txt",
  "still-alive\\n",
  "skill-reference",
  '{"lines":"two\\n","gone":null,"path":"/workspace/x"}',
];

export default defineEval({
  async test(t) {
    const first = await t.send("go");
    for (const part of FIRST) t.check(first.message, includes(part));
    const session: { send(message: string): Promise<{ message?: string }> } = "session" in first ? (first as any).session : t;
    const second = await session.send("go on");
    t.check(second.message, includes("second-turn\\n3\\noutlived-the-turn\\n"));
    t.succeeded();
    t.calledTool("bash", { count: 3 });
    for (const name of ["write_file", "read_file", "grep", "glob", "inspect"]) t.calledTool(name, { count: 1 });
  },
});
