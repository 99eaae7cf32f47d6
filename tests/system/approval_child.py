"""One life of a process that is killed while a run waits for a host: ``python -m tests.system.approval_child``.

Used as `kill_child`. The setting ``ROLE`` says what it is for: ``suspend`` runs until calls wait, and
notes down for people what they are; ``decide`` says what these said, and runs nothing; ``resume`` goes on.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import agentloop as al
from agentloop.persistence import Backend
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.records import encode_record
from agentloop.persistence.sqlite import SQLiteBackend
from tests.system.kill_child import RUN, KillableBackend, KillableModel, act, find_payment, point, serve, setting, tell

__all__ = ["ANSWERED", "CLERK"]

ANSWERED = "a person did why"

_SHOWN = "shown.json"


@al.tool(idempotent=True)
async def look(word: str, ctx: al.ToolContext[Path]) -> str:
    """Safe to repeat."""
    return act(ctx, word)


@al.tool(approval="required", recovery=find_payment)
async def pay(word: str, ctx: al.ToolContext[Path]) -> str:
    """Not safe to repeat, and not done unless somebody has approved it."""
    return act(ctx, word)


@al.external
def person(word: str) -> str:
    """Somebody does it elsewhere."""


CLERK = al.Agent(name="clerk", instructions="Look, pay, ask.", tools=[look, pay, person], policy_version="v1")


async def suspend(runtime: al.Runtime, folder: Path) -> None:
    """Run until calls wait; show them."""
    try:
        result = await runtime.resume(RUN, CLERK, deps=folder)
    except al.LostError:
        result = await runtime.run(CLERK, "Order it.", conversation="orders", run_id=RUN, deps=folder)
    except al.UnsettledError as error:
        for attempt_id in error.sends:
            tell(sends_again_after=attempt_id)
            await runtime.settle_send(RUN, attempt_id, author="kill test")
        result = await runtime.resume(RUN, CLERK, deps=folder)
    tell(outcome=result.outcome, reason=result.reason)
    (folder / _SHOWN).write_text(json.dumps({item.tool: item.ref for item in result.waiting}))


async def decide(runtime: al.Runtime, folder: Path) -> None:
    """Say what was decided about what was shown; it may have been said before."""
    tell(waiting=[item.tool for item in await runtime.waiting()])
    shown = json.loads((folder / _SHOWN).read_text())
    await runtime.decide({shown["pay"]: al.Approve(author="Ann"), shown["person"]: al.Answer(ANSWERED, author="Bob")})
    tell(left_waiting=[item.tool for item in await runtime.waiting()])


async def resume(runtime: al.Runtime, folder: Path) -> None:
    """Go on to the end."""
    try:
        result = await runtime.resume(RUN, CLERK, deps=folder)
    except al.UnsettledError as error:
        for attempt_id in error.sends:
            tell(sends_again_after=attempt_id)
            await runtime.settle_send(RUN, attempt_id, author="kill test")
        result = await runtime.resume(RUN, CLERK, deps=folder)
    tell(outcome=result.outcome, text=result.text)


ROLES = {"suspend": suspend, "decide": decide, "resume": resume}


async def live(store: str, schema: str, base_url: str, folder: Path) -> None:
    """Do what this life is for, and say what it leaves."""
    inner: Backend = PostgresBackend(store, schema=schema) if schema else SQLiteBackend(store)
    async with al.Runtime(KillableModel(base_url, model="some-model"), store=KillableBackend(inner)) as runtime:
        await ROLES[setting("ROLE", "")](runtime, folder)
        tell(left=[encode_record(fact).decode() for fact in await inner.load()])
        point("done")


def main(arguments: list[str]) -> None:
    """Live once."""
    store, schema, base_url, folder = arguments
    asyncio.run(live(store, schema, base_url, Path(folder)))


if __name__ == "__main__":
    serve(main)
