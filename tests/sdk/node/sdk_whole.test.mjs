// SPDX-License-Identifier: Apache-2.0
//
// Everything or an error: large input and output through every reader, readers that are slow or stuck, and commands of
// programs that are killed.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Cay, OutputLost, Stalled, TooLarge } from "cay-sandbox";
import { shared, until } from "./sdk_support.mjs";

const context = shared();
const LINES = 10_000_000;
const SEQ = `seq ${LINES}`;
let small, want;

before(async () => {
  small = await context.cay.create({ output: 65536, idle: 600 });
  want = createHash("sha256");
  for (let first = 1; first < LINES; first += 100_000)
    want.update(Array.from({ length: 100_000 }, (_, i) => `${first + i}\n`).join(""));
  want = want.digest("hex");
});

after(() => small.remove());

const digest = (data) => createHash("sha256").update(data).digest("hex");

async function digestOf(pieces) {
  const hash = createHash("sha256");
  for await (const piece of pieces) hash.update(piece.data ?? piece);
  return hash.digest("hex");
}

test("80 MB through exec and execBytes", async () => {
  const done = await small.exec(SEQ);
  assert.equal(digest(done.stdout), want);
  assert.deepEqual([done.exitCode, done.stderr, done.truncated, done.reason], [0, "", false, undefined]);
  assert.equal(digest((await small.execBytes(`${SEQ} >&2`)).stderr), want);
});

test("80 MB through output, stdout, stderr, Response and both streams at once", async () => {
  assert.equal(await digestOf((await small.start(SEQ)).output()), want);
  assert.equal(await digestOf((await small.start(SEQ)).stdout), want);
  assert.equal(await digestOf((await small.start(`${SEQ} >&2`)).stderr), want);
  assert.equal(digest(await new Response((await small.start(SEQ)).stdout).text()), want);
  const both = await small.start(`${SEQ} & ${SEQ} >&2; wait`);
  assert.deepEqual(await Promise.all([digestOf(both.stdout), digestOf(both.stderr)]), [want, want]);
});

test("a reader that is slow holds the process back", async () => {
  const process = await small.start("for i in $(seq 400); do head -c 100000 /dev/zero; echo $i > /tmp/sent; done");
  const reader = process.stdout.getReader();
  let got = (await reader.read()).value.length;
  await sleep(1000);
  assert.ok(Number(await small.files.readText("/tmp/sent")) < 200);
  for (let next; !(next = await reader.read()).done; ) got += next.value.length;
  assert.equal(got, 40_000_000);
});

test("a reader that is stuck is cut off and told so; the process goes on", async () => {
  const process = await small.start("head -c 30000000 /dev/zero; echo done > /tmp/done");
  const output = process.output({ stall: 1 });
  let { value: piece } = await output.next();
  await until(() => small.files.exists("/tmp/done"));
  const rest = async () => {
    for await (piece of output);
  };
  await assert.rejects(rest(), Stalled);
  const lost = await process.output({ since: piece.offset + piece.data.length }).next().catch((error) => error);
  // What was on its way to the reader is kept; what came after it is not.
  const error = lost instanceof OutputLost ? lost : await digestOf(process.output()).catch((error) => error);
  assert.ok(error instanceof OutputLost);
  let end = 0;
  for await (const { data, offset } of process.output({ since: error.detail.to })) end = offset + data.length;
  assert.equal(end, 30_000_000);
});

test("30 MB of input while as much output comes, and input that nobody reads", async () => {
  const input = Buffer.alloc(30_000_000, "some input ");
  const { stdout } = await context.box.execBytes("cat", { input });
  assert.equal(digest(stdout), digest(input));
  assert.equal((await context.box.exec("head -c 4", { input })).stdout, "some");
});

test("more output than is wanted is TooLarge, and the command is gone", async () => {
  await assert.rejects(context.box.exec("yes", { maxOutput: 1_000_000 }), TooLarge);
  await until(async () => (await context.box.processes()).every(({ running }) => !running));
});

test("the reason of an end", async () => {
  assert.equal((await context.box.exec("kill -9 $$")).reason, undefined);
  assert.equal((await context.box.exec("sleep 100", { timeout: 0.1 })).reason, "timed out");
  const process = await context.box.start("sleep 1000");
  await process.kill();
  assert.ok((await process.wait()).reason);
});

const PROGRAMS = {
  exec: "await box.exec('setsid sleep 1000 & sleep 1000')",
  "ai-sdk": `const { createSandboxSession } = await import("cay-sandbox/ai-sdk");
    await createSandboxSession(box, { workingDirectory: "/tmp" }).run({ command: "setsid sleep 1000 & sleep 1000" })`,
  strands: `const { CaySandbox } = await import("cay-sandbox/strands");
    await new CaySandbox(box, { workingDir: "/tmp" }).execute("setsid sleep 1000 & sleep 1000")`,
};

test("the command of a program that is killed is gone within seconds", async () => {
  const cay = new Cay();
  const boxes = await Promise.all(Object.keys(PROGRAMS).map(() => cay.create({ idle: 600 })));
  const program = (code, id) =>
    `import { Cay } from "cay-sandbox"; const box = new Cay().attach("${id}"); ${code}`;
  const children = Object.values(PROGRAMS).map((code, i) =>
    spawn(process.execPath, ["--input-type=module", "--eval", program(code, boxes[i].id)], { stdio: "inherit" }),
  );
  for (const box of boxes) await until(async () => (await box.stats()).pids >= 3);
  for (const child of children) {
    child.kill("SIGKILL");
    await once(child, "exit");
  }
  for (const box of boxes) {
    for (let i = 0; (await box.stats()).pids > 1; i++) {
      assert.ok(i < 250);
      await sleep(100);
    }
    assert.equal((await box.processes()).at(-1).exit.reason, "its client went away");
    await box.remove();
  }
});
