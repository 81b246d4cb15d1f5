// SPDX-License-Identifier: Apache-2.0
//
// One process of a sandbox. It lives on without us: this is a handle that can be made anew from its pid at any time.

import { eitherSignal, onAbort, settled } from "./abort.js";
import { Demux } from "./demux.js";
import { Conflict, Gone, NotFound, Timeout } from "./errors.js";
import { followed, Follower, FRAMES } from "./follow.js";
import type { Transport } from "./transport.js";
import type { CallOptions, Duration, Exit, Output, ProcessInfo } from "./types.js";
import { exitOf, processInfo } from "./wire.js";

/** Of input: a piece that is lost on its way is sent again. */
const INPUT_PIECE = 1 << 20;
/** How long a rejection waits for the kill that goes with it. */
const KILL_MS = 2000;

export interface OutputOptions extends CallOptions {
  /** Offset of the first byte wanted; default 0. "oldest": of those that are kept. */
  since?: number | "oldest" | undefined;
  /** Goes on with what comes until the process ends; default true. */
  follow?: boolean | undefined;
  /** A reader that takes nothing for this long is cut off, with Stalled; default 60. */
  stall?: Duration | undefined;
}

export interface WaitOptions extends CallOptions {
  /** Seconds, then Timeout; 0 only asks. Default: for as long as it takes. */
  timeout?: number | undefined;
}

export class Process {
  readonly pid: number;
  /** Only of a process that was started with `stdin: true`. Closing it is the end of the process's input. */
  readonly stdin?: WritableStream<Uint8Array>;
  readonly #transport: Transport;
  readonly #path: string;
  /** Aborts with the signal that governs the process's life, unless the process is known to have ended before. */
  readonly #life: AbortSignal | undefined;
  readonly #letGo: () => void;
  #killed: Promise<void> | undefined;
  #exit: Exit | undefined;
  #demux: Demux | undefined;
  #stdout: ReadableStream<Uint8Array> | undefined;
  #stderr: ReadableStream<Uint8Array> | undefined;

  /** @internal Made by Sandbox.start and Sandbox.process. */
  constructor(
    transport: Transport,
    sandboxPath: string,
    pid: number,
    options: { stdin?: boolean | undefined; life?: AbortSignal | undefined },
  ) {
    this.#transport = transport;
    this.pid = pid;
    this.#path = `${sandboxPath}/processes/${pid}`;
    const life = options.life && new AbortController();
    this.#life = life?.signal;
    this.#letGo = onAbort(options.life, () => {
      this.#killed = this.kill();
      this.#killed.catch(() => {});
      life?.abort(options.life?.reason);
    });
    if (options.stdin) this.stdin = this.#makeStdin();
  }

  /** Bytes of its standard output from the beginning. Opened when it is first read. */
  get stdout(): ReadableStream<Uint8Array> {
    return (this.#stdout ??= this.#streams().stream("stdout"));
  }

  /** Bytes of its standard error from the beginning. Opened when it is first read. */
  get stderr(): ReadableStream<Uint8Array> {
    return (this.#stderr ??= this.#streams().stream("stderr"));
  }

  #streams(): Demux {
    return (this.#demux ??= new Demux((since, signal) => this.output({ since, signal }), this.#life));
  }

  /**
   * Both streams in the order in which they came. While it is followed, the process waits for its reader as it does at
   * a pipe. A connection that is lost is opened again at the right offset, also when the daemon was restarted. Ends
   * with the process; Gone if the sandbox ended, OutputLost if bytes from `since` on are no longer kept, Stalled if
   * nothing was read for too long.
   */
  async *output({ since = 0, follow = true, stall, signal: own }: OutputOptions = {}): AsyncGenerator<Output, void> {
    const { signal, done } = eitherSignal(own, this.#life);
    const { epoch } = this.#transport;
    const follower = new Follower(since === "oldest" ? undefined : since);
    const call = { method: "GET", path: `${this.#path}/output`, headers: { accept: FRAMES } } as const;
    const open = (from: number | undefined) =>
      this.#transport.open({ ...call, query: { from, follow, stall }, epoch, signal, again: true, follows: true });
    try {
      yield* followed(follower, open, signal);
      if (follower.exit) this.#ended(follower.exit);
    } finally {
      done();
    }
  }

  /** From here on the signal that governs its life means nothing. */
  #ended(exit: Exit): Exit {
    this.#life?.throwIfAborted();
    this.#exit = exit;
    this.#letGo();
    return exit;
  }

  /** Waits for its end. An abort of `signal` ends the waiting and not the process. */
  async wait({ timeout, signal: own }: WaitOptions = {}): Promise<Exit> {
    own?.throwIfAborted();
    if (this.#exit) return this.#exit;
    const until = timeout === undefined ? undefined : Date.now() + timeout * 1000;
    const json = () => (until === undefined ? {} : { timeout: Math.max(0, until - Date.now()) / 1000 });
    const { signal, done } = eitherSignal(own, this.#life);
    try {
      const path = `${this.#path}/wait`;
      const raw = await this.#transport.json({ method: "POST", path, json, signal, again: true, follows: true });
      return this.#ended(exitOf(raw));
    } catch (error) {
      if (this.#killed) await settled(this.#killed, KILL_MS);
      throw error;
    } finally {
      done();
    }
  }

  /** How it ended, or null while it runs. */
  async poll(options: CallOptions = {}): Promise<Exit | null> {
    try {
      return await this.wait({ ...options, timeout: 0 });
    } catch (error) {
      if (error instanceof Timeout) return null;
      throw error;
    }
  }

  async info({ signal }: CallOptions = {}): Promise<ProcessInfo> {
    const raw = await this.#transport.json({ method: "GET", path: this.#path, signal, again: true });
    const info = processInfo(raw);
    if (info.exit && !this.#life?.aborted) this.#ended(info.exit);
    return info;
  }

  /** Writes to its standard input; takes as long as the process takes to read, but for a buffer. */
  async write(data: string | Uint8Array, { eof, signal }: CallOptions & { eof?: boolean } = {}): Promise<void> {
    const body = typeof data === "string" ? Buffer.from(data) : data;
    await this.#transport.order({
      method: "POST",
      path: `${this.#path}/stdin`,
      query: { eof: eof ? true : undefined },
      headers: { "content-type": "application/octet-stream" },
      body,
      piecewise: true,
      signal,
    });
  }

  /**
   * The whole of its standard input. A connection that is lost is opened again: each byte arrives once. That it reads
   * no more is no error.
   */
  async writeAll(data: Uint8Array, { signal }: CallOptions = {}): Promise<void> {
    const headers = { "content-type": "application/octet-stream" };
    const call = { method: "POST", path: `${this.#path}/stdin`, headers, again: true, follows: true } as const;
    try {
      for (let offset = 0; offset === 0 || offset < data.length; offset += INPUT_PIECE) {
        const body = data.subarray(offset, offset + INPUT_PIECE);
        await this.#transport.order({ ...call, query: { offset, eof: offset + body.length >= data.length }, body, signal });
      }
    } catch (error) {
      if (!(error instanceof Conflict)) throw error;
    }
  }

  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.write("", { ...options, eof: true });
  }

  /** An abort of the stream does not wait for a process that does not read. */
  #makeStdin(): WritableStream<Uint8Array> {
    let aborted: AbortSignal;
    const send = async (data: string | Uint8Array, eof: boolean) => {
      const { signal, done } = eitherSignal(aborted, this.#life);
      await this.write(data, { eof, signal }).finally(done);
    };
    return new WritableStream<Uint8Array>({
      start: (controller) => {
        ({ signal: aborted } = controller as unknown as { signal: AbortSignal }); // which Node's types lack
        onAbort(this.#life, () => controller.error(this.#life?.reason));
      },
      write: (chunk) => send(chunk, false),
      close: () => send("", true).catch(unlessEnded),
      abort: () => this.closeStdin().catch(unlessEnded),
    });
  }

  /** "TERM", "SIGTERM" or 15; `tree`: also to everything that it started. Not an error if it has ended. */
  async signal(
    signal: string | number,
    { tree, signal: abort }: CallOptions & { tree?: boolean | undefined } = {},
  ): Promise<void> {
    await this.#transport.order({
      method: "POST",
      path: `${this.#path}/signal`,
      json: { signal, tree },
      signal: abort,
    });
  }

  /** SIGKILL to it and to everything that it started. Not an error if it has ended, with or without its sandbox. */
  async kill({ signal }: CallOptions = {}): Promise<void> {
    try {
      await this.#transport.order({ method: "DELETE", path: this.#path, signal, again: true });
    } catch (error) {
      if (!(error instanceof NotFound || error instanceof Gone)) throw error;
    }
  }

  /** Changes the size of its terminal. */
  async resize(rows: number, cols: number, { signal }: CallOptions = {}): Promise<void> {
    const path = `${this.#path}/resize`;
    await this.#transport.order({ method: "POST", path, json: { rows, cols }, signal, again: true });
  }
}

/** The input of a process that has ended needs no end. */
function unlessEnded(error: unknown): void {
  if (!(error instanceof Conflict || error instanceof Gone || error instanceof NotFound)) throw error;
}
