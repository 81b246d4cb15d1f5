// SPDX-License-Identifier: Apache-2.0
//
// What a process wrote, over any number of connections: each byte once and in order, or an error that says so.

import type { IncomingMessage } from "node:http";
import { sleep } from "./abort.js";
import { errorFromBody, OutputLost, Unavailable, type ErrorBody } from "./errors.js";
import { FrameParser, type Frame } from "./frames.js";
import { chunksOf } from "./streams.js";
import type { Exit, Output } from "./types.js";
import { fromWire, type Raw } from "./wire.js";

export const FRAMES = "application/vnd.cay.frames";
/** How long one who follows a command waits for a daemon that is away: the command goes on meanwhile. */
export const FOLLOW_MS = 30_000;
/** Connections in a row that may be cut without a byte before we give up. */
const MAX_EMPTY = 12;

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
    const raw = event as Raw;
    if (kind === "error") throw errorFromBody(raw["error"] as ErrorBody);
    if (kind === "gap") throw lost(raw["from"] as number, raw["to"] as number, raw["code"] as string | undefined);
    if (kind === "exit") {
      this.#expect(offset);
      this.exit = fromWire<Exit>(raw["exit"] as Raw);
    }
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
  for (let empty = 0; !follower.done; empty++) {
    if (empty >= MAX_EMPTY) throw new Unavailable("the output was cut off again and again");
    if (empty > 0) await sleep(10 * empty, signal);
    follower.connected();
    const response = await open(follower.at);
    try {
      for await (const chunk of chunksOf(response, signal)) {
        for (const piece of follower.feed(chunk)) {
          empty = 0;
          yield piece;
        }
      }
    } catch (error) {
      if (!follower.done && !passing(error)) throw error;
    }
  }
}
