// SPDX-License-Identifier: Apache-2.0
//
// Standard output and standard error as two streams over one connection.
//
// A consumer may read one of the two and never the other. What comes for the other is kept up to a bound; beyond it the
// other splits off: it remembers the offset, and if it is read at last, it goes on from there over a connection of its
// own. So nobody waits for a reader who does not come, and nothing is kept without bound.

import { onAbort } from "./abort.js";
import type { Output } from "./types.js";

const MAX_KEPT = 256 * 1024;
/** What one piece costs beside its bytes. */
const PIECE = 64;

/** Opens the output at an offset. An abort of the signal ends it. */
export type OpenOutput = (since: number, signal: AbortSignal) => AsyncIterator<Output, void>;

type Name = Output["stream"];

class Source {
  readonly #stop = new AbortController();
  readonly #pieces: AsyncIterator<Output, void>;

  constructor(open: OpenOutput, since: number) {
    this.#pieces = open(since, this.#stop.signal);
  }

  async next(): Promise<Output | undefined> {
    const { value, done } = await this.#pieces.next();
    return done ? undefined : value;
  }

  /** Also while next() waits. */
  close(): void {
    this.#stop.abort();
    this.#pieces.return?.().catch(() => {});
  }
}

class Side {
  readonly kept: Uint8Array[] = [];
  size = 0;
  cancelled = false;
  /** Somebody wants its next bytes. */
  waits = false;
  /** Set when it has split off. */
  splitAt: number | undefined;
  own: Source | undefined;

  /** Whether it still takes from the shared connection. */
  get shares(): boolean {
    return !this.cancelled && this.splitAt === undefined;
  }

  put(piece: Output): void {
    if (this.size + piece.data.length + PIECE > MAX_KEPT && this.kept.length > 0) {
      this.splitAt = piece.offset;
      return;
    }
    this.kept.push(new Uint8Array(piece.data)); // a copy: a few bytes must not hold the whole chunk they came in
    this.size += piece.data.length + PIECE;
  }

  take(): Uint8Array | undefined {
    const data = this.kept.shift();
    if (data) this.size -= data.length + PIECE;
    return data;
  }
}

export class Demux {
  readonly #open: OpenOutput;
  readonly #life: AbortSignal | undefined;
  readonly #sides: Record<Name, Side> = { stdout: new Side(), stderr: new Side() };
  #shared: Source | undefined;
  #step: Promise<void> | undefined;
  /** Behind what the shared connection has brought. */
  #offset = 0;
  #ended = false;

  /** When `life` aborts, both streams fail with its reason, whatever is still kept. */
  constructor(open: OpenOutput, life?: AbortSignal) {
    this.#open = open;
    this.#life = life;
  }

  stream(name: Name): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        start: (controller) => void onAbort(this.#life, () => controller.error(this.#life?.reason)),
        pull: async (controller) => {
          const data = await this.#next(name);
          if (data) controller.enqueue(data);
          else controller.close();
        },
        cancel: () => this.#cancel(name),
      },
      { highWaterMark: 0 },
    );
  }

  async #next(name: Name): Promise<Uint8Array | undefined> {
    const side = this.#sides[name];
    for (;;) {
      const data = side.take();
      if (data || side.cancelled) return data;
      if (side.splitAt !== undefined) return await this.#nextOwn(name, side, side.splitAt);
      if (this.#ended) return undefined;
      this.#step ??= this.#readShared();
      side.waits = true;
      await this.#step;
      side.waits = false;
    }
  }

  async #nextOwn(name: Name, side: Side, since: number): Promise<Uint8Array | undefined> {
    side.own ??= new Source(this.#open, since);
    for (;;) {
      const piece = await side.own.next();
      if (!piece) return undefined;
      if (piece.stream === name) return piece.data;
    }
  }

  /** One piece for whoever it is. Both sides may wait for the same step; an error is for both. */
  async #readShared(): Promise<void> {
    this.#shared ??= new Source(this.#open, 0);
    const piece = await this.#shared.next();
    if (!piece) this.#ended = true;
    else {
      if (this.#sides[piece.stream].shares) this.#sides[piece.stream].put(piece);
      this.#offset = piece.offset + piece.data.length;
    }
    this.#step = undefined; // not after an error, which stays
  }

  #cancel(name: Name): void {
    const side = this.#sides[name];
    side.cancelled = true;
    side.kept.length = 0;
    side.own?.close();
    const other = this.#sides[name === "stdout" ? "stderr" : "stdout"];
    if (other.shares && other.waits) return;
    // Nobody waits for the connection now, perhaps never again: it must not hold up the end of the program.
    if (other.shares && !this.#ended) other.splitAt = this.#offset;
    this.#shared?.close();
  }
}
