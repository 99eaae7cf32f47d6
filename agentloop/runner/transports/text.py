"""Text as the answer, and the collector of every answer that is a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ...errors import OutputRefused
from ...messages import ModelReply
from ...wire.deltas import CallDelta
from ..transport import Fragment, Interaction, Stage
from .rules import fitting, require_completed

__all__ = ["PLAIN_TEXT", "PlainText", "TextCollector"]

T_co = TypeVar("T_co", covariant=True)

PLAIN_TEXT: Final = "core:plain-text"
"""Id of the transport that a runner uses where none is named (R222)."""


class TextCollector(Generic[T_co]):
    """Collects a text, refuses calls, and makes the value of the checked reply's text (R203).

    Args:
        transport: id of the transport, for refusals.
        build: makes the value of the whole text; may raise `OutputRefused`.

    Attributes:
        output_chars: characters of text so far; of the whole reply once it is finished.
    """

    __slots__ = ("_build", "_transport", "output_chars")

    def __init__(self, transport: str, build: Callable[[str], T_co]) -> None:
        self._transport, self._build = transport, build
        self.output_chars = 0

    def push(self, fragment: Fragment, /) -> None:
        """Count the next piece of text.

        Raises:
            OutputRefused: ``unexpected_call``, or ``bad_fragment`` for what is neither text nor call.
        """
        if isinstance(fragment, str):
            self.output_chars += len(fragment)
        elif isinstance(fragment, CallDelta):
            raise self._call_refused()
        else:
            rule = f"expected a fragment of type str or CallDelta, got {type(fragment).__name__}"
            raise OutputRefused("bad_fragment", rule, transport=self._transport)

    def finish(self, reply: ModelReply, /) -> T_co:
        """The value of the reply's text.

        Raises:
            OutputRefused: ``incomplete``, ``refused``, ``unexpected_call``, or what ``build`` refuses.
        """
        require_completed(reply, self._transport)
        if reply.calls:
            raise self._call_refused()
        text = reply.text
        self.output_chars = len(text)
        return fitting(lambda: self._build(text), transport=self._transport)

    def _call_refused(self) -> OutputRefused:
        return OutputRefused("unexpected_call", "expected text, got a tool call", transport=self._transport)


class PlainText:
    """The reply's text as the value; ``""`` is one too.

    Attributes:
        id: ``core:plain-text``.
    """

    @property
    def id(self) -> str:
        return PLAIN_TEXT

    def prepare(self, _stage: Stage, /) -> Interaction[str]:
        """An interaction that adds nothing to the request."""
        return Interaction(create_response=lambda: TextCollector(PLAIN_TEXT, str), route="text")

    def __repr__(self) -> str:
        return "<PlainText>"
