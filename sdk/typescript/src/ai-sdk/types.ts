// SPDX-License-Identifier: Apache-2.0
//
// The shapes of the AI SDK's sandbox interfaces, as far as cay fills them in. They are written down here and not
// imported, so that `cay-sandbox/ai-sdk` compiles with `ai` alone, with `@ai-sdk/harness` alone and with any of their versions:
// the interfaces are experimental and each package brings a copy of its own. tests/sdk/node/ai-sdk.test-d.ts proves
// that what is made here is assignable to the published types.

interface Abortable {
  abortSignal?: AbortSignal | undefined;
}

export interface RunOptions extends Abortable {
  /** Run by `bash -c`. */
  command: string;
  /** Relative to the session's base directory, which is also the default. */
  workingDirectory?: string | undefined;
  /** Added to the sandbox's own environment, and stronger. */
  env?: Record<string, string> | undefined;
}

export interface SpawnOptions extends RunOptions {
  stdin?: boolean | undefined;
}

export interface RunResult {
  exitCode: number;
  stdout: string;
  stderr: string;
}

export interface SandboxProcess {
  readonly pid: number;
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  /** Rejects with the reason of the signal that ended the process. */
  wait(): Promise<{ exitCode: number }>;
  /** Ends the process and all that it started. */
  kill(): Promise<void>;
}

export interface WritableSandboxProcess extends SandboxProcess {
  readonly stdin: WritableStream<Uint8Array>;
}

export interface Spawn {
  (options: RunOptions & { stdin: true }): Promise<WritableSandboxProcess>;
  (options: RunOptions & { stdin?: false | undefined }): Promise<SandboxProcess>;
  (options: SpawnOptions): Promise<SandboxProcess | WritableSandboxProcess>;
}

export interface PathOptions extends Abortable {
  /** Absolute, or relative to the session's base directory. */
  path: string;
}

export interface ReadTextOptions extends PathOptions {
  encoding?: string | undefined;
  /** From 1. */
  startLine?: number | undefined;
  /** Inclusive. */
  endLine?: number | undefined;
}

export interface WriteOptions<Content> extends PathOptions {
  content: Content;
}

export interface WriteTextOptions extends WriteOptions<string> {
  encoding?: string | undefined;
}

export interface FileStat {
  type: "file" | "directory" | "other";
  size: number;
}

export interface DirectoryEntry {
  name: string;
  type: "file" | "directory" | "symlink" | "other";
}

/** Assignable to `Experimental_SandboxSession` of the AI SDK. */
export interface SandboxSession {
  readonly description: string;
  readonly run: (options: RunOptions) => Promise<RunResult>;
  readonly spawn: Spawn;
  readonly readFile: (options: PathOptions) => Promise<ReadableStream<Uint8Array> | null>;
  readonly readBinaryFile: (options: PathOptions) => Promise<Uint8Array | null>;
  readonly readTextFile: (options: ReadTextOptions) => Promise<string | null>;
  readonly writeFile: (options: WriteOptions<ReadableStream<Uint8Array>>) => Promise<void>;
  readonly writeBinaryFile: (options: WriteOptions<Uint8Array>) => Promise<void>;
  readonly writeTextFile: (options: WriteTextOptions) => Promise<void>;
  readonly stat: (options: PathOptions) => Promise<FileStat | null>;
  readonly listDirectory: (options: PathOptions) => Promise<DirectoryEntry[] | null>;
  readonly deleteFile: (options: PathOptions) => Promise<boolean>;
}

/** One of the three forms in which a text is compared. */
export type Matcher = { exact: string } | { startsWith: string } | { regex: string };

export interface PairMatcher {
  readonly key?: Matcher | undefined;
  readonly value?: Matcher | undefined;
}

export interface RequestTransformation {
  readonly match: {
    readonly host: string;
    readonly path?: Matcher | undefined;
    readonly method?: readonly string[] | undefined;
    readonly queryString?: readonly PairMatcher[] | undefined;
    readonly headers?: readonly PairMatcher[] | undefined;
  };
  readonly transform: { readonly headers: Readonly<Record<string, string>> };
}

export type HarnessNetworkPolicy =
  | { mode: "allow-all" }
  | { mode: "deny-all" }
  | {
      mode: "custom";
      allowedHosts?: readonly string[] | undefined;
      allowedCIDRs?: readonly string[] | undefined;
      deniedCIDRs?: readonly string[] | undefined;
    };

export interface PortOptions {
  port: number;
  protocol?: "http" | "https" | "ws" | undefined;
}

/** Assignable to `HarnessV1NetworkSandboxSession` of @ai-sdk/harness. */
export interface NetworkSandboxSession extends SandboxSession {
  /** Of the sandbox in cay. */
  readonly id: string;
  readonly defaultWorkingDirectory: string;
  readonly ports: readonly number[];
  readonly getPortEndpoint: (options: PortOptions) => Promise<{ url: string; headers?: Record<string, string> }>;
  readonly getPortUrl: (options: PortOptions) => Promise<string>;
  /** Ends its processes and keeps its files for resumeSession; one without a session id is removed. */
  readonly stop: () => Promise<void>;
  readonly destroy: () => Promise<void>;
  readonly setNetworkPolicy: (policy: HarnessNetworkPolicy) => Promise<void>;
  readonly setRequestTransformations: (list: readonly RequestTransformation[]) => Promise<void>;
  readonly addRequestTransformations: (list: readonly RequestTransformation[]) => Promise<void>;
  readonly setPorts: (ports: readonly number[], options?: Abortable) => Promise<void>;
  readonly restricted: () => SandboxSession;
}

export interface CreateSessionOptions extends Abortable {
  sessionId?: string | undefined;
  /** Key of a snapshot. cay has none in this version: it is not looked at. */
  identity?: string | undefined;
  onFirstCreate?: ((session: SandboxSession, options: { abortSignal?: AbortSignal }) => Promise<void>) | undefined;
}

export interface ResumeSessionOptions extends Abortable {
  sessionId: string;
}

/** Assignable to `HarnessV1SandboxProvider` of @ai-sdk/harness. */
export interface HarnessSandboxProvider {
  readonly specificationVersion: "harness-sandbox-v1";
  readonly providerId: "cay";
  readonly createSession: (options?: CreateSessionOptions) => Promise<NetworkSandboxSession>;
  readonly resumeSession: (options: ResumeSessionOptions) => Promise<NetworkSandboxSession>;
}
