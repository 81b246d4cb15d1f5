// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk: edges of the session that its users run into: processes that end early, errors that are not "missing",
// sessions in the words of the AI SDK's own sandboxes, and what a harness makes of a credential.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { HarnessCapabilityUnsupportedError } from "@ai-sdk/harness";
import { prepareSandboxForHarness } from "@ai-sdk/harness/agent";
import {
  createCredentialRequestTransformation,
  generateSandboxCredentialPlaceholder,
  maskSandboxCredentials,
  resolveSandboxDefaultWorkingDirectory,
  resolveSandboxHomeDir,
} from "@ai-sdk/harness/utils";
import { Cay, Conflict, Invalid, NotFound, TooLarge } from "cay-sandbox";
import { cayHarnessSandbox, createCaySandbox, createSandboxSession } from "cay-sandbox/ai-sdk";
import { cayBackend } from "cay-sandbox/eve";

const cay = new Cay();
const text = (stream) => new Response(stream).text();
const bytes = (string) => new TextEncoder().encode(string);

let sandbox;
before(async () => void (sandbox = await createCaySandbox({ client: cay, idle: 300, workingDirectory: "/work" })));
after(() => sandbox?.remove());

test("description tells the current working directory in the words of the AI SDK's own sandboxes", () => {
  assert.ok(sandbox.description.includes("Current working directory: /work"));
  assert.ok(sandbox.description.includes(sandbox.id));
});

// ---- processes

test("spawn: streams that are being read fail with the reason of an abort", async () => {
  const controller = new AbortController();
  const reason = new Error("enough");
  const child = await sandbox.spawn({ command: "echo one; echo two >&2; sleep 4111", abortSignal: controller.signal });
  const readers = [child.stdout.getReader(), child.stderr.getReader()];
  for (const reader of readers) await reader.read();
  const failed = readers.map((reader) => assert.rejects(reader.read(), (error) => error === reason));
  controller.abort(reason);
  await Promise.all(failed);
  await assert.rejects(child.wait(), (error) => error === reason);
});

test("spawn: an abort while the process is being started rejects with the reason and leaves nothing running", async () => {
  const controller = new AbortController();
  const reason = new Error("at once");
  const spawning = sandbox.spawn({ command: "sleep 4112", abortSignal: controller.signal });
  controller.abort(reason);
  await assert.rejects(Promise.resolve(spawning).then((child) => child.wait()), (error) => error === reason);
  for (;;) if ((await sandbox.run({ command: "pgrep -f '[s]leep 4112'" })).exitCode === 1) return;
});

test("spawn: wait() may be called by many, before and after the end", async () => {
  const child = await sandbox.spawn({ command: "exit 3" });
  assert.deepEqual(await Promise.all([child.wait(), child.wait()]), [{ exitCode: 3 }, { exitCode: 3 }]);
  assert.deepEqual(await child.wait(), { exitCode: 3 });
});

test("spawn with stdin: what is written to a process that has ended is an error, closing it is none", async () => {
  const child = await sandbox.spawn({ command: "true", stdin: true });
  await child.wait();
  await assert.rejects(child.stdin.getWriter().write(bytes("late")), Conflict);
  const other = await sandbox.spawn({ command: "true", stdin: true });
  await other.wait();
  await other.stdin.close();
});

test("spawn with stdin: kill() ends a process whose input was never closed", async () => {
  const child = await sandbox.spawn({ command: "cat", stdin: true });
  await child.kill();
  assert.notEqual((await child.wait()).exitCode, 0);
  assert.equal(await text(child.stdout), "");
});

test("run: a command of more than Linux takes in one argument rejects with too_large, and starts nothing", async () => {
  const command = `touch began; : ${"x".repeat(200_000)}`;
  await assert.rejects(sandbox.run({ command }), TooLarge);
  await assert.rejects(sandbox.spawn({ command }), TooLarge);
  assert.equal(await sandbox.stat({ path: "began" }), null);
});

// ---- files

test("stat, listDirectory and deleteFile: a sandbox that does not exist is an error, not a missing path", async () => {
  const nowhere = createSandboxSession(cay.attach("does-not-exist"));
  for (const name of ["stat", "listDirectory", "deleteFile"])
    await assert.rejects(nowhere[name]({ path: "x" }), NotFound, name);
});

test("what the sandbox's user may not see rejects in every method: it is not missing", async () => {
  const theirs = await createCaySandbox({ client: cay, user: "user", idle: 60 });
  try {
    await cay.attach(theirs.id).exec("mkdir -m 700 closed && touch closed/file", { user: "root", cwd: "/workspace" });
    for (const name of ["readFile", "readBinaryFile", "readTextFile", "stat", "listDirectory", "deleteFile"])
      await assert.rejects(theirs[name]({ path: "closed/file" }), { code: "denied" }, name);
    await assert.rejects(theirs.writeTextFile({ path: "closed/new", content: "" }), { code: "denied" });
  } finally {
    await theirs.remove();
  }
});

test("listDirectory: a link that leads nowhere is missing, one that leads to a file is no directory", async () => {
  await sandbox.run({ command: "touch plain; ln -s nowhere dangling; ln -s plain to-plain" });
  assert.equal(await sandbox.listDirectory({ path: "dangling" }), null);
  await assert.rejects(sandbox.listDirectory({ path: "to-plain" }), Invalid);
});

test("overwriting keeps the mode of the file, and a link: what it leads to is written", async () => {
  await sandbox.run({ command: "touch tool; chmod 755 tool; echo old > target; ln -s target link" });
  await sandbox.writeTextFile({ path: "tool", content: "echo tool" });
  await sandbox.writeTextFile({ path: "link", content: "new" });
  const { stdout } = await sandbox.run({ command: "./tool; readlink link; cat target" });
  assert.equal(stdout, "tool\ntarget\nnew");
});

test("writeBinaryFile writes the part of a buffer that a view shows", async () => {
  await sandbox.writeBinaryFile({ path: "view", content: Uint8Array.of(9, 1, 2, 9).subarray(1, 3) });
  assert.deepEqual(await sandbox.readBinaryFile({ path: "view" }), Uint8Array.of(1, 2));
});

test("readFile: a stream that is cancelled early harms nothing", async () => {
  await sandbox.run({ command: "head -c 20000000 /dev/zero > large" });
  await (await sandbox.readFile({ path: "large" })).cancel();
  assert.equal((await sandbox.run({ command: "echo on" })).stdout, "on\n");
});

// ---- harnesses

test("a credential: the process holds a placeholder, the rule for the real one is refused, and nothing of it is inside", async () => {
  const session = await cayHarnessSandbox({ client: cay, idle: 60 }).createSession();
  try {
    const secret = "sk-very-secret";
    const placeholder = generateSandboxCredentialPlaceholder();
    const rule = createCredentialRequestTransformation({
      matchUrl: "https://api.example.com/v1",
      matchHeaders: { authorization: `Bearer ${placeholder}` },
      transformHeaders: { authorization: `Bearer ${secret}` },
    });
    await assert.rejects(session.addRequestTransformations([rule]), HarnessCapabilityUnsupportedError);
    const env = maskSandboxCredentials({ environment: { KEY: secret }, credentialEnvironmentVariables: ["KEY"] });
    const { stdout } = await session.run({ command: "env; grep -rs sk-very /workspace /tmp /root", env });
    assert.match(stdout, /^KEY=KEY$/m);
    assert.doesNotMatch(stdout, /sk-very/);
  } finally {
    await session.destroy();
  }
});

test("a session of cay-sandbox/eve is one for a harness, too: its directories are found, and a recipe is prepared in it", async () => {
  const runtimeContext = { appRoot: "/none" };
  const handle = await cayBackend().create({ templateKey: null, sessionKey: `harness-${process.pid}`, runtimeContext });
  try {
    const { session } = handle;
    assert.equal(await resolveSandboxDefaultWorkingDirectory({ sandboxSession: session }), "/workspace");
    assert.equal(await resolveSandboxHomeDir({ sandbox: session }), "/root");
    const files = [{ path: "/opt/echo/a.txt", content: "a" }];
    const recipe = { harnessId: "echo", bootstrapDir: "/opt/echo", files, commands: [{ command: "cp a.txt b.txt" }] };
    const harness = { specificationVersion: "harness-v1", harnessId: "echo", getBootstrap: async () => recipe };
    await prepareSandboxForHarness({ session, harnesses: [harness] });
    assert.equal(await session.readTextFile({ path: "/opt/echo/b.txt" }), "a");
  } finally {
    await handle.delete();
  }
});

test("not in this version: a network, secrets and registry images are refused with unsupported when the sandbox is made", async () => {
  const networks = [{ network: "allow-all" }, { network: "open" }];
  for (const options of [...networks, { secrets: { KEY: "x" } }, { image: "ubuntu:22.04" }]) {
    await assert.rejects(createCaySandbox({ client: cay, ...options }), { code: "unsupported" });
    await assert.rejects(cayHarnessSandbox({ client: cay, ...options }).createSession(), { code: "unsupported" });
  }
});
