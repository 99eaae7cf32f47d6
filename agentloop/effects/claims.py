"""The claim of an execution, stored with what is written just before it.

A tool's claim must be on the medium before its first instruction, and needs no commit of its own for
that: the claim of a reply's first call goes with the reply, the next one's with the answer of the one
before. Only a call that nothing forbids is claimed so; any other is judged when its turn comes.

Between the claim and the tool nothing ran. Where the run ends or pauses there, the claim is given back.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BudgetError
from ..exchange import Entry
from ..messages import ToolFeedback
from ..tools import Tool
from .approval import why_waits
from .scope import Claim, Scope

__all__ = ["Choose", "busy_tool", "claim_next", "effect_id_of"]

Choose = Callable[[Entry, int | None, ToolFeedback | None], int | None]
"""Says which call of an entry the loop will answer next; None where it does something else.

Given are the entry, stored or about to be, and the position and feedback of a call that is about to be
answered. It decides before that is stored as the loop decides after it.
"""


def claim_next(
    scope: Scope,
    choose: Choose,
    exchange: int,
    entry: Entry,
    answered: int | None = None,
    feedback: ToolFeedback | None = None,
) -> Claim | None:
    """Reserve the execution of the next call; None where there is none, or none that will surely run."""
    if scope.paused():
        return None
    position = choose(entry, answered, feedback)
    if position is None:
        return None
    slot, effect_id = entry.slots[position], effect_id_of(scope, exchange, position)
    tool = scope.tools.get(slot.call.name)
    if tool is None or busy_tool(scope, tool) is not None:
        return None
    try:
        arguments = tool.admit(slot.call.arguments.text)
        waits = why_waits(scope, slot, tool, arguments, effect_id=effect_id)
    except Exception:  # noqa: BLE001  # it is admitted again when its turn comes, and that is where it is told
        return None
    if waits is not None:
        return None
    try:
        scope.ledger.debit("tool_calls")
    except BudgetError:
        return None
    return Claim(exchange, position, effect_id, tool, arguments)


def effect_id_of(scope: Scope, exchange: int, position: int) -> str:
    """Identity of the execution of this call, the same when it is repeated."""
    return f"{scope.run_id}/{exchange}.{position}"


def busy_tool(scope: Scope, tool: Tool | None = None) -> str | None:
    """A tool whose thread outlived its call, in this run or an earlier turn of the conversation.

    Args:
        tool: what shall begin; giving the output of a run is no effect, and overlaps nothing.
    """
    if tool is not None and tool.name == scope.final:
        return None
    known = None if scope.conversation is None else scope.store.book.conversation(scope.conversation)
    return scope.threads.busy_in((scope.run_id,) if known is None else known.runs)
