# SPDX-License-Identifier: Apache-2.0
"""A program of test_sdk_crowd.py: many sandboxes, some at once, with every kind of trouble in the middle.

    crowd.py HOST COUNT AT_ONCE TTL     a line "N how" for each that ended, how being ok, raised or cancelled
"""
import asyncio
import random
import sys

from cay import AsyncCay

LABEL = {"made-by": "crowd"}


class Trouble(Exception):
    pass


async def one(cay, number, ttl):
    async with cay.sandbox(labels=LABEL, ttl=ttl, memory="64M") as box:
        done = await box.exec(["echo", str(number)])
        assert done.stdout == f"{number}\n"
        if number % 3 == 0:
            raise Trouble(number)
        process = await box.start("echo begun; exec sleep 1000")
        async for _ in process.output():
            break
        if number % 3 == 1:
            await box.exec("sleep 1000")  # until it is cancelled
        await box.files.write("/tmp/number", str(number))
        assert await box.files.read_text("/tmp/number") == str(number)


async def guarded(cay, number, gate, ttl, dice):
    async with gate:
        task = asyncio.create_task(one(cay, number, ttl))
        how = "ok"
        try:
            # Anywhere between the very beginning, the create among it, and the long command.
            await asyncio.wait_for(task, dice.random() * 0.2 if number % 3 == 1 else None)
        except Trouble:
            how = "raised"
        except asyncio.TimeoutError:
            how = "cancelled"
        print(number, how, flush=True)


async def main():
    host, count, at_once, ttl = sys.argv[1], *map(int, sys.argv[2:5])
    gate, dice = asyncio.Semaphore(at_once), random.Random(7)
    async with AsyncCay(host) as cay:
        await asyncio.gather(*(guarded(cay, number, gate, ttl, dice) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(main())
