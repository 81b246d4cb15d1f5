# SPDX-License-Identifier: Apache-2.0
"""A client of cay-mcp: what an agent does with the tools of its sandbox.

    pip install './sdk/python[mcp]'
    python client.py
"""
import asyncio
import os

from mcp import Client, StdioServerParameters


async def main():
    # By default a server gets few of our variables: CAY_HOST and CAY_TOKEN would not be among them.
    server = StdioServerParameters(command="cay-mcp", env=dict(os.environ))
    async with Client(server) as client:
        print("tools:", *sorted(tool.name for tool in (await client.list_tools()).tools))
        await client.call_tool("write", {"path": "hello.py", "content": "print(6 * 7)\n"})
        result = await client.call_tool("run", {"command": "python3 hello.py; ls nowhere"})
        print(result.content[0].text)
        print("exit code:", result.structured_content["exit_code"])


if __name__ == "__main__":
    asyncio.run(main())
