// SPDX-License-Identifier: Apache-2.0
//
// A session of the AI SDK over a sandbox of cay: commands and files. A plain object whose members are its own and need
// no `this`: frameworks spread it. It keeps no state but the sandbox.

import { Buffer } from "node:buffer";

import { Invalid, NotFound } from "../index.js";
import type { Command, FileType, Process, Sandbox } from "../index.js";
import { noteOf } from "../wire.js";
import { extractLines } from "./lines.js";
import type {
  DirectoryEntry,
  FileStat,
  PathOptions,
  RunOptions,
  RunResult,
  SandboxProcess,
  SandboxSession,
  Spawn,
  SpawnOptions,
  WritableSandboxProcess,
} from "./types.js";

const WORKING_DIRECTORY = "/workspace";
const ENOENT = 2;

export interface SessionOptions {
  /** Where commands run and relative paths start. Default: /workspace. */
  workingDirectory?: string | undefined;
  /** For the model. Default: says what a cay sandbox is. */
  description?: string | undefined;
}

/** A session over a sandbox that exists; the sandbox is its caller's. No I/O. */
export function createSandboxSession(box: Sandbox, options: SessionOptions = {}): SandboxSession {
  const base = baseDirectory(options);
  const at = (path: string) => (path.startsWith("/") ? path : `${base === "/" ? "" : base}/${path}`);
  const description = options.description ?? describe(box, base);
  // cay takes no empty command; to bash it is one that does nothing.
  const run = commands(box, at, (command) => command || ":");
  return { description, ...run, ...reading(box, at), ...writing(box, at), ...entries(box, at) };
}

/** Makes a path absolute. */
type At = (path: string) => string;

export function baseDirectory({ workingDirectory = WORKING_DIRECTORY }: SessionOptions): string {
  if (!workingDirectory.startsWith("/")) throw new Invalid(`workingDirectory '${workingDirectory}' is not absolute`);
  return workingDirectory.replace(/\/+$/, "") || "/";
}

function describe(box: Sandbox, base: string): string {
  return [
    `Linux sandbox (cay, id: ${box.id}). Commands are run by bash.`,
    `Current working directory: ${base}. Relative paths start there.`,
    "Files and background processes stay for the lifetime of the sandbox. There is no network but loopback.",
  ].join("\n");
}

/** How the text of a command is run. */
type Shell = (command: string) => Command;

export function commands(box: Sandbox, at: At, shell: Shell): Pick<SandboxSession, "run" | "spawn"> {
  const how = ({ workingDirectory = ".", env, abortSignal }: RunOptions) => ({
    cwd: at(workingDirectory),
    env,
    signal: abortSignal,
  });
  return {
    run: async (options): Promise<RunResult> => {
      const done = await box.exec(shell(options.command), how(options));
      return { exitCode: done.exitCode, stdout: done.stdout, stderr: done.stderr + noteOf(done) };
    },
    spawn: (async ({ stdin = false, ...options }: SpawnOptions) =>
      handle(await box.start(shell(options.command), { ...how(options), stdin }))) as Spawn,
  };
}

/** The signal went to Sandbox.start and governs the process: an abort kills it, and wait() rejects with its reason. */
function handle(child: Process): SandboxProcess | WritableSandboxProcess {
  return {
    pid: child.pid,
    stdout: child.stdout,
    stderr: child.stderr,
    ...(child.stdin && { stdin: child.stdin }),
    wait: async () => ({ exitCode: (await child.wait()).exitCode }),
    kill: () => child.kill(),
  };
}

function reading(box: Sandbox, at: At): Pick<SandboxSession, "readFile" | "readBinaryFile" | "readTextFile"> {
  const read = async ({ path, abortSignal: signal }: PathOptions) => orNull(box.files.read(at(path), { signal }));
  return {
    readFile: async ({ path, abortSignal: signal }) => orNull(box.files.stream(at(path), { signal })),
    readBinaryFile: read,
    readTextFile: async ({ encoding, startLine, endLine, ...file }) => {
      const known = knownEncoding(encoding);
      const bytes = await read(file);
      return bytes && extractLines(viewOf(bytes).toString(known), { startLine, endLine });
    },
  };
}

function writing(box: Sandbox, at: At): Pick<SandboxSession, "writeFile" | "writeBinaryFile" | "writeTextFile"> {
  return {
    writeFile: async ({ path, content, abortSignal: signal }) => box.files.write(at(path), content, { signal }),
    writeBinaryFile: async ({ path, content, abortSignal: signal }) => box.files.write(at(path), content, { signal }),
    writeTextFile: async ({ path, content, encoding, abortSignal: signal }) =>
      box.files.write(at(path), Buffer.from(content, knownEncoding(encoding)), { signal }),
  };
}

function entries(box: Sandbox, at: At): Pick<SandboxSession, "stat" | "listDirectory" | "deleteFile"> {
  return {
    stat: async ({ path, abortSignal: signal }) => {
      const found = await orNull(box.files.stat(at(path), { follow: true, signal }));
      return found && { type: kindOf(found.type), size: found.size };
    },
    listDirectory: async ({ path, abortSignal: signal }) => {
      const found = await orNull(box.files.list(at(path), { signal }));
      return found && found.map(({ name, type }) => ({ name, type: type === "link" ? "symlink" : kindOf(type) }));
    },
    deleteFile: async ({ path, abortSignal: signal }) => {
      const found = await orNull(box.files.stat(at(path), { signal }));
      // cay would remove a directory that is empty.
      if (found?.type === "directory") throw new Invalid(`cannot delete '${path}': it is a directory`);
      return found !== null && (await orNull(box.files.remove(at(path), { signal }).then(() => true))) !== null;
    },
  };
}

/** Null if the path does not exist, and only then: a sandbox that does not exist is an error. */
async function orNull<T>(promise: Promise<T>): Promise<T | null> {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof NotFound && error.detail.errno === ENOENT) return null;
    throw error;
  }
}

function kindOf(type: FileType): FileStat["type"] & DirectoryEntry["type"] {
  return type === "file" || type === "directory" ? type : "other";
}

function knownEncoding(encoding = "utf-8"): BufferEncoding {
  if (!Buffer.isEncoding(encoding)) throw new Invalid(`the encoding '${encoding}' is not known`);
  return encoding;
}

/** The same bytes with Node's decoders, which put U+FFFD where UTF-8 is broken and keep a byte order mark. */
function viewOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
