"""Parts of one request: what a child has from its parent and what not, and tasks that share one budget."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.runner.children import Family
from agentloop.testing import RecordingSink, ScriptedProvider, reply
from tests.runner.calls import LazySink, check_calls, facts_of, runner_on
from tests.runs import SlowBackend, other_tasks


class Reason(Exception):
    """Why a task failed."""


def hi(count: int) -> ScriptedProvider:
    return ScriptedProvider([reply("hi", usage=(5, 5))] * count)


# -- the tree


def test_the_limits_of_children_have_defaults_and_ranges() -> None:
    """(R280)"""
    limits = al.ChildLimits()
    assert (limits.max_depth, limits.max_concurrent_calls, limits.max_children) == (1, 1, 32)
    al.ChildLimits(max_depth=0, max_children=0)
    for name, value in [("max_depth", -1), ("max_concurrent_calls", 0), ("max_children", -1), ("max_depth", True)]:
        with pytest.raises(al.InputError, match=f"ChildLimits.{name}: expected"):
            al.ChildLimits(**{name: value})


def test_a_place_knows_its_depth_and_counts_every_child_for_ever() -> None:
    """(R281)"""
    root = Family(al.ChildLimits(max_depth=2, max_children=3))
    assert (root.depth, root.turn) == (0, None)
    first = root.below()
    deep = first.below()
    assert (first.depth, deep.depth) == (1, 2)
    assert deep.turn is first.turn is not None
    with pytest.raises(al.BudgetError) as caught:
        deep.below()
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == ("children.max_depth", 2, 3)
    first.check()
    del deep
    root.below()
    for place in (root, first):
        with pytest.raises(al.BudgetError) as caught:
            place.below()
        assert (caught.value.limit, caught.value.allowed, caught.value.got) == ("children.max_children", 3, 4)


async def test_closing_a_child_ends_its_calls_alone() -> None:
    """(R276)"""
    seen = RecordingSink()
    async with al.ModelRunner(hi(3), observers=[seen]) as root:
        async with root.child() as child:
            assert (await child.invoke("go")).value == "hi"
        with pytest.raises(al.RunCancelled):
            await child.invoke("go")
        assert (await root.invoke("go")).value == "hi"
        assert (await root.child().invoke("go")).value == "hi"
    assert len(seen.of(al.ModelEnd)) == 3  # those after it were still observed


def test_what_children_share_is_fixed_at_the_root() -> None:
    """Each runner counts to the same number, wherever it is (R281)."""
    root = al.ModelRunner(hi(0), children=al.ChildLimits(max_depth=2, max_children=3))
    child = root.child("1")
    child.child("1.1")
    root.child("2")
    for runner in (root, child):
        with pytest.raises(al.BudgetError, match=r"children\.max_children"):
            runner.child()
    with pytest.raises(al.BudgetError, match=r"children\.max_depth"):
        al.ModelRunner(hi(0)).child().child()
    with pytest.raises(al.BudgetError, match=r"children\.max_depth"):
        al.ModelRunner(hi(0), children=al.ChildLimits(max_depth=0)).child()


async def test_a_child_that_was_refused_has_taken_no_place_and_no_id() -> None:
    """(R281)"""
    root = al.ModelRunner(hi(1), children=al.ChildLimits(max_children=1))
    used = root.execution.diagnostics
    assert used is not None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_calls": -1}, "child.max_calls: expected"),
        ({"reserve_calls": -1}, "child.reserve_calls: expected"),
        ({"timeout": 0}, "child.timeout: expected seconds above 0, got 0"),
        ({"transports": "text"}, "transports: expected a sequence of transports, got str"),
        ({"sink": "s"}, "Diagnostics.output: expected an object with an async emit"),
        ({"signal": "s"}, "child.signal: expected a Signal or None, got str"),
        ({"diagnostics": "d"}, "child.diagnostics: expected Diagnostics, got str"),
        ({"diagnostics": used}, "child.diagnostics: expected a part of this runner's"),
        ({"diagnostics": al.Diagnostics()}, "child.diagnostics: expected a part of this runner's"),
        ({"diagnostics": al.Diagnostics(run_id=used.run_id).child("1")}, "child.diagnostics: expected a part"),
        ({"diagnostics": used.child("a").child("b")}, "child.diagnostics: expected a part of this runner's"),
        ({"id": ""}, "Diagnostics.span_id: expected a string of 1 to 128 characters, got 0 characters"),
        ({"id": "\ud800"}, "Diagnostics.span_id: expected text that UTF-8 can encode, got a lone surrogate"),
        ({"id": used.run_id}, "Diagnostics.span_id: expected one that is new in its run"),
        ({"id": "a"}, "Diagnostics.span_id: expected one that is new in its run, got 'a' again"),
        ({"id": "x", "diagnostics": used.child("x")}, "child: expected either diagnostics= or id= and sink="),
    ]
    for options, message in wrong:
        with pytest.raises(al.InputError) as caught:
            root.child(**options)
        assert str(caught.value).startswith(message)
    child = root.child("1")
    assert (await child.invoke("go")).value == "hi"
    with pytest.raises(al.BudgetError, match=r"children\.max_children"):
        root.child("2")


async def test_a_part_tells_of_one_child_only() -> None:
    """(R276)"""
    root = al.ModelRunner(hi(1), children=al.ChildLimits(max_children=2))
    own = root.execution.diagnostics
    assert own is not None
    part = own.child("part", output=(sink := RecordingSink()))
    child = root.child(diagnostics=part)
    assert child.execution.diagnostics is part
    with pytest.raises(al.InputError, match="expected a part that no runner has, got one that is in use"):
        root.child(diagnostics=part)
    await child.invoke("go")
    assert sink.types[0] == "model.start"
    root.child()  # what was refused took no place


# -- what a child has


async def test_a_child_has_models_limits_counter_and_observers_of_its_parent_and_nothing_else() -> None:
    """(R273, R274, R275)"""
    seen, sink, own = RecordingSink(), RecordingSink(), RecordingSink()
    counted: list[int] = []

    class Words:
        identity = "words"

        def count(self, request: al.ModelRequest, /) -> int:
            counted.append(1)
            return 7

    default, other = hi(2), ScriptedProvider([al.HTTPStatusError("busy", status=429), reply("other")])
    transport = al.Structured(str, id="mine")
    async with runner_on(
        None,
        default,
        observers=[seen],
        sink=sink,
        transports=[transport],
        models={"other": other},
        resend=al.ResendPolicy(delay=1e-9, max_delay=1e-9),
        max_input_chars=10,
        max_output_tokens=99,
        options=al.ModelOptions(temperature=0.5),
        token_budget=al.TokenBudget(counter=Words(), window=1000),
    ) as root:
        child = root.child("part", sink=own)
        assert (await child.invoke("go")).value == "hi"
        assert (await child.invoke("go", model_id="other")).value == "other"
        assert len(counted) == 2
        request = default.requests[0]
        assert (request.options.temperature, request.options.max_output_tokens) == (0.5, 99)
        with pytest.raises(al.BudgetError, match="max_input_chars"):
            await child.invoke("more than ten")
        given: Any
        for given in (transport, "mine"):
            with pytest.raises(al.InputError, match=r"^transport: expected one"):
                await child.invoke("go", transport=given)
        assert root.journal.model == ()
        assert [trace.transport for trace in child.journal.model] == ["core:plain-text"] * 3
        other_child = root.child("typed", transports=[transport])
        assert other_child.prepare(transport="mine").transport == "mine"
    assert sink.events == []
    assert own.events == [event for event in seen.events if isinstance(event, al.OutputEvent)]


async def test_a_child_s_execution_is_a_pair_that_can_be_read_and_handed_on() -> None:
    """(R284)"""
    root = al.ModelRunner(hi(0))
    child = root.child("part")
    pair = child.execution
    assert pair.signal is child.signal
    assert pair.diagnostics is not None
    assert (pair.diagnostics.span_id, pair.diagnostics.run_id) == ("part", root.execution.diagnostics.run_id)  # type: ignore[union-attr]
    assert pair.diagnostics.journal is child.journal
    assert child.execution == pair
    for name in ("signal", "diagnostics"):
        with pytest.raises(AttributeError):
            setattr(pair, name, None)
    with pytest.raises(AttributeError):
        child.execution = pair  # type: ignore[misc]
    root.signal.cancel()
    with pytest.raises(al.RunCancelled):
        pair.signal.check()


# -- the budget


async def test_a_child_has_its_own_budget_and_leaves_what_is_reserved() -> None:
    """(R277, R278, R279, R281)"""
    provider = hi(8)
    root = al.ModelRunner(provider, max_calls=6, children=al.ChildLimits(max_depth=2))
    small = root.child("small", max_calls=2)
    large = root.child("large", max_calls=50, reserve_calls=1)
    leaf = large.child("leaf", reserve_calls=2)
    assert [runner.remaining_calls for runner in (root, small, large, leaf)] == [6, 2, 5, 3]
    await small.invoke("go")
    await leaf.invoke("go")
    assert [runner.remaining_calls for runner in (root, small, large, leaf)] == [4, 1, 3, 1]
    await leaf.invoke("go")
    with pytest.raises(al.BudgetError) as caught:
        await leaf.invoke("go")
    assert caught.value.limit == "model_calls"
    assert [runner.remaining_calls for runner in (root, small, large, leaf)] == [3, 1, 2, 0]
    assert [runner.call_count for runner in (root, small, large, leaf)] == [0, 1, 0, 2]
    assert [runner.total_call_count for runner in (root, small, large, leaf)] == [3, 1, 2, 2]
    await large.invoke("go")
    await large.invoke("go")
    with pytest.raises(al.BudgetError):
        await large.invoke("go")
    await root.invoke("go")  # what was kept for it
    assert [runner.remaining_calls for runner in (root, small, large, leaf)] == [0, 0, 0, 0]
    assert root.child("late").remaining_calls == 0  # a new runner has no new budget
    assert len(provider.requests) == root.total_call_count == 6


async def test_a_failed_call_of_a_child_costs_its_ancestors_a_call_and_a_refused_one_nothing() -> None:
    """(R278)"""
    root = al.ModelRunner(ScriptedProvider([al.ConnectionLost("gone")]), max_calls=2, max_input_chars=10)
    child = root.child("part")
    with pytest.raises(al.BudgetError):
        await child.invoke("much too long")
    assert (child.remaining_calls, root.remaining_calls) == (2, 2)
    with pytest.raises(al.ConnectionLost):
        await child.invoke("go")
    assert (child.remaining_calls, root.remaining_calls, root.call_count, root.total_call_count) == (1, 1, 0, 1)


async def test_calls_of_children_wait_for_their_turn_and_those_of_the_root_do_not() -> None:
    """(R280)"""
    running, most, gate, full = 0, 0, asyncio.Event(), asyncio.Event()

    async def think(request: al.ModelRequest) -> Any:
        nonlocal running, most
        if request.messages[-1] == al.UserMessage(content="root"):
            return reply("root")
        running += 1
        most = max(most, running)
        if running == 2:
            full.set()
        await gate.wait()
        running -= 1
        return reply("hi")

    limits = al.ChildLimits(max_concurrent_calls=2)
    root = al.ModelRunner(ScriptedProvider([think] * 6), children=limits)
    calls = [asyncio.create_task(root.child(str(at)).invoke("go")) for at in range(5)]
    await full.wait()
    assert (await root.invoke("root")).value == "root"
    gate.set()
    for call in calls:
        assert (await call).value == "hi"
    assert most == 2


@settings(max_examples=60)
@given(
    grants=st.lists(st.tuples(st.none() | st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4),
    max_calls=st.integers(0, 8),
    concurrent=st.integers(1, 4),
    rounds=st.integers(1, 4),
    slow=st.booleans(),
    failing=st.booleans(),
)
def test_children_on_one_budget_never_oversell_it(
    grants: list[tuple[int | None, int]], max_calls: int, concurrent: int, rounds: int, slow: bool, failing: bool
) -> None:
    """(R277, R278, R279, R283)"""

    async def scenario() -> None:
        seen, values = RecordingSink(), []
        answers: list[Any] = [al.ConnectionLost("gone") if failing and at % 2 else reply("hi") for at in range(20)]
        limits = al.ChildLimits(max_concurrent_calls=concurrent)
        provider, backend = ScriptedProvider(answers), SlowBackend() if slow else None
        async with runner_on(backend, provider, observers=[seen], max_calls=max_calls, children=limits) as root:
            parts = [
                root.child(str(at), max_calls=most, reserve_calls=kept, sink=LazySink())
                for at, (most, kept) in enumerate(grants)
            ]

            async def work(part: al.ModelRunner) -> int:
                refused = 0
                for _ in range(rounds):
                    try:
                        values.append((await part.invoke("go")).value)
                    except al.BudgetError:
                        refused += 1
                    except al.ConnectionLost:
                        pass
                return refused

            refusals = await al.run_children([partial(work, part) for part in parts], max_concurrent=4)
            facts = await facts_of(root)
        counts = [part.call_count for part in parts]
        assert sum(counts) == root.total_call_count == len(provider.requests) <= max_calls
        assert root.remaining_calls == max_calls - sum(counts)
        for part, (most, kept), count, refused in zip(parts, grants, counts, refusals, strict=True):
            assert count + refused == rounds
            assert most is None or count <= most
            if count:
                assert sum(counts) - count <= max_calls
                assert count <= max_calls - kept
            if refused:
                assert part.remaining_calls == 0
        for number, part in enumerate(parts):
            own = [event for event in seen.events if str(number) in (event.span_id, event.parent_span_id)]
            ids = {event.attempt_id for event in own if isinstance(event, al.ModelStart)}
            runs = {fact.run_id for fact in facts if getattr(fact, "attempt_id", None) in ids}
            stood = [event for event in own if isinstance(event, al.ModelEnd) and event.status == "success"]
            calls = [event for event in own if not isinstance(event, al.RequestRejected)]
            check_calls(calls, [fact for fact in facts if fact.run_id in runs], stood)
            assert part.call_count == len(ids)

    asyncio.run(scenario())


# -- tasks side by side


def returning(value: Any) -> Callable[[], Awaitable[Any]]:
    async def task() -> Any:
        await asyncio.sleep(0)
        return value

    return task


@settings(max_examples=100)
@given(turns=st.lists(st.integers(0, 5), max_size=8), max_concurrent=st.integers(1, 9))
def test_results_come_in_the_order_of_the_tasks_and_so_many_run_at_a_time(
    turns: list[int], max_concurrent: int
) -> None:
    """(R283)"""

    async def scenario() -> None:
        running, most, begun = 0, 0, []

        async def work(at: int, turns: int) -> int:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            begun.append(at)
            for _ in range(turns):
                await asyncio.sleep(0)
            running -= 1
            return at

        tasks = [partial(work, at, count) for at, count in enumerate(turns)]
        assert await al.run_children(tasks, max_concurrent=max_concurrent) == list(range(len(turns)))
        assert begun == sorted(begun)
        assert most <= max_concurrent
        assert not other_tasks()

    asyncio.run(scenario())


async def test_no_tasks_have_no_results() -> None:
    """(R283)"""
    assert await al.run_children([], max_concurrent=3) == []


@pytest.mark.parametrize(
    ("tasks", "max_concurrent", "message"),
    [
        ([], 0, "max_concurrent: expected"),
        ([], True, "max_concurrent: expected"),
        ("ab", 1, "tasks: expected a sequence of functions, got str"),
        (iter(()), 1, "tasks: expected a sequence of functions, got "),
        ([returning(1), None], 1, "tasks[1]: expected a function without arguments, got NoneType"),
    ],
)
async def test_what_is_no_task_is_refused_before_any_begins(tasks: Any, max_concurrent: int, message: str) -> None:
    with pytest.raises(al.InputError) as caught:
        await al.run_children(tasks, max_concurrent=max_concurrent)
    assert str(caught.value).startswith(message)


async def test_coroutines_in_place_of_functions_are_refused_and_closed() -> None:
    """Warnings are errors here, so one that was never awaited would be noticed."""
    begun: list[int] = []

    async def work(at: int) -> int:
        begun.append(at)
        return at

    tasks: Any = [partial(work, 0), work(1), work(2)]
    with pytest.raises(al.InputError) as caught:
        await al.run_children(tasks, max_concurrent=2)
    rule = "expected a function without arguments, got a coroutine; hand over the function itself"
    assert str(caught.value) == f"tasks[1]: {rule}"
    assert [inspect.getcoroutinestate(task) for task in tasks[1:]] == [inspect.CORO_CLOSED] * 2
    assert begun == []
    mixed: Any = [None, work(3)]
    with pytest.raises(al.InputError, match=r"tasks\[0\]: .* got NoneType"):
        await al.run_children(mixed, max_concurrent=1)
    assert inspect.getcoroutinestate(mixed[1]) == inspect.CORO_CLOSED


async def test_a_task_that_returns_nothing_to_await_is_named_and_ends_the_others() -> None:
    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks: Any = [long, lambda: 7, long]
    with pytest.raises(al.InputError) as caught:
        await al.run_children(tasks, max_concurrent=2)
    rule = "expected a function that returns an awaitable, got one that returned int"
    assert str(caught.value) == f"tasks[1]: {rule}"
    assert ended.is_set()
    assert not other_tasks()


async def test_what_a_task_returns_may_be_any_awaitable() -> None:
    loop = asyncio.get_running_loop()

    def future() -> asyncio.Future[int]:
        made: asyncio.Future[int] = loop.create_future()
        made.set_result(4)
        return made

    assert await al.run_children([future, returning(5)], max_concurrent=1) == [4, 5]


@pytest.mark.parametrize(
    "error", [Reason(), asyncio.CancelledError("mine"), TimeoutError(), ExceptionGroup("g", [Reason()])]
)
@pytest.mark.parametrize("late", [False, True])
async def test_the_first_failure_ends_the_others_and_is_raised_as_itself(error: BaseException, late: bool) -> None:
    """(R283, R324)"""
    ended: list[str] = []
    begun: list[str] = []

    async def wait(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
            raise ZeroDivisionError  # what ending it made of it is not what failed first

    async def fail() -> None:
        if late:
            await asyncio.sleep(0)
        raise error

    tasks: list[Callable[[], Awaitable[None]]] = [lambda: wait("a"), fail, lambda: wait("b"), lambda: wait("c")]
    with pytest.raises(type(error)) as caught:
        await al.run_children(tasks, max_concurrent=3)
    assert caught.value is error
    assert ended == begun
    assert "c" not in begun
    assert not other_tasks()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_task_that_keeps_its_end_to_itself_begins_no_other() -> None:
    """(R283)"""
    begun: list[str] = []

    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    async def fail() -> None:
        await asyncio.sleep(0)
        raise Reason

    async def late() -> None:
        begun.append("late")

    with pytest.raises(Reason):
        await al.run_children([deaf, fail, late], max_concurrent=2)
    running = asyncio.create_task(al.run_children([deaf, late], max_concurrent=1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert begun == []


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancel_of_the_caller_ends_all_and_nothing_goes_on(turns: int) -> None:
    """(R282, R283, R324)"""
    begun, ended = 0, 0

    async def wait() -> None:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            ended += 1
            raise Reason

    running = asyncio.create_task(al.run_children([wait] * 5, max_concurrent=3))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel("the host's words")
    if turns > 3:
        await asyncio.sleep(0)
        running.cancel("again")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == begun in (0, 3)  # each is cancelled once, so that it can end in its own time
    assert not other_tasks()


async def test_a_caller_s_cancel_comes_before_a_task_s_failure() -> None:
    """(R324, R325)"""

    async def fail() -> None:
        await asyncio.sleep(0)
        running.cancel()
        raise Reason

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            running.cancel("the host's words")
            await asyncio.sleep(0)

    async def fail_alone() -> None:
        await asyncio.sleep(0)
        raise Reason

    running: asyncio.Task[Any] = asyncio.create_task(al.run_children([fail], max_concurrent=1))
    with pytest.raises(asyncio.CancelledError):
        await running
    running = asyncio.create_task(al.run_children([clean_up, fail_alone], max_concurrent=2))
    with pytest.raises(asyncio.CancelledError, match="the host's words"):
        await running


async def test_of_failures_at_one_moment_the_first_is_raised() -> None:
    """(R283)"""

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(Reason):
        await al.run_children([partial(fail, Reason()), partial(fail, LookupError())], max_concurrent=2)


async def test_a_clock_of_the_caller_s_around_tasks_works_as_around_anything() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await al.run_children([asyncio.Event().wait] * 3, max_concurrent=2)
    assert not other_tasks()


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_the_calls_of_children_that_are_ended_by_a_failure_tell_their_sinks_so(slow: bool) -> None:
    """A sink that waits gets the whole of the last event (R265, R283)."""
    shown = asyncio.Event()
    heard: list[al.Event] = []

    class Shown:
        async def emit(self, event: al.Event) -> None:
            if isinstance(event, al.TextPreview):
                shown.set()
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            heard.append(event)

    async def fail() -> None:
        await shown.wait()
        raise Reason

    seen = RecordingSink()
    async with runner_on(SlowBackend() if slow else None, hi(1), observers=[seen]) as root:
        child = root.child("part", sink=Shown())

        async def ask() -> None:
            await child.invoke("go")

        with pytest.raises(Reason):
            await al.run_children([ask, fail], max_concurrent=2)
        facts = await facts_of(root)
    assert [event.type for event in heard] == ["model.start", "model.end"]
    check_calls(seen.events, facts, [])
