// SPDX-License-Identifier: Apache-2.0
//
// The AI SDK on cay: sandboxes for `experimental_sandbox` of generateText, streamText and ToolLoopAgent, and the
// provider for HarnessAgent of @ai-sdk/harness.
//
//     createSandboxSession(box)    an Experimental_SandboxSession over a sandbox that you have
//     createCaySandbox(options)    the same over a new sandbox, which goes with it
//     cayHarnessSandbox(options)   a HarnessV1SandboxProvider: one sandbox for each harness session
//
// Nothing here keeps state but the sandbox. Relative paths are resolved against one base directory, which no command
// can change.

import { createHash, randomBytes } from "node:crypto";

import { sleep } from "./abort.js";
import { checkPorts, checkTransformations, toNetworkPolicy } from "./ai-sdk/network.js";
import { baseDirectory, createSandboxSession, type SessionOptions } from "./ai-sdk/session.js";
import type {
  CreateSessionOptions,
  HarnessSandboxProvider,
  NetworkSandboxSession,
  ResumeSessionOptions,
  SandboxSession,
} from "./ai-sdk/types.js";
import { createWith, orRemoved } from "./defaults.js";
import { Cay, Conflict, Denied, Gone, Invalid, NotFound, Unauthorized, Unsupported } from "./index.js";
import type { CallOptions, CayError, CayOptions, CreateOptions, Sandbox } from "./index.js";

export { createSandboxSession, type SessionOptions } from "./ai-sdk/session.js";
export type * from "./ai-sdk/types.js";

/** Ends a sandbox that nobody removes, in seconds: of one program, and of a session that can be resumed. */
const LIFE = { idle: 3600, ttl: 24 * 3600 };
const SESSION_LIFE = { idle: 24 * 3600, ttl: 30 * 24 * 3600 };
/** How long processes may take to die of SIGKILL. */
const DYING_MS = 10_000;
const PROVIDER_ID = "cay";
/** The base directory of a harness session, for who resumes it. */
const LABEL_DIRECTORY = "cay.ai-sdk/working-directory";
/** The call that made the sandbox. */
const LABEL_CREATION = "cay.ai-sdk/creation";

export interface CaySandboxOptions extends Omit<CreateOptions, "cwd">, CayOptions, SessionOptions {
  /** Default: one of its own, made from `host`, `token` and `ca`. */
  client?: Cay | undefined;
}

// ---- a sandbox of its own -------------------------------------------------------------------------------------------

/** A session whose sandbox is its own: `await using` removes it, and so does remove(). */
export interface CaySandboxSession extends SandboxSession, AsyncDisposable {
  readonly id: string;
  /** Removes the sandbox with all that it holds. Not an error if it is gone already. */
  readonly remove: () => Promise<void>;
}

/** Makes a sandbox and a session over it. Unless `ttl` or `idle` is given, it ends after an idle hour or a day. */
export async function createCaySandbox(
  options: CaySandboxOptions & { abortSignal?: AbortSignal | undefined } = {},
): Promise<CaySandboxSession> {
  const { abortSignal: signal, ...rest } = options;
  const { client, base, spec } = settle(rest);
  const box = await createWith(client, asNew(spec), LIFE, { signal });
  await orRemoved(box, () => box.files.mkdir(base, { signal }));
  const remove = async () => {
    await box.remove();
    if (!options.client) client.close();
  };
  return { ...createSandboxSession(box, rest), id: box.id, remove, [Symbol.asyncDispose]: remove };
}

/** What the options mean. No I/O. */
function settle(options: CaySandboxOptions): { client: Cay; base: string; spec: CreateOptions } {
  const { client, host, token, ca, workingDirectory, description: _, ...spec } = options;
  if ("cwd" in spec) throw new Invalid("there is no option 'cwd' here: it is called workingDirectory");
  return { client: client ?? new Cay({ host, token, ca }), base: baseDirectory({ workingDirectory }), spec };
}

/** cay gives who asks for the same spec the sandbox that is there. A label of each creation makes it a Conflict. */
function asNew(spec: CreateOptions): CreateOptions {
  return { ...spec, labels: { ...spec.labels, [LABEL_CREATION]: randomBytes(8).toString("hex") } };
}

// ---- the provider for harnesses -------------------------------------------------------------------------------------

export type CayHarnessOptions = Omit<CaySandboxOptions, "id">;

/**
 * A sandbox provider for HarnessAgent. The sandbox of a session is found by the session's id from any process. Unless
 * `ttl` or `idle` is given, a session's sandbox ends after a day without use, stopped or not, or after 30. No I/O.
 */
export function cayHarnessSandbox(options: CayHarnessOptions = {}): HarnessSandboxProvider {
  const { client, base, spec } = settle(options);
  if ("id" in spec) throw new Invalid("there is no option 'id' here: it is made from the session's id");

  const createSession = async ({ sessionId, abortSignal, onFirstCreate }: CreateSessionOptions = {}) => {
    const labels = { ...spec.labels, [LABEL_DIRECTORY]: base };
    const id = sessionId === undefined ? undefined : sandboxId(sessionId);
    const box = await authenticated(createFresh(client, asNew({ ...spec, id, labels }), { signal: abortSignal }));
    await orRemoved(box, () => authenticated(box.files.mkdir(base, { signal: abortSignal })));
    const session = networkSession(box, { ...options, workingDirectory: base }, sessionId !== undefined);
    const rest = abortSignal ? { abortSignal } : {};
    if (onFirstCreate) await orRemoved(box, () => onFirstCreate(session.restricted(), rest));
    return session;
  };

  const resumeSession = async ({ sessionId, abortSignal: signal }: ResumeSessionOptions) => {
    const box = await authenticated(client.get(sandboxId(sessionId), { signal }));
    await authenticated(box.resume({ signal }));
    const workingDirectory = box.info?.labels[LABEL_DIRECTORY] ?? base;
    return networkSession(box, { ...options, workingDirectory }, true);
  };

  return { specificationVersion: "harness-sandbox-v1", providerId: PROVIDER_ID, createSession, resumeSession };
}

/** Session ids are any text, cay's have rules: the same one gives the same one in every process. */
function sandboxId(sessionId: string): string {
  return `harness-${createHash("sha256").update(sessionId).digest("hex").slice(0, 40)}`;
}

/** A new sandbox. One that is there is a Conflict, unless it has ended: then only its record is left and makes room. */
async function createFresh(client: Cay, spec: CreateOptions, options: CallOptions): Promise<Sandbox> {
  try {
    return await createWith(client, spec, SESSION_LIFE, options);
  } catch (error) {
    if (!(error instanceof Conflict) || spec.id === undefined) throw error;
    const old = await client.get(spec.id, options);
    if (old.info?.endedMs === 0)
      throw new Conflict(`the session's sandbox '${spec.id}' exists: resume or destroy it`, { cause: error });
    await old.remove({ ...options, force: false }); // not one that another process has made in the meantime
    return await createWith(client, spec, SESSION_LIFE, options);
  }
}

function networkSession(box: Sandbox, options: SessionOptions, resumable: boolean): NetworkSandboxSession {
  const session = createSandboxSession(box, options);
  const noPorts = async ({ port }: { port: number }): Promise<never> =>
    refuse(`port ${port} is not exposed: this version publishes no ports`);
  const noTransformations: NetworkSandboxSession["setRequestTransformations"] = async (list) => {
    checkTransformations(list);
    if (list.length > 0) await refuse("this version cannot transform requests: no credential was passed on");
  };
  return {
    ...session,
    id: box.id,
    defaultWorkingDirectory: baseDirectory(options),
    ports: [],
    getPortEndpoint: noPorts,
    getPortUrl: noPorts,
    stop: () => (resumable ? stopKeeping(box) : box.remove()),
    destroy: () => box.remove(),
    setNetworkPolicy: async (policy) => {
      const wanted = toNetworkPolicy(policy);
      if (wanted !== "deny-all")
        await refuse(`this version has no network policy '${policy.mode}', only 'deny-all'`);
      await box.setNetwork("deny-all");
    },
    // There although it can do nothing: without it, harnesses put the credential itself into the sandbox.
    setRequestTransformations: noTransformations,
    addRequestTransformations: noTransformations,
    setPorts: async (ports, { abortSignal } = {}) => {
      abortSignal?.throwIfAborted();
      checkPorts(ports);
      if (ports.length > 0) await refuse("this version publishes no ports");
    },
    restricted: () => session,
  };
}

/**
 * A sandbox that is stopped keeps its files and nothing else, like the virtual machines that harnesses were made for:
 * its processes are killed, and it is frozen until it is resumed. With no process in it, its idle time counts.
 */
async function stopKeeping(box: Sandbox): Promise<void> {
  try {
    if ((await box.refresh()).state === "paused") return;
    // Also of those that have ended: what they left in the background.
    for (const { pid } of await box.processes()) await box.process(pid).kill();
    // Frozen before its init has buried the last of them, it would count as in use. One process is init itself.
    for (const end = Date.now() + DYING_MS; (await box.stats()).pids > 1 && Date.now() < end; ) await sleep(5);
    await box.pause();
  } catch (error) {
    // It is gone, or the host has no cgroups: then it stays as it is now, empty.
    if (!(error instanceof NotFound || error instanceof Gone || error instanceof Unsupported)) throw error;
  }
}

// ---- errors of the harness ------------------------------------------------------------------------------------------

/** The classes of the harness that is installed, if one is: who uses `ai` alone has none. */
async function harnessErrors(): Promise<Partial<typeof import("@ai-sdk/harness")>> {
  try {
    return await import("@ai-sdk/harness");
  } catch {
    return {};
  }
}

async function refuse(message: string): Promise<never> {
  const cause = new Unsupported(message);
  const { HarnessCapabilityUnsupportedError: Known } = await harnessErrors();
  throw Known ? new Known({ message, harnessId: PROVIDER_ID, cause }) : cause;
}

/** Tells a credential that is missing, wrong or too weak from what else can go wrong. */
async function authenticated<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    if (!isCredentialError(error)) throw error;
    const { HarnessSandboxAuthenticationError: Known } = await harnessErrors();
    const message = `cayd refused us (${error.message}): set CAY_TOKEN, or give cayHarnessSandbox() a token`;
    throw Known ? new Known({ message, sandboxProviderId: PROVIDER_ID, cause: error }) : error;
  }
}

function isCredentialError(error: unknown): error is CayError {
  return error instanceof Unauthorized || (error instanceof Denied && /^scope\./.test(error.detail.rule ?? ""));
}
