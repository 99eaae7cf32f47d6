"""The turn of a conversation that was left unfinished, as what it is."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...agent import Agent
from ...decisions import WaitingCall
from ...errors import NotOwnerError, OutcomeError, RunPaused, UnsettledError
from ...persistence import ConversationRow
from ...runtime import Runtime
from ...unfinished import to_settle
from ...unsettled import Unsettled
from ...views import RunView
from ..screen import counted

__all__ = ["LeftTurn", "conversation_row", "left_turn"]


class LeftTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The turn of a conversation that has no end.

    Attributes:
        view: what is stored of it.
        state: ``elsewhere``: another process has it, or died with it a moment ago. ``unsettled``: nobody knows
            what became of an effect. ``waiting``: calls wait for a person. ``paused``: it may just go on.
        waiting, unsettled: what a person is asked about, of the run and of those that agents do for it.
    """

    view: RunView
    state: Literal["elsewhere", "unsettled", "waiting", "paused"]
    waiting: tuple[WaitingCall, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()

    @property
    def ref(self) -> str:
        """The run's id."""
        return self.view.run_id

    @property
    def words(self) -> str:
        """The state, and how much of it there is."""
        match self.state:
            case "elsewhere":
                seconds = self.view.owned_for_seconds or 0
                return f"goes on elsewhere (its lease ends in {seconds:.0f} s unless that lives)"
            case "unsettled":
                return f"unsettled: {counted(len(self.unsettled), 'effect')} of which nobody knows what became of it"
            case "waiting":
                return f"waiting: {counted(len(self.waiting), 'call')} to decide about"
            case "paused":
                return "paused: it can go on"


async def conversation_row(runtime: Runtime, name: str) -> ConversationRow | None:
    """A conversation of the store; None where it has none of that name."""
    return next((row for row in await runtime.conversations(prefix=name) if row.name == name), None)


async def left_turn(runtime: Runtime, agent: Agent[Any], row: ConversationRow | None) -> LeftTurn | None:
    """The unfinished turn of a conversation; None where all have ended, or there is no conversation.

    Args:
        agent: whose tools say which calls need no person, where the turn is one of this agent.

    Raises:
        RestoreError: the store holds facts that cannot be. PersistenceError: it failed.
    """
    if row is None or row.live is None:
        return None
    view = await runtime.view(row.live)
    if view.state == "running":
        return LeftTurn(view=view, state="elsewhere")
    if view.state != "unfinished":  # it has ended just now
        return None
    unsettled = await to_settle(view, agent if agent.name == view.agent else None, runtime.view)
    if unsettled:
        return LeftTurn(view=view, state="unsettled", unsettled=tuple(unsettled))
    waits = any(call.state == "waiting" for call in view.calls)
    waiting = await _waiting(runtime, view.run_id) if waits else ()
    return LeftTurn(view=view, state="waiting" if waiting else "paused", waiting=waiting)


async def _waiting(runtime: Runtime, ref: str) -> tuple[WaitingCall, ...]:
    try:
        return (await runtime.result(ref)).waiting
    except (OutcomeError, RunPaused, UnsettledError, NotOwnerError):  # it has more to do than to wait
        return ()
