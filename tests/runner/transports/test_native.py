"""A choice as a native tool call."""

from __future__ import annotations

import pytest

from agentloop.errors import OutputRefused, ToolResultError
from agentloop.messages import ModelOptions, ModelRequest, ToolChoice, UserMessage
from agentloop.runner import Interaction, NativeCall, Stage
from agentloop.testing import call, reply
from agentloop.tools import SelectionContext, selection
from agentloop.wire import OPENAI, PRESETS, CallDelta, encode_request

resolved: list[int] = []


@selection
def pick(n: int, where: SelectionContext) -> object:
    """Pick a number."""
    resolved.append(n)
    return (where.stage_id, where.tool, n)


@selection
def skip() -> None:
    """Pick none."""


def prepared(*tools: object, stage: str = "triage", dialect: str = "openai") -> Interaction[object]:
    transport = NativeCall("choice", tools or [pick, skip])  # type: ignore[arg-type]
    return transport.prepare(Stage(stage_id=stage, dialect=PRESETS[dialect]))


def test_all_tools_are_visible_and_one_call_is_asked_for() -> None:
    """(R185, R195)"""
    interaction = prepared()
    assert [spec.name for spec in interaction.tools] == ["pick", "skip"]
    assert interaction.options == ModelOptions(tool_choice="required", parallel_tool_calls=False)
    assert prepared(pick).options.tool_choice == ToolChoice(name="pick")
    request = ModelRequest(messages=(UserMessage(content="?"),), options=interaction.options, tools=interaction.tools)
    assert (
        b'"tool_choice":"required","parallel_tool_calls":false'
        in encode_request(request, model="m", dialect=OPENAI).head
    )


def test_a_server_that_cannot_be_made_to_call_is_not_asked_to() -> None:
    assert prepared(dialect="ollama").options == ModelOptions()
    with pytest.raises(OutputRefused) as caught:
        prepared(dialect="ollama").create_response().finish(reply())
    assert caught.value.code == "no_call"


def test_declarations_are_counted_by_their_characters() -> None:
    interaction = prepared(pick)
    (spec,) = interaction.tools
    assert interaction.schema_chars == len("pick") + len("Pick a number.") + len(spec.parameters)
    assert (interaction.embedded_chars, interaction.instruction) == (0, None)


def test_the_value_is_what_the_selection_resolves_to_at_the_stage() -> None:
    """(R187)"""
    of = reply(calls=[call("pick", n=3)])
    assert prepared(stage="first").create_response().finish(of) == ("first", "pick", 3)
    assert prepared().create_response().finish(reply(calls=[call("skip")])) is None
    assert prepared().create_response().finish(reply(calls=[call("skip", arguments_text="")])) is None


@pytest.mark.parametrize("text", ['{"n": 1', "", "{}", '{"n": 1}}', "n=1", '{"n": 1,}', '{"n": "1"}', "[1]"])
def test_arguments_that_are_not_complete_resolve_nothing(text: str) -> None:
    """(R198)"""
    resolved.clear()
    with pytest.raises(OutputRefused) as caught:
        prepared().create_response().finish(reply(calls=[call("pick", arguments_text=text)]))
    assert caught.value.code in {"invalid_json", "not_an_object", "schema_mismatch"}
    assert resolved == []


def test_nothing_is_resolved_from_fragments() -> None:
    """(R204)"""
    resolved.clear()
    collector = prepared().create_response()
    collector.push(CallDelta(0, "a", "pick", '{"n": 3}'))
    assert resolved == []
    assert collector.finish(reply(calls=[call("pick", n=4)])) == ("triage", "pick", 4)
    assert resolved == [4]


def test_a_fault_of_the_hosts_own_code_is_no_refusal() -> None:
    @selection
    def later() -> object:
        """Gives an awaitable."""

        async def value() -> int:
            return 1

        made = value()
        made.close()
        return made

    with pytest.raises(ToolResultError, match="awaitable"):
        prepared(later).create_response().finish(reply(calls=[call("later")]))
