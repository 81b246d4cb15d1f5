// SPDX-License-Identifier: Apache-2.0
//
// Sandboxes: making, finding, running, ending; errors and their classes.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import * as sdk from "cay-sandbox";
import { shared, text, until } from "./sdk_support.mjs";

const { Cay, CayError, Conflict, Gone, Invalid, NotFound, Unavailable, Unsupported } = sdk;
const context = shared({ labels: { file: "sdk" } });
const unused = () => `t${randomBytes(6).toString("hex")}`;

test("create: an id of 12 hex digits, info at hand, the spec as it was given", async () => {
  const box = await context.cay.create({
    memory: "64M",
    pids: 64,
    ttl: "15m",
    idle: 600,
    cwd: "/tmp",
    env: { some_name: "x" },
    labels: { some_key: "y" },
  });
  try {
    assert.match(box.id, /^[0-9a-f]{12}$/);
    assert.equal(box.info.state, "running");
    assert.deepEqual(box.info.labels, { some_key: "y" });
    assert.ok(box.info.ttlLeftMs > 0 && box.info.ttlLeftMs <= 900_000);
    const spec = await box.spec();
    assert.equal(spec.memory, 64 * 1024 * 1024);
    assert.equal(spec.idleMs, 600_000);
    assert.deepEqual(spec.env, { some_name: "x" });
    assert.equal((await box.exec("pwd; echo $some_name")).stdout, "/tmp\nx\n");
  } finally {
    await box.remove();
  }
});

test("create: the same id and spec give the same sandbox, another spec is a Conflict and leaves it alone", async () => {
  const id = unused();
  const box = await context.cay.create({ id, idle: 600, memory: "64M" });
  try {
    await box.files.write("/tmp/mark", "kept");
    const again = await context.cay.create({ id, idle: 600, memory: "64M" });
    assert.equal(again.info.createdMs, box.info.createdMs);
    await assert.rejects(context.cay.create({ id, idle: 600, memory: "128M" }), (error) => {
      assert.ok(error instanceof Conflict);
      assert.match(error.message, /memory/);
      return true;
    });
    assert.equal(await box.files.readText("/tmp/mark"), "kept");
  } finally {
    await box.remove();
  }
});

test("create: mounts are asked for as the operator's rules want them", async () => {
  const mounts = [{ source: "/nowhere/at/all", target: "/data", readOnly: true }];
  await assert.rejects(context.cay.create({ mounts }), CayError);
});

test("create: secrets are Unsupported, an empty id and an unknown field are Invalid", async () => {
  await assert.rejects(context.cay.create({ secrets: { KEY: "v" } }), Unsupported);
  for (const network of ["open", "allow-all", { allow: ["example.com"] }])
    await assert.rejects(context.cay.create({ network }), { code: "unsupported", detail: { field: "network" } });
  await assert.rejects(context.cay.create({ network: { allow: 1 } }), Invalid);
  await assert.rejects(context.cay.create({ id: "" }), Invalid);
  await assert.rejects(context.cay.create({ memroy: "1G" }), (error) => {
    assert.ok(error instanceof Invalid && error instanceof CayError && error instanceof Error);
    assert.equal(error.name, "Invalid");
    assert.equal(error.code, "invalid");
    assert.equal(error.status, 400);
    assert.equal(error.detail.field, "memroy");
    assert.match(error.message, /did you mean 'memory'/);
    return true;
  });
});

test("create: registry images are Unsupported, whatever their name", async () => {
  for (const image of ["ubuntu:22.04", "python", "ghcr.io/a/b:c"]) {
    const message = `image '${image}': registry images are not supported yet; use --image host or dir:PATH`;
    await assert.rejects(context.cay.create({ image }), { code: "unsupported", message, detail: { field: "image" } });
  }
});

test("get: one that is there with its info; NotFound if there is none; attach asks nobody", async () => {
  const box = await context.cay.get(context.box.id);
  assert.equal(box.info.id, context.box.id);
  await assert.rejects(context.cay.get("no-such-sandbox"), NotFound);
  await assert.rejects(context.cay.get(""), Invalid);
  const attached = context.cay.attach(context.box.id);
  assert.equal(attached.info, undefined);
  assert.equal((await attached.refresh()).id, context.box.id);
  assert.equal(attached.info.state, "running");
});

test("list: by labels and by state, all pages", async () => {
  const ids = async (options) => (await context.cay.list(options)).map((info) => info.id);
  assert.deepEqual(await ids({ labels: { file: "sdk" } }), [context.box.id]);
  assert.deepEqual(await ids({ labels: { file: "sdk", other: "x" } }), []);
  assert.ok((await ids()).includes(context.box.id));
  const ended = await context.cay.create({ labels: { ended: "yes" }, idle: 600 });
  try {
    await ended.kill();
    assert.deepEqual(await ids({ labels: { ended: "yes" } }), []);
    assert.deepEqual(await ids({ labels: { ended: "yes" }, state: "all" }), [ended.id]);
  } finally {
    await ended.remove();
  }
});

test("exec: a string is for the shell, an array is a program and its arguments", async () => {
  const { box } = context;
  const shell = await box.exec("echo out; echo err >&2; exit 3");
  assert.equal(shell.stdout, "out\n");
  assert.equal(shell.stderr, "err\n");
  assert.equal(shell.exitCode, 3);
  assert.equal(shell.signal, 0);
  assert.equal(shell.timedOut, false);
  assert.ok(shell.pid > 0 && shell.durationMs >= 0 && shell.peakMemory >= 0);
  assert.equal((await box.exec(["echo", "a  b", "$HOME"])).stdout, "a  b $HOME\n");
  assert.equal((await box.exec("no-such-program")).exitCode, 127);
  await assert.rejects(box.exec(["no-such-program"]), NotFound);
  assert.equal((await box.exec("kill -TERM $$")).exitCode, 143);
});

test("exec: env, cwd, user and input, as text and as bytes", async () => {
  const { box } = context;
  const options = { env: { A_B: "ü" }, cwd: "/usr", user: "user", input: "gr\u00fc\u00dfe\n" };
  const done = await box.exec("echo $A_B; pwd; id -un; cat", options);
  assert.equal(done.stdout, "ü\n/usr\nuser\ngrüße\n");
  const bytes = new Uint8Array([0, 255, 10, 128]);
  assert.equal((await box.exec("od -An -tu1", { input: bytes })).stdout.trim(), "0 255  10 128");
  assert.equal((await box.exec("wc -c")).stdout.trim(), "0");
});

test("exec: bytes that are not UTF-8 are U+FFFD, execBytes gives them as they are", async () => {
  const { box } = context;
  assert.equal((await box.exec("printf 'a\\377b'")).stdout, "a\ufffdb");
  const done = await box.execBytes("printf 'a\\377b'; printf '\\200' >&2; exit 1");
  assert.deepEqual(done.stdout, new Uint8Array([97, 255, 98]));
  assert.deepEqual(done.stderr, new Uint8Array([128]));
  assert.equal(done.exitCode, 1);
});

test("exec: a timeout is a result: 124, timedOut, what came until then", async () => {
  const done = await context.box.exec("echo begun; sleep 1000", { timeout: 0.3 });
  assert.equal(done.exitCode, 124);
  assert.equal(done.timedOut, true);
  assert.equal(done.stdout, "begun\n");
});

test("exec: 6 MB of output come whole", async () => {
  const done = await context.box.exec("yes 0123456789abcde | head -c 6000000");
  assert.equal(done.stdout.length, 6_000_000);
  assert.equal(done.truncated, false);
});

test("exec: fifty at a time", async () => {
  const all = await Promise.all(Array.from({ length: 50 }, (_, i) => context.box.exec(["echo", String(i)])));
  assert.deepEqual(
    all.map((done) => Number(done.stdout)),
    Array.from({ length: 50 }, (_, i) => i),
  );
});

test("pause, resume, extend, stats, logs", async () => {
  const box = await context.cay.create({ idle: 600 });
  try {
    await box.pause();
    assert.equal((await box.refresh()).state, "paused");
    await box.resume();
    assert.equal((await box.refresh()).state, "running");
    const info = await box.extend({ ttl: 3600, idle: 0 });
    assert.ok(info.ttlLeftMs > 3_500_000 && box.info === info);
    const stats = await box.stats();
    assert.equal(stats.id, box.id);
    assert.ok(stats.memoryMax > 0 && stats.pidsMax > 0 && stats.oomKills === 0);
    await box.exec("printf 'one\\ntwo\\nthree\\n'");
    assert.equal(await box.logs(), "one\ntwo\nthree\n");
    assert.equal(await box.logs({ tail: 2 }), "two\nthree\n");
    assert.equal(await box.logs({ tail: 9 }), "one\ntwo\nthree\n");
    assert.equal(await box.logs({ tail: 0 }), "");
    await box.exec("printf '\\nlast'");
    assert.equal(await box.logs({ tail: 9 }), "one\ntwo\nthree\n\nlast");
    assert.equal(await box.logs({ tail: 2 }), "\nlast");
  } finally {
    await box.remove();
  }
});

test("stop and kill end it: its record stays, commands are Gone; remove is no error when it is gone", async () => {
  const box = await context.cay.create({ idle: 600 });
  await assert.rejects(box.remove({ force: false }), Conflict);
  await box.stop({ grace: 1 });
  assert.equal((await box.refresh()).state, "exited");
  assert.ok(box.info.endedMs > 0);
  await assert.rejects(box.exec("true"), Gone);
  await box.kill().catch((error) => assert.ok(error instanceof Gone || error instanceof Conflict));
  await box.remove({ force: false });
  await box.remove();
  await assert.rejects(box.refresh(), NotFound);
});

test("asyncDispose removes it", async () => {
  const box = await context.cay.create({ idle: 600 });
  await box[Symbol.asyncDispose]();
  await assert.rejects(box.refresh(), NotFound);
});

test("withSandbox: gives what its function gives, removes it also after an error, and bounds its life", async () => {
  let seen;
  const result = await context.cay.withSandbox({}, async (box) => {
    seen = box;
    const { idleMs, ttlMs } = await box.spec();
    assert.deepEqual([idleMs, ttlMs], [3_600_000, 86_400_000]);
    return (await box.exec("echo hi")).stdout;
  });
  assert.equal(result, "hi\n");
  await assert.rejects(seen.refresh(), NotFound);
  const failure = new Error("mine");
  const failing = context.cay.withSandbox({ ttl: 60 }, async (box) => {
    seen = box;
    assert.equal((await box.spec()).idleMs, 0);
    throw failure;
  });
  await assert.rejects(failing, (error) => error === failure);
  await assert.rejects(seen.refresh(), NotFound);
});

test("events: what happened, from a number on, and what happens", async () => {
  const box = await context.cay.create({ idle: 600, labels: { seen: "yes" } });
  const events = context.cay.events();
  let created;
  for await (const event of events) {
    if (event.sandbox !== box.id) continue;
    created ??= event;
    if (event.type === "created") await box.remove();
    if (event.type === "removed") break;
  }
  assert.equal(created.type, "created");
  assert.ok(created.timeMs > 0);
  assert.deepEqual(created.labels, { seen: "yes" });
  const past = [];
  for await (const event of context.cay.events({ since: created.seq, follow: false })) past.push(event);
  assert.equal(past[0].seq, created.seq);
  assert.ok(past.some((event) => event.type === "removed" && event.sandbox === box.id));
});

test("version and capabilities", async () => {
  assert.equal((await context.cay.version()).api, "v1");
  const { features, checks } = await context.cay.capabilities();
  assert.equal(features.exec, true);
  assert.ok(checks.every((check) => check.name && check.level));
});

test("setNetwork: deny-all is in force, other policies are Unsupported, what is none is Invalid", async () => {
  const { box } = context;
  await box.setNetwork("deny-all");
  for (const name of ["allow-all", "open"]) await assert.rejects(box.setNetwork(name), Unsupported);
  const transforms = { allow: { "*": [], "a.example": [{ transform: [{ headers: { a: "b" } }] }] } };
  await assert.rejects(box.setNetwork(transforms), { code: "unsupported" });
  await assert.rejects(box.setNetwork({ allow: ["not a domain"] }), Invalid);
  await assert.rejects(context.cay.attach("no-such-sandbox").setNetwork("deny-all"), NotFound);
});

test("snapshot, fork and publish are Unsupported", async () => {
  for (const call of [context.box.snapshot("x"), context.box.fork(2), context.box.publish(80)])
    await assert.rejects(call, (error) => error instanceof Unsupported && error.status === 501);
});

test("a daemon that is not there: Unavailable with the cause, soon", async () => {
  const cay = new Cay({ host: "unix:/nowhere/cayd.sock" });
  await assert.rejects(cay.version(), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.equal(error.cause.code, "ENOENT");
    assert.match(error.message, /unix:\/nowhere\/cayd\.sock/);
    return true;
  });
  await assert.rejects(cay.create(), Unavailable);
});

test("close: calls under way fail, also those that go on by themselves", async () => {
  const cay = new Cay();
  const process = await cay.attach(context.box.id).start("sleep 1000");
  const calls = [process.wait(), text(process.stdout), process.output().next(), cay.events({ since: 1e9 }).next()];
  const failed = calls.map((call) => assert.rejects(call, Unavailable));
  await until(async () => (await context.box.processes()).some(({ pid, running }) => pid === process.pid && running));
  cay.close();
  await Promise.all(failed);
  await process.kill();
});

test("close: what comes after it opens connections anew", async () => {
  const cay = new Cay();
  await cay.version();
  cay.close();
  assert.equal((await cay.version()).api, "v1");
  cay.close();
});

test("idle connections do not hold up the end of a program", async () => {
  const { spawn } = await import("node:child_process");
  const program = 'import { Cay } from "cay-sandbox"; await new Cay().version(); console.log("done")';
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { cwd: import.meta.dirname });
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  const timer = setTimeout(() => child.kill("SIGKILL"), 20_000);
  const code = await new Promise((resolve) => child.on("close", resolve));
  clearTimeout(timer);
  assert.equal(output, "done\n");
  assert.equal(code, 0);
});

