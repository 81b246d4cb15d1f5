// SPDX-License-Identifier: Apache-2.0
//
// One sandbox: a handle that holds nothing but its id. Making one costs nothing, see Cay.attach.

import { orAborted, settled } from "./abort.js";
import { Invalid, NotFound, Unsupported } from "./errors.js";
import { Files } from "./files.js";
import { requireDenyAll, type NetworkPolicy } from "./policy.js";
import { Process } from "./process.js";
import type { Transport } from "./transport.js";
import type {
  CallOptions,
  Command,
  Duration,
  ExecBytes,
  ExecOptions,
  ExecResult,
  ProcessInfo,
  SandboxInfo,
  Spec,
  StartOptions,
  Stats,
} from "./types.js";
import { commandToWire, execBytes, execResult, fromWire, processInfo, specFromWire, type Raw } from "./wire.js";

/** How long a rejection waits for the clean-up that goes with it. */
const CLEAN_UP_MS = 2000;

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
    return (this.info = fromWire<SandboxInfo>(await this.#get("", signal)));
  }

  /**
   * Runs a command to its end. A non-zero exit code is a result. An abort rejects with the signal's reason, and the
   * daemon kills the command with everything that it started.
   */
  async exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    return execResult(await this.#exec(command, options, "utf8"));
  }

  /** The same, with the output byte for byte. */
  async execBytes(command: Command, options: ExecOptions = {}): Promise<ExecBytes> {
    return execBytes(await this.#exec(command, options, "base64"));
  }

  #exec(command: Command, options: ExecOptions, encoding: "utf8" | "base64"): Promise<Raw> {
    const { input, signal } = options;
    const given =
      input === undefined || typeof input === "string"
        ? { input }
        : { input_base64: Buffer.from(input.buffer, input.byteOffset, input.byteLength).toString("base64") };
    const json = { ...commandToWire(command, options), ...given, encoding, kill_on_disconnect: true };
    return this.#transport.json<Raw>({ method: "POST", path: `${this.#path}/exec`, json, signal });
  }

  /**
   * Starts a process that lives on without us. `signal` governs its life: an abort kills it with everything that it
   * started, wait() rejects with the signal's reason and its streams fail with it.
   */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const { stdin, pty, rows, cols, signal } = options;
    signal?.throwIfAborted();
    const json = { ...commandToWire(command, options), stdin, pty, rows, cols };
    // Without the signal: what was started can be killed only if the answer is read.
    const started = this.#transport.json<{ pid: number }>({ method: "POST", path: `${this.#path}/processes`, json });
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
    return ((await this.#get("/processes", signal))["processes"] as Raw[]).map(processInfo);
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
      await this.#transport.json({ method: "DELETE", path: this.#path, query: { force }, signal, again: true });
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }

  /** Both are counted from now; 0 means never. What is not given stays as it is. */
  async extend({ ttl, idle, signal }: CallOptions & { ttl?: Duration; idle?: Duration }): Promise<SandboxInfo> {
    const json = { ttl, idle };
    const raw = await this.#transport.json<Raw>({ method: "PATCH", path: this.#path, json, signal, again: true });
    return (this.info = fromWire<SandboxInfo>(raw));
  }

  async stats({ signal }: CallOptions = {}): Promise<Stats> {
    return fromWire<Stats>(await this.#get("/stats", signal));
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
    return this.#transport.json<Raw>({ method: "GET", path: this.#path + what, signal, again: true });
  }

  async #post(what: string, json: Raw | undefined, signal: AbortSignal | undefined): Promise<void> {
    await this.#transport.json({ method: "POST", path: this.#path + what, json, signal, again: true });
  }
}

function lastLines(text: string, count: number): string {
  return count > 0 ? text.split(/(?<=\n)/).slice(-count).join("") : "";
}
