// SPDX-License-Identifier: Apache-2.0
//
// A tool of the author: what it gets from eve is a spread and wrapped session, and must still work in all parts.
import { defineTool } from "eve/tools";

export default defineTool({
  description: "Looks at the sandbox.",
  inputSchema: { type: "object", properties: {}, additionalProperties: false },
  async execute(_input, ctx) {
    const sandbox = { ...((await ctx.getSandbox()) as any) };
    await sandbox.setNetworkPolicy("deny-all");
    await sandbox.writeTextFile({ path: "mine.txt", content: "one\ntwo\n" });
    const lines = await sandbox.readTextFile({ path: "mine.txt", startLine: 2 });
    await sandbox.removePath({ path: "mine.txt" });
    return {
      lines,
      gone: await sandbox.readTextFile({ path: "mine.txt" }),
      path: sandbox.resolvePath("x"),
    };
  },
});
