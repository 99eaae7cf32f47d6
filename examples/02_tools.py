"""Tools: typed arguments and results, the application behind them, and what a run tells."""

import asyncio
from typing import Annotated

import msgspec

import agentloop as al
from agentloop.testing import call, reply

from endpoint import provider


class Item(msgspec.Struct):
    """A result becomes JSON text that the model reads."""

    sku: str
    name: str
    stock: int


class Shop:
    """Yours: a database, a client of another service. Tools reach it as ctx.deps."""

    def __init__(self) -> None:
        self.items = {"M-1": Item(sku="M-1", name="blue mug", stock=3)}


@al.tool(idempotent=True)
async def find_item(name: str, ctx: al.ToolContext[Shop]) -> Item:
    """Find an item by its name."""
    for item in ctx.deps.items.values():
        if item.name == name:
            return item
    raise al.ToolFailed(f"there is no {name}")  # the model reads this; any other error ends the run


@al.tool
async def reserve(sku: str, quantity: Annotated[int, msgspec.Meta(ge=1)], ctx: al.ToolContext[Shop]) -> Item:
    """Reserve some pieces of an item."""
    item = ctx.deps.items[sku]
    if item.stock < quantity:
        raise al.ToolFailed(f"only {item.stock} are left")
    item.stock -= quantity
    return item


clerk = al.Agent(
    name="clerk",
    instructions="Help customers reserve items.",
    tools=[find_item, reserve],
    policy_version="shop.v1",
    limits=al.LoopLimits(max_model_calls=5, max_tool_calls=4),
)


def answer(request: al.ModelRequest) -> al.ModelReply:
    """The script's last word depends on what the tool really did."""
    left = msgspec.json.decode(request.exchanges[-1].feedback[0].text, type=Item).stock
    return reply(text=f"Two blue mugs are yours; {left} is left.")


SCRIPT = [
    reply(calls=[call("find_item", name="blue mug")]),
    reply(calls=[call("reserve", sku="M-1", quantity=0)]),  # refused by the schema: nothing runs
    reply(calls=[call("reserve", sku="M-1", quantity=2)]),
    answer,
]


async def main() -> None:
    shop = Shop()
    async with (
        al.Runtime(provider(SCRIPT)) as runtime,
        runtime.start(clerk, "Two blue mugs, please.", deps=shop) as run,
    ):
        async for event in run:
            match event:
                case al.ToolStarted():
                    print(f"{event.tool} {event.arguments}")
                case al.ToolEnded():
                    print(f"  {event.status}, {event.output_bytes} bytes for the model")
                case al.ToolSkipped():
                    print(f"{event.tool} did not run: {event.code}")
        result = await run.result()
    print(result.require_text())
    print(f"{result.outcome}: {result.model_calls} model calls, {result.tool_calls} tool calls")
    print(f"in stock: {shop.items['M-1'].stock}")


asyncio.run(main())
