"""A tool's answer, and the same addressed to a call."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from agentloop.errors import InputError
from agentloop.messages import TextContent, ToolFeedback, ToolResult
from tests.messages.values import results


def test_a_result_is_a_status_and_texts() -> None:
    """(R30, R160)"""
    assert json.loads(msgspec.json.encode(ToolResult.ok('{"id":1}'))) == {
        "status": "ok",
        "content": [{"kind": "text", "text": '{"id":1}'}],
    }


@given(results)
def test_feedback_is_a_result_with_the_id_of_its_call(result: ToolResult) -> None:
    """(R31)"""
    made = ToolFeedback.of("c1", result)
    assert ToolFeedback.__struct_fields__ == ("tool_call_id", *ToolResult.__struct_fields__)
    assert (made.tool_call_id, made.status, made.content) == ("c1", result.status, result.content)
    assert made.text == result.text


def test_an_error_is_said_by_the_status_and_never_by_wording() -> None:
    """(R33)"""
    assert ToolResult.ok("Error: it failed").status == "ok"
    assert ToolResult.error("all is well").status == "error"
    assert ToolResult.ok("x") != ToolResult.error("x")


@pytest.mark.parametrize("status", ["failed", "", "OK", None, True, type("S", (str,), {})("ok")])
def test_there_are_two_statuses(status: Any) -> None:
    """(R30, R33)"""
    with pytest.raises(InputError, match=r"ToolResult\.status"):
        ToolResult(status=status, content=())


@pytest.mark.parametrize("content", [[TextContent(text="a")], "a", ("a",), ({"kind": "text", "text": "a"},), None])
def test_content_is_a_tuple_of_texts(content: Any) -> None:
    """(R30)"""
    with pytest.raises(InputError, match=r"ToolResult\.content"):
        ToolResult(status="ok", content=content)


@pytest.mark.parametrize("call_id", ["", None, 1])
def test_feedback_without_a_call_id_cannot_be_made(call_id: Any) -> None:
    """(R31)"""
    with pytest.raises(InputError, match=r"ToolFeedback\.tool_call_id"):
        ToolFeedback(tool_call_id=call_id, status="ok", content=())
