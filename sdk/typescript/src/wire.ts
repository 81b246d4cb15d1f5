// SPDX-License-Identifier: Apache-2.0
//
// Between the API's JSON and our types.

import { unexpected } from "./errors.js";
import type {
  Change,
  Command,
  CommandOptions,
  CreateOptions,
  Event,
  Exit,
  FileInfo,
  Match,
  ProcessInfo,
  SandboxInfo,
  Spec,
  Stats,
} from "./types.js";

export type Raw = Record<string, unknown>;

const names = new Map<string, string>();

function camel(name: string): string {
  let found = names.get(name);
  if (found === undefined) {
    found = name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
    names.set(name, found);
  }
  return found;
}

/** exit_code -> exitCode, in the object itself and not below it: labels and variables keep their names. */
export function fromWire<T>(raw: Raw): T {
  const value: Raw = {};
  for (const name in raw) value[camel(name)] = raw[name];
  return value as T;
}

type Kind = "string" | "number" | "boolean" | "object" | "array";

function isA(value: unknown, kind: Kind): boolean {
  if (kind === "array") return Array.isArray(value);
  return typeof value === kind && value !== null && !Array.isArray(value);
}

/** A member of an answer. Internal: it is not there, or of another type. */
export function member<T>(raw: unknown, name: string, kind: Kind): T {
  if (!isA(raw, "object")) throw unexpected(`${raw === null ? "null" : typeof raw} in the place of an object`);
  const value = (raw as Raw)[name];
  if (isA(value, kind)) return value as T;
  throw unexpected(`'${name}' is ${value === undefined ? "missing" : "of a wrong type"}`);
}

/** As fromWire, for what has at least these members. */
function checked<T>(raw: unknown, members: Record<string, Kind>): T {
  for (const name in members) member(raw, name, members[name] as Kind);
  return fromWire<T>(raw as Raw);
}

const SANDBOX = { id: "string", state: "string" } as const;
const EXIT = { pid: "number", exit_code: "number" } as const;
const PROCESS = { pid: "number", running: "boolean" } as const;
const STATS = { id: "string", memory: "number" } as const;
const EVENT = { seq: "number", type: "string", sandbox: "string" } as const;
const FILE = { type: "string", size: "number", mtime_ns: "number" } as const;
const MATCH = { path: "string", line: "number", text: "string" } as const;
const CHANGE = { kind: "string", path: "string" } as const;

export const sandboxInfo = (raw: unknown): SandboxInfo => checked(raw, SANDBOX);
export const exitOf = (raw: unknown): Exit => checked(raw, EXIT);
export const statsOf = (raw: unknown): Stats => checked(raw, STATS);
export const eventOf = (raw: unknown): Event => checked(raw, EVENT);
export const matchOf = (raw: unknown): Match => checked(raw, MATCH);
export const changeOf = (raw: unknown): Change => checked(raw, CHANGE);

/** For who reads the output: that a command was ended from outside, and why. */
export function noteOf({ reason, timedOut }: Exit): string {
  return reason && !timedOut ? `\n[cay: the command was ended: ${reason}]\n` : "";
}

export function processInfo(raw: unknown): ProcessInfo {
  const info = checked<ProcessInfo>(raw, PROCESS);
  return { ...info, exit: info.exit ? exitOf(info.exit) : null };
}

export function specFromWire(raw: Raw): Spec {
  const mounts = member<Raw[]>(raw, "mounts", "array").map((mount) => fromWire<Spec["mounts"][number]>(mount));
  return { ...fromWire<Spec>(raw), mounts };
}

export function fileInfo(given: unknown, path: string): FileInfo {
  checked(given, FILE);
  const raw = given as Raw;
  const { name_base64: _, target_base64: __, mtime_ns: mtime, ...rest } = raw;
  const name = path.slice(path.lastIndexOf("/") + 1) || "/";
  return { ...fromWire<FileInfo>(rest), name, path, mtimeMs: (mtime as number) / 1e6 };
}

export function specToWire({ mounts, secrets: _, ...spec }: CreateOptions): Raw {
  return {
    ...spec,
    ...(mounts && {
      mounts: mounts.map(({ source, target, readOnly }) => ({ source, target, read_only: readOnly })),
    }),
  };
}

/** Members that are undefined are left out by JSON. */
export function commandToWire(command: Command, { env, cwd, user, timeout }: CommandOptions): Raw {
  return { ...(typeof command === "string" ? { shell: command } : { argv: command }), env, cwd, user, timeout };
}
