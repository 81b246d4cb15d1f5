// SPDX-License-Identifier: Apache-2.0
//
// Where the daemon is: "unix:/path", "http://host:port" or "https://host:port". No I/O.

import { Invalid } from "./errors.js";

export const DEFAULT_HOST = "unix:/run/cay/cayd.sock";

/** What node:http needs to know, and a text for messages. */
export interface Address {
  readonly text: string;
  readonly tls: boolean;
  readonly connect: { socketPath: string } | { host: string; port: number };
  /** Put before every path: for a daemon behind a proxy that serves it below one. */
  readonly prefix: string;
  /** Value of the header Host. */
  readonly authority: string;
}

export function parseHost(text: string): Address {
  if (text.startsWith("unix:")) {
    const socketPath = text.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
    if (!socketPath.startsWith("/")) throw new Invalid(`the host '${text}' has no absolute path`);
    return { text, tls: false, connect: { socketPath }, prefix: "", authority: "localhost" };
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (!url || (url.protocol !== "http:" && url.protocol !== "https:") || !url.hostname)
    throw new Invalid(`the host '${text}' is not of the form unix:/path, http://host:port or https://host:port`);
  if (url.username || url.password || url.search || url.hash)
    throw new Invalid("the host has parts that mean nothing here; a token is given as 'token'");
  const tls = url.protocol === "https:";
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  const port = url.port ? Number(url.port) : tls ? 443 : 80;
  return { text, tls, connect: { host, port }, prefix: url.pathname.replace(/\/+$/, ""), authority: url.host };
}
