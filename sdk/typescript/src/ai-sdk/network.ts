// SPDX-License-Identifier: Apache-2.0
//
// What a harness asks of the network, in cay's form and checked. This version of cay has one policy, deny-all, and
// neither ports nor request transformations; what is wrong in itself is told apart from what is not there yet.

import { Invalid } from "../errors.js";
import { checkNetworkPolicy, type NetworkPolicy } from "../policy.js";
import type { HarnessNetworkPolicy, RequestTransformation } from "./types.js";

/** cay's form of a harness's policy; throws Invalid if it is none. Another mode is for the caller to refuse by name. */
export function toNetworkPolicy(policy: HarnessNetworkPolicy): NetworkPolicy | (string & {}) {
  const given = object(policy, "the network policy");
  const converted = given["mode"] === "custom" ? fromCustom(given) : given["mode"];
  if (typeof converted === "string") return converted;
  checkNetworkPolicy(converted);
  return converted;
}

function fromCustom({ allowedHosts = [], allowedCIDRs = [], deniedCIDRs = [] }: Record<string, unknown>): unknown {
  if (list(allowedHosts, "allowedHosts").length + list(allowedCIDRs, "allowedCIDRs").length === 0)
    throw new Invalid("a custom network policy needs allowedHosts or allowedCIDRs: to deny alone is deny-all");
  return { allow: allowedHosts, subnets: { allow: allowedCIDRs, deny: deniedCIDRs } };
}

/** Throws Invalid unless all of them are request transformations. No message repeats the value of a header. */
export function checkTransformations(transformations: readonly RequestTransformation[]): void {
  for (const each of list(transformations, "the request transformations")) {
    const { match, transform } = object(each, "a request transformation");
    const { host, ...rest } = object(match, "'match' of a request transformation");
    if (typeof host !== "string") throw new Invalid("a request transformation needs a host");
    object(object(transform, "'transform' of a request transformation")["headers"], "its 'headers'");
    checkNetworkPolicy({ allow: { [host]: [{ match: rest, transform: [transform] }] } });
  }
}

/** Throws Invalid unless all of them are TCP ports. */
export function checkPorts(ports: readonly number[]): void {
  for (const port of list(ports, "the ports"))
    if (!Number.isInteger(port) || (port as number) < 1 || (port as number) > 65535)
      throw new Invalid(`'${String(port)}' is not a port: 1 to 65535`);
}

function list(value: unknown, name: string): unknown[] {
  if (!Array.isArray(value)) throw new Invalid(`${name} has to be an array`);
  return value;
}

function object(value: unknown, name: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null) throw new Invalid(`${name} has to be an object`);
  return value as Record<string, unknown>;
}
