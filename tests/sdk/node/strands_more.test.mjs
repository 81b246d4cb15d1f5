// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/strands: what the SDK asks of its own sandboxes beyond strands.test.mjs: many calls at once, odd names, the
// factories of its tools; and what is not there.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Agent, SandboxTimeoutError } from "@strands-agents/sdk";
import { bash } from "@strands-agents/sdk/vended-tools/bash";
import { makeFileEditor } from "@strands-agents/sdk/vended-tools/file-editor";
import { makeShell } from "@strands-agents/sdk/vended-tools/shell";
import { Cay } from "cay-sandbox";
import { CaySandbox } from "cay-sandbox/strands";
import { Script } from "./strands_support.mjs";

const cay = new Cay();
let sandbox;

before(async () => {
  sandbox = await CaySandbox.create();
});

after(async () => {
  await sandbox.close();
  cay.close();
});

/** What the tools of an agent in the sandbox answer to these calls. */
async function play(tools, ...calls) {
  const agent = new Agent({ model: new Script(...calls, "done"), sandbox, tools, printer: false });
  await agent.invoke("go");
  const results = agent.messages.flatMap(({ content }) => content.filter((block) => block.type === "toolResultBlock"));
  return { agent, answers: results.map(({ content: [first] }) => first.json ?? first.text) };
}

test("commands run at the same time, and so do writes", async () => {
  const names = ["one", "two", "three"];
  const meet = "touch here-$N; while [ $(ls here-* | wc -l) -lt 3 ]; do sleep 0.01; done; echo $N";
  const results = await Promise.all(names.map((N) => sandbox.execute(meet, { env: { N }, timeout: 30 })));
  assert.deepEqual(results.map(({ stdout }) => stdout.trim()), names);
  await Promise.all(names.map((name) => sandbox.writeText(name, name)));
  assert.deepEqual(await Promise.all(names.map((name) => sandbox.readText(name))), names);
});

test("paths with spaces, quotes, newlines and what is special to a shell", async () => {
  for (const name of ["with spaces", "it's", 'a "b"', "$(id)", "a\nb", "-rf", "ünïcödé ☕", "*"]) {
    await sandbox.writeText(`odd/${name}/file`, name);
    assert.equal(await sandbox.readText(`odd/${name}/file`), name);
    assert.deepEqual(await sandbox.listFiles(`odd/${name}`), [
      { name: "file", isDir: false, size: Buffer.byteLength(name) },
    ]);
    assert.equal((await sandbox.execute("cat file", { cwd: `odd/${name}` })).stdout, name);
    await sandbox.removeFile(`odd/${name}/file`);
  }
  assert.equal((await sandbox.listFiles("odd")).length, 8);
});

test("each command is a fresh shell: neither variables nor the directory stay", async () => {
  await sandbox.execute("export EPHEMERAL=1; cd /tmp");
  assert.equal((await sandbox.execute("echo ${EPHEMERAL:-unset} $PWD")).stdout, "unset /workspace\n");
});

test("a timeout of 0 is over at once, as in the SDK's own sandboxes", async () => {
  await assert.rejects(sandbox.execute("sleep 60", { timeout: 0 }), (error) => {
    assert.ok(error instanceof SandboxTimeoutError);
    return error.message === "Execution timed out after 0 seconds";
  });
});

test("outputFiles is empty, also when a command makes files: they stay in the sandbox", async () => {
  const result = await sandbox.executeCode("open('plot.png', 'wb').write(b'png')", "python3");
  assert.deepEqual([result.exitCode, result.outputFiles], [0, []]);
  assert.equal(await sandbox.readText("plot.png"), "png");
});

test("makeShell and makeFileEditor of the SDK, bound to it with a name and a description of one's own", async () => {
  const tools = [
    makeShell(sandbox, { name: "run_it", description: "Runs it." }),
    makeFileEditor(sandbox, { name: "edit_it", description: "Edits it." }),
  ];
  assert.deepEqual(tools.map(({ description }) => description), ["Runs it.", "Edits it."]);
  const input = { command: "create", path: "/tmp/bound.txt", file_text: "bound" };
  const calls = [{ name: "edit_it", input }, { name: "run_it", input: { command: "cat /tmp/bound.txt" } }];
  const { answers } = await play(tools, ...calls);
  assert.deepEqual(answers[1], { output: "bound", error: "", exit_code: 0 });
});

test("the SDK's bash tool is the host's, whatever sandbox the agent has; sandbox_shell is the sandbox's", async () => {
  const command = "readlink /proc/self/ns/pid";
  const calls = ["bash", "sandbox_shell"].map((name) => ({ name, input: { mode: "execute", command } }));
  const { agent, answers } = await play([bash], ...calls, { name: "bash", input: { mode: "restart" } });
  assert.match(answers[0].output, /^pid:\[\d+\]/);
  assert.match(answers[1].output, /^pid:\[\d+\]/);
  assert.notEqual(answers[0].output.trim(), answers[1].output.trim());
  assert.equal(agent.sandbox, sandbox);
});

test("request() is not in the SDK for TypeScript yet", () => {
  assert.equal(sandbox.request, undefined);
});

test("not in this version: a network, secrets and registry images are refused with unsupported when the sandbox is made", async () => {
  const networks = [{ network: "allow-all" }, { network: "open" }];
  for (const options of [...networks, { secrets: { KEY: "x" } }, { image: "ubuntu:22.04" }]) {
    await assert.rejects(CaySandbox.create(options), { code: "unsupported" });
    await assert.rejects(new CaySandbox(options).execute("true"), { code: "unsupported" });
  }
  const reach = "exec 3<>/dev/tcp/192.0.2.1/80";
  assert.notEqual((await sandbox.executeCode(reach, "bash")).exitCode, 0);
});
