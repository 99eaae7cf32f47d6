"""A process that dies in the middle of a run, and the next one that finishes it.

Started without arguments it does both: it starts itself, which kills itself between a payment and
its record, and once more, which finds the run, says what became of the payment, and goes on.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import agentloop as al
from agentloop.testing import call, reply

from endpoint import provider

RUN = "order-17"


class Shop:
    """Yours. Its ledger is what a host looks into to learn whether a payment was made."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.txt"
        self.dies = not self.ledger.exists()  # the first process does

    def paid(self) -> str:
        return self.ledger.read_text() if self.ledger.exists() else ""


@al.tool(idempotent=True)
async def price(sku: str) -> str:
    """Look up the price of an item. Safe to repeat, so it is simply run again after a crash."""
    return f"{sku} costs 12"


@al.tool
async def pay(amount: int, ctx: al.ToolContext[Shop]) -> str:
    """Pay. Not safe to repeat, so nobody runs it again by guessing."""
    ctx.deps.ledger.write_text(f"{ctx.effect_id} {amount}")
    if ctx.deps.dies:
        os.kill(os.getpid(), signal.SIGKILL)  # paid, and nobody was told
    return f"paid {amount}"


clerk = al.Agent(name="clerk", instructions="Buy what is asked for.", tools=[price, pay], policy_version="shop.v1")


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say next; it follows from what was said so far."""
    match len(request.exchanges):
        case 0:
            return reply(calls=[call("price", sku="M-1")])
        case 1:
            return reply(calls=[call("pay", amount=12)])
        case _:
            return reply(text=f"Done: {request.exchanges[1].feedback[0].text}.")


async def main(folder: Path) -> None:
    """What a service does when it starts: take up what an earlier process left, then go on."""
    shop = Shop(folder)
    async with al.Runtime(provider([answer] * 3), store=folder / "facts.db", lease_seconds=3) as runtime:
        left = await runtime.unfinished()
        if not left:
            await runtime.run(clerk, "Buy one M-1.", run_id=RUN, deps=shop)  # where the first process dies
            return
        while left[0].lease is not None:  # the dead process may still live, for all that the store knows
            print(f"{RUN} may go on elsewhere for up to {left[0].lease.seconds_left:.1f} s")
            await asyncio.sleep(left[0].lease.seconds_left)
            left = await runtime.unfinished()
        for item in await runtime.unsettled():
            print(f"unsettled: {item.tool} {item.arguments}, effect {item.effect_id}")
            assert item.exchange is not None
            assert item.position is not None
            done = item.effect_id in shop.paid()
            known = al.ToolResult.ok("paid 12") if done else None  # None allows one more run of it
            await runtime.settle_call(RUN, item.exchange, item.position, author="ledger", result=known)
            print("settled:   the ledger has it" if done else "settled:   it may run again")
        result = await runtime.resume(RUN, clerk, deps=shop)
        print(f"{result.outcome}: {result.require_text()}")
        print(f"{result.model_calls} model calls over both processes; in the ledger: {shop.paid()}")


if len(sys.argv) > 1:
    asyncio.run(main(Path(sys.argv[1])))
else:
    with tempfile.TemporaryDirectory() as name:
        for life in ("first", "second"):
            status = subprocess.run([sys.executable, __file__, name], check=False).returncode
            print(f"the {life} process ended with status {status}", flush=True)
