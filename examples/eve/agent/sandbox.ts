// SPDX-License-Identifier: Apache-2.0
import { cayProvider } from "cay-sandbox/eve";
import { defineSandbox } from "eve/sandbox";
import { defineSandboxProvider } from "eve/sandbox/provider";

export const environment = defineSandboxProvider(cayProvider).environment({
  memory: "512M",
  cpus: 1,
  idle: "4h",
  async prepare(sandbox) {
    await sandbox.writeTextFile({ path: "prices.csv", content: "apple,3\npear,4\nplum,5\n" });
  },
});

export default defineSandbox(() => environment.open());
