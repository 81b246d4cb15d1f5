// SPDX-License-Identifier: Apache-2.0
// The TypeScript half of bench/streams.py: SIZE bytes out of, or into, a process, as a program with the SDK sees them.
//
//     stream.mjs HOST SANDBOX out|in SIZE      exit code 0 when all of them went through
const { Cay } = await import(process.env.CAY_BENCH_SDK ?? "cay-sandbox");
const [host, name, way, size] = [process.argv[2], process.argv[3], process.argv[4], Number(process.argv[5])];
const PIECE = new Uint8Array(1 << 18);

async function out(box) {
  const running = await box.start(["head", "-c", String(size), "/dev/zero"]);
  let seen = 0;
  for await (const { data } of running.output()) seen += data.length;
  return seen;
}

async function into(box) {
  const running = await box.start("wc -c", { stdin: true });
  for (let at = 0; at < size; at += PIECE.length)
    await running.write(PIECE.subarray(0, Math.min(PIECE.length, size - at)));
  await running.closeStdin();
  return Number(await new Response(running.stdout).text());
}

const cay = new Cay({ host });
const box = await cay.get(name);
const done = await (way === "out" ? out(box) : into(box));
cay.close();
if (done !== size) {
  console.error(`${done} of ${size} bytes`);
  process.exit(1);
}
