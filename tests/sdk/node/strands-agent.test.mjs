// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/strands under the published @strands-agents/sdk: agents whose model follows a script, the vended tools, plugins
// and storages.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, describe, test } from "node:test";

import { Agent, tool } from "@strands-agents/sdk";
import { LocalFileStorage } from "@strands-agents/sdk/storage";
import { ContextOffloader } from "@strands-agents/sdk/vended-plugins/context-offloader";
import { AgentSkills } from "@strands-agents/sdk/vended-plugins/skills";
import { fileEditor } from "@strands-agents/sdk/vended-tools/file-editor";
import { makeShell } from "@strands-agents/sdk/vended-tools/shell";
import { Cay } from "cay-sandbox";
import { CaySandbox } from "cay-sandbox/strands";
import { z } from "zod";
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

const shell = (command, timeout) => ({ name: "sandbox_shell", input: { command, ...(timeout && { timeout }) } });
const editor = (command, path, more = {}) => ({ name: "sandbox_file_editor", input: { command, path, ...more } });

/** An agent does these calls, one after the other; what the tools answered. */
async function play(calls, config = {}) {
  const agent = new Agent({ model: new Script(...calls, "done"), sandbox, printer: false, ...config });
  const result = await agent.invoke("go");
  assert.equal(result.stopReason, "endTurn");
  return agent.messages.flatMap(({ content }) => content.filter((block) => block.type === "toolResultBlock"));
}

/** The text, or the JSON, of a tool's answer. */
const said = (result) => result.content[0].json ?? result.content[0].text;

describe("agent", () => {
  test("new Agent({ sandbox }) has it, and registers its tools when it is initialized", async () => {
    const agent = new Agent({ model: new Script(), sandbox, printer: false });
    assert.equal(agent.sandbox, sandbox);
    await agent.initialize();
    assert.deepEqual(agent.tools.map(({ name }) => name).sort(), ["sandbox_file_editor", "sandbox_shell"]);
  });

  test("a tool of the user's with the same name is kept", async () => {
    const own = tool({
      name: "sandbox_shell",
      description: "A shell of one's own",
      inputSchema: z.object({}),
      callback: () => "mine",
    });
    const [result] = await play([{ name: "sandbox_shell", input: {} }], { tools: [own] });
    assert.equal(said(result), "mine");
  });

  test("sandbox: false, and none at all, is the host, which vends no tools", async () => {
    for (const config of [{ sandbox: false }, {}]) {
      const agent = new Agent({ model: new Script(), printer: false, ...config });
      await agent.initialize();
      assert.deepEqual(agent.tools, []);
      assert.equal(agent.sandbox.constructor.name, "NotASandboxLocalEnvironment");
    }
  });

  test("an agent works in its sandbox: writes a program, runs it, corrects it", async () => {
    const results = await play([
      editor("create", "/workspace/app/sum.py", { file_text: "print(sum(range(10))\n" }),
      shell("python3 app/sum.py"),
      editor("str_replace", "/workspace/app/sum.py", { old_str: "(10))", new_str: "(10)))" }),
      shell("python3 app/sum.py"),
    ]);
    assert.deepEqual(results.map(({ status }) => status), ["success", "success", "success", "success"]);
    assert.equal(said(results[1]).exit_code, 1);
    assert.match(said(results[1]).error, /SyntaxError/);
    assert.deepEqual(said(results[3]), { output: "45\n", error: "", exit_code: 0 });
  });

  test("a sandbox that is not made yet will do: it is made by the first call of a tool", async () => {
    const labels = { test: "strands-agent" };
    const lazy = new CaySandbox({ labels });
    const [result] = await play([shell("pwd")], { sandbox: lazy });
    assert.equal(said(result).output, "/workspace\n");
    assert.equal((await cay.list({ labels })).length, 1);
    await lazy.close();
    assert.equal((await cay.list({ labels })).length, 0);
  });

  test("calls of tools in one turn and several agents share the sandbox", async () => {
    const [[one], [two]] = await Promise.all([play([shell("echo 1 > shared1")]), play([shell("echo 2 > shared2")])]);
    assert.deepEqual([said(one).exit_code, said(two).exit_code], [0, 0]);
    const [both] = await play([shell("cat shared1 shared2")]);
    assert.equal(said(both).output, "1\n2\n");
  });
});

describe("sandbox_shell", () => {
  test("answers with output, error and exit_code", async () => {
    const [result] = await play([shell("echo out; echo err >&2; exit 7")]);
    assert.deepEqual(said(result), { output: "out\n", error: "err\n", exit_code: 7 });
  });

  test("each call is a fresh shell", async () => {
    const results = await play([shell("cd /tmp; X=1; echo $PWD$X"), shell("echo $PWD$X")]);
    assert.deepEqual(results.map((result) => said(result).output), ["/tmp1\n", "/workspace\n"]);
  });

  test("a timeout is an error with the partial output and exit_code 124, and nothing is alive", async () => {
    const [result] = await play([shell("echo partial; sleep 3999", 0.4)]);
    assert.equal(result.status, "error");
    assert.match(said(result), /Execution timed out after 0\.4 seconds/);
    assert.match(said(result), /\{"output":"partial\\n","error":"","exit_code":124\}/);
    assert.equal((await sandbox.execute("while pgrep -f 'sleep 399[9]'; do :; done", { timeout: 10 })).exitCode, 0);
  });

  test("passes a timeout and nothing else: 120 seconds, or what the model says", async () => {
    const seen = [];
    class Recording extends CaySandbox {
      execute(command, options) {
        seen.push(options);
        return super.execute(command, options);
      }
    }
    await play([shell("true"), shell("true", 3)], { sandbox: new Recording(await sandbox.box()) });
    assert.deepEqual(seen, [{ timeout: 120 }, { timeout: 3 }]);
  });

  test("an error of the sandbox is an error of the tool, with its message", async () => {
    const box = await cay.create();
    await box.remove();
    const [result] = await play([shell("true")], { sandbox: new CaySandbox(box) });
    assert.equal(result.status, "error");
    assert.match(said(result), new RegExp(`no sandbox '${box.id}'`));
  });

  test("makeShell() of a name of one's own takes the agent's sandbox", async () => {
    const [result] = await play([{ name: "sh", input: { command: "pwd" } }], { tools: [makeShell({ name: "sh" })] });
    assert.equal(said(result).output, "/workspace\n");
  });
});

describe("sandbox_file_editor", () => {
  test("creates, views, replaces and inserts", async () => {
    const file = "/workspace/edit/poem.txt";
    const results = await play([
      editor("create", file, { file_text: "one\ntwo\nthree" }),
      editor("view", file),
      editor("str_replace", file, { old_str: "two", new_str: "2" }),
      editor("insert", file, { insert_line: 1, new_str: "one and a half" }),
      editor("view", file, { view_range: [2, 3] }),
    ]);
    assert.deepEqual(results.map(({ status }) => status), Array(5).fill("success"));
    assert.equal(said(results[0]), `File created successfully at: ${file}`);
    assert.match(said(results[1]), / 1 {2}one\n {5}2 {2}two\n {5}3 {2}three\n$/);
    assert.match(said(results[4]), / 2 {2}one and a half\n {5}3 {2}2\n$/);
    assert.equal(await sandbox.readText(file), "one\none and a half\n2\nthree");
  });

  test("views a directory two levels deep, without hidden files", async () => {
    await sandbox.execute("mkdir -p tree/a/b/c && touch tree/.hidden tree/a/b/deep tree/a/b/c/deeper tree/z");
    const [result] = await play([editor("view", "/workspace/tree/")]);
    assert.match(said(result), /:\na\na\/b\na\/b\/c\na\/b\/deep\nz\n$/);
  });

  test("wants absolute paths without '..', at most 1 MiB, and files that are there or not", async () => {
    await sandbox.writeText("big.txt", "x".repeat(1_048_577));
    await sandbox.writeText("twice.txt", "a a");
    const refused = [
      [editor("view", "relative.txt"), /not an absolute path/],
      [editor("view", "/workspace/../etc/passwd"), /path traversal is not allowed/],
      [editor("view", "/workspace/big.txt"), /exceeds maximum allowed size/],
      [editor("view", "/workspace/nowhere"), /does not exist/],
      [editor("view", "/no/such/parent"), /does not exist/],
      [editor("view", "/etc/passwd/x"), /does not exist/],
      [editor("create", "/workspace/twice.txt", { file_text: "" }), /already exists/],
      [editor("str_replace", "/workspace/twice.txt", { old_str: "a", new_str: "b" }), /Multiple occurrences/],
      [editor("insert", "/workspace", { insert_line: 0, new_str: "x" }), /is a directory/],
      [editor("view", "/proc/1/root/x"), /Permission denied/],
    ];
    const results = await play(refused.map(([call]) => call));
    for (const [index, result] of results.entries()) {
      assert.equal(result.status, "error");
      assert.match(said(result), refused[index][1]);
    }
  });

  test("the file editor that is not bound takes the agent's sandbox", async () => {
    const call = { name: "fileEditor", input: { command: "create", path: "/tmp/unbound", file_text: "here" } };
    const [result] = await play([call], { tools: [fileEditor] });
    assert.equal(result.status, "success");
    assert.equal(await sandbox.readText("/tmp/unbound"), "here");
  });
});

describe("plugins and storages", () => {
  test("skills are read from the sandbox", async () => {
    const text = "---\nname: greeting\ndescription: How to greet\n---\nSay hello politely.\n";
    await sandbox.writeText("/srv/skills/greeting/SKILL.md", text);
    await sandbox.writeText("/srv/skills/greeting/scripts/hello.sh", "echo hello");
    const model = new Script({ name: "skills", input: { skill_name: "greeting" } }, "done");
    const plugins = [new AgentSkills({ skills: ["/srv/skills"] })];
    const agent = new Agent({ model, sandbox, printer: false, plugins });
    await agent.invoke("go");
    const heard = JSON.stringify(model.heard[1]);
    assert.match(heard, /How to greet/);
    assert.match(heard, /Say hello politely/);
    assert.match(heard, /scripts\/hello\.sh/);
  });

  test("LocalFileStorage.forSandbox writes, reads, lists and deletes", async () => {
    const storage = new LocalFileStorage("./.strands/").forSandbox(sandbox);
    assert.deepEqual(await storage.list(""), []);
    assert.equal(await storage.read("sessions/none"), null);
    await storage.delete("sessions/none");
    await storage.write("sessions/b/state.json", new TextEncoder().encode("{}"));
    await storage.write("sessions/a", Uint8Array.of(0, 255));
    assert.deepEqual(await storage.list("sessions/"), ["sessions/a", "sessions/b/state.json"]);
    assert.deepEqual([...(await storage.read("sessions/a"))], [0, 255]);
    assert.equal((await sandbox.execute("cat /workspace/.strands/sessions/b/state.json")).stdout, "{}");
    await storage.delete("sessions/a");
    assert.equal(await storage.read("sessions/a"), null);
  });

  test("the context offloader keeps long results in the sandbox, and finds them again", async () => {
    const storage = new LocalFileStorage("/srv/off");
    const offloader = new ContextOffloader({ storage, maxResultTokens: 100, previewTokens: 50 });
    const retrieve = { name: "retrieve_offloaded_content", input: { reference: "call-1_0" } };
    const model = new Script(shell("seq 2000"), retrieve, "done");
    const agent = new Agent({ model, sandbox, printer: false, plugins: [offloader] });
    await agent.invoke("go");
    assert.equal((await sandbox.execute("grep -rl 1999 /srv/off | wc -l")).stdout, "1\n");
    const [, , { content: first }, , { content: second }] = agent.messages;
    assert.match(JSON.stringify(first), /call-1_0/);
    assert.doesNotMatch(JSON.stringify(first), /1999/);
    assert.match(JSON.stringify(second), /1999/);
  });
});

test("the example runs as it is", () => {
  const done = spawnSync(process.execPath, ["examples/strands/agent.mjs"], { encoding: "utf8", timeout: 60_000 });
  assert.equal(done.stderr, "");
  assert.equal(done.status, 0);
  assert.equal(done.stdout, "The sandbox says: 5050\n\n");
});
