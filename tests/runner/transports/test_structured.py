"""A value of a type as the answer: routes, requests, and that no route changes a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.messages import ModelOptions, ModelReply, ModelRequest, ResponseFormat, ToolChoice, UserMessage
from agentloop.runner import Interaction, Stage, Structured
from agentloop.testing import call, reply
from agentloop.wire import OPENAI, PRESETS, encode_request
from tests.contracts.transport_contract import answer, refusal_of
from tests.tools.outputs import types_and_values

ROUTES = ("json_schema", "call", "json_text")
STAGE = Stage(stage_id="s", dialect=OPENAI)


class Ticket(msgspec.Struct):
    """A ticket."""

    title: str
    priority: Literal["low", "high"]


class Loose(msgspec.Struct):
    title: str = ""


def written(route: str, text: str, name: str = "output") -> ModelReply:
    """The reply that says a JSON text by a route."""
    if route == "call":
        return reply(calls=[call(name, arguments_text=text)])
    return reply(text=f"```json\n{text}\n```" if route == "json_text" else text)


def by(dialect: str, of: Any = Ticket, **options: Any) -> Interaction[Any]:
    return Structured(of, **options).prepare(Stage(stage_id="s", dialect=PRESETS[dialect]))


@pytest.mark.parametrize(
    ("dialect", "route"),
    [
        ("openai", "json_schema"),
        ("llama_cpp", "json_schema"),
        ("ollama", "json_schema"),
        ("perplexity", "json_schema"),
        ("deepseek", "call"),
        ("anthropic", "call"),
        ("lenient", "call"),
        ("zai", "json_text"),
        ("minimax", "json_text"),
    ],
)
def test_the_route_is_the_best_that_the_server_has(dialect: str, route: str) -> None:
    """(R185)"""
    assert by(dialect).route == route
    for wanted in ROUTES:
        assert by(dialect, route=wanted).route == wanted


def test_by_schema_the_response_format_holds_it() -> None:
    """(R185, R205)"""
    interaction = by("openai", id="t")
    schema = json.loads(interaction.options.response_format.schema)  # type: ignore[union-attr, arg-type]
    assert schema["required"] == ["title", "priority"]
    assert interaction.options == ModelOptions(
        response_format=ResponseFormat(
            kind="json_schema", name="Ticket", schema=json.dumps(schema, separators=(",", ":"))
        )
    )
    assert interaction.schema_chars == len("Ticket") + len(json.dumps(schema, separators=(",", ":")))
    assert (interaction.tools, interaction.instruction, interaction.embedded_chars) == ((), None, 0)
    request = ModelRequest(messages=(UserMessage(content="?"),), options=interaction.options)
    assert (
        b'"type":"json_schema","json_schema":{"name":"Ticket"'
        in encode_request(request, model="m", dialect=OPENAI).head
    )


def test_strictness_is_asked_for_only_where_the_schema_allows_it() -> None:
    for of, strict in ((Ticket, True), (list[Ticket], True), (Loose, False), (dict[str, int], False), (Any, False)):
        wanted = by("openai", of).options.response_format
        assert wanted is not None
        assert wanted.strict is strict


def test_by_call_one_function_is_forced() -> None:
    interaction = by("deepseek", name="file_ticket")
    (spec,) = interaction.tools
    assert interaction.options == ModelOptions(tool_choice=ToolChoice(name="file_ticket"), parallel_tool_calls=False)
    assert json.loads(spec.parameters)["additionalProperties"] is False
    assert interaction.schema_chars == len(spec.name) + len(spec.description) + len(spec.parameters)
    request = ModelRequest(messages=(UserMessage(content="?"),), options=interaction.options, tools=interaction.tools)
    assert b'"name":"file_ticket"' in encode_request(request, model="m", dialect=PRESETS["deepseek"]).head
    assert by("ollama", route="call").options == ModelOptions()


def test_by_text_the_instruction_holds_the_schema_which_counts_once() -> None:
    interaction = by("zai", instruction="Be brief.")
    assert interaction.instruction is not None
    assert interaction.instruction.startswith("Be brief.\n\n")
    schema = interaction.instruction.splitlines()[-1]
    assert json.loads(schema)["properties"].keys() == {"title", "priority"}
    assert interaction.schema_chars == interaction.embedded_chars == len(schema)
    assert interaction.options == ModelOptions()


def test_the_hosts_instruction_is_added_in_every_route() -> None:
    for route in ROUTES:
        assert (by("openai", route=route, instruction="Be brief.").instruction or "").startswith("Be brief.")
    assert by("openai").instruction is None


def test_a_type_that_is_no_object_is_one_member_of_one() -> None:
    for route in ROUTES:
        interaction = by("openai", list[int], route=route)
        assert answer(interaction, written(route, '{"value": [1, 2]}'))[0] == [1, 2]
        refusal = refusal_of(interaction, written(route, "[1, 2]"))
        assert refusal is not None
        assert refusal.code == "not_an_object"


def test_ids_and_names_come_from_the_type() -> None:
    assert Structured(Ticket).id == "structured:Ticket"
    assert Structured(list[int]).id == "structured:output"
    assert Structured(int, name="count").id == "structured:count"
    assert Structured(Ticket, id="triage").id == "triage"
    assert Structured(Ticket).output.decode('{"title": "a", "priority": "low"}') == Ticket("a", "low")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Structured(Ticket, route="json"), "expected None or one of json_schema, call, json_text"),  # type: ignore[call-overload]
        (lambda: Structured(Ticket, instruction=1), "Structured.instruction: expected str or None, got int"),  # type: ignore[call-overload]
        (lambda: Structured(Ticket, name="a b"), "output name: expected 1 to 64 of"),
        (
            lambda: Structured(Ticket, id=""),
            "Structured.id: expected a string of 1 to 128 characters, got 0 characters",
        ),
        (lambda: Structured(Ticket, id="\ud800"), "Structured.id: expected text that UTF-8 can encode"),
        (
            lambda: Structured(Ticket, instruction="\ud800"),
            "Structured.instruction: expected text that UTF-8 can encode",
        ),
        (lambda: Structured(ClassVar[int]), "expected a type of values, got ClassVar"),
        (lambda: Structured("\ud800"), "expected a type whose annotations can be resolved: UnicodeEncodeError"),
        (lambda: Structured(object), "output 'output': parameter 'value': expected a type with a JSON Schema"),
        (lambda: Structured(Callable[[], int]), "expected a type with a JSON Schema"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_when_it_is_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


@given(data=st.data(), route=st.sampled_from(ROUTES))
def test_a_value_comes_back_by_every_route(data: st.DataObject, route: Any) -> None:
    """(R187, R203)"""
    of, values = data.draw(types_and_values())
    value = data.draw(values)
    transport = Structured(of, route=route, name="output")
    plain = msgspec.to_builtins(value)
    text = json.dumps({"value": plain} if transport.output.wrapped else plain)
    got, _ = answer(transport.prepare(STAGE), written(route, text), [3, 7])
    assert got == value
    assert type(got) is type(value)
    assert msgspec.json.encode(got, order="sorted") == msgspec.json.encode(value, order="sorted")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(0.5) | st.sampled_from(["", "a", "b", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(data=st.data(), route=st.sampled_from(ROUTES), given_value=JSON)
def test_what_does_not_fit_is_refused_and_never_altered(data: st.DataObject, route: Any, given_value: Any) -> None:
    """Nothing is repaired, filled, converted or dropped: what comes out says what went in, or nothing does (R203)."""
    of, _ = data.draw(types_and_values())
    transport = Structured(of, route=route, name="output")
    if transport.output.wrapped and data.draw(st.booleans()):
        given_value = {"value": given_value}
    interaction = transport.prepare(STAGE)
    of_reply = written(route, json.dumps(given_value))
    if refusal_of(interaction, of_reply) is None:
        got = msgspec.to_builtins(answer(interaction, of_reply)[0])
        assert ({"value": got} if transport.output.wrapped else got) == given_value


@given(data=st.data(), route=st.sampled_from(ROUTES), cut=st.integers(1, 400))
def test_a_cut_text_is_refused(data: st.DataObject, route: Any, cut: int) -> None:
    """(R198, R203)"""
    of, values = data.draw(types_and_values())
    transport = Structured(of, route=route, name="output")
    plain = msgspec.to_builtins(data.draw(values))
    text = json.dumps({"value": plain} if transport.output.wrapped else plain)
    refusal = refusal_of(transport.prepare(STAGE), written(route, text[: -1 - cut % len(text)]))
    assert refusal is not None
    assert refusal.code in {"invalid_json", "no_json"}
