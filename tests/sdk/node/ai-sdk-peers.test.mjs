// SPDX-License-Identifier: Apache-2.0
//
// cay-sandbox/ai-sdk with the frameworks that are installed: `ai` alone, @ai-sdk/harness alone, or neither.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const modules = dirname(dirname(fileURLToPath(import.meta.resolve("cay-sandbox/package.json"))));

/** Runs a program where only these packages can be found beside cay; its standard output. */
async function withOnly(packages, program) {
  const home = await mkdtemp(join(tmpdir(), "cay-peers-"));
  try {
    await cp(join(modules, "cay-sandbox"), join(home, "node_modules", "cay-sandbox"), { recursive: true });
    for (const name of packages) {
      await mkdir(dirname(join(home, "node_modules", name)), { recursive: true });
      await symlink(join(modules, name), join(home, "node_modules", name));
    }
    const argv = ["--input-type=module", "-e", program];
    const { stdout } = await promisify(execFile)(process.execPath, argv, { cwd: home });
    return stdout.trim();
  } finally {
    await rm(home, { recursive: true });
  }
}

const USE = `
  import { cayHarnessSandbox, createCaySandbox } from "cay-sandbox/ai-sdk";
  const sandbox = await createCaySandbox({ idle: 60 });
  const { stdout } = await sandbox.run({ command: "echo ran" });
  await sandbox.remove();
  const session = await cayHarnessSandbox({ idle: 60 }).createSession();
  const error = await session.getPortUrl({ port: 80 }).catch((error) => error);
  await session.destroy();`;

test("with `ai` alone: sessions work, and what the harness lacks is cay's own Unsupported", async () => {
  const program = `
    import { generateText } from "ai"; ${USE}
    console.log(stdout.trim(), typeof generateText, error.name)`;
  assert.equal(await withOnly(["ai"], program), "ran function Unsupported");
});

test("with @ai-sdk/harness alone: the error is the harness's class", async () => {
  const program = `
    import { HarnessCapabilityUnsupportedError } from "@ai-sdk/harness"; ${USE}
    console.log(stdout.trim(), error instanceof HarnessCapabilityUnsupportedError, error.cause.name)`;
  assert.equal(await withOnly(["@ai-sdk/harness"], program), "ran true Unsupported");
});

test("with neither: importing cay-sandbox/ai-sdk needs nothing but cay", async () => {
  assert.equal(await withOnly([], `${USE} console.log(stdout.trim(), error.code)`), "ran unsupported");
});

test("the types that are published name no package of a framework", async () => {
  for (const file of ["ai-sdk.d.ts", "ai-sdk/types.d.ts"]) {
    const text = await readFile(join(modules, "cay-sandbox", "dist", file), "utf8");
    assert.doesNotMatch(text, /from "(?!\.)|import\("(?!\.)/, file);
  }
});
