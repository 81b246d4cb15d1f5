// SPDX-License-Identifier: Apache-2.0
//
// The client: where the daemon is, and what is not about one sandbox.

import { randomBytes } from "node:crypto";
import { env } from "node:process";
import { orAborted, settled, sleep } from "./abort.js";
import { findCa, findToken } from "./credentials.js";
import { createWith, orRemoved } from "./defaults.js";
import { errorFromBody, Invalid, isHung, Unavailable, Unsupported } from "./errors.js";
import { LineParser } from "./frames.js";
import { DEFAULT_HOST, parseHost } from "./host.js";
import { Patience, PATIENCE_MS } from "./patience.js";
import { requireDenyAll } from "./policy.js";
import { Sandbox } from "./sandbox.js";
import { chunksOf } from "./streams.js";
import { parseAnswer, Transport, type Call } from "./transport.js";
import type { CallOptions, Capabilities, CayOptions, CreateOptions, Event, SandboxInfo, Version } from "./types.js";
import { eventOf, fromWire, member, sandboxInfo, specToWire, type Raw } from "./wire.js";

/** So that what a killed program leaves behind does not stay for ever; with a process running, it is never idle. */
const BOUNDS = { idle: 3600, ttl: 86_400 };
const CLEAN_UP_MS = 5000;

export interface ListOptions extends CallOptions {
  /** All must match; a value of "" matches the empty one only. */
  labels?: Record<string, string>;
  /** Default "live": all that have not ended. */
  state?: SandboxInfo["state"] | "live" | "all";
}

export interface EventOptions extends CallOptions {
  /** Number of the first event wanted; default 0: all that are remembered. */
  since?: number;
  /** Goes on with what happens; default true. */
  follow?: boolean;
}

export class Cay {
  /** Where the daemon is, as it was given. */
  readonly host: string;
  readonly #transport: Transport;

  /** Connects to nothing yet. */
  constructor({ host, token, ca }: CayOptions = {}) {
    this.host = host ?? (env["CAY_HOST"] || DEFAULT_HOST);
    const address = parseHost(this.host);
    this.#transport = new Transport(address, findToken(token, address), findCa(ca, address));
  }

  /**
   * Makes a sandbox, ready to run commands. When it is aborted or the connection fails on the way, what was made is
   * removed again before this rejects.
   */
  async create(options: CreateOptions = {}, { signal }: CallOptions = {}): Promise<Sandbox> {
    if (options.secrets && Object.keys(options.secrets).length > 0)
      throw new Unsupported("this version has no secrets", { detail: { field: "secrets" } });
    if (options.network !== undefined) requireDenyAll(options.network);
    if (options.id === "") throw new Invalid("the id of a sandbox is not empty", { detail: { field: "id" } });
    signal?.throwIfAborted();
    const id = options.id ?? randomBytes(6).toString("hex");
    const json = specToWire({ ...options, id });
    // Without the signal: what was made can be removed only when its making is over.
    const call: Call = { method: "POST", path: "/sandboxes", json, again: true };
    const made = this.#transport.answer(call);
    try {
      const { text } = await orAborted(made, signal);
      return new Sandbox(this.#transport, id, sandboxInfo(parseAnswer(text)));
    } catch (error) {
      if (signal?.aborted || (error instanceof Unavailable && call.sent))
        await settled(this.#undoCreate(id, made, options.id !== undefined), CLEAN_UP_MS);
      throw error;
    }
  }

  /** A name that was given may be that of a sandbox which was there before: it is removed only if we made it. */
  async #undoCreate(id: string, made: Promise<{ status: number }>, given: boolean): Promise<void> {
    const status = await made.then(
      (answer) => answer.status,
      () => undefined,
    );
    if (!given || status === 201) await this.attach(id).remove();
  }

  /**
   * Makes a sandbox, calls `use` with it, and removes it whatever happens. Without `ttl` and `idle` it ends by itself
   * after an idle hour and after a day, or as soon as the operator wants it, for when this program is killed.
   */
  async withSandbox<T>(
    options: CreateOptions,
    use: (sandbox: Sandbox) => Promise<T> | T,
    { signal }: CallOptions = {},
  ): Promise<T> {
    const sandbox = await createWith(this, options, BOUNDS, { signal });
    const result = await orRemoved(sandbox, async () => use(sandbox));
    await sandbox.remove();
    return result;
  }

  /** One that is there, with its info; NotFound if there is none. */
  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    const sandbox = this.attach(id);
    await sandbox.refresh(options);
    return sandbox;
  }

  /** One by its id; no request is made, and it need not exist. */
  attach(id: string): Sandbox {
    return new Sandbox(this.#transport, id);
  }

  /** All of them, in the order of their creation. */
  async list({ labels = {}, state, signal }: ListOptions = {}): Promise<SandboxInfo[]> {
    const found: SandboxInfo[] = [];
    const label = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
    for (let cursor: string | undefined; ; ) {
      const query = { label, state, cursor };
      const page = await this.#transport.json({
        method: "GET",
        path: "/sandboxes",
        query,
        signal,
        again: true,
      });
      found.push(...member<Raw[]>(page, "sandboxes", "array").map(sandboxInfo));
      if (page["next_cursor"] === null) return found;
      cursor = member(page, "next_cursor", "string");
    }
  }

  /** What happens to sandboxes, in order. A connection that is lost is opened again at the next event. */
  async *events({ since = 0, follow = true, signal }: EventOptions = {}): AsyncGenerator<Event, void> {
    const { epoch } = this.#transport;
    const patience = new Patience(() => PATIENCE_MS);
    let from = since;
    for (;;) {
      let failure: unknown;
      const call = { method: "GET", path: "/events", query: { from, follow }, epoch, signal, again: true } as const;
      const response = await this.#transport.open(call);
      const parser = new LineParser();
      patience.connected();
      try {
        for await (const chunk of chunksOf(response, signal)) {
          for (const line of parser.push(chunk) as Raw[]) {
            if (member(line, "type", "string") === "error") throw errorFromBody(line["error"]);
            const event = eventOf(line);
            from = event.seq + 1;
            patience.progress();
            yield event;
          }
        }
        if (!follow) return;
        patience.ended(); // which a daemon that lives does not do without a word
        failure = new Unavailable("the stream of events was cut off again and again");
      } catch (error) {
        if (!(error instanceof Unavailable) || isHung(error)) throw error;
        failure = error;
      }
      const pause = patience.nextPause();
      if (pause === undefined) throw failure;
      await sleep(pause, signal);
    }
  }

  async version({ signal }: CallOptions = {}): Promise<Version> {
    return fromWire(await this.#transport.json({ method: "GET", path: "/version", signal, again: true }));
  }

  /** What this host and this version can do. */
  async capabilities({ signal }: CallOptions = {}): Promise<Capabilities> {
    return fromWire(await this.#transport.json({ method: "GET", path: "/capabilities", signal, again: true }));
  }

  /** Closes all connections; calls under way fail. Not needed before the program ends: idle ones do not hold it up. */
  close(): void {
    this.#transport.close();
  }
}
