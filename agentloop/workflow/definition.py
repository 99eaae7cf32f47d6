"""What a workflow is: nodes on a typed state, checked when it is defined.

    draft = al.Node("draft", "Write a draft", run=write, provides=("text",), routes=(al.Route(to="review"),))
    review = al.Node(
        "review", "Judge it", run=judge, starts_round=True, requires=("text",), provides=("good",),
        routes=(al.Route(complete=lambda state: state.text, when=lambda state: state.good), al.Route(to="draft")),
    )
    article = al.define_workflow("article", state=Article, nodes=(draft, review))

A definition is refused for exactly four faults of its graph: a route to a node that is not there, a node that
no way leads to, a cycle in which no node starts a round, and a node that no way leads from to an end. Ways are
routes and the routes of errors. Everything else that is refused is a wrong value of one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from ..errors import InputError, WorkflowError
from ..events import Journal
from ..limits import check_name
from ..tools.definition import is_async
from .graph import Graph, check_graph
from .nodes import Node
from .state import StateType

__all__ = ["Workflow", "define_workflow"]

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")


class Workflow(Generic[S, R]):
    """A checked definition; made by `define_workflow`, shared by any number of engines.

    Attributes:
        name, start: of the workflow, and of the node it begins with.
        nodes: by id, in order.
        state: the type of its state.
        is_result: see `define_workflow`.
    """

    __slots__ = ("is_result", "name", "nodes", "start", "state")

    def __init__(
        self,
        name: str,
        *,
        state: StateType[S],
        nodes: Mapping[str, Node],
        start: str,
        is_result: Callable[[R], bool] | None,
    ) -> None:
        fixed = object.__setattr__
        for field, value in (("name", name), ("state", state), ("nodes", nodes), ("start", start)):
            fixed(self, field, value)
        fixed(self, "is_result", is_result)

    name: str
    state: StateType[S]
    nodes: Mapping[str, Node]
    start: str
    is_result: Callable[[R], bool] | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a workflow is fixed once it is defined")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a workflow is fixed once it is defined")

    def to_mermaid(self, journal: Journal | None = None) -> str:
        """The workflow as a Mermaid flowchart.

        Args:
            journal: marks the ways that its newest run of this workflow took, and says how often. What a journal
                has given up for newer records is not marked.

        Raises:
            InputError: ``journal`` is none.
        """
        if journal is not None and not isinstance(journal, Journal):
            raise InputError(f"to_mermaid: expected a Journal or None, got {type(journal).__name__}")
        from .mermaid import flowchart, path_of  # noqa: PLC0415  # few programs draw

        return flowchart(self.start, self.nodes, {} if journal is None else path_of(journal, self.name))

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} of {len(self.nodes)} nodes>"


def define_workflow(
    name: str,
    *,
    state: type[S],
    nodes: Iterable[Node],
    start: str | None = None,
    is_result: Callable[[R], bool] | None = None,
) -> Workflow[S, R]:
    """Check a workflow and fix it.

    Args:
        name: 1 to 128 characters; in events.
        state: a frozen `msgspec.Struct`; what it holds is the workflow's alone, the application's is ``context.deps``.
        nodes: one and more.
        start: id of the node that it begins with; the first one by default.
        is_result: answers whether a completing value is a result, sync and exactly a bool. What is none ends the run
            with an error; what can be mended is a node's affair (R299).

    Raises:
        WorkflowError: says the code, the node and what was expected. ``bad_node``, ``unknown_target``, ``unreachable``,
            ``endless_cycle``, ``no_completion``.
        InputError: a name or a function of another type.
    """
    check_name("define_workflow.name", name)
    kind: StateType[S] = StateType(state)
    if is_result is not None and (not callable(is_result) or is_async(is_result)):
        got = "an async one" if callable(is_result) else type(is_result).__name__
        raise InputError(f"define_workflow.is_result: expected a sync function or None, got {got}")
    if isinstance(nodes, (str, bytes, Mapping)) or not isinstance(nodes, Iterable):
        raise InputError(f"define_workflow.nodes: expected nodes, got {type(nodes).__name__}")
    by_id: dict[str, Node] = {}
    for node in nodes:
        if type(node) is not Node:
            raise WorkflowError("bad_node", "", f"nodes: expected Node, got {type(node).__name__}")
        if node.id in by_id:
            raise WorkflowError("bad_node", node.id, "expected unique ids, got this one twice")
        by_id[node.id] = node
        _check_node(node, kind.fields)
    if not by_id:
        raise WorkflowError("bad_node", "", "nodes: expected one and more, got none")
    first = next(iter(by_id)) if start is None else start
    if first not in by_id:
        rule = f"start: expected the id of a node, got {str(first)[:80]!r}"
        raise WorkflowError("unknown_target", "", rule)
    check_graph(first, {one: _edges(node) for one, node in by_id.items()})
    return Workflow(name, state=kind, nodes=MappingProxyType(by_id), start=first, is_result=is_result)


def _check_node(node: Node, fields: tuple[str, ...]) -> None:
    for name in ("requires", "provides"):
        given: tuple[str, ...] = getattr(node, name)
        for field in given:
            if field not in fields:
                rule = f"{name}: expected fields of the state ({', '.join(fields)}), got {field[:80]!r}"
                raise WorkflowError("bad_node", node.id, rule)
        if len(set(given)) < len(given):
            raise WorkflowError("bad_node", node.id, f"{name}: expected each field once")
    if node.run is None and (node.provides or node.on_error is not None):
        name = "provides" if node.provides else "on_error"
        raise WorkflowError("bad_node", node.id, f"expected run= beside {name}=, got none")
    if not node.routes:
        raise WorkflowError("bad_node", node.id, "routes: expected one and more, got none")
    for at, route in enumerate(node.routes[:-1]):
        if route.when is None:
            rule = (
                f"routes[{at}]: expected when= on all but the last, got a route that leaves nothing to those after it"
            )
            raise WorkflowError("bad_node", node.id, rule)


def _edges(node: Node) -> Graph:
    targets = tuple(route.to for route in node.routes if route.to is not None)
    return Graph(
        targets=targets if node.on_error is None else (*targets, node.on_error),
        starts_round=node.starts_round,
        completes=any(route.to is None for route in node.routes),
    )
