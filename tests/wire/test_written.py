"""What a model wrote, kept as what its visible text and its calls do not already say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agentloop.errors import AdmissionError
from agentloop.messages import ModelExchange, ModelReply, Native, ToolFeedback, ToolResult
from agentloop.wire import ToolCallParser, dialect, encode_message
from agentloop.wire.written import join_written
from tests.wire.streams import COUNTED, DONE, FIRST, STOP, accepted, text

TAGGED = dialect("openai", call_text=ToolCallParser())


def made(words: str) -> tuple[ModelReply, list[Any]]:
    reply = accepted(FIRST, text(words), STOP, COUNTED, DONE, dialect=TAGGED)
    return reply, json.loads(reply.native.data)["call_text"]["written"]


def call(arguments: str) -> str:
    return f'<tool_call>{{"name": "put", "arguments": {arguments}}}</tool_call>'


def test_pieces_refer_to_what_the_reply_holds_and_keep_the_rest() -> None:
    value = '{"note": "long"}'
    reply, pieces = made(f"First. {call(value)}\n\n{call('{}')} Then \n{call(value)}\n")
    begin, end = '<tool_call>{"name": "put", "arguments": ', "}</tool_call>"
    assert reply.text == "First. Then"
    assert pieces == [
        [0, 6],
        f" {begin}",
        0,
        f"{end}\n\n{begin}{{}}{end} ",
        [7, 4],
        f" \n{begin}",
        2,
        f"{end}\n",
    ]


def test_a_long_call_is_not_kept_twice() -> None:
    """Nor does a reply of it outgrow a limit that the same call would keep natively."""
    value = json.dumps({"text": 'say "yes" \n' * 2_000})
    reply, pieces = made(call(value))
    assert len(json.dumps(pieces)) < 120
    assert len(msgspec.json.encode(reply)) < len(json.dumps(value)) + 600


def test_malformed_text_is_not_kept_twice_either() -> None:
    reply, pieces = made(f"<tool_call>{'no ' * 1_000}</tool_call>")
    assert len(json.dumps(pieces)) < 60
    assert join_written(reply, pieces) == f"<tool_call>{'no ' * 1_000}</tool_call>"


@pytest.mark.parametrize(
    ("pieces", "where"),
    [
        (None, "written: expected an array, got NoneType"),
        ({}, "written: expected an array, got dict"),
        ([1], "written[0]: "),
        (["a", -1], "written[1]: "),
        ([True], "written[0]: "),
        ([[0]], "written[0]: "),
        ([[0, 1, 2]], "written[0]: "),
        ([[0, 7]], "written[0]: "),
        ([[-1, 1]], "written[0]: "),
        ([[1, -1]], "written[0]: "),
        ([["0", 1]], "written[0]: "),
        ([[0, 1.0]], "written[0]: "),
        ([None], "written[0]: "),
    ],
)
def test_pieces_that_do_not_fit_the_reply_are_refused_with_their_place(pieces: Any, where: str) -> None:
    reply, _ = made(f"First.{call('{}')}")
    with pytest.raises(AdmissionError) as caught:
        join_written(reply, pieces)
    assert str(caught.value).startswith(f"$.native.call_text.{where}")
    changed = msgspec.structs.replace(reply, native=Native(data=json.dumps({"call_text": {"written": pieces}})))
    exchange = ModelExchange(reply=changed, feedback=(ToolFeedback.of("call_0", ToolResult.ok("ok")),))
    with pytest.raises(AdmissionError, match="call_text"):
        encode_message(exchange, TAGGED)
