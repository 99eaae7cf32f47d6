"""Which earlier turns a run's requests do not hold, and what stands in their place.

A conversation keeps all that was said. A run of it may be asked with less: some turns are left out,
or a summary stands where they were. That is a fact of the run's origin, so its requests follow from
facts alone; later turns continue the same exchanges, and choose anew what they are asked with.

Turns are named by their origins, not by places in a list: instructions may change their number, and
a redacted turn is no longer in any list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ..errors import InputError
from ..limits import check_count
from ..messages import UserMessage

__all__ = ["ContextCut", "DroppedTurns", "SUMMARY_HEADING", "SUMMARY_STAGE", "TurnSummary", "summary_message"]

SUMMARY_HEADING: Final = "Summary of earlier messages of this conversation:"
"""How a summary begins where a model reads it."""


SUMMARY_STAGE: Final = "summary"
"""The stage of the model calls that make summaries."""


def summary_message(text: str) -> UserMessage:
    """A summary as a model reads it.

    It is no system message: it was made from what people and tools said, and that never becomes an
    instruction (R34).
    """
    return UserMessage(content=f"{SUMMARY_HEADING}\n\n{text}")


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A text that stands for some turns, at the place of the first of them.

    Attributes:
        origins: of those turns, oldest first; at least one, and each follows the one before it.
        text: not empty.
        ref: the run of the call that made it; None where a host wrote it.

    Raises:
        InputError: a value of another type, an empty one, or an origin named twice.
    """

    origins: tuple[str, ...]
    text: str
    ref: str | None = None

    def __post_init__(self) -> None:
        _check_origins("TurnSummary.origins", self.origins)
        if not self.origins:
            raise InputError("TurnSummary.origins: expected at least one")
        if type(self.text) is not str or not self.text:
            raise InputError("TurnSummary.text: expected a non-empty string")
        if self.ref is not None and (type(self.ref) is not str or not self.ref):
            raise InputError("TurnSummary.ref: expected None or a non-empty string")


class DroppedTurns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Turns that follow each other and are left out: as short however many they are.

    Attributes:
        first, last: origins of the oldest and the newest of them. count: how many they are, 1 and up.

    Raises:
        InputError: a value of another type or outside its range, or one turn with two names.
    """

    first: str
    last: str
    count: int

    def __post_init__(self) -> None:
        _check_origins("DroppedTurns", tuple({self.first: None, self.last: None}))
        check_count("DroppedTurns.count", self.count, 1)
        if (self.count == 1) != (self.first == self.last):
            raise InputError("DroppedTurns: expected one turn to be the first and the last, and several not")


class ContextCut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a run is not asked with. System messages are always asked with, wherever they were said.

    Attributes:
        dropped: the turns that are left out, oldest first.
        summaries: what stands for others, oldest first. At least one of the two holds something.

    Raises:
        InputError: a value of another type, nothing at all, or an origin named twice.
    """

    dropped: tuple[DroppedTurns, ...] = ()
    summaries: tuple[TurnSummary, ...] = ()

    def __post_init__(self) -> None:
        if type(self.summaries) is not tuple or any(type(one) is not TurnSummary for one in self.summaries):
            raise InputError("ContextCut.summaries: expected a tuple of TurnSummary")
        if type(self.dropped) is not tuple or any(type(one) is not DroppedTurns for one in self.dropped):
            raise InputError("ContextCut.dropped: expected a tuple of DroppedTurns")
        ends = [origin for one in self.dropped for origin in dict.fromkeys((one.first, one.last))]
        _check_origins("ContextCut", (*ends, *self.summarised))
        if not self.dropped and not self.summaries:
            raise InputError("ContextCut: expected a turn that is left out or summarised")

    @property
    def summarised(self) -> tuple[str, ...]:
        """Origins of the turns that summaries stand for."""
        return tuple(origin for one in self.summaries for origin in one.origins)


def _check_origins(name: str, origins: Sequence[str]) -> None:
    if type(origins) is not tuple or any(type(origin) is not str or not origin for origin in origins):
        raise InputError(f"{name}: expected a tuple of origin ids")
    if len(set(origins)) != len(origins):
        raise InputError(f"{name}: expected each origin once")
