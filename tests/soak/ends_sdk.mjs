// SPDX-License-Identifier: Apache-2.0
//
// ends_sdk.mjs HOST: a client of ends.py by the TypeScript SDK. A command in JSON on each line, its result likewise.

import { createInterface } from "node:readline";
import { Cay } from "cay-sandbox";

const cay = new Cay({ host: process.argv[2] });
console.log(JSON.stringify(await cay.version()));

for await (const line of createInterface({ input: process.stdin })) {
  const { box, argv, input } = JSON.parse(line);
  const { stdout, stderr, exitCode } = await cay.attach(box).exec(argv, { input });
  console.log(JSON.stringify([stdout, stderr, exitCode]));
}
