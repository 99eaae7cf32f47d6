"""Fewer messages from many: a plan says how, and what it builds fits a budget or is refused.

What is left out, or stands as a summary, are *whole turns*: a run of user messages with the exchanges
that answer them, up to the next user message after an exchange, unless that goes on with the turn. So a
call never loses its result, and a question never its answer. Always kept are system messages, turns
with a pinned part, and the newest turns; of the others the oldest go first, and no more of them than
must.

Building is pure: the same messages and summaries always give the same. Kept messages are the same
objects, with all that a provider wants back of a reply. The plan never asks a model: where it needs
a summary it says of what, and whoever makes it builds again with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from ..errors import InputError, LimitExceeded
from ..exchange import summary_message
from ..limits import SAFE_INTEGER, check_chars, check_count
from ..messages import Message, ModelExchange, SystemMessage, UserMessage, messages_chars
from .built import (
    BuiltContext,
    NeedsSummary,
    Summary,
    SummaryOf,
    check_messages,
    check_ranges,
    check_summaries,
    listed,
)

__all__ = ["ContextPlan", "TokenCount", "turns_of"]

TokenCount = Callable[[Sequence[Message]], int]
"""Counts the tokens of messages. Of fewer messages it must not count more, and of equal ones the same."""


class ContextPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to make messages that fit from a longer list.

    Attributes:
        max_chars: budget in characters as `messages_chars` counts them (images count nothing): an
            integer of 0 or more, or ``math.inf``.
        max_tokens: budget in tokens, which the caller of `build` counts; 0 and up. Exactly one of
            the two budgets is given: neither is ever guessed from the other.
        down_to: messages that are over the budget are brought down to this, 0 to the budget, in the unit of
            the budget; None is the budget itself. With what a context before left out or summarised handed
            to `build`, what follows keeps the same beginning until the budget is reached again, so that
            a provider's prompt cache holds. Not a limit: where what must be kept is over it, all goes
            that may.
        keep_last: how many of the newest turns are always kept, 1 and up. User messages that follow each
            other without a reply between them are one turn, with the exchanges that answer them; so a
            talk without any reply is one turn, and is never cut.
        pinned: what is always kept, with its whole turn: places in the list from 0 (one that the list
            does not reach pins nothing), and user messages, which pin every equal one. Every message of the
            list has a place, system messages (an agent's instructions) too.
        strategy: ``drop`` leaves turns out; ``summarise`` has a summary stand for them.
        summary: how a summary is asked for; its room is below the budget.
        messages: what is built from where `build` is given nothing else.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """

    max_chars: int | float | None = None
    max_tokens: int | None = None
    down_to: int | None = None
    keep_last: int = 1
    pinned: tuple[int | UserMessage, ...] = ()
    strategy: Literal["drop", "summarise"] = "drop"
    summary: Summary = Summary()
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if (self.max_chars is None) == (self.max_tokens is None):
            raise InputError("ContextPlan: expected a budget, either max_chars= or max_tokens=")
        if self.max_chars is not None:
            check_chars("ContextPlan.max_chars", self.max_chars)
        else:
            check_count("ContextPlan.max_tokens", self.max_tokens, 0)
        if self.down_to is not None:
            check_count("ContextPlan.down_to", self.down_to, 0, int(min(self._budget[1], SAFE_INTEGER)))
        check_count("ContextPlan.keep_last", self.keep_last, 1)
        if type(self.pinned) is not tuple or any(type(pin) not in (int, UserMessage) for pin in self.pinned):
            raise InputError("ContextPlan.pinned: expected a tuple of places and user messages")
        for pin in self.pinned:
            if type(pin) is int:
                check_count("ContextPlan.pinned", pin, 0)
        if type(self.strategy) is not str or self.strategy not in ("drop", "summarise"):
            raise InputError("ContextPlan.strategy: expected 'drop' or 'summarise'")
        if type(self.summary) is not Summary:
            raise InputError(f"ContextPlan.summary: expected Summary, got {type(self.summary).__name__}")
        if self.strategy == "summarise" and self.max_tokens is not None and self.summary.max_tokens is None:
            raise InputError("ContextPlan.summary: expected max_tokens= for a budget in tokens")
        if self.strategy == "summarise":
            self._check_room()
        check_messages("ContextPlan.messages", self.messages)

    def _check_room(self) -> None:
        """Refuse room for a summary that could never fit, whatever is left out beside it."""
        name = "max_tokens" if self.max_chars is None else "max_chars"
        room, allowed = getattr(self.summary, name), self._budget[1]
        if room >= allowed:
            raise InputError(f"ContextPlan.summary: expected {name} below the plan's {int(allowed)}, got {room}")

    def build(
        self,
        messages: Sequence[Message] | None = None,
        *,
        summaries: Sequence[SummaryOf] = (),
        dropped: Sequence[tuple[int, int]] = (),
        steers: Sequence[int] = (),
        count: TokenCount | None = None,
    ) -> BuiltContext | NeedsSummary:
        """Make messages that fit, or say which summary they need.

        Messages that fit as they are stay as they are. Cost: linear in the messages, times the
        logarithm of their turns where they do not fit.

        Args:
            messages: oldest first; None is the plan's own.
            summaries: known ones, each of whole turns of ``messages``. One that lies in another one's
                range, or is of a turn that is kept, is not used; nor is any with strategy ``drop``.
            dropped: ranges of whole turns that were left out before (`BuiltContext.dropped`). They are left
                out again where the messages fit then, but for those that are kept now, and nothing
                else is; not used with strategy ``summarise``.
            steers: places of user messages that go on with the turn before them, as what a user says
                to a run that goes on does.
            count: counts tokens; needed for ``max_tokens``, and not asked for ``max_chars``.

        Raises:
            LimitExceeded: ``max_context_chars`` or ``max_context_tokens``: what must be kept, with the
                room for summaries, is over the budget.
            InputError: tokens that nobody counts, a summary or a range that is not of whole turns, or a
                summary that overlaps another one.
        """
        said = self.messages if messages is None else listed("messages", messages)
        check_messages("messages", said)
        known = check_summaries("summaries", listed("summaries", summaries))
        return _Building(self, said, steers, self._measure(count)).built(known, check_ranges("dropped", dropped))

    @property
    def _budget(self) -> tuple[str, int | float]:
        """Name of the limit, and what it allows."""
        if self.max_chars is not None:
            return "max_context_chars", self.max_chars
        assert self.max_tokens is not None, "one budget is given"
        return "max_context_tokens", self.max_tokens

    def _measure(self, count: TokenCount | None) -> TokenCount:
        if self.max_chars is not None:
            return messages_chars
        if count is None:
            raise InputError("count: expected what counts tokens, for a plan with max_tokens")
        if not callable(count):
            raise InputError(f"count: expected a function that counts tokens, got {type(count).__name__}")

        def checked(messages: Sequence[Message]) -> int:
            tokens = count(messages)
            check_count("count()", tokens, 0)
            return tokens

        return checked


class _Turns(msgspec.Struct, frozen=True):
    """Some turns that follow each other, as a range of the messages.

    ``summary`` stands in their place; None leaves them out.
    """

    start: int
    end: int
    summary: SummaryOf | None


class _Building:
    """One list of messages, cut into turns, on its way to fit."""

    def __init__(
        self, plan: ContextPlan, messages: tuple[Message, ...], steers: Sequence[int], measure: TokenCount
    ) -> None:
        self._plan, self._messages, self._measure = plan, messages, measure
        self._turns = turns_of(messages, steers)
        kept = _pinned(plan.pinned, messages)
        newest = len(self._turns) - plan.keep_last
        self._loose = [
            (start, end)
            for at, (start, end) in enumerate(self._turns)
            if at < newest and not any(start <= place < end for place in kept)
        ]

    def built(self, known: Sequence[SummaryOf], dropped: Sequence[tuple[int, int]]) -> BuiltContext | NeedsSummary:
        whole = self._measure(self._messages)
        if whole <= self._plan._budget[1]:
            return self._context([])
        return self._dropped(dropped) if self._plan.strategy == "drop" else self._summarised(self._usable(known))

    # -- leaving out

    def _dropped(self, before: Sequence[tuple[int, int]]) -> BuiltContext:
        def out(turns: Sequence[tuple[int, int]]) -> list[_Turns]:
            return [_Turns(start, end, None) for start, end in _joined(turns)]

        again = out(self._again(before))
        if again and self._measure(self._without(again)) <= self._plan._budget[1]:
            return self._context(again)
        count = self._fewest(1, lambda count: self._measure(self._without(out(self._loose[:count]))))
        return self._context(out(self._loose[:count]))

    def _again(self, before: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The turns that were left out before and may be now."""
        starts, ends = {start for start, _ in self._turns}, {end for _, end in self._turns}
        for start, end in before:
            if start not in starts or end not in ends:
                raise InputError(f"dropped: expected ranges of whole turns, got {start} to {end}")
        return [turn for turn in self._loose if any(start <= turn[0] < end for start, end in before)]

    def _fewest(self, low: int, weight: Callable[[int], int]) -> int:
        """How many of the oldest loose turns go, ``low`` or more: the fewest that come down to where they shall.

        Where no number of them comes down so far, all go that may; where that is over the budget, the
        fewest that are within it.

        Raises:
            LimitExceeded: no number of them is enough.
        """
        limit, allowed = self._plan._budget
        target = self._plan.down_to
        if target is not None and target < allowed:
            enough, _ = self._within(target, low, weight)
            if enough is None and weight(len(self._loose)) <= allowed:
                enough = len(self._loose)
            if enough is not None:
                return enough
        enough, least = self._within(allowed, low, weight)
        if enough is None:
            raise LimitExceeded(limit, int(allowed), least)
        return enough

    def _within(self, allowed: float, low: int, weight: Callable[[int], int]) -> tuple[int | None, int]:
        """The fewest that come to no more than that, None where no number does; and the least that was seen.

        Among turns that follow each other each one more makes it lighter; behind a kept one another
        summary may be needed, so each row of turns is searched by itself.
        """
        least = weight(0)
        for high in self._row_ends():
            if high < low:
                continue
            got = weight(high)
            least = min(least, got)
            if got <= allowed:
                return _first(low, high, lambda count: weight(count) <= allowed), got
            low = high + 1
        return None, least

    def _row_ends(self) -> list[int]:
        """How many loose turns there are up to the end of each row of them."""
        ends = [at for at, (before, after) in enumerate(pairwise(self._loose), 1) if before[1] != after[0]]
        return [*ends, len(self._loose)] if self._loose else []

    # -- summarising

    def _usable(self, known: Sequence[SummaryOf]) -> list[SummaryOf]:
        """The known summaries that may stand, oldest first."""
        starts, ends = {start for start, _ in self._turns}, {end for _, end in self._turns}
        loose = set(self._loose)
        usable: list[SummaryOf] = []
        for one in sorted(known, key=lambda one: (one.start, -one.end)):
            if one.start not in starts or one.end not in ends:
                raise InputError(f"summaries: expected one of whole turns, got {one.start} to {one.end}")
            if usable and one.start < usable[-1].end:
                if one.end > usable[-1].end:
                    raise InputError(f"summaries: expected no overlap, got one at {one.start} to {one.end}")
            elif all(turn in loose for turn in self._turns if one.start <= turn[0] < one.end):
                usable.append(one)
        return usable

    def _summarised(self, known: Sequence[SummaryOf]) -> BuiltContext | NeedsSummary:
        standing = [_Turns(one.start, one.end, one) for one in known]
        if standing and self._measure(self._without(standing)) <= self._plan._budget[1]:
            return self._context(standing)
        ranges = {(one.start, one.end): one for one in known}

        def out(count: int) -> list[_Turns]:
            return [_Turns(start, end, ranges.get((start, end))) for start, end in _joined(self._loose[:count])]

        def weight(count: int) -> int:
            groups = out(count)
            missing = sum(group.summary is None for group in groups)
            return self._measure(self._without(groups)) + missing * self._room()

        under = sum(start < known[-1].end for start, _ in self._loose) if known else 0
        groups = out(self._fewest(max(1, under), weight))
        for group in groups:
            if group.summary is None:
                return self._needed(group.start, group.end, known)
        return self._context(groups)

    def _room(self) -> int:
        """What a summary that is not there yet may come to."""
        summary = self._plan.summary
        text = summary.max_chars if self._plan.max_chars is not None else summary.max_tokens
        assert text is not None, "checked when the plan was made"
        return self._measure((summary_message(""),)) + text

    def _needed(self, start: int, end: int, known: Sequence[SummaryOf]) -> NeedsSummary:
        inside = [_Turns(one.start, one.end, one) for one in known if start <= one.start < end]
        read = tuple(_without(self._messages[:end], inside, start))
        spoken = tuple(message for message in read if type(message) is not SystemMessage)
        return NeedsSummary(start=start, end=end, messages=spoken, summary=self._plan.summary)

    # -- what comes of it

    def _without(self, groups: Sequence[_Turns]) -> tuple[Message, ...]:
        return tuple(_without(self._messages, groups))

    def _context(self, groups: Sequence[_Turns]) -> BuiltContext:
        max_chars = self._plan.max_chars
        return BuiltContext(
            messages=self._without(groups) if groups else self._messages,
            max_chars=math.inf if max_chars is None else max_chars,
            dropped=tuple((group.start, group.end) for group in groups if group.summary is None),
            summaries=tuple(group.summary for group in groups if group.summary is not None),
            source_messages=len(self._messages),
        )


def turns_of(messages: Sequence[Message], steers: Container[int] = ()) -> list[tuple[int, int]]:
    """Ranges of the turns. A system message is in the turn it was said in; leading ones are in none.

    ``steers`` are places of user messages that begin none.
    """
    starts: list[int] = []
    answered = True
    for at, message in enumerate(messages):
        if type(message) is ModelExchange:
            if not starts:
                starts.append(at)
            answered = True
        elif type(message) is UserMessage and answered and at not in steers:
            starts.append(at)
            answered = False
    return list(pairwise([*starts, len(messages)]))


def _pinned(pins: Sequence[int | UserMessage], messages: Sequence[Message]) -> list[int]:
    places = {pin for pin in pins if type(pin) is int}
    said = [pin for pin in pins if type(pin) is UserMessage]
    return [at for at, message in enumerate(messages) if at in places or message in said]


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number for which something holds that holds from there on, up to ``high``."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _joined(turns: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same turns, those that follow each other as one range."""
    ranges: list[tuple[int, int]] = []
    for start, end in turns:
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def _without(messages: Sequence[Message], groups: Sequence[_Turns], start: int = 0) -> list[Message]:
    """The messages from ``start`` on, with groups of turns left out or summarised."""
    kept: list[Message] = []
    at = start
    for group in groups:
        kept += messages[at : group.start]
        if group.summary is not None:
            kept.append(summary_message(group.summary.text))
        kept += [message for message in messages[group.start : group.end] if type(message) is SystemMessage]
        at = group.end
    kept += messages[at:]
    return kept
