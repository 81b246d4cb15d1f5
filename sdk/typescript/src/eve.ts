// SPDX-License-Identifier: Apache-2.0
//
// eve on cay: every session of an eve agent gets a sandbox of its own. eve has changed its plug-in point once:
//
//     eve 0.64 and later   export const environment = defineSandboxProvider(cayProvider).environment(options);
//                          export default defineSandbox(() => environment.open());
//     eve until 0.63       export default defineSandbox({ backend: cayBackend(options) });
//
// Nothing of eve is imported, so this loads with every version. Handles carry the method names of all versions.
//
// - eve attaches anew for every tool call: that is one request, and fails if the sandbox is gone.
// - The id of a sandbox comes from its session, so that a start which is repeated finds what the first one made.
// - eve does not say when a development run has ended: sandboxes end by themselves, by idle time and age.
// - Stopping ends all processes and keeps the files; without processes the idle time runs.

import { createHash, randomUUID } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { env } from "node:process";

import { createWith, orRemoved } from "./defaults.js";
import { prepareOnce } from "./eve/prepare.js";
import { recording, replay, seedSteps, type Recipe, type SeedFile, type Step } from "./eve/recipe.js";
import { checkPolicy, createSession, WORKSPACE, type CaySession, type SandboxNetworkPolicy } from "./eve/session.js";
import type * as eve from "./eve/types.js";
import { Cay, Conflict, Gone, Invalid, NotFound, Timeout, Unavailable, Unsupported } from "./index.js";
import type { CayOptions, CreateOptions, Sandbox } from "./index.js";

export type { CaySession, RemovePathOptions, SandboxNetworkPolicy } from "./eve/session.js";
export type { CayArtifact, CayOpenOptions, CayState } from "./eve/types.js";

type Lifetime = { readonly idle: string; readonly ttl: string };

const NAME = "cay";
/** Of sandboxes that belong to a run of `eve dev` or `eve eval`, which may be many a day, and of all others. */
const DEVELOPMENT: Lifetime = { idle: "1h", ttl: "1d" };
const PRODUCTION: Lifetime = { idle: "1d", ttl: "30d" };
const DEVELOPMENT_RUN = "EVE_DEVELOPMENT_SANDBOX_RUN_ID";
const MAX_LABEL = 255;
/** Seconds that processes have to die of SIGKILL. */
const DYING = 10;
/** How often a start may find that others have removed what it had. */
const ATTEMPTS = 5;

export interface CayBackendOptions extends CayOptions, Omit<CreateOptions, "id" | "cwd" | "network" | "secrets"> {
  readonly networkPolicy?: SandboxNetworkPolicy | undefined;
}

export interface CayEnvironmentOptions extends CayBackendOptions {
  /** Done to every new sandbox before it is used; what it does is recorded once and repeated from the record. */
  readonly prepare?: ((sandbox: CaySession) => Promise<void> | void) | undefined;
}

// ---- the two plug-in points -----------------------------------------------------------------------------------------

/** For `defineSandboxProvider` of eve/sandbox/provider: eve 0.64 and later. */
export const cayProvider = {
  name: NAME,
  stateProtocolVersion: 1,
  environment(options: CayEnvironmentOptions = {}): eve.ProviderImplementation {
    const { prepare, ...rest } = options;
    const engine = new Engine(rest);
    return {
      prepare: async ({ files, resources, log }) => {
        if ((await files.list()).includes("Dockerfile"))
          throw new Unsupported("this version builds no images: agent/sandbox/Dockerfile would have no effect");
        const author = prepare && (async (use: eve.Use) => prepare(await use()));
        const recipe = await engine.record("prepare", seedsOf(resources), author, log);
        return { version: 1, recipe };
      },
      start: async ({ session }, open, artifact) => {
        checkOpenOptions(open);
        const box = await engine.open(session.id, { session: session.id }, recipeOf(artifact));
        const handle = providerHandle(session.id, box);
        await applyOpenOptions(handle.sandbox, open);
        return { handle, state: { version: 1, sandbox: box.id } };
      },
      resume: async ({ session }, _artifact, state) => providerHandle(session.id, await engine.adopt(state.sandbox)),
      onSessionEnd: (_context, _artifact, state) => engine.client.attach(state.sandbox).remove(),
    };
  },
};

/** For `defineSandbox({ backend })`: eve until 0.63. */
export function cayBackend(options: CayBackendOptions = {}): eve.Backend {
  const engine = new Engine(options);
  return {
    name: NAME,
    prewarm: async ({ templateKey, bootstrap, seedFiles, log, runtimeContext: { appRoot } }) => {
      const file = engine.templateFile(appRoot, templateKey);
      if (await readRecipe(file)) return { reused: true };
      const author = bootstrap && ((use: eve.Use) => bootstrap({ use }));
      await writeRecipe(file, await engine.record(templateKey, seedFiles, author, log));
      return { reused: false };
    },
    create: async ({ templateKey, sessionKey, existingMetadata, tags = {}, runtimeContext: { appRoot } }) => {
      const known = existingMetadata?.["sandbox"];
      if (typeof known === "string") return backendHandle(sessionKey, await engine.adopt(known));
      const recipe = templateKey === null ? [] : await readRecipe(engine.templateFile(appRoot, templateKey));
      if (!recipe) throw new SandboxTemplateNotProvisionedError(templateKey);
      const { sessionId = sessionKey, ...others } = tags;
      return backendHandle(sessionKey, await engine.open(sessionKey, { ...others, session: sessionId }, recipe));
    },
  };
}

/** eve knows it by these members and makes the template: its own class is not in every version. */
export class SandboxTemplateNotProvisionedError extends Error {
  override readonly name = "SandboxTemplateNotProvisionedError";
  readonly backendName = NAME;
  readonly templateKey: string;

  constructor(templateKey: string | null) {
    super(`the sandbox template '${templateKey}' is not there: run 'eve build'`);
    this.templateKey = String(templateKey);
  }
}

// ---- handles --------------------------------------------------------------------------------------------------------

function providerHandle(id: string, box: Sandbox): eve.ProviderHandle {
  const onSandboxStop = () => endProcesses(box);
  const onSandboxDelete = ({ abortSignal }: eve.DeleteOptions = {}) => box.remove({ signal: abortSignal });
  return {
    sandbox: createSession(id, box),
    onRuntimeShutdown: () => endProcesses(box).catch(unlessGone),
    onSandboxStop,
    onSandboxDelete,
    onSessionStop: onSandboxStop,
    onSessionDelete: onSandboxDelete,
  };
}

function backendHandle(sessionKey: string, box: Sandbox): eve.BackendHandle {
  const session = createSession(sessionKey, box);
  return {
    session,
    useSessionFn: (options) => applyOpenOptions(session, options),
    captureState: async () => ({ backendName: NAME, metadata: { sandbox: box.id }, sessionKey }),
    // Called after every step: the sandbox lives on, and a handle holds nothing.
    dispose: async () => {},
    shutdown: () => endProcesses(box).catch(unlessGone),
    stop: () => endProcesses(box),
    delete: ({ abortSignal } = {}) => box.remove({ signal: abortSignal }),
  };
}

/** All but the sandbox's own first one and the caller itself; over when there is none left to kill. */
async function endProcesses(box: Sandbox): Promise<void> {
  const script = "while kill -KILL -1; do sleep 0.01; done 2> /dev/null";
  const { timedOut } = await box.exec(["bash", "-c", script], { user: "0", timeout: DYING });
  if (timedOut) throw new Timeout(`the processes of '${box.id}' do not end`);
}

/** Nothing runs in a sandbox that is gone. */
function unlessGone(error: unknown): void {
  if (!(error instanceof NotFound || error instanceof Gone)) throw error;
}

// ---- options --------------------------------------------------------------------------------------------------------

const SIZES = ["memory", "cpus", "pids", "disk", "inodes", "fds", "output", "ttl", "idle"];
const WHERE = ["host", "token", "ca"];
const OPTIONS = [...WHERE, "networkPolicy", "image", "user", "profile", ...SIZES, "env", "labels", "mounts"];

/** An option that is not known would be one without effect. */
function checkNames(options: object, known: readonly string[]): void {
  for (const name of Object.keys(options))
    if (!known.includes(name))
      throw new Invalid(`no option '${name}' here; there are: ${known.join(", ")}`, { detail: { field: name } });
}

function checkOpenOptions(options: eve.CayOpenOptions = {}): void {
  checkNames(options, ["networkPolicy"]);
  checkPolicy(options.networkPolicy);
}

async function applyOpenOptions(session: CaySession, options: eve.CayOpenOptions = {}): Promise<CaySession> {
  checkOpenOptions(options);
  if (options.networkPolicy !== undefined) await session.setNetworkPolicy(options.networkPolicy);
  return session;
}

// ---- sandboxes ------------------------------------------------------------------------------------------------------

type Author = (use: eve.Use) => Promise<void> | void;

/** What one set of options means: a daemon, and how its sandboxes are made. */
class Engine {
  readonly #where: CayOptions;
  readonly #spec: CreateOptions;
  #client: Cay | undefined;

  constructor({ host, token, ca, networkPolicy, env: variables, ...spec }: CayBackendOptions) {
    checkNames(spec, OPTIONS);
    checkPolicy(networkPolicy);
    this.#where = { host, token, ca };
    const network = networkPolicy && { network: "deny-all" }; // no other one has passed the check
    this.#spec = { ...spec, ...network, cwd: WORKSPACE, env: { AI_AGENT: "eve", ...variables } };
  }

  /** Made when it is first needed: agents are loaded by builds, too. */
  get client(): Cay {
    return (this.#client ??= new Cay(this.#where));
  }

  /** A sandbox for a session, prepared; the one that an earlier start has left, if there is one. */
  async open(key: string, tags: Record<string, string>, recipe: Recipe): Promise<Sandbox> {
    const made = this.#specFor(tags);
    const spec = { ...made, id: `eve-${digest([key, made, recipe]).slice(0, 32)}` };
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const box = await this.#create(spec);
      if (box && (recipe.length === 0 || (await prepareOnce(box, createSession(key, box), recipe)))) return box;
    }
    throw new Unavailable(`the sandbox '${spec.id}' is removed again and again while it is made`);
  }

  /** The sandbox of a session that goes on: one request. */
  async adopt(id: string): Promise<Sandbox> {
    const box = await this.client.get(id);
    if (box.info?.endedMs) throw new Gone(`the sandbox '${id}' of this session has ended: ${box.info.reason}`);
    return box;
  }

  /** The seeds, and what the author does with a sandbox that holds them. Without an author no daemon is needed. */
  async record(name: string, seeds: readonly SeedFile[], author?: Author, log?: eve.Log): Promise<Recipe> {
    const steps: Step[] = seedSteps(seeds);
    if (!author) return steps;
    log?.("starting a sandbox for the preparation");
    const box = await createWith(this.client, this.#specFor({ role: "preparation" }), this.#life());
    await orRemoved(box, async () => {
      const session = createSession(name, box);
      await replay(session, steps);
      const recorded = recording(session, steps, log);
      await author((options) => applyOpenOptions(recorded, options));
    });
    await box.remove();
    return steps;
  }

  /** Where the recipe of a template is kept, beside the templates of eve's own backends. */
  templateFile(appRoot: string, templateKey: string): string {
    const name = digest([templateKey, this.#spec]).slice(0, 40);
    return join(appRoot, ".eve", "sandbox-cache", NAME, "templates", `${name}.json`);
  }

  #specFor(tags: Record<string, string>): CreateOptions {
    const run = developmentRun();
    const labels: Record<string, string> = { ...this.#spec.labels };
    for (const [name, value] of Object.entries({ ...tags, ...(run && { devRunId: run }) }))
      labels[`eve.${name.replaceAll(/[^A-Za-z0-9._/-]/g, "-")}`] = labelText(value);
    return { ...this.#spec, labels };
  }

  #life(): Lifetime {
    return developmentRun() ? DEVELOPMENT : PRODUCTION;
  }

  /** One that is there with the same spec is the one. Undefined: only the record of an ended one was, and is gone. */
  async #create(spec: CreateOptions & { id: string }): Promise<Sandbox | undefined> {
    try {
      return await createWith(this.client, spec, this.#life());
    } catch (error) {
      if (!(error instanceof Conflict)) throw error;
      const old = this.client.attach(spec.id);
      const ended = await old.refresh().then((info) => info.endedMs > 0, isGone);
      if (!ended) throw error;
      await old.remove({ force: false }).catch(unlessRemade);
      return undefined;
    }
  }
}

function developmentRun(): string | undefined {
  return env[DEVELOPMENT_RUN]?.trim();
}

function isGone(error: unknown): boolean {
  unlessGone(error);
  return true;
}

/** Another process was faster. */
function unlessRemade(error: unknown): void {
  if (!(error instanceof Conflict)) throw error;
}

function recipeOf({ version, recipe }: eve.CayArtifact): Recipe {
  if (version !== 1) throw new Invalid("the prepared sandbox is of another version of cay: run 'eve build' again");
  return recipe;
}

function seedsOf({ workspace, skills }: eve.PrepareContext["resources"]): SeedFile[] {
  const seeds = (tree: eve.ResourceTree | undefined) =>
    tree?.files.map((file) => ({ path: `${tree.targetPath}/${file.relativePath}`, content: file.content })) ?? [];
  return [...seeds(workspace), ...seeds(skills)];
}

/** Labels are short and have no control characters; these are for people who look for a sandbox. */
function labelText(text: string): string {
  return text.replaceAll(/[^\x20-\x7e]/g, "?").slice(0, MAX_LABEL);
}

function digest(value: unknown): string {
  return createHash("sha256").update(JSON.stringify(value)).digest("hex");
}

// ---- templates of the older plug-in point: a file for each, under the agent's project -------------------------------

async function readRecipe(file: string): Promise<Recipe | undefined> {
  try {
    const { version, recipe } = JSON.parse(await readFile(file, "utf8")) as eve.CayArtifact;
    return version === 1 ? recipe : undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

async function writeRecipe(file: string, recipe: Recipe): Promise<void> {
  const temporary = `${file}.${randomUUID()}`;
  await mkdir(dirname(file), { recursive: true });
  await writeFile(temporary, JSON.stringify({ version: 1, recipe } satisfies eve.CayArtifact));
  await rename(temporary, file);
}
