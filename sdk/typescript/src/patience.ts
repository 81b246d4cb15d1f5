// SPDX-License-Identifier: Apache-2.0
//
// How long a lost daemon is waited for: it may just be restarting.
//
// A failure is the first of a row after progress, or if the connection that it ended had held for a while. So a command
// may be silent for as long as it likes, and a server that ends each stream at once is given up.

/** How long a daemon that was there may be away, and for one who follows a command, which goes on meanwhile. */
export const PATIENCE_MS = 5000;
export const FOLLOW_MS = 30_000;
/** A connection that held this long was one. */
const STEADY_MS = 1000;
const FIRST_PAUSE_MS = 20;
const LAST_PAUSE_MS = 500;

export class Patience {
  readonly #ms: () => number;
  #end: number | undefined;
  #since: number | undefined;
  #pause = FIRST_PAUSE_MS;

  /** `ms` is asked at the first failure of a row. */
  constructor(ms: () => number) {
    this.#ms = ms;
  }

  /** There is a connection that may be held for long. */
  connected(): void {
    this.#since = Date.now();
  }

  /** It ended in a way that a longer life does not excuse. */
  ended(): void {
    this.#since = undefined;
  }

  /** Something new came. */
  progress(): void {
    this.#end = undefined;
    this.#pause = FIRST_PAUSE_MS;
  }

  /** After a failure: milliseconds to wait before the next attempt; undefined: no more. */
  nextPause(): number | undefined {
    const now = Date.now();
    if (this.#since !== undefined && now - this.#since > STEADY_MS) this.progress();
    this.#since = undefined;
    this.#end ??= now + this.#ms();
    if (now >= this.#end) return undefined;
    const pause = this.#pause;
    this.#pause = Math.min(pause * 2, LAST_PAUSE_MS);
    return Math.min(pause, this.#end - now);
  }
}
