"""An agent's run as a node that is ready made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..agent import Agent
from ..errors import InputError
from ..tools.definition import is_async
from ..windows import RunInput
from .context import NodeContext
from .nodes import Node, Route

__all__ = ["agent_node"]


def agent_node(
    id: str,
    description: str,
    agent: Agent[Any],
    *,
    input: Callable[[Any], RunInput],
    into: str,
    starts_round: bool = False,
    requires: tuple[str, ...] = (),
    on_error: str | None = None,
    routes: tuple[Route, ...] = (),
) -> Node:
    """A node that runs an agent and keeps what it answered; see `NodeContext.agents`.

    Args:
        input: sync; what the agent is asked, as a function of the state.
        into: field of the state for the agent's output, or for its text where it has none.
        The others are as for `Node`.

    Raises:
        InputError: a value of another type, by name. As the node runs, `OutcomeError` for a run that did not
            complete, which is an error that ``on_error`` takes; but not of one that waits for a host, or for which the
            workflow's budget has nothing left.
    """
    if not isinstance(agent, Agent):
        raise InputError(f"agent_node.agent: expected an Agent, got {type(agent).__name__}")
    if not callable(input) or is_async(input):
        got = "an async one" if callable(input) else type(input).__name__
        raise InputError(f"agent_node.input: expected a sync function of the state, got {got}")

    async def run(state: Any, context: NodeContext) -> dict[str, Any]:
        result = await context.agents.run(agent, input(state))
        return {into: result.require_text() if agent.output is None else result.require_value()}

    return Node(
        id,
        description,
        run=run,
        starts_round=starts_round,
        requires=requires,
        provides=(into,),
        on_error=on_error,
        routes=routes,
    )
