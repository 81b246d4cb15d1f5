// SPDX-License-Identifier: Apache-2.0
//
// One process of a sandbox. It lives on without us: this is a handle that can be made anew from its pid at any time.

import { eitherSignal, onAbort, settled, sleep } from "./abort.js";
import { Demux } from "./demux.js";
import { Conflict, errorFromBody, Gone, NotFound, Timeout, Unavailable, type ErrorBody } from "./errors.js";
import { FrameParser, type Frame } from "./frames.js";
import { chunksOf } from "./streams.js";
import type { Call, Transport } from "./transport.js";
import type { CallOptions, Exit, Output, ProcessInfo } from "./types.js";
import { fromWire, processInfo, type Raw } from "./wire.js";

/** Connections in a row that may be cut without a byte before we give up. */
const MAX_EMPTY = 12;
/** How long a rejection waits for the kill that goes with it. */
const KILL_MS = 2000;

export interface OutputOptions extends CallOptions {
  /** Offset of the first byte wanted; default 0. */
  since?: number | undefined;
  /** Goes on with what comes until the process ends; default true. */
  follow?: boolean | undefined;
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
   * Both streams in the order in which they came. A connection that is lost is opened again at the right offset, also
   * when the daemon was restarted. Ends with the process; Gone if the sandbox ended.
   */
  async *output({ since = 0, follow = true, signal: own }: OutputOptions = {}): AsyncGenerator<Output, void> {
    const { signal, done } = eitherSignal(own, this.#life);
    const { epoch } = this.#transport;
    const headers = { accept: "application/vnd.cay.frames" };
    const path = `${this.#path}/output`;
    let from = since;
    try {
      for (let empty = 0; empty < MAX_EMPTY; empty++) {
        const query = { from, follow };
        for await (const frame of this.#frames({ method: "GET", path, query, headers, epoch, signal, again: true })) {
          if (!("data" in frame)) return this.#last(frame.kind, frame.event as Raw);
          from = frame.offset + frame.data.length;
          empty = 0;
          yield { stream: frame.kind, data: frame.data, offset: frame.offset };
        }
        await sleep(10 * empty, signal); // no last frame: it was cut off
      }
      throw new Unavailable("the output was cut off again and again");
    } finally {
      done();
    }
  }

  /** The frames of one connection, to its end in whatever way. */
  async *#frames(call: Call): AsyncGenerator<Frame, void> {
    const response = await this.#transport.open(call);
    const parser = new FrameParser();
    try {
      for await (const chunk of chunksOf(response, call.signal)) yield* parser.push(chunk);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
    }
  }

  #last(kind: "exit" | "end" | "error", event: Raw): void {
    if (kind === "error") throw errorFromBody(event["error"] as ErrorBody);
    if (kind === "exit") this.#ended(fromWire<Exit>(event["exit"] as Raw));
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
      const raw = await this.#transport.json<Raw>({ method: "POST", path, json, signal, again: true });
      return this.#ended(fromWire<Exit>(raw));
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
    const raw = await this.#transport.json<Raw>({ method: "GET", path: this.#path, signal, again: true });
    const info = processInfo(raw);
    if (info.exit && !this.#life?.aborted) this.#ended(info.exit);
    return info;
  }

  /** Writes to its standard input; takes as long as the process takes to read, but for a buffer. */
  async write(data: string | Uint8Array, { eof, signal }: CallOptions & { eof?: boolean } = {}): Promise<void> {
    const body = typeof data === "string" ? Buffer.from(data) : data;
    await this.#transport.json({
      method: "POST",
      path: `${this.#path}/stdin`,
      query: { eof: eof ? true : undefined },
      headers: { "content-type": "application/octet-stream" },
      body,
      piecewise: true,
      signal,
    });
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
    await this.#transport.json({
      method: "POST",
      path: `${this.#path}/signal`,
      json: { signal, tree },
      signal: abort,
    });
  }

  /** SIGKILL to it and to everything that it started. Not an error if it has ended, with or without its sandbox. */
  async kill({ signal }: CallOptions = {}): Promise<void> {
    try {
      await this.#transport.json({ method: "DELETE", path: this.#path, signal, again: true });
    } catch (error) {
      if (!(error instanceof NotFound || error instanceof Gone)) throw error;
    }
  }

  /** Changes the size of its terminal. */
  async resize(rows: number, cols: number, { signal }: CallOptions = {}): Promise<void> {
    const path = `${this.#path}/resize`;
    await this.#transport.json({ method: "POST", path, json: { rows, cols }, signal, again: true });
  }
}

/** The input of a process that has ended needs no end. */
function unlessEnded(error: unknown): void {
  if (!(error instanceof Conflict || error instanceof Gone || error instanceof NotFound)) throw error;
}
