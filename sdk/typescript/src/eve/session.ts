// SPDX-License-Identifier: Apache-2.0
//
// The session that eve hands to tools: the AI SDK's, with eve's own rules where they differ (login shell, line ranges,
// strict UTF-8) and eve's additions. A plain object whose members are its own and need no `this`: eve spreads it.

import { Buffer } from "node:buffer";

import { commands, createSandboxSession } from "../ai-sdk/session.js";
import type { PathOptions, ReadTextOptions, SandboxSession } from "../ai-sdk/types.js";
import { Invalid, NotFound } from "../index.js";
import type { NetworkPolicy, Sandbox } from "../index.js";
import { requireDenyAll } from "../policy.js";

/** Where commands run and relative paths start, on every backend of eve. */
export const WORKSPACE = "/workspace";

export interface RemovePathOptions extends PathOptions {
  /** What is missing is no error. */
  readonly force?: boolean | undefined;
  /** A directory may be removed. */
  readonly recursive?: boolean | undefined;
}

interface Matcher {
  exact?: string;
  startsWith?: string;
  regex?: string;
}

interface PairMatcher {
  key?: Matcher;
  value?: Matcher;
}

interface Rule {
  match?: { path?: Matcher; method?: string[]; queryString?: PairMatcher[]; headers?: PairMatcher[] };
  transform?: { headers?: Record<string, string> }[];
  forwardURL?: string;
  response?: { statusCode: number; headers?: Record<string, string>; body?: string; contentType?: string };
}

/** A network policy in the words of eve's types, which say less than `NetworkPolicy`; it is checked at run time. */
export type SandboxNetworkPolicy =
  | "allow-all"
  | "deny-all"
  | { allow?: string[] | Record<string, Rule[]>; subnets?: { allow?: string[]; deny?: string[] } };

/** Assignable to eve's `SandboxSession` of every version, and to the AI SDK's `Experimental_SandboxSession`. */
export interface CaySession extends SandboxSession {
  /** eve's name of the session: its session key (up to eve 0.63), else its session id. */
  readonly id: string;
  readonly resolvePath: (path: string) => string;
  readonly removePath: (options: RemovePathOptions) => Promise<void>;
  /** In force when it resolves. */
  readonly setNetworkPolicy: (policy: SandboxNetworkPolicy) => Promise<void>;
  readonly getNetworkPolicy: () => Promise<NetworkPolicy>;
  /** Another policy while `use` runs; afterwards the one that was there before, whatever happens. */
  readonly withNetworkPolicy: <T>(policy: SandboxNetworkPolicy, use: () => Promise<T> | T) => Promise<T>;
}

/** A session over a sandbox that exists. No I/O. */
export function createSession(id: string, box: Sandbox): CaySession {
  const base = createSandboxSession(box, { workingDirectory: WORKSPACE });
  return {
    ...base,
    ...commands(box, resolvePath, (command) => ["bash", "-lc", command]), // eve's are written for a login shell
    ...network(box),
    id,
    resolvePath,
    readTextFile: async (options) => {
      checkLineRange(options);
      const bytes = await base.readBinaryFile(options);
      return bytes === null ? null : extractLines(decode(bytes, options.encoding), options);
    },
    removePath: (options) => removePath(box, options),
  };
}

/** Not normalised: eve compares what comes out with what it stored. */
export function resolvePath(path: string): string {
  return path.startsWith("/") ? path : `${WORKSPACE}/${path}`;
}

function network(box: Sandbox): Pick<CaySession, "setNetworkPolicy" | "getNetworkPolicy" | "withNetworkPolicy"> {
  const setNetworkPolicy = async (policy: SandboxNetworkPolicy) => {
    requireDenyAll(policy);
    await box.setNetwork(policy);
  };
  const getNetworkPolicy = async () => (await box.spec()).network as NetworkPolicy;
  return {
    setNetworkPolicy,
    getNetworkPolicy,
    withNetworkPolicy: async (policy, use) => {
      const before = await getNetworkPolicy();
      await setNetworkPolicy(policy);
      try {
        return await use();
      } finally {
        await setNetworkPolicy(before);
      }
    },
  };
}

/** The same check as on a live sandbox, for a policy that is given before there is one. */
export function checkPolicy(policy: SandboxNetworkPolicy | undefined): void {
  if (policy !== undefined) requireDenyAll(policy);
}

/** As `rm` does: without `recursive` no directory is removed, not even an empty one; a link is removed itself. */
async function removePath(box: Sandbox, options: RemovePathOptions): Promise<void> {
  const { force = false, recursive = false, abortSignal: signal } = options;
  const path = resolvePath(options.path);
  try {
    if (!recursive && (await box.files.stat(path, { signal })).type === "directory")
      throw new Invalid(`cannot remove '${path}': it is a directory, and 'recursive' was not given`);
    await box.files.remove(path, { recursive, signal });
  } catch (error) {
    if (!(force && error instanceof NotFound)) throw error;
  }
}

// ---- text as eve reads it -------------------------------------------------------------------------------------------

function decode(bytes: Uint8Array, encoding = "utf-8"): string {
  if (encoding === "utf-8" || encoding === "utf8") return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString(encoding as BufferEncoding);
}

function checkLineRange({ startLine, endLine }: ReadTextOptions): void {
  for (const [name, line] of Object.entries({ startLine, endLine }))
    if (line !== undefined && !(Number.isInteger(line) && line >= 1))
      throw new Invalid(`${name} must be a positive integer (1-based).`);
  if (startLine !== undefined && endLine !== undefined && startLine > endLine)
    throw new Invalid("startLine must not be greater than endLine.");
}

/** Lines with the endings that they have: \n, \r\n or \r, each for itself. */
function extractLines(text: string, { startLine = 1, endLine }: ReadTextOptions): string {
  if (startLine === 1 && endLine === undefined) return text;
  const lines = text.match(/[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g) ?? [];
  return lines.slice(startLine - 1, endLine).join("");
}
