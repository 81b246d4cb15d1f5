// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/strands: the abstract class Sandbox of @strands-agents/sdk on a real cayd. Agents are in strands-agent.test.mjs.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { Sandbox, SandboxAbortError, SandboxPathNotFoundError, SandboxTimeoutError } from "@strands-agents/sdk";
import { Cay, Denied, Gone, Invalid, Sandbox as Box } from "cay-sandbox";
import { CaySandbox } from "cay-sandbox/strands";

const cay = new Cay();
let sandbox;

before(async () => {
  sandbox = await CaySandbox.create();
});

after(async () => {
  await sandbox.close();
  cay.close();
});

/** All that an execution yields: its chunks, and its result. */
async function collect(stream) {
  const chunks = [];
  let result;
  for await (const item of stream) {
    if (item.type === "streamChunk") chunks.push(item);
    else result = item;
  }
  return { chunks, result };
}

/** Lines of ps with this mark in their arguments: what is alive of a command. */
async function alive(mark) {
  const box = await sandbox.box();
  const { stdout } = await box.exec(["ps", "ax", "-o", "args"]);
  return stdout.split("\n").filter((line) => line.includes(mark));
}

/** What is left of a command when the kernel has had time to bury what was killed. */
async function left(mark) {
  let lines = await alive(mark);
  for (let round = 0; lines.length > 0 && round < 200; round++) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    lines = await alive(mark);
  }
  return lines;
}

/** A command of three processes: one in a session of its own, one that ignores SIGTERM; and a mark to find them by. */
let marks = 4000;
function stubborn() {
  const mark = `sleep ${++marks}`;
  const command = `echo partial; echo warned >&2; setsid ${mark} & (trap '' TERM; exec ${mark}) & ${mark}`;
  return { mark, command };
}

/** What `await using` does, which Node 20 cannot parse. */
async function using(options, body) {
  const made = await CaySandbox.create(options);
  try {
    return await body(made, await made.box());
  } finally {
    await made[Symbol.asyncDispose]();
  }
}

async function rejection(promise) {
  return promise.then(
    (value) => assert.fail(`it was fulfilled with ${JSON.stringify(value)}`),
    (error) => error,
  );
}

describe("execute", () => {
  test("CaySandbox is a Sandbox of the SDK", () => {
    assert.ok(sandbox instanceof Sandbox);
  });

  test("executeStreaming yields chunks of stdout and stderr as they come, then the result", async () => {
    const command = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second >&2; exit 3";
    const items = [];
    for await (const item of sandbox.executeStreaming(command)) {
      items.push(item);
      if (items.length === 1) await sandbox.writeText("go", ""); // the command is waiting for it
    }
    assert.deepEqual(items, [
      { type: "streamChunk", data: "first\n", streamType: "stdout" },
      { type: "streamChunk", data: "second\n", streamType: "stderr" },
      { type: "executionResult", exitCode: 3, stdout: "first\n", stderr: "second\n", outputFiles: [] },
    ]);
  });

  test("execute returns the executionResult: exit code, complete output, outputFiles an array", async () => {
    assert.deepEqual(await sandbox.execute("echo out; echo err >&2; exit 42"), {
      type: "executionResult",
      exitCode: 42,
      stdout: "out\n",
      stderr: "err\n",
      outputFiles: [],
    });
  });

  test("a command without output has an empty result", async () => {
    const { chunks, result } = await collect(sandbox.executeStreaming("true"));
    assert.deepEqual(chunks, []);
    assert.deepEqual(result, { type: "executionResult", exitCode: 0, stdout: "", stderr: "", outputFiles: [] });
  });

  test("commands are run by sh in the working directory; cwd is absolute or relative to it", async () => {
    assert.equal((await sandbox.execute("echo $0; pwd")).stdout, "sh\n/workspace\n");
    assert.equal((await sandbox.execute("pwd", { cwd: "/tmp" })).stdout, "/tmp\n");
    await sandbox.execute("mkdir -p sub");
    assert.equal((await sandbox.execute("pwd", { cwd: "sub" })).stdout, "/workspace/sub\n");
  });

  test("a cwd that is not there is an error that names it", async () => {
    await assert.rejects(sandbox.execute("pwd", { cwd: "/no/such" }), /\/no\/such/);
  });

  test("env is set for the command, and its values are not evaluated", async () => {
    const result = await sandbox.execute('echo "$A" "$B_1"', { env: { A: "$(whoami)", B_1: "it's" } });
    assert.equal(result.stdout, "$(whoami) it's\n");
  });

  test("an invalid name in env: 'Invalid environment variable name: ...'", async () => {
    for (const name of ["BAD-KEY", "1A", "", "A\n", "A=B"]) {
      const expected = { message: `Invalid environment variable name: ${name}` };
      await assert.rejects(sandbox.execute("true", { env: { [name]: "x" } }), expected);
      await assert.rejects(sandbox.executeCode("", "sh", { env: { [name]: "x" } }), expected);
    }
  });

  test("a command that is missing exits with 127", async () => {
    const { exitCode, stderr } = await sandbox.execute("no-such-command");
    assert.equal(exitCode, 127);
    assert.match(stderr, /no-such-command/);
  });

  test("death by a signal is 128+n", async () => {
    assert.equal((await sandbox.execute("kill -KILL $$")).exitCode, 137);
    assert.equal((await sandbox.execute("kill -TERM $$")).exitCode, 143);
    assert.equal((await sandbox.execute("sh -c 'kill -SEGV $$'; exit $?")).exitCode, 139);
  });

  test("standard input is empty", async () => {
    assert.equal((await sandbox.execute("wc -c")).stdout, "0\n");
  });

  test("a command of any length runs, and its standard input is empty, too", async () => {
    const text = "x".repeat(300_000);
    const { exitCode, stdout } = await sandbox.execute(`cat\ncat << 'EOF'\n${text}\nEOF\nexit 5`);
    assert.deepEqual([exitCode, stdout], [5, `${text}\n`]);
  });

  test("a process in the background outlives its command, which does not wait for it", async () => {
    const { stdout } = await sandbox.execute("sleep 4999 & echo started");
    assert.equal(stdout, "started\n");
    const killed = await sandbox.execute("until pkill -f 'sleep 499[9]'; do sleep 0.01; done", { timeout: 10 });
    assert.equal(killed.exitCode, 0);
  });
});

describe("output", () => {
  test("multibyte UTF-8 is not split across chunks", async () => {
    const script = `
import os, sys, time
for name in ("stdout", "stderr"):
    stream = getattr(sys, name).buffer
    stream.write(b"caf\\xc3"); stream.flush()
    while not os.path.exists(name): time.sleep(0.01)
    stream.write("é ☕".encode()[1:]); stream.flush()`;
    const chunks = [];
    for await (const item of sandbox.executeCodeStreaming(script, "python3")) {
      if (item.type === "executionResult") assert.deepEqual([item.stdout, item.stderr], ["café ☕", "café ☕"]);
      else chunks.push([item.streamType, item.data]);
      if (item.data === "caf") await sandbox.writeText(item.streamType, ""); // now the other half of it may come
    }
    const expected = ["stdout", "stderr"].flatMap((stream) => [[stream, "caf"], [stream, "é ☕"]]);
    assert.deepEqual(chunks, expected);
    assert.equal((await sandbox.executeCode('print("☕" * 100000)', "python3")).stdout, `${"☕".repeat(100_000)}\n`);
  });

  test("bytes that are no UTF-8 become U+FFFD, also at the end", async () => {
    assert.equal((await sandbox.execute("printf 'a\\377b\\342\\230'")).stdout, "a\ufffdb\ufffd");
  });

  test("the output is complete: 20 MB, to a consumer that is slow", async () => {
    let length = 0;
    for await (const item of sandbox.executeStreaming("head -c 20000000 /dev/zero | tr '\\0' x")) {
      if (length === 0) await new Promise((resolve) => setTimeout(resolve, 300));
      if (item.type === "streamChunk") length += item.data.length;
      else assert.deepEqual([item.stdout.length, item.stderr], [20_000_000, ""]);
    }
    assert.equal(length, 20_000_000);
  });

  test("a command that writes more than its sandbox keeps waits for its reader: nothing is missing", async () => {
    const command = "head -c 3000000 /dev/zero | tr '\\0' x; echo end";
    const { stdout, stderr } = await using({ output: 4096 }, (small) => small.execute(command));
    assert.ok(stdout === `${"x".repeat(3_000_000)}end\n`);
    assert.equal(stderr, "");
  });
});

describe("timeout", () => {
  test("SandboxTimeoutError says 'Execution timed out after N seconds' and carries the partial output", async () => {
    const error = await rejection(sandbox.execute("echo partial; echo warned >&2; sleep 60", { timeout: 0.5 }));
    assert.ok(error instanceof SandboxTimeoutError);
    assert.equal(error.message, "Execution timed out after 0.5 seconds");
    assert.deepEqual([error.stdout, error.stderr], ["partial\n", "warned\n"]);
  });

  test("after a timeout nothing of the command is alive", async () => {
    const { mark, command } = stubborn();
    assert.ok((await rejection(sandbox.execute(command, { timeout: 0.3 }))) instanceof SandboxTimeoutError);
    assert.deepEqual(await left(mark), []);
  });

  test("SIGTERM comes first: a command can clean up", async () => {
    const command = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    const error = await rejection(sandbox.execute(command, { timeout: 0.5 }));
    assert.equal(error.stdout, "ready\ncleaned\n");
  });

  test("SIGKILL comes a second later to a command that ignores SIGTERM", async () => {
    const command = "trap 'termed=after' TERM; while :; do echo $termed; sleep 0.05; done";
    const error = await rejection(sandbox.execute(command, { timeout: 0.5 }));
    assert.match(error.stdout, /^\n+after\nafter\n/, "it went on for a while");
    assert.deepEqual(await left("echo $termed"), []);
  });

  test("it counts from the start, whatever is written, also for a consumer that does not come back", async () => {
    const stream = sandbox.executeStreaming("while :; do echo 4998; sleep 0.02; done", { timeout: 0.3 });
    await stream.next();
    assert.deepEqual(await left("echo 4998"), []);
    await assert.rejects(collect(stream), SandboxTimeoutError);
  });

  test("none by default; one that is not reached changes nothing", async () => {
    assert.equal((await sandbox.execute("echo fast", { timeout: 30 })).stdout, "fast\n");
    assert.equal((await sandbox.execute("echo fast", { timeout: Infinity })).stdout, "fast\n");
  });

  test("code has one, too", async () => {
    const code = "import time; print('before', flush=True); time.sleep(60)";
    const error = await rejection(sandbox.executeCode(code, "python3", { timeout: 1 }));
    assert.ok(error instanceof SandboxTimeoutError);
    assert.equal(error.stdout, "before\n");
  });
});

describe("abort", () => {
  test("SandboxAbortError says 'Execution aborted', and nothing of the command is alive", async () => {
    const { mark, command } = stubborn();
    const controller = new AbortController();
    const run = (async () => {
      for await (const _ of sandbox.executeStreaming(command, { signal: controller.signal })) controller.abort();
    })();
    const error = await rejection(run);
    assert.ok(error instanceof SandboxAbortError);
    assert.equal(error.message, "Execution aborted");
    assert.deepEqual(await left(mark), []);
  });

  test("a signal that is aborted already: nothing is started", async () => {
    await assert.rejects(sandbox.execute("touch started", { signal: AbortSignal.abort() }), SandboxAbortError);
    await assert.rejects(sandbox.executeCode("x", "sh", { signal: AbortSignal.abort() }), SandboxAbortError);
    await assert.rejects(sandbox.readFile("started"), { code: "ENOENT" });
  });

  test("code is aborted, too", async () => {
    const signal = AbortSignal.timeout(200);
    await assert.rejects(sandbox.executeCode("import time; time.sleep(60)", "python3", { signal }), SandboxAbortError);
  });

  test("closing the generator early kills the command and all it started", async () => {
    const { mark, command } = stubborn();
    for await (const item of sandbox.executeStreaming(command)) {
      assert.equal(item.type, "streamChunk");
      break;
    }
    assert.deepEqual(await left(mark), []);
  });

  test("a generator that is never asked starts nothing", async () => {
    const stream = sandbox.executeStreaming("touch asked");
    await stream.return();
    await assert.rejects(sandbox.readFile("asked"), { code: "ENOENT" });
  });
});

describe("executeCode", () => {
  test("runs code by the interpreter that is named", async () => {
    assert.equal((await sandbox.executeCode("print(2 + 2)", "python3")).stdout, "4\n");
    assert.equal((await sandbox.executeCode("console.log(2 + 2)", "node")).stdout, "4\n");
    assert.equal((await sandbox.executeCode("echo $((2 + 2)); exit 9", "bash")).exitCode, 9);
  });

  test("quotes and what is special to a shell reach the interpreter as they are", async () => {
    const { stdout } = await sandbox.executeCode(`print('''$(rm -rf /) \`id\` "it's" && $HOME \\\\ \n''')`, "python3");
    assert.equal(stdout, "$(rm -rf /) `id` \"it's\" && $HOME \\ \n\n");
  });

  test("a language of other characters: 'language parameter contains invalid characters: ...'", async () => {
    for (const language of ["../bin/sh", "python3 -c", "sh;id", "", "python3\n", "a/b"]) {
      await assert.rejects(sandbox.executeCode("x", language), {
        message: `language parameter contains invalid characters: ${language}`,
      });
    }
  });

  test("an interpreter that is missing exits with 127", async () => {
    const { exitCode, stderr } = await sandbox.executeCode("x", "no-such_lang.99");
    assert.equal(exitCode, 127);
    assert.match(stderr, /no-such_lang\.99/);
    assert.equal((await sandbox.executeCode("x", "-c")).exitCode, 127);
  });

  test("env and cwd reach the interpreter", async () => {
    const code = "import os; print(os.environ['GREETING'], os.getcwd())";
    const { stdout } = await sandbox.executeCode(code, "python3", { env: { GREETING: "$HI" }, cwd: "/tmp" });
    assert.equal(stdout, "$HI /tmp\n");
  });

  test("code of 250 KB and of 5 MB runs", async () => {
    for (const size of [250_000, 5_000_000]) {
      const code = `x = "${"é".repeat(size / 2)}"\nprint(len(x))`;
      const { exitCode, stdout, stderr } = await sandbox.executeCode(code, "python3");
      assert.deepEqual([exitCode, stdout, stderr], [0, `${size / 2}\n`, ""]);
    }
  });

  test("an interpreter that does not read all of its code is no error", async () => {
    const { exitCode } = await sandbox.executeCode(`exit 6\n${"#".repeat(5_000_000)}`, "sh");
    assert.equal(exitCode, 6);
    assert.equal((await sandbox.executeCode("x".repeat(5_000_000), "true")).exitCode, 0);
  });

  test("death of the interpreter by a signal is 128+n", async () => {
    assert.equal((await sandbox.executeCode("import os; os.kill(os.getpid(), 9)", "python3")).exitCode, 137);
  });
});

describe("files", () => {
  test("readFile gives the bytes that writeFile wrote, all values of them, none and 5 MB", async () => {
    const large = new Uint8Array(5_000_000).map((_, index) => index * 7);
    for (const bytes of [Uint8Array.from({ length: 256 }, (_, index) => index), new Uint8Array(), large]) {
      await sandbox.writeFile("data.bin", bytes);
      const read = await sandbox.readFile("data.bin");
      assert.ok(read instanceof Uint8Array);
      assert.ok(Buffer.from(read).equals(bytes));
    }
  });

  test("writeFile makes the directories above, and replaces what was there", async () => {
    await sandbox.writeText("/tmp/deep/er/file.txt", "one");
    await sandbox.writeText("/tmp/deep/er/file.txt", "two");
    assert.equal((await sandbox.execute("cat /tmp/deep/er/file.txt")).stdout, "two");
  });

  test("relative paths start at the working directory", async () => {
    await sandbox.writeText("rel/a b.txt", "x");
    assert.equal(await sandbox.readText("/workspace/rel/a b.txt"), "x");
    assert.deepEqual(await sandbox.listFiles("./rel"), [{ name: "a b.txt", isDir: false, size: 1 }]);
    await sandbox.removeFile("rel/a b.txt");
    assert.deepEqual(await sandbox.listFiles("/workspace/rel"), []);
  });

  test("readFile throws for what is missing, with the code that Node gives it", async () => {
    for (const path of ["/no/such/file", "missing.txt", "/etc/passwd/x"]) {
      await assert.rejects(sandbox.readFile(path), { code: "ENOENT" });
      await assert.rejects(sandbox.readText(path), { code: "ENOENT" });
    }
  });

  test("readFile throws for a directory, which is not missing", async () => {
    const error = await rejection(sandbox.readFile("/etc"));
    assert.match(error.message, /directory/);
    assert.notEqual(error.code, "ENOENT");
  });

  test("readText decodes UTF-8 and is not fatal, writeText encodes it", async () => {
    await sandbox.writeText("text.txt", "日本語 🚀 $(id)");
    assert.equal(await sandbox.readText("text.txt"), "日本語 🚀 $(id)");
    await sandbox.writeFile("text.txt", Uint8Array.of(0x61, 0xff, 0x62));
    assert.equal(await sandbox.readText("text.txt"), "a\ufffdb");
  });

  test("removeFile removes a file or a link, and throws for what is missing", async () => {
    await sandbox.execute("mkdir -p rm && touch rm/file && ln -s file rm/link");
    await sandbox.removeFile("rm/link");
    await sandbox.removeFile("rm/file");
    assert.deepEqual(await sandbox.listFiles("rm"), []);
    await assert.rejects(sandbox.removeFile("rm/file"), { code: "ENOENT" });
    await assert.rejects(sandbox.removeFile("/etc/passwd/x"), { code: "ENOENT" });
  });

  test("removeFile does not remove a directory", async () => {
    await sandbox.execute("mkdir -p empty");
    await assert.rejects(sandbox.removeFile("empty"), /directory/);
    assert.deepEqual(await sandbox.listFiles("empty"), []);
  });

  test("writeFile onto a directory or below a file throws", async () => {
    await assert.rejects(sandbox.writeText("/tmp", "x"), Invalid);
    await assert.rejects(sandbox.writeText("/etc/passwd/x", "x"), Invalid);
  });
});

describe("listFiles", () => {
  test("is sorted by name, with isDir and size, hidden files, and without . and ..", async () => {
    await sandbox.execute("mkdir -p ls/sub && cd ls && printf aa > b.txt && printf a > .hidden && touch 'a b' Z");
    assert.deepEqual(
      (await sandbox.listFiles("ls")).map(({ name, isDir, size }) => [name, isDir, isDir ? undefined : size]),
      [
        [".hidden", false, 1],
        ["Z", false, 0],
        ["a b", false, 0],
        ["b.txt", false, 2],
        ["sub", true, undefined],
      ],
    );
  });

  test("tells a link as what it leads to, and nothing of one that leads nowhere", async () => {
    await sandbox.execute("mkdir -p ln/d && cd ln && printf abc > f && ln -s d to-d && ln -s f to-f && ln -s x to-x");
    const found = Object.fromEntries((await sandbox.listFiles("ln")).map((info) => [info.name, info]));
    assert.equal(found["to-d"].isDir, true);
    assert.deepEqual(found["to-f"], { name: "to-f", isDir: false, size: 3 });
    assert.deepEqual(found["to-x"], { name: "to-x" });
  });

  test("throws SandboxPathNotFoundError for what is missing and for what is no directory", async () => {
    await sandbox.execute("ln -sfn nowhere dangling");
    for (const path of ["/no/such", "missing", "/etc/passwd", "/etc/passwd/x", "dangling"]) {
      const error = await rejection(sandbox.listFiles(path));
      assert.ok(error instanceof SandboxPathNotFoundError, `${path}: ${error}`);
      assert.equal(error.message, `Path not found: ${path}`);
    }
  });

  test("throws another error where it has no permission", async () => {
    const error = await rejection(sandbox.listFiles("/proc/1/root"));
    assert.ok(error instanceof Denied);
    assert.ok(!(error instanceof SandboxPathNotFoundError));
  });

  test("throws another error where the sandbox is lost, and so does readFile", async () => {
    const box = await cay.create();
    const lost = new CaySandbox(box);
    await box.remove();
    for (const error of [
      await rejection(lost.listFiles("/tmp")),
      await rejection(lost.readFile("/tmp/x")),
      await rejection(lost.removeFile("/tmp/x")),
    ]) {
      assert.ok(!(error instanceof SandboxPathNotFoundError));
      assert.notEqual(error.code, "ENOENT");
      assert.match(error.message, new RegExp(box.id));
    }
  });

  test("throws another error for a path that is none", async () => {
    const error = await rejection(sandbox.listFiles("/a\0b"));
    assert.ok(!(error instanceof SandboxPathNotFoundError));
    const long = await rejection(sandbox.listFiles(`/${"a".repeat(300)}`));
    assert.ok(!(long instanceof SandboxPathNotFoundError));
  });
});

describe("life", () => {
  test("new CaySandbox(options) makes its sandbox at its first use, once", async () => {
    const labels = { test: "strands-lazy" };
    const lazy = new CaySandbox({ labels, memory: "256M", workingDir: "/srv/app" });
    assert.deepEqual(await cay.list({ labels }), []);
    const results = await Promise.all([lazy.execute("pwd"), lazy.execute("pwd"), lazy.listFiles(".")]);
    assert.equal(results[0].stdout, "/srv/app\n");
    assert.equal((await cay.list({ labels })).length, 1);
    assert.equal((await (await lazy.box()).spec()).memory, 256 * 1024 * 1024);
    await lazy.close();
    assert.deepEqual(await cay.list({ labels }), []);
  });

  test("a sandbox that nobody closes ends by itself, unless the caller said when", async () => {
    const usual = await using({}, (_, box) => box.spec());
    assert.deepEqual([usual.idleMs, usual.ttlMs], [3_600_000, 86_400_000]);
    const given = await using({ ttl: "5m" }, (_, box) => box.spec());
    assert.deepEqual([given.idleMs, given.ttlMs], [0, 300_000]);
  });

  test("Symbol.asyncDispose removes it: await using", async () => {
    const id = await using({}, async (short, box) => {
      assert.equal((await short.execute("echo hi")).stdout, "hi\n");
      return box.id;
    });
    await assert.rejects(cay.get(id), { code: "not_found" });
  });

  test("new CaySandbox(box) takes one that exists, and leaves it there", async () => {
    const box = await cay.create();
    try {
      const given = new CaySandbox(box, { workingDir: "/tmp" });
      assert.equal((await given.execute("pwd")).stdout, "/tmp\n");
      assert.equal(await given.box(), box);
      await given.close();
      assert.equal((await box.refresh()).state, "running");
    } finally {
      await box.remove();
    }
  });

  test("a closed one is Gone, also if it was never used; closing twice is no error", async () => {
    const closed = new CaySandbox();
    await closed.close();
    await closed.close();
    await assert.rejects(closed.execute("true"), Gone);
    await assert.rejects(closed.readFile("x"), Gone);
  });

  test("a sandbox that could not be made is an error, and the next use tries again", async () => {
    const id = `strands-${process.pid}`;
    const other = await cay.create({ id, labels: { other: "one" } });
    const taken = new CaySandbox({ id });
    await assert.rejects(taken.execute("true"), { code: "conflict" });
    await other.remove();
    assert.equal((await taken.execute("echo now")).stdout, "now\n");
    await taken.close();
  });

  test("a client and a host of one's own; a working directory that is not absolute is Invalid", async () => {
    await using({ client: cay }, (_, box) => assert.ok(box instanceof Box));
    const nobody = new CaySandbox({ host: "unix:/no/such/socket" });
    await assert.rejects(nobody.execute("true"), { code: "unavailable" });
    await assert.rejects(CaySandbox.create({ secrets: { KEY: "x" } }), { code: "unsupported" });
    assert.throws(() => new CaySandbox({ workingDir: "work" }), Invalid);
  });

  test("getTools vends sandbox_file_editor and sandbox_shell", () => {
    const tools = sandbox.getTools();
    assert.deepEqual(tools.map((tool) => tool.name), ["sandbox_file_editor", "sandbox_shell"]);
    assert.match(tools[0].description, /^Filesystem editor tool .* Files are in a cay sandbox\.$/);
    assert.match(tools[1].description, /^Executes shell commands .* Working directory: \/workspace\.$/);
  });
});
