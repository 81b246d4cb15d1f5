// SPDX-License-Identifier: Apache-2.0
//
// The types as a program meets them: compiled with --strict, not run.

import {
  Cay,
  CayError,
  NotFound,
  Unsupported,
  checkNetworkPolicy,
  type Change,
  type CreateOptions,
  type ExecBytes,
  type ExecResult,
  type Exit,
  type FileInfo,
  type NetworkPolicy,
  type Output,
  type Process,
  type ProcessInfo,
  type Sandbox,
  type SandboxInfo,
} from "cay-sandbox";

/** Fails to compile unless both are the same type. */
function same<A>() {
  return <B>(_: B & ([A] extends [B] ? ([B] extends [A] ? unknown : never) : never)): void => {};
}

export async function everything(signal: AbortSignal): Promise<void> {
  const cay = new Cay({ host: "unix:/x", token: "t", ca: "pem" });
  const spec: CreateOptions = { memory: "1G", cpus: 0.5, mounts: [{ source: "/a", target: "/b", readOnly: true }] };
  const box = await cay.create(spec, { signal });
  same<Sandbox>()(box);
  same<SandboxInfo | undefined>()(box.info);
  same<SandboxInfo[]>()(await cay.list({ labels: { a: "b" }, state: "all", signal }));
  same<number>()(await cay.withSandbox({}, async () => 7));

  const done = await box.exec(["a", "b"], { env: { A: "b" }, cwd: "/", timeout: 1, input: new Uint8Array(), signal });
  same<ExecResult>()(done);
  same<string>()(done.stdout);
  same<number>()(done.exitCode);
  same<ExecBytes>()(await box.execBytes("x" as const));
  const argv: readonly string[] = ["a"];
  await box.exec(argv);

  const process = await box.start("x", { stdin: true, pty: true, rows: 1, cols: 1, user: "u", signal });
  same<Process>()(process);
  same<ReadableStream<Uint8Array>>()(process.stdout);
  same<WritableStream<Uint8Array> | undefined>()(process.stdin);
  same<Exit>()(await process.wait({ timeout: 1, signal }));
  same<Exit | null>()(await process.poll());
  for await (const piece of process.output({ since: 1, follow: false })) same<Output>()(piece);
  for await (const chunk of process.stdout) same<Uint8Array>()(chunk);
  same<ProcessInfo[]>()(await box.processes());
  await process.signal("TERM", { tree: true });

  same<Uint8Array>()(await box.files.read("/x"));
  await box.files.write("/x", await box.files.stream("/y", { start: 1, end: 2 }), { mode: 0o600 });
  same<FileInfo[]>()(await box.files.find("/", { glob: "*.ts" }));
  for await (const change of await box.files.watch("/")) same<Change>()(change);

  const policy: NetworkPolicy = { allow: { "*": [], "a.b": [{ transform: [{ headers: { a: "b" } }] }] } };
  await box.setNetwork(policy);
  const unknown: unknown = policy;
  checkNetworkPolicy(unknown);
  same<NetworkPolicy>()(unknown);

  try {
    await box.refresh();
  } catch (error) {
    if (error instanceof NotFound) same<string>()(error.code);
    if (error instanceof CayError) same<number>()(error.status);
    if (error instanceof Unsupported) throw new Unsupported("x", { cause: error, detail: { field: "f" } });
  }

  // @ts-expect-error a command is a string or strings
  await box.exec(7);
  // @ts-expect-error no such option
  await box.exec("x", { timout: 1 });
  // @ts-expect-error no such field
  await cay.create({ memroy: "1G" });
  // @ts-expect-error no such policy
  await box.setNetwork("open");

  await using owned = await cay.create();
  same<string>()(owned.id);
}
