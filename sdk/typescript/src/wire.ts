// SPDX-License-Identifier: Apache-2.0
//
// Between the API's JSON and our types.

import type {
  Command,
  CommandOptions,
  CreateOptions,
  Exit,
  FileInfo,
  ProcessInfo,
  Spec,
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

/** For who reads the output: that a command was ended from outside, and why. */
export function noteOf({ reason, timedOut }: Exit): string {
  return reason && !timedOut ? `\n[cay: the command was ended: ${reason}]\n` : "";
}

export function processInfo(raw: Raw): ProcessInfo {
  return { ...fromWire<ProcessInfo>(raw), exit: raw["exit"] ? fromWire<Exit>(raw["exit"] as Raw) : null };
}

export function specFromWire(raw: Raw): Spec {
  const mounts = (raw["mounts"] as Raw[]).map((mount) => fromWire<Spec["mounts"][number]>(mount));
  return { ...fromWire<Spec>(raw), mounts };
}

export function fileInfo(raw: Raw, path: string): FileInfo {
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
