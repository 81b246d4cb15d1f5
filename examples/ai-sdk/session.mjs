// SPDX-License-Identifier: Apache-2.0
//
// A session that is stopped and goes on later, in any process: the provider that HarnessAgent takes, used by hand.
//
//     npm install ./build/sdk/cay-sandbox-0.1.0.tgz @ai-sdk/harness
//     node session.mjs
import { cayHarnessSandbox } from "cay-sandbox/ai-sdk";

const provider = cayHarnessSandbox({ memory: "512M" });
const sessionId = `chat-${process.pid}`;

const session = await provider.createSession({
  sessionId,
  onFirstCreate: (fresh) => fresh.writeTextFile({ path: "notes.md", content: "# Notes\n" }),
});
await session.run({ command: "echo 'first turn' >> notes.md" });
await session.stop();

// Later: the same session id finds the same sandbox.
const resumed = await provider.resumeSession({ sessionId });
await resumed.run({ command: "echo 'second turn' >> notes.md" });
console.log(await resumed.readTextFile({ path: "notes.md" }));
await resumed.destroy();
