"""Asking a resource what became of a call whose process died, by the lookup of its tool.

Nothing is started and nothing charged. What a lookup found is stored with the author
``recovery:<tool>``, before another one is asked. One that raises, runs out of time or returns what
cannot be a result has found nothing out, and its call stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError, ToolResultError, UnsettledError
from ..exchange import Book, Fact, SlotState
from ..messages import ToolResult
from ..tools import NOT_DONE, NotDone
from .claims import busy_tool
from .execution import context_of, room_for
from .kept import answer_of
from .pool import Execution, NoThreadError, OutOfTimeError
from .scope import Scope, deliver_cancel
from .tool_call import encoded, run_once

__all__ = ["recover_calls"]


async def recover_calls(scope: Scope, exchange: int, positions: Sequence[int]) -> None:
    """Ask the lookup of each of these calls what became of it; store what is known then.

    A call that has not taken effect may run once more, with the same effect id. A run that is
    paused asks no further.

    Raises:
        UnsettledError: something was not found out; the rest is stored. ``__cause__`` is the error
            of the lookup, or a group where there are several. Or a tool of the run has not
            ended though its call is over, which may still do what a lookup would ask for.
        asyncio.CancelledError: the run was cancelled; the call that was being looked up is as it was.
    """
    errors: list[BaseException] = []
    for position in positions:
        if scope.paused():
            break
        if busy_tool(scope) is not None:  # it may yet do what a lookup would miss, or it is one itself
            raise _unsettled(scope, exchange) from _cause(errors)
        found = await _ask(scope, exchange, position)
        if isinstance(found, BaseException):
            errors.append(found)
        elif await _store(scope, exchange, position, found):
            await deliver_cancel()
    if errors:
        raise _unsettled(scope, exchange) from _cause(errors)


async def _ask(scope: Scope, exchange: int, position: int) -> ToolResult | NotDone | BaseException:
    slot = scope.turn.entries[exchange].slots[position]
    tool = scope.tools.require(slot.call.name)
    context = context_of(scope, slot, tool, slot.effect_id or "")
    try:
        arguments = tool.admit(slot.call.arguments.text)
    except InputError as refused:  # it admitted them when the call was started
        return refused
    try:
        value, error = await run_once(
            lambda: tool.look_up(arguments, context),
            Execution(scope.run_id, tool.name, context.effect_id),
            is_async=tool.lookup_is_async,
            tool=tool,
            pool=scope.pool,
        )
    except (OutOfTimeError, NoThreadError) as late:
        over = TimeoutError(f"the lookup of tool {tool.name!r} did not end within {tool.policy.timeout:g} s")
        over.__cause__ = late
        return over
    if error is not None or value is NOT_DONE:
        return error or NOT_DONE
    if value is None:  # what a lookup in a table gives that has no such id: no answer
        rule = "expected of its lookup what became of the call, or NOT_DONE, got None"
        return ToolResultError(tool.name, f"{rule}; a tool that returned None is ToolResult.ok('null')")
    try:
        return encoded(tool, value)
    except Exception as fault:  # noqa: BLE001  # of the value's own class, whatever it is
        return fault


async def _store(scope: Scope, exchange: int, position: int, found: ToolResult | NotDone) -> bool:
    """Store what is known now; whether a cancel was held back meanwhile."""
    slot = scope.turn.entries[exchange].slots[position]
    author, now = f"recovery:{slot.call.name}", scope.now_ms()
    if isinstance(found, NotDone):
        return await scope.commit(
            lambda book: book.allow_rerun(scope.turn, exchange, position, at_ms=now, author=author)
        )
    state: SlotState = "done" if found.status == "ok" else "failed"
    answer = answer_of(scope, slot, found, room_for(scope, slot, scope.tools.get(slot.call.name)))

    def settle(book: Book) -> Sequence[Fact]:
        return book.settle_slot(
            scope.turn,
            exchange,
            position,
            state=state,
            feedback=answer.feedback,
            at_ms=now,
            author=author,
            max_bytes=scope.limits.feedback_bytes,
        )

    return await scope.commit(answer.stored_by(settle, scope, exchange, position))


def _cause(errors: list[BaseException]) -> BaseException | None:
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} lookups failed", errors)
    return errors[0] if errors else None


def _unsettled(scope: Scope, exchange: int) -> UnsettledError:
    slots = enumerate(scope.turn.entries[exchange].slots)
    unknown = [position for position, slot in slots if slot.state == "unknown" and slot.feedback is None]
    return UnsettledError(scope.run_id, (), tuple(f"{exchange}.{position}" for position in unknown))
