"""An agent is an immutable definition that is checked when it is made."""

from __future__ import annotations

from typing import Any

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider, reply


@al.tool
async def ping() -> str:
    """Answer."""
    return "pong"


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


@pytest.mark.parametrize("field", ["name", "instructions", "toolset", "options", "limits", "system", "other"])
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
        ({"instructions": None}, "Agent.instructions: expected str, got NoneType"),
        ({"instructions": "\ud800"}, "surrogate"),
        ({"options": {}}, "Agent.options: expected ModelOptions, got dict"),
        ({"limits": 8}, "Agent.limits: expected LoopLimits, got int"),
        ({"tools": [print]}, "expected a Tool"),
        ({"options": al.ModelOptions(tool_choice=al.ToolChoice(name="nobody"))}, "expected the name of a tool"),
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
