"""One node after the other, each in an order that is always the same; errors go where they may, and no further."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import (
    AgentLoopError,
    BudgetError,
    LimitExceeded,
    ModelPending,
    OutcomeError,
    PersistenceError,
    ProviderError,
    RunCancelled,
    RunPaused,
    ToolFailed,
    UnsettledError,
    WorkflowError,
)
from agentloop.testing import RecordingSink, ScriptedProvider, reply
from tests.workflow.flows import END, Draft, flow, node, to


def patch(**values: Any) -> Callable[..., Any]:
    async def run(state: Draft, context: al.NodeContext) -> dict[str, Any]:
        return values

    return run


def failing(error: BaseException) -> Callable[..., Any]:
    async def run(state: Draft, context: al.NodeContext) -> None:
        raise error

    return run


async def refused(code: str, *nodes: al.Node, state: Draft | None = None, **options: Any) -> WorkflowError:
    engine = al.Engine(flow(*nodes, **options))
    with pytest.raises(WorkflowError) as caught:
        await engine.run(Draft() if state is None else state)
    assert caught.value.code == code
    return caught.value


# -- the order


async def test_the_steps_of_a_node_have_one_order() -> None:
    """(R297)"""
    log: list[str] = []

    class Told(msgspec.Struct, frozen=True):
        a: int | None = None
        b: int | None = None

        def __post_init__(self) -> None:
            log.append(f"state {self.a} {self.b}")

    async def run(state: Told, context: al.NodeContext) -> dict[str, int]:
        log.append(f"run {state.a} {state.b}")
        return {"b": 2}

    def guard(name: str, answer: bool) -> Callable[[Told], bool]:
        def ask(state: Told) -> bool:
            log.append(f"{name} {state.a} {state.b}")
            return answer

        return ask

    def complete(state: Told) -> int | None:
        log.append(f"complete {state.b}")
        return state.b

    def is_result(value: int | None) -> bool:
        log.append(f"is_result {value}")
        return True

    routes = (
        al.Route(to="other", when=guard("first", False)),
        al.Route(complete=complete, when=guard("second", True)),
        al.Route(to="other", when=guard("third", True)),
    )
    workflow = al.define_workflow(
        "w",
        state=Told,
        nodes=[
            al.Node("n", "N", run=run, requires=("a",), provides=("b",), routes=routes),
            al.Node("other", "O", routes=(al.Route(complete=None),)),
        ],
        is_result=is_result,
    )
    begin = Told(a=1)
    log.clear()
    assert await al.Engine(workflow).run(begin) == 2
    assert log == ["state 1 None", "run 1 None", "state 1 2", "first 1 2", "second 1 2", "complete 2", "is_result 2"]


async def test_what_is_required_is_looked_for_before_the_handler() -> None:
    """(R297)"""
    ran: list[str] = []
    needy = node("a", lambda state, context: ran.append("a"), requires=("topic", "text", "note"))
    error = await refused("missing_field", needy)
    assert (error.node, error.rule) == ("a", "expected the state to have topic, text, note, got none for text, note")
    assert ran == []
    assert await al.Engine(flow(needy)).run(Draft(text="t", note="n")) == "t"


async def test_a_cancel_during_a_handler_comes_before_its_patch() -> None:
    """(R297)"""
    signal, why = al.Signal(), ValueError("why")

    async def run(state: Draft, context: al.NodeContext) -> dict[str, Any]:
        signal.cancel(why)
        return {"nonsense": 1}

    engine = al.Engine(flow(node("a", run, provides=("text",))))
    with pytest.raises(ValueError, match="why") as caught:
        await engine.run(Draft(), signal=signal)
    assert caught.value is why
    assert engine.state == Draft()


async def test_a_patch_is_checked_before_it_is_committed_and_whole() -> None:
    """(R297)"""
    engine = al.Engine(flow(node("a", patch(text="t", tries="SECRET"), provides=("text", "tries"))))
    with pytest.raises(WorkflowError, match=r"bad_patch: node 'a': \$.tries: expected int, got str"):
        await engine.run(Draft())
    assert engine.state == Draft()
    assert (await refused("missing_field", node("a", patch(), provides=("text",)))).rule == (
        "expected it to provide text, got a patch without text"
    )
    assert (await refused("bad_patch", node("a", patch(text="t")))).rule == (
        "expected only fields that it provides (none), got 'text'"
    )


async def test_the_first_route_whose_guard_says_so_is_taken() -> None:
    """(R297)"""

    def more_than(tries: int) -> Callable[[Draft], bool]:
        return lambda state: state.tries > tries

    routes = (
        al.Route(complete="many", when=more_than(5)),
        al.Route(complete="some", when=more_than(1)),
        al.Route(complete="few"),
    )
    for tries, said in [(9, "many"), (2, "some"), (0, "few")]:
        assert await al.Engine(flow(node("a", None, *routes))).run(Draft(tries=tries)) == said
    error = await refused("no_route", node("a", None, *routes[:2]))
    assert str(error) == (
        "no_route: node 'a': expected one of its guards to say yes, got none; "
        "a last route without when= takes what is left"
    )


@pytest.mark.parametrize("value", [None, 0, "", (1, 2)])
async def test_any_value_completes(value: Any) -> None:
    """(R293)"""
    assert await al.Engine(flow(node("a", None, al.Route(complete=value)))).run(Draft()) == value
    assert await al.Engine(flow(node("a", None, al.Route(complete=lambda _: value)))).run(Draft()) == value


# -- guards and results


async def later() -> bool:
    return True


def unawaited() -> Any:
    """A coroutine out of a sync function, which no look at the function can tell."""
    return later()


@pytest.mark.parametrize("answer", [1, 0, None, "yes", [], later])
async def test_a_guard_answers_a_bool_at_once(answer: Any) -> None:
    """(R295)"""
    given = (lambda state: unawaited()) if answer is later else (lambda state: answer)
    expected = "expected True or False at once, got an awaitable"
    if answer is not later:
        expected = f"expected True or False, got {type(answer).__name__}"
    error = await refused("bad_guard", node("a", None, to("b", given), *END), node("b"))
    assert (error.node, error.rule) == ("a", f"routes[0].when: {expected}")
    error = await refused("bad_guard", node("a"), is_result=given)
    assert error.rule == f"is_result: {expected}"


async def test_an_awaitable_completes_nothing() -> None:
    """(R295)"""
    error = await refused("bad_guard", node("a", None, al.Route(complete=lambda state: unawaited())))
    assert error.rule == "routes[0].complete: expected a value at once, got an awaitable"
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await refused("bad_guard", node("a", None, al.Route(complete=lambda state: future)))


async def test_what_is_no_result_ends_the_run_and_takes_no_route() -> None:
    """(R299)"""
    error = await refused("not_a_result", node("a", patch(), on_error="b"), node("b"), is_result=lambda value: False)
    assert error.rule == "expected a value that is_result takes, got one of type NoneType"
    good = flow(node("a"), is_result=lambda value: value == "t")
    assert await al.Engine(good).run(Draft(text="t")) == "t"


async def test_what_can_be_mended_is_a_nodes_affair_and_apart_from_the_application() -> None:
    """(R299)"""

    class App:
        asked = 0

    async def judge(state: Draft, context: al.NodeContext) -> dict[str, str] | None:
        context.deps.asked += 1
        return {"text": "mended"} if state.text != "mended" else None

    again = flow(
        node(
            "judge",
            judge,
            to("judge", lambda state: state.text != "good" and state.tries == 0 and not state.text),
            *END,
            provides=("text",),
            starts_round=True,
        ),
        is_result=lambda value: isinstance(value, str),
    )
    app = App()
    assert await al.Engine(again).run(Draft(), deps=app) == "mended"
    assert app.asked == 1
    assert "deps" not in Draft.__struct_fields__
    assert repr(al.NodeContext) is not None


async def test_an_error_of_a_guard_is_raised_as_it_is() -> None:
    """(R298)"""
    why = KeyError("mine")

    def guard(state: Draft) -> bool:
        raise why

    engine = al.Engine(flow(node("a", patch(), to("b", guard), *END, on_error="b"), node("b")))
    with pytest.raises(KeyError) as caught:
        await engine.run(Draft())
    assert caught.value is why
    assert engine.journal.routes == ()


# -- errors


async def test_an_error_goes_where_the_node_says_with_the_state_as_it_was() -> None:
    """(R298)"""
    why, seen = ValueError("SECRET"), []

    async def mend(state: Draft, context: al.NodeContext) -> dict[str, Any]:
        seen.append((context.error, state.text))
        return {"text": "mended"}

    async def after(state: Draft, context: al.NodeContext) -> None:
        seen.append((context.error, state.text))

    engine = al.Engine(
        flow(
            node("a", failing(why), provides=("text",), on_error="mend"),
            node("mend", mend, to("after"), provides=("text",)),
            node("after", after),
        )
    )
    assert await engine.run(Draft(text="as it was")) == "mended"
    assert seen == [(why, "as it was"), (None, "mended")]
    assert [(one.node, one.status, one.code) for one in engine.journal.nodes] == [
        ("a", "error", "ValueError"),
        ("mend", "success", None),
        ("after", "success", None),
    ]
    assert [(one.node, one.route, one.to) for one in engine.journal.routes] == [
        ("a", None, "mend"),
        ("mend", 0, "after"),
        ("after", 0, None),
    ]


PROTECTED: list[Exception] = [
    WorkflowError("bad_patch", "x", "mine"),
    LimitExceeded("reply_bytes", 1, 2),
    BudgetError("model_calls", 1, 2),
    PersistenceError("stopped"),
    RunCancelled("r1"),
    RunPaused("r1"),
    ModelPending("r1", "a1"),
    UnsettledError("r1", ("a",), ()),
    OutcomeError("waiting_for_approval", "approval", "r1"),
]


@pytest.mark.parametrize("error", PROTECTED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("wrap", [False, True])
async def test_a_cancel_or_a_broken_contract_is_never_made_a_success(error: Exception, wrap: bool) -> None:
    """(R298)"""
    raised: Exception = ExceptionGroup("several", [ValueError("x"), ExceptionGroup("in", [error])]) if wrap else error
    engine = al.Engine(flow(node("a", failing(raised), on_error="b"), node("b", None, al.Route(complete="success"))))
    with pytest.raises(type(raised)) as caught:
        await engine.run(Draft())
    assert caught.value is raised
    assert engine.journal.routes == ()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ToolFailed("x"),
        ProviderError("x"),
        OutcomeError("refused", "stop", "r1"),
        ExceptionGroup("g", [ValueError("x")]),
    ],
    ids=repr,
)
async def test_any_other_error_is_business(error: Exception) -> None:
    """(R298)"""
    engine = al.Engine(flow(node("a", failing(error), on_error="b"), node("b", None, al.Route(complete="mended"))))
    assert await engine.run(Draft()) == "mended"


async def test_contracts_of_the_node_itself_take_no_error_route() -> None:
    """(R298)"""
    other = node("b", None, al.Route(complete="success"))
    await refused("missing_field", node("a", patch(), requires=("text",), on_error="b"), other)
    await refused("missing_field", node("a", patch(), provides=("text",), on_error="b"), other)
    await refused("bad_patch", node("a", patch(tries="x"), provides=("tries",), on_error="b"), other)
    await refused("bad_guard", node("a", patch(), to("b", lambda state: 1), *END, on_error="b"), other)
    await refused("no_route", node("a", patch(), to("b", lambda state: False), on_error="b"), other)


async def test_a_handler_that_hides_a_cancel_hides_it_from_itself_alone() -> None:
    """(R298)"""
    signal, why = al.Signal(), ValueError("why")

    async def hide(state: Draft, context: al.NodeContext) -> None:
        signal.cancel(why)
        raise KeyError("something else")

    engine = al.Engine(flow(node("a", hide, on_error="b"), node("b", None, al.Route(complete="success"))))
    with pytest.raises(ValueError, match="why") as caught:
        await engine.run(Draft(), signal=signal)
    assert caught.value is why
    assert [(one.node, one.status) for one in engine.journal.nodes] == [("a", "cancelled")]


async def test_a_group_of_errors_may_be_nested_however_deep() -> None:
    """(R298)"""
    for last, protected in ((ValueError("x"), False), (RunCancelled("r1"), True)):
        error: Exception = last
        for _ in range(3_000):
            error = ExceptionGroup("g", [error])
        engine = al.Engine(flow(node("a", failing(error), on_error="b"), node("b", None, al.Route(complete="mended"))))
        if not protected:
            assert await engine.run(Draft()) == "mended"
            continue
        with pytest.raises(ExceptionGroup) as caught:
            await engine.run(Draft())
        assert caught.value is error


@pytest.mark.parametrize(
    ("limit", "grants"),
    [
        ("max_model_calls", {"model_calls": 1}),
        ("max_tool_calls", {"tool_calls": 1}),
        ("max_tokens", {"tokens": 1}),
    ],
)
async def test_a_limit_of_an_agent_is_business_as_long_as_the_workflows_budget_has_something_left(
    limit: str, grants: dict[str, int]
) -> None:
    """(R298)"""
    why = OutcomeError("limit_reached", limit, "r1")
    workflow = flow(node("a", failing(why), on_error="b"), node("b", None, al.Route(complete="mended")))
    above = al.Ledger(**grants)  # type: ignore[arg-type]
    engine = al.Engine(workflow, ledger=above.child())
    assert await engine.run(Draft()) == "mended"
    (resource,) = grants
    above.charge(resource, 1)  # type: ignore[arg-type]
    with pytest.raises(OutcomeError) as caught:
        await engine.run(Draft())
    assert caught.value is why
    assert engine.journal.routes == ()
    assert await al.Engine(workflow, ledger=al.Ledger()).run(Draft()) == "mended"


async def test_each_guard_and_the_result_read_a_state_of_their_own() -> None:
    """(R297)"""

    def spoil(state: Draft) -> bool:
        state.tags.append("spoilt")
        return False

    def spoilt(state: Draft) -> bool:
        return len(state.tags) > 1

    engine = al.Engine(
        flow(
            node("a", None, to("a", spoil), to("a", spoilt), al.Route(complete=lambda state: state), starts_round=True)
        )
    )
    result: Any = await engine.run(Draft(tags=["x"]))
    assert result.tags == ["x"]
    result.tags.append("y")
    assert engine.state == Draft(tags=["x"])
    assert engine.state is not None
    engine.state.tags.append("z")
    assert engine.state.tags == ["x"]


async def test_a_guard_that_cancels_and_completes_has_completed() -> None:
    """Whether the run is wanted is asked before the patch is taken, and before another node (R297)."""
    engine: al.Engine[Draft, Any]

    def guard(state: Draft) -> bool:
        engine.signal.cancel(ValueError("mine"))
        return True

    engine = al.Engine(flow(node("a", None, al.Route(complete="done", when=guard), *END)))
    assert await engine.run(Draft()) == "done"
    with pytest.raises(ValueError, match="mine"):
        await engine.run(Draft())


async def test_a_budget_that_a_nodes_call_runs_out_of_takes_no_error_route() -> None:
    """(R298)"""

    async def ask(state: Draft, context: al.NodeContext) -> None:
        await context.model.invoke("x")
        await context.model.invoke("x")

    engine = al.Engine(
        flow(node("a", ask, on_error="b"), node("b", None, al.Route(complete="success"))),
        model=al.RunnerDefinition(ScriptedProvider([reply("1")]), max_calls=1),
    )
    with pytest.raises(BudgetError, match="model_calls"):
        await engine.run(Draft())


# -- what is told


async def test_nodes_and_routes_are_told_in_their_documented_order() -> None:
    """(R297)"""
    seen = RecordingSink()
    workflow = flow(
        node("a", patch(text="t"), to("b"), provides=("text",)),
        node("b", failing(ValueError("x")), on_error="c"),
        node("c", None, to("a", lambda state: False), al.Route(complete=None), starts_round=True),
    )
    async with al.Runtime(ScriptedProvider([]), observers=[seen]) as runtime:
        engine = runtime.engine(workflow)
        assert await engine.run(Draft()) is None
    assert [(e.type, e.payload) for e in seen.events if e.type == "route.taken"] == [
        ("route.taken", {"workflow": "article", "node": "a", "round": 1, "route": 0, "to": "b"}),
        ("route.taken", {"workflow": "article", "node": "b", "round": 1, "route": None, "to": "c"}),
        ("route.taken", {"workflow": "article", "node": "c", "round": 2, "route": 1, "to": None}),
    ]
    assert seen.types == ["node.started", "node.ended", "route.taken"] * 3
    visits = [event.invocation_id for event in seen.events]
    assert visits[0::3] == visits[1::3] == visits[2::3]
    assert len(set(visits)) == 3
    assert {event.parent_span_id for event in seen.events} == {seen.events[0].run_id}
    assert al.Journal.of(seen.events).routes == engine.journal.routes
    assert al.Journal.of(seen.events).nodes == engine.journal.nodes


async def test_the_end_of_a_run_that_broke_off_is_no_route() -> None:
    seen = RecordingSink()
    async with al.Runtime(ScriptedProvider([]), observers=[seen]) as runtime:
        with pytest.raises(WorkflowError):
            await runtime.engine(flow(node("a", None, to("b", lambda _: False)), node("b"))).run(Draft())
    assert seen.types == ["node.started", "node.ended"]
    assert [event.payload["status"] for event in seen.events[1:]] == ["success"]


# -- against a reference

FIELDS = ("p", "q")
KINDS = ("patch", "leave out", "too much", "wrong type", "raise", "protected", "nothing")


class Tape(msgspec.Struct, frozen=True):
    """The state of a random workflow: what each visit does is read from a tape."""

    tape: tuple[int, ...] = ()
    at: int = 0
    p: int | None = None
    q: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """One random node."""

    targets: tuple[str | None, ...]  # None completes
    open_last: bool  # whether the last route has no guard
    starts_round: bool
    requires: tuple[str, ...]
    provides: tuple[str, ...]
    on_error: str | None


class Fault(Exception):
    """What the reference ends with: a code."""


def reference(plans: dict[str, Plan], tape: tuple[int, ...], max_rounds: int, log: list[str]) -> Any:
    """The plainest interpreter of such a workflow: what happens is said to ``log``, in order."""
    here, rounds, fields, at = "a", 1, {"p": None, "q": None}, 0
    while True:
        plan = plans[here]
        log.append(f"enter {here} {rounds}")
        if any(fields[name] is None for name in plan.requires):
            raise Fault("missing_field")
        draw = tape[at % len(tape)] if tape else 0
        kind = KINDS[draw % len(KINDS)]
        log.append(f"run {here} {fields}")
        goes: str | None
        if kind == "protected":
            raise Fault("BUDGET")
        if kind == "raise":
            if plan.on_error is None:
                raise Fault("KeyError")
            log.append(f"route {here} None {plan.on_error}")
            goes = plan.on_error
        else:
            made = dict.fromkeys(plan.provides, draw) if kind != "nothing" else {}
            if kind == "leave out" and made:
                del made[plan.provides[0]]
            if kind == "too much" and len(plan.provides) < 2:
                raise Fault("bad_patch")
            if any(name not in made and fields[name] is None for name in plan.provides):
                raise Fault("missing_field")
            if kind == "wrong type" and plan.provides:
                raise Fault("bad_patch")
            fields = {**fields, **made}
            at += 1
            draw = tape[at % len(tape)] if tape else 0
            for number in range(len(plan.targets)):
                if number == len(plan.targets) - 1 and plan.open_last:
                    break
                log.append(f"guard {here} {number}")
                if (draw >> number) % 2:
                    break
            else:
                raise Fault("no_route")
            goes = plan.targets[number]
            if goes is None:
                log.append(f"route {here} {number} None")
                return [fields["p"], fields["q"]]
            log.append(f"route {here} {number} {goes}")
        here = goes
        if plans[here].starts_round:
            if rounds == max_rounds:
                raise Fault("BUDGET")
            rounds += 1


def built(plans: dict[str, Plan], log: list[str]) -> al.Workflow[Tape, Any]:
    def handler(id: str, plan: Plan) -> Callable[..., Any]:
        async def run(state: Tape, context: al.NodeContext) -> dict[str, Any] | None:
            draw = state.tape[state.at % len(state.tape)] if state.tape else 0
            kind = KINDS[draw % len(KINDS)]
            log.append(f"run {id} { ({'p': state.p, 'q': state.q}) }")
            await asyncio.sleep(0)
            if kind == "protected":
                raise BudgetError("mine", 1, 2)
            if kind == "raise":
                raise KeyError(id)
            made: dict[str, Any] = dict.fromkeys(plan.provides, draw) if kind != "nothing" else {}
            if kind == "leave out" and made:
                del made[plan.provides[0]]
            if kind == "too much":
                made |= {name: 1 for name in FIELDS if name not in plan.provides}
            if kind == "wrong type":
                made = dict.fromkeys(plan.provides, "x")
            return {**made, "at": state.at + 1}

        return run

    def guard(id: str, number: int) -> Callable[[Tape], bool]:
        def ask(state: Tape) -> bool:
            log.append(f"guard {id} {number}")
            draw = state.tape[state.at % len(state.tape)] if state.tape else 0
            return (draw >> number) % 2 == 1

        return ask

    nodes = []
    for id, plan in plans.items():
        routes = []
        for number, target in enumerate(plan.targets):
            when = None if number == len(plan.targets) - 1 and plan.open_last else guard(id, number)
            if target is None:
                routes.append(al.Route(complete=lambda state: [state.p, state.q], when=when))
            else:
                routes.append(al.Route(to=target, when=when))
        nodes.append(
            al.Node(
                id,
                id,
                run=handler(id, plan),
                starts_round=plan.starts_round,
                requires=plan.requires,
                provides=(*plan.provides, "at"),
                on_error=plan.on_error,
                routes=tuple(routes),
            )
        )
    return al.define_workflow("random", state=Tape, nodes=nodes, start="a")


class Told:
    """An observer that says what was told as the reference does."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def apply(self, event: al.Event) -> None:
        if isinstance(event, al.NodeStarted):
            self._log.append(f"enter {event.node} {event.round}")
        elif isinstance(event, al.RouteTaken):
            self._log.append(f"route {event.node} {event.route} {event.to}")


def mended(plans: dict[str, Plan]) -> dict[str, Plan]:
    """The same plans without what a definition refuses: what nothing leads to, endless cycles, ways without an end."""
    reached, waiting = {"a"}, ["a"]
    while waiting:
        plan = plans[waiting.pop()]
        waiting += {one for one in (*plan.targets, plan.on_error) if one is not None} - reached
        reached.update(waiting)
    kept = {one: plan for one, plan in plans.items() if one in reached}
    changes: dict[str, Any]
    for changes in ({}, {"starts_round": True}, {"starts_round": True, "targets": (None,)}):
        last = "c" if "c" in kept else "b" if "b" in kept else "a"
        tried = {
            one: msgspec.structs.replace(
                plan,
                starts_round=changes.get("starts_round", plan.starts_round),
                targets=(*plan.targets[:-1], None) if "targets" in changes and one == last else plan.targets,
            )
            for one, plan in kept.items()
        }
        try:
            built(tried, [])
        except WorkflowError:
            continue
        return tried
    reject()
    raise AssertionError


names = st.sampled_from(["a", "b", "c"])
some_fields = st.sampled_from([(), (), ("p",), ("q",), ("p", "q")])
plan_of = st.builds(
    Plan,
    targets=st.lists(names | st.none(), min_size=1, max_size=3).map(tuple),
    open_last=st.booleans(),
    starts_round=st.booleans(),
    requires=st.sampled_from([(), (), (), ("p",)]),
    provides=some_fields,
    on_error=st.none() | names,
)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries({"a": plan_of, "b": plan_of, "c": plan_of}),
    st.lists(st.integers(0, 20), max_size=8).map(tuple),
    st.integers(1, 4),
)
def test_a_random_workflow_goes_as_a_plain_interpreter_says(
    plans: dict[str, Plan], tape: tuple[int, ...], max_rounds: int
) -> None:
    """(R287, R297, R298)"""
    told: list[str] = []
    plans = mended(plans)
    workflow = built(plans, told)
    expected: list[str] = []
    wanted: Any
    try:
        wanted = reference(plans, tape, max_rounds, expected)
    except Fault as fault:
        wanted = str(fault)

    async def walk() -> Any:
        diagnostics = al.Diagnostics()
        hear = Told(told)
        engine = al.Engine(workflow, max_rounds=max_rounds, execution=al.Execution(diagnostics=diagnostics))
        record = al.Journal.apply

        def apply(journal: al.Journal, event: al.Event) -> None:
            hear.apply(event)
            record(journal, event)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(al.Journal, "apply", apply)
            try:
                return await engine.run(Tape(tape=tape))
            except AgentLoopError as error:
                return error.code
            except KeyError:
                return "KeyError"

    event(f"ends with {wanted if isinstance(wanted, str) else 'a value'}")
    assert asyncio.run(walk()) == wanted
    assert told == expected
