"""Another process with a run of its own: ``python -m tests.runtime_child STORE``.

It submits run ``r`` on conversation ``c`` and says ``asked`` when the model was asked. The model
answers when a line comes on the standard input; then it says ``ended``.
"""

from __future__ import annotations

import asyncio
import sys

import agentloop as al
from agentloop.testing import ScriptedProvider, reply

__all__ = ["AGENT"]

AGENT = al.Agent(name="a")


async def answer(_: al.ModelRequest) -> al.ModelReply:
    print("asked", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return reply("done there")


async def main(store: str) -> None:
    """Run it."""
    async with al.Runtime(ScriptedProvider([answer]), store=store) as runtime:
        ref = await runtime.submit(AGENT, "go", run_id="r", conversation="c")
        await runtime.result(ref)
        print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
