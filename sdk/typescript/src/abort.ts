// SPDX-License-Identifier: Apache-2.0
//
// What AbortSignal lacks: any number of callbacks behind one listener, so that a signal which governs a hundred
// processes does not warn of a leak, and callbacks that are gone as soon as they are not needed.

const callbacks = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls `callback` once when the signal aborts, or at once if it has. Returns the undo. */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (signal?.aborted) callback();
  if (!signal || signal.aborted) return () => {};
  const set = callbacks.get(signal) ?? listen(signal);
  set.add(callback);
  return () => {
    set.delete(callback);
    if (set.size === 0) unlisten.get(set)?.();
  };
}

const unlisten = new WeakMap<Set<() => void>, () => void>();

function listen(signal: AbortSignal): Set<() => void> {
  const set = new Set<() => void>();
  const fire = () => {
    callbacks.delete(signal);
    for (const callback of [...set]) callback();
  };
  callbacks.set(signal, set);
  unlisten.set(set, () => {
    if (callbacks.get(signal) === set) callbacks.delete(signal); // an undo may come twice, and another set by then
    signal.removeEventListener("abort", fire);
  });
  signal.addEventListener("abort", fire, { once: true });
  return set;
}

/** A signal that aborts with the first of two, with the same reason; `done` lets go of both. */
export function eitherSignal(a?: AbortSignal, b?: AbortSignal): { signal: AbortSignal | undefined; done: () => void } {
  if (!a || !b) return { signal: a ?? b, done: () => {} };
  const controller = new AbortController();
  const undo = [a, b].map((one) => onAbort(one, () => controller.abort(one.reason)));
  return { signal: controller.signal, done: () => undo.forEach((each) => each()) };
}

/** Rejects with the signal's reason as soon as it aborts; the promise itself goes on. */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const undo = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(undo);
  });
}

/** Resolves after so many milliseconds; rejects with the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const undo = onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal?.reason);
    });
    const timer = setTimeout(() => {
      undo();
      resolve();
    }, ms);
  });
}

/** Waits for a clean-up to end in whatever way, but not for ever: it goes on by itself. */
export function settled(promise: Promise<unknown>, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const done = () => {
      clearTimeout(timer);
      resolve();
    };
    promise.then(done, done);
  });
}
