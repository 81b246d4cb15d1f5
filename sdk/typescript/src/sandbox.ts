// SPDX-License-Identifier: Apache-2.0
//
// One sandbox: a handle that holds nothing but its id. Making one costs nothing, see Cay.attach.

import { orAborted, settled } from "./abort.js";
import { Invalid, NotFound, TooLarge, Unsupported } from "./errors.js";
import { Files } from "./files.js";
import { joined } from "./frames.js";
import { requireDenyAll, type NetworkPolicy } from "./policy.js";
import { Process } from "./process.js";
import { newKey, Run } from "./run.js";
import type { Transport } from "./transport.js";
import type {
  CallOptions,
  Command,
  Duration,
  ExecBytes,
  ExecOptions,
  ExecResult,
  Exit,
  Output,
  ProcessInfo,
  SandboxInfo,
  Spec,
  StartOptions,
  Stats,
} from "./types.js";
import { commandToWire, member, processInfo, sandboxInfo, specFromWire, statsOf, type Raw } from "./wire.js";

/** How long a rejection waits for the clean-up that goes with it. */
const CLEAN_UP_MS = 2000;
/** A result is in memory, all of it. */
const MAX_OUTPUT = 256 << 20;

export class Sandbox {
  readonly id: string;
  readonly files: Files;
  /** As of the last create, get, refresh or extend. */
  info?: SandboxInfo;
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal Made by Cay. */
  constructor(transport: Transport, id: string, info?: SandboxInfo) {
    if (id === "") throw new Invalid("the id of a sandbox is not empty");
    this.#transport = transport;
    this.id = id;
    this.#path = `/sandboxes/${encodeURIComponent(id)}`;
    this.files = new Files(transport, this.#path);
    if (info) this.info = info;
  }

  async refresh({ signal }: CallOptions = {}): Promise<SandboxInfo> {
    return (this.info = sandboxInfo(await this.#get("", signal)));
  }

  /**
   * Runs a command to its end. A non-zero exit code is a result. An abort rejects with the signal's reason, and the
   * command is killed with everything that it started; also, some seconds later, if this program dies. A daemon that is
   * restarted meanwhile does not matter. The result is whole, or there is none: TooLarge, OutputLost.
   */
  async exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    const { exit, stdout, stderr } = await this.#exec(command, options);
    return { ...exit, stdout: Buffer.concat(stdout).toString(), stderr: Buffer.concat(stderr).toString() };
  }

  /** The same, with the output byte for byte. */
  async execBytes(command: Command, options: ExecOptions = {}): Promise<ExecBytes> {
    const { exit, stdout, stderr } = await this.#exec(command, options);
    return { ...exit, stdout: joined(stdout), stderr: joined(stderr) };
  }

  async #exec(command: Command, options: ExecOptions) {
    const { input, signal, maxOutput = MAX_OUTPUT } = options;
    signal?.throwIfAborted();
    const bytes = typeof input === "string" ? Buffer.from(input) : input;
    const run = new Run(this.#transport, this.#path, commandToWire(command, options), { input: bytes, signal });
    const written: Record<Output["stream"], Uint8Array[]> = { stdout: [], stderr: [] };
    for await (const { stream, data, offset } of run.output()) {
      if (offset + data.length > maxOutput)
        throw new TooLarge(`the command wrote more than ${maxOutput} bytes: start it and read its output`);
      written[stream].push(data);
    }
    // That the sandbox no longer keeps what was read is nothing that its reader misses.
    return { exit: { ...(run.exit as Exit), truncated: false }, ...written };
  }

  /**
   * Starts a process that lives on without us. `signal` governs its life: an abort kills it with everything that it
   * started, wait() rejects with the signal's reason and its streams fail with it.
   */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const { stdin, pty, rows, cols, killOnDisconnect, hold = true, signal } = options;
    signal?.throwIfAborted();
    const more = { stdin, pty, rows, cols, hold, kill_on_disconnect: killOnDisconnect, key: newKey() };
    // What is repeated when it has been given up finds what was started, and starts nothing.
    const json = () => ({ ...commandToWire(command, options), ...more, ...(signal?.aborted && { known: true }) });
    const path = `${this.#path}/processes`;
    // Without the signal: what was started can be killed only if the answer is read.
    const started = this.#transport
      .json({ method: "POST", path, json, again: true })
      .then((raw) => ({ pid: member<number>(raw, "pid", "number") }));
    try {
      const { pid } = await orAborted(started, signal);
      return new Process(this.#transport, this.#path, pid, { stdin, life: signal });
    } catch (error) {
      if (signal?.aborted) await settled(started.then(({ pid }) => this.process(pid).kill()), CLEAN_UP_MS);
      throw error;
    }
  }

  /** A process by its pid, as started by anybody; no request is made. */
  process(pid: number): Process {
    return new Process(this.#transport, this.#path, pid, {});
  }

  /** All that are remembered, running and ended. */
  async processes({ signal }: CallOptions = {}): Promise<ProcessInfo[]> {
    return member<Raw[]>(await this.#get("/processes", signal), "processes", "array").map(processInfo);
  }

  /** Freezes all of its processes. */
  async pause({ signal }: CallOptions = {}): Promise<void> {
    await this.#post("/pause", undefined, signal);
  }

  async resume({ signal }: CallOptions = {}): Promise<void> {
    await this.#post("/resume", undefined, signal);
  }

  /** SIGTERM, and SIGKILL after `grace` (10 s). The sandbox ends; its record stays. */
  async stop({ grace, signal }: CallOptions & { grace?: Duration } = {}): Promise<void> {
    await this.#post("/stop", { grace }, signal);
  }

  /** Ends all of its processes at once. The sandbox ends; its record stays. */
  async kill({ signal }: CallOptions = {}): Promise<void> {
    await this.#post("/kill", undefined, signal);
  }

  /** Ends it and removes it with all that it holds; `force: false`: Conflict if it lives. No error if it is gone. */
  async remove({ force, signal }: CallOptions & { force?: boolean } = {}): Promise<void> {
    try {
      await this.#transport.order({ method: "DELETE", path: this.#path, query: { force }, signal, again: true });
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }

  /** Both are counted from now; 0 means never. What is not given stays as it is. */
  async extend({ ttl, idle, signal }: CallOptions & { ttl?: Duration; idle?: Duration }): Promise<SandboxInfo> {
    const json = { ttl, idle };
    const raw = await this.#transport.json({ method: "PATCH", path: this.#path, json, signal, again: true });
    return (this.info = sandboxInfo(raw));
  }

  async stats({ signal }: CallOptions = {}): Promise<Stats> {
    return statsOf(await this.#get("/stats", signal));
  }

  async spec({ signal }: CallOptions = {}): Promise<Spec> {
    return specFromWire(await this.#get("/spec", signal));
  }

  /** The output of all processes, merged; `tail`: only so many lines from its end. Works after its end, too. */
  async logs({ tail, signal }: CallOptions & { tail?: number } = {}): Promise<string> {
    const headers = { accept: "text/plain" };
    const call = { method: "GET", path: `${this.#path}/logs`, headers, signal, again: true } as const;
    const { text } = await this.#transport.answer(call);
    return tail === undefined ? text : lastLines(text, tail);
  }

  /** "deny-all" is in force always. Other policies are Unsupported in this version, and Invalid if they are none. */
  async setNetwork(policy: NetworkPolicy, { signal }: CallOptions = {}): Promise<void> {
    requireDenyAll(policy);
    await this.refresh({ signal });
  }

  /** Not in this version. */
  async snapshot(name: string): Promise<never> {
    throw new Unsupported(`this version has no snapshots: '${name}' was not made`);
  }

  /** Not in this version. */
  async fork(count = 1): Promise<never> {
    throw new Unsupported(`this version cannot fork a sandbox (${count} asked for)`);
  }

  /** Not in this version. */
  async publish(port: number): Promise<never> {
    throw new Unsupported(`this version publishes no ports (${port} asked for)`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.remove();
  }

  #get(what: string, signal: AbortSignal | undefined): Promise<Raw> {
    return this.#transport.json({ method: "GET", path: this.#path + what, signal, again: true });
  }

  async #post(what: string, json: Raw | undefined, signal: AbortSignal | undefined): Promise<void> {
    await this.#transport.order({ method: "POST", path: this.#path + what, json, signal, again: true });
  }
}

function lastLines(text: string, count: number): string {
  return count > 0 ? text.split(/(?<=\n)/).slice(-count).join("") : "";
}
