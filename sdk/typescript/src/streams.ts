// SPDX-License-Identifier: Apache-2.0
//
// Bodies of answers as streams. Nothing is read ahead of the consumer but what the socket holds: a consumer that is
// slow stops the sender. A stream holds up the end of the program while somebody waits for its next piece, not else.

import type { IncomingMessage } from "node:http";
import { onAbort } from "./abort.js";
import { plain } from "./frames.js";
import { lostWhileReading } from "./transport.js";

/** Whether the program goes on for the sake of this answer. At its end the socket is no longer ours. */
function hold(response: IncomingMessage, held: boolean): void {
  if (response.readableEnded || response.destroyed) return;
  if (held) response.socket.ref();
  else response.socket.unref();
}

/** The chunks of a body. An abort makes the next one reject with the signal's reason; leaving closes the connection. */
export async function* chunksOf(response: IncomingMessage, signal?: AbortSignal): AsyncGenerator<Uint8Array, void> {
  const undo = onAbort(signal, () => response.destroy());
  try {
    for await (const chunk of response) {
      signal?.throwIfAborted();
      hold(response, false);
      yield plain(chunk as Buffer);
      hold(response, true);
    }
    signal?.throwIfAborted();
  } catch (error) {
    signal?.throwIfAborted();
    throw lostWhileReading(error);
  } finally {
    undo();
    response.destroy();
  }
}

/** The body as a web stream. An abort errors it with the signal's reason, also while nobody reads. */
export function streamOf(response: IncomingMessage, signal?: AbortSignal): ReadableStream<Uint8Array> {
  const chunks: AsyncIterator<Buffer> = response[Symbol.asyncIterator]();
  let undo = () => {};
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        hold(response, false);
        undo = onAbort(signal, () => {
          controller.error(signal?.reason);
          response.destroy();
        });
      },
      async pull(controller) {
        try {
          hold(response, true);
          const { value, done } = await chunks.next();
          hold(response, false);
          if (!done) return controller.enqueue(plain(value));
          undo();
          controller.close();
        } catch (error) {
          undo();
          controller.error(lostWhileReading(error)); // nothing happens if it was aborted
        }
      },
      cancel() {
        undo();
        response.destroy();
      },
    },
    { highWaterMark: 0 },
  );
}
