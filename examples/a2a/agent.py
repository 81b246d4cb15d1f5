# SPDX-License-Identifier: Apache-2.0
"""An a2a agent whose code runs in sandboxes of cay.

    pip install ./sdk/python a2a-pack
    python agent.py
"""
import asyncio
import pathlib
import tempfile

import a2a_pack as a2a

from cay.adapters.a2a import CaySandboxClient


class Analyst(a2a.A2AAgent):
    name = "analyst"
    description = "Runs code that nobody has reviewed."

    @a2a.tool(description="Runs Python code and returns what it prints.")
    async def compute(self, ctx: a2a.RunContext, code: str) -> str:
        result = await ctx.sandbox.run_python(code, timeout_seconds=30)
        return result.output

    @a2a.tool(description="Counts the lines of the workspace's CSV files into outputs/lines.txt.")
    async def count_lines(self, ctx: a2a.RunContext, bucket: str) -> str:
        sandbox = await ctx.sandbox.create(a2a.SandboxSpec(name="counter", workspace=bucket, memory_mib=256))
        try:
            await sandbox.shell("cd /workspace && wc -l *.csv > outputs/lines.txt")
            again = await ctx.sandbox.get("counter")  # another process could do this as well
            return (await again.exec("cat", ["/outputs/lines.txt"])).stdout
        finally:
            await sandbox.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = pathlib.Path(directory, "agent-demo", "numbers.csv")
        table.parent.mkdir()
        table.write_text("1,2\n3,4\n")
        async with CaySandboxClient(workspaces=directory) as sandbox:
            agent = Analyst()
            print(await agent.local_invoke("compute", sandbox=sandbox, code="print(sum(range(10)))"), end="")
            print(await agent.local_invoke("count_lines", sandbox=sandbox, bucket="agent-demo"), end="")
        print("on the host:", table.parent.joinpath("outputs", "lines.txt").read_text(), end="")


asyncio.run(main())
