# SPDX-License-Identifier: Apache-2.0
"""ends_sdk.py sync|async HOST: a client of ends.py by the Python SDK. A command in JSON on each line, its result likewise."""
import asyncio
import json
import sys

import cay


def orders():
    return map(json.loads, iter(sys.stdin.readline, ""))


def tell(done):
    print(json.dumps([done.stdout, done.stderr, done.exit_code]), flush=True)


def main(host):
    with cay.Cay(host) as client:
        print(client.version(), flush=True)
        for order in orders():
            tell(client.attach(order["box"]).exec(order["argv"], input=order["input"]))


async def amain(host):
    async with cay.AsyncCay(host) as client:
        print(await client.version(), flush=True)
        for order in orders():
            tell(await client.attach(order["box"]).exec(order["argv"], input=order["input"]))


if __name__ == "__main__":
    how, host = sys.argv[1:]
    main(host) if how == "sync" else asyncio.run(amain(host))
