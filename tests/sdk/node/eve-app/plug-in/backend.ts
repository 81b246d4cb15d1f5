// SPDX-License-Identifier: Apache-2.0
//
// agent/sandbox/sandbox.ts for eve until 0.63.
import { cayBackend } from "cay-sandbox/eve";
import { defineSandbox } from "eve/sandbox";

export default defineSandbox({
  backend: cayBackend({ memory: "256M" }),
  async bootstrap({ use }) {
    const sandbox = await use();
    await sandbox.run({ command: "echo prepared > prepared.txt" });
  },
  async onSession({ use }) {
    const sandbox = await use({ networkPolicy: "deny-all" });
    await sandbox.run({ command: `echo opened ${await sandbox.getNetworkPolicy()} >> prepared.txt` });
  },
});
