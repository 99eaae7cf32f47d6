"""What tests of workflows share: a small state, nodes in one line, and a spawn that keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import agentloop as al

__all__ = ["END", "Draft", "Spawned", "flow", "node", "result_of_agent", "to"]


class Draft(msgspec.Struct, frozen=True):
    """A state with a field of each kind that matters."""

    topic: str = "tides"
    text: str | None = None
    tries: int = 0
    tags: list[str] = []
    note: str | msgspec.UnsetType = msgspec.UNSET


END = (al.Route(complete=lambda state: state.text),)


def to(target: str, when: Callable[[Any], Any] | None = None) -> al.Route:
    return al.Route(to=target, when=when)


def node(id: str, run: Any = None, *routes: al.Route, **options: Any) -> al.Node:
    """A node that ends the workflow with its text where no route is given."""
    return al.Node(id, f"The {id}", run=run, routes=routes or END, **options)


def flow(*nodes: al.Node, **options: Any) -> al.Workflow[Draft, Any]:
    return al.define_workflow("article", state=Draft, nodes=nodes, **options)


def result_of_agent(text: str) -> al.RunResult[Any]:
    return al.RunResult(
        outcome="completed",
        reason="stop",
        text=text,
        refusal=None,
        ref="r1",
        conversation=None,
        usage=None,
        model_calls=1,
        tool_calls=0,
    )


class Spawned:
    """Runs agents on a runtime, on the ledger that it is given as far as a count of model calls goes."""

    def __init__(self, runtime: al.Runtime) -> None:
        self._runtime = runtime
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, agent: al.Agent[Any], input: Any, /, *, ledger: al.Ledger, **rest: Any) -> Any:
        self.asked.append({"agent": agent.name, "input": input, **rest})
        ledger.check("model_calls")
        result = await self._runtime.run(agent, input, deps=rest["deps"], run_id=rest["run_id"])
        ledger.charge("model_calls", result.model_calls)
        return result
