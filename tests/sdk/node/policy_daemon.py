# SPDX-License-Identifier: Apache-2.0
"""A cayd with the policy that is its argument, for sdk_policy.test.mjs: prints a line of JSON with its address and a
token of the tenant "acme", and ends with its standard input."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from lib.daemon import Daemon  # noqa: E402

with Daemon(tcp=True, policy=sys.argv[1]) as daemon:
    print(json.dumps({"host": daemon.url, "token": daemon.token("acme", tenant="acme")}), flush=True)
    sys.stdin.read()
