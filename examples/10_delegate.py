"""An agent asks another one: its own tools, its own limits, one budget, and one cancel for both."""

import asyncio

import agentloop as al
from agentloop.testing import call, reply

from endpoint import provider

PRICES = {"blue mug": 7, "red mug": 9}


@al.tool(idempotent=True)
async def find_price(item: str) -> int:
    """Look up the price of one item."""
    if item not in PRICES:
        raise al.ToolFailed(f"there is no {item}")
    return PRICES[item]


@al.tool
async def set_price(item: str, price: int) -> None:
    """Change a price."""
    PRICES[item] = price


clerk = al.Agent(name="clerk", instructions="Answer questions about prices.", tools=[find_price, set_price])

# What the clerk may do for others is said here; that it could change prices by itself is not handed on.
ask_clerk = al.delegate(
    clerk,
    name="ask_clerk",
    description="Ask the clerk about prices.",
    tools=["find_price"],
    limits=al.LoopLimits(max_model_calls=3),
)
buyer = al.Agent(name="buyer", instructions="Buy mugs.", tools=[ask_clerk], limits=al.LoopLimits(max_model_calls=6))


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say, as the buyer or as the clerk; it follows from what it is asked."""
    found = " | ".join(feedback.text for exchange in request.exchanges for feedback in exchange.feedback)
    if request.messages[0] == al.SystemMessage(content="Buy mugs."):
        if not request.exchanges:
            return reply(calls=[call("ask_clerk", task="Which mug is cheaper, the blue or the red one?")])
        return reply("I take the blue one, for 7.")
    if not request.exchanges:
        return reply(calls=[call("find_price", item="blue mug"), call("set_price", item="red mug", price=1)])
    if len(request.exchanges) == 1:
        print(f"  the clerk reads: {found}")
        return reply(calls=[call("find_price", item="red mug")])
    return reply("The blue mug costs 7, the red one 9.")


class Watcher:
    """Sees the events of every run of the runtime, the clerk's under its own id."""

    async def observe(self, event: al.Event) -> None:
        if isinstance(event, al.ToolStarted | al.ToolSkipped | al.RunEnded):
            what = event.outcome if isinstance(event, al.RunEnded) else event.tool
            print(f"  {event.run_id:14} {event.type:12} {what}")


async def main() -> None:
    budget = al.Ledger(model_calls=20)
    async with al.Runtime(provider([answer] * 6), observers=[Watcher()], ledger=budget) as runtime:
        result = await runtime.run(buyer, "Buy the cheapest mug.", run_id="order-1")
        clerks = await runtime.result("order-1/0.0")  # a run of its own, under the id of the call
    print(f"buyer: {result.text} ({result.model_calls} model calls)")
    print(f"clerk: {clerks.text} ({clerks.model_calls} model calls, {clerks.tool_calls} tool calls)")
    print(f"both:  {budget.spent('model_calls')} of {budget.granted('model_calls')} model calls; prices {PRICES}")


asyncio.run(main())
