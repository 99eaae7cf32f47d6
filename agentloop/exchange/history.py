"""What a request's messages are when a turn begins: earlier turns' messages and its own.

The system messages that open a turn are its instructions. A turn that brings none keeps those of
the turn before; one that brings some replaces them, in the same place. Everything else is kept in
the order in which it was said, so that a request is a prefix of the conversation's next one.

A run may be asked with less of it (see `cut`). The history stays whole: the turns after that run
follow all that was said.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ConflictError, InputError
from ..messages import Message, ModelExchange, SystemMessage, UserMessage
from .cut import ContextCut, TurnSummary, summary_message
from .encoding import sorted_bytes

__all__ = ["History", "Shown"]


class _Said(msgspec.Struct, frozen=True, gc=False):
    """What one earlier turn said: its origin, how many messages, and their bytes."""

    origin_id: str
    length: int
    size: int


class Shown(msgspec.Struct, frozen=True, gc=False):
    """The messages of one turn's requests, and the bytes of their canonical JSON."""

    messages: tuple[Message, ...]
    size: int


class History:
    """All messages up to a turn and its own.

    Attributes:
        messages: all of them, instructions first.
        size: bytes of their canonical JSON.
    """

    __slots__ = ("_instructions", "_instructions_size", "_said", "_said_length", "_said_size", "messages", "size")

    def __init__(self, messages: tuple[Message, ...], sizes: Sequence[int]) -> None:
        self.messages, self.size = messages, sum(sizes)
        self._instructions = _leading(messages)
        self._instructions_size = sum(sizes[: self._instructions])
        self._said: tuple[_Said, ...] = ()
        self._said_length = self._said_size = 0  # of all earlier turns

    def following(
        self,
        origin_id: str | None,
        said: Sequence[Message],
        said_size: int,
        messages: tuple[Message, ...],
        sizes: Sequence[int],
    ) -> History:
        """The history of the turn that says ``messages`` after these messages and ``said``.

        Args:
            origin_id: of the turn that these messages end with and ``said`` belongs to; None where
                neither is there, as at the beginning of a branch.
            said: exchanges of that turn, and what its user said between them. said_size: bytes of that.
            sizes: bytes of each of ``messages``.
        """
        own = _leading(messages)
        first = self._instructions
        after = History.__new__(History)
        after._instructions = own or first
        after._instructions_size = sum(sizes[:own]) if own else self._instructions_size
        after._said, after._said_length, after._said_size = self._said, self._said_length, self._said_size
        if origin_id is not None:
            newest = self._newest(origin_id, said, said_size)
            after._said += (newest,)
            after._said_length += newest.length
            after._said_size += newest.size
        after.messages = (
            *(messages[:own] or self.messages[:first]),
            *self.messages[first:],
            *said,
            *messages[own:],
        )
        spoken = self.size - self._instructions_size + said_size + sum(sizes[own:])
        after.size = after._instructions_size + spoken
        return after

    # -- the turns before, by their origins

    @property
    def turns(self) -> tuple[tuple[str, int, int], ...]:
        """The earlier turns, oldest first: origin, and where its messages start and end.

        One whose texts were removed has none, and ends where it starts.
        """
        found = []
        at = self._instructions
        for said in self._said:
            found.append((said.origin_id, at, at + said.length))
            at += said.length
        return tuple(found)

    @property
    def steers(self) -> tuple[int, ...]:
        """Places of user messages that go on with an earlier turn, after an exchange of it."""
        found = []
        for _, start, end in self.turns:
            answered = False
            for at in range(start, end):
                kind = type(self.messages[at])
                if kind is UserMessage and answered:
                    found.append(at)
                answered = answered or kind is ModelExchange
        return tuple(found)

    def origins(self, start: int, end: int) -> tuple[str, ...]:
        """The origins of the earlier turns that ``messages[start:end]`` are.

        Raises:
            InputError: these are not all messages of some earlier turns.
        """
        inside = [turn for turn in self.turns if start <= turn[1] and turn[2] <= end and turn[1] < turn[2]]
        if not inside or (inside[0][1], inside[-1][2]) != (start, end):
            raise InputError(f"messages {start} to {end}: expected all messages of earlier turns")
        origins = [turn[0] for turn in self.turns]
        return tuple(origins[origins.index(inside[0][0]) : origins.index(inside[-1][0]) + 1])

    def without(self, cut: ContextCut) -> Shown:
        """The messages of a run that is asked with less.

        Raises:
            ConflictError: the cut names a turn that is not before this one, or not in their order, or
                has one summary of turns that do not follow each other.
        """
        stands = self._standing(cut)
        messages = list(self.messages[: self._instructions])
        size, at = self._instructions_size, self._instructions
        for turn in self._said:
            said = self.messages[at : at + turn.length]
            at += turn.length
            if turn.origin_id not in stands:
                messages += said
                size += turn.size
                continue
            summary = stands[turn.origin_id]
            kept: list[Message] = [message for message in said if type(message) is SystemMessage]
            if summary is not None and summary.origins[0] == turn.origin_id:
                kept.insert(0, summary_message(summary.text))
            messages += kept
            size += sum(len(sorted_bytes(message)) for message in kept)
        messages += self.messages[at:]
        size += self.size - self._instructions_size - self._said_size
        return Shown(tuple(messages), size)

    # -- private

    def _newest(self, origin_id: str, said: Sequence[Message], said_size: int) -> _Said:
        """What the newest turn said: its own messages but its instructions, and what came after."""
        length = len(self.messages) - self._instructions - self._said_length
        size = self.size - self._instructions_size - self._said_size
        return _Said(origin_id, length + len(said), size + said_size)

    def _standing(self, cut: ContextCut) -> dict[str, TurnSummary | None]:
        """Each turn that is not asked with, and the summary that stands for it."""
        places = {said.origin_id: at for at, said in enumerate(self._said)}

        def place(origin_id: str) -> int:
            if origin_id not in places:
                raise ConflictError(f"origin {origin_id!r}", "expected a turn before this one on its conversation")
            return places[origin_id]

        stands: dict[str, TurnSummary | None] = {}
        left_out = [(place(one.first), place(one.last), one.count) for one in cut.dropped]
        for first, last, count in left_out:
            if last - first + 1 != count:
                raise ConflictError("context", f"expected {count} turns that follow each other, got {last - first + 1}")
            stands.update((said.origin_id, None) for said in self._said[first : last + 1])
        for summary in cut.summaries:
            first = place(summary.origins[0])
            if [place(origin_id) for origin_id in summary.origins] != [*range(first, first + len(summary.origins))]:
                raise ConflictError(f"summary of {summary.origins[0]!r}", "expected turns that follow each other")
            if not stands.keys().isdisjoint(summary.origins):
                raise ConflictError(f"summary of {summary.origins[0]!r}", "expected turns that are not left out")
            stands.update((origin_id, summary) for origin_id in summary.origins)
        ends = [at for first, last, _ in left_out for at in ((first, last) if last > first else (first,))]
        for row in (ends, [place(summary.origins[0]) for summary in cut.summaries]):
            if row != sorted(set(row)):
                raise ConflictError("context", "expected the oldest turn first, and each once")
        return stands


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages come before anything else."""
    for at, message in enumerate(messages):
        if type(message) is not SystemMessage:
            return at
    return len(messages)
