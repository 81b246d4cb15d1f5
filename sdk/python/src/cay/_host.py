# SPDX-License-Identifier: Apache-2.0
"""Where cayd is, who we are there, and what httpx needs to know about it.

The rules are those of the command line (src/remote): a token goes in clear only to this very host, unless
CAY_INSECURE=1 says that all who can listen may have it; without TLS no proxy of the environment is used.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from ._errors import Denied, Invalid

DEFAULT = "unix:/run/cay/cayd.sock"
API = "/api/v1"
DEFAULT_PORT = 7733
CONNECT_SECONDS = 5.0
# cayd closes a connection that was silent for 120 s: we do so before it does.
KEEP_SECONDS = 60.0
# A command may be silent for hours: the kernel asks now and then whether the other machine is still there.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)) if hasattr(socket, name)
]


@dataclass(frozen=True)
class Host:
    shown: str  # as it was given, for messages
    url: str  # to which paths of the API are appended
    socket: str | None
    proxies: bool
    headers: httpx.Headers
    tls: ssl.SSLContext | bool  # False: there is none, so that httpx reads no certificates

    def options(self) -> dict[str, Any]:
        """Of httpx's transports; of its clients, too, where proxies are allowed."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_SECONDS)
        options: dict[str, Any] = {"verify": self.tls, "limits": limits, "trust_env": self.proxies}
        if self.socket is not None:
            options["uds"] = self.socket
        elif not self.proxies:
            options["socket_options"] = _KEEPALIVE
        return options


def find_host(host: str | None, token: str | None) -> Host:
    """The host and token given, else those of the environment."""
    shown = host or os.environ.get("CAY_HOST") or DEFAULT
    token = _find_token(token)
    headers = {"user-agent": "cay-python", "accept": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    if shown.startswith("unix:"):
        path = shown.removeprefix("unix:")
        if not path.startswith("/"):
            raise Invalid(f"host '{shown}': the path of a unix socket is absolute")
        return Host(shown, "http://localhost" + API, path, False, httpx.Headers(headers), False)
    url, https, loopback = _parse_url(shown)
    if token and not https and not loopback and os.environ.get("CAY_INSECURE") != "1":
        raise Denied(f"the token would go to {shown} in clear; use https://, or CAY_INSECURE=1 if all who can listen "
                     "there may have it")
    tls = _trusted() if https else False
    proxies = https and not loopback and bool(getproxies())
    return Host(shown, url + API, None, proxies, httpx.Headers(headers), tls)


def _parse_url(shown: str) -> tuple[str, bool, bool]:
    """(its URL without a path, whether it is https, whether it is this very machine)"""
    try:
        parts = urlsplit(shown)
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid(f"host '{shown}': {error}") from None
    if parts.scheme not in ("http", "https") or not name or parts.path not in ("", "/") or parts.query or "@" in shown:
        raise Invalid(f"host '{shown}' is not unix:/PATH, http://HOST[:PORT] or https://HOST[:PORT]")
    literal = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{literal}" + f":{port or DEFAULT_PORT}", parts.scheme == "https", _is_loopback(name)


def _trusted() -> ssl.SSLContext:
    file = os.environ.get("CAY_CACERT") or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise Invalid(f"cannot read the certificates of CAY_CACERT, {file}: {error}") from error


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _find_token(token: str | None) -> str | None:
    if token is None:
        token = os.environ.get("CAY_TOKEN") or None
    file = os.environ.get("CAY_TOKEN_FILE")
    if token is None and file:
        try:
            with open(file, encoding="ascii") as stream:
                token = stream.read(4096).rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise Invalid(f"cannot read the token file {file}: {error}") from error
    if token and not all(" " < letter <= "~" for letter in token):
        raise Invalid("the token has a byte that tokens do not have")
    return token or None
