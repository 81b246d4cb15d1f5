// SPDX-License-Identifier: Apache-2.0
//
// A command that is waited for: begun once, whatever becomes of the connection, and ended with who waits for it.
//
// It has a key: a start whose answer was lost is repeated, and the sandbox that knows the key starts nothing. From then
// on its output is read as that of any process. While nobody reads it the daemon gives it some seconds, then kills it:
// enough for a daemon that is restarted, and not for a client that is gone.

import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { settled, sleep } from "./abort.js";
import { NotFound, OutputLost, Stalled, Unavailable } from "./errors.js";
import { followed, Follower, FRAMES } from "./follow.js";
import { Process } from "./process.js";
import type { Call, Transport } from "./transport.js";
import type { Exit, Output } from "./types.js";
import { member, type Raw } from "./wire.js";

/** How long a rejection waits for the kill that goes with it. */
const KILL_MS = 2000;

/** A start that was given up on its way arrives within these, or not at all. */
const LATE_MS = [100, 400];

/** Names a command, so that a start whose answer was lost may be repeated without starting another one. */
export function newKey(): string {
  return randomBytes(12).toString("hex");
}

export interface RunOptions {
  input?: Uint8Array | undefined;
  signal?: AbortSignal | undefined;
}

export class Run {
  /** What was started, as soon as it is known. */
  process: Process | undefined;
  /** How it ended, after all of the output. */
  exit: Exit | undefined;
  readonly #transport: Transport;
  readonly #above: string;
  readonly #input: Uint8Array | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #start: Call;
  readonly #stopInput = new AbortController();
  #writing = false;
  #inputError: unknown;

  constructor(transport: Transport, sandboxPath: string, body: Raw, { input, signal }: RunOptions) {
    this.#transport = transport;
    this.#above = sandboxPath;
    this.#input = input;
    this.#signal = signal;
    const json = { ...body, ...(input && { stdin: true }), key: newKey(), kill_on_disconnect: true };
    this.#start = { method: "POST", path: `${sandboxPath}/processes`, json, again: true };
  }

  /** Starts it; what it writes, to its end. Whoever leaves earlier, in whatever way, kills it. */
  async *output(): AsyncGenerator<Output, void> {
    const follower = new Follower(0);
    const passing = (error: unknown) => error instanceof Unavailable || error instanceof Stalled;
    try {
      yield* followed(follower, (from) => this.#open(from), this.#signal, passing);
    } finally {
      this.#stopInput.abort();
      if (!follower.done) await settled(this.#kill(), KILL_MS);
    }
    if (this.#inputError) throw this.#inputError;
    this.exit = follower.exit;
  }

  /** The connection that starts it, or another one to what was started. */
  async #open(from: number | undefined): Promise<IncomingMessage> {
    const more = { headers: { accept: FRAMES }, signal: this.#signal, follows: true };
    if (this.process) {
      const path = `${this.#above}/processes/${this.process.pid}/output`;
      const query = { from, follow: true };
      return await this.#transport
        .open({ method: "GET", path, query, epoch: this.#transport.epoch, again: true, ...more })
        .catch(tellLoss);
    }
    const call = Object.assign(this.#start, more, { query: { follow: true, from: from || undefined } });
    const response = await this.#transport.open(call);
    call.sent = true;
    const pid = Number(response.headers["x-cay-pid"]);
    if (pid) this.process = new Process(this.#transport, this.#above, pid, {});
    if (this.#input && !this.#writing) void this.#write(this.#input);
    return response;
  }

  /** By its key. NotFound: the start has not arrived; if it does so yet, nobody follows it, and it is killed. */
  async #find(): Promise<Process> {
    const { method, path } = this.#start;
    const json = { ...(this.#start.json as Raw), known: true };
    for (const late of [...LATE_MS, undefined]) {
      if (this.process) break;
      try {
        const pid = member<number>(await this.#transport.json({ method, path, json, again: true }), "pid", "number");
        this.process ??= new Process(this.#transport, this.#above, pid, {});
      } catch (error) {
        if (!(error instanceof NotFound) || late === undefined) throw error;
        await sleep(late);
      }
    }
    return this.process as Process;
  }

  /** Without its input it would wait for ever, or do half of its work. */
  async #write(input: Uint8Array): Promise<void> {
    const { signal } = this.#stopInput;
    this.#writing = true;
    try {
      await (await this.#find()).writeAll(input, { signal });
    } catch (error) {
      if (signal.aborted) return;
      this.#inputError = error;
      await this.#kill();
    }
  }

  /** If it fails, the daemon does it: nobody follows it any more. */
  async #kill(): Promise<void> {
    if (!this.process && !this.#start.sent) return;
    await this.#find()
      .then((process) => process.kill())
      .catch(() => {});
  }
}

function tellLoss(cause: unknown): never {
  if (!(cause instanceof NotFound)) throw cause;
  throw new OutputLost(`the result of the command is lost: ${cause.message}`, { cause });
}
