// SPDX-License-Identifier: Apache-2.0
//
// A sandbox from start to end: a command, a file, an error.

import { Cay, NotFound } from "cay-sandbox";

const cay = new Cay(); // $CAY_HOST, else unix:/run/cay/cayd.sock

await cay.withSandbox({ memory: "512M", labels: { team: "a" } }, async (box) => {
  const { stdout, exitCode } = await box.exec(["python3", "-c", "print(6 * 7)"]);
  console.log(exitCode, stdout.trim());

  await box.files.write("/work/data.csv", "name,age\nada,36\n");
  const sum = await box.exec("tail -n +2 /work/data.csv | wc -l", { timeout: 10 });
  console.log("rows:", sum.stdout.trim());

  try {
    await box.files.read("/work/missing.csv");
  } catch (error) {
    if (!(error instanceof NotFound)) throw error;
    console.log(error.code, "-", error.message);
  }
});
