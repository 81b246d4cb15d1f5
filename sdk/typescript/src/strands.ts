// SPDX-License-Identifier: Apache-2.0
//
// Strands Agents on cay: `new Agent({ sandbox: new CaySandbox() })`.
//
// CaySandbox is the abstract class `Sandbox` of @strands-agents/sdk over a sandbox of cay. The class and its errors
// must be the SDK's own, which its tools recognise by `instanceof`: the SDK is a peer of this package.
//
// A command is read by `supervise` into a short Feed from which the consumer of the generator takes at its own speed; a
// slow one holds the command back. A timeout, an abort and a generator that is closed early are one thing here: the
// command and all that it started gets SIGTERM, a second later SIGKILL, and only then is the caller told. When this
// program dies, it is SIGKILL within seconds.

import { TextDecoder } from "node:util";

import { Sandbox, SandboxAbortError, SandboxPathNotFoundError, SandboxTimeoutError } from "@strands-agents/sdk";
import type { ExecuteOptions, ExecutionResult, FileInfo, StreamChunk, StreamType, Tool } from "@strands-agents/sdk";
import { LANGUAGE_PATTERN } from "@strands-agents/sdk/sandbox";
import { DEFAULT_FILE_EDITOR_DESCRIPTION, makeFileEditor } from "@strands-agents/sdk/vended-tools/file-editor";
import { SANDBOX_SHELL_DESCRIPTION, makeShell } from "@strands-agents/sdk/vended-tools/shell";

import { createWith, orRemoved } from "./defaults.js";
import { Cay, CayError, Gone, Invalid, NotFound, Sandbox as Box } from "./index.js";
import type { CayOptions, CreateOptions, Exit, Files, Process } from "./index.js";
import { noteOf } from "./wire.js";

const WORKING_DIR = "/workspace";
const ENV_KEY_PATTERN = /^[a-zA-Z_][a-zA-Z0-9_]*$/;
/** Between SIGTERM and SIGKILL, in milliseconds. */
const GRACE = 1000;
/** Chunks that wait for the consumer, and how long it may take none before the daemon takes it for stuck. */
const WAITING = 64;
const STALL = 3600;
/** The daemon ends a command itself so many seconds after its time, in case this client cannot any more. */
const SPARE = 5;
/** What setTimeout can count, in seconds. */
const LONGEST_TIMEOUT = 2_000_000;
/** Linux takes 128 KiB in one argument. A longer command goes in by standard input, which is then empty again. */
const LONGEST_ARGUMENT = 100_000;
const EVAL_INPUT = 'eval "$(cat)" < /dev/null';
/**
 * A sandbox that nobody closes ends after an hour without use, or after a day. So much of a command's output is kept
 * until it is read; it costs nothing before it is written.
 */
const DEFAULTS = { idle: 3600, ttl: 86400, output: "64M" };

export interface CaySandboxOptions extends CreateOptions, CayOptions {
  /** The client to use. Default: one of its own, with `host`, `token` and `ca`. */
  client?: Cay;
  /** Where commands run and relative paths start. Made if it is not there. Default: /workspace. */
  workingDir?: string;
}

/** A Strands sandbox on a cay sandbox that exists, or on one of its own, which is made when it is first used. */
export class CaySandbox extends Sandbox implements AsyncDisposable {
  readonly workingDir: string;
  readonly #given: Box | undefined;
  readonly #options: CaySandboxOptions;
  #made: Promise<Box> | undefined;
  #closed = false;

  constructor(box: Box, options?: { workingDir?: string });
  constructor(options?: CaySandboxOptions);
  constructor(from: Box | CaySandboxOptions = {}, options: { workingDir?: string } = {}) {
    super();
    this.#given = from instanceof Box ? from : undefined;
    this.#options = from instanceof Box ? options : from;
    this.workingDir = this.#options.workingDir ?? WORKING_DIR;
    if (!this.workingDir.startsWith("/")) throw new Invalid(`workingDir '${this.workingDir}' is not absolute`);
  }

  /** Makes the sandbox now instead of at its first use. */
  static async create(options: CaySandboxOptions = {}): Promise<CaySandbox> {
    const sandbox = new CaySandbox(options);
    await sandbox.box();
    return sandbox;
  }

  /** The sandbox of cay behind it, for all that Strands has no call for. */
  box(): Promise<Box> {
    if (this.#closed) return Promise.reject(new Gone("the sandbox was closed"));
    if (this.#given) return Promise.resolve(this.#given);
    this.#made ??= make(this.#options).catch((error: unknown) => {
      this.#made = undefined; // the next use tries again
      throw error;
    });
    return this.#made;
  }

  /** Removes the sandbox if it was made here; one that was given stays. */
  async close(): Promise<void> {
    this.#closed = true;
    const made = this.#made;
    this.#made = undefined;
    await made?.then(
      (box) => box.remove(),
      () => {},
    );
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  override async *executeStreaming(command: string, options: ExecuteOptions = {}): Stream {
    const long = Buffer.byteLength(command) > LONGEST_ARGUMENT;
    yield* this.#run(["sh", "-c", long ? EVAL_INPUT : command], long ? command : undefined, options);
  }

  override async *executeCodeStreaming(code: string, language: string, options: ExecuteOptions = {}): Stream {
    if (!LANGUAGE_PATTERN.test(language)) {
      throw new Error(`language parameter contains invalid characters: ${language}`);
    }
    // By a shell, which tells of a missing interpreter as of any other command: 127.
    yield* this.#run(["sh", "-c", '"$1"', "sh", language], code, options);
  }

  async *#run(argv: string[], input: string | undefined, { timeout, cwd, signal, env }: ExecuteOptions): Stream {
    checkEnv(env);
    if (signal?.aborted) throw new SandboxAbortError();
    const box = await this.box();
    const seconds = timeout === undefined ? undefined : Math.min(timeout, LONGEST_TIMEOUT);
    const process = await box.start(argv, {
      env,
      cwd: this.#resolve(cwd ?? "."),
      timeout: seconds === undefined ? undefined : seconds + SPARE,
      stdin: input !== undefined,
      killOnDisconnect: true,
    });
    const feed = new Feed();
    const stop = stopper(seconds, signal);
    const outcome = supervise(process, input, stop.when, feed).finally(() => feed.end());
    outcome.catch(() => {}); // it is awaited when the consumer has taken all
    try {
      yield* feed;
      const end = await outcome;
      const { stdout, stderr } = feed;
      if (end === "abort") throw new SandboxAbortError();
      if (typeof end === "string" || end.timedOut) throw new SandboxTimeoutError(timeout ?? 0, stdout, stderr);
      const told = stderr + noteOf(end);
      yield { type: "executionResult", exitCode: end.exitCode, stdout, stderr: told, outputFiles: [] };
    } finally {
      feed.close();
      stop.now("closed"); // nothing, if it has ended
      await outcome;
    }
  }

  override async readFile(path: string): Promise<Uint8Array> {
    const { files } = await this.box();
    return files.read(this.#resolve(path)).catch((error: unknown) => {
      throw asMissing(error, path);
    });
  }

  override async writeFile(path: string, content: Uint8Array): Promise<void> {
    const { files } = await this.box();
    await files.write(this.#resolve(path), content);
  }

  override async removeFile(path: string): Promise<void> {
    const { files } = await this.box();
    const full = this.#resolve(path);
    try {
      const { type } = await files.stat(full);
      if (type === "directory") throw new Invalid(`cannot remove '${path}': it is a directory`);
      await files.remove(full);
    } catch (error) {
      throw asMissing(error, path);
    }
  }

  override async listFiles(path: string): Promise<FileInfo[]> {
    const { files } = await this.box();
    const full = this.#resolve(path);
    const entries = await files.list(full).catch(async (error: unknown) => {
      if (!(await isNoDirectory(files, full, error))) throw error;
      throw Object.assign(new SandboxPathNotFoundError(path), { code: "ENOENT", cause: error });
    });
    const infos: FileInfo[] = [];
    for (const { name, type, size } of entries) {
      infos.push(type === "link" ? await followed(files, full, name) : { name, isDir: type === "directory", size });
    }
    return infos;
  }

  override getTools(): Tool[] {
    return [
      makeFileEditor(this, {
        name: "sandbox_file_editor",
        description: `${DEFAULT_FILE_EDITOR_DESCRIPTION} Files are in a cay sandbox.`,
      }),
      makeShell(this, {
        name: "sandbox_shell",
        description: `${SANDBOX_SHELL_DESCRIPTION} Runs in a cay sandbox. Working directory: ${this.workingDir}.`,
      }),
    ];
  }

  #resolve(path: string): string {
    return path.startsWith("/") ? path : `${this.workingDir}/${path}`;
  }
}

type Stream = AsyncGenerator<StreamChunk | ExecutionResult, void, undefined>;

async function make({ client, host, token, ca, workingDir, ...spec }: CaySandboxOptions): Promise<Box> {
  const cay = client ?? new Cay({ host, token, ca });
  const box = await createWith(cay, spec, DEFAULTS);
  await orRemoved(box, () => box.files.mkdir(workingDir ?? WORKING_DIR));
  return box;
}

function checkEnv(env: Record<string, string> = {}): void {
  for (const key of Object.keys(env)) {
    if (!ENV_KEY_PATTERN.test(key)) throw new Error(`Invalid environment variable name: ${key}`);
  }
}

/** Why a command was ended before it ended by itself. */
type Reason = "timeout" | "abort" | "closed";

interface Stopper {
  /** The first reason that there is. */
  when: Promise<Reason>;
  now(reason: Reason): void;
}

function stopper(seconds: number | undefined, signal: AbortSignal | undefined): Stopper {
  let now!: (reason: Reason) => void;
  const when = new Promise<Reason>((resolve) => {
    const onAbort = () => now("abort");
    const timer = seconds === undefined ? undefined : setTimeout(() => now("timeout"), seconds * 1000);
    now = (reason) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
      resolve(reason);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    if (signal?.aborted) onAbort(); // while it was being started
  });
  return { when, now };
}

/** Chunks on their way to a consumer that may be slow, and all text so far. Only so many wait for it. */
class Feed {
  stdout = "";
  stderr = "";
  readonly #waiting: StreamChunk[] = [];
  #wake = () => {};
  #proceed = () => {};
  #ended = false;
  #closed = false;

  /** Resolves when there is room for more. */
  async push(streamType: StreamType, data: string): Promise<void> {
    if (data === "" || this.#closed) return;
    this[streamType] += data;
    this.#waiting.push({ type: "streamChunk", data, streamType });
    this.#wake();
    if (this.#waiting.length < WAITING) return;
    await new Promise<void>((resolve) => {
      this.#proceed = resolve;
    });
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  /** Nobody takes any more: what is left to be read is read all the same, to its end. */
  close(): void {
    this.#closed = true;
    this.#proceed();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamChunk, void, undefined> {
    for (;;) {
      yield* this.#waiting.splice(0);
      this.#proceed();
      if (this.#waiting.length > 0) continue;
      if (this.#ended) return;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

/** Sees a process to its end, by itself or for a reason; afterwards nothing of it runs. */
async function supervise(process: Process, input: string | undefined, stop: Promise<Reason>, feed: Feed) {
  const ended = readAll(process, feed);
  ended.catch(() => {}); // it is awaited below, perhaps later
  const fed = input === undefined ? ended : process.writeAll(Buffer.from(input)).then(() => ended);
  try {
    const first = await Promise.race([fed, stop]);
    if (typeof first === "string") await terminate(process, ended);
    return first;
  } catch (error) {
    await process.kill().catch(() => {}); // the first error says more
    throw error;
  }
}

async function readAll(process: Process, feed: Feed): Promise<Exit> {
  const decoders = { stdout: newDecoder(), stderr: newDecoder() };
  for await (const { stream, data } of process.output({ stall: STALL }))
    await feed.push(stream, decoders[stream].decode(data, { stream: true }));
  await feed.push("stdout", decoders.stdout.decode());
  await feed.push("stderr", decoders.stderr.decode());
  return process.wait();
}

/** Holds back the first bytes of a character until the others have come. */
function newDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

async function terminate(process: Process, ended: Promise<Exit>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  try {
    await process.signal("TERM", { tree: true });
    const late = new Promise((resolve) => {
      timer = setTimeout(resolve, GRACE);
    });
    await Promise.race([ended, late]);
    await process.kill(); // also what the command started and left behind
    await ended;
  } catch (error) {
    if (!(error instanceof Gone || error instanceof NotFound)) throw error; // else the sandbox went, and all with it
  } finally {
    clearTimeout(timer);
  }
}

const ENOENT = 2;
const ENOTDIR = 20;

/** Errors about a path carry an errno; a sandbox that is not there does not, and is no missing file. */
function isMissing(error: unknown): boolean {
  const errno = error instanceof CayError ? error.detail.errno : undefined;
  return errno === ENOENT || errno === ENOTDIR;
}

/** As Node's own functions tell it, which is what the SDK's file storage looks for. */
function asMissing(error: unknown, path: string): unknown {
  if (!isMissing(error)) return error;
  return Object.assign(new Error(`no such file: ${path}`, { cause: error }), { code: "ENOENT" });
}

async function isNoDirectory(files: Files, path: string, error: unknown): Promise<boolean> {
  if (isMissing(error)) return true;
  if (!(error instanceof Invalid)) return false;
  return files.stat(path, { follow: true }).then((found) => found.type !== "directory", isMissing);
}

/** What a link leads to; unknown where it leads nowhere. */
async function followed(files: Files, directory: string, name: string): Promise<FileInfo> {
  return files.stat(`${directory}/${name}`, { follow: true }).then(
    ({ type, size }) => ({ name, isDir: type === "directory", size }),
    () => ({ name }),
  );
}
