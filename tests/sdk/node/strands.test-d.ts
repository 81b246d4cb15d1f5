// SPDX-License-Identifier: Apache-2.0
//
// Types of cay-sandbox/strands: it fits where @strands-agents/sdk takes a Sandbox. Compiled, never run.
import { Agent, type ExecutionResult, type FileInfo, type Sandbox, type StreamChunk } from "@strands-agents/sdk";
import { LocalFileStorage } from "@strands-agents/sdk/storage";
import { Cay, type Sandbox as Box } from "cay-sandbox";
import { CaySandbox, type CaySandboxOptions } from "cay-sandbox/strands";

const options: CaySandboxOptions = { memory: "512M", ttl: 60, workingDir: "/srv", host: "unix:/run/cay/cayd.sock" };
const lazy: Sandbox = new CaySandbox(options);
new Agent({ sandbox: lazy });
new LocalFileStorage().forSandbox(new CaySandbox());

export async function use(box: Box, signal: AbortSignal): Promise<void> {
  await using made = await CaySandbox.create({ client: new Cay() });
  const behind: Box = await made.box();
  const given = new CaySandbox(behind, { workingDir: "/tmp" });
  for await (const item of given.executeStreaming("ls", { timeout: 1, cwd: "/", env: { A: "b" }, signal })) {
    const known: StreamChunk | ExecutionResult = item;
    if (known.type === "executionResult") known.outputFiles.at(0)?.content.byteLength.toFixed();
    else known.streamType satisfies "stdout" | "stderr";
  }
  const code: ExecutionResult = await given.executeCode("1", "python3", { timeout: 2 });
  const files: FileInfo[] = await given.listFiles(code.stdout);
  const bytes: Uint8Array = await given.readFile(files[0]?.name ?? "x");
  await given.writeFile("y", bytes);
  given.getTools().map((tool) => tool.name);
  // @ts-expect-error: a box has its limits already
  new CaySandbox(box, { memory: "1G" });
  // @ts-expect-error: there is no such option
  new CaySandbox({ memroy: "1G" });
}
