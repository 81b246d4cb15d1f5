// SPDX-License-Identifier: Apache-2.0
// node24
//
// An operator whose ceilings are below our defaults: those give way, what a program asked for does not.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Cay, Limit } from "cay-sandbox";
import { cayHarnessSandbox, createCaySandbox } from "cay-sandbox/ai-sdk";
import { cayProvider } from "cay-sandbox/eve";
import { CaySandbox } from "cay-sandbox/strands";

const POLICY = "[tenant acme]\nttl_max = 2h\nidle_max = 20m\noutput_max = 16M\n";
const CEILINGS = [7_200_000, 1_200_000];

let daemon, where, cay;

before(async () => {
  const program = join(import.meta.dirname, "policy_daemon.py");
  daemon = spawn("python3", ["-B", program, POLICY], { stdio: ["pipe", "pipe", "inherit"] });
  const [line] = await once(daemon.stdout, "data");
  where = JSON.parse(line.toString());
  cay = new Cay(where);
});

after(async () => {
  daemon.stdin.end();
  await once(daemon, "exit");
});

async function life(id) {
  const { ttlMs, idleMs } = await cay.attach(id).spec();
  return [ttlMs, idleMs];
}

test("withSandbox: our bounds give way to the operator's, one that was given is refused", async () => {
  assert.deepEqual(await cay.withSandbox({}, (box) => life(box.id)), CEILINGS);
  for (const spec of [{ ttl: "3h" }, { idle: "3h" }, { output: "64M" }])
    await assert.rejects(cay.withSandbox(spec, () => assert.fail()), (error) => {
      assert.ok(error instanceof Limit);
      return error.detail.field === Object.keys(spec)[0];
    });
});

test("createCaySandbox and cayHarnessSandbox: the operator's lifetime instead of our own", async () => {
  const own = await createCaySandbox({ client: cay });
  assert.deepEqual(await life(own.id), CEILINGS);
  await own.remove();
  const session = await cayHarnessSandbox({ client: cay }).createSession({ sessionId: "s" });
  assert.deepEqual(await life(session.id), CEILINGS);
  await session.destroy();
  await assert.rejects(createCaySandbox({ client: cay, ttl: "3h" }), Limit);
});

test("cayProvider: the operator's lifetime instead of our own; a start that is repeated finds its sandbox", async () => {
  const start = async () =>
    cayProvider.environment(where).start({ session: { id: "s" } }, undefined, { version: 1, recipe: [] });
  const { handle, state } = await start();
  assert.deepEqual(await life(state.sandbox), CEILINGS);
  assert.deepEqual((await start()).state, state);
  await handle.onSandboxDelete();
});

test("CaySandbox: of our defaults only those give way that are refused", async () => {
  const sandbox = await CaySandbox.create(where);
  const { id } = await sandbox.box();
  assert.deepEqual(await life(id), CEILINGS);
  await sandbox.close();
});
