# SPDX-License-Identifier: Apache-2.0
"""The Python half of bench/sdk.py: get and exec through both twins of the SDK, in turn.

    client.py HOST SANDBOX ROUNDS      prints "label<TAB>ok<TAB>nanoseconds,..." lines
"""
import asyncio
import sys
import time

from cay import AsyncCay, Cay

COMMAND = ["/bin/true"]
WARMUP = 20


def timed(samples, start):
    samples.append(time.perf_counter_ns() - start)


def blocking(host, name, rounds):
    attach, run = [], []
    with Cay(host) as cay:
        for _ in range(rounds + WARMUP):
            start = time.perf_counter_ns()
            box = cay.get(name)
            timed(attach, start)
            start = time.perf_counter_ns()
            box.exec(COMMAND)
            timed(run, start)
    return attach, run


async def asynchronous(host, name, rounds):
    attach, run = [], []
    async with AsyncCay(host) as cay:
        for _ in range(rounds + WARMUP):
            start = time.perf_counter_ns()
            box = await cay.get(name)
            timed(attach, start)
            start = time.perf_counter_ns()
            await box.exec(COMMAND)
            timed(run, start)
    return attach, run


def main():
    host, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found = {"Python": blocking(host, name, rounds), "Python, async": asyncio.run(asynchronous(host, name, rounds))}
    for label, (attach, run) in found.items():
        for what, samples in (("attach", attach), ("exec", run)):
            print(f"{what}, {label}", "ok", ",".join(map(str, samples[WARMUP:])), sep="\t")


main()
