// SPDX-License-Identifier: Apache-2.0
//
// Sandboxes that are made on behalf of somebody who did not say everything, here and in the adapters.

import type { Cay } from "./cay.js";
import { Limit } from "./errors.js";
import type { Sandbox } from "./sandbox.js";
import type { CallOptions, CreateOptions } from "./types.js";

/**
 * Makes a sandbox from what was given and from our defaults. Those of its life hold only if nothing was said of it.
 * A default that is above the operator's ceiling is left out: then the operator's own holds.
 */
export async function createWith(
  cay: Pick<Cay, "create">,
  given: CreateOptions,
  defaults: CreateOptions,
  options: CallOptions = {},
): Promise<Sandbox> {
  const { ttl, idle, ...others } = defaults;
  const bounded = given.ttl !== undefined || given.idle !== undefined;
  const ours: CreateOptions = bounded ? others : { ...others, ttl, idle };
  for (;;) {
    try {
      return await cay.create({ ...ours, ...given }, options);
    } catch (error) {
      const field = error instanceof Limit ? (error.detail.field as keyof CreateOptions | undefined) : undefined;
      if (field === undefined || ours[field] === undefined || given[field] !== undefined) throw error;
      delete ours[field];
    }
  }
}

/** Nothing is left of a sandbox with which the work failed. The error of the work is what is told. */
export async function orRemoved<T>(box: Sandbox, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await box.remove().catch(() => {});
    throw error;
  }
}
