// SPDX-License-Identifier: Apache-2.0
//
// Files: whole and in parts, large and small, lists, searches, changes, archives.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { CayError, Denied, Invalid, NoSpace, NotFound } from "cay-sandbox";
import { encode, shared, text, until } from "./sdk_support.mjs";

const context = shared();
const files = () => context.box.files;
const digest = (bytes) => createHash("sha256").update(bytes).digest("hex");

test("write and read: text, bytes, nothing; directories are made", async () => {
  await files().write("/w/a/b.txt", "grüße\n");
  assert.equal(await files().readText("/w/a/b.txt"), "grüße\n");
  const bytes = new Uint8Array([0, 255, 128, 10]);
  await files().write("/w/bytes", bytes);
  const got = await files().read("/w/bytes");
  assert.deepEqual(got, bytes);
  assert.equal(got.buffer.byteLength, 4);
  await files().write("/w/empty", "");
  assert.equal((await files().read("/w/empty")).length, 0);
  assert.equal(await text(await files().stream("/w/empty")), "");
});

test("write: a part of a larger array is that part", async () => {
  await files().write("/w/part", new Uint8Array([1, 2, 3, 4]).subarray(1, 3));
  assert.deepEqual(await files().read("/w/part"), new Uint8Array([2, 3]));
});

test("readText: what is not UTF-8 is U+FFFD, or an error if asked; a mark of order is kept", async () => {
  await files().write("/w/latin", new Uint8Array([97, 233, 98]));
  assert.equal(await files().readText("/w/latin"), "a\ufffdb");
  await assert.rejects(files().readText("/w/latin", { fatal: true }), TypeError);
  await files().write("/w/bom", "\ufeffx");
  assert.equal(await files().readText("/w/bom"), "\ufeffx");
});

test("paths with spaces, percent signs, plus signs and letters of all kinds", async () => {
  for (const name of ["a b", "50%", "a+b&c=d", "ünï→", "#?", "'\""]) {
    await files().write(`/w/odd/${name}`, name);
    assert.equal(await files().readText(`/w/odd/${name}`), name);
  }
  assert.equal((await files().list("/w/odd")).length, 6);
});

test("20 MB go in and come back, as bytes and as streams", async () => {
  const bytes = randomBytes(20_000_000);
  await files().write("/w/large", bytes);
  assert.equal(digest(await files().read("/w/large")), digest(bytes));
  await files().write("/w/copy", await files().stream("/w/large"));
  assert.equal((await context.box.exec("sha256sum < /w/copy")).stdout.split(" ")[0], digest(bytes));
  async function* parts() {
    for (let at = 0; at < bytes.length; at += 300_000) yield bytes.subarray(at, at + 300_000);
  }
  await files().write("/w/copy", parts());
  const copy = await new Response(await files().stream("/w/copy")).arrayBuffer();
  assert.equal(digest(new Uint8Array(copy)), digest(bytes));
  await files().remove("/w/large");
  await files().remove("/w/copy");
});

test("write: a source that fails leaves the old file, and its error is the rejection", async () => {
  await files().write("/w/kept", "old");
  const failure = new Error("mine");
  async function* failing() {
    yield encode("new");
    throw failure;
  }
  await assert.rejects(files().write("/w/kept", failing()), (error) => error === failure);
  assert.equal(await files().readText("/w/kept"), "old");
});

test("write: refused before all of it was sent, the reason is told all the same", async () => {
  await assert.rejects(files().write("/usr", randomBytes(20_000_000)), Invalid);
  let closed;
  async function* endless() {
    try {
      for (;;) yield new Uint8Array(65536);
    } finally {
      closed = true;
    }
  }
  const none = context.cay.attach("no-such-sandbox").files;
  await assert.rejects(none.write("/x", randomBytes(20_000_000)), NotFound);
  await assert.rejects(none.write("/x", endless()), NotFound);
  await until(() => closed);
});

test("write: a full disk is told, however much is still to come", async () => {
  const small = await context.cay.create({ disk: "16M" });
  try {
    await assert.rejects(small.files.write("/tmp/x", new Uint8Array(100 << 20)), NoSpace);
    async function* pieces() {
      for (let i = 0; i < 1024; i++) yield new Uint8Array(1 << 20);
    }
    await assert.rejects(small.files.write("/tmp/x", pieces()), NoSpace);
    await assert.rejects(small.files.write("/tmp", new Uint8Array(200 << 20)), Invalid);
  } finally {
    await small.remove({ force: true });
  }
});

test("write: the mode that is given, else 644, else what the file had", async () => {
  await files().write("/w/run", "#!/bin/sh\n", { mode: 0o755 });
  assert.equal((await files().stat("/w/run")).mode, 0o755);
  await files().write("/w/run", "#!/bin/sh\n\n");
  assert.equal((await files().stat("/w/run")).mode, 0o755);
  await files().write("/w/plain", "");
  assert.equal((await files().stat("/w/plain")).mode, 0o644);
});

test("user: whose rights are used", async () => {
  await assert.rejects(files().write("/root/x", "x", { user: "user" }), Denied);
  await files().write("/home/user/x", "x", { user: "user" });
  assert.notEqual((await files().stat("/home/user/x")).uid, 0);
});

test("stream: parts from start to before end; behind the end there is nothing", async () => {
  await files().write("/w/digits", "0123456789");
  const part = async (start, end) => text(await files().stream("/w/digits", { start, end }));
  assert.equal(await part(2, 5), "234");
  assert.equal(await part(7), "789");
  assert.equal(await part(undefined, 3), "012");
  assert.equal(await part(8, 100), "89");
  assert.equal(await part(10), "");
  assert.equal(await part(50, 60), "");
  assert.equal(await part(3, 3), "");
  for (const range of [[5, 3], [-1], [1.5], [NaN], [2, 4.5], [1e21], ["3"]]) await assert.rejects(part(...range), Invalid);
  await assert.rejects(files().stream("/w/none", { start: 3, end: 3 }), NotFound);
  await assert.rejects(files().stream("/w/none"), NotFound);
});

test("read: a missing file is NotFound, a directory is Invalid, a relative path is Invalid", async () => {
  await assert.rejects(files().read("/w/none"), NotFound);
  await assert.rejects(files().read("/w"), Invalid);
  await assert.rejects(files().read("w"), Invalid);
  await assert.rejects(files().read(""), Invalid);
});

test("stat and exists: of links and of what they point to", async () => {
  await files().write("/w/target", "12345");
  await context.box.exec("ln -sf target /w/link; ln -sf nowhere /w/dangling; mkdir -p /w/dir; mkfifo /w/pipe");
  const info = await files().stat("/w/target");
  assert.deepEqual([info.name, info.path, info.type, info.size], ["target", "/w/target", "file", 5]);
  assert.ok(Math.abs(info.mtimeMs - Date.now()) < 3_600_000);
  const link = await files().stat("/w/link");
  assert.deepEqual([link.type, link.target], ["link", "target"]);
  assert.deepEqual((await files().stat("/w/link", { follow: true })).size, 5);
  assert.equal((await files().stat("/w/dir")).type, "directory");
  assert.equal((await files().stat("/w/pipe")).type, "pipe");
  assert.equal((await files().stat("/")).name, "/");
  await assert.rejects(files().stat("/w/none"), NotFound);
  assert.equal(await files().exists("/w/link"), true);
  assert.equal(await files().exists("/w/dangling"), false);
  assert.equal(await files().exists("/w/none"), false);
});

test("list: sorted, with paths, to a depth; an error where there is no directory", async () => {
  await context.box.exec("mkdir -p /l/b/c; touch /l/a /l/b/x /l/b/c/y");
  const names = async (options) => (await files().list("/l", options)).map(({ path, type }) => `${path} ${type}`);
  assert.deepEqual(await names(), ["/l/a file", "/l/b directory"]);
  assert.deepEqual((await names({ depth: 2 })).sort(), [
    "/l/a file",
    "/l/b directory",
    "/l/b/c directory",
    "/l/b/x file",
  ]);
  const deep = (await files().list("/l", { depth: 9 })).find((entry) => entry.path === "/l/b/c/y");
  assert.equal(deep.name, "y");
  await assert.rejects(files().list("/none"), NotFound);
  await assert.rejects(files().list("/l/a"), CayError);
});

test("what was found in spite of an error is with it", async () => {
  await files().write("/partly/a/one", "line\n", { mode: 0o644 });
  await files().write("/partly/closed/two", "line\n", { mode: 0o644 });
  await context.box.exec("chmod 755 /partly /partly/a; chmod 700 /partly/closed");
  const user = "65534:65534";
  const match = [{ path: "/partly/a/one", line: 1, text: "line" }];
  await assert.rejects(files().grep("/partly", "line", { user }), (error) => {
    assert.ok(error instanceof Denied);
    assert.deepEqual(error.found, match);
    return true;
  });
  await assert.rejects(files().find("/partly", { glob: "one", user }), (error) => {
    assert.deepEqual(error.found.map(({ path }) => path), ["/partly/a/one"]);
    return true;
  });
});

test("find and grep: by name and by content, to a limit", async () => {
  await files().write("/f/a.py", "say hello\n");
  await files().write("/f/src/b.py", "a.b HELLO\n");
  await files().write("/f/c.txt", "x\n");
  const found = async (options) => (await files().find("/f", options)).map((entry) => entry.path).sort();
  assert.deepEqual(await found({ glob: "*.py" }), ["/f/a.py", "/f/src/b.py"]);
  assert.deepEqual(await found({ glob: "src/*.py" }), ["/f/src/b.py"]);
  assert.equal((await found({ limit: 2 })).length, 2);
  assert.deepEqual(await files().grep("/f", "hel+o"), [{ path: "/f/a.py", line: 1, text: "say hello" }]);
  assert.equal((await files().grep("/f", "hello", { ignoreCase: true })).length, 2);
  assert.equal((await files().grep("/f", "a.b", { literal: true })).length, 1);
  assert.equal((await files().grep("/f", "x", { glob: "*.py" })).length, 0);
  assert.equal((await files().grep("/f", ".", { limit: 1 })).length, 1);
  assert.deepEqual(await files().grep("/f/a.py", "say"), [{ path: "/f/a.py", line: 1, text: "say hello" }]);
  await assert.rejects(files().grep("/f", "("), Invalid);
});

test("mkdir, move, remove", async () => {
  await files().mkdir("/m/a/b", { mode: 0o700 });
  assert.equal((await files().stat("/m/a/b")).mode, 0o700);
  await files().mkdir("/m/a/b");
  await files().write("/m/a/x", "1");
  await files().move("/m/a/x", "/m/y");
  assert.equal(await files().readText("/m/y"), "1");
  await assert.rejects(files().move("/m/none", "/m/z"), NotFound);
  await assert.rejects(files().remove("/m"), CayError);
  await files().remove("/m/y");
  await assert.rejects(files().remove("/m/y"), NotFound);
  await files().remove("/m/y", { missingOk: true });
  await files().remove("/m", { recursive: true });
  assert.equal(await files().exists("/m"), false);
});

test("watch: changes from the moment it resolves, with whole paths", async () => {
  await files().mkdir("/watched/below");
  const changes = await files().watch("/watched", { recursive: true });
  await files().write("/watched/below/new", "x");
  const seen = [];
  for await (const change of changes) {
    seen.push(change);
    if (change.path === "/watched/below/new") break;
  }
  assert.ok(["created", "renamed", "modified"].includes(seen.at(-1).kind));
  await assert.rejects(files().watch("/none"), NotFound);
});

test("archives: a directory out and into another one", async () => {
  await context.box.exec("mkdir -p /ar/d; echo 1 > /ar/d/one; ln -s one /ar/d/link; chmod 700 /ar/d");
  await files().putArchive("/copy", await files().getArchive("/ar"));
  const { stdout } = await context.box.exec("cat /copy/d/link; stat -c %a /copy/d");
  assert.equal(stdout, "1\n700\n");
  await assert.rejects(files().putArchive("/copy", encode("no archive".repeat(100))), CayError);
});
