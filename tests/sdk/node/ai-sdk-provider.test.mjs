// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk: HarnessV1SandboxProvider and HarnessV1NetworkSandboxSession, line by line of their contract.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { HarnessCapabilityUnsupportedError, HarnessSandboxAuthenticationError } from "@ai-sdk/harness";
import { createCredentialRequestTransformation, generateSandboxCredentialPlaceholder } from "@ai-sdk/harness/utils";
import { Cay, Conflict, Denied, Gone, Invalid, NotFound, Unauthorized, Unavailable, Unsupported } from "cay-sandbox";
import { cayHarnessSandbox, createSandboxSession } from "cay-sandbox/ai-sdk";

const cay = new Cay();
const provider = cayHarnessSandbox({ client: cay, idle: 300 });
const made = [];

/** A session of the provider that goes when the tests end. */
async function create(options = {}, from = provider) {
  const session = await from.createSession(options);
  made.push(session.id);
  return session;
}
const sessionId = () => `test ${randomUUID()}`;

let session;
before(async () => void (session = await create()));
after(() => Promise.all(made.map((id) => cay.attach(id).remove())));

/** Runs a program in another process; its standard output. */
async function elsewhere(program, ...args) {
  const child = spawn(process.execPath, ["--input-type=module", "-e", program, "--", ...args], {
    cwd: new URL("../../..", import.meta.url),
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [stdout, [code]] = await Promise.all([new Response(child.stdout).text(), once(child, "close")]);
  assert.equal(code, 0);
  return stdout;
}

const isUnsupported = (error) =>
  error instanceof HarnessCapabilityUnsupportedError &&
  HarnessCapabilityUnsupportedError.isInstance(error) &&
  error.cause instanceof Unsupported;

// ---- the provider

test("the provider: specificationVersion, providerId, and no I/O at construction", async () => {
  const away = cayHarnessSandbox({ host: "unix:/nowhere/cayd.sock" });
  assert.equal(away.specificationVersion, "harness-sandbox-v1");
  assert.equal(away.providerId, "cay");
  await assert.rejects(away.createSession(), Unavailable);
});

test("options that mean nothing are refused", async () => {
  assert.throws(() => cayHarnessSandbox({ id: "x" }), Invalid);
  assert.throws(() => cayHarnessSandbox({ cwd: "/tmp" }), Invalid);
  assert.throws(() => cayHarnessSandbox({ workingDirectory: "relative" }), Invalid);
  await assert.rejects(cayHarnessSandbox({ colour: "red" }).createSession(), Invalid);
});

test("createSession makes a sandbox from the provider's options; id is the sandbox's", async () => {
  const options = { client: cay, ttl: 60, env: { A: "1" }, labels: { team: "a" }, workingDirectory: "/srv/agent" };
  const own = await create({}, cayHarnessSandbox(options));
  assert.equal((await own.run({ command: "pwd; echo $A" })).stdout, "/srv/agent\n1\n");
  assert.equal(own.defaultWorkingDirectory, "/srv/agent");
  assert.equal((await cay.get(own.id)).info.labels.team, "a");
});

test("a session's sandbox ends by itself after a day without use, unless ttl or idle is given", async () => {
  const own = await create({}, cayHarnessSandbox({ client: cay }));
  const life = async ({ id }) => cay.attach(id).spec().then(({ idleMs, ttlMs }) => [idleMs, ttlMs]);
  assert.deepEqual(await life(own), [86_400_000, 30 * 86_400_000]);
  assert.deepEqual(await life(session), [300_000, 0]);
});

test("naming is deterministic, for session ids of any text: another process resumes by the session id", async () => {
  for (const id of [sessionId(), `ünï/cödé ~ ${"long".repeat(100)} ${randomUUID()}`]) {
    const first = await create({ sessionId: id });
    await first.writeTextFile({ path: "note.txt", content: "from the first process" });
    const program = `
      import { cayHarnessSandbox } from "cay-sandbox/ai-sdk";
      const session = await cayHarnessSandbox().resumeSession({ sessionId: process.argv[1] });
      await session.run({ command: "echo seen >> note.txt" });
      console.log(session.id, session.defaultWorkingDirectory, await session.readTextFile({ path: "note.txt" }));`;
    const expected = `${first.id} /workspace from the first processseen\n\n`;
    assert.equal(await elsewhere(program, id), expected);
  }
});

test("resumeSession keeps the base directory of the session, whatever the provider's is now", async () => {
  const id = sessionId();
  await create({ sessionId: id }, cayHarnessSandbox({ client: cay, idle: 60, workingDirectory: "/srv/first" }));
  const resumed = await provider.resumeSession({ sessionId: id });
  assert.equal(resumed.defaultWorkingDirectory, "/srv/first");
  assert.equal((await resumed.run({ command: "pwd" })).stdout, "/srv/first\n");
});

test("resumeSession fails if there is no such session, or if its sandbox has ended", async () => {
  const id = sessionId();
  await assert.rejects(provider.resumeSession({ sessionId: id }), NotFound);
  const own = await create({ sessionId: id });
  await cay.attach(own.id).kill();
  await assert.rejects(provider.resumeSession({ sessionId: id }), Gone);
});

test("createSession never gives a session that exists, and leaves it alone", async () => {
  const id = sessionId();
  const own = await create({ sessionId: id });
  await own.writeTextFile({ path: "kept", content: "kept" });
  let calls = 0;
  const again = () => provider.createSession({ sessionId: id, onFirstCreate: async () => void calls++ });
  await assert.rejects(again(), Conflict);
  await own.stop();
  await assert.rejects(again(), Conflict);
  const resumed = await provider.resumeSession({ sessionId: id });
  assert.deepEqual([calls, await resumed.readTextFile({ path: "kept" })], [0, "kept"]);
});

test("createSession makes a fresh sandbox where the old one has ended", async () => {
  const id = sessionId();
  const old = await create({ sessionId: id });
  await old.writeTextFile({ path: "old", content: "" });
  await cay.attach(old.id).kill();
  const fresh = await create({ sessionId: id });
  assert.equal(fresh.id, old.id);
  assert.equal(await fresh.stat({ path: "old" }), null);
});

test("onFirstCreate: after each fresh create, with the restricted session; not on resume", async () => {
  const calls = [];
  const { signal } = new AbortController();
  const onFirstCreate = async (given, options) => {
    calls.push([given, options]);
    await given.writeTextFile({ path: "prepared", content: "yes" });
  };
  const id = sessionId();
  const own = await create({ sessionId: id, identity: "recipe-1", onFirstCreate, abortSignal: signal });
  assert.equal(calls.length, 1);
  assert.deepEqual(Object.keys(calls[0][0]), Object.keys(createSandboxSession(cay.attach(own.id))));
  assert.equal(calls[0][1].abortSignal, signal);
  assert.equal(await own.readTextFile({ path: "prepared" }), "yes");
  await own.stop();
  await provider.resumeSession({ sessionId: id });
  assert.equal(calls.length, 1);
  await create({ sessionId: sessionId(), identity: "recipe-1", onFirstCreate });
  assert.equal(calls.length, 2, "without snapshots the identity is prepared in each new sandbox");
});

test("onFirstCreate: its failure is that of createSession, and leaves no sandbox", async () => {
  const id = sessionId();
  const failure = new Error("npm install failed");
  let seen;
  const onFirstCreate = async (given) => {
    seen = given;
    throw failure;
  };
  await assert.rejects(provider.createSession({ sessionId: id, onFirstCreate }), (error) => error === failure);
  await assert.rejects(seen.run({ command: "true" }), NotFound);
  await create({ sessionId: id });
});

test("createSession and resumeSession reject with the reason of their signal", async () => {
  const reason = new Error("no time");
  const abortSignal = AbortSignal.abort(reason);
  const id = sessionId();
  await assert.rejects(provider.createSession({ sessionId: id, abortSignal }), (error) => error === reason);
  await assert.rejects(provider.resumeSession({ sessionId: id, abortSignal }), (error) => error === reason);
  await assert.rejects(provider.resumeSession({ sessionId: id }), NotFound);
});

// ---- credentials

test("HarnessSandboxAuthenticationError: a token that is missing or wrong, on create and resume", async () => {
  for (const token of [undefined, "cay_wrong"]) {
    const stranger = cayHarnessSandbox({ host: process.env.CAY_TEST_TCP, token });
    for (const call of [stranger.createSession(), stranger.resumeSession({ sessionId: "x" })])
      await assert.rejects(call, (error) => {
        assert.ok(error instanceof HarnessSandboxAuthenticationError);
        assert.ok(HarnessSandboxAuthenticationError.isInstance(error));
        assert.equal(error.sandboxProviderId, "cay");
        assert.ok(error.cause instanceof Unauthorized);
        assert.match(error.message, /CAY_TOKEN/);
        return true;
      });
  }
  const known = cayHarnessSandbox({ host: process.env.CAY_TEST_TCP, token: process.env.CAY_TEST_TOKEN, idle: 60 });
  assert.equal((await (await create({}, known)).run({ command: "echo in" })).stdout, "in\n");
});

test("HarnessSandboxAuthenticationError: a token without the scope; but the operator's rules are Denied", async () => {
  let rule;
  const server = createServer((_, response) => {
    response.writeHead(403, { "content-type": "application/json" });
    response.end(JSON.stringify({ error: { code: "denied", message: "no", detail: { rule } } }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const refused = cayHarnessSandbox({ host: `http://127.0.0.1:${server.address().port}` });
    rule = "scope.create";
    await assert.rejects(refused.createSession(), HarnessSandboxAuthenticationError);
    rule = "policy.images";
    await assert.rejects(refused.createSession(), Denied);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

// ---- the session

test("the session is a SandboxSession with the network's members, all of them its own", async () => {
  assert.equal((await cay.get(session.id)).id, session.id);
  assert.equal(session.defaultWorkingDirectory, "/workspace");
  assert.equal((await session.run({ command: "pwd" })).stdout, "/workspace\n");
  assert.deepEqual(session.ports, []);
  const infra = ["id", "defaultWorkingDirectory", "ports", "getPortEndpoint", "getPortUrl", "stop", "destroy"];
  infra.push("setNetworkPolicy", "setRequestTransformations", "addRequestTransformations", "setPorts", "restricted");
  const basic = Object.keys(session.restricted());
  assert.deepEqual(Object.keys(session).sort(), [...basic, ...infra].sort());
});

test("restricted(): the same sandbox without what could stop it or open the network", async () => {
  const view = session.restricted();
  await view.writeTextFile({ path: "by-view", content: "x" });
  assert.equal(await session.readTextFile({ path: "by-view" }), "x");
  for (const name of ["id", "stop", "destroy", "setNetworkPolicy", "addRequestTransformations", "setPorts"])
    assert.equal(name in view, false, name);
});

test("getPortEndpoint and getPortUrl throw HarnessCapabilityUnsupportedError: no port is exposed", async () => {
  for (const protocol of [undefined, "http", "https", "ws"]) {
    await assert.rejects(session.getPortEndpoint({ port: 3000, protocol }), isUnsupported);
    await assert.rejects(session.getPortUrl({ port: 3000, protocol }), isUnsupported);
  }
});

test("stop() keeps the files and ends the processes; resumeSession goes on; both are idempotent", async () => {
  const id = sessionId();
  const own = await create({ sessionId: id });
  await own.writeTextFile({ path: "kept", content: "kept" });
  await own.spawn({ command: "sleep 4201" });
  await own.run({ command: "setsid sleep 4202 > /dev/null 2>&1 &" });
  await own.stop();
  await own.stop();
  assert.equal((await cay.get(own.id)).info.state, "paused");
  await assert.rejects(own.run({ command: "true" }), Conflict, "nothing runs in a sandbox that is stopped");
  const resumed = await provider.resumeSession({ sessionId: id });
  assert.equal((await provider.resumeSession({ sessionId: id })).id, own.id);
  assert.equal(await resumed.readTextFile({ path: "kept" }), "kept");
  assert.equal((await resumed.run({ command: "pgrep -f '[s]leep 420'" })).exitCode, 1);
  assert.equal((await own.run({ command: "echo the first handle, too" })).exitCode, 0);
});

test("stop() in one process, resumeSession in another", async () => {
  const id = sessionId();
  const own = await create({ sessionId: id });
  await own.writeTextFile({ path: "note", content: "kept" });
  await own.stop();
  const program = `
    import { cayHarnessSandbox } from "cay-sandbox/ai-sdk";
    const session = await cayHarnessSandbox().resumeSession({ sessionId: process.argv[1] });
    console.log(await session.readTextFile({ path: "note" }));
    await session.stop();`;
  assert.equal(await elsewhere(program, id), "kept\n");
  assert.equal((await cay.get(own.id)).info.state, "paused");
});

test("stop() of a session without a session id removes it: nobody could resume it", async () => {
  const own = await create();
  await own.stop();
  await assert.rejects(cay.get(own.id), NotFound);
  await own.stop();
});

test("a session that is stopped ends after its idle time, although it had processes", async () => {
  const id = sessionId();
  const own = await create({ sessionId: id }, cayHarnessSandbox({ client: cay, idle: 1 }));
  await own.spawn({ command: "sleep 4203" });
  await own.run({ command: "setsid sleep 4204 > /dev/null 2>&1 &" });
  await own.stop();
  for await (const { type, sandbox, state } of cay.events())
    if (sandbox === own.id && type === "ended") {
      assert.equal(state, "idle");
      break;
    }
  await assert.rejects(provider.resumeSession({ sessionId: id }), Gone);
  await own.stop();
});

test("destroy() works on a running and on a stopped session, twice as well; it cannot be resumed then", async () => {
  for (const stopped of [false, true]) {
    const id = sessionId();
    const own = await create({ sessionId: id });
    if (stopped) await own.stop();
    await own.destroy();
    await own.destroy();
    await own.stop();
    await assert.rejects(provider.resumeSession({ sessionId: id }), NotFound);
  }
});

// ---- the network

test("setNetworkPolicy: deny-all is in force", async () => {
  await session.setNetworkPolicy({ mode: "deny-all" });
  const { stdout } = await session.run({ command: "ls /sys/class/net" });
  assert.equal(stdout, "lo\n");
});

test("setNetworkPolicy: other policies are checked, then unsupported", async () => {
  const custom = { mode: "custom", allowedHosts: ["api.example.com", "*.example.org", "*"] };
  const full = { ...custom, allowedCIDRs: ["10.0.0.0/8", "fd00::/8"], deniedCIDRs: ["169.254.169.254/32"] };
  const modes = [{ mode: "allow-all" }, { mode: "open" }];
  for (const policy of [...modes, custom, full, { mode: "custom", allowedCIDRs: ["10.0.0.0/8"] }])
    await assert.rejects(session.setNetworkPolicy(policy), isUnsupported);
});

test("setNetworkPolicy: a custom policy that only denies is rejected, and so is what is no policy", async () => {
  const bad = [
    { mode: "custom", deniedCIDRs: ["10.0.0.0/8"] },
    { mode: "custom", allowedHosts: [], deniedCIDRs: ["10.0.0.0/8"] },
    { mode: "custom" },
    { mode: "custom", allowedHosts: "example.com" },
    { mode: "custom", allowedHosts: ["http://example.com/"] },
    { mode: "custom", allowedCIDRs: ["10.0.0.0/33"] },
    { mode: "custom", allowedHosts: ["a.example"], deniedCIDRs: ["example.com"] },
    {},
    undefined,
    "deny-all",
  ];
  for (const policy of bad) await assert.rejects(session.setNetworkPolicy(policy), Invalid, JSON.stringify(policy));
});

const TRANSFORMERS = ["setRequestTransformations", "addRequestTransformations"];

test("request transformations: both methods are there: no adapter puts the credential into the sandbox", async () => {
  for (const name of TRANSFORMERS) {
    assert.equal(typeof session[name], "function");
    await session[name]([]);
  }
});

test("request transformations: good ones are unsupported, and no error repeats the credential", async () => {
  const secret = "sk-very-secret";
  const credential = createCredentialRequestTransformation({
    matchUrl: "https://api.example.com/v1/",
    matchHeaders: { "x-api-key": generateSandboxCredentialPlaceholder() },
    transformHeaders: { "x-api-key": secret },
  });
  const full = {
    match: { host: "*.example.com", path: { regex: "^/v1" }, method: ["GET"], queryString: [{ key: { exact: "q" } }] },
    transform: { headers: { authorization: `Bearer ${secret}` } },
  };
  for (const name of TRANSFORMERS)
    for (const list of [[credential], [full, credential]])
      await assert.rejects(session[name](list), (error) => isUnsupported(error) && !error.stack.includes(secret));
});

test("request transformations: what is none is rejected", async () => {
  const transform = { headers: { a: "sk-very-secret" } };
  const bad = [
    undefined,
    [undefined],
    [{}],
    [{ match: {}, transform }],
    [{ match: { host: "a b" }, transform }],
    [{ match: { host: "a.example" } }],
    [{ match: { host: "a.example" }, transform: {} }],
    [{ match: { host: "a.example", path: "/v1" }, transform }],
    [{ match: { host: "a.example", path: { exact: "/", regex: "." } }, transform }],
    [{ match: { host: "a.example", headers: [{ name: "x" }] }, transform }],
    [{ match: { host: "a.example" }, transform: { headers: { "a\nb": "sk-very-secret" } } }],
    [{ match: { host: "a.example" }, transform: { headers: { a: "sk-very-secret\nb" } } }],
  ];
  const told = (error) => error instanceof Invalid && !error.stack.includes("sk-very-secret");
  for (const name of TRANSFORMERS)
    for (const list of bad) await assert.rejects(session[name](list), told, JSON.stringify(list));
});

test("setPorts: none is fine, ports are unsupported, what is no port is rejected", async () => {
  await session.setPorts([]);
  await session.setPorts([], { abortSignal: new AbortController().signal });
  await assert.rejects(session.setPorts([3000, 4000]), isUnsupported);
  for (const ports of [[0], [65536], [1.5], ["80"], undefined]) await assert.rejects(session.setPorts(ports), Invalid);
  const reason = new Error("no time");
  const late = session.setPorts([], { abortSignal: AbortSignal.abort(reason) });
  await assert.rejects(late, (error) => error === reason);
});
