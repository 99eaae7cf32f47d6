"""Whether a call waits for a host before anything of it runs, and why.

Only an open call is asked about, once its arguments are admitted: bad ones are feedback at once. A call
that a host has decided about is not asked about again.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from ..errors import ApprovalFailed
from ..exchange import Slot, WaitKind
from ..tools import Tool, ToolContext
from .reasons import type_name
from .scope import Scope

__all__ = ["Hold", "hold_call", "why_waits"]


class Hold(msgspec.Struct, frozen=True):
    """That a call waits for a host, and why."""

    kind: WaitKind


def why_waits(scope: Scope, slot: Slot, tool: Tool, arguments: dict[str, Any], *, effect_id: str) -> WaitKind | None:
    """Why a call waits, None where it runs. Asked again, it says the same: a predicate is pure.

    Args:
        arguments: as the tool admitted them. effect_id: what its execution would be called.

    Raises:
        ApprovalFailed: the predicate of the tool's policy raised, or returned no bool.
    """
    if slot.state != "open" or slot.decided is not None:
        return None
    if tool.kind == "external":
        return "external"
    approval = tool.policy.approval
    if not callable(approval):
        return None if approval is None else "approval"
    context = ToolContext(
        deps=scope.deps,
        run_id=scope.run_id,
        agent=scope.agent,
        conversation=scope.conversation,
        tool=tool.name,
        call_id=slot.call.id,
        effect_id=effect_id,
    )
    try:
        needed: object = approval(dict(arguments), context)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a sync function's CancelledError is no cancel of the run
        raise ApprovalFailed(tool.name, slot.call.id, effect_id, type_name(error)) from error
    if type(needed) is not bool:
        if inspect.iscoroutine(needed):
            needed.close()  # it never ran
        what = "an awaitable" if inspect.isawaitable(needed) else "a value"
        raise ApprovalFailed(tool.name, slot.call.id, effect_id, f"{what} of type {type(needed).__name__}")
    return "approval" if needed else None


async def hold_call(scope: Scope, exchange: int, position: int, hold: Hold) -> None:
    """Store that an open call waits."""
    await scope.commit(
        lambda book: book.hold_slot(scope.turn, exchange, position, kind=hold.kind, at_ms=scope.now_ms())
    )
