// SPDX-License-Identifier: Apache-2.0
//
// Processes that live on: their streams, input, signals and end.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cay, CayError, Conflict, NotFound, OutputLost, Timeout } from "cay-sandbox";
import { decode, encode, runs, shared, text, until } from "./sdk_support.mjs";

const context = shared({ output: "64M" });

async function pieces(output) {
  const all = [];
  for await (const { stream, data, offset } of output) all.push([stream, decode(data), offset]);
  return all;
}

test("start: stdout and stderr as streams, wait gives the exit, and gives it again", async () => {
  const process = await context.box.start("echo out; echo err >&2; exit 3");
  assert.equal(process.stdin, undefined);
  assert.equal(process.stdout, process.stdout);
  assert.deepEqual(await Promise.all([text(process.stdout), text(process.stderr)]), ["out\n", "err\n"]);
  const exit = await process.wait();
  assert.deepEqual([exit.pid, exit.exitCode, exit.signal, exit.timedOut], [process.pid, 3, 0, false]);
  assert.deepEqual(await process.wait(), exit);
  assert.deepEqual(await process.poll(), exit);
});

test("start: env, cwd, user and timeout", async () => {
  const options = { env: { A: "1" }, cwd: "/usr", user: "user", timeout: 0.3 };
  const process = await context.box.start("echo $A; pwd; id -un; sleep 1000", options);
  assert.equal(await text(process.stdout), "1\n/usr\nuser\n");
  const exit = await process.wait();
  assert.deepEqual([exit.exitCode, exit.timedOut], [124, true]);
});

test("start: it returns before the process ends; a stream can be read to its end after the wait", async () => {
  const process = await context.box.start("read line; echo $line", { stdin: true });
  assert.equal(await process.poll(), null);
  await process.write("later\n");
  await process.wait();
  assert.equal(await text(process.stdout), "later\n");
});

test("start: a command that cannot be started", async () => {
  await assert.rejects(context.box.start(["/no/such/program"]), NotFound);
  await assert.rejects(context.box.start([]), { code: "invalid" });
});

test("reading one of the two streams alone neither hangs nor loses the other", async () => {
  const process = await context.box.start("head -c 3000000 /dev/zero >&2; echo done");
  assert.equal(await text(process.stdout), "done\n");
  assert.equal((await new Response(process.stderr).arrayBuffer()).byteLength, 3_000_000);
});

test("a stream that is cancelled lets go of its connection; the process lives on", async () => {
  const process = await context.box.start("while sleep 0.01; do echo tick; done");
  const reader = process.stdout.getReader();
  await reader.read();
  await reader.cancel();
  await process.stderr.cancel();
  assert.equal(await process.poll(), null);
  await process.kill();
});

test("50 MB that are read slowly do not pile up in memory", async () => {
  const size = 50_000_000;
  const process = await context.box.start(["head", "-c", String(size), "/dev/zero"]);
  await process.wait();
  const before = globalThis.process.memoryUsage().rss;
  let peak = 0;
  let got = 0;
  for await (const chunk of process.stdout) {
    got += chunk.length;
    if (got % 10 === 0) await new Promise(setImmediate);
    peak = Math.max(peak, globalThis.process.memoryUsage().rss - before);
  }
  assert.equal(got, size);
  assert.ok(peak < 40_000_000, `${peak} bytes more`);
});

test("a reader that waits does not make the client read on", async () => {
  const size = 50_000_000;
  const process = await context.box.start(["head", "-c", String(size), "/dev/zero"]);
  await process.wait();
  const reader = process.stdout.getReader();
  const first = await reader.read();
  const before = globalThis.process.memoryUsage().arrayBuffers;
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.ok(globalThis.process.memoryUsage().arrayBuffers - before < 4_000_000);
  let got = first.value.length;
  for (let next; !(next = await reader.read()).done; ) got += next.value.length;
  assert.equal(got, size);
});

test("output: both streams in order with their offsets, from any offset, without following", async () => {
  const process = await context.box.start("printf abc; sleep 0.1; printf de >&2; sleep 0.1; printf f");
  const want = [
    ["stdout", "abc", 0],
    ["stderr", "de", 3],
    ["stdout", "f", 5],
  ];
  assert.deepEqual(await pieces(process.output()), want);
  assert.deepEqual(await pieces(process.output({ since: 4 })), [
    ["stderr", "e", 4],
    ["stdout", "f", 5],
  ]);
  assert.deepEqual(await pieces(context.box.process(process.pid).output({ follow: false })), want);
  const quiet = await context.box.start(["sleep", "1000"]);
  assert.deepEqual(await pieces(quiet.output({ follow: false })), []);
  await quiet.kill();
});

test("output: what was dropped is OutputLost, and what is left can be read", async () => {
  const box = await context.cay.create({ output: 65536, idle: 600 });
  try {
    const process = await box.start("head -c 1000000 /dev/zero");
    assert.equal((await process.wait()).truncated, true);
    const error = await pieces(process.output()).catch((error) => error);
    assert.ok(error instanceof OutputLost && error.detail.from === 0);
    await assert.rejects(new Response(process.stdout).text(), OutputLost);
    for (const since of ["oldest", error.detail.to]) {
      const left = await pieces(process.output({ since }));
      assert.equal(left[0][2], error.detail.to);
      assert.equal(left.reduce((sum, piece) => sum + piece[1].length, 0), 1_000_000 - error.detail.to);
    }
  } finally {
    await box.remove();
  }
});

test("a sandbox that ends takes its processes with it: output and wait tell how", async () => {
  const box = await context.cay.create({ idle: 600 });
  const process = await box.start("echo begun; sleep 1000");
  const reader = process.stdout.getReader();
  assert.equal(decode((await reader.read()).value), "begun\n");
  const ends = [reader.read(), process.wait()];
  await box.kill();
  const [last, exit] = await Promise.all(ends);
  assert.equal(last.done, true);
  assert.equal(exit.exitCode, 137);
  await box.remove();
  await assert.rejects(box.process(process.pid).wait(), NotFound);
});

test("stdin: a stream whose close is the end of the input", async () => {
  const process = await context.box.start(["cat"], { stdin: true });
  const writer = process.stdin.getWriter();
  await writer.write(encode("one "));
  await writer.write(encode("two"));
  await writer.close();
  assert.equal(await text(process.stdout), "one two");
  assert.equal((await process.wait()).exitCode, 0);
});

test("stdin: 20 MB through a pipe, with backpressure", async () => {
  const process = await context.box.start(["sha256sum"], { stdin: true });
  const chunk = Buffer.alloc(1_000_000, "x");
  let left = 20;
  const source = new ReadableStream({
    pull(controller) {
      if (left-- > 0) controller.enqueue(new Uint8Array(chunk));
      else controller.close();
    },
  });
  await source.pipeTo(process.stdin);
  const { createHash } = await import("node:crypto");
  const want = createHash("sha256");
  for (let i = 0; i < 20; i++) want.update(chunk);
  assert.equal(await text(process.stdout), `${want.digest("hex")}  -\n`);
});

test("stdin: write and closeStdin, eof with the last bytes, an abort of the stream ends the input", async () => {
  const first = await context.box.start(["cat"], { stdin: true });
  await first.write("text ");
  await first.write(encode("bytes"));
  await first.closeStdin();
  assert.equal(await text(first.stdout), "text bytes");
  const second = await context.box.start(["cat"], { stdin: true });
  await second.write("all", { eof: true });
  assert.equal(await text(second.stdout), "all");
  const third = await context.box.start(["cat"], { stdin: true });
  await third.stdin.abort(new Error("no more"));
  assert.equal((await third.wait()).exitCode, 0);
});

test("stdin: an abort of the stream does not wait for a process that does not read", async () => {
  const process = await context.box.start(["sleep", "1000"], { stdin: true });
  const writer = process.stdin.getWriter();
  const reason = new Error("no more");
  const written = assert.rejects(writer.write(new Uint8Array(20 << 20)), (error) => error === reason);
  await new Promise((resolve) => setTimeout(resolve, 50));
  await writer.abort(reason);
  await written;
  assert.equal(await process.poll(), null);
  await process.kill();
});

test("a stream that is cancelled while it is waited for: the other one goes on where it was", async () => {
  const process = await context.box.start("echo one >&2; read line; echo two >&2; echo end", { stdin: true });
  const errors = process.stderr.getReader();
  assert.equal(decode((await errors.read()).value), "one\n");
  const waiting = process.stdout.getReader();
  const read = waiting.read();
  await waiting.cancel();
  assert.equal((await read).done, true);
  await process.write("go\n");
  assert.equal(decode((await errors.read()).value), "two\n");
  assert.equal((await errors.read()).done, true);
  assert.equal((await process.wait()).exitCode, 0);
});

test("stdin: of a process that was started without it, and of one that has ended", async () => {
  const without = await context.box.start("sleep 1000");
  await assert.rejects(without.write("x"), CayError);
  await without.kill();
  const ended = await context.box.start(["true"], { stdin: true });
  await ended.wait();
  await assert.rejects(ended.write("x"), Conflict);
  await ended.stdin.close();
});

test("wait: Timeout when it still runs, poll gives null, an abort ends the waiting and not the process", async () => {
  const process = await context.box.start(["sleep", "1000"]);
  await assert.rejects(process.wait({ timeout: 0 }), Timeout);
  await assert.rejects(process.wait({ timeout: 0.2 }), Timeout);
  assert.equal(await process.poll(), null);
  const controller = new AbortController();
  const reason = new Error("enough");
  const waiting = process.wait({ signal: controller.signal });
  controller.abort(reason);
  await assert.rejects(waiting, (error) => error === reason);
  assert.equal(await process.poll(), null);
  await process.kill();
  assert.equal((await process.wait()).signal, 9);
});

test("signal: by name and by number, to the tree; no error when it has ended", async () => {
  const trap = 'trap "echo got; exit 7" USR1; echo ready; while :; do sleep 0.01; done';
  const process = await context.box.start(trap);
  const reader = process.stdout.getReader();
  assert.equal(decode((await reader.read()).value), "ready\n");
  await process.signal("USR1");
  assert.equal((await process.wait()).exitCode, 7);
  await process.signal("SIGTERM");
  const tree = await context.box.start("sleep 7771 & wait");
  await until(() => runs(context.box, "sleep 7771"));
  await tree.signal(15, { tree: true });
  assert.equal((await tree.wait()).signal, 15);
  await until(async () => !(await runs(context.box, "sleep 7771")));
  await assert.rejects(process.signal("NOSUCH"), { code: "invalid" });
});

test("kill: it and everything that it started, again and again, also when the sandbox is gone", async () => {
  const box = await context.cay.create({ idle: 600 });
  const process = await box.start("setsid sleep 7772 & sleep 7773");
  await until(() => runs(box, "sleep 7772"));
  await process.kill();
  assert.equal((await process.wait()).exitCode, 137);
  await until(async () => !(await runs(box, "sleep 777")));
  await process.kill();
  await box.remove();
  await process.kill();
});

test("process: a handle from a pid, by any client; NotFound where there is none", async () => {
  const process = await context.box.start("echo hello; exit 4");
  const other = new Cay().attach(context.box.id).process(process.pid);
  assert.equal((await other.wait()).exitCode, 4);
  assert.equal(await text(other.stdout), "hello\n");
  const info = await other.info();
  assert.deepEqual([info.pid, info.running, info.pty, info.outputEnd], [process.pid, false, false, 6]);
  assert.equal(info.exit.exitCode, 4);
  await assert.rejects(context.box.process(99999).wait(), NotFound);
  await assert.rejects(text(context.box.process(99999).stdout), NotFound);
});

test("processes: those that run and those that have ended", async () => {
  const running = await context.box.start(["sleep", "1000"]);
  const ended = await context.box.start(["false"]);
  await ended.wait();
  const all = new Map((await context.box.processes()).map((info) => [info.pid, info]));
  assert.equal(all.get(running.pid).running, true);
  assert.equal(all.get(running.pid).exit, null);
  assert.equal(all.get(ended.pid).exit.exitCode, 1);
  await running.kill();
});

test("a terminal: it is one, has a size, and the size changes", async () => {
  const options = { pty: true, stdin: true, rows: 20, cols: 70 };
  const process = await context.box.start("stty size; read x; stty size; exit 0", options);
  const reader = process.stdout.getReader();
  let seen = "";
  const see = async (what) => {
    while (!seen.includes(what)) seen += decode((await reader.read()).value ?? assert.fail(seen));
  };
  await see("20 70");
  await process.resize(30, 90);
  await process.write("\n");
  await see("30 90");
  assert.equal((await process.wait()).exitCode, 0);
  assert.equal((await process.info()).pty, true);
});
