// SPDX-License-Identifier: Apache-2.0
//
// Types only: what cay-sandbox/eve makes fits the published types of eve, old and new, and of the AI SDK.
import type { Experimental_SandboxSession } from "ai";
import { cayBackend, cayProvider, type CayArtifact, type CayOpenOptions, type CaySession, type CayState } from "cay-sandbox/eve";
import { defineSandbox, type SandboxSession } from "eve/sandbox";
import { defineSandboxProvider, type SandboxProviderHandle, type SandboxProviderImplementation } from "eve/sandbox/provider";
import { defineSandbox as defineOldSandbox, type SandboxBackend, type SandboxSession as OldSession } from "eve-0.63/sandbox";

declare const session: CaySession;
export const forEve: SandboxSession = session;
export const forOldEve: OldSession = session;
export const forTheAiSdk: Experimental_SandboxSession = session;

export const environment = defineSandboxProvider(cayProvider).environment({
  memory: "512M",
  async prepare(sandbox) {
    const policy: string | object = await sandbox.getNetworkPolicy();
    await sandbox.writeTextFile({ path: "policy", content: JSON.stringify(policy) });
  },
});

export default defineSandbox(async ({ session: { id } }) => {
  const sandbox = await environment.open({ networkPolicy: "deny-all" });
  await sandbox.withNetworkPolicy("deny-all", () => sandbox.run({ command: `echo ${id}` }));
  const child = await sandbox.spawn({ command: "cat", stdin: true });
  await child.stdin.close();
  return sandbox;
});

// @ts-expect-error an unknown option
defineSandboxProvider(cayProvider).environment({ memroy: "512M" });
// @ts-expect-error an unknown option
export const wrong = () => environment.open({ ports: [80] });

type Implementation = SandboxProviderImplementation<CayOpenOptions, CayArtifact, CayState, CaySession>;
export const implementation: Implementation = cayProvider.environment();
export const handle = async (context: Parameters<Implementation["resume"]>[0]): Promise<SandboxProviderHandle<CaySession>> =>
  implementation.resume(context, { version: 1, recipe: [] }, { version: 1, sandbox: "x" });

export const backend: SandboxBackend<CayOpenOptions, CayOpenOptions> = cayBackend({ idle: "1h", ttl: 3600 });
export const old = defineOldSandbox({
  backend: cayBackend(),
  async bootstrap({ use }) {
    await (await use({ networkPolicy: "deny-all" })).run({ command: "true" });
  },
  async onSession({ use }) {
    await use({ networkPolicy: "deny-all" });
  },
});
