"""The rules that all transports share."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.errors import InputError, OutputRefused
from agentloop.runner import JsonCall, NativeCall, Session, Stage, Structured
from agentloop.runner.transports.rules import require_completed
from agentloop.testing import call, reply
from agentloop.tools import ToolSet, selection, tool
from agentloop.wire import OPENAI
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
    for make in (lambda: NativeCall(id, [pick]), lambda: JsonCall(id, [pick]), lambda: Session(id, [pick])):
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


@selection(refine=(lambda n: f"There is no room {n}." if n > 3 else None,))
def room(n: int) -> int:
    """A room."""
    return n


ROOM_4 = "The arguments are not accepted: There is no room 4."


@pytest.mark.parametrize(
    ("transport", "said", "where"),
    [
        (NativeCall("t", [room]), reply(calls=[call("room", n=4)]), ""),
        (JsonCall("t", [room]), reply('{"tool":"room","input":{"n":4}}'), "in $.input: "),
        (Session("t", tools=[room]), reply(calls=[call("room", n=1), call("room", n=4)]), "call 1: "),
    ],
)
def test_what_a_check_said_is_beside_the_text_of_the_refusal(transport: Any, said: Any, where: str) -> None:
    collector = transport.prepare(Stage(stage_id="s", dialect=OPENAI)).create_response()
    with pytest.raises(OutputRefused) as caught:
        collector.finish(said)
    error = caught.value
    assert (error.code, error.transport) == ("refined", "t")
    assert error.feedback is not None
    assert error.feedback.startswith(where + ROOM_4)
    assert "room 4" not in f"{error} {error!r} {error.args}"


@pytest.mark.parametrize("route", ["json_schema", "call", "json_text"])
def test_a_value_that_does_not_fit_is_said_to_a_model_with_the_names_that_it_wrote(route: Any) -> None:
    text = '{"mine": {"own": "x"}}'
    transport: Any = Structured(dict[str, dict[str, int]], route=route)
    said = reply(calls=[call(transport.output.name, arguments_text=text)]) if route == "call" else reply(text)
    collector = transport.prepare(Stage(stage_id="s", dialect=OPENAI)).create_response()
    with pytest.raises(OutputRefused) as caught:
        collector.finish(said)
    assert caught.value.feedback is not None
    assert "mine" in caught.value.feedback
    assert "mine" not in f"{caught.value} {caught.value!r}"


def test_a_refusal_that_has_said_it_all_has_nothing_for_a_model() -> None:
    collector: Any = Structured(int, route="json_text").prepare(Stage(stage_id="s", dialect=OPENAI)).create_response()
    with pytest.raises(OutputRefused) as caught:
        collector.finish(reply("no json"))
    assert caught.value.feedback is None


def test_transports_know_nothing_of_receipts_effects_and_stores() -> None:
    """What a fragment or a call says can become no receipt here: there is no way to make one (R204)."""
    allowed = {"errors", "messages", "tools", "wire", "admission", "runner", "limits"}
    for name in modules():
        if name.startswith("agentloop.runner.transports"):
            used = {item.target.split(".")[1] for item in imports(name) if item.target.startswith("agentloop.")}
            assert used <= allowed
