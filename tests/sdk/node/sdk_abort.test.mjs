// SPDX-License-Identifier: Apache-2.0
//
// AbortSignal: rejections with the very reason, nothing sent when it was aborted before, nothing left running.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { getEventListeners } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { Cay, NotFound } from "cay-sandbox";
import { decode, encode, runs, shared, text, until } from "./sdk_support.mjs";

const context = shared();
const REASON = { the: "reason" };
const isReason = (error) => error === REASON;

function aborted() {
  const controller = new AbortController();
  controller.abort(REASON);
  return controller.signal;
}

const later = (ms, controller) => setTimeout(() => controller.abort(REASON), ms);

test("an aborted signal: every call rejects with its reason, before anything is sent", async () => {
  const { cay, box } = context;
  const before = (await box.processes()).length;
  const signal = aborted();
  const process = await box.start(["sleep", "1000"]);
  const calls = {
    create: () => cay.create({ labels: { never: "made" } }, { signal }),
    withSandbox: () => cay.withSandbox({}, () => assert.fail(), { signal }),
    get: () => cay.get(box.id, { signal }),
    list: () => cay.list({ signal }),
    events: () => cay.events({ signal }).next(),
    version: () => cay.version({ signal }),
    capabilities: () => cay.capabilities({ signal }),
    exec: () => box.exec("touch /tmp/never", { signal }),
    execBytes: () => box.execBytes("touch /tmp/never", { signal }),
    start: () => box.start("touch /tmp/never", { signal }),
    processes: () => box.processes({ signal }),
    refresh: () => box.refresh({ signal }),
    pause: () => box.pause({ signal }),
    resume: () => box.resume({ signal }),
    stop: () => box.stop({ signal }),
    kill: () => box.kill({ signal }),
    remove: () => box.remove({ signal }),
    extend: () => box.extend({ ttl: 1, signal }),
    stats: () => box.stats({ signal }),
    spec: () => box.spec({ signal }),
    logs: () => box.logs({ signal }),
    setNetwork: () => box.setNetwork("deny-all", { signal }),
    read: () => box.files.read("/etc/passwd", { signal }),
    readText: () => box.files.readText("/etc/passwd", { signal }),
    stream: () => box.files.stream("/etc/passwd", { signal }),
    write: () => box.files.write("/tmp/never", "x", { signal }),
    stat: () => box.files.stat("/etc", { signal }),
    exists: () => box.files.exists("/etc", { signal }),
    fileList: () => box.files.list("/etc", { signal }),
    find: () => box.files.find("/etc", { signal }),
    grep: () => box.files.grep("/etc", "x", { signal }),
    mkdir: () => box.files.mkdir("/tmp/never", { signal }),
    move: () => box.files.move("/etc/passwd", "/tmp/never", { signal }),
    fileRemove: () => box.files.remove("/etc/passwd", { signal }),
    watch: () => box.files.watch("/tmp", { signal }),
    getArchive: () => box.files.getArchive("/tmp", { signal }),
    putArchive: () => box.files.putArchive("/tmp", new Uint8Array(1024), { signal }),
    wait: () => process.wait({ signal }),
    poll: () => process.poll({ signal }),
    info: () => process.info({ signal }),
    output: () => process.output({ signal }).next(),
    processWrite: () => process.write("x", { signal }),
    processSignal: () => process.signal("TERM", { signal }),
    processKill: () => process.kill({ signal }),
    resize: () => process.resize(1, 1, { signal }),
  };
  for (const [name, call] of Object.entries(calls)) await assert.rejects(call(), isReason, name);
  assert.equal(await process.poll(), null);
  await process.kill();
  assert.equal((await box.processes()).length, before + 1);
  assert.equal(await box.files.exists("/tmp/never"), false);
  assert.deepEqual(await cay.list({ labels: { never: "made" } }), []);
});

test("exec: an abort rejects with the reason, and the whole tree is dead", async () => {
  const { box } = context;
  const controller = new AbortController();
  const running = box.exec("sleep 8881 & setsid sleep 8882 & sleep 8883", { signal: controller.signal });
  running.catch(() => {});
  await until(async () => (await runs(box, "sleep 8881")) && (await runs(box, "sleep 8882")));
  controller.abort(REASON);
  await assert.rejects(running, isReason);
  const mine = (info) => info.command.includes("8881") && info.command.startsWith("sleep");
  await until(async () => (await box.processes()).filter(mine).every((info) => !info.running));
  await until(async () => !(await runs(box, "sleep 888")));
});

/** A socket in front of the daemon which loses the requests that begin so, while `lost` has them. */
async function lossy(directory, lost, seen) {
  const open = [];
  const server = net.createServer((client) => {
    open.push(client);
    const daemon = net.connect(process.env.CAY_HOST.replace("unix:", ""));
    client.on("data", (data) => {
      seen.push(data.toString().split("\r\n", 1)[0]);
      if (!lost.some((start) => seen.at(-1).startsWith(start))) daemon.write(data);
    });
    daemon.pipe(client);
    for (const [one, other] of [[client, daemon], [daemon, client]])
      one.on("error", () => {}).on("close", () => other.destroy());
  });
  await new Promise((resolve) => server.listen(join(directory, "lossy"), resolve));
  return { server, open };
}

for (const how of ["exec", "start"])
  test(`${how}: what is aborted before it arrived is not started`, async () => {
    const { box } = context;
    const before = (await box.processes()).length;
    const directory = await mkdtemp(join(tmpdir(), "cay-"));
    const path = `POST /api/v1/sandboxes/${box.id}/processes`;
    const [lost, seen] = [[path + (how === "exec" ? "?" : " ")], []];
    const { server, open } = await lossy(directory, lost, seen);
    const cay = new Cay({ host: `unix:${directory}/lossy` });
    await cay.version();
    const controller = new AbortController();
    const running = cay.attach(box.id)[how]("touch /tmp/never", { signal: controller.signal });
    running.catch(() => {});
    await until(() => seen.some((line) => line.startsWith(path)));
    controller.abort(REASON);
    if (how === "start") {
      lost.length = 0;
      for (const connection of open) connection.destroy();
    }
    await assert.rejects(running, isReason);
    await until(() => seen.filter((line) => line.startsWith(path)).length > 1);
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.equal((await box.processes()).length, before);
    assert.equal(await box.files.exists("/tmp/never"), false);
    cay.close();
    server.close();
    await rm(directory, { recursive: true });
  });

test("exec: aborted at any moment, nothing goes on", async () => {
  const { box } = context;
  for (let ms = 0; ms < 12; ms++) {
    const controller = new AbortController();
    const running = box.exec("sleep 8884", { signal: controller.signal });
    if (ms === 0) controller.abort(REASON);
    else later(ms / 2, controller);
    await assert.rejects(running, isReason);
  }
  await until(async () => !(await runs(box, "sleep 8884")));
});

test("exec: without a reason it is the signal's own AbortError, a timeout's TimeoutError", async () => {
  await assert.rejects(context.box.exec("sleep 8885", { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  const controller = new AbortController();
  const running = context.box.exec("sleep 8885", { signal: controller.signal });
  controller.abort();
  await assert.rejects(running, { name: "AbortError" });
});

test("exec: a program that is killed takes its command with it", async () => {
  const { box } = context;
  const command = "setsid sleep 8889 & sleep 8889";
  const program = `import { Cay } from "cay-sandbox"; await new Cay().attach("${box.id}").exec("${command}")`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { cwd: import.meta.dirname });
  await until(() => runs(box, "sleep 8889"));
  child.kill("SIGKILL");
  await until(async () => !(await runs(box, "sleep 8889")));
});

test("start: the signal governs the process's life: tree killed, wait and streams fail with the reason", async () => {
  const { box } = context;
  const controller = new AbortController();
  const command = "echo begun; setsid sleep 8886 & sleep 8887";
  const process = await box.start(command, { signal: controller.signal, stdin: true });
  const stdout = process.stdout.getReader();
  assert.equal(decode((await stdout.read()).value), "begun\n");
  const stderr = process.stderr.getReader().read();
  const writer = process.stdin.getWriter();
  const waiting = process.wait();
  await until(() => runs(box, "sleep 8886"));
  controller.abort(REASON);
  await Promise.all([
    assert.rejects(waiting, isReason),
    assert.rejects(stdout.read(), isReason),
    assert.rejects(stderr, isReason),
    assert.rejects(writer.write(encode("x")), isReason),
  ]);
  await until(async () => !(await runs(box, "sleep 888")));
  await assert.rejects(process.wait(), isReason);
  await assert.rejects(process.output().next(), isReason);
  await until(async () => !(await process.info()).running);
});

test("start: aborted while it is being started, nothing goes on", async () => {
  const { box } = context;
  for (let ms = 0; ms < 8; ms++) {
    const controller = new AbortController();
    const starting = box.start("sleep 8888", { signal: controller.signal });
    if (ms === 0) controller.abort(REASON);
    else later(ms / 2, controller);
    const process = await starting.catch((error) => assert.ok(isReason(error)));
    if (process) await assert.rejects(process.wait(), isReason);
    await until(async () => !(await runs(box, "sleep 8888")));
  }
});

test("start: an abort after the process has ended changes nothing", async () => {
  const controller = new AbortController();
  const process = await context.box.start("echo all; exit 5", { signal: controller.signal });
  const { exitCode } = await process.wait();
  controller.abort(REASON);
  assert.equal(exitCode, 5);
  assert.equal((await process.wait()).exitCode, 5);
  assert.equal(await text(process.stdout), "all\n");
});

test("kill, then wait: resolved with the exit, not rejected", async () => {
  const controller = new AbortController();
  const process = await context.box.start(["sleep", "1000"], { signal: controller.signal });
  await process.kill();
  assert.equal((await process.wait()).exitCode, 137);
});

test("create: aborted on the way, what was made is removed before it rejects", async () => {
  const { cay } = context;
  const labels = { aborted: "create" };
  for (let ms = 0; ms < 8; ms++) {
    const controller = new AbortController();
    const creating = cay.create({ labels, idle: 600 }, { signal: controller.signal });
    if (ms === 0) controller.abort(REASON);
    else later(ms, controller);
    const box = await creating.catch((error) => assert.ok(isReason(error)));
    if (box) await box.remove();
    assert.deepEqual(await cay.list({ labels, state: "all" }), []);
  }
});

test("create: aborted with an id that was there before, it stays", async () => {
  const { cay } = context;
  const box = await cay.create({ idle: 600 });
  try {
    const controller = new AbortController();
    const creating = cay.create({ id: box.id, idle: 600 }, { signal: controller.signal });
    controller.abort(REASON);
    await assert.rejects(creating, isReason);
    assert.equal((await box.refresh()).state, "running");
  } finally {
    await box.remove();
  }
});

test("create: aborted with an id that was new, it is removed", async () => {
  const controller = new AbortController();
  const id = "sdk-abort-new";
  const creating = context.cay.create({ id, idle: 600 }, { signal: controller.signal });
  controller.abort(REASON);
  await assert.rejects(creating, isReason);
  await assert.rejects(context.cay.get(id), NotFound);
});

test("streams of files and archives fail with the reason, also while nobody reads", async () => {
  const { box } = context;
  await box.exec("head -c 30000000 /dev/zero > /tmp/large");
  const controller = new AbortController();
  const { signal } = controller;
  const stream = (await box.files.stream("/tmp/large", { signal })).getReader();
  const archive = (await box.files.getArchive("/tmp", { signal })).getReader();
  await stream.read();
  controller.abort(REASON);
  await assert.rejects(stream.closed, isReason);
  await assert.rejects(archive.read(), isReason);
  await box.files.remove("/tmp/large");
});

test("a file that is being written when it is aborted is not there, and its source is cancelled", async () => {
  const controller = new AbortController();
  let cancelled;
  const endless = new ReadableStream({
    async pull(stream) {
      await new Promise(setImmediate);
      stream.enqueue(new Uint8Array(65536));
    },
    cancel() {
      cancelled = true;
    },
  });
  later(50, controller);
  await assert.rejects(context.box.files.write("/tmp/part", endless, { signal: controller.signal }), isReason);
  assert.equal(await context.box.files.exists("/tmp/part"), false);
  await until(() => cancelled);
});

test("a stream that gives nothing is cancelled when the writing of its file is aborted", async () => {
  const controller = new AbortController();
  let cancelled;
  const silent = new ReadableStream({ cancel: () => void (cancelled = true) });
  later(50, controller);
  await assert.rejects(context.box.files.write("/tmp/silent", silent, { signal: controller.signal }), isReason);
  await until(() => cancelled);
});

test("watch and events end with the reason", async () => {
  const controller = new AbortController();
  const { signal } = controller;
  const changes = await context.box.files.watch("/tmp", { signal });
  const events = context.cay.events({ since: Number.MAX_SAFE_INTEGER, signal });
  const waiting = [changes.next(), events.next()];
  later(50, controller);
  for (const each of waiting) await assert.rejects(each, isReason);
});

test("no listener is left on a signal, and hundreds of calls on one give no warning", async () => {
  const { box } = context;
  const warnings = [];
  const warned = (warning) => warnings.push(warning);
  process.on("warning", warned);
  const { signal } = new AbortController();
  await Promise.all(Array.from({ length: 60 }, () => box.exec("true", { signal })));
  const started = await Promise.all(Array.from({ length: 20 }, () => box.start("echo x", { signal })));
  await Promise.all(started.map(async (one) => [await text(one.stdout), await text(one.stderr), await one.wait()]));
  for (let i = 0; i < 40; i++) {
    await box.refresh({ signal });
    await box.files.write("/tmp/x", "x", { signal });
    await text(await box.files.stream("/tmp/x", { signal }));
    await assert.rejects(box.files.read("/none", { signal }), NotFound);
  }
  await (await box.files.stream("/usr/bin/bash", { signal })).cancel();
  const changes = await box.files.watch("/tmp", { signal });
  await changes.return();
  await new Promise(setImmediate);
  process.off("warning", warned);
  assert.deepEqual(warnings, []);
  assert.equal(getEventListeners(signal, "abort").length, 0);
});
