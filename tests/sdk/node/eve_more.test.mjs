// SPDX-License-Identifier: Apache-2.0
// node24
//
// cay/eve under parts of the newest published eve that it does not export: what eve does with a session between the
// plug-in point and an author's tool, each part by itself. Whole agents are in eve_run.test.mjs.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { dirname, join } from "node:path";
import { before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { cayBackend, cayProvider } from "cay/eve";
import { bytes, cay, countingProxy, newHandle, provider, sandboxOf, sessionKey, startSession } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

/** A module of eve that it does not export. */
const internal = (path) => import(join(dirname(fileURLToPath(import.meta.resolve("eve/package.json"))), "dist", "src", path));

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
  for (const name of ["id", "resolvePath", "setNetworkPolicy", "getNetworkPolicy", "stat", "listDirectory", "deleteFile"])
    assert.equal(bound[name], session[name], name);
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
  const ended = [child.wait(), running].map((each) => assert.rejects(Promise.resolve(each), (error) => error === reason));
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
  const backend = cayBackend({ host });
  const made = await backend.create({ templateKey: null, sessionKey: sessionKey(), runtimeContext: { appRoot: "/none" } });
  const before = requests.length;
  await made.captureState();
  await made.dispose();
  assert.equal(requests.length, before);
  await made.delete();
});

// ---- tools

/** Runs in a context as eve makes one for each step; tools keep in it what was read. */
async function inStep(use) {
  const { ContextContainer, contextStorage } = await internal("context/container.js");
  return contextStorage.run(new ContextContainer(), use);
}

test("eve's read_file: numbered lines, at most 2000 of them and 50 KiB, from the offset on", async () => {
  const { executeReadFileOnSandbox: read } = await internal("execution/sandbox/read-file.js");
  await session.run({ command: "seq 1 2500 > many.txt; yes 0123456789012345678901234567890123456789 | head -1900 > wide.txt" });
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
  const { assertToolSessionSandboxSupport, ToolSessionSandboxUnsupportedError } = await internal("execution/tool-session/sandbox.js");
  const environment = defineSandboxProvider(cayProvider).environment();
  const registry = { sandbox: { definition: { kind: "independent", environment } } };
  assert.throws(() => assertToolSessionSandboxSupport(registry), ToolSessionSandboxUnsupportedError);
});
