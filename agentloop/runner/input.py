"""What a model call is given, taken once: text or messages, and how much of the budget they may use."""

from __future__ import annotations

from collections.abc import Sequence

from ..admission import is_unicode
from ..errors import InputError
from ..limits import JSON_BYTES
from ..messages import Message, ModelRequest, SystemMessage, UserMessage, require_model_request

__all__ = ["ModelInput", "taken"]

ModelInput = str | Message | Sequence[Message]
"""Text of one user message, one message, or messages in order."""

_SHORT = JSON_BYTES // 8
"""Characters that are within the limit of a request however JSON escapes them."""


def taken(input: ModelInput) -> tuple[Message, ...]:
    """The messages, as they are now: what the caller does to its list later changes nothing (R249).

    Raises:
        InputError: another type, or no message. AdmissionError, HistoryError: a message that is not valid.
    """
    if type(input) is str and len(input) <= _SHORT and is_unicode(input):
        return (UserMessage(content=input),)  # a str that UTF-8 encodes has nothing else to check
    if type(input) is str:
        messages: tuple[Message, ...] = (UserMessage(content=input),)
    elif isinstance(input, (SystemMessage, UserMessage)):
        messages = (input,)
    elif isinstance(input, (list, tuple)):
        messages = tuple(input)
    else:
        raise InputError(f"input: expected text or a list of messages, got {type(input).__name__}")
    if not messages:
        raise InputError("input: expected at least one message, got none")
    require_model_request(ModelRequest(messages=messages))
    return messages
