// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk: what it makes is assignable to the published types of `ai`, @ai-sdk/provider-utils and @ai-sdk/harness,
// and what it makes it from is checked. Compiled by tests/sdk/test_node.py, never run.
import type { HarnessV1NetworkSandboxSession, HarnessV1SandboxProvider } from "@ai-sdk/harness";
import { HarnessAgent, type HarnessAgentAdapter } from "@ai-sdk/harness/agent";
import type { Experimental_SandboxProcess, Experimental_SandboxSession as UtilsSession } from "@ai-sdk/provider-utils";
import { ToolLoopAgent, generateText, streamText, type Experimental_SandboxSession, type LanguageModel } from "ai";
import { Cay, type Sandbox } from "cay-sandbox";
import {
  cayHarnessSandbox,
  createCaySandbox,
  createSandboxSession,
  type NetworkSandboxSession,
  type SandboxSession,
  type WritableSandboxProcess,
} from "cay-sandbox/ai-sdk";

declare const box: Sandbox;
declare const model: LanguageModel;
declare const harness: HarnessAgentAdapter;

// The session is the AI SDK's, by every name that it is published under, and the AI SDK's members are ours.
const session: SandboxSession = createSandboxSession(box, { workingDirectory: "/srv", description: "text" });
const ofAi: Experimental_SandboxSession = session;
const ofUtils: UtilsSession = session;
const complete: { [Name in keyof Experimental_SandboxSession]: unknown } = session;

// So is what createCaySandbox makes, and it can be given to everything that takes one.
await using own = await createCaySandbox({ client: new Cay(), memory: "1G", idle: "10m", env: { A: "1" } });
const ownSession: Experimental_SandboxSession = own;
await generateText({ model, prompt: "", experimental_sandbox: own });
streamText({ model, prompt: "", experimental_sandbox: own });
await new ToolLoopAgent({ model }).generate({ prompt: "", experimental_sandbox: session });

// spawn has a standard input if and only if it was asked for one.
const writable: WritableSandboxProcess = await session.spawn({ command: "cat", stdin: true });
const input: WritableStream<Uint8Array> = writable.stdin;
const plain: Experimental_SandboxProcess = await session.spawn({ command: "ls" });
// @ts-expect-error it has none
(await session.spawn({ command: "ls" })).stdin;

// The provider is the harness's.
const provider: HarnessV1SandboxProvider = cayHarnessSandbox({ host: "unix:/run/cay/cayd.sock", ttl: 60 });
const ofProvider: HarnessV1NetworkSandboxSession = await cayHarnessSandbox().createSession({ sessionId: "s" });
const network: NetworkSandboxSession = await cayHarnessSandbox().resumeSession({ sessionId: "s" });
const agent = new HarnessAgent({ harness, sandbox: cayHarnessSandbox() });
await agent.createSession({ sandboxSession: network });
await agent.createSession({ sandboxSession: own });

// @ts-expect-error the id is made from the session's
cayHarnessSandbox({ id: "x" });
// @ts-expect-error it is called workingDirectory
void createCaySandbox({ cwd: "/tmp" });
// @ts-expect-error no such option
void createCaySandbox({ colour: "red" });

export { agent, complete, input, ofAi, ofProvider, ofUtils, ownSession, plain, provider };
