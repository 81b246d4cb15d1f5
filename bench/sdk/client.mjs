// SPDX-License-Identifier: Apache-2.0
// The TypeScript half of bench/sdk.py: get and exec, in turn.
//
//     client.mjs HOST SANDBOX ROUNDS      prints "label<TAB>ok<TAB>nanoseconds,..." lines
const { Cay } = await import(process.env.CAY_BENCH_SDK ?? "cay-sandbox");
const [host, name, rounds] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const WARMUP = 50;

async function timed(samples, call) {
  const start = process.hrtime.bigint();
  const value = await call();
  samples.push(process.hrtime.bigint() - start);
  return value;
}

const cay = new Cay({ host });
const [attach, run] = [[], []];
for (let i = 0; i < rounds + WARMUP; i++) {
  const box = await timed(attach, () => cay.get(name));
  await timed(run, () => box.exec(["/bin/true"]));
}
cay.close();
console.log(["attach, TypeScript", "ok", attach.slice(WARMUP).join(",")].join("\t"));
console.log(["exec, TypeScript", "ok", run.slice(WARMUP).join(",")].join("\t"));
