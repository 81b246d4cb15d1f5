// SPDX-License-Identifier: Apache-2.0
//
// What a process wrote, over any number of connections: each byte once and in order, or an error that says so.

import type { IncomingMessage } from "node:http";
import { sleep } from "./abort.js";
import { errorFromBody, isHung, OutputLost, Unavailable } from "./errors.js";
import { FrameParser, type Frame } from "./frames.js";
import { FOLLOW_MS, Patience } from "./patience.js";
import { chunksOf } from "./streams.js";
import type { Exit, Output } from "./types.js";
import { exitOf, member } from "./wire.js";

export const FRAMES = "application/vnd.cay.frames";

export class Follower {
  /** Offset of the next byte; undefined: of whatever comes first. */
  at: number | undefined;
  /** How the process ended, when the stream has said it. */
  exit: Exit | undefined;
  /** Nothing more comes. */
  done = false;
  #parser = new FrameParser();

  constructor(since: number | undefined) {
    this.at = since;
  }

  /** What comes now is the beginning of another answer. */
  connected(): void {
    this.#parser = new FrameParser();
  }

  /** What came. Throws OutputLost if some of it is missing, or the error that the daemon tells. */
  *feed(chunk: Uint8Array): Generator<Output, void> {
    for (const frame of this.#parser.push(chunk)) {
      if (!("data" in frame)) {
        this.#event(frame);
        continue;
      }
      const at = this.at ?? frame.offset;
      this.#expect(frame.offset);
      this.at = Math.max(at, frame.offset + frame.data.length);
      const data = frame.data.subarray(at - frame.offset);
      if (data.length > 0) yield { stream: frame.kind, data, offset: at };
    }
  }

  #event({ kind, offset, event }: Extract<Frame, { event: unknown }>): void {
    if (kind === "error") throw errorFromBody(member(event, "error", "object"));
    if (kind === "gap") {
      const { code } = event as { code?: unknown };
      throw lost(member(event, "from", "number"), member(event, "to", "number"), String(code));
    }
    this.#expect(offset);
    if (kind === "exit") this.exit = exitOf(member(event, "exit", "object"));
    this.done = true;
  }

  #expect(offset: number): void {
    if (this.at !== undefined && offset > this.at) throw lost(this.at, offset);
  }
}

const CAUSES = new Map([
  ["limit", ": the process wrote more than the sandbox keeps"],
  ["no_space", ": the disk of the host is full, or fails"],
]);

/** `code`: why, if the daemon says it. */
function lost(from: number, to: number, code = ""): OutputLost {
  const what = `${to - from} bytes of output were lost, from offset ${from} on`;
  return new OutputLost(what + (CAUSES.get(code) ?? ""), { detail: { from, to } });
}

/**
 * The output to its end, from connections that `open` makes at an offset. After an error that `passing` is true of,
 * another one is made. The end of an answer is read, too, so that its connection serves the next call.
 */
export async function* followed(
  follower: Follower,
  open: (from: number | undefined) => Promise<IncomingMessage>,
  signal: AbortSignal | undefined,
  passing = (error: unknown) => error instanceof Unavailable,
): AsyncGenerator<Output, void> {
  const patience = new Patience(() => FOLLOW_MS);
  while (!follower.done) {
    let failure: unknown;
    follower.connected();
    const response = await open(follower.at);
    patience.connected();
    try {
      for await (const chunk of chunksOf(response, signal)) {
        for (const piece of follower.feed(chunk)) {
          patience.progress();
          yield piece;
        }
      }
      patience.ended(); // which a daemon that lives does not do without a word
      failure = new Unavailable("the output was cut off again and again");
    } catch (error) {
      if (!follower.done && (!passing(error) || isHung(error))) throw error;
      failure = error;
    }
    if (follower.done) return;
    const pause = patience.nextPause();
    if (pause === undefined) throw failure;
    await sleep(pause, signal);
  }
}
