// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/eve: the plug-in point of eve 0.64 and later, `defineSandboxProvider(cayProvider)`, called as eve calls it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Gone, Invalid, NotFound, Unavailable, Unsupported } from "cay-sandbox";
import { cayProvider } from "cay-sandbox/eve";
import { cay, countingProxy, directory, json } from "./eve_support.mjs";
import { prepareContext, provider, removeLater, sessionContext, startSession } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

const ID = /^[a-z0-9][a-z0-9._-]{0,62}$/;
const stdout = async (sandbox, command) => (await sandbox.run({ command })).stdout;

test("the definition has a name, a state protocol version and environment(options)", () => {
  assert.equal(cayProvider.name, "cay");
  assert.equal(cayProvider.stateProtocolVersion, 1);
  const names = ["prepare", "start", "resume", "onSessionEnd"];
  for (const name of names) assert.equal(typeof provider()[name], "function", name);
});

test("cay-sandbox/eve loads where no eve is installed: it imports nothing of it", async () => {
  const cwd = await directory();
  const installed = fileURLToPath(new URL(".", import.meta.resolve("cay-sandbox/package.json")));
  await cp(installed, join(cwd, "node_modules", "cay-sandbox"), { recursive: true });
  const script = 'import { cayBackend, cayProvider } from "cay-sandbox/eve"; console.log(cayBackend().name, cayProvider.name)';
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd });
  assert.equal(stdout, "cay cay\n");
});

test("an unknown option is refused, of the environment and of open", async () => {
  assert.throws(() => provider({ runtime: "node22" }), /no option 'runtime'.*memory/);
  assert.throws(() => provider({ cwd: "/" }), Invalid);
  for (const networkPolicy of ["open", "allow-all"]) assert.throws(() => provider({ networkPolicy }), Unsupported);
  const environment = provider();
  const start = (open) => environment.start(sessionContext(), open, { version: 1, recipe: [] });
  await assert.rejects(start({ ports: [80] }), /no option 'ports'/);
  await assert.rejects(start({ networkPolicy: { allow: 1 } }), Invalid);
  await assert.rejects(start({ networkPolicy: { allow: ["example.com"] } }), Unsupported);
});

test("registry images are unsupported: a start fails, and makes no sandbox", async () => {
  const start = provider({ image: "ubuntu:22.04" }).start(sessionContext(), undefined, { version: 1, recipe: [] });
  await assert.rejects(start, { code: "unsupported", message: /'ubuntu:22.04': registry images are not supported yet/ });
});

test("loading an agent reaches no daemon: the first call does", async () => {
  const environment = provider({ host: "unix:/nonexistent/cayd.sock" });
  const files = { "/workspace/a": "x" };
  assert.equal((await environment.prepare(prepareContext(files))).recipe.length, 1);
  await assert.rejects(environment.start(sessionContext(), undefined, { version: 1, recipe: [] }), Unavailable);
});

// ---- handles

test("a handle has the names of all versions: onSession... until 0.74, onSandbox... since 0.75", async () => {
  const { handle } = await startSession(provider());
  const names = ["onRuntimeShutdown", "onSandboxStop", "onSandboxDelete", "onSessionStop", "onSessionDelete"];
  for (const name of names) assert.equal(typeof handle[name], "function", name);
  assert.equal(typeof handle.sandbox.run, "function");
});

test("stop and shutdown end all processes and keep the files; the session goes on, on the same handle and on another", async () => {
  for (const name of ["onSandboxStop", "onSessionStop", "onRuntimeShutdown"]) {
    const environment = provider();
    const { handle, state, context, sandbox } = await startSession(environment);
    await sandbox.run({ command: "echo kept > file; nohup sleep 4741 > /dev/null 2>&1 &" });
    await until(() => runs(cay.attach(state.sandbox), "sleep 4741"));
    await handle[name]();
    assert.equal(await runs(cay.attach(state.sandbox), "sleep 4741"), false, name);
    assert.equal(await stdout(sandbox, "cat file"), "kept\n");
    const later = await environment.resume(context, {}, json(state));
    assert.equal(await stdout(later.sandbox, "cat file"), "kept\n");
  }
});

test("stop of a sandbox that is gone rejects; shutdown does not, since nothing runs", async () => {
  const { handle } = await startSession(provider());
  await handle.onSandboxDelete();
  await assert.rejects(handle.onSandboxStop(), NotFound);
  await handle.onRuntimeShutdown();
});

test("delete removes the sandbox and may be repeated; the next start makes a fresh one", async () => {
  for (const name of ["onSandboxDelete", "onSessionDelete"]) {
    const environment = provider();
    const { handle, state, context, sandbox } = await startSession(environment);
    await sandbox.writeTextFile({ path: "old", content: "" });
    await handle[name]({ abortSignal: new AbortController().signal });
    await handle[name]();
    await assert.rejects(cay.get(state.sandbox), NotFound);
    const again = await startSession(environment, { context });
    assert.equal(await again.sandbox.stat({ path: "old" }), null);
  }
});

// ---- start and resume

test("start gives a state that is pure JSON, and a sandbox whose id comes from the session", async () => {
  const environment = provider();
  const one = await startSession(environment);
  assert.deepEqual(json(one.state), one.state);
  assert.match(one.state.sandbox, ID);
  const other = await startSession(environment);
  assert.notEqual(other.state.sandbox, one.state.sandbox);
  assert.equal(one.sandbox.id, one.context.session.id);
});

test("a start that is repeated finds the sandbox of the first; one that has ended is replaced", async () => {
  const environment = provider();
  const { state, context, sandbox } = await startSession(environment);
  await sandbox.writeTextFile({ path: "mark", content: "first" });
  const again = await startSession(environment, { context });
  assert.deepEqual(again.state, state);
  assert.equal(await again.sandbox.readTextFile({ path: "mark" }), "first");
  await cay.attach(state.sandbox).kill();
  const third = await startSession(environment, { context });
  assert.equal(await third.sandbox.readTextFile({ path: "mark" }), null);
});

test("resume is one request, also in another process, and the commands after it are one each", async () => {
  const { state, context, sandbox } = await startSession(provider());
  await sandbox.writeTextFile({ path: "file", content: "here" });
  const { host, requests } = await countingProxy();
  const environment = provider({ host });
  const handle = await environment.resume(context, { version: 1, recipe: [] }, json(state));
  assert.deepEqual(requests, [`GET /sandboxes/${state.sandbox}`]);
  assert.equal(await stdout(handle.sandbox, "cat file"), "here");
  assert.deepEqual(requests.slice(1), [`POST /sandboxes/${state.sandbox}/processes`]);
});

test("resume fails if the sandbox is gone or has ended, and makes no other", async () => {
  const environment = provider();
  const { state, context } = await startSession(environment);
  await cay.attach(state.sandbox).kill();
  await assert.rejects(environment.resume(context, {}, state), Gone);
  await cay.attach(state.sandbox).remove();
  await assert.rejects(environment.resume(context, {}, state), NotFound);
  await assert.rejects(cay.get(state.sandbox), NotFound);
});

test("onSessionEnd removes the sandbox for every reason, and may be repeated", async () => {
  for (const reason of ["completed", "expired", "failed"]) {
    const environment = provider();
    const { state, context } = await startSession(environment);
    await environment.onSessionEnd(context, {}, json(state), { reason });
    await assert.rejects(cay.get(state.sandbox), NotFound);
    await environment.onSessionEnd(context, {}, json(state), { reason });
  }
});

test("the options are those of the sandbox", async () => {
  const options = { memory: "64M", pids: 50, user: "user", labels: { team: "a" }, env: { A: "b" } };
  const { state, sandbox } = await startSession(provider({ ...options, networkPolicy: "deny-all" }));
  const spec = await cay.attach(state.sandbox).spec();
  assert.equal(spec.memory, 64 << 20);
  assert.equal(spec.pids, 50);
  assert.equal(spec.labels.team, "a");
  assert.equal(await stdout(sandbox, "id -un; pwd; echo $A $HOME"), "user\n/workspace\nb /home/user\n");
});

test("open takes networkPolicy deny-all", async () => {
  const { sandbox } = await startSession(provider(), { open: { networkPolicy: "deny-all" } });
  assert.equal(await sandbox.getNetworkPolicy(), "deny-all");
});

// ---- what nobody removes

const HOUR = 3600_000;
const lifetime = async ({ state }) => {
  const { idleMs, ttlMs } = await cay.attach(state.sandbox).spec();
  return [idleMs / HOUR, ttlMs / HOUR];
};

test("a sandbox has an idle time and a greatest age unless one of them is given", async () => {
  delete process.env.EVE_DEVELOPMENT_SANDBOX_RUN_ID;
  assert.deepEqual(await lifetime(await startSession(provider())), [24, 30 * 24]);
  assert.deepEqual(await lifetime(await startSession(provider({ idle: "2h" }))), [2, 0]);
  assert.deepEqual(await lifetime(await startSession(provider({ ttl: "3h" }))), [0, 3]);
});

test("labels name the session and the development run, whose sandboxes have shorter lives", async () => {
  process.env.EVE_DEVELOPMENT_SANDBOX_RUN_ID = "run-1";
  try {
    const started = await startSession(provider());
    assert.deepEqual(await lifetime(started), [1, 24]);
    const labels = { "eve.session": started.context.session.id, "eve.devRunId": "run-1" };
    assert.deepEqual((await cay.list({ labels })).map(({ id }) => id), [started.state.sandbox]);
  } finally {
    delete process.env.EVE_DEVELOPMENT_SANDBOX_RUN_ID;
  }
});

// ---- prepare

const SEEDS = {
  "/workspace/seed.txt": "seed",
  "/workspace/deep/bin": Buffer.of(0, 255),
  "$HOME/.agents/skills/s/SKILL.md": "skill",
};

test("resources are in every new sandbox, at /workspace and under $HOME/.agents/skills", async () => {
  const environment = provider();
  const artifact = json(await environment.prepare(prepareContext(SEEDS)));
  const { sandbox } = await startSession(environment, { artifact });
  assert.equal(await stdout(sandbox, "cat seed.txt $HOME/.agents/skills/s/SKILL.md"), "seedskill");
  assert.deepEqual(Buffer.from(await sandbox.readBinaryFile({ path: "deep/bin" })), Buffer.of(0, 255));
});

test("without resources nothing is prepared", async () => {
  const environment = provider();
  const artifact = await environment.prepare({ ...prepareContext(), resources: { source: { kind: "none" } } });
  assert.deepEqual(artifact, { version: 1, recipe: [] });
});

test("the artifact is pure JSON and enough: another process starts sandboxes from it without the author's function", async () => {
  let calls = 0;
  const log = [];
  const prepare = async (sandbox) => {
    calls++;
    assert.equal(await sandbox.readTextFile({ path: "seed.txt" }), "seed"); // resources are there before
    await sandbox.run({ command: "echo $WHO > ran", env: { WHO: "me" }, workingDirectory: "deep" });
    await sandbox.writeTextFile({ path: "text", content: "ä" });
    await sandbox.writeBinaryFile({ path: "/opt/bytes", content: Buffer.of(1, 2) });
    await sandbox.writeFile({ path: "stream", content: new Response("streamed").body });
    await sandbox.removePath({ path: "seed.txt" });
    await sandbox.deleteFile({ path: "stream" });
  };
  const artifact = await provider({ prepare }).prepare(prepareContext(SEEDS, log));
  assert.deepEqual(json(artifact), artifact);
  assert.ok(log.some((line) => line.startsWith("preparation run: echo $WHO")), log.join("\n"));

  const environment = provider({ prepare: () => assert.fail("called again") });
  for (let i = 0; i < 2; i++) {
    const { sandbox } = await startSession(environment, { artifact: json(artifact) });
    assert.equal(await stdout(sandbox, "cat deep/ran text; od -An -tx1 /opt/bytes; ls"), "me\nä 01 02\ndeep\ntext\n");
  }
  assert.equal(calls, 1);
});

test("prepare runs in a sandbox of its own, which is removed, also when the author's function throws", async () => {
  const boxes = async () => (await cay.list({ labels: { "eve.role": "preparation" } })).map(({ id }) => id);
  const seen = [];
  await provider({ prepare: async () => void seen.push(...(await boxes())) }).prepare(prepareContext());
  assert.ok(seen.length > 0);
  const broken = new Error("broken");
  const failing = provider({ prepare: async () => Promise.reject(broken) });
  await assert.rejects(failing.prepare(prepareContext()), (error) => error === broken);
  const left = await boxes();
  for (const id of seen) assert.ok(!left.includes(id));
});

test("a command that exits with 1 fails the preparation; other codes are for its author", async () => {
  const exits = (code) => provider({ prepare: async (sandbox) => void (await sandbox.run({ command: `echo why >&2; exit ${code}` })) });
  await assert.rejects(exits(1).prepare(prepareContext()), /exited with code 1:\necho why >&2; exit 1\n[^]*why/);
  const artifact = await exits(2).prepare(prepareContext());
  await startSession(exits(2), { artifact });
});

test("a start whose preparation ends otherwise than it did when recorded fails and leaves no sandbox", async () => {
  const environment = provider();
  const step = { do: "run", command: "exit 3", cwd: "/workspace", env: {}, exitCode: 0 };
  const context = sessionContext();
  const start = environment.start(context, undefined, { version: 1, recipe: [step] });
  await assert.rejects(start, /exited with code 3/);
  assert.deepEqual(await cay.list({ labels: { "eve.session": context.session.id }, state: "all" }), []);
});

test("a Dockerfile in agent/sandbox is refused: it would have no effect", async () => {
  await assert.rejects(provider().prepare(prepareContext({}, [], ["Dockerfile", "sandbox.ts"])), Unsupported);
});

test("an artifact of another version is refused", async () => {
  await assert.rejects(provider().start(sessionContext(), undefined, { version: 2, recipe: [] }), /eve build/);
});

test("what is spawned in prepare is repeated in order; what is still running at its end does not go on in the session", async () => {
  const prepare = async (sandbox) => {
    const child = await sandbox.spawn({ command: "sleep 0.05; echo done > spawned" });
    assert.equal((await child.wait()).exitCode, 0);
    await sandbox.run({ command: "cat spawned" });
    const killed = await sandbox.spawn({ command: "sleep 4751" });
    await killed.kill();
    await sandbox.spawn({ command: "sleep 4752" });
    await assert.rejects(sandbox.spawn({ command: "cat", stdin: true }), Unsupported);
  };
  const artifact = json(await provider({ prepare }).prepare(prepareContext()));
  const { sandbox, state } = await startSession(provider(), { artifact });
  assert.equal(await stdout(sandbox, "cat spawned"), "done\n");
  await until(async () => !(await runs(cay.attach(state.sandbox), "sleep 475[12]")));
});

test("a preparation that was cut off is done again in a fresh sandbox; one that was finished is not done twice", async () => {
  const environment = provider({ prepare: async (sandbox) => void (await sandbox.run({ command: "echo once >> count" })) });
  const artifact = json(await environment.prepare(prepareContext()));
  const { context, state, sandbox } = await startSession(environment, { artifact });
  await startSession(environment, { artifact, context });
  assert.equal(await sandbox.readTextFile({ path: "count" }), "once\n");
  const cutOff = "echo begun > /var/tmp/.cay-eve; touch -d '1 minute ago' /var/tmp/.cay-eve";
  await cay.attach(state.sandbox).exec(cutOff);
  const again = await startSession(environment, { artifact, context });
  assert.equal(await again.sandbox.readTextFile({ path: "count" }), "once\n");
  removeLater(again.state.sandbox);
});

test("a session that is started several times at once is prepared once; so is one whose preparer has died", async () => {
  const prepare = async (sandbox) => void (await sandbox.run({ command: "echo once >> count; sleep 0.3" }));
  const artifact = json(await provider({ prepare }).prepare(prepareContext()));
  const context = sessionContext();
  const prepared = async () => {
    const start = () => startSession(provider(), { artifact, context });
    const started = await Promise.all(Array.from({ length: 4 }, start));
    for (const { sandbox } of started) assert.equal(await sandbox.readTextFile({ path: "count" }), "once\n");
    return started[0].state.sandbox;
  };
  const id = await prepared();
  await cay.attach(id).exec("echo dead > /var/tmp/.cay-eve; touch -d '1 minute ago' /var/tmp/.cay-eve");
  assert.equal(await prepared(), id);
});
