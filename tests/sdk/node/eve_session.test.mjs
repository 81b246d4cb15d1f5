// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/eve: the session that tools get, member by member, as eve's types and its own backends have it.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { CayError, Invalid, NotFound, Unsupported } from "cay-sandbox";
import { bytes, cay, newHandle, sandboxOf, sessionKey, text } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

let handle, session, box;
before(async () => {
  handle = await newHandle({ env: { KEPT: "kept" } });
  session = handle.session;
  box = await cay.get(await sandboxOf(handle));
});

const stdout = async (command, options = {}) => (await session.run({ command, ...options })).stdout;

// ---- the object

const MEMBERS = [
  ...["id", "resolvePath", "run", "spawn", "readFile", "readBinaryFile", "readTextFile", "writeFile"],
  ...["writeBinaryFile", "writeTextFile", "removePath", "setNetworkPolicy", "stat", "listDirectory", "deleteFile"],
  ...["getNetworkPolicy", "withNetworkPolicy"],
];

test("a session that eve spreads keeps all of its methods: they are own and enumerable", async () => {
  for (const name of MEMBERS) assert.ok(Object.keys(session).includes(name), name);
  const { run, writeTextFile, readTextFile, resolvePath, setNetworkPolicy } = { ...session };
  assert.equal((await run({ command: "echo hi" })).stdout, "hi\n");
  await writeTextFile({ path: "spread.txt", content: "x" });
  assert.equal(await readTextFile({ path: "spread.txt" }), "x");
  assert.equal(resolvePath("a"), "/workspace/a");
  await setNetworkPolicy("deny-all");
});

test("id is the session key", async () => {
  const key = sessionKey();
  assert.equal((await newHandle({}, { sessionKey: key })).session.id, key);
});

test("resolvePath puts /workspace/ before a relative path and normalises nothing", () => {
  assert.equal(session.resolvePath("a/b"), "/workspace/a/b");
  assert.equal(session.resolvePath("./a/../b"), "/workspace/./a/../b");
  assert.equal(session.resolvePath("/etc/../x"), "/etc/../x");
});

// ---- run

test("run gives exit code, stdout and stderr; a non-zero exit code does not reject", async () => {
  const result = await session.run({ command: "echo out; echo err >&2; exit 3" });
  assert.deepEqual(result, { exitCode: 3, stdout: "out\n", stderr: "err\n" });
});

test("the working directory is /workspace; workingDirectory may be relative to it or absolute", async () => {
  assert.equal(await stdout("pwd"), "/workspace\n");
  await session.run({ command: "mkdir -p sub" });
  assert.equal(await stdout("pwd", { workingDirectory: "sub" }), "/workspace/sub\n");
  assert.equal(await stdout("pwd", { workingDirectory: "/tmp" }), "/tmp\n");
  assert.equal(await stdout("cd /; pwd"), "/\n");
  assert.equal(await stdout("pwd"), "/workspace\n");
});

test("commands are run by a login shell: bash -lc", async () => {
  assert.equal(await stdout("shopt -q login_shell && echo $0"), "bash\n");
});

test("AI_AGENT=eve is in the environment; a call and the option env are stronger", async () => {
  assert.equal(await stdout("echo $AI_AGENT $KEPT"), "eve kept\n");
  assert.equal(await stdout("echo $AI_AGENT $KEPT $MORE", { env: { AI_AGENT: "x", MORE: "y" } }), "x kept y\n");
  const other = await newHandle({ env: { AI_AGENT: "mine" } });
  assert.equal((await other.session.run({ command: "echo $AI_AGENT" })).stdout, "mine\n");
});

test("HOME is an absolute path of one line", async () => {
  assert.match(await stdout(`printf '%s\\n' "$HOME"`), /^\/[^\r\n]*\n$/);
});

test("run decodes output that is not UTF-8 with replacement characters", async () => {
  assert.equal(await stdout("printf 'a\\377b'"), "a\ufffdb");
});

test("output beyond what the sandbox keeps is whole", async () => {
  const { session: small } = await newHandle({ output: 65536 });
  const result = await small.run({ command: "seq 1 100000" });
  const all = Array.from({ length: 100_000 }, (_, i) => `${i + 1}\n`).join("");
  assert.ok(result.exitCode === 0 && result.stdout === all && result.stderr === "");
});

test("standard input is empty", async () => {
  assert.equal(await stdout("cat; echo end"), "end\n");
});

// ---- abort

test("run: an abort kills the whole tree and rejects with the reason", async () => {
  const controller = new AbortController();
  const reason = new Error("enough");
  const running = session.run({ command: "sleep 4711 & sleep 4712", abortSignal: controller.signal });
  await until(() => runs(box, "sleep 4712"));
  controller.abort(reason);
  await assert.rejects(running, (error) => error === reason);
  await until(async () => !(await runs(box, "sleep 471[12]")));
});

test("run and spawn with a signal that is aborted already throw its reason and start nothing", async () => {
  const reason = new Error("too late");
  const abortSignal = AbortSignal.abort(reason);
  await assert.rejects(session.run({ command: "touch /tmp/ran", abortSignal }), (error) => error === reason);
  await assert.rejects(session.spawn({ command: "touch /tmp/ran", abortSignal }), (error) => error === reason);
  assert.equal(await session.stat({ path: "/tmp/ran" }), null);
});

test("spawn: an abort kills the tree, and wait rejects with the reason", async () => {
  const controller = new AbortController();
  const reason = new Error("stop");
  const child = await session.spawn({ command: "sleep 4721 & sleep 4722", abortSignal: controller.signal });
  await until(() => runs(box, "sleep 4722"));
  controller.abort(reason);
  await assert.rejects(child.wait(), (error) => error === reason);
  await until(async () => !(await runs(box, "sleep 472[12]")));
});

test("file methods reject with the reason of an aborted signal", async () => {
  const reason = new Error("no");
  const call = { path: "aborted.txt", abortSignal: AbortSignal.abort(reason) };
  const content = "x";
  for (const started of [
    () => session.readFile(call),
    () => session.readBinaryFile(call),
    () => session.readTextFile(call),
    () => session.writeFile({ ...call, content: new Response(content).body }),
    () => session.writeBinaryFile({ ...call, content: bytes(content) }),
    () => session.writeTextFile({ ...call, content }),
    () => session.removePath(call),
  ])
    await assert.rejects(started(), (error) => error === reason);
  assert.equal(await session.stat({ path: "aborted.txt" }), null);
});

// ---- spawn

test("spawn streams both outputs and waits for the exit code; there is no stdin", async () => {
  const child = await session.spawn({ command: "cat; echo out; echo err >&2; exit 4", env: { A: "b" } });
  assert.ok(!("stdin" in child));
  assert.equal(typeof child.pid, "number");
  assert.deepEqual(await Promise.all([text(child.stdout), text(child.stderr)]), ["out\n", "err\n"]);
  assert.deepEqual(await child.wait(), { exitCode: 4 });
});

test("spawn with stdin: true has a stdin stream; closing it is the end of the input", async () => {
  const child = await session.spawn({ command: "tr a-z A-Z", stdin: true });
  const writer = child.stdin.getWriter();
  await writer.write(bytes("hello "));
  await writer.write(bytes("there"));
  await writer.close();
  assert.equal(await text(child.stdout), "HELLO THERE");
  assert.deepEqual(await child.wait(), { exitCode: 0 });
});

test("kill ends the process with all that it started and may be repeated; wait gives a non-zero exit code", async () => {
  const child = await session.spawn({ command: "sleep 4731 & sleep 4732" });
  await until(() => runs(box, "sleep 4732"));
  await child.kill();
  await child.kill();
  assert.notEqual((await child.wait()).exitCode, 0);
  await until(async () => !(await runs(box, "sleep 473[12]")));
});

// ---- what eve's bash tool needs of a sandbox

test("a background process survives the command that started it, and process groups and signals work across commands", async () => {
  const started = "set -m; (trap 'exit 0' USR1; echo up > /tmp/job; while :; do sleep 0.05; done) > /dev/null 2>&1 & echo $!";
  const group = Number(await stdout(started));
  await until(async () => (await stdout("cat /tmp/job 2>/dev/null")) === "up\n");
  assert.equal((await session.run({ command: `kill -0 -- -${group}` })).exitCode, 0);
  await session.run({ command: `kill -USR1 ${group}` });
  await until(async () => (await session.run({ command: `kill -0 -- -${group} 2>/dev/null` })).exitCode !== 0);
});

test("/tmp persists between commands, and /dev/fd leads to /proc/self/fd", async () => {
  await session.run({ command: "mkdir -p /tmp/.eve/jobs/x && echo 1 > /tmp/.eve/jobs/x/exit" });
  assert.equal(await stdout("cat /tmp/.eve/jobs/x/exit"), "1\n");
  assert.equal(await stdout("readlink /dev/fd; cat <(echo sub)"), "/proc/self/fd\nsub\n");
});

// ---- reading

test("readFile gives a stream of the bytes", async () => {
  await session.writeBinaryFile({ path: "bin", content: Uint8Array.of(0, 255, 10) });
  const stream = await session.readFile({ path: "bin" });
  assert.ok(stream instanceof ReadableStream);
  assert.deepEqual(new Uint8Array(await new Response(stream).arrayBuffer()), Uint8Array.of(0, 255, 10));
  assert.deepEqual(new Uint8Array(await session.readBinaryFile({ path: "/workspace/bin" })), Uint8Array.of(0, 255, 10));
});

test("reading gives null when the file is missing, and only then: a directory rejects", async () => {
  await session.run({ command: "mkdir -p dir; touch plain" });
  for (const name of ["readFile", "readBinaryFile", "readTextFile"]) {
    assert.equal(await session[name]({ path: "missing" }), null, name);
    assert.equal(await session[name]({ path: "missing/too" }), null, name);
    await assert.rejects(session[name]({ path: "dir" }), CayError, name);
    await assert.rejects(session[name]({ path: "plain/below" }), CayError, name);
  }
});

test("files of some megabytes go both ways unchanged", async () => {
  const content = new Uint8Array(3 << 20).map((_, i) => i * 7);
  await session.writeFile({ path: "deep/er/big", content: new Response(content).body });
  assert.deepEqual(new Uint8Array(await session.readBinaryFile({ path: "deep/er/big" })), content);
});

const LINES = "line 1\nline 2\r\nline 3\rline 4";

test("readTextFile: lines are 1-based and inclusive, with the endings that each of them has", async () => {
  await session.writeTextFile({ path: "lines", content: LINES });
  const lines = (startLine, endLine) => session.readTextFile({ path: "lines", startLine, endLine });
  assert.equal(await lines(), LINES);
  assert.equal(await lines(2, 3), "line 2\r\nline 3\r");
  assert.equal(await lines(1, 1), "line 1\n");
  assert.equal(await lines(4), "line 4");
  assert.equal(await lines(undefined, 2), "line 1\nline 2\r\n");
  assert.equal(await lines(3, 99), "line 3\rline 4");
});

test("readTextFile: a start past the end of the file gives the empty string", async () => {
  await session.writeTextFile({ path: "lines", content: LINES });
  assert.equal(await session.readTextFile({ path: "lines", startLine: 5 }), "");
  await session.writeTextFile({ path: "empty", content: "" });
  assert.equal(await session.readTextFile({ path: "empty", startLine: 1, endLine: 3 }), "");
});

test("readTextFile: a line that is not a positive integer throws, before anything is read", async () => {
  for (const line of [0, -1, 1.5, Number.NaN, "2"]) {
    const startLine = /startLine must be a positive integer \(1-based\)\./;
    await assert.rejects(session.readTextFile({ path: "missing", startLine: line }), startLine);
    const endLine = /endLine must be a positive integer \(1-based\)\./;
    await assert.rejects(session.readTextFile({ path: "missing", endLine: line }), endLine);
  }
});

test("readTextFile: a start greater than the end throws", async () => {
  const message = /startLine must not be greater than endLine\./;
  await assert.rejects(session.readTextFile({ path: "missing", startLine: 3, endLine: 2 }), message);
});

test("readTextFile: bytes that are not UTF-8 throw; other encodings are those of Buffer", async () => {
  await session.writeBinaryFile({ path: "latin", content: Uint8Array.of(0xe4) });
  await assert.rejects(session.readTextFile({ path: "latin" }), TypeError);
  await assert.rejects(session.readTextFile({ path: "latin", encoding: "utf8" }), TypeError);
  assert.equal(await session.readTextFile({ path: "latin", encoding: "latin1" }), "ä");
});

// ---- writing

test("writing makes parent directories and replaces what is there; it rejects when the path is a directory", async () => {
  await session.writeTextFile({ path: "w/x/text", content: "old and long" });
  await session.writeTextFile({ path: "w/x/text", content: "ä" });
  assert.deepEqual(new Uint8Array(await session.readBinaryFile({ path: "w/x/text" })), bytes("ä"));
  await session.writeTextFile({ path: "w/x/text", content: "ä", encoding: "latin1" });
  assert.deepEqual(new Uint8Array(await session.readBinaryFile({ path: "w/x/text" })), Uint8Array.of(0xe4));
  await assert.rejects(session.writeTextFile({ path: "w/x", content: "" }), CayError);
  await assert.rejects(session.writeBinaryFile({ path: "w/x", content: bytes("") }), CayError);
  await assert.rejects(session.writeFile({ path: "w/x", content: new Response("a").body }), CayError);
});

test("removePath removes a file, and a link instead of what it points to", async () => {
  await session.run({ command: "mkdir -p r/d && touch r/d/f && ln -s d r/link" });
  await session.removePath({ path: "r/link" });
  await session.removePath({ path: "r/d/f" });
  assert.deepEqual(await session.listDirectory({ path: "r" }), [{ name: "d", type: "directory" }]);
});

test("removePath without recursive rejects for a directory, also for an empty one; force does not change that", async () => {
  await session.run({ command: "mkdir -p r2/empty" });
  await assert.rejects(session.removePath({ path: "r2/empty" }), Invalid);
  await assert.rejects(session.removePath({ path: "r2/empty", force: true }), Invalid);
  await session.removePath({ path: "r2", recursive: true });
  assert.equal(await session.stat({ path: "r2" }), null);
});

test("removePath of what is missing rejects, unless force is given", async () => {
  await assert.rejects(session.removePath({ path: "missing" }), NotFound);
  await assert.rejects(session.removePath({ path: "missing", recursive: true }), NotFound);
  await session.removePath({ path: "missing", force: true });
  await session.removePath({ path: "missing", force: true, recursive: true });
});

test("stat follows links, listDirectory does not, deleteFile deletes the link; null and false when missing", async () => {
  await session.run({ command: "mkdir -p s && printf abc > s/file && ln -s file s/link && mkfifo s/pipe && mkdir s/dir" });
  assert.deepEqual(await session.stat({ path: "s/link" }), { type: "file", size: 3 });
  assert.equal((await session.stat({ path: "s/pipe" })).type, "other");
  assert.equal((await session.stat({ path: "s" })).type, "directory");
  const entries = (await session.listDirectory({ path: "s" })).sort((a, b) => (a.name < b.name ? -1 : 1));
  assert.deepEqual(entries.map(({ name, type }) => `${name} ${type}`), ["dir directory", "file file", "link symlink", "pipe other"]);
  assert.equal(await session.deleteFile({ path: "s/link" }), true);
  assert.equal(await session.deleteFile({ path: "s/link" }), false);
  assert.equal(await session.readTextFile({ path: "s/file" }), "abc");
  await assert.rejects(session.deleteFile({ path: "s/dir" }), CayError);
  await assert.rejects(session.listDirectory({ path: "s/file" }), CayError);
  assert.equal(await session.stat({ path: "missing" }), null);
  assert.equal(await session.listDirectory({ path: "missing" }), null);
});

// ---- the network

const GITHUB = {
  allow: {
    "*": [],
    "github.com": [{ transform: [{ headers: { Authorization: "Basic eDp5" } }] }],
    "codeload.github.com": [{ match: { method: ["GET"], path: { startsWith: "/" } }, transform: [{ headers: {} }] }],
  },
};

test("setNetworkPolicy: deny-all is accepted and is in force", async () => {
  await session.setNetworkPolicy("deny-all");
  assert.equal(await session.getNetworkPolicy(), "deny-all");
  const reach = "exec 3<>/dev/tcp/192.0.2.1/80";
  assert.notEqual((await session.run({ command: reach })).exitCode, 0);
});

test("setNetworkPolicy: every valid form but deny-all is unsupported, and nothing changes", async () => {
  const forms = [
    "allow-all",
    "open",
    { allow: ["*.example.org", "github.com"], subnets: { allow: ["10.0.0.0/8"], deny: ["10.1.0.0/16"] } },
    GITHUB,
    { allow: { "example.com": [{ forwardURL: "https://proxy.example/x" }] } },
    { allow: { "example.com": [{ response: { statusCode: 404, body: "no" } }] } },
    {},
  ];
  for (const form of forms) await assert.rejects(session.setNetworkPolicy(form), Unsupported, JSON.stringify(form));
  assert.equal(await session.getNetworkPolicy(), "deny-all");
});

test("setNetworkPolicy: what is no policy is invalid", async () => {
  const bad = [
    null,
    { allow: "x" },
    { deny: [] },
    { allow: { "example.com": [{ transform: [], forwardURL: "https://x.example" }] } },
    { allow: { "example.com": [{ match: { path: { exact: "/", regex: "." } }, transform: [] }] } },
    { subnets: { allow: ["10.0.0.0/99"] } },
    { allow: { "example.com": [{ response: { statusCode: 42 } }] } },
  ];
  for (const policy of bad) await assert.rejects(session.setNetworkPolicy(policy), Invalid, JSON.stringify(policy));
});

test("withNetworkPolicy sets a policy, gives what the function gives, and restores the one before; one that is refused runs nothing", async () => {
  assert.equal(await session.withNetworkPolicy("deny-all", async () => 42), 42);
  const broken = new Error("broken");
  await assert.rejects(session.withNetworkPolicy("deny-all", () => Promise.reject(broken)), (error) => error === broken);
  await assert.rejects(session.withNetworkPolicy(GITHUB, () => assert.fail("ran")), Unsupported);
  assert.equal(await session.getNetworkPolicy(), "deny-all");
});
