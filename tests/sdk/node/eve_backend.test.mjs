// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/eve: the plug-in point of eve until 0.63, `defineSandbox({ backend: cayBackend() })`, called as eve calls it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Gone, Invalid, NotFound, Unsupported } from "cay-sandbox";
import { cayBackend } from "cay-sandbox/eve";
import { cay, countingProxy, directory, json, newHandle, removeLater, sandboxOf, sessionKey } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

const stdout = async (session, command) => (await session.run({ command })).stdout;

/** A template and a session of it. */
async function fromTemplate({ appRoot, templateKey = "eve-sbx-tpl-cay-1", bootstrap, seedFiles = [], backend = cayBackend() }) {
  const runtimeContext = { appRoot };
  const { reused } = await backend.prewarm({ templateKey, bootstrap, seedFiles, runtimeContext });
  const handle = await backend.create({ templateKey, sessionKey: sessionKey(), runtimeContext });
  removeLater(await sandboxOf(handle));
  return { handle, session: handle.session, reused };
}

test("a backend has a name, create and prewarm; an unknown option is refused", () => {
  const backend = cayBackend({ memory: "64M" });
  assert.equal(backend.name, "cay");
  assert.equal(typeof backend.create, "function");
  assert.equal(typeof backend.prewarm, "function");
  assert.throws(() => cayBackend({ dockerfile: "x" }), /no option 'dockerfile'/);
  assert.throws(() => cayBackend({ prepare: () => {} }), Invalid);
});

test("a handle has the names of all versions: dispose, shutdown, stop, delete beside session, useSessionFn, captureState", async () => {
  const handle = await newHandle();
  const names = ["useSessionFn", "captureState", "dispose", "shutdown", "stop", "delete"];
  for (const name of names) assert.equal(typeof handle[name], "function", name);
});

test("dispose, called after every step, leaves the sandbox and its processes alone", async () => {
  const handle = await newHandle();
  await handle.session.run({ command: "nohup sleep 4761 > /dev/null 2>&1 &" });
  const box = cay.attach(await sandboxOf(handle));
  await until(() => runs(box, "sleep 4761"));
  await handle.dispose();
  assert.equal(await runs(box, "sleep 4761"), true);
});

test("stop and shutdown end the processes and keep the files; delete removes the sandbox and may be repeated", async () => {
  const handle = await newHandle();
  const box = cay.attach(await sandboxOf(handle));
  for (const name of ["stop", "shutdown"]) {
    await handle.session.run({ command: "echo kept > file; nohup sleep 4771 > /dev/null 2>&1 &" });
    await until(() => runs(box, "sleep 4771"));
    await handle[name]();
    assert.equal(await runs(box, "sleep 4771"), false, name);
    assert.equal(await handle.session.readTextFile({ path: "file" }), "kept\n");
  }
  await handle.delete();
  await handle.delete({ abortSignal: new AbortController().signal });
  await assert.rejects(cay.get(box.id), NotFound);
  await assert.rejects(handle.stop(), NotFound);
  await handle.shutdown();
});

// ---- create

test("captureState gives backendName, metadata and sessionKey, as pure JSON", async () => {
  const key = sessionKey();
  const state = await (await newHandle({}, { sessionKey: key })).captureState();
  assert.deepEqual(json(state), state);
  assert.equal(state.backendName, "cay");
  assert.equal(state.sessionKey, key);
  assert.deepEqual(Object.keys(state).sort(), ["backendName", "metadata", "sessionKey"]);
});

test("create with existingMetadata adopts the sandbox in one request", async () => {
  const key = sessionKey();
  const first = await newHandle({}, { sessionKey: key });
  await first.session.writeTextFile({ path: "file", content: "here" });
  const { metadata } = json(await first.captureState());
  const { host, requests } = await countingProxy();
  // Another template key, as after a change of the definition: what is there is adopted all the same.
  const input = { templateKey: "eve-sbx-tpl-cay-new", sessionKey: key, existingMetadata: metadata };
  const again = await cayBackend({ host }).create({ ...input, runtimeContext: { appRoot: "/nonexistent" } });
  assert.deepEqual(requests, [`GET /sandboxes/${metadata.sandbox}`]);
  assert.equal(await again.session.readTextFile({ path: "file" }), "here");
  assert.deepEqual(await again.captureState(), await first.captureState());
});

test("create with existingMetadata of a sandbox that is gone fails: files are not lost silently", async () => {
  const key = sessionKey();
  const first = await newHandle({}, { sessionKey: key });
  const { metadata } = await first.captureState();
  const again = () => newHandle({}, { sessionKey: key, existingMetadata: metadata });
  await cay.attach(metadata.sandbox).kill();
  await assert.rejects(again(), Gone);
  await first.delete();
  await assert.rejects(again(), NotFound);
});

test("create without metadata finds the sandbox of the same session key", async () => {
  const key = sessionKey();
  const first = await newHandle({}, { sessionKey: key });
  const again = await newHandle({}, { sessionKey: key, existingMetadata: {} });
  assert.equal(await sandboxOf(again), await sandboxOf(first));
});

test("tags become labels; characters that a label cannot have are replaced", async () => {
  const tags = { agent: "weather", channel: "http", sessionId: "wrun_1", "odd key": "a\nb" };
  const handle = await newHandle({}, { tags });
  const { info } = await cay.get(await sandboxOf(handle));
  const labels = { "eve.agent": "weather", "eve.channel": "http", "eve.session": "wrun_1", "eve.odd-key": "a?b" };
  assert.deepEqual(info.labels, labels);
});

test("useSessionFn gives the session and takes networkPolicy deny-all; other options and policies are refused", async () => {
  const handle = await newHandle();
  assert.equal(await handle.useSessionFn(), handle.session);
  assert.equal(await handle.useSessionFn({ networkPolicy: "deny-all" }), handle.session);
  await assert.rejects(handle.useSessionFn({ networkPolicy: "allow-all" }), Unsupported);
  await assert.rejects(handle.useSessionFn({ networkPolicy: "open" }), Unsupported);
  await assert.rejects(handle.useSessionFn({ networkPolicy: { allow: "x" } }), Invalid);
  await assert.rejects(handle.useSessionFn({ timeout: 1 }), /no option 'timeout'/);
});

// ---- templates

test("create throws SandboxTemplateNotProvisionedError when the template is missing, and makes no sandbox", async () => {
  const backend = cayBackend();
  const input = { templateKey: "eve-sbx-tpl-cay-none", sessionKey: sessionKey(), tags: { sessionId: "missing-template" } };
  const created = backend.create({ ...input, runtimeContext: { appRoot: await directory() } });
  await assert.rejects(created, {
    name: "SandboxTemplateNotProvisionedError",
    backendName: "cay",
    templateKey: "eve-sbx-tpl-cay-none",
  });
  assert.deepEqual(await cay.list({ labels: { "eve.session": "missing-template" } }), []);
});

test("templateKey null means a sandbox without bootstrap and seeds", async () => {
  const { session } = await newHandle();
  assert.deepEqual(await session.listDirectory({ path: "." }), []);
});

test("prewarm seeds files, also under $HOME, then runs bootstrap; every session starts with both", async () => {
  const appRoot = await directory();
  const seedFiles = [
    { path: "/workspace/a.txt", content: "a" },
    { path: "$HOME/.agents/skills/s/SKILL.md", content: Buffer.from("skill") },
  ];
  let used;
  const bootstrap = async ({ use }) => {
    const session = await use({ networkPolicy: "deny-all" });
    used = session.id;
    await session.run({ command: "cat a.txt > b.txt" });
  };
  for (const reused of [false, true]) {
    const made = await fromTemplate({ appRoot, seedFiles, bootstrap });
    assert.equal(made.reused, reused);
    assert.equal(await stdout(made.session, "cat b.txt $HOME/.agents/skills/s/SKILL.md"), "askill");
  }
  assert.equal(used, "eve-sbx-tpl-cay-1");
});

test("a template that was made by another process is used as it is, without its bootstrap", async () => {
  const appRoot = await directory();
  const bootstrap = async ({ use }) => void (await (await use()).run({ command: "echo made > here" }));
  await cayBackend().prewarm({ templateKey: "t", bootstrap, seedFiles: [], runtimeContext: { appRoot } });
  const { session, reused } = await fromTemplate({ appRoot, templateKey: "t", bootstrap: () => assert.fail("ran again") });
  assert.equal(reused, true);
  assert.equal(await session.readTextFile({ path: "here" }), "made\n");
});

test("a bootstrap that fails makes no template", async () => {
  const appRoot = await directory();
  const bootstrap = async ({ use }) => void (await (await use()).run({ command: "exit 1" }));
  await assert.rejects(fromTemplate({ appRoot, bootstrap }), /exited with code 1/);
  const { reused } = await fromTemplate({ appRoot });
  assert.equal(reused, false);
});

test("templates of other options are other templates", async () => {
  const appRoot = await directory();
  assert.equal((await fromTemplate({ appRoot })).reused, false);
  assert.equal((await fromTemplate({ appRoot, backend: cayBackend({ user: "user" }) })).reused, false);
});
