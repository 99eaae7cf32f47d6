"""A tool call's arguments as a client gets them."""

from __future__ import annotations

from typing import Any

import msgspec

from ...admission import parse
from ...errors import AdmissionError
from .chunks import Chunk, ToolInputAvailable, ToolInputError

__all__ = ["input_of"]


def input_of(call_id: str, tool: str, arguments: str, *, here: bool) -> Chunk:
    """A call's arguments exactly as they were written where they are a JSON object, else as text.

    Args:
        here: whether the call runs here; the client's own to run otherwise.
    """
    try:
        value = parse(arguments)
    except AdmissionError:
        value = None
    if type(value) is not dict:
        return ToolInputError(
            tool_call_id=call_id,
            tool_name=tool,
            input=arguments,
            error_text="The arguments are no JSON object.",
            dynamic=True,
            provider_executed=here,
        )
    # a client refuses a whole stream in which a key could change what its objects are
    exact: msgspec.Raw | str = arguments if _forbidden(value) else msgspec.Raw(_one_line(arguments))
    return ToolInputAvailable(tool_call_id=call_id, tool_name=tool, input=exact, dynamic=True, provider_executed=here)


def _one_line(arguments: str) -> bytes:
    """JSON without white space between its tokens; numbers stay as they were written."""
    return msgspec.json.format(arguments.encode(), indent=-1)


def _forbidden(value: Any) -> bool:
    """Whether an object of it has a key that a client's JSON reader refuses."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) is dict:
            inner = item.get("constructor")
            if "__proto__" in item or (type(inner) is dict and "prototype" in inner):
                return True
            waiting += item.values()
        elif type(item) is list:
            waiting += item
    return False
