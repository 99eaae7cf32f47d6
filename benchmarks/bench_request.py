"""Encoding the next request of a conversation, beside a floor that encodes the whole history again.

The cost of a turn must not grow with the turns before it, apart from one copy of their bytes; that
copy is measured too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from agentloop.messages import (
    JsonText,
    ModelExchange,
    ModelReply,
    ModelRequest,
    SystemMessage,
    Termination,
    Text,
    ToolCall,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import OPENAI

from .measure import Row, Settings, compare

__all__ = ["measure"]

_RESULT = "The quick brown fox jumps over the lazy dog and writes it down again, twice, in ink. " * 4


def measure(settings: Settings) -> list[Row]:
    """One more turn after 8, 50 and 200."""
    turns = (2, 4) if settings.smoke else (8, 50, 200)
    rows = []
    for before in turns:
        rows.append(
            compare(
                "request",
                f"turn {before} encoded",
                unit="us",
                scale=1e6,
                ours=_next_turn(before),
                floor=_whole_history(before),
                settings=settings,
            )
        )
        rows.append(
            compare(
                "request",
                f"turn {before}, the copy alone",
                unit="us",
                scale=1e6,
                ours=_copy(before),
                floor=None,
                settings=settings,
            )
        )
    return rows


def _messages() -> tuple[SystemMessage, UserMessage]:
    return SystemMessage(content="You read notes."), UserMessage(content="Read the notes, then write the report.")


def _exchange(number: int) -> ModelExchange:
    call = ToolCall(id=f"call_{number}", name="get_note", arguments=JsonText(text=f'{{"note_id":{number}}}'))
    reply = ModelReply(
        id=f"chatcmpl-{number}",
        model="bench-model",
        output=(Text(text="One more note."), call),
        termination=Termination(kind="completed", reason="tool_calls"),
        usage=None,
    )
    return ModelExchange(reply=reply, feedback=(ToolFeedback.of(call.id, ToolResult.ok(_RESULT)),))


def _next_turn(before: int) -> Callable[[], object]:
    messages, history = _messages(), tuple(_exchange(number) for number in range(before - 1))
    numbers: Iterator[int] = itertools.count(before)

    def encode() -> bytes:
        request = ModelRequest(messages=messages, exchanges=(*history, _exchange(next(numbers))))
        return encode_request(request, model="bench-model", dialect=OPENAI).body

    return encode


def _whole_history(before: int) -> Callable[[], object]:
    history = [message for number in range(before - 1) for message in _plain(number)]
    head: list[dict[str, Any]] = [
        {"role": "system", "content": "You read notes."},
        {"role": "user", "content": "Read the notes, then write the report."},
    ]
    numbers: Iterator[int] = itertools.count(before)
    encoder = msgspec.json.Encoder()

    def encode() -> bytes:
        messages = [*head, *history, *_plain(next(numbers))]
        return encoder.encode({"model": "bench-model", "stream": True, "messages": messages})

    return encode


def _plain(number: int) -> list[dict[str, Any]]:
    function = {"name": "get_note", "arguments": f'{{"note_id":{number}}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "One more note.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": _RESULT},
    ]


def _copy(before: int) -> Callable[[], object]:
    request = ModelRequest(messages=_messages(), exchanges=tuple(_exchange(number) for number in range(before)))
    parts = encode_request(request, model="bench-model", dialect=OPENAI).parts
    return lambda: b",".join(parts)
