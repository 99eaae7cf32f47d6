"""A conversation as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...messages import Message, ModelExchange, TextPart, UserMessage
from ..inert import clean, one_line

__all__ = ["transcript", "user_words"]


def transcript(title: str, agent: str, messages: Iterable[Message]) -> str:
    """What was said, with the tool calls and what they brought; the instructions are left out.

    What would steer a terminal is replaced, so that the file can be shown on one.
    """
    parts = [f"# {one_line(title)}"]
    for message in messages:
        if isinstance(message, UserMessage):
            parts += ["## You", user_words(message)]
        elif isinstance(message, ModelExchange):
            parts += [f"## {one_line(agent)}", *_exchange(message)]
    return "\n\n".join(clean(part) for part in parts if part) + "\n"


def user_words(message: UserMessage) -> str:
    """The text of a user's message; a picture is only named."""
    if isinstance(message.content, str):
        return message.content
    return "\n\n".join(part.text if isinstance(part, TextPart) else "(a picture)" for part in message.content)


def _exchange(message: ModelExchange) -> Iterator[str]:
    reply = message.reply
    yield reply.text
    if reply.refusal:
        yield f"Refused: {reply.refusal}"
    for call, feedback in zip(reply.calls, message.feedback, strict=True):
        yield f"Call of `{call.name}`:"
        yield _fenced(call.arguments.text, "json")
        yield "Its result:" if feedback.status == "ok" else "Its error:"
        yield _fenced(feedback.text)


def _fenced(text: str, info: str = "") -> str:
    """A block that the text itself cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{info}\n{text}\n{fence}"
