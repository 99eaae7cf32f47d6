"""Streams made by hand, and the two things that can become of one."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentloop.errors import StreamRefused
from agentloop.messages import ModelReply
from agentloop.wire import OPENAI, Delta, Dialect, ReplyAssembler
from tests.source import ROOT

SHARED = ROOT.parent / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded streams are not beside the project")

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def chunk(*choices: object, **fields: Any) -> bytes:
    """One event with a chunk of these choices; a field that is ... is left out."""
    fields = {"id": "chatcmpl-1", "model": "model-1", "choices": list(choices), **fields}
    return event({name: value for name, value in fields.items() if value is not ...})


def event(value: object) -> bytes:
    """One event whose data is a JSON value."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def choice(delta: object = ..., *, finish: object = None, **fields: Any) -> dict[str, Any]:
    """Choice 0 with a delta."""
    fields = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
    return {name: value for name, value in fields.items() if value is not ...}


def text(words: str) -> bytes:
    return chunk(choice({"content": words}))


def call(index: object = ..., *, id: object = ..., name: object = ..., arguments: object = ..., **fields: Any) -> Any:
    """One entry of tool_calls."""
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not ...}
    entry = {"index": index, "id": id, "function": function, **fields}
    return {key: value for key, value in entry.items() if value is not ...}


def calls(*entries: object) -> bytes:
    return chunk(choice({"tool_calls": list(entries)}))


FIRST = chunk(choice({"role": "assistant", "content": ""}))
STOP = chunk(choice({}, finish="stop"))
CALLED = chunk(choice({}, finish="tool_calls"))
COUNTED = chunk(usage=USAGE)
OSLO = '{"city":"Oslo"}'
ROME = '{"city":"Rome"}'

HELLO = (FIRST, text("Hello"), text(", world"), STOP, COUNTED, DONE)
WEATHER = (
    FIRST,
    calls(call(0, id="call_a", name="get_weather", arguments="", type="function")),
    calls(call(0, arguments='{"city":')),
    calls(call(0, arguments='"Oslo"}')),
    CALLED,
    COUNTED,
    DONE,
)


def feed(parts: Iterable[bytes], dialect: Dialect = OPENAI, **limits: Any) -> tuple[ModelReply, list[Delta]]:
    """Feed the parts as they are; the reply and everything that was shown."""
    assembler = ReplyAssembler(dialect, **limits)
    shown: list[Delta] = []
    for part in parts:
        shown += assembler.feed(part)
    return assembler.finish(), shown


def accepted(*events: bytes, dialect: Dialect = OPENAI, **limits: Any) -> ModelReply:
    """The reply, which must be the same in one read, an event a read and a byte a read."""
    body = b"".join(events)
    whole = feed([body], dialect, **limits)[0]
    assert feed(events, dialect, **limits)[0] == whole
    assert feed([body[at : at + 1] for at in range(len(body))], dialect, **limits)[0] == whole
    return whole


def refused(*events: bytes, dialect: Dialect = OPENAI, **limits: Any) -> StreamRefused:
    """The refusal, which must be the same in one read, an event a read and a byte a read."""
    body = b"".join(events)
    whole = refusal([body], dialect, **limits)
    for parts in (events, [body[at : at + 1] for at in range(len(body))]):
        assert facts(refusal(parts, dialect, **limits)) == facts(whole)
    return whole


def refusal(parts: Iterable[bytes], dialect: Dialect = OPENAI, **limits: Any) -> StreamRefused:
    """The refusal of parts that are read as they are."""
    with pytest.raises(StreamRefused) as caught:
        feed(parts, dialect, **limits)
    return caught.value


def facts(refusal: StreamRefused) -> tuple[Any, ...]:
    """What must not depend on how the bytes were read."""
    return (refusal.code, refusal.event, refusal.byte, refusal.expected, refusal.got)


def allowing(*allowances: str) -> Dialect:
    """The strict rules with some allowances."""
    return msgspec.structs.replace(Dialect(name="test"), **dict.fromkeys(allowances, True))


def arguments(reply: ModelReply) -> list[tuple[str, str, str]]:
    """The calls as tuples."""
    return [(item.id, item.name, item.arguments.text) for item in reply.calls]


def shared(*names: str) -> Path:
    """A file that lies beside the project."""
    return SHARED.joinpath(*names)


def is_linear(seconds: Callable[[int], float], count: int) -> bool:
    """Whether ten times as much takes nearer to ten times as long than to a hundred times.

    A ratio in one process; the collector, whose work grows with what other tests left, is off.
    """
    gc.disable()
    try:
        return min(seconds(10 * count) for _ in range(3)) < 35 * min(seconds(count) for _ in range(5))
    finally:
        gc.enable()
