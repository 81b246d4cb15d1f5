// SPDX-License-Identifier: Apache-2.0
//
// What every new sandbox of an agent is prepared with. This version has no snapshots: what eve's author does in
// `prepare` (or `bootstrap`) is carried out once, in a sandbox of its own, and written down; then it is done again in
// each new sandbox, from the record alone. So it works in a process that never saw the author's function.
//
// A recipe is pure JSON: it is kept in eve's build output. What only reads is not recorded.

import { Buffer } from "node:buffer";

import type { SpawnOptions } from "../ai-sdk/types.js";
import { Unsupported } from "../index.js";
import { resolvePath, WORKSPACE, type CaySession } from "./session.js";
import type { Log } from "./types.js";

type CommandRecord = { readonly command: string; readonly cwd: string; readonly env: Readonly<Record<string, string>> };

export type Step =
  | { readonly do: "write"; readonly path: string; readonly base64: string }
  | { readonly do: "remove"; readonly path: string; readonly recursive: boolean }
  | ({ readonly do: "run"; readonly exitCode: number } & CommandRecord)
  | ({ readonly do: "spawn"; readonly child: number } & CommandRecord)
  | { readonly do: "wait" | "kill"; readonly child: number };

export type Recipe = readonly Step[];

/** A path may begin with $HOME/. */
export interface SeedFile {
  readonly path: string;
  readonly content: string | Uint8Array;
}

export function seedSteps(files: readonly SeedFile[]): Step[] {
  return files.map(({ path, content }) => ({ do: "write", path, base64: Buffer.from(content).toString("base64") }));
}

// ---- writing down ---------------------------------------------------------------------------------------------------

/** A session like the one given, which adds to `steps` what is done with it. */
export function recording(session: CaySession, steps: Step[], log: Log = () => {}): CaySession {
  const write = async (path: string, content: Uint8Array, abortSignal: AbortSignal | undefined) => {
    log(`preparation write file: ${path} (${content.byteLength} bytes)`);
    await session.writeBinaryFile({ path, content, abortSignal });
    steps.push({ do: "write", path: resolvePath(path), base64: Buffer.from(content).toString("base64") });
  };
  return {
    ...session,
    run: async (options) => {
      log(`preparation run: ${oneLine(options.command)}`);
      const result = await session.run(options);
      // As eve's own sandboxes have it: other codes are for the author to judge.
      if (result.exitCode === 1) throw new Error(failure(options.command, result));
      steps.push({ do: "run", ...recordOf(options), exitCode: result.exitCode });
      return result;
    },
    spawn: recordedSpawn(session, steps, log),
    writeFile: async ({ path, content, abortSignal }) =>
      write(path, new Uint8Array(await new Response(content).arrayBuffer()), abortSignal),
    writeBinaryFile: ({ path, content, abortSignal }) => write(path, content, abortSignal),
    writeTextFile: ({ path, content, encoding, abortSignal }) =>
      write(path, Buffer.from(content, encoding as BufferEncoding | undefined), abortSignal),
    removePath: async (options) => {
      log(`preparation remove path: ${options.path}`);
      await session.removePath(options);
      steps.push({ do: "remove", path: resolvePath(options.path), recursive: options.recursive === true });
    },
    deleteFile: async (options) => {
      const removed = await session.deleteFile(options);
      if (removed) steps.push({ do: "remove", path: resolvePath(options.path), recursive: false });
      return removed;
    },
  };
}

function recordedSpawn(session: CaySession, steps: Step[], log: Log): CaySession["spawn"] {
  let children = 0;
  return (async (options: SpawnOptions) => {
    log(`preparation spawn: ${oneLine(options.command)}`);
    if (options.stdin) throw new Unsupported("in a preparation, what is written to 'stdin' cannot be repeated");
    const process = await session.spawn({ ...options, stdin: false });
    const child = children++;
    steps.push({ do: "spawn", child, ...recordOf(options) });
    return {
      ...process,
      wait: async () => {
        const { exitCode } = await process.wait();
        steps.push({ do: "wait", child });
        return { exitCode };
      },
      kill: async () => {
        await process.kill();
        steps.push({ do: "kill", child });
      },
    };
  }) as CaySession["spawn"];
}

function recordOf({ command, workingDirectory, env = {} }: SpawnOptions): CommandRecord {
  return { command, cwd: resolvePath(workingDirectory ?? WORKSPACE), env };
}

function oneLine(command: string): string {
  const line = command.replaceAll(/\s+/g, " ").trim();
  return line.length <= 240 ? line : `${line.slice(0, 239)}…`;
}

function failure(command: string, { exitCode, stdout, stderr }: Awaited<ReturnType<CaySession["run"]>>): string {
  return `the preparation failed, its command exited with code ${exitCode}:\n${command}\n\n${stdout}\n${stderr}`;
}

// ---- doing it again -------------------------------------------------------------------------------------------------

/** Carries out a recipe. What was started and not waited for ends with it, as it would with a snapshot. */
export async function replay(session: CaySession, recipe: Recipe): Promise<void> {
  const children = new Map<number, Awaited<ReturnType<CaySession["spawn"]>>>();
  const home = recipe.some(needsHome) ? await homeOf(session) : "";
  try {
    for (const step of recipe) {
      if (step.do === "write") {
        const path = step.path.replace(/^\$HOME(?=\/)/, () => home);
        await session.writeBinaryFile({ path, content: Buffer.from(step.base64, "base64") });
      } else if (step.do === "remove") {
        await session.removePath({ path: step.path, recursive: step.recursive, force: true });
      } else if (step.do === "run") {
        const result = await session.run(callOf(step));
        if (result.exitCode !== step.exitCode) throw new Error(failure(step.command, result));
      } else if (step.do === "spawn") {
        children.set(step.child, await session.spawn(callOf(step)));
      } else {
        const child = children.get(step.child);
        await (step.do === "kill" ? child?.kill() : child?.wait());
      }
    }
  } finally {
    await Promise.all([...children.values()].map((child) => child.kill()));
  }
}

function callOf({ command, cwd, env }: CommandRecord) {
  return { command, workingDirectory: cwd, env: { ...env } };
}

function needsHome(step: Step): boolean {
  return step.do === "write" && step.path.startsWith("$HOME/");
}

async function homeOf(session: CaySession): Promise<string> {
  const { stdout } = await session.run({ command: 'printf %s "$HOME"' });
  if (!stdout.startsWith("/") || /[\r\n]/.test(stdout)) throw new Error(`$HOME is not a directory: '${stdout}'`);
  return stdout === "/" ? "" : stdout;
}
