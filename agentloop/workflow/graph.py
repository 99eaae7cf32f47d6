"""The four faults that the graph of a workflow can have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from ..errors import WorkflowError

__all__ = ["Graph", "check_graph"]

_SHOWN: Final = 8
"""Nodes of a long cycle that an error names."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a graph.

    Attributes:
        targets: ids of the nodes that may come next, in order.
        starts_round: whether entering it is bounded. completes: whether the workflow may end with it.
    """

    targets: tuple[str, ...]
    starts_round: bool
    completes: bool


def check_graph(start: str, nodes: Mapping[str, Graph]) -> None:
    """Refuse a graph that leads nowhere, for ever, or to nothing that is there. Linear in its edges.

    Raises:
        WorkflowError: ``unknown_target``, ``unreachable``, ``endless_cycle`` or ``no_completion``, in this order; names
            the first node that is at fault.
    """
    for one, node in nodes.items():
        for target in node.targets:
            if target not in nodes:
                rule = f"expected routes to nodes of the workflow, got one to {target[:80]!r}"
                raise WorkflowError("unknown_target", one, rule)
    reached = _reached([start], {one: node.targets for one, node in nodes.items()})
    for one in nodes:
        if one not in reached:
            raise WorkflowError("unreachable", one, f"expected a way that leads to it from {start!r}, got none")
    _check_cycles(nodes)
    back: dict[str, list[str]] = {one: [] for one in nodes}
    for one, node in nodes.items():
        for target in node.targets:
            back[target].append(one)
    ending = _reached([one for one, node in nodes.items() if node.completes], back)
    for one in nodes:
        if one not in ending:
            raise WorkflowError("no_completion", one, "expected a way that leads from it to complete=, got none")


def _reached(first: list[str], targets: Mapping[str, Collection[str]]) -> set[str]:
    found, waiting = set(first), list(first)
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _check_cycles(nodes: Mapping[str, Graph]) -> None:
    """Look for a cycle among the nodes that start no round."""
    done: set[str] = set()
    for first in nodes:
        trail: dict[str, None] = {}
        steps = [(first, False)]
        while steps:
            one, left = steps.pop()
            if left:
                del trail[one]
                done.add(one)
            elif one in trail:
                ids = list(trail)
                cycle = ids[ids.index(one) :]
                shown = [*cycle[:_SHOWN], *([f"{len(cycle) - _SHOWN} more"] if len(cycle) > _SHOWN else []), one]
                rule = f"expected a node with starts_round=True in each cycle, got none in {' -> '.join(shown)}"
                raise WorkflowError("endless_cycle", one, rule)
            elif one not in done and not nodes[one].starts_round:
                trail[one] = None
                steps.append((one, True))
                steps.extend((target, False) for target in reversed(nodes[one].targets))
