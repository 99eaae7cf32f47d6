"""How much a model has to read, in characters: Unicode code points of text.

Counted are instructions, what a user says, texts and calls (name and raw arguments) of a reply, and
what tools answered. Not counted are images, ids, marks of the wire format, and what ``native`` keeps
for the provider: those have no length in characters that two providers would agree on. Characters are never
turned into tokens or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InputError
from .exchange import ModelExchange
from .parts import TextPart, ToolCall
from .request import Message, SystemMessage, UserMessage

__all__ = ["messages_chars", "text_chars"]


def messages_chars(messages: Iterable[Message]) -> int:
    """Characters of all texts in ``messages``; see `text_chars`. Linear in their parts."""
    return sum(map(text_chars, messages))


def text_chars(message: Message) -> int:
    """Characters of all texts that a model reads in one message; an image counts 0. Encodes nothing.

    Raises:
        InputError: it is no message.
    """
    if type(message) is ModelExchange:
        return _reply_chars(message) + sum(len(item.text) for answer in message.feedback for item in answer.content)
    if type(message) is SystemMessage:
        return len(message.content)
    if type(message) is UserMessage:
        content = message.content
        if type(content) is str:
            return len(content)
        return sum(len(part.text) for part in content if type(part) is TextPart)
    raise InputError(f"message: expected SystemMessage, UserMessage or ModelExchange, got {type(message).__name__}")


def _reply_chars(exchange: ModelExchange) -> int:
    count = 0
    for item in exchange.reply.output:
        if isinstance(item, ToolCall):
            count += len(item.name) + len(item.arguments.text)
        else:
            count += len(item.text)
    return count
