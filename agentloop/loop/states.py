"""The phases of a run, in one table.

asking      the next effect is a model call
answering   the newest reply has calls without feedback
suspended   of the newest reply only calls that wait for a host are without feedback
ended       a `RunClosed` fact exists
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["NEXT", "Phase", "Signal", "follow"]


class Phase(Enum):
    """Where a run is."""

    ASKING = "asking"
    ANSWERING = "answering"
    SUSPENDED = "suspended"
    ENDED = "ended"


class Signal(Enum):
    """What one step did."""

    REFUSED = "refused"
    """The request was refused; it is sent once more next."""
    OVERTAKEN = "overtaken"
    """A user said something, or asked to stop, just before; nothing was done."""
    REPLIED = "replied"
    """A reply without calls is stored."""
    ASKED = "asked"
    """A reply with calls is stored."""
    ANSWERED_ONE = "answered_one"
    """One call was answered, or several, or waits now; others have no feedback."""
    RECOVERED = "recovered"
    """Lookups were asked; some calls are without feedback still."""
    ANSWERED_ALL = "answered_all"
    """Every call of the newest reply has feedback."""
    SUSPENDED = "suspended"
    """Calls wait for a host, and nothing else is to be done."""
    CLOSED = "closed"
    """The run is closed."""


NEXT: Final[Mapping[Phase, Mapping[Signal, Phase]]] = {
    Phase.ASKING: {
        Signal.REFUSED: Phase.ASKING,
        Signal.OVERTAKEN: Phase.ASKING,
        Signal.REPLIED: Phase.ASKING,
        Signal.ASKED: Phase.ANSWERING,
        Signal.CLOSED: Phase.ENDED,
    },
    Phase.ANSWERING: {
        Signal.ANSWERED_ONE: Phase.ANSWERING,
        Signal.RECOVERED: Phase.ANSWERING,
        Signal.ANSWERED_ALL: Phase.ASKING,
        Signal.SUSPENDED: Phase.SUSPENDED,
    },
    Phase.SUSPENDED: {},
    Phase.ENDED: {},
}


def follow(phase: Phase, signal: Signal) -> Phase:
    """The phase after ``signal``.

    Raises:
        ValueError: the table has no such step; nothing was changed.
    """
    try:
        return NEXT[phase][signal]
    except KeyError:
        raise ValueError(f"a run that is {phase.value} cannot take {signal.value}") from None
