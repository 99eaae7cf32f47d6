"""A process that is killed in a run that an agent does for another.

``python -m tests.system.delegate_child WHERE EFFECTS STORE [SCHEMA]``

``tool`` is killed in a tool of the asked agent, after its effect; ``send`` while its answer comes. Each
effect is one line in the file ``EFFECTS``. It says ``there`` when it is there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import agentloop as al
from agentloop.testing import ScriptedProvider, call, reply
from tests.system.runner_child import medium

__all__ = ["WRITER", "answer"]


@al.tool(idempotent=True)
async def search(ctx: al.ToolContext[Any]) -> str:
    """Search."""
    return "found"


@al.tool(recovery="settle")
async def pay(ctx: al.ToolContext[Any]) -> str:
    """Pay."""
    path, waits = ctx.deps
    with path.open("a") as file:
        file.write(f"{ctx.effect_id}\n")
    if waits:
        print("there", flush=True)
        await asyncio.Event().wait()
    return "paid"


CLERK = al.Agent(name="clerk", instructions="Pay.", tools=[search, pay])
ASK = al.delegate(CLERK, name="ask", description="Ask the clerk.", tools=["search", "pay"])
WRITER = al.Agent(name="writer", instructions="Ask.", tools=[ASK])


def answer(request: al.ModelRequest) -> Any:
    """What either agent says, by what is in the request."""
    if request.messages[0] == al.SystemMessage(content="Ask."):
        return reply("done") if request.exchanges else reply(calls=[call("ask", task="Pay it.")])
    if not request.exchanges:
        return reply(calls=[call("search")])
    return reply("It is paid.") if len(request.exchanges) == 2 else reply(calls=[call("pay")])


async def hang(request: al.ModelRequest) -> Any:
    """Answer as above, but not what pays."""
    if len(request.exchanges) == 1 and request.messages[0] == al.SystemMessage(content="Pay."):
        print("there", flush=True)
        await asyncio.Event().wait()
    return answer(request)


async def main(where: str, effects: str, *store: str) -> None:
    """Begin the run, and never come to its end."""
    model = ScriptedProvider([hang if where == "send" else answer] * 5)
    async with al.Runtime(model, store=medium(*store), lease_seconds=0.5) as runtime:
        await runtime.run(WRITER, "go", run_id="r", deps=(Path(effects), where == "tool"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
