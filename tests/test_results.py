"""What a run came to."""

from __future__ import annotations

from typing import Any

import pytest

import agentloop as al
from agentloop.loop import drive
from agentloop.results import result_of
from agentloop.testing import reply
from tests.effects.stage import Stage


async def result(answer: Any) -> al.RunResult:
    stage = Stage([answer])
    scope = await stage.open()
    await drive(scope)
    return result_of(scope.turn)


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (reply("hi"), "completed", "stop"),
        (reply(""), "completed", "stop"),
        (reply("hi", finish="length"), "incomplete", "length"),
        (reply("hi", finish="content_filter"), "refused", "content_filter"),
        (reply("", refusal="No."), "refused", "stop"),
        (reply("hi", finish="pause_turn"), "incomplete", "pause_turn"),
    ],
)
async def test_an_outcome_and_the_models_own_word_for_it(answer: Any, outcome: str, reason: str) -> None:
    """(R24, R25, R26)"""
    got = await result(answer)
    assert (got.outcome, got.reason, got.text) == (outcome, reason, answer.text)
    assert got.refusal == answer.refusal
    if outcome == "completed":
        assert got.require_text() == answer.text
    else:
        with pytest.raises(al.OutcomeError) as caught:
            got.require_text()
        assert (caught.value.outcome, caught.value.reason, caught.value.ref) == (outcome, reason, "r")


async def test_that_a_run_completed_says_nothing_about_its_text() -> None:
    """(R27, R29)"""
    assert (await result(reply(""))).require_text() == ""


async def test_a_result_is_frozen_and_equal_by_content() -> None:
    one, two = await result(reply("hi")), await result(reply("hi"))
    assert one == two
    with pytest.raises(AttributeError):
        one.text = "other"  # type: ignore[misc]


async def test_a_run_that_goes_on_or_raised_has_no_result() -> None:
    stage = Stage([al.ConnectionLost("gone")])
    scope = await stage.open()
    with pytest.raises(al.OutcomeError, match=r"expected outcome completed, got running$"):
        result_of(scope.turn)
    with pytest.raises(al.ConnectionLost):
        await drive(scope)
    with pytest.raises(al.OutcomeError, match=r"got failed \(connection_lost\)"):
        result_of(scope.turn)


async def test_usage_is_none_where_no_call_reported_any_and_never_zero() -> None:
    """(R168)"""
    assert (await result(reply("hi"))).usage is None
    assert (await result(reply("hi", usage=(0, 0)))).usage == al.Usage(input_tokens=0, output_tokens=0, total_tokens=0)


async def test_a_value_is_there_or_required_in_vain() -> None:
    base: dict[str, Any] = {
        "text": "", "refusal": None, "ref": "r", "conversation": None, "usage": None, "model_calls": 1, "tool_calls": 0,
    }  # fmt: skip
    made = al.RunResult(outcome="completed", reason="stop", value=None, has_value=True, **base)
    assert made.require_value() is None
    for outcome, reason, words in (
        ("completed", "stop", r"got completed \(no output was asked for, or the result was read without its agent\)"),
        ("incomplete", "no_output", r"expected outcome completed, got incomplete \(no_output\)"),
    ):
        none: al.RunResult[None] = al.RunResult(outcome=outcome, reason=reason, **base)  # type: ignore[arg-type]
        with pytest.raises(al.OutcomeError, match=words):
            none.require_value()
