// SPDX-License-Identifier: Apache-2.0
//
// Who we are to the daemon, and whom we take for it. The rules are those of the command line: a token is in the
// environment or in a file, and goes in clear only to this very machine, unless CAY_INSECURE=1 says that all who can
// listen may have it.

import { readFileSync } from "node:fs";
import { env } from "node:process";
import { Denied, Invalid } from "./errors.js";
import type { Address } from "./host.js";

const ACCEPT = "CAY_INSECURE=1 if all who can listen there may have it";

/** The token given, else that of the environment, fit for the address; undefined if there is none. */
export function findToken(given: string | undefined, address: Address): string | undefined {
  const token = given ?? (env["CAY_TOKEN"] || tokenFromFile(env["CAY_TOKEN_FILE"]));
  if (!token) return undefined;
  if (!/^[!-~]+$/.test(token)) throw new Invalid("the token has a character that tokens do not have");
  if (address.exposed && env["CAY_INSECURE"] !== "1")
    throw new Denied(`the token would go to ${address.text} in clear; use https://, or ${ACCEPT}`);
  return token;
}

function tokenFromFile(file: string | undefined): string | undefined {
  return file && readOrInvalid(file, "the token file").toString("latin1").replace(/[\r\n]+$/, "");
}

/** The certificates to trust that are given, else those of the environment; undefined: the system's. */
export function findCa(given: string | Uint8Array | undefined, { tls }: Address): string | Uint8Array | undefined {
  const file = env["CAY_CACERT"];
  return given ?? (tls && file ? readOrInvalid(file, "the certificates") : undefined);
}

function readOrInvalid(file: string, what: string): Buffer {
  try {
    return readFileSync(file);
  } catch (cause) {
    throw new Invalid(`cannot read ${what} ${file}: ${(cause as Error).message}`, { cause });
  }
}
