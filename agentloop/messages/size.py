"""How much a model has to read, in characters: Unicode code points of text.

Counted are instructions, what a user says, texts and calls (name and raw arguments) of a reply, and
what tools answered. Not counted are images, ids, marks of the wire format, and what ``native`` keeps
for the provider: those have no length in characters that two providers would agree on. Characters are never
turned into tokens or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import InputError
from .exchange import ModelExchange
from .parts import TextPart, ToolCall
from .request import Message, SystemMessage, UserMessage

__all__ = ["message_texts", "messages_chars", "text_chars"]


def messages_chars(messages: Iterable[Message]) -> int:
    """Characters of all texts in ``messages``; see `text_chars`. Linear in their parts."""
    return sum(map(text_chars, messages))


def text_chars(message: Message) -> int:
    """Characters of all texts that a model reads in one message; an image counts 0. Encodes nothing.

    Raises:
        InputError: it is no message.
    """
    return sum(map(len, message_texts(message)))


def message_texts(message: Message) -> Iterator[str]:
    """The texts that a model reads in one message, in order; of a call its name and its raw arguments.

    What a counter of tokens goes through, for instance. Images have no text.

    Raises:
        InputError: it is no message.
    """
    if type(message) is ModelExchange:
        for item in message.reply.output:
            if type(item) is ToolCall:
                yield item.name
                yield item.arguments.text
            else:
                yield item.text  # type: ignore[union-attr]  # mypy does not narrow unions by type()
        for answer in message.feedback:
            yield from (part.text for part in answer.content)
    elif type(message) is SystemMessage:
        yield message.content
    elif type(message) is UserMessage:
        content = message.content
        if type(content) is str:
            yield content
        else:
            yield from (part.text for part in content if type(part) is TextPart)
    else:
        raise InputError(f"message: expected SystemMessage, UserMessage or ModelExchange, got {type(message).__name__}")
