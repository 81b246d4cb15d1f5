// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk under the published @ai-sdk/harness, unmodified: HarnessAgent, its bootstrap, its session life and its
// helpers over sandboxes of cay. The harness is one of the test's own: it runs each prompt as a command.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { after, test } from "node:test";
import { HarnessAgent, prepareHarnessSandboxTemplate, prepareSandboxForHarness } from "@ai-sdk/harness/agent";
import {
  drainBridgeProcessStream,
  resolveSandboxDefaultWorkingDirectory,
  resolveSandboxHomeDir,
  waitForBridgeReady,
  writeSkills,
} from "@ai-sdk/harness/utils";
import { tool } from "ai";
import { Cay, Conflict, NotFound } from "cay-sandbox";
import { cayHarnessSandbox, createCaySandbox } from "cay-sandbox/ai-sdk";
import { z } from "zod";

const cay = new Cay();
const sandbox = cayHarnessSandbox({ client: cay, idle: 300, labels: { test: "ai-sdk-harness" } });
after(async () => {
  const left = await cay.list({ labels: { test: "ai-sdk-harness" }, state: "all" });
  await Promise.all(left.map(({ id }) => cay.attach(id).remove()));
});
const sessionId = () => `chat-${randomUUID()}`;

// ---- a harness that runs prompts as commands

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const stop = { unified: "stop", raw: undefined };

/** A turn that says `text`. */
function say(emit, text) {
  emit({ type: "stream-start" });
  emit({ type: "text-start", id: "1" });
  emit({ type: "text-delta", id: "1", delta: text });
  emit({ type: "text-end", id: "1" });
  emit({ type: "finish-step", finishReason: stop, usage });
  emit({ type: "finish", finishReason: stop, totalUsage: usage });
}

/** A turn that calls the host's tool of that name and says what came back. */
function callTool(emit, name) {
  let result;
  const answered = new Promise((resolve) => (result = resolve));
  emit({ type: "stream-start" });
  emit({ type: "tool-call", toolCallId: "1", toolName: name, input: "{}" });
  return { submitToolResult: async ({ output }) => result(output), done: answered.then((it) => say(emit, it.stdout)) };
}

function harness({ recipe, starts = [], fail } = {}) {
  const state = () => ({ type: "resume-session", harnessId: "echo", specificationVersion: "harness-v1", data: {} });
  return {
    specificationVersion: "harness-v1",
    harnessId: "echo",
    builtinTools: {},
    ...(recipe && { getBootstrap: async () => recipe }),
    doStart: async (options) => {
      starts.push(options);
      if (fail) throw fail;
      const { sandboxSession, sessionWorkDir: workingDirectory } = options;
      return {
        sessionId: options.sessionId,
        isResume: options.resumeFrom != null,
        doPromptTurn: async ({ prompt, emit, abortSignal }) => {
          const command = typeof prompt === "string" ? prompt : prompt.content;
          if (command === "call the tool") return callTool(emit, "look");
          const done = Promise.resolve(sandboxSession.run({ command, workingDirectory, abortSignal })).then((result) =>
            say(emit, result.stdout),
          );
          return { submitToolResult: async () => {}, done };
        },
        doContinueTurn: async () => assert.fail("no turn is ever suspended here"),
        doSuspendTurn: async () => assert.fail("no turn is ever suspended here"),
        doCompact: async () => {},
        doDetach: async () => state(),
        doStop: async () => state(),
        doDestroy: async () => {},
      };
    },
  };
}

const recipe = {
  harnessId: "echo",
  bootstrapDir: "/opt/echo",
  files: [
    { path: "/opt/echo/bridge.js", content: "console.log('bridge')\n" },
    { path: "/opt/echo/lib/a.json", content: "{}" },
  ],
  commands: [{ command: "echo $PWD >> runs.log" }, { command: "node bridge.js > installed.log" }],
};

// ---- HarnessAgent

test("HarnessAgent: a prompt runs in <defaultWorkingDirectory>/<harnessId>-<sessionId> of a cay sandbox", async () => {
  const starts = [];
  const agent = new HarnessAgent({ harness: harness({ starts }), sandbox });
  const id = sessionId();
  const session = await agent.createSession({ sessionId: id });
  const { text } = await agent.generate({ session, prompt: "pwd; echo $HOME" });
  assert.equal(text, `/workspace/echo-${id}\n/root\n`);
  assert.equal(starts[0].sessionWorkDir, `/workspace/echo-${id}`);
  const box = starts[0].sandboxSession.id;
  await session.destroy();
  await assert.rejects(cay.get(box), NotFound);
});

test("HarnessAgent: stream() as well", async () => {
  const agent = new HarnessAgent({ harness: harness(), sandbox });
  const session = await agent.createSession();
  const result = await agent.stream({ session, prompt: "echo streamed" });
  assert.equal(await result.text, "streamed\n");
  await session.destroy();
});

test("HarnessAgent: a host's tool gets the restricted session of the same sandbox", async () => {
  let seen;
  const look = tool({
    inputSchema: z.object({}),
    execute: async (_, { experimental_sandbox }) => {
      seen = experimental_sandbox;
      return experimental_sandbox.run({ command: "cat made-by-prompt" });
    },
  });
  const starts = [];
  const agent = new HarnessAgent({ harness: harness({ starts }), sandbox, tools: { look } });
  const session = await agent.createSession();
  await agent.generate({ session, prompt: "echo same sandbox > /workspace/made-by-prompt" });
  const { text } = await agent.generate({ session, prompt: "call the tool" });
  assert.equal(text, "same sandbox\n");
  assert.equal(seen, starts[0].sandboxSession.restricted());
  assert.equal("stop" in seen, false);
  await session.destroy();
});

test("HarnessAgent: the bootstrap recipe's files and commands, once for each sandbox, and its marker", async () => {
  const starts = [];
  const agent = new HarnessAgent({ harness: harness({ recipe, starts }), sandbox });
  const id = sessionId();
  const session = await agent.createSession({ sessionId: id });
  const inside = starts[0].sandboxSession;
  assert.equal(await inside.readTextFile({ path: "/opt/echo/installed.log" }), "bridge\n");
  assert.equal(await inside.readTextFile({ path: "/opt/echo/lib/a.json" }), "{}");
  const names = (await inside.listDirectory({ path: "/opt/echo" })).map(({ name }) => name);
  assert.equal(names.filter((name) => /^\.bootstrap-[0-9a-f]{16}\.ok$/.test(name)).length, 1);
  const resumeFrom = await session.stop();
  const resumed = await agent.createSession({ sessionId: id, resumeFrom });
  assert.equal(await inside.readTextFile({ path: "/opt/echo/runs.log" }), "/opt/echo\n");
  await resumed.destroy();
});

test("HarnessAgent: onBootstrap on each fresh sandbox, onSession on each session, both in workDir", async () => {
  const calls = [];
  const sandboxConfig = {
    workDir: "project",
    bootstrapHash: "1",
    onBootstrap: async ({ session, workDir }) => {
      calls.push(`bootstrap ${workDir}`);
      await session.run({ command: "echo {} > package.json", workingDirectory: workDir });
    },
    onSession: async ({ session, sessionWorkDir }) => {
      const { stdout } = await session.run({ command: "cat package.json", workingDirectory: sessionWorkDir });
      calls.push(`session ${sessionWorkDir} ${stdout.trim()}`);
    },
  };
  const agent = new HarnessAgent({ harness: harness(), sandbox, sandboxConfig });
  const id = sessionId();
  const session = await agent.createSession({ sessionId: id });
  const resumeFrom = await session.detach();
  const resumed = await agent.createSession({ sessionId: id, resumeFrom });
  const each = "session /workspace/project {}";
  assert.deepEqual(calls, ["bootstrap /workspace/project", each, each]);
  await resumed.destroy();
});

test("HarnessAgent: detach() leaves the sandbox and its processes running; a resume finds them", async () => {
  const agent = new HarnessAgent({ harness: harness(), sandbox });
  const id = sessionId();
  const first = await agent.createSession({ sessionId: id });
  await agent.generate({ session: first, prompt: "sleep 4401 > /dev/null 2>&1 & echo $! > /tmp/pid" });
  const resumeFrom = await first.detach();
  const second = await agent.createSession({ sessionId: id, resumeFrom });
  const { text } = await agent.generate({ session: second, prompt: "kill $(cat /tmp/pid) && echo it ran on" });
  assert.equal(text, "it ran on\n");
  await second.destroy();
});

test("HarnessAgent: stop() and resume in another process: the files are there", async () => {
  const agent = new HarnessAgent({ harness: harness(), sandbox });
  const id = sessionId();
  const session = await agent.createSession({ sessionId: id });
  await agent.generate({ session, prompt: "echo work > result.txt" });
  const resumeFrom = await session.stop();
  const program = `
    import { HarnessAgent } from "@ai-sdk/harness/agent";
    import { cayHarnessSandbox } from "cay-sandbox/ai-sdk";
    const [sessionId, resumeFrom] = [process.argv[1], JSON.parse(process.argv[2])];
    const doStart = async ({ sandboxSession, sessionWorkDir, resumeFrom }) => {
      console.log(resumeFrom.type, await sandboxSession.readTextFile({ path: sessionWorkDir + "/result.txt" }));
      return { sessionId, isResume: true, doDestroy: async () => {} };
    };
    const harness = { specificationVersion: "harness-v1", harnessId: "echo", builtinTools: {}, doStart };
    const agent = new HarnessAgent({ harness, sandbox: cayHarnessSandbox() });
    await (await agent.createSession({ sessionId, resumeFrom })).destroy();`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program, "--", id, JSON.stringify(resumeFrom)], {
    cwd: new URL("../../..", import.meta.url),
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [stdout, [code]] = await Promise.all([new Response(child.stdout).text(), once(child, "close")]);
  assert.deepEqual([code, stdout], [0, "resume-session work\n\n"]);
  await assert.rejects(sandbox.resumeSession({ sessionId: id }), NotFound, "the other process destroyed it");
});

test("HarnessAgent: a harness that fails to start leaves its sandbox stopped; it can be destroyed", async () => {
  const failure = new Error("no bridge");
  const starts = [];
  const agent = new HarnessAgent({ harness: harness({ starts, fail: failure }), sandbox });
  const id = sessionId();
  await assert.rejects(agent.createSession({ sessionId: id }), (error) => error === failure);
  assert.equal((await cay.get(starts[0].sandboxSession.id)).info.state, "paused");
  await assert.rejects(agent.createSession({ sessionId: id }), Conflict);
  await (await sandbox.resumeSession({ sessionId: id })).destroy();
});

test("HarnessAgent: a bootstrap that fails leaves no sandbox", async () => {
  const bad = { ...recipe, commands: [{ command: "echo broken >&2; exit 3" }] };
  const agent = new HarnessAgent({ harness: harness({ recipe: bad }), sandbox });
  const id = sessionId();
  await assert.rejects(agent.createSession({ sessionId: id }), /broken/);
  await assert.rejects(sandbox.resumeSession({ sessionId: id }), NotFound);
});

test("HarnessAgent: an abort of createSession rejects and leaves no sandbox", async () => {
  const controller = new AbortController();
  const reason = new Error("the user left");
  const slow = { ...recipe, commands: [{ command: "sleep 4402" }] };
  const adapter = harness({ recipe: slow });
  const agent = new HarnessAgent({ harness: adapter, sandbox });
  const id = sessionId();
  const creating = agent.createSession({ sessionId: id, abortSignal: controller.signal });
  const failed = assert.rejects(creating, (error) => error === reason);
  while (!(await sandbox.resumeSession({ sessionId: id }).catch(() => null)));
  controller.abort(reason);
  await failed;
  await assert.rejects(sandbox.resumeSession({ sessionId: id }), NotFound);
});

test("HarnessAgent: a session of the caller's own stays the caller's; the framework asks it for pwd", async () => {
  const own = await createCaySandbox({ client: cay, idle: 60, workingDirectory: "/srv/mine" });
  try {
    const agent = new HarnessAgent({ harness: harness({ recipe }) });
    const session = await agent.createSession({ sessionId: "s", sandboxSession: own });
    assert.equal((await agent.generate({ session, prompt: "pwd" })).text, "/srv/mine/echo-s\n");
    await session.destroy();
    assert.equal((await own.run({ command: "echo still here" })).stdout, "still here\n");
  } finally {
    await own.remove();
  }
});

// ---- preparation and helpers

test("prepareHarnessSandboxTemplate runs the recipe and leaves no sandbox behind", async () => {
  const labels = { test: "ai-sdk-harness", step: randomUUID() };
  const provider = cayHarnessSandbox({ client: cay, idle: 60, labels });
  const sessions = [];
  const watched = {
    ...provider,
    createSession: async (options) => {
      const session = await provider.createSession(options);
      sessions.push(await session.readTextFile({ path: "/opt/echo/installed.log" }));
      return session;
    },
  };
  await prepareHarnessSandboxTemplate({ harness: harness({ recipe }), sandboxProvider: watched });
  assert.deepEqual(sessions, ["bridge\n"]);
  assert.deepEqual(await cay.list({ labels, state: "all" }), []);
});

test("prepareSandboxForHarness prepares a session of the caller's own, once", async () => {
  const own = await createCaySandbox({ client: cay, idle: 60 });
  try {
    for (let i = 0; i < 2; i++) {
      const { recipeIdentities } = await prepareSandboxForHarness({ session: own, harnesses: [harness({ recipe })] });
      assert.match(recipeIdentities.echo, /^[0-9a-f]{16}$/);
    }
    assert.equal(await own.readTextFile({ path: "/opt/echo/runs.log" }), "/opt/echo\n");
  } finally {
    await own.remove();
  }
});

test("helpers: home and default directory are found, skills are written, a bridge's readiness is seen", async () => {
  const session = await sandbox.createSession();
  const view = session.restricted();
  assert.equal(await resolveSandboxHomeDir({ sandbox: view }), "/root");
  assert.equal(await resolveSandboxDefaultWorkingDirectory({ sandboxSession: session }), "/workspace");
  assert.equal(await resolveSandboxDefaultWorkingDirectory({ sandboxSession: view }), "/workspace");
  const skill = { name: "greet", description: "Greets.", content: "# Greet" };
  const skills = { sandbox: view, homePath: "/root", skillsDir: ".agents/skills", skills: [skill] };
  assert.deepEqual((await writeSkills(skills)).written, ["greet"]);
  assert.deepEqual((await writeSkills(skills)).unchanged, ["greet"]);
  const proc = await view.spawn({ command: `echo starting; echo '{"type":"bridge-ready","port":4000}'; sleep 4403` });
  const drained = drainBridgeProcessStream(proc.stderr);
  const ready = { proc, sandbox: view, bridgeStateDir: "/tmp/bridge", bridgeType: "echo", timeoutMs: 20_000 };
  assert.equal((await waitForBridgeReady(ready)).port, 4000);
  await proc.kill();
  assert.notEqual((await proc.wait()).exitCode, 0);
  await drained;
  await session.destroy();
});
