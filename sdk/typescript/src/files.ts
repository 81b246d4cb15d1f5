// SPDX-License-Identifier: Apache-2.0
//
// The files of a sandbox. Paths are absolute.

import { errorFromBody, Invalid, NotFound, Unavailable } from "./errors.js";
import { LineParser } from "./frames.js";
import { chunksOf, streamOf } from "./streams.js";
import type { Query, Transport } from "./transport.js";
import type { CallOptions, Change, FileInfo, Match } from "./types.js";
import { changeOf, fileInfo, matchOf, member, type Raw } from "./wire.js";

export interface FileOptions extends CallOptions {
  /** Whose rights are used; default: the sandbox's user. */
  user?: string | undefined;
}

export interface FileStreamOptions extends FileOptions {
  /** First byte wanted; default 0. */
  start?: number | undefined;
  /** The byte behind the last one wanted; default: the end. What is behind the end of the file is left out. */
  end?: number | undefined;
}

export interface FileWriteOptions extends FileOptions {
  /** Permission bits, such as 0o755; default: 0o644, or what the file had. */
  mode?: number | undefined;
}

export interface GrepOptions extends FileOptions {
  /** The pattern is the text itself, not an extended regular expression. */
  literal?: boolean | undefined;
  ignoreCase?: boolean | undefined;
  /** Only in files of such a name. */
  glob?: string | undefined;
  limit?: number | undefined;
}

export type FileData = string | Uint8Array | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

export class Files {
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal Made by Sandbox. */
  constructor(transport: Transport, sandboxPath: string) {
    this.#transport = transport;
    this.#path = sandboxPath;
  }

  read(path: string, { user, signal }: FileOptions = {}): Promise<Uint8Array> {
    const query = { path, user };
    return this.#transport.bytes({ method: "GET", path: `${this.#path}/files`, query, signal, again: true });
  }

  /** As UTF-8; `fatal`: bytes that are not are an error (TypeError) instead of U+FFFD. */
  async readText(path: string, { fatal = false, ...options }: FileOptions & { fatal?: boolean } = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal, ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** The bytes as they are asked for, in constant memory. */
  async stream(path: string, options: FileStreamOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const { start = 0, end, user, signal } = options;
    if (!isOffset(start) || (end !== undefined && !(isOffset(end) && start <= end)))
      throw new Invalid(`no range of bytes: ${start} to ${end}`);
    if (start === end) return this.#nothing(path, options);
    const ranged = start > 0 || end !== undefined;
    const headers = ranged ? { range: `bytes=${start}-${end === undefined ? "" : end - 1}` } : {};
    const query = { path, user };
    try {
      const call = { method: "GET", path: `${this.#path}/files`, query, headers, signal, again: true } as const;
      return streamOf(await this.#transport.open(call), signal);
    } catch (error) {
      if (error instanceof Invalid && error.status === 416) return this.#nothing(path, options);
      throw error;
    }
  }

  /** The empty part of a file that must be there all the same. */
  async #nothing(path: string, { user, signal }: FileOptions): Promise<ReadableStream<Uint8Array>> {
    await this.stat(path, { user, signal, follow: true });
    return new ReadableStream<Uint8Array>({ start: (controller) => controller.close() });
  }

  /** Missing directories are made. The file takes the place of the old one when all of it has come. */
  async write(path: string, data: FileData, { mode, user, signal }: FileWriteOptions = {}): Promise<void> {
    const body = typeof data === "string" ? Buffer.from(data) : data;
    const query = { path, user, mode: mode?.toString(8) };
    const headers = { "content-type": "application/octet-stream" };
    await this.#transport.order({ method: "PUT", path: `${this.#path}/files`, query, headers, body, signal });
  }

  /** `follow`: of what a link points to, instead of the link; default false. */
  async stat(path: string, { follow, user, signal }: FileOptions & { follow?: boolean } = {}): Promise<FileInfo> {
    const raw = await this.#get("stat", { path, follow, user }, signal);
    return fileInfo(raw, path);
  }

  /** Whether there is something; a link to nothing is not. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, { ...options, follow: true });
      return true;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }

  /** The entries of a directory, `depth` levels down, `limit` of them at most; sorted by name. */
  async list(
    path: string,
    { depth, limit, user, signal }: FileOptions & { depth?: number; limit?: number } = {},
  ): Promise<FileInfo[]> {
    return entries(path, await this.#get("list", { path, depth, limit, user }, signal));
  }

  /**
   * What is below a directory and matches: on the name, or on the relative path if the pattern has a slash. A directory
   * that cannot be read is an error when all others were searched; its `found` has what they hold.
   */
  async find(
    path: string,
    { glob, limit, user, signal }: FileOptions & { glob?: string; limit?: number } = {},
  ): Promise<FileInfo[]> {
    return entries(path, await this.#get("find", { path, glob, limit, user }, signal));
  }

  /** Lines below a directory, or in one file, that match. What cannot be read is an error, as for `find`. */
  async grep(path: string, pattern: string, options: GrepOptions = {}): Promise<Match[]> {
    const { literal, ignoreCase, glob, limit, user, signal } = options;
    const query = { path, pattern, literal, ignore_case: ignoreCase, glob, limit, user };
    const found = await this.#get("grep", query, signal);
    const matches = member<Raw[]>(found, "matches", "array").map(matchOf);
    return whole(found, matches.map((match) => ({ path: below(path, match.path), line: match.line, text: match.text })));
  }

  /** Makes a directory and those above it; nothing happens if it is there. */
  async mkdir(path: string, { mode, user, signal }: FileWriteOptions = {}): Promise<void> {
    await this.#post("mkdir", { path, mode: mode?.toString(8), user }, signal);
  }

  async move(from: string, to: string, { user, signal }: FileOptions = {}): Promise<void> {
    await this.#post("move", { from, to, user }, signal);
  }

  async remove(
    path: string,
    { recursive, missingOk, user, signal }: FileOptions & { recursive?: boolean; missingOk?: boolean } = {},
  ): Promise<void> {
    try {
      const query = { path, recursive, user };
      await this.#transport.order({ method: "DELETE", path: `${this.#path}/files`, query, signal });
    } catch (error) {
      if (!(missingOk && error instanceof NotFound)) throw error;
    }
  }

  /** Resolves when nothing can be missed any more. Ends when the loop over it is left, or with the signal's reason. */
  async watch(
    path: string,
    { recursive, user, signal }: FileOptions & { recursive?: boolean } = {},
  ): Promise<AsyncIterableIterator<Change>> {
    const query = { path, recursive, user };
    const call = { method: "GET", path: `${this.#path}/fs/watch`, query, signal, again: true } as const;
    const changes = watching(path, chunksOf(await this.#transport.open(call), signal));
    await changes.next();
    return changes as AsyncIterableIterator<Change>;
  }

  /** A directory or a file as a tar archive; names are relative to it. */
  async getArchive(path: string, { user, signal }: FileOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const call = { method: "GET", path: `${this.#path}/archive`, query: { path, user }, signal, again: true } as const;
    return streamOf(await this.#transport.open(call), signal);
  }

  /** Unpacks a tar archive into a directory, and never outside of it. */
  async putArchive(
    path: string,
    data: Exclude<FileData, string>,
    { user, signal }: FileOptions = {},
  ): Promise<void> {
    const headers = { "content-type": "application/x-tar" };
    const query = { path, user };
    await this.#transport.order({ method: "PUT", path: `${this.#path}/archive`, query, headers, body: data, signal });
  }

  #get(what: string, query: Query, signal?: AbortSignal): Promise<Raw> {
    return this.#transport.json({ method: "GET", path: `${this.#path}/fs/${what}`, query, signal, again: true });
  }

  async #post(what: string, json: Raw, signal?: AbortSignal): Promise<void> {
    await this.#transport.order({ method: "POST", path: `${this.#path}/fs/${what}`, json, signal });
  }
}

/** Of another range the daemon would send all, as HTTP has it. */
function isOffset(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Names are relative to what was asked for; of a file itself they are absolute, or empty. */
function below(directory: string, name: string): string {
  if (name.startsWith("/")) return name;
  return name === "" || name === "." ? directory : `${directory.replace(/\/+$/, "")}/${name}`;
}

function entries(directory: string, list: Raw): FileInfo[] {
  const found = member<Raw[]>(list, "entries", "array");
  return whole(list, found.map((raw) => fileInfo(raw, below(directory, member(raw, "name", "string")))));
}

/** All of it, or an error that has what there is. */
function whole<T>(list: Raw, found: T[]): T[] {
  if (!("error" in list)) return found;
  throw Object.assign(errorFromBody(list["error"]), { found });
}

/** The first value says that it has begun. Without an end: when nobody knows what happened meanwhile, it fails. */
async function* watching(path: string, chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Change | undefined, void> {
  const parser = new LineParser();
  for await (const chunk of chunks) {
    for (const line of parser.push(chunk) as Raw[]) {
      const type = member(line, "type", "string");
      if (type === "error") throw errorFromBody(line["error"]);
      yield type === "watching" ? undefined : change(path, changeOf(line));
    }
  }
  throw new Unavailable("the stream of changes was cut off");
}

function change(directory: string, { kind, path }: Change): Change {
  return { kind, path: below(directory, path) };
}
