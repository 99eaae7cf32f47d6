"""A model's complete reply: made only from a stream that was checked to its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import InputError
from .parts import Native, Termination, Text, ToolCall, Usage, Value, require_type

__all__ = ["ModelReply", "reply_text"]


class ModelReply(Value, frozen=True, dict=True, gc=True):
    """One complete reply, format version 1 (R16).

    Attributes:
        id, model: the reply's identity as the provider gave it; either may be empty. Never a key.
        output: texts and tool calls in the order in which they began.
        termination: how it ended.
        usage: tokens, or None where the provider reports none.
        native: continuation material outside the common fields. Common fields plus ``native`` are
            the only continuation material there is (R20).
    """

    id: str
    model: str
    output: tuple[Text | ToolCall, ...]
    termination: Termination
    usage: Usage | None
    native: Native = Native()
    format_version: Literal[1] = 1

    def __post_init__(self) -> None:
        if type(self.format_version) is not int or self.format_version != 1:
            raise InputError("ModelReply.format_version: expected 1")
        require_type("ModelReply.id", self.id, str)
        require_type("ModelReply.model", self.model, str)
        require_type("ModelReply.output", self.output, tuple)
        require_type("ModelReply.termination", self.termination, Termination)
        require_type("ModelReply.usage", self.usage, Usage, type(None))
        require_type("ModelReply.native", self.native, Native)
        ids: set[str] = set()
        for at, item in enumerate(self.output):
            require_type(f"ModelReply.output[{at}]", item, Text, ToolCall)
            if type(item) is ToolCall:
                if item.id in ids:
                    raise InputError(f"ModelReply.output[{at}].id: expected an id unique in the reply")
                ids.add(item.id)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in call order."""
        return tuple(item for item in self.output if type(item) is ToolCall)

    @property
    def text(self) -> str:
        """All body text, joined; present beside calls too. See `reply_text` for a final answer."""
        return "".join(item.text for item in self.output if type(item) is Text)

    @property
    def refusal(self) -> str | None:
        """The refusal text the model wrote instead of a body, None when there is none."""
        if '"refusal"' not in self.native.data:
            return None
        refusal = msgspec.json.decode(self.native.data).get("refusal")
        return refusal if type(refusal) is str and refusal else None


def reply_text(reply: ModelReply) -> str:
    """Return the body of a reply that asks for no tool (R28).

    It does not check that the body is non-empty or that the reply ended well (R29).

    Raises:
        InputError: the reply holds tool calls, so its text is not an answer.
    """
    if reply.calls:
        raise InputError(f"reply_text: expected a reply without tool calls, got {len(reply.calls)}")
    return reply.text
