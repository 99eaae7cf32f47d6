"""What a user says while a run goes on: user messages between its exchanges.

A steer is stored when it is given, and waits. The next request of the run that is no repetition of a
refused one has all that wait, after the complete exchanges that there are then. So where each of them
stands follows from the order of the facts alone. Digests chain over it: a request with a steer has
another digest than the one before it, and the next exchange chains over that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ..admission import chain
from ..messages import Message, ModelExchange, UserMessage

__all__ = ["Placed", "Steers", "said"]

_DOMAIN: Final = "agentloop/steer/v1"


class Placed(msgspec.Struct, frozen=True):
    """Steers that one request brought in.

    Attributes:
        after: how many exchanges of the turn stand before them.
        messages: one or more. size: bytes of their canonical JSON.
        digest: of that request, so the chain over them.
    """

    after: int
    messages: tuple[UserMessage, ...]
    size: int
    digest: str


class Steers:
    """The steers of one turn. Only `State.install` changes it.

    Attributes:
        pending: those that no request has yet, oldest first. pending_size: bytes of their canonical JSON.
        placed: the others, by the requests that brought them in.
    """

    __slots__ = ("_encoded", "pending", "pending_size", "placed")

    def __init__(self) -> None:
        self.pending: tuple[UserMessage, ...] = ()
        self.pending_size = 0
        self.placed: tuple[Placed, ...] = ()
        self._encoded: tuple[bytes, ...] = ()  # of the pending ones, until a digest covers them

    def add(self, message: UserMessage, encoded: bytes) -> None:
        """One more waits; ``encoded`` is its canonical JSON."""
        self.pending += (message,)
        self._encoded += (encoded,)
        self.pending_size += len(encoded)

    def place(self, after: int, digest: str) -> None:
        """A request of that digest, after that many exchanges, has all that waited."""
        self.placed += (Placed(after, self.pending, self.pending_size, digest),)
        self.pending, self._encoded, self.pending_size = (), (), 0

    def digest(self, tip: str) -> str:
        """Of a request with all that wait; ``tip`` is that of what was said before them."""
        return chain(_DOMAIN, tip, *self._encoded)

    def follow(self, count: int) -> bool:
        """Whether one stands after so many exchanges, or waits to."""
        return bool(self.pending) or (bool(self.placed) and self.placed[-1].after == count)

    def before(self, count: int) -> tuple[Placed, ...]:
        """Those that stand before the last of so many exchanges; a reply has answered them."""
        return tuple(one for one in self.placed if one.after < count)


def said(exchanges: Sequence[ModelExchange], steers: Sequence[Placed]) -> tuple[Message, ...]:
    """Exchanges and the steers between them, in the order in which they were said."""
    messages: list[Message] = []
    at = 0
    for one in steers:
        messages += exchanges[at : one.after]
        messages += one.messages
        at = one.after
    messages += exchanges[at:]
    return tuple(messages)
