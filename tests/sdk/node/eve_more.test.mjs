// SPDX-License-Identifier: Apache-2.0
// node24
//
// cay-sandbox/eve under parts of the newest published eve that it does not export: what eve does with a session between the
// plug-in point and an author's tool, each part by itself; and an agent whose author does with its sandbox what can be
// done. Agents that use eve's tools are in eve_run.test.mjs.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { getEventListeners } from "node:events";
import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { cayBackend, cayProvider } from "cay-sandbox/eve";
import { bytes, cay, countingProxy, directory, newHandle, provider } from "./eve_support.mjs";
import { removeLater, sandboxOf, sessionKey, startSession } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

/** The directory of an installed package. */
const packageOf = (name) => dirname(fileURLToPath(import.meta.resolve(`${name}/package.json`)));

/** A module of eve that it does not export. */
const internal = (path) => import(join(packageOf("eve"), "dist", "src", path));

let handle, session, box;
before(async () => {
  handle = await newHandle();
  session = handle.session;
  box = cay.attach(await sandboxOf(handle));
});

// ---- the turn's signal

test("eve binds the turn's signal to every call: an abort ends commands with its reason, and no listener stays behind", async () => {
  const { bindSandboxAbortSignal } = await internal("execution/sandbox/abort-bound-session.js");
  const turn = new AbortController();
  const bound = bindSandboxAbortSignal(session, turn.signal);
  const passedOn = ["id", "resolvePath", "setNetworkPolicy", "getNetworkPolicy", "stat", "listDirectory", "deleteFile"];
  for (const name of passedOn) assert.equal(bound[name], session[name], name);
  const own = new AbortController();
  for (let i = 0; i < 5; i++) {
    assert.equal((await bound.run({ command: "echo hi", abortSignal: own.signal })).stdout, "hi\n");
    await bound.writeTextFile({ path: "bound.txt", content: "x", abortSignal: own.signal });
    assert.equal(await bound.readTextFile({ path: "bound.txt", abortSignal: own.signal }), "x");
  }
  for (const { signal } of [turn, own]) assert.equal(getEventListeners(signal, "abort").length, 0);

  const reason = new Error("the turn was cancelled");
  const child = await bound.spawn({ command: "sleep 4801 & sleep 4802" });
  const running = bound.run({ command: "sleep 4803" });
  await until(async () => (await runs(box, "sleep 4802")) && (await runs(box, "sleep 4803")));
  const ended = [child.wait(), running].map((each) => assert.rejects(each, (error) => error === reason));
  turn.abort(reason);
  await Promise.all(ended);
  await until(async () => !(await runs(box, "sleep 480[123]")));
  for (const call of [bound.run({ command: "touch /tmp/late" }), bound.readFile({ path: "bound.txt" })])
    await assert.rejects(call, (error) => error === reason);
  assert.equal(await session.stat({ path: "/tmp/late" }), null);
});

test("a signal of one call, beside the turn's, ends that call alone", async () => {
  const { bindSandboxAbortSignal } = await internal("execution/sandbox/abort-bound-session.js");
  const bound = bindSandboxAbortSignal(session, new AbortController().signal);
  const own = new AbortController();
  const reason = new Error("this one");
  const one = bound.run({ command: "sleep 4811", abortSignal: own.signal });
  await until(() => runs(box, "sleep 4811"));
  own.abort(reason);
  await assert.rejects(one, (error) => error === reason);
  assert.equal((await bound.run({ command: "echo on" })).stdout, "on\n");
});

// ---- what stays when a session is attached to again

test("id persists across reconnects: who attaches again sees the same one", async () => {
  const key = sessionKey();
  const first = await newHandle({}, { sessionKey: key });
  const { metadata } = await first.captureState();
  assert.equal((await newHandle({}, { sessionKey: key, existingMetadata: metadata })).session.id, key);
  const environment = provider();
  const { context, state, sandbox } = await startSession(environment);
  assert.equal((await environment.resume(context, { version: 1, recipe: [] }, state)).sandbox.id, sandbox.id);
});

test("captureState and dispose, which eve calls after every step, ask the daemon for nothing", async () => {
  const { host, requests } = await countingProxy();
  const input = { templateKey: null, sessionKey: sessionKey(), runtimeContext: { appRoot: "/none" } };
  const made = await cayBackend({ host }).create(input);
  const sent = requests.length;
  await made.captureState();
  await made.dispose();
  assert.equal(requests.length, sent);
  await made.delete();
});

// ---- the same as the session that eve builds for its own sandboxes

test("readTextFile: every range of every kind of text is what eve's own session gives, errors too", async () => {
  const { buildSandboxSession } = await internal("execution/sandbox/session.js");
  const { readFile, writeFile, removePath, resolvePath, spawn } = session;
  const theirs = buildSandboxSession({ readFile, writeFile, removePath, resolvePath, spawn });
  const told = (promise) => promise.then((text) => ({ text }), ({ message }) => ({ message }));
  const texts = ["", "one", "a\nb\nc", "a\r\nb\r\nc\r\n", "a\rb\rc", "mixed\r\nb\nc\rd", "\n\n", "\ufeffa\nb\r", "\r\r\n\n"];
  const lines = [undefined, -1, 0, 1, 1.5, 2, 3, 99];
  for (const [i, content] of texts.entries()) {
    const path = `same/${i}.txt`;
    await theirs.writeTextFile({ path, content });
    for (const startLine of lines)
      for (const endLine of lines) {
        const options = { path, startLine, endLine };
        assert.deepEqual(await told(session.readTextFile(options)), await told(theirs.readTextFile(options)));
      }
  }
  await session.writeBinaryFile({ path: "same/latin", content: Uint8Array.of(0x61, 0xe4) });
  for (const encoding of ["utf-8", "utf8", "latin1", "hex", "base64", "utf16le"]) {
    const options = { path: "same/latin", encoding };
    assert.deepEqual(await told(session.readTextFile(options)), await told(theirs.readTextFile(options)), encoding);
  }
});

test("run gives what eve's own session makes of spawn", async () => {
  const { buildSandboxSession } = await internal("execution/sandbox/session.js");
  const { readFile, writeFile, removePath, resolvePath, spawn } = session;
  const theirs = buildSandboxSession({ readFile, writeFile, removePath, resolvePath, spawn });
  for (const options of [
    { command: "echo out; echo err >&2; exit 3" },
    { command: "printf 'ä\\377b'; printf '\\0' >&2" },
    { command: "pwd; echo $A $AI_AGENT", env: { A: "b" }, workingDirectory: "/tmp" },
    { command: "kill -TERM $$" },
    { command: "no-such-command" },
    { command: "seq 1 20000; seq 1 20000 >&2" },
    { command: "" },
  ])
    assert.deepEqual(await session.run(options), await theirs.run(options), options.command);
});

// ---- tools

/** Runs in a context as eve makes one for each step; tools keep in it what was read. */
async function inStep(use) {
  const { ContextContainer, contextStorage } = await internal("context/container.js");
  return contextStorage.run(new ContextContainer(), use);
}

test("eve's read_file: numbered lines, at most 2000 of them and 50 KiB, from the offset on", async () => {
  const { executeReadFileOnSandbox: read } = await internal("execution/sandbox/read-file.js");
  await session.run({ command: "seq 1 2500 > many.txt; yes 0123456789012345678901234567890123 | head -1900 > wide.txt" });
  await inStep(async () => {
    const first = await read(session, { filePath: "/workspace/many.txt" });
    assert.ok(first.content.startsWith("1: 1\n") && first.content.endsWith("\n2000: 2000"));
    assert.deepEqual([first.truncated, first.nextOffset, first.totalLines], [true, 2001, 2500]);
    const rest = await read(session, { filePath: "/workspace/many.txt", offset: first.nextOffset });
    assert.ok(rest.content.endsWith("\n2500: 2500") && !rest.truncated);
    const wide = await read(session, { filePath: "/workspace/wide.txt" });
    assert.ok(wide.truncated && Buffer.byteLength(wide.content) <= 50 * 1024);
    await assert.rejects(read(session, { filePath: "/workspace/none" }), /File not found/);
  });
});

/** The head of a PNG of that size; nothing looks at more of it. */
function png(width, height, length = 64) {
  const image = Buffer.alloc(length);
  Buffer.from("89504e470d0a1a0a0000000d49484452", "hex").copy(image);
  image.writeUInt32BE(width, 16);
  image.writeUInt32BE(height, 20);
  return image;
}

test("eve's read_file: images up to 3 MiB and 8000 pixels and PDFs up to 20 MiB are read byte for byte, others refused", async () => {
  const { executeReadFileOnSandbox: read } = await internal("execution/sandbox/read-file.js");
  const pdf = (length) => Buffer.concat([Buffer.from("%PDF-1.7\n"), Buffer.alloc(length - 9, 0x20)]);
  const files = {
    "good.png": png(100, 50, 3 << 20),
    "heavy.png": png(100, 50, (3 << 20) + 1),
    "wide.png": png(8001, 50),
    "good.pdf": pdf(20 << 20),
    "heavy.pdf": pdf((20 << 20) + 1),
    "other.bin": Buffer.of(0, 255, 254),
  };
  for (const [path, content] of Object.entries(files)) await session.writeBinaryFile({ path, content });
  await inStep(async () => {
    const image = (await read(session, { filePath: "/workspace/good.png" })).file;
    assert.deepEqual([image.mediaType, image.size, image.width, image.height], ["image/png", 3 << 20, 100, 50]);
    assert.equal((await read(session, { filePath: "/workspace/good.pdf" })).file.size, 20 << 20);
    for (const name of ["heavy.png", "wide.png"])
      await assert.rejects(read(session, { filePath: `/workspace/${name}` }), /up to 3 MiB and 8000 pixels/);
    await assert.rejects(read(session, { filePath: "/workspace/heavy.pdf" }), /up to 20 MiB/);
    await assert.rejects(read(session, { filePath: "/workspace/other.bin" }), /binary file/);
  });
});

test("eve's write_file refuses to overwrite a file that was not read, or that changed since", async () => {
  const { executeReadFileOnSandbox: read } = await internal("execution/sandbox/read-file.js");
  const { executeWriteFileOnSandbox: write } = await internal("execution/sandbox/write-file.js");
  const filePath = "/workspace/made/by/hand.txt";
  await session.writeTextFile({ path: filePath, content: "old" });
  await inStep(async () => {
    await assert.rejects(write(session, { filePath, content: "new" }), /must read file/);
    await read(session, { filePath });
    await session.run({ command: `echo changed > ${filePath}` });
    await assert.rejects(write(session, { filePath, content: "new" }), /has been modified/);
    await read(session, { filePath });
    assert.equal((await write(session, { filePath, content: "new" })).existed, true);
    assert.equal((await write(session, { filePath: "/workspace/fresh.txt", content: "first" })).existed, false);
  });
  assert.equal(await session.readTextFile({ path: filePath }), "new");
});

test("eve's bash tool: output is the last 2000 lines and 50 KiB, with lines of at most 2000 characters", async () => {
  const { executeBashOnSandbox } = await internal("execution/sandbox/bash.js");
  const bash = (command) => executeBashOnSandbox(session, { command });
  const many = await bash("seq 1 100000; exit 3");
  assert.deepEqual([many.status, many.exitCode, many.truncated], ["completed", 3, true]);
  assert.ok(many.stdout.endsWith("\n100000\n") && many.stdout.split("\n").length <= 2001);
  const long = await bash("head -c 100000 /dev/zero | tr '\\0' x; echo; echo end");
  assert.ok(long.stdout.endsWith("end\n") && Buffer.byteLength(long.stdout) < 3000);
});

test("eve's $HOME probe and its attachments: below $HOME/.agents/skills and /workspace/.eve/attachments files can be written", async () => {
  for (const user of ["root", "user"]) {
    const { session: theirs } = await newHandle({ user });
    const home = (await theirs.run({ command: `printf '%s\\n' "$HOME"` })).stdout.trim();
    const paths = [`${home}/.agents/skills/s/SKILL.md`, "/workspace/.eve/attachments/0123/picture.png"];
    for (const path of paths) {
      await theirs.writeBinaryFile({ path, content: bytes("content") });
      assert.equal((await theirs.run({ command: `cat ${path}` })).stdout, "content", `${user} ${path}`);
    }
    await theirs.removePath({ path: paths[0], force: true });
  }
});

// ---- what this version does not have, and what eve refuses by itself

test("invokeTool with a key: eve refuses it for every provider that is not its own", async () => {
  const { defineSandboxProvider } = await import("eve/sandbox/provider");
  const toolSessions = await internal("execution/tool-session/sandbox.js");
  const environment = defineSandboxProvider(cayProvider).environment();
  const registry = { sandbox: { definition: { kind: "independent", environment } } };
  const { assertToolSessionSandboxSupport, ToolSessionSandboxUnsupportedError: Refused } = toolSessions;
  assert.throws(() => assertToolSessionSandboxSupport(registry), Refused);
});

// ---- a whole agent of the newest eve: what its author can do with the sandbox

const APP = {
  "package.json": '{ "name": "cay-eve-more", "private": true, "type": "module", "dependencies": { "eve": "*" } }',
  "agent/instructions.md": "Call tools.\n",
  // The selector of the first access throws after it has opened a sandbox.
  "agent/sandbox.ts": `
    import { cayProvider } from "cay-sandbox/eve";
    import { defineSandbox } from "eve/sandbox";
    import { defineSandboxProvider } from "eve/sandbox/provider";
    export const environment = defineSandboxProvider(cayProvider).environment({ memory: "256M" });
    export default defineSandbox(async () => {
      const sandbox = await environment.open();
      if ((globalThis as any).opened === undefined) {
        (globalThis as any).opened = true;
        await sandbox.writeTextFile({ path: "half-open", content: "" });
        throw new Error("the selector failed");
      }
      return sandbox;
    });`,
  "agent/agent.ts": `
    import { defineAgent } from "eve";
    import { mockModel } from "eve/evals";
    const TURNS = [
      [
        { name: "bash", input: { command: "true" } },
        { name: "bash", input: { command: "ls half-open; echo parent > from-parent; sleep 4821 > /dev/null 2>&1 &" } },
        { name: "typed", input: {} },
        { name: "reviewer", input: { message: "review" } },
      ],
      [
        { name: "bash", input: { command: "cat from-child" } },
        { name: "forget", input: {} },
        { name: "bash", input: { command: "ls -A; echo listed" } },
      ],
    ];
    export default defineAgent({
      modelContextWindowTokens: 1_000_000,
      model: mockModel(({ toolResults, userMessageCount }) => {
        const next = TURNS.slice(0, userMessageCount).flat()[toolResults.length];
        const results = toolResults.map(({ isError, output }) => ({ isError, output }));
        return next ? { toolCalls: [next] } : JSON.stringify(results);
      }),
    });`,
  "agent/tools/typed.ts": `
    import { defineTool } from "eve/tools";
    import { environment } from "../sandbox.js";
    export default defineTool({
      description: "Uses what only cay's sandboxes have.",
      inputSchema: { type: "object", properties: {}, additionalProperties: false },
      async execute(_input, ctx) {
        const sandbox = await ctx.getSandbox(environment);
        const search = { command: "pgrep -f '[s]leep 4821'" };
        const { exitCode: before } = await sandbox.run(search);
        await sandbox.stop();
        const resumed = await ctx.getSandbox(environment);
        const { exitCode: after } = await resumed.run(search);
        const kept = await resumed.readTextFile({ path: "from-parent" });
        return { policy: await resumed.getNetworkPolicy(), before, after, kept };
      },
    });`,
  "agent/tools/forget.ts": `
    import { defineTool } from "eve/tools";
    export default defineTool({
      description: "Deletes the sandbox.",
      inputSchema: { type: "object", properties: {}, additionalProperties: false },
      async execute(_input, ctx) {
        await (await ctx.getSandbox()).delete();
        return "deleted";
      },
    });`,
  "agent/subagents/reviewer/instructions.md": "Review.\n",
  "agent/subagents/reviewer/sandbox.ts": `
    import { defineParentSandbox } from "eve/sandbox";
    export default defineParentSandbox();`,
  "agent/subagents/reviewer/agent.ts": `
    import { defineAgent } from "eve";
    import { mockModel } from "eve/evals";
    export default defineAgent({
      description: "Reviews.",
      modelContextWindowTokens: 1_000_000,
      model: mockModel(({ toolResults }) =>
        toolResults.length === 0
          ? { toolCalls: [{ name: "bash", input: { command: "cat from-parent; echo child > from-child" } }] }
          : JSON.stringify(toolResults[0].output)),
    });`,
  "evals/evals.config.ts": `
    import { defineEvalConfig } from "eve/evals";
    export default defineEvalConfig({});`,
  "evals/more.eval.ts": `
    import { writeFileSync } from "node:fs";
    import { defineEval } from "eve/evals";
    export default defineEval({
      async test(t) {
        const first = await t.send("go");
        const { message } = await ("session" in first ? (first as any).session : t).send("go on");
        writeFileSync("message.json", message ?? "");
        t.succeeded();
      },
    });`,
};

/** Writes the project, with eve and cay installed. */
async function project() {
  const path = await directory();
  for (const [name, content] of Object.entries(APP)) {
    await mkdir(dirname(join(path, name)), { recursive: true });
    await writeFile(join(path, name), content);
  }
  await mkdir(join(path, "node_modules"));
  for (const name of ["eve", "cay-sandbox"]) await symlink(packageOf(name), join(path, "node_modules", name));
  return path;
}

test("a whole agent of the newest eve: what its author can do with the sandbox", async (t) => {
  const { host, requests } = await countingProxy();
  const cwd = await project();
  const env = { ...process.env, CAY_HOST: host, EVE_TELEMETRY_DISABLED: "1", NO_COLOR: "1", CI: "1" };
  delete env.NODE_TEST_CONTEXT;
  const args = ["node_modules/eve/bin/eve.js", "eval"];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd, env, timeout: 120_000 });
  for (const id of new Set(requests.flatMap((line) => line.match(/eve-[0-9a-f]{32}/) ?? []))) removeLater(id);
  const [failed, first, typed, , shared, deleted, last] = JSON.parse(await readFile(join(cwd, "message.json"), "utf8"));

  await t.test("a selector that throws after it has opened: that sandbox is deleted, and the next access starts a fresh one", () => {
    assert.deepEqual([failed.isError, failed.output], [true, "Error: the selector failed"]);
    assert.match(first.output.stderr, /cannot access 'half-open'/);
  });
  await t.test("ctx.getSandbox(environment) gives the typed session, with what only cay has", () => {
    assert.equal(typed.output.policy, "deny-all", stdout);
  });
  await t.test("sandbox.stop() of the author ends the processes and keeps the files; the next access goes on", () => {
    assert.deepEqual([typed.output.before, typed.output.after, typed.output.kept], [0, 1, "parent\n"]);
  });
  await t.test("defineParentSandbox: a subagent works in the sandbox of its parent", () => {
    assert.equal(shared.output.stdout, "child\n");
  });
  await t.test("sandbox.delete() of the author: the next access starts from the environment, without the old files", () => {
    assert.deepEqual([deleted.output, last.output.stdout], ["deleted", "listed\n"]);
    assert.equal(requests.filter((line) => line === "POST /sandboxes").length, 3);
  });
});
