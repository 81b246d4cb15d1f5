// SPDX-License-Identifier: Apache-2.0
//
// What happens when connections fail, against a server that makes them fail at the worst moment.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { Cay, Gone, Internal, OutputLost, Stalled, TooLarge, Unavailable } from "cay-sandbox";
import { decode, text } from "./sdk_support.mjs";

let directory, server, cay;
/** Requests that came, as {method, path, query, body, socket}, and what is to be done with the next ones. */
let seen, plan;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "cay-"));
  server = http.createServer(async (request, response) => {
    const url = new URL(request.url, "http://x");
    let body = "";
    for await (const chunk of request) body += chunk;
    const query = Object.fromEntries(url.searchParams);
    if (request.headers["content-type"] === "application/json") body = JSON.parse(body);
    seen.push({ method: request.method, path: url.pathname, query, body, socket: request.socket });
    const act = plan.shift() ?? answer(SANDBOX);
    act(response, seen.at(-1));
  });
  await new Promise((resolve) => server.listen(join(directory, "sock"), resolve));
});

after(async () => {
  server.close();
  server.closeAllConnections();
  await rm(directory, { recursive: true });
});

beforeEach(() => {
  seen = [];
  plan = [];
  cay = new Cay({ host: `unix:${directory}/sock` });
});

const answer = (value, status = 200) => (response) => {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
};
const SANDBOX = { id: "a", state: "running", pid: 1 };
const refuse = (code, status) => answer({ error: { code, message: code } }, status);
const cut = (response) => response.destroy();
const inTheMiddle = (response) => {
  response.writeHead(200, { "content-length": 100 });
  response.write('{"a":', () => response.destroy());
};

function frame(kind, offset, payload) {
  const bytes = Buffer.alloc(16 + Buffer.byteLength(payload));
  bytes[0] = kind;
  bytes.writeUInt32BE(bytes.length - 16, 4);
  bytes.writeBigUInt64BE(BigInt(offset), 8);
  bytes.write(payload, 16);
  return bytes;
}

const EXIT = JSON.stringify({ type: "exit", exit: { pid: 1, exit_code: 0 } });

/** Sends these bytes, then ends as told: "end" or "cut". */
const stream = (bytes, how) => (response) => {
  response.writeHead(200);
  response.write(bytes, () => (how === "end" ? response.end() : response.destroy()));
};

test("what only asks is repeated: before an answer, in the middle of one, and when told to come again", async () => {
  plan = [cut, inTheMiddle, refuse("unavailable", 503), answer({ id: "a", state: "running" })];
  assert.equal((await cay.get("a")).info.state, "running");
  assert.equal(seen.length, 4);
});

test("create is repeated with the same id", async () => {
  plan = [cut, answer({ id: "x", state: "running" }, 200)];
  const box = await cay.create();
  assert.deepEqual(
    seen.map(({ body }) => body.id),
    [box.id, box.id],
  );
});

test("create whose answers are lost removes what it may have made; with an id that was given it does not", async () => {
  const lost = (response, request) => (request.method === "DELETE" ? response.writeHead(204).end() : cut(response));
  plan = Array(200).fill(lost);
  const [one, two] = await Promise.allSettled([cay.create(), cay.create({ id: "mine" })]);
  assert.ok(one.reason instanceof Unavailable && two.reason instanceof Unavailable);
  const removed = seen.filter(({ method }) => method === "DELETE");
  assert.equal(removed.length, 1);
  assert.match(removed[0].path, /^\/api\/v1\/sandboxes\/[0-9a-f]{12}$/);
});

const started = (pid, bytes, how) => (response) => {
  response.writeHead(200, { "x-cay-pid": pid });
  response.write(bytes, () => (how === "end" ? response.end() : response.destroy()));
};

test("exec whose answers are lost is repeated with its key, and read on by its pid", async () => {
  const more = frame(1, 3, "def");
  plan = [cut, refuse("unavailable", 503), started(7, frame(1, 0, "abc"), "cut"), stream(more.subarray(0, 18), "cut")];
  plan.push(stream(Buffer.concat([frame(1, 4, "ef"), frame(3, 6, EXIT)]), "end"));
  const done = await cay.attach("a").exec("x");
  assert.deepEqual([done.stdout, done.exitCode], ["abcdef", 0]);
  const keys = seen.slice(0, 3).map(({ body }) => body.key);
  assert.ok(keys[0] && keys.every((key) => key === keys[0]) && seen[0].body.kill_on_disconnect === true);
  assert.deepEqual(
    seen.slice(3).map(({ path, query }) => [path, query.from]),
    [
      ["/api/v1/sandboxes/a/processes/7/output", "3"],
      ["/api/v1/sandboxes/a/processes/7/output", "5"], // of which "e" comes once more
    ],
  );
});

test("a result that lacks something is none: a gap, a hole, an end before its time, a process that is forgotten", async () => {
  const gap = frame(6, 3, JSON.stringify({ type: "gap", from: 3, to: 9 }));
  const abc = frame(1, 0, "abc");
  const cases = [
    [started(7, Buffer.concat([abc, gap, frame(1, 9, "j"), frame(3, 10, EXIT)]), "end")],
    [started(7, Buffer.concat([abc, frame(1, 9, "j"), frame(3, 10, EXIT)]), "end")],
    [started(7, Buffer.concat([abc, frame(3, 10, EXIT)]), "end")],
    [started(7, abc, "cut"), refuse("not_found", 404)],
  ];
  for (const given of cases) {
    plan = given;
    await assert.rejects(cay.attach("a").exec("x"), OutputLost);
    assert.equal(seen.at(-1).method, "DELETE"); // it was killed
  }
});

test("a reader that was cut off for being slow is told so; exec goes on", async () => {
  const stalled = frame(5, 3, JSON.stringify({ type: "error", error: { code: "stalled", message: "slow" } }));
  const begin = Buffer.concat([frame(1, 0, "abc"), stalled]);
  plan = [stream(begin, "end")];
  await assert.rejects(new Response(cay.attach("a").process(7).stdout).text(), Stalled);
  plan = [started(7, begin, "end"), stream(frame(3, 3, EXIT), "end")];
  assert.equal((await cay.attach("a").exec("x")).stdout, "abc");
});

test("start is repeated with the same key; writes are not repeated when they were sent", async () => {
  const box = cay.attach("a");
  plan = [cut, refuse("unavailable", 503), answer({ pid: 7 }, 201)];
  assert.equal((await box.start("x")).pid, 7);
  assert.equal(new Set(seen.map(({ body }) => body.key)).size, 1);
  const calls = [
    () => box.files.write("/x", "{}"),
    () => box.process(1).write("{}"),
    () => box.process(1).signal("TERM"),
  ];
  for (const call of calls) {
    seen = [];
    plan = [cut];
    await assert.rejects(call(), (error) => error instanceof Unavailable && error.cause.code === "ECONNRESET");
    assert.equal(seen.length, 1);
  }
});

test("exec on a connection that the server closed while it was idle", async () => {
  const box = cay.attach("a");
  for (let i = 0; i < 20; i++) {
    await box.refresh();
    if (i % 2) server.closeIdleConnections();
    else seen.at(-1).socket.destroy();
    plan = [started(7, frame(3, 0, EXIT), "end")];
    await box.exec("x");
  }
  assert.equal(seen.length, 40);
});

test("what has an effect as it comes, or comes from a stream, is never sent twice", async () => {
  const box = cay.attach("a");
  const chunk = "x".repeat(100_000);
  async function* parts() {
    for (let i = 0; i < 20; i++) yield Buffer.from(chunk);
  }
  for (let i = 0; i < 20; i++) {
    await box.refresh();
    seen.at(-1).socket.destroy();
    const call = i % 2 ? box.process(1).write(chunk.repeat(20)) : box.files.write("/x", parts());
    seen = [];
    const done = await call.then(
      () => 1,
      (error) => assert.ok(error instanceof Unavailable) ?? 0,
    );
    assert.deepEqual(
      seen.map(({ body }) => body.length),
      Array(done).fill(2_000_000),
    );
  }
});

test("connections are used again", async () => {
  const box = cay.attach("a");
  for (let i = 0; i < 10; i++) await box.refresh();
  await assert.rejects(((plan = [refuse("gone", 410)]), box.exec("x")), Gone);
  await box.refresh();
  assert.equal(new Set(seen.map(({ socket }) => socket)).size, 1);
});

test("wait is repeated with the time that is left", async () => {
  plan = [(response) => setTimeout(() => response.destroy(), 300), answer({ pid: 1, exit_code: 0 })];
  await cay.attach("a").process(1).wait({ timeout: 60 });
  assert.equal(seen[0].body.timeout <= 60, true);
  assert.ok(seen[1].body.timeout < seen[0].body.timeout - 0.25);
});

test("output that is cut off goes on behind the last byte, wherever it was cut", async () => {
  const whole = Buffer.concat([frame(1, 0, "hello"), frame(2, 5, "oops"), frame(1, 9, "end"), frame(3, 12, EXIT)]);
  const from = (offset) => {
    const all = Buffer.from("hellooopsend").subarray(offset).toString();
    const kinds = [1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1];
    const frames = [...all].map((letter, i) => frame(kinds[offset + i], offset + i, letter));
    return Buffer.concat([...frames, frame(3, 12, EXIT)]);
  };
  const go = (how) => (response, { query }) => stream(from(Number(query.from)), how)(response);
  for (const end of ["cut", "end"]) {
    for (let at = 0; at < whole.length; at++) {
      plan = [stream(whole.subarray(0, at), end), go("end")];
      const got = { stdout: "", stderr: "" };
      let offset = 0;
      for await (const piece of cay.attach("a").process(1).output()) {
        assert.equal(piece.offset, offset);
        offset += piece.data.length;
        got[piece.stream] += decode(piece.data);
      }
      assert.deepEqual(got, { stdout: "helloend", stderr: "oops" }, `${end} at ${at}`);
    }
  }
});

test("output: an error as its last frame is the error; the end of the process is known to wait", async () => {
  const error = JSON.stringify({ type: "error", error: { code: "gone", message: "it has ended" } });
  plan = [stream(Buffer.concat([frame(1, 0, "a"), frame(5, 1, error)]), "end")];
  await assert.rejects(text(cay.attach("a").process(1).stdout), Gone);
  plan = [stream(frame(3, 0, EXIT), "end")];
  const process = cay.attach("a").process(1);
  assert.equal(await text(process.stdout), "");
  seen = [];
  assert.equal((await process.wait()).exitCode, 0);
  assert.equal(seen.length, 0);
});

test("streams that are cut off again and again without a byte are asked for less and less often, and given up", async () => {
  const going = { code: "unavailable", message: "the daemon ends" };
  const error = frame(5, 0, JSON.stringify({ type: "error", error: going }));
  const line = Buffer.from(`${JSON.stringify({ type: "error", error: going })}\n`);
  const cases = [
    [(one) => text(one.attach("a").process(1).stdout), stream(Buffer.alloc(3), "cut")],
    [(one) => text(one.attach("a").process(1).stdout), stream("", "end")],
    [(one) => text(one.attach("a").process(1).stdout), stream(error, "end")],
    [(one) => one.attach("a").exec("true"), stream(error, "end")],
    [(one) => one.events().next(), stream("", "end")],
    [(one) => one.events().next(), stream(line, "end")],
    [(one) => one.events().next(), stream(line, "cut")],
  ];
  const given = cases.map(async ([call, act], i) => {
    let count = 0;
    const own = http.createServer((request, response) => {
      if (!request.url.includes("follow=true")) return answer({ error: { code: "gone", message: "gone" } }, 410)(response);
      count++;
      act(response);
    });
    await new Promise((resolve) => own.listen(join(directory, `ends${i}`), resolve));
    await assert.rejects(call(new Cay({ host: `unix:${directory}/ends${i}` })), Unavailable, `${i}`);
    own.close();
    own.closeAllConnections();
    assert.ok(count >= 5 && count <= 80, `${i}: ${count}`);
  });
  await Promise.all(given);
});

test("a keeper that hangs is not waited for a second time", async () => {
  const hung = { error: { code: "unavailable", message: "the keeper does not answer", detail: { errno: 110 } } };
  const event = stream(frame(5, 0, JSON.stringify({ type: "error", ...hung })), "end");
  const box = cay.attach("a");
  const calls = [
    [() => box.process(1).wait(), answer(hung, 503)],
    [() => box.stats(), answer(hung, 503)],
    [() => text(box.process(1).stdout), answer(hung, 503)],
    [() => text(box.process(1).stdout), event],
  ];
  for (const [call, act] of calls) {
    seen = [];
    plan = [act, act, act];
    await assert.rejects(call(), (error) => error instanceof Unavailable && error.detail.errno === 110);
    assert.equal(seen.length, 1);
  }
});

test("bytes that are missing at the end of a stream that does not follow are lost", async () => {
  plan = [stream(Buffer.concat([frame(1, 0, "hello"), frame(4, 9, '{"type":"end","offset":9}')]), "end")];
  const read = async () => {
    for await (const _ of cay.attach("a").process(1).output({ follow: false })) continue;
  };
  await assert.rejects(read(), (error) => error instanceof OutputLost && error.detail.from === 5 && error.detail.to === 9);
});

test("an answer that is something else is Internal", async () => {
  const box = cay.attach("a");
  const calls = {
    create: () => cay.create(),
    get: () => cay.get("a"),
    list: () => cay.list(),
    events: () => cay.events({ follow: false }).next(),
    exec: () => box.exec("true"),
    start: () => box.start("true"),
    processes: () => box.processes(),
    stats: () => box.stats(),
    spec: () => box.spec(),
    extend: () => box.extend({ ttl: 1 }),
    wait: () => box.process(1).wait(),
    info: () => box.process(1).info(),
    stat: () => box.files.stat("/f"),
    files: () => box.files.list("/"),
    find: () => box.files.find("/"),
    grep: () => box.files.grep("/", "x"),
    watch: () => box.files.watch("/"),
  };
  const wrong = { sandboxes: [5], entries: [[]], matches: [null], processes: [{}], mounts: [], next_cursor: 5, pid: "7" };
  const lines = (name) => name === "events" || name === "watch";
  for (const body of ["{}", "[]", "null", "5", '"text"', "<html></html>", "", JSON.stringify(wrong)])
    for (const [name, call] of Object.entries(calls)) {
      const frames = name === "exec";
      if ((lines(name) && body === "") || (name === "spec" && body.includes("mounts"))) continue;
      plan = [stream(frames ? frame(3, 0, body) : `${body}\n`, "end")];
      await assert.rejects(call(), (error) => error instanceof Internal && /not what this call expects/.test(error.message),
        `${name}: ${body}`);
    }
});

test("JSON has a maximum, a file has none, and of an error the beginning is enough", async () => {
  const piece = Buffer.alloc(1 << 20, 32);
  const large = (status, count) => async (response) => {
    const closed = once(response, "close");
    response.writeHead(status);
    for (let i = 0; i < count && !response.destroyed; i++)
      if (!response.write(piece)) await Promise.race([once(response, "drain"), closed]);
    response.end();
  };
  plan = [large(200, 300)];
  await assert.rejects(cay.version(), TooLarge);
  plan = [large(200, 300)];
  assert.equal((await cay.attach("a").files.read("/f")).length, 300 << 20);
  plan = [large(502, 3000)];
  await assert.rejects(cay.attach("a").process(1).signal("TERM"), Unavailable);
});

test("events that are cut off go on with the next one", async () => {
  const line = (seq) => `${JSON.stringify({ seq, type: "created", sandbox: "a", time_ms: 1 })}\n`;
  plan = [stream(line(4) + line(5) + line(6).slice(0, 9), "cut"), stream(line(6), "end")];
  const got = [];
  for await (const { seq, timeMs } of cay.events({ since: 4 })) {
    got.push([seq, timeMs]);
    if (seq === 6) break;
  }
  assert.deepEqual(got, [4, 5, 6].map((seq) => [seq, 1]));
  assert.deepEqual(
    seen.map(({ query }) => query.from),
    ["4", "6"],
  );
});

test("a file that is cut off is Unavailable and not short", async () => {
  const short = (response) => {
    response.writeHead(200, { "content-length": 10 });
    response.write("12345", () => response.destroy());
  };
  plan = [short];
  await assert.rejects(text(await cay.attach("a").files.stream("/x")), Unavailable);
  plan = [short, (response) => response.end("1234567890")];
  assert.equal(await cay.attach("a").files.readText("/x"), "1234567890");
});

test("an answer that is no JSON of ours is told by its status", async () => {
  plan = [(response) => response.writeHead(431).end("<html>")];
  await assert.rejects(cay.version(), { code: "too_large", status: 431 });
});

test("an answer of 200 that is no JSON is Internal: this is not cayd", async () => {
  plan = [(response) => response.end("<html>"), (response) => response.end("<html>")];
  await assert.rejects(cay.version(), { code: "internal" });
  await assert.rejects(cay.create(), { code: "internal" });
});

test("a stream that nobody reads any more does not hold up the end of a program", async () => {
  const program = `
    import { Cay } from "cay-sandbox";
    const process = new Cay().attach("a").process(1);
    const reader = process.stdout.getReader();
    await reader.read();
    const waiting = new Cay().attach("a").process(1).stdout.getReader();
    await waiting.read();
    waiting.read(); // there is no answer to it when it is cancelled
    await waiting.cancel();
    const file = await new Cay().attach("a").files.stream("/x");
    console.log("done");`;
  const quiet = (response) => {
    response.writeHead(200);
    response.write(frame(1, 0, "a"));
  };
  plan = [quiet, quiet, quiet];
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], {
    cwd: import.meta.dirname,
    env: { ...process.env, CAY_HOST: `unix:${directory}/sock` },
    stdio: ["ignore", "pipe", "inherit"],
    timeout: 20_000,
  });
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  assert.equal(await new Promise((resolve) => child.on("close", resolve)), 0);
  assert.equal(output, "done\n");
});
