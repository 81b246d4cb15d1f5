// SPDX-License-Identifier: Apache-2.0
//
// Network policies, in the form that agent frameworks use. This version enforces "deny-all" alone; a policy is checked
// all the same, so that a mistake in it is told apart from what is not there yet.

import { isIP } from "node:net";
import { Invalid, Unsupported } from "./errors.js";

export type NetworkPolicyStringMatcher = { exact: string } | { startsWith: string } | { regex: string };

export interface NetworkPolicyKeyValueMatcher {
  key?: NetworkPolicyStringMatcher;
  value?: NetworkPolicyStringMatcher;
}

/** All that is given must match. */
export interface NetworkPolicyMatcher {
  path?: NetworkPolicyStringMatcher;
  /** Any of them. */
  method?: string[];
  queryString?: NetworkPolicyKeyValueMatcher[];
  headers?: NetworkPolicyKeyValueMatcher[];
}

export type NetworkPolicyRule = { match?: NetworkPolicyMatcher } & (
  | { transform: { headers?: Record<string, string> }[] }
  | { forwardURL: string }
  | { response: { statusCode: number; headers?: Record<string, string>; body?: string; contentType?: string } }
);

/** An object denies what it does not allow. Domains: "example.com", "*.example.com" or "*". */
export type NetworkPolicy =
  | "allow-all"
  | "deny-all"
  | {
      allow?: string[] | Record<string, NetworkPolicyRule[]>;
      subnets?: { allow?: string[]; deny?: string[] };
    };

const LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?";
const DOMAIN = new RegExp(`^(?:\\*|(?:\\*\\.)?${LABEL}(?:\\.${LABEL})*)$`);
const TOKEN = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;
const HEADER_VALUE = /^[^\0\r\n]*$/;
const MAX_DOMAIN = 253;

/** Returns for "deny-all". Throws Unsupported for other policies and for other names, Invalid for what is no policy. */
export function requireDenyAll(policy: unknown): asserts policy is "deny-all" {
  checkNetworkPolicy(policy);
  if (policy !== "deny-all") throw unsupported(typeof policy === "string" ? ` '${policy}'` : "");
}

/** Throws Invalid, with the place in the policy, unless it is one; Unsupported for a name that is not known, as cayd. */
export function checkNetworkPolicy(policy: unknown): asserts policy is NetworkPolicy {
  if (policy === "allow-all" || policy === "deny-all") return;
  if (typeof policy === "string") throw unsupported(` '${policy}'`);
  const { allow, subnets } = members(policy, "network policy", ["allow", "subnets"]);
  if (allow !== undefined) checkAllow(allow);
  if (subnets !== undefined) {
    const lists = members(subnets, "subnets", ["allow", "deny"]);
    for (const name of ["allow", "deny"])
      if (lists[name] !== undefined) each(lists[name], `subnets.${name}`, checkSubnet);
  }
}

function unsupported(name: string): Unsupported {
  const why = `network${name} is not supported by this version: only deny-all (loopback works inside)`;
  return new Unsupported(why, { detail: { field: "network" } });
}

function checkAllow(allow: unknown): void {
  if (Array.isArray(allow)) return each(allow, "allow", checkDomain);
  for (const [domain, rules] of Object.entries(members(allow, "allow"))) {
    checkDomain(domain, "allow");
    each(rules, `allow['${domain}']`, checkRule);
  }
}

function checkDomain(domain: unknown, where: string): void {
  const text = string(domain, where);
  if (text.length > MAX_DOMAIN || !DOMAIN.test(text)) bad(where, `'${text}' is not a domain`);
}

function checkSubnet(subnet: unknown, where: string): void {
  const [address = "", prefix = "", more] = string(subnet, where).split("/");
  const bits = isIP(address) === 4 ? 32 : isIP(address) === 6 ? 128 : -1;
  if (more !== undefined || !/^\d{1,3}$/.test(prefix) || Number(prefix) > bits)
    bad(where, `'${String(subnet)}' is not a subnet such as 10.0.0.0/8`);
}

const ACTIONS = ["transform", "forwardURL", "response"];

function checkRule(value: unknown, where: string): void {
  const rule = members(value, where, ["match", ...ACTIONS]);
  if (ACTIONS.filter((name) => rule[name] !== undefined).length !== 1)
    bad(where, "a rule has exactly one of transform, forwardURL and response");
  if (rule["match"] !== undefined) checkMatch(rule["match"], `${where}.match`);
  if (rule["transform"] !== undefined) each(rule["transform"], `${where}.transform`, checkTransform);
  if (rule["forwardURL"] !== undefined) checkUrl(rule["forwardURL"], `${where}.forwardURL`);
  if (rule["response"] !== undefined) checkResponse(rule["response"], `${where}.response`);
}

function checkTransform(value: unknown, where: string): void {
  const { headers } = members(value, where, ["headers"]);
  if (headers !== undefined) checkHeaders(headers, `${where}.headers`);
}

function checkUrl(value: unknown, where: string): void {
  const text = string(value, where);
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== "http:" && url?.protocol !== "https:") bad(where, `'${text}' is not an address`);
}

function checkResponse(value: unknown, where: string): void {
  const { statusCode, headers, body, contentType } = members(value, where, [
    "statusCode",
    "headers",
    "body",
    "contentType",
  ]);
  if (!Number.isInteger(statusCode) || (statusCode as number) < 200 || (statusCode as number) > 599)
    bad(where, "statusCode is a number from 200 to 599");
  if (headers !== undefined) checkHeaders(headers, `${where}.headers`);
  if (body !== undefined) string(body, `${where}.body`);
  if (contentType !== undefined && !HEADER_VALUE.test(string(contentType, `${where}.contentType`)))
    bad(where, "contentType is not the value of a header");
}

function checkHeaders(value: unknown, where: string): void {
  for (const [name, text] of Object.entries(members(value, where)))
    if (!TOKEN.test(name) || !HEADER_VALUE.test(string(text, where))) bad(where, `'${name}' is not a header`);
}

function checkMatch(value: unknown, where: string): void {
  const match = members(value, where, ["path", "method", "queryString", "headers"]);
  if (match["path"] !== undefined) checkString(match["path"], `${where}.path`);
  if (match["method"] !== undefined)
    each(match["method"], `${where}.method`, (method, at) => {
      if (!TOKEN.test(string(method, at))) bad(at, `'${String(method)}' is not a method`);
    });
  for (const name of ["queryString", "headers"])
    if (match[name] !== undefined) each(match[name], `${where}.${name}`, checkKeyValue);
}

function checkKeyValue(value: unknown, where: string): void {
  const pair = members(value, where, ["key", "value"]);
  for (const name of ["key", "value"]) if (pair[name] !== undefined) checkString(pair[name], `${where}.${name}`);
}

/** Regular expressions are RE2's, which differ from ours: they are for the proxy to compile. */
function checkString(value: unknown, where: string): void {
  const matcher = members(value, where, ["exact", "startsWith", "regex"]);
  const given = Object.values(matcher).filter((one) => one !== undefined);
  if (given.length !== 1) bad(where, "exactly one of exact, startsWith and regex");
  string(given[0], where);
}

function members(value: unknown, where: string, known?: string[]): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) bad(where, "not an object");
  for (const name of Object.keys(value))
    if (known && !known.includes(name)) bad(where, `'${name}' is none of ${known.join(", ")}`);
  return value as Record<string, unknown>;
}

function each(value: unknown, where: string, check: (one: unknown, where: string) => void): void {
  if (!Array.isArray(value)) bad(where, "not an array");
  value.forEach((one, i) => check(one, `${where}[${i}]`));
}

function string(value: unknown, where: string): string {
  if (typeof value !== "string") bad(where, "not a string");
  return value;
}

function bad(where: string, why: string): never {
  throw new Invalid(`${where}: ${why}`, { detail: { field: "network" } });
}
