"""The claim of an execution, stored with what is written just before it.

A tool's claim must be on the medium before its first instruction, and needs no commit of its own for
that: the claim of a reply's first call goes with the reply, the next one's with the answer of the one
before. Only a call that nothing forbids is claimed so; any other is judged when its turn comes.

Between the claim and the tool nothing ran. Where the run ends or pauses there, the claim is given back.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..errors import BudgetError, PersistenceError
from ..exchange import Entry
from ..messages import ToolFeedback
from ..persistence import Step
from ..tools import ArgumentsRefused, Tool
from ..wire.call_text import malformed_feedback
from .approval import Hold, why_waits
from .ledger import Ledger
from .scope import Claim, Scope

__all__ = [
    "Choose",
    "Refusal",
    "admitted",
    "beside",
    "busy_tool",
    "claim_next",
    "commit_claim",
    "effect_id_of",
    "hindrance",
    "release",
    "reserve",
    "reserved",
    "used_up",
]


class Refusal(msgspec.Struct, frozen=True):
    """Why a call runs nothing: a code, and the words for the model."""

    code: str
    text: str


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
    try:
        claim = admitted(scope, exchange, position, entry)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  # of a host's code; it is asked again when its turn comes, and told there
        return None
    if not isinstance(claim, Claim):
        return None
    try:
        return claim if reserved(scope, claim) is None else None
    except BudgetError:
        return None


def admitted(scope: Scope, exchange: int, position: int, entry: Entry) -> Claim | Refusal | Hold:
    """The execution that a call asks for, or why there is none (R55-R57). Nothing is reserved yet.

    Raises:
        ApprovalFailed: whether the call waits for a host could not be asked.
    """
    slot = entry.slots[position]
    call = slot.call
    tool = scope.tools.get(call.name)
    if tool is None:
        malformed = malformed_feedback(entry.reply, position)
        if malformed is not None:
            return Refusal("malformed_call", f"Nothing ran. {malformed}")
        return Refusal("unknown_tool", scope.tools.unknown_tool_feedback(call.name))
    try:
        given = tool.admitted(call.arguments.text)
    except ArgumentsRefused as refused:
        return Refusal(refused.code, f"Nothing ran. {refused.feedback}")
    arguments, effect_id = given.arguments, effect_id_of(scope, exchange, position)
    kind = why_waits(scope, slot, tool, arguments, effect_id=effect_id)
    if kind is not None:
        return Hold(kind)
    return Claim(exchange, position, effect_id, tool, arguments, given.converted, goes_on=slot.state == "waiting")


def reserved(scope: Scope, claim: Claim) -> Refusal | None:
    """Debit the start of an execution; or say why there may be none now, though the run may go on.

    One that goes on was debited when it began, and nothing forbids it now.

    Raises:
        BudgetError: none is left.
    """
    if claim.goes_on:
        return None
    refusal = hindrance(scope, claim.tool)
    if refusal is None:
        reserve(scope, claim.tool)
    return refusal


def hindrance(scope: Scope, tool: Tool) -> Refusal | None:
    """Why another start of the tool may not be reserved now, though the run may go on."""
    return beside(busy_tool(scope, tool)) or used_up(tool, scope.ledger_of(tool))


def beside(busy: str | None) -> Refusal | None:
    """Why no tool may begin now: ``busy`` is left over, and effects shall not overlap it."""
    if busy is None:
        return None
    text = f"Nothing ran: an earlier call of {busy} has not ended although its time is over. Try again later."
    return Refusal("thread_busy", text)


def used_up(tool: Tool, ledger: Ledger) -> Refusal | None:
    """Why the tool may not begin any more: it was started as often as its policy allows, by its own ledger."""
    most = tool.policy.max_calls
    if most is None or ledger.spent("tool_calls") < most:
        return None
    times = "once" if most == 1 else f"{most} times"
    return Refusal("max_calls", f"Nothing ran: {tool.name} can be called {times} in a run, and that is used up.")


def reserve(scope: Scope, tool: Tool) -> None:
    """Debit one start of a tool.

    Raises:
        BudgetError: none is left.
    """
    scope.ledger_of(tool).debit("tool_calls")


def release(scope: Scope, claim: Claim) -> None:
    """Put back the start of an execution that did not begin."""
    if not claim.goes_on:
        scope.ledger_of(claim.tool).release("tool_calls")


async def commit_claim(scope: Scope, step: Step, claim: Claim | None) -> bool:
    """Commit a step that stores the claim of an execution as well; where it is refused, its start is put back.

    Returns, and otherwise raises: as `Scope.commit`.
    """
    try:
        return await scope.commit(step)
    except PersistenceError:  # nobody knows whether it is stored
        raise
    except BaseException:
        if claim is not None:
            release(scope, claim)
        raise


def effect_id_of(scope: Scope, exchange: int, position: int) -> str:
    """Identity of the execution of this call, the same when it is repeated."""
    return f"{scope.run_id}/{exchange}.{position}"


def busy_tool(scope: Scope, tool: Tool | None = None) -> str | None:
    """A tool that has not ended though its call is over, of this run or an earlier turn of the conversation.

    Runs that agents do for these belong to them, and have this one held back as well.

    Args:
        tool: what shall begin; giving the output of a run is no effect, and overlaps nothing.
    """
    if tool is not None and tool.name == scope.final:
        return None
    book, turn = scope.store.book, scope.turn
    while turn.opened.parent is not None:  # a run that an agent does for another one belongs to that
        caller = turn.opened.parent.rpartition("/")[0]
        if not book.has_run(caller):
            break
        turn = book.turn(caller)
    name = turn.opened.conversation
    known = None if name is None else book.conversation(name)
    return scope.pool.busy_in((turn.run_id,) if known is None else known.runs)
