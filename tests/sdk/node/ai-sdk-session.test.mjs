// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk: the members of Experimental_SandboxSession, one by one, as the AI SDK's types and reference state them.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { extractLines } from "@ai-sdk/provider-utils";
import { Cay, Invalid, NotFound } from "cay-sandbox";
import { createCaySandbox, createSandboxSession } from "cay-sandbox/ai-sdk";

const cay = new Cay();
const text = (stream) => new Response(stream).text();
const bytes = (string) => new TextEncoder().encode(string);
const streamOf = (...chunks) => ReadableStream.from(chunks.map(bytes));
const aborted = (reason) => AbortSignal.abort(reason);

let box, session;
before(async () => {
  box = await cay.create({ idle: 300, env: { SHARED: "sandbox", KEPT: "kept" } });
  session = createSandboxSession(box);
});
after(() => box?.remove());

/** Resolves when no process of the sandbox has these words in its command line. */
async function untilGone(words) {
  const [first, ...rest] = words;
  for (;;) {
    const { exitCode } = await box.exec(["pgrep", "-f", `[${first}]${rest.join("")}`]);
    if (exitCode === 1) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// ---- the object, description, paths

const MEMBERS = [
  ...["description", "run", "spawn", "readFile", "readBinaryFile", "readTextFile", "writeFile", "writeBinaryFile"],
  ...["writeTextFile", "stat", "listDirectory", "deleteFile"],
];

test("a session is a plain object with own enumerable members: a spread copy works alike", async () => {
  assert.deepEqual(Object.keys(session).sort(), [...MEMBERS].sort());
  const copy = { ...session };
  assert.equal((await copy.run({ command: "echo hi" })).stdout, "hi\n");
  await copy.writeTextFile({ path: "spread.txt", content: "x" });
  assert.equal(await copy.readTextFile({ path: "spread.txt" }), "x");
});

test("description is a required string that names the base directory; it can be given", () => {
  assert.match(session.description, /\/workspace/);
  assert.match(session.description, new RegExp(box.id));
  assert.equal(createSandboxSession(box, { description: "mine" }).description, "mine");
});

test("making a session does no I/O: a sandbox that does not exist is told of by the first call", async () => {
  const nowhere = createSandboxSession(cay.attach("does-not-exist"));
  await assert.rejects(nowhere.run({ command: "true" }), NotFound);
});

test("relative paths of every method and workingDirectory resolve against the directory run starts in", async () => {
  assert.equal((await session.run({ command: "pwd" })).stdout, "/workspace\n");
  assert.equal(await text((await session.spawn({ command: "pwd" })).stdout), "/workspace\n");
  await session.writeTextFile({ path: "rel/a.txt", content: "text" });
  await session.writeBinaryFile({ path: "./rel/b.bin", content: bytes("binary") });
  await session.writeFile({ path: "rel/../rel/c.bin", content: streamOf("stream") });
  const { stdout } = await session.run({ command: "pwd; cat a.txt b.bin c.bin", workingDirectory: "rel" });
  assert.equal(stdout, "/workspace/rel\ntextbinarystream");
  const spawned = await session.spawn({ command: "pwd", workingDirectory: "rel/" });
  assert.equal(await text(spawned.stdout), "/workspace/rel\n");
  assert.equal(await session.readTextFile({ path: "rel/a.txt" }), "text");
  assert.deepEqual(await session.readBinaryFile({ path: "rel/b.bin" }), bytes("binary"));
  assert.equal(await text(await session.readFile({ path: "rel/c.bin" })), "stream");
  assert.deepEqual(await session.stat({ path: "rel/a.txt" }), { type: "file", size: 4 });
  assert.equal((await session.listDirectory({ path: "rel" })).length, 3);
  assert.equal(await session.deleteFile({ path: "rel/a.txt" }), true);
  assert.equal(await session.stat({ path: "/workspace/rel/a.txt" }), null);
});

test("a path that a command prints can be given to a file method", async () => {
  await session.writeTextFile({ path: "found/here.txt", content: "needle" });
  const { stdout } = await session.run({ command: "grep -rl needle found" });
  assert.equal(await session.readTextFile({ path: stdout.trim() }), "needle");
});

test("absolute paths are used as is", async () => {
  await session.writeTextFile({ path: "/tmp/abs.txt", content: "abs" });
  assert.equal((await session.run({ command: "cat abs.txt", workingDirectory: "/tmp" })).stdout, "abs");
});

test("the base directory never changes: cd in a command affects that command only", async () => {
  assert.equal((await session.run({ command: "cd /tmp && pwd" })).stdout, "/tmp\n");
  assert.equal((await session.run({ command: "pwd" })).stdout, "/workspace\n");
});

test("another base directory can be given, and has to be absolute", async () => {
  const other = createSandboxSession(box, { workingDirectory: "/tmp/" });
  await other.writeTextFile({ path: "base.txt", content: "there" });
  assert.equal((await other.run({ command: "pwd; cat base.txt" })).stdout, "/tmp\nthere");
  const root = createSandboxSession(box, { workingDirectory: "/" });
  assert.equal(await root.readTextFile({ path: "tmp/base.txt" }), "there");
  assert.throws(() => createSandboxSession(box, { workingDirectory: "rel" }), Invalid);
});

// ---- run

test("run gives exitCode, stdout and stderr, and a non-zero exit does not reject", async () => {
  const result = await session.run({ command: "echo out; echo err >&2; exit 3" });
  assert.deepEqual(result, { exitCode: 3, stdout: "out\n", stderr: "err\n" });
});

test("run: the command is run by bash -c, not by a login shell; an empty one does nothing", async () => {
  const command = "[[ a == a ]] && shopt -q login_shell; echo $? ${BASH_VERSION:+bash}";
  const { stdout } = await session.run({ command });
  assert.equal(stdout, "1 bash\n");
  assert.deepEqual(await session.run({ command: "" }), { exitCode: 0, stdout: "", stderr: "" });
});

test("run: env is merged over the sandbox's environment, the caller's wins, for that command only", async () => {
  const command = 'printf "%s|%s|%s" "$SHARED" "$KEPT" "$NEW"';
  const value = 'with spaces and "$(shell syntax)"';
  const { stdout } = await session.run({ command, env: { SHARED: "caller", NEW: value } });
  assert.equal(stdout, `caller|kept|${value}`);
  assert.equal((await session.run({ command })).stdout, "sandbox|kept|");
  const spawned = await session.spawn({ command, env: { SHARED: "spawned" } });
  assert.equal(await text(spawned.stdout), "spawned|kept|");
});

test("run: output that is not UTF-8 has U+FFFD in the place of what is wrong", async () => {
  assert.equal((await session.run({ command: "printf 'a\\377b'" })).stdout, "a\ufffdb");
});

test("run: a result of more than the sandbox keeps is whole", async () => {
  const small = await createCaySandbox({ output: 4096, idle: 60 });
  try {
    const { stdout, stderr } = await small.run({ command: "seq 10000" });
    assert.ok(stdout === Array.from({ length: 10_000 }, (_, i) => `${i + 1}\n`).join("") && stderr === "");
  } finally {
    await small.remove();
  }
});

test("run: a working directory that is not there rejects", async () => {
  await assert.rejects(session.run({ command: "true", workingDirectory: "no/such" }), NotFound);
});

test("run: a signal that has aborted rejects with its reason before the command starts", async () => {
  const reason = new Error("enough");
  const running = session.run({ command: "touch started-by-run", abortSignal: aborted(reason) });
  await assert.rejects(running, (error) => error === reason);
  assert.equal(await session.stat({ path: "started-by-run" }), null);
});

test("run: an abort rejects with the reason and kills the command with what it started", async () => {
  const controller = new AbortController();
  const reason = { any: "value" };
  const running = session.run({ command: "sleep 4101 & touch run-begun; wait", abortSignal: controller.signal });
  while ((await session.stat({ path: "run-begun" })) === null);
  controller.abort(reason);
  await assert.rejects(running, (error) => error === reason);
  await untilGone("sleep 4101");
});

// ---- spawn

test("spawn returns at once with a pid, streams of bytes, and wait() with the exit code", async () => {
  const child = await session.spawn({ command: "echo out; echo err >&2; exit 7" });
  assert.equal(typeof child.pid, "number");
  assert.ok(child.stdout instanceof ReadableStream && child.stderr instanceof ReadableStream);
  const [stdout, stderr, exit] = await Promise.all([text(child.stdout), text(child.stderr), child.wait()]);
  assert.deepEqual([stdout, stderr, exit], ["out\n", "err\n", { exitCode: 7 }]);
  assert.deepEqual(await child.wait(), { exitCode: 7 });
});

test("spawn: the output comes as it is written, not at the end", async () => {
  const child = await session.spawn({ command: "echo now; cat", stdin: true });
  const reader = child.stdout.getReader();
  assert.equal(new TextDecoder().decode((await reader.read()).value), "now\n");
  await reader.cancel();
  await child.kill();
});

test("spawn: standard output can be read alone, however much comes on the other stream", async () => {
  const child = await session.spawn({ command: "head -c 3000000 /dev/zero >&2; echo done" });
  assert.equal(await text(child.stdout), "done\n");
  assert.deepEqual(await child.wait(), { exitCode: 0 });
});

test("spawn without stdin: standard input is closed and the handle has no stdin property", async () => {
  for (const options of [{}, { stdin: false }, { stdin: undefined }]) {
    const child = await session.spawn({ command: "cat; echo eof", ...options });
    assert.equal("stdin" in child, false);
    assert.equal(await text(child.stdout), "eof\n");
  }
});

test("spawn with stdin: closing it delivers EOF after pending writes, without killing", async () => {
  const child = await session.spawn({ command: "cat; echo still here; exit 5", stdin: true });
  assert.ok(child.stdin instanceof WritableStream);
  const writer = child.stdin.getWriter();
  const sent = "x".repeat(300_000);
  writer.write(bytes(sent));
  writer.write(bytes("\n"));
  const closed = writer.close();
  assert.equal(await text(child.stdout), `${sent}\nstill here\n`);
  await closed;
  assert.deepEqual(await child.wait(), { exitCode: 5 });
});

test("spawn: files are shared with the file methods", async () => {
  await session.writeTextFile({ path: "shared.txt", content: "payload" });
  const child = await session.spawn({ command: "cat shared.txt; echo back > back.txt" });
  assert.equal(await text(child.stdout), "payload");
  await child.wait();
  assert.equal(await session.readTextFile({ path: "back.txt" }), "back\n");
});

test("kill ends the process and what it started, is idempotent, and wait() resolves with a non-zero code", async () => {
  const child = await session.spawn({ command: "sleep 4102 & sleep 4102; wait" });
  await Promise.all([child.kill(), child.kill()]);
  await child.kill();
  assert.notEqual((await child.wait()).exitCode, 0);
  await untilGone("sleep 4102");
  const ended = await session.spawn({ command: "true" });
  await ended.wait();
  await ended.kill();
  assert.deepEqual(await ended.wait(), { exitCode: 0 });
});

test("spawn: a signal that has aborted rejects with its reason before the command starts", async () => {
  const reason = new Error("enough");
  for (const stdin of [true, false]) {
    const spawning = session.spawn({ command: "touch started-by-spawn", stdin, abortSignal: aborted(reason) });
    await assert.rejects(spawning, (error) => error === reason);
  }
  assert.equal(await session.stat({ path: "started-by-spawn" }), null);
});

test("spawn: an abort kills the process and what it started, and wait() rejects with the reason", async () => {
  const controller = new AbortController();
  const reason = new Error("stop it");
  const child = await session.spawn({ command: "sleep 4103 & wait", abortSignal: controller.signal });
  const early = assert.rejects(child.wait(), (error) => error === reason);
  controller.abort(reason);
  await early;
  await assert.rejects(child.wait(), (error) => error === reason);
  await untilGone("sleep 4103");
});

test("spawn: an abort without a reason makes wait() reject with an AbortError", async () => {
  const controller = new AbortController();
  const child = await session.spawn({ command: "sleep 4104", abortSignal: controller.signal });
  controller.abort();
  await assert.rejects(child.wait(), (error) => error instanceof DOMException && error.name === "AbortError");
});

test("spawn: an abort after wait() has told the exit code changes nothing", async () => {
  const controller = new AbortController();
  const child = await session.spawn({ command: "exit 4", abortSignal: controller.signal });
  assert.deepEqual(await child.wait(), { exitCode: 4 });
  controller.abort();
  assert.deepEqual(await child.wait(), { exitCode: 4 });
});

// ---- reading

test("readFile, readBinaryFile and readTextFile give the bytes, also many of them", async () => {
  const content = new Uint8Array(3_000_000).map((_, i) => (i * 31) % 256);
  await session.writeBinaryFile({ path: "large.bin", content });
  const read = await session.readBinaryFile({ path: "large.bin" });
  assert.equal(Object.getPrototypeOf(read), Uint8Array.prototype);
  assert.ok(Buffer.from(content).equals(read));
  const chunks = [];
  for await (const chunk of await session.readFile({ path: "large.bin" })) chunks.push(chunk);
  assert.ok(chunks.length > 1 && Buffer.from(content).equals(Buffer.concat(chunks)));
  await session.writeTextFile({ path: "empty.txt", content: "" });
  assert.equal(await session.readTextFile({ path: "empty.txt" }), "");
  assert.deepEqual(await session.readBinaryFile({ path: "empty.txt" }), new Uint8Array());
  assert.equal(await text(await session.readFile({ path: "empty.txt" })), "");
});

const READERS = ["readFile", "readBinaryFile", "readTextFile"];

test("reading gives null if the file does not exist, and only then: all else rejects", async () => {
  await session.writeTextFile({ path: "a-file", content: "" });
  await session.run({ command: "mkdir a-directory; ln -s nothing dangling; mkfifo a-pipe" });
  const nowhere = createSandboxSession(cay.attach("does-not-exist"));
  for (const name of READERS) {
    for (const path of ["none", "none/below", "/none", "dangling"])
      assert.equal(await session[name]({ path }), null, name);
    await assert.rejects(session[name]({ path: "a-directory" }), Invalid, name);
    await assert.rejects(session[name]({ path: "a-file/below" }), Invalid, name);
    await assert.rejects(session[name]({ path: "a-pipe" }), Invalid, name);
    await assert.rejects(session[name]({ path: "nul\0" }), Invalid, name);
    await assert.rejects(nowhere[name]({ path: "a-file" }), NotFound, name);
  }
});

test("a file of another's, which the sandbox's user may not read, rejects", async () => {
  const sandbox = await createCaySandbox({ client: cay, user: "user", idle: 60 });
  try {
    await cay.attach(sandbox.id).files.write("/workspace/secret", "x", { user: "root", mode: 0o600 });
    for (const name of READERS) await assert.rejects(sandbox[name]({ path: "secret" }), { code: "denied" });
  } finally {
    await sandbox.remove();
  }
});

test("readTextFile: encoding is utf-8 by default, others are those of Buffer, unknown ones reject", async () => {
  await session.writeTextFile({ path: "enc.txt", content: "\ufeffäöü €" });
  assert.equal(await session.readTextFile({ path: "enc.txt" }), "\ufeffäöü €");
  for (const encoding of ["utf16le", "latin1", "base64", "hex"]) {
    const content = { utf16le: "äöü €", latin1: "äöü", base64: "AQID", hex: "00ff" }[encoding];
    await session.writeTextFile({ path: "enc.txt", content, encoding });
    assert.deepEqual(await session.readBinaryFile({ path: "enc.txt" }), new Uint8Array(Buffer.from(content, encoding)));
    assert.equal(await session.readTextFile({ path: "enc.txt", encoding }), content);
  }
  await assert.rejects(session.readTextFile({ path: "enc.txt", encoding: "klingon" }), Invalid);
  await assert.rejects(session.writeTextFile({ path: "enc.txt", content: "", encoding: "klingon" }), Invalid);
});

test("readTextFile: what is not UTF-8 becomes U+FFFD", async () => {
  await session.writeBinaryFile({ path: "broken.txt", content: new Uint8Array([0x61, 0xff, 0xfe, 0x62]) });
  assert.equal(await session.readTextFile({ path: "broken.txt" }), "a\ufffd\ufffdb");
});

test("readTextFile: line ranges are 1-based and inclusive, clamped, without the last line's ending", async () => {
  await session.writeTextFile({ path: "lines.txt", content: "line 1\nline 2\nline 3\nline 4\n" });
  const lines = (range) => session.readTextFile({ path: "lines.txt", ...range });
  assert.equal(await lines({ startLine: 2, endLine: 3 }), "line 2\nline 3");
  assert.equal(await lines({ startLine: 3 }), "line 3\nline 4\n");
  assert.equal(await lines({ endLine: 1 }), "line 1");
  assert.equal(await lines({ startLine: 0, endLine: 1 }), "line 1");
  assert.equal(await lines({ startLine: -5, endLine: 1 }), "line 1");
  assert.equal(await lines({ startLine: 3, endLine: 2 }), "");
  assert.equal(await lines({ startLine: 99 }), "");
  assert.equal(await lines({ startLine: 4, endLine: 99 }), "line 4\n");
  assert.equal(await lines({}), "line 1\nline 2\nline 3\nline 4\n");
});

test("readTextFile: every range of every kind of text is what the published extractLines gives", async () => {
  const texts = ["", "one", "a\nb\nc", "a\r\nb\r\nc\r\n", "a\rb\rc", "mixed\r\nb\nc\rd", "\n\n", "a\nb\r"];
  const numbers = [undefined, -1, 0, 1.5, 2, 99];
  for (const [i, content] of texts.entries()) {
    const path = `ranges-${i}.txt`;
    await session.writeTextFile({ path, content });
    for (const startLine of numbers)
      for (const endLine of numbers) {
        const expected = extractLines({ text: content, startLine, endLine });
        const got = await session.readTextFile({ path, startLine, endLine });
        assert.equal(got, expected, `${i} ${startLine} ${endLine}`);
      }
  }
});

// ---- writing

const WRITERS = {
  writeFile: (string) => streamOf(string),
  writeBinaryFile: (string) => bytes(string),
  writeTextFile: (string) => string,
};

test("writing creates parents and overwrites", async () => {
  for (const [name, content] of Object.entries(WRITERS)) {
    const path = `new/${name}/deep/file.txt`;
    await session[name]({ path, content: content("a long first text") });
    await session[name]({ path, content: content("second") });
    assert.equal(await session.readTextFile({ path }), "second", name);
  }
});

test("writing rejects when the path is a directory, and leaves it alone", async () => {
  await session.run({ command: "mkdir -p target/inner" });
  for (const [name, content] of Object.entries(WRITERS))
    for (const path of ["target", "target/", "/workspace", "."])
      await assert.rejects(session[name]({ path, content: content("x") }), Invalid, `${name} ${path}`);
  assert.deepEqual(await session.listDirectory({ path: "target" }), [{ name: "inner", type: "directory" }]);
});

test("writeFile: a stream that fails rejects with its error and leaves the file as it was", async () => {
  await session.writeTextFile({ path: "whole.txt", content: "old" });
  const failure = new Error("source failed");
  const content = new ReadableStream({
    start: (controller) => controller.enqueue(bytes("half of the ne")),
    pull: (controller) => controller.error(failure),
  });
  await assert.rejects(session.writeFile({ path: "whole.txt", content }), (error) => error === failure);
  assert.equal(await session.readTextFile({ path: "whole.txt" }), "old");
});

// ---- stat, listDirectory, deleteFile

test("stat gives type and size, follows links, and null if the path does not exist", async () => {
  await session.run({ command: "mkdir -p st/d; cd st; echo 1234 > f; ln -s f lf; ln -s d ld; ln -s no bad; mkfifo p" });
  assert.deepEqual(await session.stat({ path: "st/f" }), { type: "file", size: 5 });
  assert.deepEqual(await session.stat({ path: "st/lf" }), { type: "file", size: 5 });
  assert.equal((await session.stat({ path: "st/d" })).type, "directory");
  assert.equal((await session.stat({ path: "st/ld" })).type, "directory");
  assert.equal((await session.stat({ path: "st/p" })).type, "other");
  assert.equal((await session.stat({ path: "/dev/null" })).type, "other");
  assert.equal(await session.stat({ path: "st/none" }), null);
  assert.equal(await session.stat({ path: "st/bad" }), null);
  await assert.rejects(session.stat({ path: "st/f/below" }), Invalid);
});

test("listDirectory gives names and types of one level, with links as links", async () => {
  const command = "mkdir -p ls/d/deep ls-empty; cd ls; touch f .dot; ln -s f lf; ln -s d ld; ln -s no bad; mkfifo p";
  await session.run({ command });
  const found = await session.listDirectory({ path: "ls" });
  assert.deepEqual(Object.fromEntries(found.map(({ name, type }) => [name, type])), {
    ".dot": "file",
    bad: "symlink",
    d: "directory",
    f: "file",
    ld: "symlink",
    lf: "symlink",
    p: "other",
  });
  assert.ok(found.every((entry) => Object.keys(entry).length === 2));
  assert.deepEqual(await session.listDirectory({ path: "ls/ld" }), [{ name: "deep", type: "directory" }]);
  assert.deepEqual(await session.listDirectory({ path: "ls-empty" }), []);
});

test("listDirectory gives null if the path does not exist and rejects if it is not a directory", async () => {
  await session.writeTextFile({ path: "plain", content: "" });
  assert.equal(await session.listDirectory({ path: "nothing" }), null);
  await assert.rejects(session.listDirectory({ path: "plain" }), Invalid);
  await assert.rejects(session.listDirectory({ path: "plain/below" }), Invalid);
});

test("deleteFile: true if it was deleted, false if there is none", async () => {
  await session.writeTextFile({ path: "gone.txt", content: "" });
  assert.equal(await session.deleteFile({ path: "gone.txt" }), true);
  assert.equal(await session.deleteFile({ path: "gone.txt" }), false);
  assert.equal(await session.deleteFile({ path: "no/such/parent" }), false);
});

test("deleteFile: of a link the link itself is deleted, not its target", async () => {
  await session.run({ command: "mkdir -p del/d; cd del; echo kept > f; ln -s f lf; ln -s d ld; ln -s no bad" });
  for (const path of ["del/lf", "del/ld", "del/bad"]) assert.equal(await session.deleteFile({ path }), true);
  assert.equal(await session.readTextFile({ path: "del/f" }), "kept\n");
  assert.equal((await session.stat({ path: "del/d" })).type, "directory");
});

test("deleteFile rejects on a directory, also an empty one, and leaves it alone", async () => {
  await session.run({ command: "mkdir -p full/inner" });
  await assert.rejects(session.deleteFile({ path: "full" }), Invalid);
  await assert.rejects(session.deleteFile({ path: "full/inner" }), Invalid);
  assert.deepEqual(await session.listDirectory({ path: "full" }), [{ name: "inner", type: "directory" }]);
});

test("every file method rejects with the reason of a signal that has aborted, and does nothing", async () => {
  const reason = new Error("no time");
  await session.writeTextFile({ path: "kept.txt", content: "kept" });
  for (const name of MEMBERS.filter((each) => !["description", "run", "spawn"].includes(each))) {
    const content = WRITERS[name]?.("changed");
    const call = session[name]({ path: "kept.txt", content, abortSignal: aborted(reason) });
    await assert.rejects(call, (error) => error === reason, name);
  }
  assert.equal(await session.readTextFile({ path: "kept.txt" }), "kept");
});

test("an abort while a file is read or written rejects with the reason", async () => {
  const reason = new Error("no time");
  const reading = new AbortController();
  await session.run({ command: "head -c 20000000 /dev/zero > many.bin" });
  const stream = await session.readFile({ path: "many.bin", abortSignal: reading.signal });
  const reader = stream.getReader();
  await reader.read();
  reading.abort(reason);
  await assert.rejects(
    async () => {
      while (!(await reader.read()).done);
    },
    (error) => error === reason,
  );
  const writing = new AbortController();
  const content = new ReadableStream({
    pull: (controller) => {
      controller.enqueue(bytes("part"));
      writing.abort(reason);
      return new Promise(() => {});
    },
  });
  const written = session.writeFile({ path: "never.bin", content, abortSignal: writing.signal });
  await assert.rejects(written, (error) => error === reason);
  assert.equal(await session.stat({ path: "never.bin" }), null);
});
