// SPDX-License-Identifier: Apache-2.0
//
// Errors: one class for each code of the API. A program looks at the class or at `code`, people read `message`.

/** Beside the message: the operator's rule that refused, the field at fault, the system's error number. */
export interface ErrorDetail {
  rule?: string;
  field?: string;
  errno?: number;
  /** Of OutputLost: the offset of the first byte that is gone, and that of the next one which is there. */
  from?: number;
  to?: number;
}

interface ErrorInit {
  status?: number;
  detail?: ErrorDetail;
  cause?: unknown;
}

/** Base of all errors of this package. */
export class CayError extends Error {
  /** One word of the API, such as "not_found". */
  readonly code: string;
  /** The HTTP status that goes with the code, also where no request was made. */
  readonly status: number;
  readonly detail: ErrorDetail;
  /** Of files.list, find and grep: what was found in spite of it, as they would have returned it. */
  declare readonly found?: readonly unknown[];

  constructor(code: string, message: string, init: ErrorInit = {}) {
    super(message, init.cause === undefined ? undefined : { cause: init.cause });
    this.code = code;
    this.status = init.status ?? 500;
    this.detail = init.detail ?? {};
  }
}

type ErrorClass = new (message: string, init?: ErrorInit) => CayError;

/** Written out, since a bundler may shorten that of the class; on the prototype, where a stack trace finds it. */
function setName(of: { prototype: Error }, name: string): void {
  Object.defineProperty(of.prototype, "name", { value: name, configurable: true, writable: true });
}

setName(CayError, "CayError");

function define(name: string, code: string, status: number) {
  const made = class extends CayError {
    constructor(message: string, init: ErrorInit = {}) {
      super(code, message, { status, ...init });
    }
  };
  setName(made, name);
  return made;
}

/** The request itself is wrong. */
export class Invalid extends define("Invalid", "invalid", 400) {}
/** No token, or one that is not known or has expired. */
export class Unauthorized extends define("Unauthorized", "unauthorized", 401) {}
/** Not permitted: by the token, by the operator's rules, or by the permissions of a file. */
export class Denied extends define("Denied", "denied", 403) {}
/** No such sandbox, process, file or image. */
export class NotFound extends define("NotFound", "not_found", 404) {}
/** The time given ran out. */
export class Timeout extends define("Timeout", "timeout", 408) {}
/** Exists already, with another content or in another state. */
export class Conflict extends define("Conflict", "conflict", 409) {}
/** The sandbox has ended. */
export class Gone extends define("Gone", "gone", 410) {}
/** Larger than a stated maximum. */
export class TooLarge extends define("TooLarge", "too_large", 413) {}
/** A limit on number or rate is reached. */
export class Limit extends define("Limit", "limit", 429) {}
/** A fault in cay. */
export class Internal extends define("Internal", "internal", 500) {}
/** This host, image or version cannot do it. */
export class Unsupported extends define("Unsupported", "unsupported", 501) {}
/** Not now, or the daemon cannot be reached (`cause` says why); trying again may help. */
export class Unavailable extends define("Unavailable", "unavailable", 503) {}
/** Out of disk space, inodes or memory. */
export class NoSpace extends define("NoSpace", "no_space", 507) {}
/** Bytes of output that were asked for are gone: from `detail.from` to before `detail.to`. */
export class OutputLost extends define("OutputLost", "lost", 410) {}
/** A reader took nothing for too long and was cut off. The process goes on; so may another reader. */
export class Stalled extends define("Stalled", "stalled", 408) {}
/** The keeper of the sandbox is of another version of cay. The sandbox can still be stopped and removed. */
export class VersionMismatch extends define("VersionMismatch", "version", 409) {}

const CLASSES: Readonly<Record<string, ErrorClass>> = {
  invalid: Invalid,
  unauthorized: Unauthorized,
  denied: Denied,
  not_found: NotFound,
  timeout: Timeout,
  conflict: Conflict,
  gone: Gone,
  too_large: TooLarge,
  limit: Limit,
  internal: Internal,
  unsupported: Unsupported,
  unavailable: Unavailable,
  no_space: NoSpace,
  lost: OutputLost,
  stalled: Stalled,
  version: VersionMismatch,
};

/** Answers without our JSON come from the HTTP layer or from a proxy in between. */
const BY_STATUS: Readonly<Record<number, ErrorClass>> = {
  400: Invalid,
  401: Unauthorized,
  403: Denied,
  404: NotFound,
  405: Invalid,
  408: Timeout,
  413: TooLarge,
  414: TooLarge,
  429: Limit,
  431: TooLarge,
  501: Unsupported,
  502: Unavailable,
  503: Unavailable,
  504: Unavailable,
};

export interface ErrorBody {
  code: string;
  message: string;
  detail?: ErrorDetail;
}

/** For an answer that is a success and yet cannot be used: mostly that of another server. */
export function unexpected(what: string, cause?: unknown): Internal {
  return new Internal(`the server's answer is not what this call expects: ${what}`, { cause });
}

/** Whether the daemon waited in vain for the keeper of the sandbox (Linux's ETIMEDOUT): it will the next time. */
export function isHung(error: unknown): boolean {
  return error instanceof Unavailable && error.detail.errno === 110;
}

/** The error that the member `error` of an answer or of a stream's last event tells of. */
export function errorFromBody(given: unknown, status?: number): CayError {
  const body = given as ErrorBody | null | undefined;
  if (typeof body?.code !== "string" || typeof body.message !== "string") return unexpected("'error' is none of cay's");
  const known = CLASSES[body.code];
  const init: ErrorInit = { ...(status && { status }), ...(body.detail && { detail: body.detail }) };
  return known ? new known(body.message, init) : new CayError(body.code, body.message, init);
}

/** The error of an answer that is not 2xx. */
export function errorFromAnswer(status: number, text: string): CayError {
  try {
    const body = (JSON.parse(text) as { error?: ErrorBody }).error;
    if (typeof body?.code === "string" && typeof body.message === "string") return errorFromBody(body, status);
  } catch {
    // not ours: told by its status
  }
  return new (BY_STATUS[status] ?? Internal)(`the server answered with status ${status}`, { status });
}
