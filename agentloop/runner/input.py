"""What a model call is given, taken once: text or messages, and how much of the budget they may use."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InputError
from ..messages import Message, ModelExchange, ModelRequest, SystemMessage, UserMessage, require_model_request
from ..messages.require import user_text
from .built import BuiltContext
from .context import ContextPlan

__all__ = ["ModelInput", "taken"]

ModelInput = str | Message | Sequence[Message] | BuiltContext | ContextPlan
"""Text of one user message, one message, messages in order, a context, or a plan with messages to build one (R218)."""


def taken(input: ModelInput) -> BuiltContext:
    """The messages, as they are now: what the caller does to its list later changes nothing (R249).

    Of a plan, all that it is to build from.

    Raises:
        InputError: another type, or no message. AdmissionError, HistoryError: a message that is not valid.
    """
    if type(input) is str:
        return _whole((user_text(input),))
    if isinstance(input, (SystemMessage, UserMessage, ModelExchange)):
        messages: tuple[Message, ...] = (input,)
    elif isinstance(input, (list, tuple)):
        messages = tuple(input)
    elif isinstance(input, (BuiltContext, ContextPlan)):
        messages = input.messages
    else:
        raise InputError(f"input: expected text, messages, a context or a plan, got {type(input).__name__}")
    if not messages:
        raise InputError("input: expected at least one message, got none")
    require_model_request(ModelRequest(messages=messages))
    return input if type(input) is BuiltContext else _whole(messages)


def _whole(messages: tuple[Message, ...]) -> BuiltContext:
    return BuiltContext(messages=messages, max_chars=math.inf, source_messages=len(messages))
