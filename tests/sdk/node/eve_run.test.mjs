// SPDX-License-Identifier: Apache-2.0
// node24
//
// cay-sandbox/eve under published versions of eve, as they come from the registry: the agent of eve-app, whose model is a
// script, works in a sandbox of cay. No network is needed.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cp, mkdir, readFile, rm, symlink } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { cayBackend } from "cay-sandbox/eve";
import { cay, countingProxy, directory, newHandle, removeLater, sandboxOf, sessionKey } from "./eve_support.mjs";
import { runs, until } from "./sdk_support.mjs";

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = join(HERE, "..", "..", "..");
const NEWEST = "eve";
const LAST_OF_BACKENDS = "eve-0.63";
const OF_THE_SEED = "eve-0.27";

/** The directory of an installed package. */
const packageOf = (name) => join(dirname(fileURLToPath(import.meta.resolve("cay-sandbox/package.json"))), "..", name);

/** A copy of an eve project, with eve and cay installed: eve writes into its project. */
async function project(source, eve, plugIn) {
  const path = join(await directory(), "app");
  await cp(source, path, { recursive: true });
  if (plugIn) await cp(join(path, "plug-in", `${plugIn}.ts`), join(path, "agent", "sandbox", "sandbox.ts"));
  await rm(join(path, "plug-in"), { recursive: true, force: true });
  // Early versions have these tools, but not the modules that a project re-exports them from.
  for (const name of eve === OF_THE_SEED ? ["glob", "grep"] : []) await rm(join(path, "agent", "tools", `${name}.ts`));
  await mkdir(join(path, "node_modules"));
  await symlink(packageOf(eve), join(path, "node_modules", "eve"));
  await symlink(packageOf("cay-sandbox"), join(path, "node_modules", "cay-sandbox"));
  return path;
}

const children = new Set();
after(() => {
  for (const child of children) process.kill(-child.pid, "SIGKILL");
});

/** Starts a command of eve. `output` grows; `done` resolves with the exit code. */
function startEve(cwd, args, host) {
  const env = { ...process.env, CAY_HOST: host, EVE_TELEMETRY_DISABLED: "1", NO_COLOR: "1", CI: "1" };
  delete env.NODE_TEST_CONTEXT;
  const stdio = ["ignore", "pipe", "pipe"];
  const child = spawn(process.execPath, ["node_modules/eve/bin/eve.js", ...args], { cwd, env, stdio, detached: true });
  const run = { output: "", ended: false, kill: (signal) => process.kill(-child.pid, signal) };
  children.add(child);
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (run.output += data));
  run.done = new Promise((resolve) => child.on("close", resolve)).finally(() => {
    run.ended = true;
    children.delete(child);
  });
  return run;
}

async function eve(cwd, args, host) {
  const run = startEve(cwd, args, host);
  assert.equal(await run.done, 0, `eve ${args.join(" ")}\n${run.output}`);
  return run.output;
}

/** The sandbox of the only session that was served, and how often it was made and attached to. */
function sessionOf(requests) {
  const ids = new Set(requests.map((line) => /\/sandboxes\/(eve-[0-9a-f]+)/.exec(line)?.[1]).filter(Boolean));
  for (const id of ids) removeLater(id);
  const [id] = ids;
  const count = (line) => requests.filter((one) => one === line).length;
  return { ids, id, made: count("POST /sandboxes"), attached: count(`GET /sandboxes/${id}`) };
}

/** The preparation has a sandbox of its own, and is done once. */
const SANDBOXES = 2;
/** Tool calls of eve-app; the first makes the sandbox. Setting a policy, as its opening and `inspect` do, is a look at it. */
const CALLS = 8;
const POLICIES = 2;
const ATTACHED = CALLS - 1 + POLICIES;

test("eve 0.63 drives it through its backend: create, prewarm, create, then one attach per call", async () => {
  const { host, requests } = await countingProxy();
  const output = await eve(await project(join(HERE, "eve-app"), LAST_OF_BACKENDS, "backend"), ["eval"], host);
  const { ids, made, attached } = sessionOf(requests);
  assert.deepEqual([ids.size, made, attached], [1, SANDBOXES, ATTACHED]);
  assert.match(output, /sandbox template is ready; retrying sandbox creation/);
});

test("eve 0.27 drives it through its backend as well", async () => {
  const { host, requests } = await countingProxy();
  await eve(await project(join(HERE, "eve-app"), OF_THE_SEED, "backend"), ["eval"], host);
  const { ids, made } = sessionOf(requests);
  assert.deepEqual([ids.size, made], [1, SANDBOXES]);
});

test("the program of docs/frameworks/eve.md runs as it is under eve eval, the newest; its sandbox has the label of the run", async () => {
  const page = await readFile(join(ROOT, "docs", "frameworks", "eve.md"), "utf8");
  for (const name of ["agent/sandbox.ts", "agent/agent.ts", "evals/sum.eval.ts"])
    assert.ok(page.includes(await readFile(join(ROOT, "examples", "eve", name), "utf8")), name);
  const { host, requests } = await countingProxy();
  await eve(await project(join(ROOT, "examples", "eve"), NEWEST), ["eval"], host);
  const { ids, id, made } = sessionOf(requests);
  assert.deepEqual([ids.size, made], [1, SANDBOXES]);
  assert.match((await cay.get(id)).info.labels["eve.devRunId"], /^[0-9a-f-]{36}$/);
});

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

test("the newest eve, built and started, drives it through its provider: one start, then one attach per call", async (t) => {
  const { host, requests } = await countingProxy();
  const app = await project(join(HERE, "eve-app"), NEWEST, "provider");
  await eve(app, ["build"], host);
  const port = await freePort();
  const server = startEve(app, ["start", "--host", "127.0.0.1", "--port", String(port)], host);
  await until(() => server.output.includes("server listening") || server.ended, 120);
  await eve(app, ["eval", "--url", `http://127.0.0.1:${port}`], host);
  const { ids, id, made, attached } = sessionOf(requests);
  assert.deepEqual([ids.size, made, attached], [1, SANDBOXES, ATTACHED]);
  const box = await cay.get(id);
  await t.test("eve start makes sandboxes from the artifact of eve build alone, and not as those of a development run", () => {
    assert.equal(box.info.labels["eve.devRunId"], undefined);
    assert.ok(box.info.ttlLeftMs > 7 * 24 * 3600_000);
  });
  await t.test("SIGTERM of eve start ends the processes of its sandboxes and keeps their files", async () => {
    assert.equal(await runs(box, "sleep 300"), true);
    server.kill("SIGTERM");
    await server.done;
    assert.equal(await runs(box, "sleep 300"), false);
    assert.equal(await box.files.readText("/workspace/notes/todo.txt"), "alpha\nbeta\ngamma\n");
  });
});

/** A module of eve that it does not export. */
const internal = (eve, path) => import(join(packageOf(eve), "dist", "src", path));

/** eve's bash tool gives a command 30 seconds; here it is less. */
async function withImpatience(use) {
  const { setTimeout } = globalThis;
  globalThis.setTimeout = (callback, ms, ...more) => setTimeout(callback, ms === 30_000 ? 300 : ms, ...more);
  try {
    return await use();
  } finally {
    globalThis.setTimeout = setTimeout;
  }
}

test("eve's bash tool: a command that takes longer goes on in the background, can be looked at and be ended", async () => {
  const { executeBashOnSandbox } = await internal(NEWEST, "execution/sandbox/bash.js");
  const { session } = await newHandle();
  const command = "echo begun; echo trouble >&2; sleep 4781; echo never";
  const job = await withImpatience(() => executeBashOnSandbox(session, { command }));
  assert.deepEqual([job.status, job.stdout, job.stderr], ["running", "begun\n", "trouble\n"]);
  const later = (line) => executeBashOnSandbox(session, { command: line });
  assert.equal((await later(`cat ${job.outputDirectory}/stdout; kill -0 -- -${job.pid} && echo alive`)).stdout, "begun\nalive\n");
  await later(`kill -- -${job.pid}`);
  const { stdout } = await later(`while [ ! -s ${job.outputDirectory}/exit ]; do sleep 0.05; done; cat ${job.outputDirectory}/exit`);
  assert.equal(stdout, "143\n");
});

test("eve's bash tool: a command that is cancelled is ended with all that it started", async () => {
  const { executeBashOnSandbox } = await internal(NEWEST, "execution/sandbox/bash.js");
  const handle = await newHandle();
  const box = cay.attach(await sandboxOf(handle));
  const controller = new AbortController();
  const reason = new Error("cancelled");
  const command = "sleep 4791 & sleep 4792";
  const running = executeBashOnSandbox(handle.session, { command }, { abortSignal: controller.signal });
  await until(() => runs(box, "sleep 4792"));
  controller.abort(reason);
  await assert.rejects(running, (error) => error === reason);
  await until(async () => !(await runs(box, "sleep 479[12]")));
});

test("what create throws for a missing template is what eve's own class takes for its own", async () => {
  const { SandboxTemplateNotProvisionedError } = await internal(LAST_OF_BACKENDS, "public/sandbox/index.js");
  const input = { templateKey: "none", sessionKey: sessionKey(), runtimeContext: { appRoot: await directory() } };
  await assert.rejects(cayBackend().create(input), (error) => SandboxTemplateNotProvisionedError.is(error));
});
