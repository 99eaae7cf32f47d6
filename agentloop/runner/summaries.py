"""Contexts that need a model to be built: summaries are made by ordinary calls, one range at a time.

A summary is text that a model wrote of what was said. Each call of it is charged, stored and told like
any other one, and its reply stays what it was; what stands in the context is its text, cut to the
room that the plan keeps for it, with a mark that says so.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from ..errors import OutputRefused
from ..exchange.cut import summary_message
from ..messages import Message, ModelRequest, UserMessage, messages_chars
from .built import BuiltContext, NeedsSummary, Summary, SummaryOf, listed
from .context import ContextPlan, turns_of
from .tokens import TokenBudget
from .transports import PLAIN_TEXT

__all__ = ["Ask", "Purpose", "build_context", "counter_of", "require_summary"]

_MARK: Final = " [cut]"

Ask = Callable[[NeedsSummary, tuple[Message, ...]], Awaitable[tuple[str, str]]]
"""Makes one summary of messages, the last of which asks for it; gives its text and the run that it is stored as.

The messages are those of the range that is needed, or a part of them after a summary of the parts before."""


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is made for, where that is more than its runner's request.

    Attributes:
        ref: what it is stored as. parent: the run that it is made for. origins: see `CallBasis`.
    """

    ref: str
    parent: str
    origins: tuple[str, ...] = ()


async def build_context(
    plan: ContextPlan,
    messages: Sequence[Message],
    ask: Ask,
    *,
    summaries: Sequence[SummaryOf] = (),
    dropped: Sequence[tuple[int, int]] = (),
    steers: Sequence[int] = (),
    tokens: TokenBudget | None = None,
    max_chars: float = math.inf,
) -> BuiltContext:
    """Build a plan's context, asking for each summary that it needs.

    A range that is too long for one call is read in parts, each after the summary of those before it.

    Args:
        ask: see `Ask`. summaries, dropped: what is known, and was left out before; see `ContextPlan.build`.
        steers: places of user messages that begin no turn; as there.
        tokens: who counts, for a plan with a budget in tokens.
        max_chars: what one call may be given to read.

    Raises:
        LimitExceeded, InputError: as `ContextPlan.build`. Exception: what ``ask`` raised.
    """
    known = listed("summaries", summaries)
    while True:
        built = plan.build(messages, summaries=known, dropped=dropped, steers=steers, count=counter_of(tokens))
        if type(built) is BuiltContext:
            return built
        assert type(built) is NeedsSummary, "a plan gives one of the two"
        text, ref = "", ""
        for part in _parts(built, max_chars):
            read = (summary_message(text), *part) if text else part
            text, ref = await ask(built, (*read, _request(built.summary)))
            text = _fitting(text, built.summary)
        inside = tuple(one for one in known if not (built.start <= one.start and one.end <= built.end))
        known = (*inside, SummaryOf(start=built.start, end=built.end, text=text, ref=ref))


def _request(summary: Summary) -> UserMessage:
    return UserMessage(content=f"{summary.instruction} At most {summary.max_chars} characters.")


def _parts(needed: NeedsSummary, max_chars: float) -> list[tuple[Message, ...]]:
    """The messages in parts of whole turns that can be read one by one; a turn that is too long is one of its own."""
    summary = needed.summary
    room = max_chars - messages_chars((_request(summary), summary_message("x" * summary.max_chars)))
    parts: list[list[Message]] = [[]]
    size = 0
    for start, end in turns_of(needed.messages):
        turn = needed.messages[start:end]
        chars = messages_chars(turn)
        if parts[-1] and size + chars > room:
            parts.append([])
            size = 0
        parts[-1] += turn
        size += chars
    return [tuple(part) for part in parts]


def require_summary(text: str, ref: str) -> str:
    """Refuse a text that says nothing: turns are not left out in silence.

    Raises:
        OutputRefused: ``no_output``.
    """
    if not text.strip():
        raise OutputRefused("no_output", "expected a summary, got an empty text", transport=PLAIN_TEXT, ref=ref)
    return text


def counter_of(tokens: TokenBudget | None) -> Callable[[Sequence[Message]], int] | None:
    """What counts the tokens of messages alone, None where nobody counts."""
    if tokens is None:
        return None
    return lambda messages: tokens.count(ModelRequest(messages=tuple(messages))) if messages else 0


def _fitting(text: str, summary: Summary) -> str:
    """The text, or as much of it as there is room for, with a mark where that has room."""
    room = summary.max_chars
    if len(text) <= room:
        return text
    return text[: max(0, room - len(_MARK))] + _MARK if room > len(_MARK) else text[:room]
