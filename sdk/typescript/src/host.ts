// SPDX-License-Identifier: Apache-2.0
//
// Where the daemon is: "unix:/path", "http://host[:port]" or "https://host[:port]". No I/O.

import { isIPv4 } from "node:net";
import { Invalid } from "./errors.js";

export const DEFAULT_HOST = "unix:/run/cay/cayd.sock";
/** That of cayd, as for the command line: not the one of the scheme. */
const DEFAULT_PORT = 7733;
/** URL leaves out a port that is the scheme's own; here it says something. */
const PORT = /^\w+:\/\/[^/]*:(\d+)(?:\/|$)/;

/** What node:http needs to know, and a text for messages. */
export interface Address {
  readonly text: string;
  readonly tls: boolean;
  /** What is sent there in clear leaves this machine. */
  readonly exposed: boolean;
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
    return { text, tls: false, exposed: false, connect: { socketPath }, prefix: "", authority: "localhost" };
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (!url || (url.protocol !== "http:" && url.protocol !== "https:") || !url.hostname)
    throw new Invalid(`the host '${text}' is not of the form unix:/path, http://host:port or https://host:port`);
  if (url.username || url.password || url.search || url.hash)
    throw new Invalid("the host has parts that mean nothing here; a token is given as 'token'");
  const tls = url.protocol === "https:";
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  const port = Number(PORT.exec(text)?.[1] ?? DEFAULT_PORT);
  const prefix = url.pathname.replace(/\/+$/, "");
  const exposed = !tls && !isLoopback(host);
  return { text, tls, exposed, connect: { host, port }, prefix, authority: `${url.hostname}:${port}` };
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}
