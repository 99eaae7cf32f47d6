"""What a run is taken up with is held against what it was started with."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop import basis
from agentloop.basis import check_input, read_by
from agentloop.exchange import Book, ReceiptMint, Turn, tombstone
from agentloop.messages import SystemMessage, UserMessage
from agentloop.wire.presets import dialect
from tests.exchange.desk import Desk

DIGEST = "[0-9a-f]{64}"


def tool_of(parameters: Any, *, recovery: Any = None) -> al.Tool:
    policy = al.ToolPolicy(recovery=recovery)
    return al.Tool.from_schema("note", "Note.", parameters=parameters, call=lambda a, c: None, policy=policy)


SCHEMA = '{"type": "object", "title": "the schema"}'
AGENT = al.Agent(name="clerk", instructions="the instructions", tools=[tool_of(SCHEMA)])


def begun(agent: al.Agent = AGENT, said: str = "the input", history: tuple[al.Message, ...] = ()) -> Turn:
    desk = Desk()
    desk.add(
        desk.book.open_origin(
            run_id="r",
            origin_id="o",
            conversation=None,
            messages=(*agent.system, *history, UserMessage(content=said)),
            brought=len(history),
            options=agent.options,
            tools=agent.toolset.specs,
            catalogue_digest=agent.toolset.digest,
            input_digest=None,
            agent=agent.name,
            at_ms=1,
        )
    )
    return desk.book.turn("r")


def check_agent(agent: al.Agent[Any], turn: Turn, *, server: str = "openai") -> None:
    basis.check_agent(agent, agent.prepare(dialect(server)), turn)


def agent(**changes: Any) -> al.Agent:
    given = {"name": "clerk", "instructions": "the instructions", "tools": [tool_of(SCHEMA)], **changes}
    return al.Agent(**given)


def refusal(step: Any, *given: Any) -> al.RestoreError:
    with pytest.raises(al.RestoreError) as caught:
        step(*given)
    assert caught.value.where == "run 'r'"
    for text in ("the instructions", "the schema", "the input", "secret"):
        assert text not in str(caught.value)
    return caught.value


def test_the_same_agent_and_input_are_taken() -> None:
    """(R136)"""
    check_agent(agent(limits=al.LoopLimits(max_model_calls=2)), begun())  # limits are the host's, each time
    check_input([SystemMessage(content="other"), UserMessage(content="the input")], begun())


HISTORY = (SystemMessage(content="the client's"), UserMessage(content="before"))


def test_what_was_said_before_is_neither_instructions_nor_input() -> None:
    turn = begun(history=HISTORY)
    check_agent(agent(), turn)
    check_input([UserMessage(content="the input")], turn)
    assert refusal(check_agent, agent(instructions=""), turn).code == "input_changed"
    assert refusal(check_input, [UserMessage(content="before")], turn).code == "input_changed"


def test_instructions_that_a_run_had_none_of_are_not_found_in_what_was_said_before() -> None:
    bare = agent(instructions="")
    turn = begun(bare, history=HISTORY)
    check_agent(bare, turn)
    assert refusal(check_agent, agent(instructions="the client's"), turn).code == "input_changed"


@pytest.mark.parametrize(
    ("changes", "code", "rule"),
    [
        ({"name": "cook"}, "agent_changed", "expected agent 'clerk', got agent 'cook'"),
        ({"instructions": "secret"}, "input_changed", f"expected instructions {DIGEST}, got instructions {DIGEST}"),
        ({"instructions": ""}, "input_changed", f"expected instructions {DIGEST}, got instructions {DIGEST}"),
        (
            {"options": al.ModelOptions(extra='{"user": "secret"}')},
            "input_changed",
            f"expected options {DIGEST}, got options {DIGEST}",
        ),
        (
            {"tools": []},
            "catalogue_changed",
            rf"expected catalogue {DIGEST} of tools \(note\), got catalogue {DIGEST} of tools \(\)",
        ),
        (
            {"tools": [tool_of(SCHEMA, recovery="settle")]},
            "catalogue_changed",
            rf"expected catalogue {DIGEST} of tools \(note\), got catalogue {DIGEST} of tools \(note\)",
        ),
        (
            {"tools": [tool_of('{"title": "the schema", "type": "object"}')]},
            "catalogue_changed",
            f"expected visible tools {DIGEST}, got visible tools {DIGEST}",
        ),
    ],
    ids=lambda value: next(iter(value)) if type(value) is dict else "",
)
def test_what_was_changed_has_its_code_and_both_sides(changes: dict[str, Any], code: str, rule: str) -> None:
    """(R67, R68, R138)"""
    error = refusal(check_agent, agent(**changes), begun())
    assert error.code == code
    assert re.fullmatch(rule, error.rule), error.rule
    both = re.findall(DIGEST, error.rule)
    assert len(set(both)) == len(both)


def test_the_digest_of_what_was_expected_is_the_one_that_is_stored() -> None:
    """(R138)"""
    other = agent(tools=[])
    error = refusal(check_agent, other, begun())
    assert re.findall(DIGEST, error.rule) == [AGENT.toolset.digest, other.toolset.digest]


class Ticket(msgspec.Struct):
    title: str


ROUTES = {"json_schema": "openai", "call": "groq", "json_text": "zai"}


def asked(agent: al.Agent[Any], server: str) -> Turn:
    """A run that asked as this agent asks this server."""
    asking = agent.prepare(dialect(server))
    desk = Desk()
    desk.open("r", *asking.system, UserMessage(content="the input"), options=asking.options, tools=asking.toolset.specs)
    turn = desk.book.turn("r")
    opened = {"agent": agent.name, "catalogue_digest": asking.toolset.digest}
    turn.opened = msgspec.structs.replace(turn.opened, **opened)
    return turn


@pytest.mark.parametrize("tools", [[], [tool_of(SCHEMA)]])
@pytest.mark.parametrize("route", ROUTES)
def test_an_output_is_asked_for_as_it_was(route: str, tools: list[al.Tool]) -> None:
    """(R138)"""
    own = agent(output=Ticket, tools=tools)
    turn = asked(own, ROUTES[route])
    for other, server in ROUTES.items():
        if other == route:
            check_agent(own, turn, server=server)
        else:
            error = refusal(lambda server=server: check_agent(own, turn, server=server))
            assert error.code == "input_changed"
            assert error.rule == f"expected output by route {route}, got output by route {other}"
    reading = read_by(own, turn)
    assert reading is not None
    assert reading.label.route == route
    assert read_by(agent(tools=tools), turn) is None

    without = refusal(lambda: check_agent(agent(tools=tools), turn))
    assert without.code == "input_changed"


@pytest.mark.parametrize(
    ("server", "stored"),
    [
        ("openai", rf"output 'Ticket' of schema {DIGEST}"),
        ("groq", r"another output or none, tools \(note, Ticket\)"),
        ("zai", r"another output or none, tools \(note\)"),
    ],
)
def test_another_output_is_refused_with_what_the_run_was_asked_for(server: str, stored: str) -> None:
    """(R138)"""
    turn = asked(agent(output=Ticket), server)
    other = agent(output=al.Structured(int, name="Ticket"))
    error = refusal(read_by, other, turn)
    assert error.code == "input_changed"
    assert re.fullmatch(rf"expected {stored}, got output 'Ticket'", error.rule), error.rule
    route = other.prepare(dialect(server)).label.route
    error = refusal(lambda: check_agent(other, turn, server=server))
    assert re.fullmatch(rf"expected {stored}, got output by route {route}", error.rule), error.rule
    assert refusal(read_by, agent(output=Ticket, name="cook"), turn).code == "agent_changed"


@pytest.mark.parametrize("said", [UserMessage(content="secret"), UserMessage(content=(al.TextPart(text="the input"),))])
def test_another_input_is_refused(said: Any) -> None:
    """(R136, R138)"""
    error = refusal(check_input, [said], begun())
    assert error.code == "input_changed"
    assert re.fullmatch(f"expected input {DIGEST}, got input {DIGEST}", error.rule)


def test_input_that_was_removed_confirms_nothing() -> None:
    """(R138)"""
    desk = Desk()
    turn = desk.open("r", UserMessage(content="the input"))
    desk.close(turn)
    left = Book(ReceiptMint())
    left.install((tombstone(turn, author="Ann", at_ms=9),))
    error = refusal(check_input, [UserMessage(content="the input")], left.turn("r"))
    assert (error.code, error.rule) == (
        "input_changed",
        "expected input that is stored, got a run whose texts were removed",
    )
