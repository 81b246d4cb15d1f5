// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk: createCaySandbox, a session with a sandbox of its own.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Cay, Conflict, Invalid, NotFound } from "cay-sandbox";
import { createCaySandbox } from "cay-sandbox/ai-sdk";

const cay = new Cay();

test("createCaySandbox makes a sandbox and a session over it; remove() removes it, twice as well", async () => {
  const sandbox = await createCaySandbox({ labels: { test: "own" } });
  assert.equal((await sandbox.run({ command: "pwd" })).stdout, "/workspace\n");
  const found = await cay.get(sandbox.id);
  assert.equal(found.info.labels.test, "own");
  const { idleMs, ttlMs } = await found.spec();
  assert.deepEqual([idleMs, ttlMs], [3_600_000, 86_400_000]);
  await sandbox.remove();
  await assert.rejects(cay.get(sandbox.id), NotFound);
  await sandbox.remove();
});

test("createCaySandbox: Symbol.asyncDispose removes it", async () => {
  const sandbox = await createCaySandbox();
  await sandbox[Symbol.asyncDispose]();
  await assert.rejects(cay.get(sandbox.id), NotFound);
});

test("createCaySandbox: the working directory is made; spec, description and client are taken", async () => {
  const options = { client: cay, workingDirectory: "/srv/project", description: "d", env: { A: "1" }, ttl: 60 };
  const sandbox = await createCaySandbox(options);
  try {
    assert.equal(sandbox.description, "d");
    assert.equal((await sandbox.run({ command: "pwd; echo $A" })).stdout, "/srv/project\n1\n");
    assert.equal((await cay.attach(sandbox.id).spec()).idleMs, 0);
  } finally {
    await sandbox.remove();
  }
  assert.ok(await cay.version(), "a client that was given stays open");
});

test("createCaySandbox over TCP with a token", async () => {
  const sandbox = await createCaySandbox({ host: process.env.CAY_TEST_TCP, token: process.env.CAY_TEST_TOKEN });
  try {
    assert.equal((await sandbox.run({ command: "echo tcp" })).stdout, "tcp\n");
  } finally {
    await sandbox.remove();
  }
});

test("createCaySandbox never takes a sandbox that is there, and leaves it alone", async () => {
  const first = await createCaySandbox({ id: "ai-sdk-taken", idle: 60 });
  try {
    await first.writeTextFile({ path: "kept", content: "kept" });
    await assert.rejects(createCaySandbox({ id: "ai-sdk-taken", idle: 60 }), Conflict);
    assert.equal(await first.readTextFile({ path: "kept" }), "kept");
  } finally {
    await first.remove();
  }
});

test("createCaySandbox: options that mean nothing are refused, and a failure leaves no sandbox", async () => {
  await assert.rejects(createCaySandbox({ cwd: "/tmp" }), Invalid);
  await assert.rejects(createCaySandbox({ colour: "red" }), Invalid);
  await assert.rejects(createCaySandbox({ workingDirectory: "relative" }), Invalid);
  const id = "ai-sdk-no-directory";
  await assert.rejects(createCaySandbox({ id, workingDirectory: "/proc/none" }));
  await assert.rejects(cay.get(id), NotFound);
  const reason = new Error("changed my mind");
  await assert.rejects(createCaySandbox({ id, abortSignal: AbortSignal.abort(reason) }), (error) => error === reason);
  await assert.rejects(cay.get(id), NotFound);
});
