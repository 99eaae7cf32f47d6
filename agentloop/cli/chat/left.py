"""Turns that were left unfinished, as what they are."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...decisions import WaitingCall
from ...runtime import Runtime
from ...unsettled import Unsettled
from ..screen import counted

__all__ = ["LeftTurn", "left_turns"]


class LeftTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The turn of a conversation that has no end.

    Attributes:
        ref: the run's id.
        state: ``elsewhere``: another process has it, or died with it a moment ago. ``unsettled``: nobody knows
            what became of an effect. ``waiting``: calls wait for a person. ``paused``: it may just go on.
        seconds_left: of the other process's lease, which a living one prolongs; None unless ``elsewhere``.
        waiting, unsettled: the calls, and the effects, of the run and of those that agents do for it.
    """

    ref: str
    state: Literal["elsewhere", "unsettled", "waiting", "paused"]
    seconds_left: float | None = None
    waiting: tuple[WaitingCall, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()

    @property
    def words(self) -> str:
        """The state, and how much of it there is."""
        match self.state:
            case "elsewhere":
                return f"goes on elsewhere (its lease ends in {self.seconds_left or 0:.0f} s unless that lives)"
            case "unsettled":
                return f"unsettled: {counted(len(self.unsettled), 'effect')} of which nobody knows what became of it"
            case "waiting":
                return f"waiting: {counted(len(self.waiting), 'call')} to decide about"
            case "paused":
                return "paused: it can go on"


async def left_turns(runtime: Runtime) -> dict[str, LeftTurn]:
    """The unfinished turns of a store, by their conversation.

    Raises:
        RestoreError: the store holds facts that cannot be. PersistenceError: it failed.
    """
    named = {row.live: row.name for row in await runtime.conversations() if row.live is not None}
    rows = [row for row in await runtime.unfinished() if row.run_id in named]
    if not rows:
        return {}
    waiting, unsettled = await runtime.waiting(), await runtime.unsettled()
    found = {}
    for row in rows:
        waits = tuple(item for item in waiting if _within(item.run, row.run_id))
        unknown = tuple(item for item in unsettled if _within(item.ref, row.run_id))
        found[named[row.run_id]] = LeftTurn(
            ref=row.run_id,
            state="elsewhere" if row.lease else "unsettled" if unknown else "waiting" if waits else "paused",
            seconds_left=row.lease.seconds_left if row.lease else None,
            waiting=waits,
            unsettled=unknown,
        )
    return found


def _within(ref: str, above: str) -> bool:
    """Whether a run is that one, or one that an agent does for it."""
    return ref == above or ref.startswith(f"{above}/")
