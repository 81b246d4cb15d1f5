// SPDX-License-Identifier: Apache-2.0
//
// What needs no daemon: parsers, addresses, policies, abort signals, the two streams over one connection.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Cay, CayError, checkNetworkPolicy, Internal, Invalid, TooLarge } from "cay-sandbox";
import { decode, encode, internal, text } from "./sdk_support.mjs";

const { FrameParser, LineParser } = await internal("frames");
const { parseHost } = await internal("host");
const { errorFromAnswer } = await internal("errors");
const { onAbort, orAborted, sleep } = await internal("abort");
const { Demux } = await internal("demux");
const { Patience } = await internal("patience");

function frame(kind, offset, payload) {
  const bytes = Buffer.alloc(16 + payload.length);
  bytes[0] = kind;
  bytes.writeUInt32BE(payload.length, 4);
  bytes.writeBigUInt64BE(BigInt(offset), 8);
  bytes.set(encode(payload), 16);
  return bytes;
}

const FRAMES = Buffer.concat([
  frame(1, 0, "hello"),
  frame(2, 5, ""),
  frame(2, 5, "oops"),
  frame(1, 2 ** 40, "far"),
  frame(3, 2 ** 40 + 3, '{"type":"exit","exit":{"pid":7}}'),
]);

/** Pieces that belong together are joined: where they were cut is of no concern. */
function joined(frames) {
  const all = [];
  for (const { kind, offset, data, event } of frames) {
    const last = all.at(-1);
    if (data && last?.kind === kind && last.offset + last.data.length === offset) last.data += decode(data);
    else all.push({ kind, offset, data: data ? decode(data) : event });
  }
  return all;
}

test("frames: the same events wherever the bytes are cut", () => {
  const want = [
    { kind: "stdout", offset: 0, data: "hello" },
    { kind: "stderr", offset: 5, data: "oops" },
    { kind: "stdout", offset: 2 ** 40, data: "far" },
    { kind: "exit", offset: 2 ** 40 + 3, data: { type: "exit", exit: { pid: 7 } } },
  ];
  for (let cut = 0; cut <= FRAMES.length; cut++) {
    const parser = new FrameParser();
    const got = [...parser.push(FRAMES.subarray(0, cut)), ...parser.push(FRAMES.subarray(cut))];
    assert.deepEqual(joined(got), want, `cut at ${cut}`);
  }
  const parser = new FrameParser();
  assert.deepEqual(joined([...FRAMES].flatMap((byte) => parser.push(new Uint8Array([byte])))), want);
});

test("frames: an unknown kind and an event that is too large are errors, output of any size is not kept", () => {
  assert.throws(() => new FrameParser().push(frame(9, 0, "x")), Internal);
  const huge = Buffer.alloc(16);
  huge[0] = 3;
  huge.writeUInt32BE(2 ** 30, 4);
  assert.throws(() => new FrameParser().push(huge), Internal);
  huge[0] = 1;
  const parser = new FrameParser();
  parser.push(huge);
  for (let i = 0; i < 100; i++) assert.equal(parser.push(Buffer.alloc(65536)).length, 1);
});

test("lines: the same values wherever the bytes are cut", () => {
  const bytes = encode('{"a":"ü"}\n\n{"b":[1]}\n');
  for (let cut = 0; cut <= bytes.length; cut++) {
    const parser = new LineParser();
    const got = [...parser.push(bytes.subarray(0, cut)), ...parser.push(bytes.subarray(cut))];
    assert.deepEqual(got, [{ a: "ü" }, { b: [1] }], `cut at ${cut}`);
  }
});

test("lines: one without an end is an error", () => {
  const parser = new LineParser();
  assert.throws(() => {
    for (let i = 0; i < 100; i++) parser.push(Buffer.alloc(65536, 97));
  }, Internal);
});

test("hosts: unix sockets, addresses with a port, a path or brackets", () => {
  assert.deepEqual(parseHost("unix:/run/x.sock").connect, { socketPath: "/run/x.sock" });
  assert.deepEqual(parseHost("unix:///run/x.sock").connect, { socketPath: "/run/x.sock" });
  assert.deepEqual(parseHost("http://h:7733").connect, { host: "h", port: 7733 });
  assert.deepEqual(parseHost("https://h/cay/").connect, { host: "h", port: 7733 });
  assert.deepEqual(parseHost("https://h:443").connect, { host: "h", port: 443 });
  assert.equal(parseHost("http://[::1]").authority, "[::1]:7733");
  assert.equal(parseHost("https://h/cay/").prefix, "/cay");
  assert.deepEqual(parseHost("http://[::1]:80").connect, { host: "::1", port: 80 });
  for (const host of ["", "h:7733", "ftp://h", "unix:x", "http://user@h", "http://h?x=1", "http://"])
    assert.throws(() => new Cay({ host }), Invalid, host);
});

test("hosts: CAY_HOST is the default, then the socket of the system's daemon", () => {
  const before = process.env.CAY_HOST;
  try {
    process.env.CAY_HOST = "http://elsewhere:1";
    assert.equal(new Cay().host, "http://elsewhere:1");
    delete process.env.CAY_HOST;
    assert.equal(new Cay().host, "unix:/run/cay/cayd.sock");
  } finally {
    if (before !== undefined) process.env.CAY_HOST = before;
  }
});

/** Calls `use` with these variables set. */
function withVariables(variables, use) {
  const before = Object.keys(variables).map((name) => [name, process.env[name]]);
  try {
    Object.assign(process.env, variables);
    return use();
  } finally {
    for (const [name, value] of before) value === undefined ? delete process.env[name] : (process.env[name] = value);
  }
}

test("tokens: in clear to this very machine only, unless CAY_INSECURE=1", () => {
  const token = "cay_secret";
  for (const host of ["http://127.0.0.1:1", "http://127.9.9.9", "http://localhost", "http://[::1]:1", "https://h"])
    new Cay({ host, token });
  for (const host of ["http://h:1", "http://10.0.0.1", "http://127.0.0.1.example", "http://[::2]"]) {
    const isDenied = (error) => error.code === "denied" && !error.message.includes(token);
    assert.throws(() => new Cay({ host, token }), isDenied, host);
    new Cay({ host });
    withVariables({ CAY_INSECURE: "1" }, () => new Cay({ host, token }));
    withVariables({ CAY_TOKEN: token }, () => assert.throws(() => new Cay({ host }), isDenied));
  }
});

test("tokens: nothing in one ends the header; one may be in the file CAY_TOKEN_FILE", async () => {
  for (const token of ["a\r\nx: y", "a b", "\u00e9", "a\0"]) assert.throws(() => new Cay({ token }), Invalid);
  const directory = await mkdtemp(join(tmpdir(), "cay-"));
  try {
    const file = join(directory, "token");
    await writeFile(file, "cay_from_file\n");
    const { findToken } = await internal("credentials");
    const address = parseHost("https://h");
    withVariables({ CAY_TOKEN_FILE: file }, () => assert.equal(findToken(undefined, address), "cay_from_file"));
    withVariables({ CAY_TOKEN_FILE: file }, () => assert.equal(findToken("given", address), "given"));
    withVariables({ CAY_TOKEN_FILE: `${file}.none` }, () => assert.throws(() => new Cay(), Invalid));
  } finally {
    await rm(directory, { recursive: true });
  }
});

test("signals: an undo that comes twice leaves no listener behind", () => {
  const { signal } = new AbortController();
  const first = onAbort(signal, () => {});
  first();
  const second = onAbort(signal, () => {});
  first();
  const third = onAbort(signal, () => {});
  assert.equal(getEventListeners(signal, "abort").length, 1);
  second();
  third();
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("errors: by the code, else by the status", () => {
  const known = errorFromAnswer(404, '{"error":{"code":"not_found","message":"m","detail":{"field":"f"}}}');
  assert.equal(known.name, "NotFound");
  assert.match(known.stack, /^NotFound: m\n/);
  assert.deepEqual(Object.keys(known), ["code", "status", "detail"]);
  assert.deepEqual([known.code, known.status, known.message, known.detail], ["not_found", 404, "m", { field: "f" }]);
  const later = errorFromAnswer(499, '{"error":{"code":"of_a_later_version","message":"m"}}');
  assert.deepEqual([later.constructor, later.code, later.status], [CayError, "of_a_later_version", 499]);
  assert.equal(errorFromAnswer(409, '{"error":{"code":"version","message":"m"}}').name, "VersionMismatch");
  assert.ok(errorFromAnswer(431, "") instanceof TooLarge);
  assert.equal(errorFromAnswer(502, "<html>").code, "unavailable");
  assert.equal(errorFromAnswer(418, "{").code, "internal");
});

test("policies: what Vercel's type allows is one", () => {
  const header = { headers: { Authorization: "Basic x" } };
  for (const policy of [
    "allow-all",
    "deny-all",
    {},
    { allow: [] },
    { allow: ["*", "example.com", "*.example.com", "10.0.0.1"] },
    { allow: { "*": [], "github.com": [{ transform: [header] }], "codeload.github.com": [{ transform: [header] }] } },
    { subnets: { allow: ["10.0.0.0/8", "fd00::/8"], deny: ["0.0.0.0/0"] } },
    { allow: { "a.b": [{ forwardURL: "https://proxy.example/x" }, { response: { statusCode: 403, body: "no" } }] } },
    {
      allow: {
        "a.b": [
          {
            match: {
              path: { startsWith: "/v1" },
              method: ["GET", "POST"],
              queryString: [{ key: { exact: "q" } }],
              headers: [{ key: { regex: "(?i)x-.*" }, value: { exact: "" } }],
            },
            transform: [],
          },
        ],
      },
    },
  ])
    checkNetworkPolicy(policy);
});

test("policies: a name that is not known is Unsupported, as in cayd", () => {
  assert.throws(() => checkNetworkPolicy("open"), { code: "unsupported" });
});

test("policies: what is none is Invalid and says where", () => {
  const rule = (value) => ({ allow: { "a.b": [value] } });
  for (const policy of [
    undefined,
    null,
    7,
    [],
    { alow: [] },
    { allow: "a.b" },
    { allow: [7] },
    { allow: ["http://a.b"] },
    { allow: ["a..b"] },
    { allow: ["a.*.b"] },
    { allow: { "a.b": {} } },
    { subnets: [] },
    { subnets: { allow: ["10.0.0.0"] } },
    { subnets: { allow: ["10.0.0.0/33"] } },
    { subnets: { deny: ["10.0.0/8"] } },
    { subnets: { denied: [] } },
    rule({}),
    rule({ transform: [], forwardURL: "https://x" }),
    rule({ transform: [{ header: {} }] }),
    rule({ transform: [{ headers: { "a b": "c" } }] }),
    rule({ transform: [{ headers: { a: "b\r\nc: d" } }] }),
    rule({ transform: [{ headers: { a: 1 } }] }),
    rule({ forwardURL: "file:///x" }),
    rule({ response: {} }),
    rule({ response: { statusCode: 199 } }),
    rule({ transform: [], match: { path: "/v1" } }),
    rule({ transform: [], match: { path: { exact: "a", regex: "b" } } }),
    rule({ transform: [], match: { method: "GET" } }),
    rule({ transform: [], match: { headers: [{ name: { exact: "a" } }] } }),
  ])
    assert.throws(() => checkNetworkPolicy(policy), Invalid, JSON.stringify(policy));
  assert.throws(() => checkNetworkPolicy({ subnets: { deny: ["x"] } }), /subnets\.deny\[0\]/);
});

test("signals: any number of callbacks behind one listener, none left when they are undone", () => {
  const controller = new AbortController();
  let called = 0;
  const undo = Array.from({ length: 100 }, () => onAbort(controller.signal, () => called++));
  assert.equal(getEventListeners(controller.signal, "abort").length, 1);
  undo.slice(1).forEach((each) => each());
  assert.equal(getEventListeners(controller.signal, "abort").length, 1);
  undo[0]();
  undo[0]();
  assert.equal(getEventListeners(controller.signal, "abort").length, 0);
  const again = onAbort(controller.signal, () => called++);
  controller.abort();
  again();
  assert.equal(called, 1);
  onAbort(controller.signal, () => called++);
  assert.equal(called, 2);
});

test("signals: a promise or a sleep that is aborted rejects with the reason itself", async () => {
  const controller = new AbortController();
  const reason = { any: "thing" };
  const waiting = [orAborted(new Promise(() => {}), controller.signal), sleep(60_000, controller.signal)];
  controller.abort(reason);
  for (const each of waiting) await assert.rejects(each, (error) => error === reason);
  await assert.rejects(sleep(0, controller.signal), (error) => error === reason);
});

/** A process that has written these pieces; `opened` tells where its output was opened. */
function written(pieces, opened = []) {
  return async function* open(since) {
    opened.push(since);
    let offset = 0;
    for (const [stream, data] of pieces) {
      if (offset >= since) yield { stream, data, offset };
      offset += data.length;
    }
  };
}

test("two streams: both over one connection", async () => {
  const opened = [];
  const pieces = [["stdout", encode("a")], ["stderr", encode("b")], ["stdout", encode("c")]];
  const demux = new Demux(written(pieces, opened));
  assert.deepEqual(await Promise.all([text(demux.stream("stdout")), text(demux.stream("stderr"))]), ["ac", "b"]);
  assert.deepEqual(opened, [0]);
});

test("two streams: one that is read long after the other goes on over its own connection, without a gap", async () => {
  const opened = [];
  const pieces = Array.from({ length: 100 }, (_, i) => [i % 2 ? "stderr" : "stdout", Buffer.alloc(20_000, i)]);
  const demux = new Demux(written(pieces, opened));
  const bytes = async (name) => Buffer.from(await new Response(demux.stream(name)).arrayBuffer());
  const wanted = (name) => Buffer.concat(pieces.filter(([stream]) => stream === name).map(([, data]) => data));
  assert.ok((await bytes("stdout")).equals(wanted("stdout")));
  assert.ok((await bytes("stderr")).equals(wanted("stderr")));
  assert.equal(opened.length, 2);
  assert.ok(opened[1] > 0);
});

test("two streams: what nobody reads is not kept", async () => {
  const data = Buffer.alloc(65536);
  async function* endless() {
    for (let i = 0; ; i++) yield { stream: i % 2 ? "stderr" : "stdout", data, offset: i * data.length };
  }
  const reader = new Demux(endless).stream("stdout").getReader();
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 2000; i++) await reader.read();
  globalThis.gc?.();
  assert.ok(process.memoryUsage().arrayBuffers - before < 64 * 1024 * 1024);
  await reader.cancel();
});

test("two streams: an error is for both, a cancelled one ends, the connection is closed with the last", async () => {
  const failure = new Error("mine");
  let closed = 0;
  async function* failing(since, signal) {
    yield { stream: "stdout", data: encode("a"), offset: 0 };
    throw failure;
  }
  const demux = new Demux(failing);
  const isFailure = (error) => error === failure;
  await Promise.all(["stdout", "stderr"].map((name) => assert.rejects(text(demux.stream(name)), isFailure)));
  async function* waiting(since, signal) {
    try {
      await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    } finally {
      closed++;
    }
  }
  const quiet = new Demux(waiting);
  const readers = ["stdout", "stderr"].map((name) => quiet.stream(name).getReader());
  const reads = readers.map((reader) => reader.read());
  await readers[0].cancel();
  assert.equal(closed, 0);
  await readers[1].cancel();
  assert.deepEqual(await Promise.all(reads), [{ value: undefined, done: true }, { value: undefined, done: true }]);
  await new Promise(setImmediate);
  assert.equal(closed, 1);
});

/** Calls `use` with the clock stopped; it is moved on by what it gets. */
function withClock(use) {
  const { now } = Date;
  let at = 1000;
  Date.now = () => at;
  try {
    use((ms) => (at += ms));
  } finally {
    Date.now = now;
  }
}

test("patience ends: pauses grow, and there are not many of them", () => {
  withClock((pass) => {
    const patience = new Patience(() => 5000);
    const pauses = [];
    for (let pause; (pause = patience.nextPause()) !== undefined; pass(pause)) pauses.push(pause);
    assert.deepEqual(pauses.slice(0, 6), [20, 40, 80, 160, 320, 500]);
    assert.equal(pauses.reduce((sum, pause) => sum + pause), 5000);
    patience.progress();
    assert.equal(patience.nextPause(), 20);
  });
});

test("patience: the loss of a connection that held is a new one, and of one that ended without a word it is not", () => {
  for (const word of [true, false])
    withClock((pass) => {
      const patience = new Patience(() => 5000);
      let losses = 0;
      for (; losses < 100 && patience.nextPause() !== undefined; losses++) {
        patience.connected();
        pass(1500);
        if (!word) patience.ended();
      }
      assert.equal(losses, word ? 100 : 4);
    });
});
