// SPDX-License-Identifier: Apache-2.0
//
// The daemon over TCP, with a token.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cay, Unauthorized, Unavailable } from "cay-sandbox";
import { text } from "./sdk_support.mjs";

const host = process.env.CAY_TEST_TCP;
const token = process.env.CAY_TEST_TOKEN;

test("with a token: create, exec, streams, files", async () => {
  await new Cay({ host, token }).withSandbox({}, async (box) => {
    assert.equal((await box.exec("echo hi")).stdout, "hi\n");
    const process = await box.start("cat; echo end", { stdin: true });
    await process.write("through\n", { eof: true });
    assert.equal(await text(process.stdout), "through\nend\n");
    const bytes = new Uint8Array(5_000_000).fill(7);
    await box.files.write("/tmp/x", bytes);
    assert.deepEqual(await box.files.read("/tmp/x"), bytes);
  });
});

test("exec over TCP: an abort kills the tree", async () => {
  await new Cay({ host, token }).withSandbox({}, async (box) => {
    const running = box.exec("sleep 7001", { signal: AbortSignal.timeout(300) });
    await assert.rejects(running, { name: "TimeoutError" });
    for (let alive = true; alive; ) alive = (await box.processes()).some((info) => info.running);
  });
});

test("without a token, or with another one: Unauthorized; the version is for all", async () => {
  const cay = new Cay({ host });
  await assert.rejects(cay.list(), (error) => error instanceof Unauthorized && error.status === 401);
  await assert.rejects(new Cay({ host, token: "cay_wrong" }).list(), Unauthorized);
  assert.equal((await cay.version()).api, "v1");
});

test("CAY_TOKEN is the default", async () => {
  process.env.CAY_TOKEN = token;
  try {
    assert.ok(Array.isArray(await new Cay({ host }).list()));
  } finally {
    delete process.env.CAY_TOKEN;
  }
});

test("a port where nobody listens: Unavailable", async () => {
  await assert.rejects(new Cay({ host: "http://127.0.0.1:1" }).version(), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.equal(error.cause.code, "ECONNREFUSED");
    return true;
  });
});
