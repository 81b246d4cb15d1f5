// SPDX-License-Identifier: Apache-2.0
//
// eve's two plug-in points, as far as cay fills them in. They are written down here and not imported: no version of eve
// has both, and `cay-sandbox/eve` is to load with any. tests/sdk/node/eve.test-d.ts proves that what is made here fits the
// published types.

import type { Recipe, SeedFile } from "./recipe.js";
import type { CaySession, SandboxNetworkPolicy } from "./session.js";

/** Options of one session: of `environment.open()`, and of `use()` in `onSession` and `bootstrap`. */
export interface CayOpenOptions {
  readonly networkPolicy?: SandboxNetworkPolicy | undefined;
}

export interface DeleteOptions {
  readonly abortSignal?: AbortSignal | undefined;
}

export type Log = (message: string) => void;

/** Gives the sandbox that is being prepared. */
export type Use = (options?: CayOpenOptions) => Promise<CaySession>;

// ---- eve 0.64 and later: eve/sandbox/provider -----------------------------------------------------------------------

/** What `prepare` leaves in eve's build output. */
export type CayArtifact = { readonly version: 1; readonly recipe: Recipe };

/** What eve keeps of a durable session. */
export type CayState = { readonly version: 1; readonly sandbox: string };

export interface ResourceTree {
  readonly files: readonly { readonly relativePath: string; readonly content: string | Uint8Array }[];
  readonly targetPath: string;
}

export interface PrepareContext {
  /** Of agent/sandbox. */
  readonly files: { list(): Promise<readonly string[]> };
  readonly log?: Log | undefined;
  readonly resources: { readonly workspace?: ResourceTree | undefined; readonly skills?: ResourceTree | undefined };
}

export interface SessionContext {
  readonly session: { readonly id: string };
}

/** Names of all versions: `onSession...` until 0.74, `onSandbox...` since 0.75. */
export interface ProviderHandle {
  readonly sandbox: CaySession;
  onRuntimeShutdown(): Promise<void>;
  onSandboxStop(): Promise<void>;
  onSandboxDelete(options?: DeleteOptions): Promise<void>;
  onSessionStop(): Promise<void>;
  onSessionDelete(options?: DeleteOptions): Promise<void>;
}

export interface ProviderImplementation {
  prepare(context: PrepareContext): Promise<CayArtifact>;
  start(
    context: SessionContext,
    options: CayOpenOptions | undefined,
    artifact: CayArtifact,
  ): Promise<{ readonly handle: ProviderHandle; readonly state: CayState }>;
  resume(context: SessionContext, artifact: CayArtifact, state: CayState): Promise<ProviderHandle>;
  onSessionEnd(context: SessionContext, artifact: CayArtifact, state: CayState): Promise<void>;
}

// ---- eve until 0.63: defineSandbox({ backend }) ---------------------------------------------------------------------

export interface BackendCreateInput {
  readonly templateKey: string | null;
  readonly sessionKey: string;
  readonly existingMetadata?: Record<string, unknown> | undefined;
  readonly tags?: Readonly<Record<string, string>> | undefined;
  readonly runtimeContext: { readonly appRoot: string };
}

export interface BackendPrewarmInput {
  readonly templateKey: string;
  readonly bootstrap?: ((input: { readonly use: Use }) => void | Promise<void>) | undefined;
  readonly seedFiles: readonly SeedFile[];
  readonly log?: Log | undefined;
  readonly runtimeContext: { readonly appRoot: string };
}

/** Names of all versions: `dispose` until 0.19, `shutdown` since 0.20, `stop` since 0.32, `delete` since 0.47. */
export interface BackendHandle {
  readonly session: CaySession;
  readonly useSessionFn: Use;
  captureState(): Promise<{ backendName: string; metadata: Record<string, unknown>; sessionKey: string }>;
  dispose(): Promise<void>;
  shutdown(): Promise<void>;
  stop(): Promise<void>;
  delete(options?: DeleteOptions): Promise<void>;
}

export interface Backend {
  readonly name: string;
  create(input: BackendCreateInput): Promise<BackendHandle>;
  prewarm(input: BackendPrewarmInput): Promise<{ readonly reused: boolean }>;
}
