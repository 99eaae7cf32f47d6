"""A workflow is checked when it is defined: each error names the node, and says what was expected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import InputError, WorkflowError
from tests.workflow.flows import END, Draft, flow, node, to


async def work(state: Draft, context: al.NodeContext) -> None:
    """Does nothing."""


def refused(code: str, *nodes: al.Node, **options: Any) -> WorkflowError:
    with pytest.raises(WorkflowError) as caught:
        flow(*nodes, **options)
    assert caught.value.code == code
    return caught.value


# -- the four faults of a graph


def test_a_route_to_a_node_that_is_not_there_is_refused() -> None:
    """(R296)"""
    error = refused("unknown_target", node("a", None, to("b", lambda _: True), to("nowhere")), node("b"))
    assert (error.node, error.rule) == ("a", "expected routes to nodes of the workflow, got one to 'nowhere'")
    error = refused("unknown_target", node("a", work, on_error="nowhere"))
    assert error.node == "a"
    assert refused("unknown_target", node("a"), start="b").rule == "start: expected the id of a node, got 'b'"


def test_a_node_that_no_way_leads_to_is_refused() -> None:
    """(R296)"""
    error = refused("unreachable", node("a"), node("b", None, to("a")))
    assert str(error) == "unreachable: node 'b': expected a way that leads to it from 'a', got none"
    assert refused("unreachable", node("a"), node("b"), start="b").node == "a"
    flow(node("a", work, on_error="b"), node("b"))


def test_a_cycle_in_which_no_node_starts_a_round_is_refused() -> None:
    """(R296)"""
    many = (to("b", lambda _: True), *END)
    error = refused("endless_cycle", node("start", None, to("a")), node("a", None, *many), node("b", None, to("a")))
    assert error.rule == "expected a node with starts_round=True in each cycle, got none in a -> b -> a"
    assert refused("endless_cycle", node("a", None, to("a", lambda _: True), *END)).node == "a"
    assert refused("endless_cycle", node("a", work, on_error="a")).node == "a"
    flow(node("a", None, *many), node("b", None, to("a"), starts_round=True))
    flow(node("a", None, to("a", lambda _: True), *END, starts_round=True))


def test_a_node_that_no_way_leads_from_to_an_end_is_refused() -> None:
    """(R296)"""
    choice = (to("b", lambda _: True), *END)
    error = refused("no_completion", node("a", None, *choice), node("b", None, to("b"), starts_round=True))
    assert str(error) == "no_completion: node 'b': expected a way that leads from it to complete=, got none"
    flow(node("a", None, *choice), node("b", work, to("b"), starts_round=True, on_error="c"), node("c"))


def test_a_long_workflow_is_checked_without_recursion() -> None:
    """(R296)"""
    nodes = [node(f"n{at}", None, to(f"n{at + 1}")) for at in range(5_000)]
    flow(*nodes, node("n5000"))
    rule = refused("endless_cycle", *nodes, node("n5000", None, to("n0"))).rule
    assert rule.endswith("got none in n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> n6 -> n7 -> 4993 more -> n0")
    rule = refused("endless_cycle", *nodes[:7], node("n7", None, to("n0", lambda _: True), *END)).rule
    assert rule.endswith("got none in n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> n6 -> n7 -> n0")


# -- an independent checker


def faults(start: str, nodes: dict[str, tuple[list[str], bool, bool]]) -> set[str]:
    """The faults of a graph of (targets, starts a round, completes), by the plainest means there are."""
    if any(target not in nodes for targets, _, _ in nodes.values() for target in targets):
        return {"unknown_target"}
    found = set()
    paths = {one: {one} for one in nodes}  # the transitive closure
    for _ in nodes:
        for one, (targets, _, _) in nodes.items():
            for target in targets:
                paths[one] = paths[one] | paths[target]
    if paths[start] != set(nodes):
        found.add("unreachable")
    if any(not any(nodes[end][2] for end in ends) for ends in paths.values()):
        found.add("no_completion")
    left = {one: {t for t in targets if not nodes[t][1]} for one, (targets, rounds, _) in nodes.items() if not rounds}
    while any(not targets for targets in left.values()):  # take away what ends
        ends = {one for one, targets in left.items() if not targets}
        left = {one: targets - ends for one, targets in left.items() if one not in ends}
    return found | ({"endless_cycle"} if left else set())


IDS = ["a", "b", "c", "d", "e"]
graphs = st.integers(1, len(IDS)).flatmap(
    lambda size: st.fixed_dictionaries(
        {
            one: st.tuples(
                st.lists(st.sampled_from([*IDS[:size], *IDS[:size], *IDS[:size], "?"]), max_size=3),
                st.booleans(),
                st.booleans(),
                st.none() | st.sampled_from(IDS[:size]),
            )
            for one in IDS[:size]
        }
    )
)


@given(graphs, st.integers(0, 4))
def test_exactly_the_four_faults_are_refused(
    graph: dict[str, tuple[list[str], bool, bool, str | None]], at: int
) -> None:
    """(R296)"""
    graph = {
        one: (targets, rounds, done or not targets, error) for one, (targets, rounds, done, error) in graph.items()
    }
    start = list(graph)[at % len(graph)]
    nodes = []
    for one, (targets, rounds, done, on_error) in graph.items():
        routes = [to(target, lambda _: True) for target in targets] + (list(END) if done else [])
        nodes.append(node(one, work, *routes, starts_round=rounds, on_error=on_error))
    expected = faults(
        start,
        {
            one: ([*targets, *([error] if error else [])], rounds, done)
            for one, (targets, rounds, done, error) in graph.items()
        },
    )
    try:
        flow(*nodes, start=start)
    except WorkflowError as error:
        found, where = {error.code}, error.node
    else:
        found, where = set(), start
    assert bool(found) == bool(expected)
    assert found <= expected
    assert where in graph


# -- values of one node


@pytest.mark.parametrize(
    ("nodes", "rule"),
    [
        ([], "nodes: expected one and more, got none"),
        ([node("a"), node("a")], "expected unique ids, got this one twice"),
        (["a"], "nodes: expected Node, got str"),
        (
            [node("a", requires=("mood",))],
            "requires: expected fields of the state (topic, text, tries, tags, note), got 'mood'",
        ),
        (
            [node("a", work, provides=("mood",))],
            "provides: expected fields of the state (topic, text, tries, tags, note), got 'mood'",
        ),
        ([node("a", requires=("text", "text"))], "requires: expected each field once"),
        ([node("a", provides=("text",))], "expected run= beside provides=, got none"),
        ([node("a", on_error="a")], "expected run= beside on_error=, got none"),
        ([al.Node("a", "A")], "routes: expected one and more, got none"),
        (
            [node("a", None, to("a"), *END)],
            "routes[0]: expected when= on all but the last, got a route that leaves nothing to those after it",
        ),
    ],
)
def test_a_wrong_node_is_refused_by_name(nodes: list[Any], rule: str) -> None:
    """(R294)"""
    error = refused("bad_node", *nodes)
    assert error.rule == rule
    assert error.node == ("" if rule.startswith("nodes") else "a")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: al.Node("", "A"), "Node.id: expected a string of 1 to 128 characters, got 0 characters"),
        (lambda: al.Node("a", None), "Node 'a'.description: expected text, got NoneType"),
        (lambda: al.Node("a", "\ud800"), "Node 'a'.description: expected text, got text that UTF-8 cannot encode"),
        (lambda: al.Node("a", "A", run=3), "Node 'a'.run: expected a function or None, got int"),
        (lambda: al.Node("a", "A", starts_round=1), "Node 'a'.starts_round: expected bool, got int"),
        (lambda: al.Node("a", "A", requires=["x"]), "Node 'a'.requires: expected a tuple of str, got list"),
        (
            lambda: al.Node("a", "A", provides=(1, "x")),
            "Node 'a'.provides: expected a tuple of str, got a tuple of int, str",
        ),
        (lambda: al.Node("a", "A", routes=("b",)), "Node 'a'.routes: expected a tuple of Route, got a tuple of str"),
        (lambda: al.Node("a", "A", on_error=3), "Node 'a'.on_error: expected a string of 1 to 128 characters, got int"),
        (al.Route, "Route: expected either to= or complete=, got none of them"),
        (lambda: al.Route(to="a", complete=None), "Route: expected either to= or complete=, got both"),
        (lambda: al.Route(to=3), "Route.to: expected a string of 1 to 128 characters, got int"),
        (lambda: al.Route(to="a", when=True), "Route.when: expected a function of the state or None, got bool"),
        (lambda: al.Route(to="a", when=work), "Route.when: expected a sync function, got an async one"),
        (lambda: al.Route(complete=work), "Route.complete: expected a sync function, got an async one"),
        (lambda: al.Route(to="a", label=3), "Route.label: expected text, got int"),
        (lambda: al.define_workflow("", state=Draft, nodes=[]), "define_workflow.name: expected a string of 1 to 128"),
        (lambda: flow(is_result=3), "define_workflow.is_result: expected a sync function or None, got int"),
        (lambda: flow(is_result=work), "define_workflow.is_result: expected a sync function or None, got an async one"),
        (lambda: al.define_workflow("w", state=Draft, nodes=3), "define_workflow.nodes: expected nodes, got int"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(make: Any, text: str) -> None:
    """(R294, R295, R299)"""
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(text)


def test_a_state_is_a_frozen_struct() -> None:
    class Loose(msgspec.Struct):
        text: str = ""

    class Unknown(msgspec.Struct, frozen=True):
        text: Nowhere  # type: ignore[name-defined]  # noqa: F821

    for kind, rule in [
        (dict, "state: expected a frozen msgspec.Struct, got dict"),
        (Draft(), "state: expected a frozen msgspec.Struct, got Draft"),
        (Loose, "state: expected a frozen struct, got Loose, which is not"),
        (Unknown, "state: expected types that msgspec takes in Unknown: "),
    ]:
        with pytest.raises(WorkflowError) as caught:
            al.define_workflow("w", state=kind, nodes=[node("a")])  # type: ignore[type-var]
        assert caught.value.code == "bad_node"
        assert caught.value.rule.startswith(rule)


def test_a_workflow_is_fixed_once_it_is_defined() -> None:
    workflow = flow(node("a"), node("b", None, to("a")), start="b")
    assert (workflow.start, list(workflow.nodes), repr(workflow)) == (
        "b",
        ["a", "b"],
        "<Workflow 'article' of 2 nodes>",
    )
    with pytest.raises(AttributeError, match="fixed once it is defined"):
        workflow.name = "other"
    with pytest.raises(AttributeError, match="fixed once it is defined"):
        del workflow.name
    with pytest.raises(AttributeError):
        workflow.nodes["a"].id = "c"  # type: ignore[misc]
    with pytest.raises(TypeError):
        workflow.nodes["c"] = node("c")  # type: ignore[index]
