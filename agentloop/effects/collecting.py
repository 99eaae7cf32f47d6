"""What makes a value of an answer while it arrives, as a send sees it."""

from __future__ import annotations

from typing import Protocol

from ..messages import ModelReply
from ..wire.deltas import CallDelta, TextDelta

__all__ = ["Collecting"]


class Collecting(Protocol):
    """Takes the pieces of an answer, and the checked reply at its end. Made for one model call.

    An error that it raises ends the attempt. Where it only does not want the answer, it raises none, and
    says so from `finish`: the reply is stored then.
    """

    @property
    def peak(self) -> int:
        """The most characters that were held."""
        ...

    def call(self) -> str | None:
        """A word on the call for diagnostics. Never raises."""
        ...

    def begin(self) -> None:
        """The attempt is admitted and charged; nothing was sent yet."""
        ...

    def take(self, delta: TextDelta | CallDelta) -> None:
        """The next piece, before anybody is shown it."""
        ...

    def check(self) -> None:
        """Asked before the request leaves, and last before a reply with a value is stored.

        Raises:
            asyncio.CancelledError: it is no longer wanted.
        """
        ...

    def finish(self, reply: ModelReply) -> Exception | None:
        """Make the value; return why there is none, be it that a piece was refused before."""
        ...
