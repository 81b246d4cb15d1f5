// SPDX-License-Identifier: Apache-2.0
//
// Parsers of the two forms that streams come in: frames (application/vnd.cay.frames) and lines of JSON
// (application/x-ndjson). Bytes in, events out, no I/O; bytes may be cut anywhere.

import { Internal, unexpected } from "./errors.js";

/** A frame is u8 kind, three zero bytes, u32 length, u64 offset, big-endian; then its payload. */
const HEADER = 16;
/** The JSON of an exit, end, error or gap is some hundred bytes. */
const MAX_JSON = 64 * 1024;
/** A line carries a path or the labels of a sandbox. */
const MAX_LINE = 1024 * 1024;

const KINDS = ["", "stdout", "stderr", "exit", "end", "error", "gap"] as const;

export type Frame =
  | { kind: "stdout" | "stderr"; offset: number; data: Uint8Array }
  | { kind: "exit" | "end" | "error" | "gap"; offset: number; event: unknown };

/** Output comes out as it comes in: a long frame gives several pieces, each with its own offset, and is never kept. */
export class FrameParser {
  #header = new Uint8Array(HEADER);
  #have = 0;
  #kind: (typeof KINDS)[number] = "";
  #offset = 0;
  #left = 0;
  #json: Uint8Array[] = [];

  push(chunk: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    const bytes = plain(chunk);
    let at = 0;
    while (at < bytes.length) {
      if (this.#have < HEADER) {
        const part = bytes.subarray(at, at + HEADER - this.#have);
        this.#header.set(part, this.#have);
        this.#have += part.length;
        at += part.length;
        if (this.#have === HEADER) this.#begin();
      }
      if (this.#have < HEADER) break;
      const part = bytes.subarray(at, at + this.#left);
      at += part.length;
      this.#left -= part.length;
      this.#take(part, frames);
      if (this.#left === 0) this.#have = 0;
    }
    return frames;
  }

  #begin(): void {
    const view = new DataView(this.#header.buffer);
    this.#kind = KINDS[view.getUint8(0)] ?? "";
    this.#left = view.getUint32(4);
    this.#offset = Number(view.getBigUint64(8));
    this.#json = [];
    if (this.#kind === "") throw new Internal(`a frame of an unknown kind (${view.getUint8(0)})`);
    if (!this.#isOutput() && this.#left > MAX_JSON) throw new Internal("a frame is larger than it can be");
  }

  #isOutput(): boolean {
    return this.#kind === "stdout" || this.#kind === "stderr";
  }

  #take(part: Uint8Array, frames: Frame[]): void {
    const kind = this.#kind;
    if (kind === "stdout" || kind === "stderr") {
      if (part.length > 0) frames.push({ kind, offset: this.#offset, data: part });
      this.#offset += part.length;
    } else if (kind !== "") {
      this.#json.push(part);
      if (this.#left === 0)
        frames.push({ kind, offset: this.#offset, event: parsed(Buffer.concat(this.#json).toString()) });
    }
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw unexpected(`not JSON: ${JSON.stringify(text.slice(0, 80))}`, cause);
  }
}

/** The same bytes without what Buffer adds: its slices and its equality differ. */
export function plain(bytes: Uint8Array): Uint8Array {
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length);
}

/** An array of its own, not a part of Node's pool. */
export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** Lines of JSON. What comes after the last newline is kept until the rest of its line comes. */
export class LineParser {
  #rest: Uint8Array[] = [];
  #size = 0;

  push(bytes: Uint8Array): unknown[] {
    const values: unknown[] = [];
    let at = 0;
    for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, at)) {
      const line = Buffer.concat([...this.#rest, bytes.subarray(at, end)]).toString();
      this.#rest = [];
      this.#size = 0;
      at = end + 1;
      if (line.trim() !== "") values.push(parsed(line));
    }
    if (at < bytes.length) {
      this.#rest.push(new Uint8Array(bytes.subarray(at)));
      this.#size += bytes.length - at;
      if (this.#size > MAX_LINE) throw new Internal("a line is longer than it can be");
    }
    return values;
  }
}
