# SPDX-License-Identifier: Apache-2.0
"""Network policies, in the form that agent frameworks use.

    "allow-all" | "deny-all" | {"allow": [DOMAIN] | {DOMAIN: [RULE]}, "subnets": {"allow": [CIDR], "deny": [CIDR]}}
    DOMAIN  "example.com", "*.example.com" or "*"
    RULE    {"match": MATCH} and one of {"transform": [{"headers": {..}}]}, {"forwardURL": URL},
            {"response": {"statusCode": 200..599, "headers": {..}, "body": "", "contentType": ""}}
    MATCH   {"path": TEXT, "method": [..], "queryString": [PAIR], "headers": [PAIR]}
    PAIR    {"key": TEXT, "value": TEXT}
    TEXT    one of {"exact": ""}, {"startsWith": ""}, {"regex": ""}

This version enforces "deny-all" alone; a policy is checked all the same, so that a mistake in it is told apart from
what is not there yet. The TypeScript SDK has the same rules (sdk/typescript/src/policy.ts).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ._errors import Invalid, Unsupported

NetworkPolicy = str | Mapping[str, Any]

_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN = re.compile(rf"\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[^\0\r\n]*")
_MAX_DOMAIN = 253
_ACTIONS = ("transform", "forwardURL", "response")


def require_deny_all(policy: object) -> None:
    """Returns for "deny-all". Unsupported: a good policy that this version cannot enforce. Invalid: a bad one."""
    check_policy(policy)
    if policy != "deny-all":
        _unsupported(policy)


def check_policy(policy: object) -> None:
    """Invalid, with the place in the policy, unless it is one. Unsupported: a name that is not known, as cayd says."""
    if policy in ("allow-all", "deny-all"):
        return
    if isinstance(policy, str):
        _unsupported(policy)
    given = _members(policy, "network policy", ("allow", "subnets"))
    if "allow" in given:
        _check_allow(given["allow"])
    if "subnets" in given:
        lists = _members(given["subnets"], "subnets", ("allow", "deny"))
        for name, subnets in lists.items():
            _each(subnets, f"subnets.{name}", _check_subnet)


def _check_allow(allow: object) -> None:
    if isinstance(allow, (list, tuple)):
        return _each(allow, "allow", _check_domain)
    for domain, rules in _members(allow, "allow").items():
        _check_domain(domain, "allow")
        _each(rules, f"allow['{domain}']", _check_rule)


def _check_domain(value: object, where: str) -> None:
    text = _text(value, where)
    if len(text) > _MAX_DOMAIN or not _DOMAIN.fullmatch(text):
        _bad(where, f"'{text}' is not a domain")


def _check_subnet(value: object, where: str) -> None:
    text = _text(value, where)
    try:
        if not re.fullmatch(r"[^/]+/\d{1,3}", text):
            raise ValueError
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        _bad(where, f"'{text}' is not a subnet such as 10.0.0.0/8")


def _check_rule(value: object, where: str) -> None:
    rule = _members(value, where, ("match", *_ACTIONS))
    if sum(name in rule for name in _ACTIONS) != 1:
        _bad(where, "a rule has exactly one of transform, forwardURL and response")
    if "match" in rule:
        _check_match(rule["match"], f"{where}.match")
    if "transform" in rule:
        _each(rule["transform"], f"{where}.transform", _check_transform)
    if "forwardURL" in rule:
        _check_url(rule["forwardURL"], f"{where}.forwardURL")
    if "response" in rule:
        _check_response(rule["response"], f"{where}.response")


def _check_transform(value: object, where: str) -> None:
    transform = _members(value, where, ("headers",))
    if "headers" in transform:
        _check_headers(transform["headers"], f"{where}.headers")


def _check_url(value: object, where: str) -> None:
    text = _text(value, where)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        _bad(where, f"'{text}' is not an address")


def _check_response(value: object, where: str) -> None:
    response = _members(value, where, ("statusCode", "headers", "body", "contentType"))
    status = response.get("statusCode")
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        _bad(where, "statusCode is a number from 200 to 599")
    if "headers" in response:
        _check_headers(response["headers"], f"{where}.headers")
    if "body" in response:
        _text(response["body"], f"{where}.body")
    if not _HEADER_VALUE.fullmatch(_text(response.get("contentType", ""), f"{where}.contentType")):
        _bad(where, "contentType is not the value of a header")


def _check_headers(value: object, where: str) -> None:
    for name, text in _members(value, where).items():
        if not _TOKEN.fullmatch(name) or not _HEADER_VALUE.fullmatch(_text(text, where)):
            _bad(where, f"'{name}' is not a header")


def _check_match(value: object, where: str) -> None:
    match = _members(value, where, ("path", "method", "queryString", "headers"))
    if "path" in match:
        _check_text(match["path"], f"{where}.path")
    if "method" in match:
        _each(match["method"], f"{where}.method", _check_method)
    for name in ("queryString", "headers"):
        if name in match:
            _each(match[name], f"{where}.{name}", _check_pair)


def _check_method(value: object, where: str) -> None:
    if not _TOKEN.fullmatch(_text(value, where)):
        _bad(where, f"'{value}' is not a method")


def _check_pair(value: object, where: str) -> None:
    for name, text in _members(value, where, ("key", "value")).items():
        _check_text(text, f"{where}.{name}")


def _check_text(value: object, where: str) -> None:
    """Regular expressions are RE2's, which differ from Python's: they are for the proxy to compile."""
    given = _members(value, where, ("exact", "startsWith", "regex"))
    if len(given) != 1:
        _bad(where, "exactly one of exact, startsWith and regex")
    _text(next(iter(given.values())), where)


def _members(value: object, where: str, known: tuple[str, ...] | None = None) -> dict[str, object]:
    """The members of an object; None counts as absent."""
    if not isinstance(value, Mapping):
        _bad(where, "not an object")
    for name in value:
        if not isinstance(name, str) or (known is not None and name not in known):
            _bad(where, f"'{name}' is none of {', '.join(known or ('names',))}")
    return {name: one for name, one in value.items() if one is not None}


def _each(value: object, where: str, check: Callable[[object, str], None]) -> None:
    if not isinstance(value, (list, tuple)):
        _bad(where, "not a list")
    for number, one in enumerate(value):
        check(one, f"{where}[{number}]")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _bad(where, "not a text")
    return value


def _unsupported(policy: object) -> NoReturn:
    name = f" '{policy}'" if isinstance(policy, str) else ""
    raise Unsupported(f"network{name} is not supported by this version: only deny-all (loopback works inside)",
                      {"field": "network"})


def _bad(where: str, why: str) -> NoReturn:
    raise Invalid(f"{where}: {why}", {"field": "network"})
