# SPDX-License-Identifier: Apache-2.0
"""What the tests of cay.adapters.a2a share."""
import asyncio
import uuid

from cay.adapters.a2a import CaySandboxClient


def runner(host, **defaults):
    """run(body, **options): `await body(client)` with a client of an owner of its own, whose sandboxes are removed."""
    defaults = {"host": host, "owner": f"test-{uuid.uuid4().hex}", **defaults}

    def run(body, **options):
        async def main():
            async with CaySandboxClient(**{**defaults, **options}) as client:
                try:
                    return await body(client)
                finally:
                    for name in await client.list():
                        await client.remove(name)

        return asyncio.run(main())

    return run
