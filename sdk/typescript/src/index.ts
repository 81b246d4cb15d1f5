// SPDX-License-Identifier: Apache-2.0
//
// Package `cay`: sandboxes over cayd. See docs/TYPESCRIPT.md.

export { Cay, type EventOptions, type ListOptions } from "./cay.js";
export {
  CayError,
  Conflict,
  Denied,
  Gone,
  Internal,
  Invalid,
  Limit,
  NoSpace,
  NotFound,
  OutputLost,
  Stalled,
  Timeout,
  TooLarge,
  Unauthorized,
  Unavailable,
  Unsupported,
  VersionMismatch,
  type ErrorDetail,
} from "./errors.js";
export {
  Files,
  type FileData,
  type FileOptions,
  type FileStreamOptions,
  type FileWriteOptions,
  type GrepOptions,
} from "./files.js";
export { DEFAULT_HOST } from "./host.js";
export {
  checkNetworkPolicy,
  type NetworkPolicy,
  type NetworkPolicyKeyValueMatcher,
  type NetworkPolicyMatcher,
  type NetworkPolicyRule,
  type NetworkPolicyStringMatcher,
} from "./policy.js";
export { Process, type OutputOptions, type WaitOptions } from "./process.js";
export { Sandbox } from "./sandbox.js";
export type * from "./types.js";
