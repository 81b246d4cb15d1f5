// SPDX-License-Identifier: Apache-2.0
//
// What goes in and comes out: the schemas of api/openapi.yaml with names as JavaScript writes them. Answers may have
// members that this version does not know; they are passed on.

/** Passed to every call: abort it with its reason. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

export interface CayOptions {
  /** "unix:/path", "http://host:port" or "https://host:port". Default: $CAY_HOST, else unix:/run/cay/cayd.sock. */
  host?: string | undefined;
  /** Default: $CAY_TOKEN. Not needed on the unix socket. */
  token?: string | undefined;
  /** Certificate authority (PEM) of a server that the system's own do not know. */
  ca?: string | Uint8Array | undefined;
}

/** A number of bytes, or "512M". */
export type Size = number | string;
/** Seconds, or "15m". */
export type Duration = number | string;

export interface Mount {
  source: string;
  target: string;
  readOnly?: boolean;
}

export interface CreateOptions {
  /** Default: 12 hex digits. */
  id?: string | undefined;
  image?: string | undefined;
  user?: string | undefined;
  cwd?: string | undefined;
  network?: string | undefined;
  profile?: "default" | "strict" | "nested" | undefined;
  memory?: Size | undefined;
  cpus?: number | undefined;
  pids?: number | undefined;
  disk?: Size | undefined;
  inodes?: number | undefined;
  fds?: number | undefined;
  /** Bytes of output that are kept for each process. */
  output?: Size | undefined;
  /** It ends after this long. 0: never. */
  ttl?: Duration | undefined;
  /** It ends after this long without a process, a call or a reader. 0: never. */
  idle?: Duration | undefined;
  env?: Record<string, string> | undefined;
  labels?: Record<string, string> | undefined;
  mounts?: Mount[] | undefined;
  /** Not in this version: any secret is refused with Unsupported. */
  secrets?: Record<string, unknown> | undefined;
}

export type SandboxState = "creating" | "running" | "paused" | "exited" | "oom" | "ttl" | "idle" | "lost";

export interface SandboxInfo {
  id: string;
  state: SandboxState;
  /** Why it is in this state, in words. */
  reason: string;
  image: string;
  createdMs: number;
  /** 0 while it lives. */
  endedMs: number;
  /** 0: no ttl. */
  ttlLeftMs: number;
  keeperPid: number;
  initPid: number;
  /** That run now. */
  processes: number;
  labels: Record<string, string>;
  tenant?: string;
}

/** What a sandbox was made from, with the defaults filled in. */
export interface Spec {
  image: string;
  user: string | null;
  cwd: string | null;
  network: string;
  profile: string;
  memory: number;
  cpus: number | null;
  pids: number;
  disk: number;
  inodes: number;
  fds: number;
  output: number;
  ttlMs: number;
  idleMs: number;
  ephemeral: boolean;
  env: Record<string, string>;
  labels: Record<string, string>;
  mounts: { source: string; target: string; readOnly: boolean }[];
}

/** Bytes, microseconds of CPU time, numbers. */
export interface Stats {
  id: string;
  cpuUs: number;
  cpuUserUs: number;
  cpuSystemUs: number;
  memory: number;
  memoryPeak: number;
  memoryMax: number;
  pids: number;
  pidsMax: number;
  ioRead: number;
  ioWrite: number;
  disk: number;
  diskMax: number;
  inodes: number;
  inodesMax: number;
  oomKills: number;
  /** Kept for later readers, on the host's disk. */
  output: number;
  outputMax: number;
}

/** A string is run by the shell, an array is the program and its arguments. */
export type Command = string | readonly string[];

export interface CommandOptions extends CallOptions {
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Seconds after which the process and all it started is killed (exit code 124, timedOut). */
  timeout?: number | undefined;
}

export interface ExecOptions extends CommandOptions {
  /** The whole standard input. */
  input?: string | Uint8Array | undefined;
  /** Bytes of output; a command that writes more is killed, and exec rejects with TooLarge. Default: 256 MiB. */
  maxOutput?: number | undefined;
}

export interface StartOptions extends CommandOptions {
  /** Keeps the standard input open: Process.stdin, write, closeStdin. */
  stdin?: boolean | undefined;
  /** Gives it a terminal. */
  pty?: boolean | undefined;
  rows?: number | undefined;
  cols?: number | undefined;
  /** It is killed when for 10 seconds nobody has followed its output or waited for its end. */
  killOnDisconnect?: boolean | undefined;
  /** It does not write much before somebody follows or waits, for 10 seconds at most. Default: true. */
  hold?: boolean | undefined;
}

/** How a process ended. */
export interface Exit {
  pid: number;
  /** As a shell tells it: 128+n for a signal, 124 on timeout, 126 and 127 if it could not be started. */
  exitCode: number;
  /** 0 unless a signal ended it. */
  signal: number;
  timedOut: boolean;
  /** Output was dropped, oldest first; never of a result, which is whole. */
  truncated: boolean;
  /** Killed with all it started, because the sandbox was out of memory. */
  oom: boolean;
  durationMs: number;
  cpuMs: number;
  peakMemory: number;
  /** Why it did not end by itself, in words; absent if it did. */
  reason?: string;
}

/** Bytes that are not UTF-8 are U+FFFD; see Sandbox.execBytes. */
export interface ExecResult extends Exit {
  stdout: string;
  stderr: string;
}

export interface ExecBytes extends Exit {
  stdout: Uint8Array;
  stderr: Uint8Array;
}

export interface ProcessInfo {
  pid: number;
  running: boolean;
  pty: boolean;
  /** For people: shortened. */
  command: string;
  startedMs: number;
  outputStart: number;
  outputEnd: number;
  exit: Exit | null;
}

/** A piece of output. `offset` counts the bytes of both streams together. */
export interface Output {
  stream: "stdout" | "stderr";
  data: Uint8Array;
  offset: number;
}

export type FileType = "file" | "directory" | "link" | "pipe" | "socket" | "char_device" | "block_device";

export interface FileInfo {
  /** The last part of the path. */
  name: string;
  /** Absolute. Bytes that are not UTF-8 are U+FFFD. */
  path: string;
  type: FileType;
  size: number;
  /** Permission bits. */
  mode: number;
  uid: number;
  gid: number;
  /** Milliseconds since 1970, with a fraction. */
  mtimeMs: number;
  inode: number;
  links: number;
  /** Of a link. */
  target?: string;
}

export interface Match {
  /** Absolute. */
  path: string;
  line: number;
  /** Without its newline. */
  text: string;
}

export interface Change {
  /** "overflow": changes were lost, look at everything again. */
  kind: "created" | "modified" | "deleted" | "renamed" | "overflow";
  /** Absolute. */
  path: string;
}

/** What happens to sandboxes. */
export interface Event {
  seq: number;
  timeMs: number;
  type: "created" | "paused" | "resumed" | "ended" | "removed";
  sandbox: string;
  state: string | null;
  reason: string | null;
  labels: Record<string, string>;
}

export interface Version {
  version: string;
  api: string;
}

export interface Capabilities {
  version: string;
  features: Record<string, unknown>;
  checks: { name: string; level: "ok" | "loss" | "fail"; finding: string; advice: string }[];
}
