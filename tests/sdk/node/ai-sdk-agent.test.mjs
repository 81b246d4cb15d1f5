// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk under the published AI SDK, unmodified: everything that takes `experimental_sandbox` is driven with the
// SDK's own mock model, and its tools run in a cay sandbox.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { anthropic } from "@ai-sdk/anthropic";
import {
  ToolLoopAgent,
  createAgentUIStream,
  createAgentUIStreamResponse,
  generateText,
  isStepCount,
  pipeAgentUIStreamToResponse,
  streamText,
  tool,
} from "ai";
import { MockLanguageModelV4, convertArrayToReadableStream } from "ai/test";
import { Cay } from "cay-sandbox";
import { createCaySandbox, createSandboxSession } from "cay-sandbox/ai-sdk";
import { z } from "zod";

const cay = new Cay();
let sandbox;
before(async () => void (sandbox = await createCaySandbox({ client: cay, idle: 300 })));
after(() => sandbox?.remove());

// ---- a model that calls tools and then says something

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: 1, text: 1, reasoning: undefined },
};
const reason = (unified) => ({ unified, raw: undefined });
const call = (toolName, input, toolCallId = `call-${toolName}`) => ({
  type: "tool-call",
  toolCallId,
  toolName,
  input: JSON.stringify(input),
});

/** Each element is one answer: tool calls, or a text. */
function model(...answers) {
  const contents = answers.map((answer) => (typeof answer === "string" ? [{ type: "text", text: answer }] : answer));
  const finish = (content) => reason(content.some((part) => part.type === "tool-call") ? "tool-calls" : "stop");
  return new MockLanguageModelV4({
    doGenerate: contents.map((content) => ({ content, finishReason: finish(content), usage, warnings: [] })),
    doStream: contents.map((content) => ({
      stream: convertArrayToReadableStream([
        { type: "stream-start", warnings: [] },
        ...content.flatMap((part) =>
          part.type === "tool-call"
            ? [part]
            : [
                { type: "text-start", id: "1" },
                { type: "text-delta", id: "1", delta: part.text },
                { type: "text-end", id: "1" },
              ],
        ),
        { type: "finish", finishReason: finish(content), usage },
      ]),
    })),
  });
}

/** A tool that runs a command, and keeps which session it was given. */
function shell(seen = []) {
  return tool({
    description: ({ experimental_sandbox }) => `Runs a command. ${experimental_sandbox.description}`,
    inputSchema: z.object({ command: z.string() }),
    execute: async ({ command }, { abortSignal, experimental_sandbox }) => {
      seen.push(experimental_sandbox);
      return experimental_sandbox.run({ command, abortSignal });
    },
  });
}

const two = isStepCount(2);

test("generateText: a tool runs in the sandbox that was given, which is the same object", async () => {
  const seen = [];
  const { steps, text } = await generateText({
    model: model([call("shell", { command: "echo $((6 * 7)); pwd" })], "done"),
    tools: { shell: shell(seen) },
    experimental_sandbox: sandbox,
    prompt: "go",
    stopWhen: two,
  });
  assert.deepEqual(steps[0].toolResults[0].output, { exitCode: 0, stdout: "42\n/workspace\n", stderr: "" });
  assert.equal(text, "done");
  assert.equal(seen[0], sandbox);
});

test("a tool's description function gets the session, and the model is told what it makes of it", async () => {
  const mock = model("nothing to do");
  await generateText({ model: mock, tools: { shell: shell() }, experimental_sandbox: sandbox, prompt: "go" });
  const [told] = mock.doGenerateCalls[0].tools;
  assert.equal(told.description, `Runs a command. ${sandbox.description}`);
});

test("the description is never added to the prompt by itself", async () => {
  const mock = model("nothing to do");
  await generateText({ model: mock, experimental_sandbox: sandbox, prompt: "go" });
  assert.ok(!JSON.stringify(mock.doGenerateCalls[0]).includes(sandbox.id));
});

test("a tool reads and writes files with every file method of the session", async () => {
  const files = tool({
    inputSchema: z.object({ path: z.string(), content: z.string() }),
    execute: async ({ path, content }, { experimental_sandbox: session }) => {
      await session.writeTextFile({ path, content });
      const lines = await session.readTextFile({ path, startLine: 2, endLine: 2 });
      const { size } = await session.stat({ path });
      const names = (await session.listDirectory({ path: "by-tool" })).map(({ name }) => name);
      return { lines, size, names, deleted: await session.deleteFile({ path }) };
    },
  });
  const { steps } = await generateText({
    model: model([call("files", { path: "by-tool/a.txt", content: "one\ntwo\nthree" })], "done"),
    tools: { files },
    experimental_sandbox: sandbox,
    prompt: "go",
    stopWhen: two,
  });
  assert.deepEqual(steps[0].toolResults[0].output, { lines: "two", size: 13, names: ["a.txt"], deleted: true });
});

async function runBashTool(bash) {
  const { steps } = await generateText({
    model: model([call("bash", { command: "echo from bash; exit 2" })], "done"),
    tools: { bash },
    experimental_sandbox: sandbox,
    prompt: "go",
    stopWhen: two,
  });
  assert.deepEqual(steps[0].toolResults[0].output, { exitCode: 2, stdout: "from bash\n", stderr: "" });
}

test("anthropic.tools.bash_20241022 without execute runs in the sandbox", () =>
  runBashTool(anthropic.tools.bash_20241022()));

test("anthropic.tools.bash_20250124 without execute runs in the sandbox", () =>
  runBashTool(anthropic.tools.bash_20250124()));

test("anthropic.tools.bash_20250124 without a sandbox fails with 'Sandbox session is not available'", async () => {
  const { steps } = await generateText({
    model: model([call("bash", { command: "true" })], "done"),
    tools: { bash: anthropic.tools.bash_20250124() },
    prompt: "go",
    stopWhen: two,
  });
  assert.match(String(steps[0].content.find((part) => part.type === "tool-error").error), /not available/);
});

test("prepareStep may give another sandbox for a step", async () => {
  const other = await createCaySandbox({ client: cay, idle: 60 });
  try {
    const seen = [];
    const { steps } = await generateText({
      model: model([call("shell", { command: "echo 1 > mark" })], [call("shell", { command: "cat mark" })], "done"),
      tools: { shell: shell(seen) },
      experimental_sandbox: sandbox,
      prepareStep: ({ stepNumber }) => (stepNumber === 1 ? { experimental_sandbox: other } : {}),
      prompt: "go",
      stopWhen: isStepCount(3),
    });
    assert.deepEqual([seen[0] === sandbox, seen[1] === other], [true, true]);
    assert.equal(steps[1].toolResults[0].output.exitCode, 1, "the mark is in the first sandbox");
    assert.equal(await sandbox.readTextFile({ path: "mark" }), "1\n");
  } finally {
    await other.remove();
  }
});

test("an abort of generateText kills the command that its tool runs", async () => {
  const controller = new AbortController();
  const why = new Error("the user left");
  const failures = [];
  const watched = {
    ...sandbox,
    run: async (options) => {
      const running = sandbox.run(options);
      running.catch((error) => failures.push(error));
      while ((await sandbox.stat({ path: "abort-begun" })) === null);
      controller.abort(why);
      return running;
    },
  };
  const generating = generateText({
    model: model([call("shell", { command: "touch abort-begun; sleep 4301" })], "done"),
    tools: { shell: shell() },
    experimental_sandbox: watched,
    abortSignal: controller.signal,
    prompt: "go",
    stopWhen: two,
  });
  await generating.catch((error) => assert.equal(error, why));
  assert.deepEqual(failures, [why]);
  while ((await sandbox.run({ command: "pgrep -f '[s]leep 4301'" })).exitCode === 0);
});

test("streamText: a tool runs in the sandbox", async () => {
  const seen = [];
  const result = streamText({
    model: model([call("shell", { command: "echo streamed" })], "done"),
    tools: { shell: shell(seen) },
    experimental_sandbox: sandbox,
    prompt: "go",
    stopWhen: two,
  });
  assert.equal(await result.text, "done");
  assert.equal((await result.steps)[0].toolResults[0].output.stdout, "streamed\n");
  assert.equal(seen[0], sandbox);
});

// ---- agents

const agent = (seen) =>
  new ToolLoopAgent({
    model: model([call("shell", { command: "echo agent >> agent.log; wc -l < agent.log" })], "done"),
    tools: { shell: shell(seen) },
  });
const messages = [{ id: "1", role: "user", parts: [{ type: "text", text: "go" }] }];

test("ToolLoopAgent.generate: tools run in the sandbox of the call", async () => {
  const seen = [];
  const { steps, text } = await agent(seen).generate({ prompt: "go", experimental_sandbox: sandbox });
  assert.equal(steps[0].toolResults[0].output.exitCode, 0);
  assert.deepEqual([text, seen[0] === sandbox], ["done", true]);
});

test("ToolLoopAgent.stream: tools run in the sandbox of the call", async () => {
  const seen = [];
  const result = await agent(seen).stream({ prompt: "go", experimental_sandbox: sandbox });
  assert.equal(await result.text, "done");
  assert.equal(seen[0], sandbox);
});

test("createAgentUIStream: tools run in the sandbox", async () => {
  const seen = [];
  const options = { agent: agent(seen), uiMessages: messages, experimental_sandbox: sandbox };
  const chunks = [];
  for await (const chunk of await createAgentUIStream(options)) chunks.push(chunk);
  assert.equal(chunks.find(({ type }) => type === "tool-output-available").output.exitCode, 0);
  assert.equal(seen[0], sandbox);
});

test("createAgentUIStreamResponse: tools run in the sandbox", async () => {
  const seen = [];
  const options = { agent: agent(seen), uiMessages: messages, experimental_sandbox: sandbox };
  assert.match(await (await createAgentUIStreamResponse(options)).text(), /tool-output-available/);
  assert.equal(seen[0], sandbox);
});

test("pipeAgentUIStreamToResponse: tools run in the sandbox", async () => {
  const seen = [];
  const server = createServer((_, response) =>
    pipeAgentUIStreamToResponse({ response, agent: agent(seen), uiMessages: messages, experimental_sandbox: sandbox }),
  );
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/`);
    assert.match(await answer.text(), /tool-output-available/);
    assert.equal(seen[0], sandbox);
  } finally {
    server.close();
  }
});

test("several tool calls of one step run in the sandbox at the same time", async () => {
  const { steps } = await generateText({
    model: model(
      [
        call("shell", { command: "read < fifo; echo got $REPLY" }, "a"),
        call("shell", { command: "echo it > fifo; echo sent" }, "b"),
      ],
      "done",
    ),
    tools: { shell: shell() },
    experimental_sandbox: await withFifo(),
    prompt: "go",
    stopWhen: two,
  });
  assert.deepEqual(steps[0].toolResults.map(({ output }) => output.stdout), ["got it\n", "sent\n"]);
});

/** Another session over the same sandbox, with a pipe through which two commands must meet. */
async function withFifo() {
  await sandbox.run({ command: "mkfifo /tmp/fifo" });
  return createSandboxSession(cay.attach(sandbox.id), { workingDirectory: "/tmp" });
}
