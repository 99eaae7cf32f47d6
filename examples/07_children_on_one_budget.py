"""One budget for a whole request: parts that work side by side, and one call kept for the end."""

import asyncio
from functools import partial

import agentloop as al
from agentloop.testing import reply

from endpoint import provider


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say; it follows from what it is asked."""
    asked = str(request.messages)
    if "Sum up" in asked:
        return reply(text="Both sides are dry; the north is cold.")
    return reply(text="4 degrees and dry." if "north" in asked else "11 degrees and dry.")


async def research(child: al.ModelRunner, side: str) -> str:
    """One part of the request. It has a runner of its own, since a runner makes one call at a time."""
    return (await child.invoke(f"How is the weather in the {side}?", stage_id="research")).value


async def main() -> None:
    async with al.Runtime(provider([answer] * 3)) as runtime:
        budget = al.Ledger(model_calls=3)  # the request's; whatever else works for it can be given it too
        runner = runtime.runner(ledger=budget, children=al.ChildLimits(max_concurrent_calls=2))

        sides = ("north", "south")
        children = [runner.child(side, reserve_calls=1) for side in sides]  # each leaves one call to its parent
        print(f"before: {budget.left('model_calls')} calls for the request, {children[0].remaining_calls} for children")
        tasks = [partial(research, child, side) for child, side in zip(children, sides, strict=True)]
        found = await al.run_children(tasks, max_concurrent=2)
        for side, text in zip(sides, found, strict=True):  # in the order of the tasks
            print(f"{side}:  {text}")

        try:
            await research(children[0], "north")  # one call is left, and it is not for a child
        except al.BudgetError as refused:
            print(f"refused: {refused}; nothing was sent, {budget.left('model_calls')} left")

        result = await runner.invoke("Sum up: " + " ".join(found), stage_id="report")
        print(f"report: {result.value}")
        print(f"after:  {runner.call_count} call of its own, {runner.total_call_count} with its children's")

        for part in (*children, runner):
            for trace in part.journal.model:
                where = trace.parent_invocation_id or "request"
                print(f"  {where}/{trace.stage_id} {trace.call_sequence}: {trace.status}")
            for rejected in part.journal.rejected:
                print(f"  not admitted: {rejected.limit}, allowed {rejected.allowed}, {rejected.got} wanted")


asyncio.run(main())
