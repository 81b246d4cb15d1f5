// SPDX-License-Identifier: Apache-2.0
//
// A daemon that is killed or restarted: what is resumed, what is repeated, what fails. It is this file's own daemon,
// driven over the socket CAY_TEST_CONTROL.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import net from "node:net";
import { test } from "node:test";
import { decode, runs, shared, text, until } from "./sdk_support.mjs";

const context = shared();

function control(line) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(process.env.CAY_TEST_CONTROL);
    let answer = "";
    socket.on("error", reject);
    socket.on("data", (data) => (answer += data));
    socket.on("close", () => (answer === "ok\n" ? resolve() : reject(new Error(`control: '${answer}'`))));
    socket.write(`${line}\n`);
  });
}

const COUNT = "for i in $(seq 1 60); do echo $i; echo e$i >&2; sleep 0.02; done; exit 9";
const NUMBERS = Array.from({ length: 60 }, (_, i) => `${i + 1}\n`).join("");

test("output goes on where it was over kill -9 and restart: nothing is lost, nothing comes twice", async () => {
  const process = await context.box.start(COUNT);
  const got = { stdout: "", stderr: "" };
  let restarted;
  for await (const { stream, data } of process.output()) {
    got[stream] += decode(data);
    if (got.stdout.length > 20) restarted ??= control("restart kill9");
  }
  await restarted;
  assert.equal(got.stdout, NUMBERS);
  assert.equal(got.stderr, NUMBERS.replace(/^(?=\d)/gm, "e"));
  assert.equal((await process.wait()).exitCode, 9);
});

test("output and events go on when the daemon says that it ends", async () => {
  const process = await context.box.start(COUNT);
  const events = context.cay.events();
  const first = await events.next();
  assert.ok(first.value.seq > 0);
  let stdout = "";
  let restarted;
  for await (const { stream, data } of process.output()) {
    if (stream === "stdout") stdout += decode(data);
    if (stdout.length > 20) restarted ??= control("restart stop");
  }
  await restarted;
  assert.equal(stdout, NUMBERS);
  await context.box.pause();
  for (let last = first.value.seq; ; ) {
    const { value } = await events.next();
    assert.ok(value.seq > last);
    last = value.seq;
    if (value.type === "paused" && value.sandbox === context.box.id) break;
  }
  await events.return();
  await context.box.resume();
});

test("streams and wait go on over kill -9 and restart", async () => {
  const process = await context.box.start(COUNT);
  const all = Promise.all([text(process.stdout), text(process.stderr), process.wait()]);
  await control("restart kill9");
  const [stdout, stderr, exit] = await all;
  assert.equal(stdout, NUMBERS);
  assert.equal(stderr.length, NUMBERS.length + 60);
  assert.equal(exit.exitCode, 9);
});

test("calls made while the daemon is away wait for it", async () => {
  await context.box.refresh();
  await control("kill9");
  const calls = [
    context.cay.get(context.box.id),
    context.cay.list(),
    context.cay.create({ idle: 600 }),
    context.box.exec("echo back"),
    context.box.files.write("/tmp/x", "x"),
    context.box.start("exit 3").then((process) => process.wait()),
  ];
  await new Promise((resolve) => setTimeout(resolve, 300));
  await control("start");
  const [found, list, made, done, , exit] = await Promise.all(calls);
  assert.equal(found.info.state, "running");
  assert.ok(list.length > 0);
  assert.equal(done.stdout, "back\n");
  assert.equal(exit.exitCode, 3);
  await made.remove();
});

for (const how of ["kill9", "stop", "upgrade"]) {
  test(`exec in the middle of which the daemon ends (${how}) gives its result, and runs once`, async () => {
    const input = Buffer.alloc(5_000_000, "input ");
    const command = `echo once >> /tmp/ran-${how}; sha256sum; ${COUNT}`;
    const running = context.box.exec(command, { input });
    await until(() => context.box.files.exists(`/tmp/ran-${how}`));
    await control(how === "upgrade" ? how : `restart ${how}`);
    const done = await running;
    const sum = createHash("sha256").update(input).digest("hex");
    assert.equal(done.stdout, `${sum}  -\n${NUMBERS}`);
    assert.deepEqual([done.exitCode, done.truncated, done.reason], [9, false, undefined]);
    assert.equal(await context.box.files.readText(`/tmp/ran-${how}`), "once\n");
  });
}

test("a command of 80 MB goes on over kill -9 and restart, and waits for its reader meanwhile", async () => {
  const running = context.box.execBytes("seq 1 10000000 | tee /tmp/sent | sha256sum >&2; cat /tmp/sent");
  await until(() => context.box.files.exists("/tmp/sent"));
  await control("restart kill9");
  const { stdout, stderr } = await running;
  assert.equal(decode(stderr).split(" ")[0], createHash("sha256").update(stdout).digest("hex"));
  await context.box.files.remove("/tmp/sent");
});

test("idle connections of before a restart do no harm", async () => {
  for (const how of ["stop", "kill9"]) {
    await Promise.all(Array.from({ length: 10 }, () => context.box.exec("true")));
    await control(`restart ${how}`);
    assert.equal((await context.box.exec("echo on")).stdout, "on\n");
    await Promise.all(Array.from({ length: 10 }, () => context.box.exec("true")));
  }
});

test("events go on over a restart, without a gap and without one twice", async () => {
  const seen = [];
  const events = context.cay.events();
  let last;
  for await (const event of events) {
    seen.push(event);
    if (!last) {
      await control("restart kill9");
      last = await context.cay.create({ idle: 600 });
      await last.remove();
    } else if (event.sandbox === last.id && event.type === "removed") break;
  }
  const numbers = seen.map((event) => event.seq);
  assert.deepEqual(numbers, [...new Set(numbers)].sort((a, b) => a - b));
});

test("an abort while the daemon is away is not held up, and a process of a dead signal is killed at last", async () => {
  const controller = new AbortController();
  const reason = new Error("enough");
  const process = await context.box.start("sleep 9992", { signal: controller.signal });
  const isReason = (error) => error === reason;
  const waiting = assert.rejects(process.wait(), isReason);
  await control("kill9");
  const asking = context.cay.list({ signal: controller.signal });
  controller.abort(reason);
  await assert.rejects(asking, isReason);
  await control("start");
  await waiting;
  await until(async () => !(await runs(context.box, "sleep 9992")));
});
