# SPDX-License-Identifier: Apache-2.0
"""Several answers to one task, each tried in a sandbox of its own, all at the same time. The first good one wins; the
others are cancelled, which kills what they run and removes their sandboxes."""
import asyncio

import cay

CANDIDATES = {
    "crashes": "raise SystemExit('oops')",
    "wrong": "print(41)",
    "right": "print(6 * 7)",
    "endless": "while True: pass",
}


async def attempt(client: cay.AsyncCay, name: str, code: str) -> str:
    async with client.sandbox(memory="128M", pids=64, labels={"candidate": name}) as box:
        await box.files.write("/work/answer.py", code)
        done = await box.exec(["python3", "/work/answer.py"])
        if done.stdout != "42\n":
            raise ValueError(f"{name}: exit code {done.exit_code}, output {done.stdout!r}")
        return name


async def main() -> None:
    async with cay.AsyncCay() as client:
        tasks = [asyncio.create_task(attempt(client, name, code)) for name, code in CANDIDATES.items()]
        for task in asyncio.as_completed(tasks):
            try:
                print("the answer is from:", await task)
                break
            except ValueError:
                continue
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print("sandboxes left:", len([info for info in await client.list() if "candidate" in info.labels]))


asyncio.run(main())
