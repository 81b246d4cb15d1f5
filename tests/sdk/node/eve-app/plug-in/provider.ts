// SPDX-License-Identifier: Apache-2.0
//
// agent/sandbox/sandbox.ts for eve 0.64 and later.
import { cayProvider } from "cay-sandbox/eve";
import { defineSandbox } from "eve/sandbox";
import { defineSandboxProvider } from "eve/sandbox/provider";

export const environment = defineSandboxProvider(cayProvider).environment({
  memory: "256M",
  async prepare(sandbox) {
    await sandbox.run({ command: "echo prepared > prepared.txt" });
  },
});

export default defineSandbox(async () => {
  const sandbox = await environment.open({ networkPolicy: "deny-all" });
  await sandbox.run({ command: `echo opened ${await sandbox.getNetworkPolicy()} >> prepared.txt` });
  return sandbox;
});
