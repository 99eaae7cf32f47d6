"""A complete exchange: one feedback a call, in call order."""

from __future__ import annotations

import pytest

from agentloop.errors import HistoryError, InputError
from agentloop.messages import ModelExchange, ToolFeedback, ToolResult
from tests.messages.values import call, exchange, reply


def fed(*ids: str) -> tuple[ToolFeedback, ...]:
    return tuple(ToolFeedback.of(id, ToolResult.ok(id)) for id in ids)


def test_every_call_has_its_feedback_in_call_order() -> None:
    """(R32, R165)"""
    made = exchange("c2", "c1")
    assert [item.tool_call_id for item in made.feedback] == [item.id for item in made.reply.calls] == ["c2", "c1"]
    assert ModelExchange(reply=reply()).feedback == ()


@pytest.mark.parametrize(
    ("ids", "code", "path"),
    [
        ((), "missing_tool_result", "$.feedback[0]"),
        (("c1",), "missing_tool_result", "$.feedback[1]"),
        (("c2", "c1"), "orphan_tool_result", "$.feedback[0]"),
        (("c1", "c1"), "orphan_tool_result", "$.feedback[1]"),
        (("c1", "c3"), "orphan_tool_result", "$.feedback[1]"),
        (("c1", "c2", "c2"), "orphan_tool_result", "$.feedback[2]"),
    ],
)
def test_feedback_that_is_missing_foreign_double_or_out_of_order_is_refused(
    ids: tuple[str, ...], code: str, path: str
) -> None:
    """(R32, R42)"""
    with pytest.raises(HistoryError) as caught:
        ModelExchange(reply=reply(call("c1"), call("c2")), feedback=fed(*ids))
    assert (caught.value.code, caught.value.path) == (code, path)


def test_feedback_for_a_reply_without_calls_is_an_orphan() -> None:
    """(R32)"""
    with pytest.raises(HistoryError, match="orphan_tool_result"):
        ModelExchange(reply=reply(), feedback=fed("c1"))


def test_only_values_make_an_exchange() -> None:
    with pytest.raises(InputError, match=r"ModelExchange\.reply"):
        ModelExchange(reply={})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ModelExchange\.feedback: expected tuple"):
        ModelExchange(reply=reply(), feedback=[])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ModelExchange\.feedback\[0\]"):
        ModelExchange(reply=reply(call("c1")), feedback=(ToolResult.ok("x"),))  # type: ignore[arg-type]
