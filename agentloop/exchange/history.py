"""What a request's messages are when a turn begins: earlier turns' messages and its own.

The system messages that open a turn are its instructions. A turn that brings none keeps those of
the turn before; one that brings some replaces them, in the same place. Everything else is kept in
the order in which it was said, so that a request is a prefix of the conversation's next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import Message, ModelExchange, SystemMessage

__all__ = ["History"]


class History:
    """The messages of one turn's requests.

    Attributes:
        messages: all of them, instructions first.
        size: bytes of their canonical JSON.
    """

    __slots__ = ("_instructions", "_instructions_size", "messages", "size")

    def __init__(self, messages: tuple[Message, ...], sizes: Sequence[int]) -> None:
        self.messages, self.size = messages, sum(sizes)
        self._instructions = _leading(messages)
        self._instructions_size = sum(sizes[: self._instructions])

    def following(
        self,
        exchanges: Sequence[ModelExchange],
        exchanges_size: int,
        messages: tuple[Message, ...],
        sizes: Sequence[int],
    ) -> History:
        """The history of the turn that says ``messages`` after these messages and ``exchanges``.

        Args:
            exchanges_size: bytes of ``exchanges``. sizes: bytes of each of ``messages``.
        """
        own = _leading(messages)
        first = self._instructions
        after = History.__new__(History)
        after._instructions = own or first
        after._instructions_size = sum(sizes[:own]) if own else self._instructions_size
        after.messages = (
            *(messages[:own] or self.messages[:first]),
            *self.messages[first:],
            *exchanges,
            *messages[own:],
        )
        spoken = self.size - self._instructions_size + exchanges_size + sum(sizes[own:])
        after.size = after._instructions_size + spoken
        return after


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages come before anything else."""
    for at, message in enumerate(messages):
        if type(message) is not SystemMessage:
            return at
    return len(messages)
