// SPDX-License-Identifier: Apache-2.0
//
// Requests to the daemon over node:http(s) with connections that are kept alive, and the rules of repetition.
//
// A request is repeated for some seconds when the connection fails, since a daemon that is being restarted is back
// within that time: always if nothing of it was sent, else only if the call says `again`, because it may have been
// carried out. What cannot be repeated fails with Unavailable.

import http from "node:http";
import https from "node:https";
import type { Socket } from "node:net";
import { onAbort, sleep } from "./abort.js";
import { CayError, errorFromAnswer, isHung, TooLarge, unexpected, Unavailable } from "./errors.js";
import { joined } from "./frames.js";
import type { Address } from "./host.js";
import { FOLLOW_MS, Patience, PATIENCE_MS } from "./patience.js";
import type { Raw } from "./wire.js";

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Below /api/v1, each part encoded. */
  path: string;
  query?: Query;
  /** The body as a value, or as a function that gives it for each attempt. */
  json?: unknown;
  body?: Uint8Array | AsyncIterable<Uint8Array>;
  headers?: http.OutgoingHttpHeaders;
  signal?: AbortSignal | undefined;
  /** Made only if the transport was not closed since. Default: since the call began. */
  epoch?: number;
  /** May be repeated although it was sent. */
  again?: boolean;
  /** For one who follows a command or waits for it: a daemon may be away for longer, and one answer takes any time. */
  follows?: boolean;
  /** The body has its effect as it comes, and not when all of it is there. */
  piecewise?: boolean;
  /** Set by the transport: an attempt got so far that it may have been carried out. */
  sent?: boolean;
}

/** The daemon closes a connection that is idle for 120 s. Ours go first, so that none is used as it closes. */
const IDLE_MS = 60_000;
const IDLE_CONNECTIONS = 32;
/** When TCP begins to ask whether a silent server is still there: a wait may take hours. */
const PROBE_MS = 30_000;
/** How long a daemon may be away that nobody has seen yet. */
const FIRST_PATIENCE_MS = 500;
/** A result is in memory, all of it: of JSON this much. Of an error the beginning is enough. */
const MAX_JSON = 256 << 20;
const MAX_ERROR = 64 << 10;
/** Of what a dying or starting daemon gives; EAGAIN is a unix socket whose queue is full. */
const PASSING = new Set(["ECONNREFUSED", "ECONNRESET", "ENOENT", "EPIPE", "EAGAIN", "ECONNABORTED"]);

/** A connection that failed, before it is decided whether to try again. */
class Lost extends Error {
  constructor(
    override readonly cause: NodeJS.ErrnoException,
    readonly sent: boolean,
  ) {
    super(cause.message);
  }

  get passing(): boolean {
    return PASSING.has(this.cause.code ?? "");
  }
}

/** What reading an open answer failed with, as the caller is to see it. */
export function lostWhileReading(error: unknown): Unavailable {
  const why = error instanceof Error ? error.message : String(error);
  return new Unavailable(`lost the connection to cayd: ${why}`, { cause: error });
}

export class Transport {
  readonly address: Address;
  #agent: http.Agent;
  #headers: http.OutgoingHttpHeaders;
  #reached = false;
  #closed = 0;

  constructor(address: Address, token: string | undefined, ca: string | Uint8Array | undefined) {
    this.address = address;
    const options = {
      keepAlive: true,
      keepAliveMsecs: PROBE_MS,
      timeout: IDLE_MS,
      maxFreeSockets: IDLE_CONNECTIONS,
    };
    this.#agent = address.tls
      ? new https.Agent({ ...options, ...(ca && { ca: Buffer.from(ca) }) })
      : new http.Agent(options);
    this.#headers = { host: address.authority, ...(token && { authorization: `Bearer ${token}` }) };
  }

  /** How often it was closed, for what consists of several calls. */
  get epoch(): number {
    return this.#closed;
  }

  /** Closes all connections: calls under way fail, later ones open connections anew. */
  close(): void {
    this.#closed++;
    this.#agent.destroy();
  }

  /** The object of JSON that the answer is. */
  async json(call: Call): Promise<Raw> {
    return parseAnswer((await this.answer(call)).text);
  }

  /** For calls whose answer says nothing but that it is done. */
  async order(call: Call): Promise<void> {
    await this.answer(call);
  }

  /** Status and body of an answer that is read at once. */
  answer(call: Call): Promise<{ status: number; text: string }> {
    return this.#repeat(call, async (response) => ({
      status: response.statusCode ?? 0,
      text: await readText(response, MAX_JSON),
    }));
  }

  bytes(call: Call): Promise<Uint8Array> {
    return this.#repeat(call, readAll);
  }

  /** The answer with its body unread. From here on its user deals with the connection and the signal. */
  open(call: Call): Promise<http.IncomingMessage> {
    return this.#repeat(call, async (response) => response);
  }

  async #repeat<T>(call: Call, read: (response: http.IncomingMessage) => Promise<T>): Promise<T> {
    const { epoch = this.#closed } = call;
    const known = call.follows ? FOLLOW_MS : PATIENCE_MS;
    const patience = new Patience(() => (this.#reached ? known : FIRST_PATIENCE_MS));
    for (;;) {
      call.signal?.throwIfAborted();
      if (epoch !== this.#closed) throw new Unavailable("the client was closed");
      let pause: number | undefined;
      try {
        if (call.follows) patience.connected();
        return await this.#once(call, read);
      } catch (error) {
        if (error instanceof Lost && error.sent) call.sent = true;
        else if (error instanceof Lost) patience.ended();
        if (mayRepeat(call, error)) pause = patience.nextPause();
        if (pause === undefined) throw this.#final(error);
      }
      await sleep(pause, call.signal);
    }
  }

  #final(error: unknown): unknown {
    if (!(error instanceof Lost)) return error;
    const what = error.sent ? "lost the connection to" : "cannot reach";
    return new Unavailable(`${what} cayd at ${this.address.text}: ${error.message}`, { cause: error.cause });
  }

  /** One attempt. Rejects with the signal's reason, with Lost, or with the error of the answer. */
  #once<T>(call: Call, read: (response: http.IncomingMessage) => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const request = this.#request(call);
      const undo = onAbort(call.signal, () => {
        if (hasConnection(request)) call.sent = true;
        reject(call.signal?.reason);
        request.destroy();
      });
      const fail = (error: unknown) => {
        undo();
        reject(error);
      };
      request.on("error", (error: NodeJS.ErrnoException) => fail(new Lost(error, wasSent(call, request, error))));
      request.on("response", (response) => {
        this.#reached = true;
        response.on("error", () => {}); // told to whoever reads, and to nobody when nobody does
        const done = isGood(response) ? read(response) : readError(response);
        done.finally(() => stopSending(request, call)).then(
          (value) => {
            undo();
            resolve(value);
          },
          (error) => fail(error instanceof CayError ? error : new Lost(error, true)),
        );
      });
      sendBody(request, call, fail);
    });
  }

  #request(call: Call): http.ClientRequest {
    const headers: http.OutgoingHttpHeaders = { ...this.#headers, ...call.headers };
    if (call.json !== undefined) headers["content-type"] = "application/json";
    const path = `${this.address.prefix}/api/v1${call.path}${encodeQuery(call.query)}`;
    const options = { ...this.address.connect, agent: this.#agent, method: call.method, path, headers };
    return this.address.tls ? https.request(options) : http.request(options);
  }
}

/** Whoever is not the daemon answers with 200, too. */
export function parseAnswer(text: string): Raw {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw unexpected(`not JSON: ${JSON.stringify(text.slice(0, 80))}`, cause);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Raw;
  throw unexpected(`not an object: ${text.slice(0, 80)}`);
}

function isGood(response: http.IncomingMessage): boolean {
  const status = response.statusCode ?? 0;
  return status >= 200 && status < 300;
}

async function readError(response: http.IncomingMessage): Promise<never> {
  throw errorFromAnswer(response.statusCode ?? 0, await readText(response, MAX_ERROR, true));
}

async function readAll(response: http.IncomingMessage): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  return joined(chunks);
}

/** `part`: of what is longer than `most` bytes the beginning; else that is TooLarge. */
async function readText(response: http.IncomingMessage, most: number, part = false): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    size += chunk.length;
    if (size > most && part) break;
    if (size > most) throw new TooLarge(`the answer has more than ${most} bytes; ask for less`);
  }
  return Buffer.concat(chunks).toString();
}

/**
 * Whether it may have been carried out, or cannot be sent a second time. EPIPE says that the other side had closed a
 * connection that was kept alive before all of the request was written.
 */
function wasSent({ body, piecewise }: Call, request: http.ClientRequest, error: NodeJS.ErrnoException): boolean {
  if (!hasConnection(request) || error.syscall === "connect") return false;
  const incomplete = request.reusedSocket && error.code === "EPIPE";
  return !incomplete || piecewise === true || (body !== undefined && !(body instanceof Uint8Array));
}

function hasConnection(request: http.ClientRequest): boolean {
  const socket = request.socket as (Socket & { secureConnecting?: boolean }) | null; // of TLS: before the handshake
  return Boolean(socket && !socket.connecting && !socket.secureConnecting);
}

function mayRepeat(call: Call, error: unknown): boolean {
  if (error instanceof Lost) return error.passing && (call.again === true || !error.sent);
  // An answer all the same: the daemon is about to end, or the sandbox is being removed.
  return call.again === true && error instanceof Unavailable && !isHung(error);
}

function encodeQuery(query: Query | undefined): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {}))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) params.append(name, String(one));
  const text = params.toString();
  return text && `?${text}`;
}

/** The answer came before all of the body was sent: the rest is of no use to anybody. */
function stopSending(request: http.ClientRequest, call: Call): void {
  if (call.body && !request.writableFinished) request.destroy();
}

function sendBody(request: http.ClientRequest, { body, json }: Call, fail: (error: unknown) => void): void {
  if (json !== undefined) request.end(JSON.stringify(typeof json === "function" ? json() : json));
  else if (!body || body instanceof Uint8Array) request.end(body);
  else {
    // Nothing is taken from the source before there is a connection: until then the request can be repeated.
    const begin = () =>
      pump(body, request).catch((error: unknown) => {
        fail(error);
        request.destroy();
      });
    request.once("socket", (socket) => (socket.connecting ? socket.once("connect", begin) : begin()));
  }
}

/** A source that is a stream is cancelled at once when the request is over, also while it is waited for. */
async function pump(source: AsyncIterable<Uint8Array>, request: http.ClientRequest): Promise<void> {
  const stop = new AbortController();
  request.once("close", () => stop.abort());
  for await (const chunk of source instanceof ReadableStream ? piecesOf(source, stop.signal) : source) {
    if (request.destroyed) return;
    if (!request.write(chunk)) await drained(request);
  }
  if (!request.destroyed) request.end();
}

async function* piecesOf(stream: ReadableStream<Uint8Array>, signal: AbortSignal): AsyncGenerator<Uint8Array, void> {
  const reader = stream.getReader();
  const cancel = () => void reader.cancel(signal.reason).catch(() => {});
  const undo = onAbort(signal, cancel);
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    undo();
    cancel(); // nothing, if it has ended
  }
}

function drained(request: http.ClientRequest): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      request.off("drain", done);
      request.off("close", done);
      resolve();
    };
    request.on("drain", done);
    request.on("close", done);
  });
}
