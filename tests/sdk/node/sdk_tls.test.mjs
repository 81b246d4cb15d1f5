// SPDX-License-Identifier: Apache-2.0
//
// The daemon over TLS, with a certificate that only this file's CAY_TEST_CA vouches for.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { Cay, Unavailable } from "cay-sandbox";
import { text } from "./sdk_support.mjs";

const host = process.env.CAY_TEST_TCP;
const token = process.env.CAY_TEST_TOKEN;
const ca = await readFile(process.env.CAY_TEST_CA, "utf8");

test("with the authority that is given: commands and streams", async () => {
  assert.match(host, /^https:/);
  await new Cay({ host, token, ca }).withSandbox({}, async (box) => {
    assert.equal((await box.exec("echo hi")).stdout, "hi\n");
    const process = await box.start("echo out; echo err >&2");
    assert.deepEqual(await Promise.all([text(process.stdout), text(process.stderr)]), ["out\n", "err\n"]);
  });
});

test("with the authority of the file CAY_CACERT", async () => {
  process.env.CAY_CACERT = process.env.CAY_TEST_CA;
  try {
    assert.ok(Array.isArray(await new Cay({ host, token }).list()));
  } finally {
    delete process.env.CAY_CACERT;
  }
});

test("without it: Unavailable, and nothing was sent", async () => {
  await assert.rejects(new Cay({ host, token }).list(), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.match(error.message, /^cannot reach /);
    assert.match(error.cause.code, /SELF_SIGNED|UNABLE_TO|DEPTH_ZERO/);
    return true;
  });
});
