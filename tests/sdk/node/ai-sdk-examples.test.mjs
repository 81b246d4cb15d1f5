// SPDX-License-Identifier: Apache-2.0
//
// The programs of docs/frameworks/ai-sdk.md run as they are, and the page shows them as they are.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = new URL("../../../", import.meta.url);

async function runs(name, expected) {
  const example = new URL(`examples/ai-sdk/${name}`, root);
  const { stdout } = await promisify(execFile)(process.execPath, [fileURLToPath(example)]);
  assert.equal(stdout, expected);
  const page = await readFile(new URL("docs/frameworks/ai-sdk.md", root), "utf8");
  assert.ok(page.includes("```js\n" + (await readFile(example, "utf8")) + "```"));
}

test("examples/ai-sdk/agent.mjs runs as it stands in docs/frameworks/ai-sdk.md", () =>
  runs("agent.mjs", "I have written it to answer.txt.\n42\n\n"));

test("examples/ai-sdk/session.mjs runs as it stands in docs/frameworks/ai-sdk.md", () =>
  runs("session.mjs", "# Notes\nfirst turn\nsecond turn\n\n"));
