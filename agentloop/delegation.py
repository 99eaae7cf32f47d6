"""An agent as a tool of another: the model hands it a task, and reads what it came to.

    the call  ->  a run of the agent, with facts and a reference of its own  ->  its text, or its value as JSON

What the agent may do is said where it becomes a tool, and nothing is inherited: it has the tools that
are named for it (R344), its own limits, and of the budget what the run that calls it has left. It
continues no conversation, and reads nothing of its caller's but the task.

An agent cannot come to run itself: a tool is made of an agent that is finished, so no agent has a tool
that leads back to it (R345). How deep agents may ask others is bounded by `LoopLimits.max_depth` of the
outermost run, 1 unless it says otherwise.

The run's reference is the ``effect_id`` of the call. Its events reach the observers of the `Runtime` under
that id, with the call as their parent span; the caller's own sink and reader see the call only. When the
caller is cancelled, the agent's run is cancelled, and has recorded its end first.

Where calls of the agent wait for a host, the caller's run waits with it, once its other calls are answered:
what waits is told in its result as well, at any depth, and the decisions are given where it is resumed. The call
goes on then as the same execution. Ending the caller ends the agent's run before it.

Asking is safe to repeat, whatever tools the agent has, for the run has facts of its own: where the process
died, the same run is taken up where it was, and what may have run in it waits to be settled there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .agent import Agent
from .errors import (
    InputError,
    OutcomeError,
    ProviderError,
    RunCancelled,
    StreamRefused,
    ToolDefinitionError,
    ToolFailed,
)
from .limits import LoopLimits
from .messages import ToolResult
from .results import RunResult
from .tools import Tool, ToolContext, ToolPolicy

__all__ = ["DELEGATE", "Delegate", "delegate"]

DELEGATE: Final = "delegate"
"""The kind of tool that has an agent run."""

_GRACE: Final = 3600.0
"""The end of a cancelled run is waited for; what bounds that are the graces of its own tools."""

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "minLength": 1, "description": "What to do, with all that must be known for it."}
    },
    "required": ["task"],
    "additionalProperties": False,
}


class Delegate(Tool):
    """A tool that has an agent run; see `delegate`.

    Attributes:
        agent: with the tools and limits that it has here.
    """

    __slots__ = ("agent",)

    agent: Agent[Any]

    @property
    def unstated(self) -> tuple[str, ...]:
        """Names of the agent's tools that do not state how they are recovered, below its own."""
        return tuple(f"{self.name}.{name}" for name in self.agent.toolset.unstated())

    @property
    def digest_basis(self) -> dict[str, Any]:
        """What a catalogue's digest covers of this tool: the agent's own as well."""
        agent = self.agent
        return {**super().digest_basis, "agent": agent.name, "catalogue": agent.toolset.digest}


def delegate(
    agent: Agent[Any],
    *,
    name: str,
    description: str,
    tools: Sequence[str],
    limits: LoopLimits | None = None,
    max_calls: int | None = None,
    max_output_bytes: int | None = None,
) -> Tool:
    """Make a tool of an agent: a call of it runs the agent, and its result is the agent's.

        researcher = al.delegate(reader, name="research", description="Find a fact.", tools=["search"])
        writer = al.Agent(name="writer", instructions="…", tools=[researcher, save])

    The model reads the agent's text; of an agent with an output, its value as JSON. A run that ends as
    ``refused``, ``incomplete`` or ``limit_reached``, a refused stream and a failed send are error feedback.
    What a tool of the agent did not declare ends the caller's run as well.

    Args:
        agent: whose instructions, options and output it has. Its ``context`` is for conversations and does
            not count. Its tools get the ``deps`` of the run that calls.
        name, description: of the tool.
        tools: names of those of the agent's tools that it may use here; ``[]`` is none. There is no
            default, so that nobody hands on a permission by leaving it out.
        limits: of each of its runs; the agent's own by default. They are debited to the caller's budget too.
        max_calls, max_output_bytes: see `ToolPolicy`; how often a run may ask the agent is the first one.

    Raises:
        InputError: a value of another type. ToolDefinitionError: the name cannot be a tool's, or one of
            ``tools`` is none of the agent's.
    """
    if type(agent) is not Agent:
        raise InputError(f"delegate: expected an Agent, got {type(agent).__name__}")
    if limits is not None and type(limits) is not LoopLimits:
        raise InputError(f"delegate.limits: expected LoopLimits, got {type(limits).__name__}")
    if isinstance(tools, str) or not isinstance(tools, Sequence) or any(type(item) is not str for item in tools):
        raise InputError("delegate.tools: expected a list of names of the agent's tools")
    if type(description) is not str:
        raise ToolDefinitionError("bad_tool", str(name)[:80], "description: expected str")
    child: Agent[Any] = Agent(
        name=agent.name,
        instructions=agent.instructions,
        tools=agent.toolset.select(*tools) if tools else (),
        output=agent.output,
        options=agent.options,
        policy_version=agent.toolset.policy_version,
        limits=limits or agent.limits,
    )

    async def call(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        return await _run(child, arguments["task"], context)

    policy = ToolPolicy(
        timeout=None,
        grace=_GRACE,
        idempotent=True,
        max_calls=max_calls,
        errors=(ProviderError, StreamRefused),
        max_output_bytes=max_output_bytes,
    )
    made = Delegate.from_schema(name, description, parameters=_PARAMETERS, call=call, policy=policy, owner=agent.name)
    object.__setattr__(made, "kind", DELEGATE)
    object.__setattr__(made, "agent", child)
    return made


async def _run(agent: Agent[Any], task: str, context: ToolContext[Any]) -> Any:
    if context.spawn is None:
        raise InputError(f"tool {context.tool!r}: expected a call in a run of an agent, got one outside of it")
    try:
        result: RunResult[Any] = await context.spawn(agent, task)
    except RunCancelled as error:
        raise ToolFailed(f"The agent {agent.name!r} was cancelled.") from error
    except OutcomeError as error:  # it ended before, in another process
        raise ToolFailed(f"The agent {agent.name!r} ended as {error.outcome} ({error.reason}).") from error
    if result.outcome == "completed":
        return result.value if result.has_value else ToolResult.ok(result.text)
    said = result.refusal or result.text
    words = f"The agent {agent.name!r} ended as {result.outcome} ({result.reason})."
    raise ToolFailed(f"{words} It said: {said}" if said else words)
