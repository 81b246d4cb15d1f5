// SPDX-License-Identifier: Apache-2.0
//
// A process that runs on: output as it comes, input, a deadline.

import { Cay } from "cay-sandbox";

const cay = new Cay();

await cay.withSandbox({}, async (box) => {
  const sorter = await box.start(["sort", "-n"], { stdin: true });
  const writer = sorter.stdin.getWriter();
  for (const number of [30, 4, 100]) await writer.write(new TextEncoder().encode(`${number}\n`));
  await writer.close();
  console.log(await new Response(sorter.stdout).text());

  const counter = await box.start("for i in 1 2 3; do echo line $i; sleep 0.1; done; exit 5");
  for await (const { stream, data, offset } of counter.output())
    console.log(stream, offset, new TextDecoder().decode(data).trim());
  console.log("exit code", (await counter.wait()).exitCode);

  // The signal governs the life of the process: an abort kills it and everything that it started.
  const endless = await box.start("sleep 1000 & sleep 1000", { signal: AbortSignal.timeout(200) });
  await endless.wait().catch((error) => console.log(error.name));
});
