"""The rules that all transports share."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.errors import InputError, OutputRefused
from agentloop.runner import JsonCall, NativeCall, Session, Structured
from agentloop.runner.transports.rules import require_completed
from agentloop.testing import reply
from agentloop.tools import ToolSet, selection, tool
from tests.source import imports, modules


@selection
def pick(n: int) -> int:
    """Pick."""
    return n


@tool
def act(n: int) -> int:
    """Act."""
    return n


@pytest.mark.parametrize(("id", "words"), [(None, "got NoneType"), ("", "got 0"), ("x" * 129, "got 129")])
def test_an_id_is_a_short_text(id: Any, words: str) -> None:
    for make in (lambda: NativeCall(id, [pick]), lambda: JsonCall(id, [pick]), lambda: Session(id, tools=[pick])):
        with pytest.raises(InputError, match=words):
            make()
    if id is not None:
        with pytest.raises(InputError, match=words):
            Structured(int, id=id)


def test_tools_are_a_set_or_what_makes_one() -> None:
    for tools in (ToolSet([pick]), [pick], (pick,)):
        assert NativeCall("t", tools).id == "t"
    for none in ([], ToolSet()):
        for make in (NativeCall, JsonCall, lambda id, tools: Session(id, tools=tools)):
            with pytest.raises(InputError, match="expected at least one tool, got none"):
                make("t", none)
    with pytest.raises(InputError, match="duplicate_tool_name"):
        NativeCall("t", [pick, pick])


@pytest.mark.parametrize("make", [NativeCall, JsonCall])
def test_a_choice_is_among_selections_only(make: Any) -> None:
    with pytest.raises(InputError, match=r"expected selections .* got 'act' with an effect"):
        make("t", [pick, act])


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            reply(finish="length"),
            "incomplete: expected a reply that its model completed, got one that ended with length",
        ),
        (reply(finish="The text: ¡secret!"), "got one that ended with another word"),
        (reply(finish="content_filter"), "refused: expected an answer, got a filter's refusal"),
        (reply(refusal="a secret reason"), "refused: expected an answer, got the model's refusal"),
    ],
)
def test_a_reply_that_is_no_answer_is_refused_in_one_way(of: Any, message: str) -> None:
    with pytest.raises(OutputRefused) as caught:
        require_completed(of, "t")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_transports_know_nothing_of_receipts_effects_and_stores() -> None:
    """What a fragment or a call says can become no receipt here: there is no way to make one (R204)."""
    allowed = {"errors", "messages", "tools", "wire", "admission", "runner", "limits"}
    for name in modules():
        if name.startswith("agentloop.runner.transports"):
            used = {item.target.split(".")[1] for item in imports(name) if item.target.startswith("agentloop.")}
            assert used <= allowed
