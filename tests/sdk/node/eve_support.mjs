// SPDX-License-Identifier: Apache-2.0
//
// What the tests of cay-sandbox/eve share.

import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { Cay } from "cay-sandbox";
import { cayBackend, cayProvider } from "cay-sandbox/eve";

export const cay = new Cay();
export const text = (stream) => new Response(stream).text();
export const bytes = (string) => new TextEncoder().encode(string);
export const json = (value) => JSON.parse(JSON.stringify(value));

const leftovers = [];
after(async () => {
  for (const remove of leftovers.reverse()) await remove();
});

/** Removes a sandbox after all tests of the file; no error if it is gone by then. */
export const removeLater = (id) => leftovers.push(() => cay.attach(id).remove());

/** A directory that is gone after the tests of the file. */
export async function directory() {
  const path = await mkdtemp(join(tmpdir(), "cay-eve-"));
  leftovers.push(() => rm(path, { recursive: true, force: true }));
  return path;
}

let serial = 0;

/** A name for a session that no other test has. */
export const sessionKey = () => `eve-sbx-ses-cay-${"0123456789abcdef".repeat(4)}-${process.pid}.${Date.now()}-${serial++}`;

/** A session of the older plug-in point without a template; its sandbox is removed after the tests. */
export async function newHandle(options = {}, input = {}) {
  const backend = cayBackend(options);
  const runtimeContext = { appRoot: "/nonexistent" };
  const handle = await backend.create({ templateKey: null, sessionKey: sessionKey(), runtimeContext, ...input });
  removeLater(await sandboxOf(handle));
  return handle;
}

/** The id of the sandbox behind a handle of the older plug-in point. */
export const sandboxOf = async (handle) => (await handle.captureState()).metadata.sandbox;

export const provider = (options) => cayProvider.environment(options);

/** What eve gives to `prepare`; `log` collects lines, `authored` are names in agent/sandbox. */
export function prepareContext(files = {}, log = [], authored = ["sandbox.ts"]) {
  const tree = (targetPath) => ({
    key: `key:${targetPath}`,
    mountPath: "/eve/resources/x",
    targetPath,
    files: Object.entries(files)
      .filter(([path]) => path.startsWith(`${targetPath}/`))
      .map(([path, content]) => ({ relativePath: path.slice(targetPath.length + 1), content })),
  });
  const source = { kind: "inline", key: "key" };
  const resources = { source, workspace: tree("/workspace"), skills: tree("$HOME/.agents/skills") };
  const list = async () => authored;
  return { files: { list }, resources, log: (line) => log.push(line), sourceRevision: "0", storagePath: "/nonexistent" };
}

/** What eve gives to `start` and `resume`. */
export const sessionContext = (id = sessionKey()) => ({
  session: { id, auth: { current: null, initiator: null }, turn: { id: "turn", sequence: 0 } },
  storagePath: "/nonexistent",
});

/** A session of the newer plug-in point; its sandbox is removed after the tests. */
export async function startSession(environment, { context = sessionContext(), open, artifact } = {}) {
  const { handle, state } = await environment.start(context, open, artifact ?? { version: 1, recipe: [] });
  removeLater(state.sandbox);
  return { handle, state, context, sandbox: handle.sandbox };
}

/** The daemon behind a proxy that notes each request as "METHOD /path". */
export async function countingProxy() {
  const requests = [];
  const socketPath = process.env.CAY_HOST.slice("unix:".length);
  const server = http.createServer((request, response) => {
    requests.push(`${request.method} ${request.url.replace("/api/v1", "").replace(/\?.*/, "")}`);
    const { method, url: path, headers } = request;
    const onward = http.request({ socketPath, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  });
  const path = join(await directory(), "proxy.sock");
  await new Promise((resolve) => server.listen(path, resolve));
  leftovers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { host: `unix:${path}`, requests };
}
