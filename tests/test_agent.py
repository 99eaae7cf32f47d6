"""An agent is an immutable definition that is checked when it is made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider, reply
from agentloop.wire.presets import dialect


@al.tool
async def ping() -> str:
    """Answer."""
    return "pong"


class Ticket(msgspec.Struct):
    title: str


def test_an_agent_without_tools_is_plain_chat() -> None:
    """(R94)"""
    agent = al.Agent(name="a")
    assert (len(agent.toolset), agent.system, agent.instructions) == (0, (), "")
    assert (agent.options, agent.limits) == (al.ModelOptions(), al.LoopLimits())


def test_instructions_are_the_system_message_of_each_run() -> None:
    assert al.Agent(name="a", instructions="Be brief.").system == (al.SystemMessage(content="Be brief."),)


def test_tools_are_one_set_with_one_policy_version() -> None:
    """(R48, R60, R155)"""
    agent = al.Agent(name="a", tools=[ping], policy_version="notes.v1")
    assert agent.toolset.names == ("ping",)
    assert agent.toolset.get("ping") is ping
    assert agent.toolset.policy_version == "notes.v1"
    other = al.Agent(name="a", tools=[ping], policy_version="notes.v2")
    assert agent.toolset.digest != other.toolset.digest


def test_a_set_that_is_made_already_is_taken_as_it_is() -> None:
    tools = al.ToolSet([ping], policy_version="v1")
    assert al.Agent(name="a", tools=tools).toolset is tools


def test_at_most_32_tools() -> None:
    """(R94)"""

    def make(number: int) -> al.Tool:
        return al.tool(name=f"t{number}")(ping._function)

    assert len(al.Agent(name="a", tools=[make(at) for at in range(32)]).toolset) == 32
    with pytest.raises(al.ToolDefinitionError, match="expected at most 32 tools"):
        al.Agent(name="a", tools=[make(at) for at in range(33)])


def test_a_context_is_a_plan_with_a_budget_in_characters_and_no_messages_of_its_own() -> None:
    """(R251)"""
    plan = al.ContextPlan(max_chars=1_000, down_to=500)
    assert al.Agent(name="a", context=plan).context is plan
    assert al.Agent(name="a").context is None
    said = (al.UserMessage(content="hi"),)
    for wrong, says in (
        (1_000, "expected a ContextPlan or None, got int"),
        (al.ContextPlan(max_chars=1, messages=said), "expected a plan without messages, got one with 1"),
        (al.ContextPlan(max_tokens=1), r"expected a budget in characters \(max_chars=\), got one in tokens"),
    ):
        with pytest.raises(al.InputError, match=f"Agent.context: {says}"):
            al.Agent(name="a", context=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["name", "instructions", "toolset", "options", "limits", "system", "output", "other"])
def test_nothing_of_an_agent_can_be_changed(field: str) -> None:
    agent = al.Agent(name="a", tools=[ping])
    with pytest.raises(AttributeError, match="an agent is immutable"):
        setattr(agent, field, 1)
    with pytest.raises(AttributeError, match="an agent is immutable"):
        delattr(agent, field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "Agent.name: expected a string of 1 to 128 characters, got 0 characters"),
        ({"name": "x" * 129}, "Agent.name: expected a string of 1 to 128 characters, got 129 characters"),
        ({"name": 7}, "Agent.name: expected a string of 1 to 128 characters, got int"),
        ({"name": "\ud800"}, "Agent.name: expected text that UTF-8 can encode, got a lone surrogate"),
        ({"instructions": None}, "Agent.instructions: expected str, got NoneType"),
        ({"instructions": "\ud800"}, "surrogate"),
        ({"options": {}}, "Agent.options: expected ModelOptions, got dict"),
        ({"limits": 8}, "Agent.limits: expected LoopLimits, got int"),
        ({"tools": [print]}, "expected a Tool"),
        ({"options": al.ModelOptions(tool_choice=al.ToolChoice(name="nobody"))}, "expected the name of a tool"),
        ({"output": object}, "output 'output'"),
        ({"output": al.PlainText()}, "output 'output'"),
        (
            {"output": Ticket, "options": al.ModelOptions(response_format=al.ResponseFormat(kind="json"))},
            "Agent.options: expected no response_format with output=, which asks for its own",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.Agent(**{"name": "a", **fields})


def test_an_agent_shows_its_name_and_its_tools() -> None:
    assert repr(al.Agent(name="a", instructions="secret", tools=[ping])) == "Agent(name='a', tools=['ping'])"


async def test_any_number_of_runs_share_an_agent() -> None:
    agent = al.Agent(name="a", tools=[ping])
    providers = ScriptedProvider([reply("hi")] * 2), ScriptedProvider([reply("hi")])
    async with al.Runtime(providers[0]) as one, al.Runtime(providers[1]) as two:
        for runtime in (one, one, two):
            assert (await runtime.run(agent, "go")).text == "hi"


# -- with an output


def test_an_output_is_a_type_or_a_structured_that_says_more() -> None:
    """(R205)"""
    agent = al.Agent(name="a", output=Ticket)
    assert agent.output is not None
    assert (agent.output.id, agent.output.output.name) == ("structured:Ticket", "Ticket")
    said = al.Structured(Ticket, id="t", name="ticket", route="call", instruction="Sort it.")
    asking = al.Agent(name="a", output=said).prepare(dialect("openai"))
    assert (asking.label.transport, asking.label.route, asking.final) == ("t", "call", "ticket")
    assert asking.system == (al.SystemMessage(content="Sort it."),)
    assert al.Agent(name="a").output is None


def test_the_output_function_may_not_have_the_name_of_a_tool() -> None:
    """(R329)"""

    @al.tool(name="Ticket")
    def other() -> str:
        """Another one."""
        return ""

    with pytest.raises(al.ToolDefinitionError, match=r"duplicate_tool_name.*output 'Ticket' define it"):
        al.Agent(name="a", tools=[other], output=Ticket)
    assert al.Agent(name="a", tools=[other], output=al.Structured(Ticket, name="answer")).toolset.names == ("Ticket",)


@pytest.mark.parametrize("output", [None, Ticket])
def test_what_is_asked_of_a_server_is_prepared_once(output: Any) -> None:
    agent = al.Agent(name="a", tools=[ping], output=output)
    for name in ("openai", "groq", "zai"):
        asking = agent.prepare(dialect(name))
        assert agent.prepare(msgspec.structs.replace(dialect(name))) is asking


def test_without_an_output_every_server_is_asked_for_just_what_the_agent_says() -> None:
    """(R199)"""
    options = al.ModelOptions(temperature=0.5)
    agent = al.Agent(name="a", instructions="Be brief.", tools=[ping], options=options)
    asking = agent.prepare(dialect("openai"))
    assert asking is agent.prepare(dialect("zai"))
    assert (asking.system, asking.options, asking.toolset) == (agent.system, options, agent.toolset)
    assert asking.options is options
    assert asking.toolset is agent.toolset
    assert (asking.check, asking.read, asking.final) == (None, None, None)


@pytest.mark.parametrize(("server", "route"), [("openai", "json_schema"), ("vllm", "call"), ("gemini", "call")])
def test_a_schema_is_not_asked_for_where_it_would_keep_the_model_from_its_tools(server: str, route: str) -> None:
    """(R205)"""
    assert al.Agent(name="a", tools=[ping], output=Ticket).prepare(dialect(server)).label.route == route
    assert al.Agent(name="a", output=Ticket).prepare(dialect(server)).label.route == "json_schema"
    said = al.Structured(Ticket, route="json_schema")
    assert al.Agent(name="a", tools=[ping], output=said).prepare(dialect(server)).label.route == "json_schema"
