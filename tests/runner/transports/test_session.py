"""Text and several calls in one answer."""

from __future__ import annotations

import pytest

from agentloop.errors import OutputRefused
from agentloop.messages import ModelOptions
from agentloop.runner import NativeCall, Session, SessionReply, Stage
from agentloop.testing import call, reply
from agentloop.tools import selection, tool
from agentloop.wire import OPENAI

STAGE = Stage(stage_id="s", dialect=OPENAI)
ran: list[int] = []


@selection
def pick(n: int) -> str:
    """Pick."""
    return f"number {n}"


@tool
def act(n: int, times: int = 1) -> None:
    """Act."""
    ran.append(n)


def test_a_session_leaves_the_choice_to_the_model() -> None:
    """(R185, R199)"""
    interaction = Session("talk", tools=[pick, act]).prepare(STAGE)
    assert interaction.route == "session"
    assert interaction.options == ModelOptions()
    assert [spec.name for spec in interaction.tools] == ["pick", "act"]


def test_text_and_calls_come_in_their_order_and_none_of_them_runs() -> None:
    """(R199, R204)"""
    of = reply(text="Both.", calls=[call("act", n=1), call("pick", n=2), call("act", n=3, call_id="x")])
    got = Session("talk", tools=[pick, act]).prepare(STAGE).create_response().finish(of)
    assert isinstance(got, SessionReply)
    assert got.text == "Both."
    assert [(item.id, item.name, item.arguments_text) for item in got.calls] == [
        ("call_1", "act", '{"n":1}'),
        ("call_2", "pick", '{"n":2}'),
        ("x", "act", '{"n":3}'),
    ]
    assert [item.value for item in got.calls] == [{"n": 1, "times": 1}, "number 2", {"n": 3, "times": 1}]
    assert ran == []


def test_a_session_changes_nothing_for_a_single_proposal() -> None:
    """(R199)"""
    of = reply(text="Both.", calls=[call("pick", n=2)])
    Session("talk", tools=[pick]).prepare(STAGE).create_response().finish(of)
    with pytest.raises(OutputRefused) as caught:
        NativeCall("choice", [pick]).prepare(STAGE).create_response().finish(of)
    assert caught.value.code == "unexpected_text"


def test_the_call_that_does_not_fit_is_told_by_its_place() -> None:
    of = reply(calls=[call("pick", n=2), call("act", n="secret")])
    with pytest.raises(OutputRefused) as caught:
        Session("talk", tools=[pick, act]).prepare(STAGE).create_response().finish(of)
    expected = "schema_mismatch: call 1: $.n: expected integer, got a string (transport 'talk')"
    assert str(caught.value) == expected
