"""The states of one tool call's slot, in one table.

A slot belongs to one call of one stored reply and is keyed by (exchange, position): call ids are
unique inside a reply only. A slot that holds feedback is *closed*: the next request can be built.

    open     -> started            the claim is stored; the tool is the next thing to run
             -> failed             refused before it ran: bad arguments, unknown name
             -> skipped            not run: limit, end of the run, reply that must not run
             -> waiting            for a decision of a host: an approval, or a result from elsewhere
    started  -> open               the claim is given back: the tool has not begun, and nothing ran
             -> done               the tool answered
             -> failed             the tool failed in a way it declared
             -> unknown            nobody knows whether the effect happened
             -> waiting            for its child run, of which calls wait for a host
    waiting  -> open               approved: it runs as any call does
             -> skipped            denied; or not run: limit, end of the run
             -> done | failed      the host gave its result
             -> started            its child run is asked again: the same execution goes on
    unknown  -> done | failed      settled by a lookup or by the host
             -> started            declared idempotent, or allowed once by a lookup or by the host;
                                   after a timeout in one batch with the step to unknown
             -> unknown            for good: nobody will say, and its feedback says so

``unknown`` may hold feedback that says so (a timeout, a cancel: the run or the conversation goes
on) or none (a crash of the process: the run waits for settling, or is ended as it is).
``waiting`` holds none; why a call waits is the slot's code (see `waiting`). Two of its steps are for one
code only: a call that is started waits for its child run, and no other one becomes started again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ..errors import ConflictError

__all__ = ["CLOSING", "NEXT", "SlotState", "move"]

SlotState = Literal["open", "started", "done", "failed", "unknown", "skipped", "waiting"]

NEXT: Final[Mapping[SlotState, frozenset[SlotState]]] = {
    "open": frozenset({"started", "failed", "skipped", "waiting"}),
    "started": frozenset({"open", "done", "failed", "unknown", "waiting"}),
    "waiting": frozenset({"open", "skipped", "done", "failed", "started"}),
    "unknown": frozenset({"done", "failed", "started", "unknown"}),
    "done": frozenset(),
    "failed": frozenset(),
    "skipped": frozenset(),
}

CLOSING: Final = frozenset({"done", "failed", "skipped"})
"""States that always hold feedback."""


def move(state: SlotState, to: SlotState, *, where: str) -> SlotState:
    """Return ``to`` when the table allows the step.

    Raises:
        ConflictError: it does not; nothing was changed.
    """
    if to not in NEXT[state]:
        allowed = ", ".join(sorted(NEXT[state])) or "no further state"
        raise ConflictError(where, f"a slot that is {state} cannot become {to}: expected {allowed}")
    return to
