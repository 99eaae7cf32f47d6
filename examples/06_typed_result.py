"""A typed result: a value of your own class, checked whole, or an error that says what did not fit."""

import asyncio
from typing import Annotated, Literal

import msgspec

import agentloop as al
from agentloop.testing import ScriptedProvider, call, reply

from endpoint import provider


class Ticket(msgspec.Struct, frozen=True):
    """What the application works with. The bounds are in the schema that the model is given, and are checked."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    urgency: Literal["low", "high"]
    floor: int


ticket = al.Structured(Ticket, instruction="Make a ticket of what the user says.")

SCRIPT = [
    reply(text='{"title":"Printer on fire","urgency":"high","floor":3}'),
    reply(text='{"title":"Printer on fire","urgency":"extreme","floor":3}'),  # no urgency that there is
]
SAID = "The printer on the third floor is on fire!"


def answer(request: al.ModelRequest) -> al.ModelReply:
    """Another server's model: where it is given a function, it calls it; else it writes, with words around it."""
    if request.tools:
        return reply(calls=[call("Ticket", title="Printer on fire", urgency="high", floor=3)])
    return reply(text='Here you are:\n```json\n{"title":"Printer on fire","urgency":"high","floor":3}\n```')


async def elsewhere() -> None:
    """The same value by other routes: which one is taken follows from what the server can be asked for."""
    for dialect in ("deepseek", "moonshot"):
        runner = al.ModelRunner(ScriptedProvider([answer], dialect=dialect), transports=(ticket,))
        result = await runner.invoke(SAID, transport=ticket)
        print(f"{dialect:<11} {result.value.title!r} by {result.invocation.route}")


async def main() -> None:
    async with al.Runtime(provider(SCRIPT)) as runtime:
        runner = runtime.runner(transports=(ticket,), max_calls=2)  # for one request of the application

        result = await runner.invoke(SAID, stage_id="triage", transport=ticket)
        print(f"value       {result.value}")  # a Ticket for the type checker as well
        made = result.invocation
        print(f"record      stage {made.stage_id}, call {made.call_sequence}, by {made.route}, {made.status}")

        try:
            await runner.invoke(SAID, stage_id="triage", transport=ticket)
        except al.OutputRefused as refused:  # nothing is repaired, and nobody asks again
            print(f"refused     {refused.code}: {refused.rule}")
            if refused.ref is not None:  # the reply was complete, so it is a fact, and was paid for
                kept = await runtime.read(refused.ref)
                print(f"the reply   {kept.state}; {runner.remaining_calls} calls left")
    await elsewhere()


asyncio.run(main())
