"""A call that waits for a person, who decides in another process.

Started without arguments it plays three: a clerk's run that would spend money and stops there, an
office where somebody looks at what waits and decides, and a worker that goes on with the run. The
store is all that they share.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import agentloop as al
from agentloop.testing import call, reply

from endpoint import provider

RUN = "order-17"


def is_dear(arguments: dict[str, Any], _ctx: al.ToolContext[Path]) -> bool:
    """Yours: which calls a person has to look at. It may be asked twice, so it only looks."""
    return bool(arguments["amount"] > 100)


@al.tool(approval=is_dear)
async def pay(to: str, amount: int, ctx: al.ToolContext[Path]) -> str:
    """Pay somebody. What is dear waits for an approval."""
    with (ctx.deps / "ledger.txt").open("a") as ledger:
        ledger.write(f"{ctx.effect_id} {to} {amount}\n")
    return f"paid {to} {amount}"


@al.external
def sign(document: str) -> None:
    """Have a document signed. Nothing runs here: somebody signs it, and the host says so."""


clerk = al.Agent(name="clerk", instructions="Order what is asked for.", tools=[pay, sign], policy_version="shop.v1")


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say next; it follows from what was said so far."""
    if not request.exchanges:
        dear, cheap = call("pay", to="Ann", amount=900), call("pay", to="Bob", amount=12)
        again = call("pay", to="Ann", amount=400)
        return reply(calls=[dear, cheap, again, call("sign", document="order 17")])
    return reply(text="; ".join(feedback.text for feedback in request.exchanges[0].feedback))


async def ask(runtime: al.Runtime, folder: Path) -> None:
    """The run, up to where people are needed. The process may end then."""
    result = await runtime.run(clerk, "Order 17, please.", run_id=RUN, deps=folder)
    print(f"{result.outcome}: {len(result.waiting)} calls wait for {result.reason}")


async def office(runtime: al.Runtime, _folder: Path) -> None:
    """What a person is shown, and what comes of it. Nothing runs; a decision meets the call that was shown."""
    decisions: dict[str, al.Decision] = {}
    for item in await runtime.waiting():
        print(f"{item.run} {item.kind}: {item.tool} {item.arguments}")
        if item.kind == "external":
            decisions[item.ref] = al.Answer("signed by Cleo", author="Cleo")
        elif "900" in item.arguments:
            decisions[item.ref] = al.Approve(author="Dora")
        else:
            decisions[item.ref] = al.Deny("it was paid twice", author="Dora")
    await runtime.decide(decisions)
    try:
        await runtime.decide(dict.fromkeys(decisions, al.Deny("I changed my mind", author="Dora")))
    except al.ConflictError as error:
        print(f"too late: {error.rule}")


async def go_on(runtime: al.Runtime, folder: Path) -> None:
    """A worker, which need not know who decided."""
    result = await runtime.resume(RUN, clerk, deps=folder)
    print(f"{result.outcome}: {result.require_text()}")
    print((folder / "ledger.txt").read_text(), end="")


PARTS = {"ask": ask, "office": office, "go_on": go_on}


async def main(part: str, folder: Path) -> None:
    """One process."""
    async with al.Runtime(provider([answer]), store=folder / "facts.db") as runtime:
        await PARTS[part](runtime, folder)


if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
else:
    with tempfile.TemporaryDirectory() as name:
        for part in PARTS:
            print(f"-- {part}", flush=True)
            subprocess.run([sys.executable, __file__, part, name], check=True)
