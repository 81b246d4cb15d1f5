// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the SDK share.

import { after, before } from "node:test";
import { Cay } from "cay-sandbox";

export const encode = (text) => new TextEncoder().encode(text);
export const decode = (bytes) => new TextDecoder().decode(bytes);
export const text = (stream) => new Response(stream).text();

/** A module of the package that it does not export. */
export const internal = (name) => import(new URL(`./${name}.js`, import.meta.resolve("cay-sandbox")));

/** A client and a sandbox that the tests of one file share, removed afterwards. */
export function shared(spec = {}) {
  const context = { cay: new Cay(), box: undefined };
  before(async () => {
    context.box = await context.cay.create({ idle: 600, ...spec });
  });
  after(() => context.box.remove());
  return context;
}

/** Waits until `what` gives something true, and returns it. */
export async function until(what, seconds = 20) {
  for (const end = Date.now() + seconds * 1000; ; ) {
    const found = await what();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not in ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Whether a process with this word in its command line runs in the sandbox. */
export async function runs(box, word) {
  const [first, ...rest] = word; // so that pgrep's own command line does not match
  const { exitCode } = await box.exec(["pgrep", "-f", `[${first}]${rest.join("")}`]);
  return exitCode === 0;
}
