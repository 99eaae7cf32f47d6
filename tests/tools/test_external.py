"""Tools that run elsewhere: a typed stub or a schema, arguments that are checked, and nothing to call."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import pytest

import agentloop as al
from agentloop.errors import InputError, ToolDefinitionError

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


class Question(msgspec.Struct):
    text: str


@al.external
def ask(question: Question, urgent: bool = False) -> str:
    """Ask a person.

    More that the model does not see.
    """
    raise AssertionError("never called")


def test_a_stub_is_shown_as_a_typed_function_is() -> None:
    @al.tool(name="ask", description="Ask a person.")
    def same(question: Question, urgent: bool = False) -> str:
        return ""

    assert ask.spec == same.spec
    assert (ask.kind, ask.owner) == ("external", f"{__name__}.ask")


def test_its_arguments_are_checked_as_those_of_any_tool() -> None:
    """(R55)"""
    assert ask.admit('{"question": {"text": "why"}}')["question"] == Question("why")
    with pytest.raises(al.ArgumentsRefused):
        ask.admit('{"question": "why"}')


@pytest.mark.parametrize("made", [ask, al.Tool.external("ask", "Ask.", parameters=SCHEMA)])
def test_nothing_here_can_call_it(made: al.Tool) -> None:
    for run in (made, lambda: made.invoke({}, None), lambda: al.ToolSet([made]).invoke("ask", {"q": "x"})):  # type: ignore[arg-type]
        with pytest.raises(InputError):
            run()
    with pytest.raises(
        InputError, match="tool 'ask': expected its result from the host, as it is external, got a call"
    ):
        made(question="x")


def test_one_is_made_from_a_schema() -> None:
    made = al.Tool.external("ask", "Ask.", parameters=SCHEMA, strict=True)
    assert (made.spec.name, made.spec.description, made.spec.strict) == ("ask", "Ask.", True)
    assert json.loads(made.spec.parameters) == SCHEMA
    assert made.owner == "external 'ask'"
    assert made.admit('{"q": "x"}') == {"q": "x"}
    with pytest.raises(al.ArgumentsRefused):
        made.admit('{"q": 1}')
    with pytest.raises(ToolDefinitionError, match="bad_tool_name"):
        al.Tool.external("a b", "Ask.", parameters=SCHEMA)
    with pytest.raises(ToolDefinitionError, match="unsupported_schema"):
        al.Tool.external("ask", "Ask.", parameters={"type": "object", "inventedKeyword": 1})


def test_its_name_and_description_can_be_given() -> None:
    @al.external(name="lookup", description="Look.")
    def stub(q: Annotated[str, msgspec.Meta(max_length=3)]) -> Any: ...

    assert (stub.name, stub.spec.description) == ("lookup", "Look.")


def test_a_stub_has_no_use_for_a_context_or_for_being_a_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="expected no ToolContext"):

        @al.external
        def stub(q: str, ctx: al.ToolContext[None]) -> str: ...

    with pytest.raises(ToolDefinitionError, match="expected a function, got Tool"):
        al.external(ask)


def test_it_states_its_recovery_and_another_kind_has_another_digest() -> None:
    """(R67, R130)"""
    tools = al.ToolSet([ask])
    assert (tools.unstated(), tools.repeatable, tools.lookups) == ((), frozenset(), frozenset())

    async def run(_arguments: dict[str, Any], _ctx: Any) -> str:
        return ""

    policy = al.ToolPolicy(timeout=None, recovery="settle")
    plain = al.Tool.from_schema("ask", "Ask.", parameters=SCHEMA, call=run, policy=policy)
    assert al.ToolSet([plain]).digest != al.ToolSet([al.Tool.external("ask", "Ask.", parameters=SCHEMA)]).digest
