"""An engine: bound once, one request at a time, bounded rounds, and what a cancel does and does not."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import BudgetError, CallTimeout, ConflictError, InputError, RunCancelled, WorkflowError
from agentloop.testing import FakeClock, ScriptedProvider, reply
from tests.workflow.flows import END, Draft, flow, node, to


class Why(Exception):
    """A reason of a test's own."""


@al.tool
async def look(word: str) -> str:
    """Look a word up."""
    return word.upper()


async def write(state: Draft, context: al.NodeContext) -> dict[str, Any]:
    return {"text": f"about {state.topic}"}


WRITING = flow(node("write", write, provides=("text",)))


# -- binding


async def test_workflow_and_tools_are_bound_once() -> None:
    """(R286)"""
    early = al.Engine(WRITING, tools=[look])
    late: al.Engine[Draft, str] = al.Engine()
    late.bind_workflow(WRITING)
    late.bind_tool_runtime(al.ToolSet([look]))
    for engine in (early, late):
        with pytest.raises(ConflictError, match="engine: expected its workflow to be bound once, got another"):
            engine.bind_workflow(WRITING)
        with pytest.raises(ConflictError, match="engine: expected its tools to be bound once, got another"):
            engine.bind_tool_runtime([look])
        assert await engine.run(Draft()) == "about tides"


async def test_a_model_is_bound_once_either_way() -> None:
    """(R286)"""
    definition = al.RunnerDefinition(ScriptedProvider([]))
    runner = al.ModelRunner(ScriptedProvider([]))
    for engine in (al.Engine(model=definition), al.Engine(model_runtime=runner)):
        with pytest.raises(ConflictError, match="engine: expected its model to be bound once, got another"):
            engine.bind_model(definition)
        with pytest.raises(ConflictError, match="engine: expected its model to be bound once, got another"):
            engine.bind_model_runtime(runner)
    with pytest.raises(ConflictError, match="model to be bound once"):
        al.Engine(model=definition, model_runtime=runner)


def test_tools_that_wait_for_a_person_are_refused() -> None:
    """Nothing of an engine can wait, so an approval would be passed over."""
    signed = al.Tool.external("sign", "Sign.", parameters={"type": "object"})
    dear = al.Tool.from_schema(
        "pay", "Pay.", parameters={"type": "object"}, call=print, policy=al.ToolPolicy(approval="required")
    )
    engine: Any = al.Engine()
    with pytest.raises(InputError, match=r"expected tools that wait for nobody, got \['pay', 'sign'\]"):
        engine.bind_tool_runtime([look, dear, signed])
    engine.bind_tool_runtime([look])


def test_a_refused_binding_binds_nothing() -> None:
    """(R286)"""
    engine: Any = al.Engine()
    for bind, value, text in [
        (engine.bind_workflow, 3, "bind_workflow: expected a Workflow, got int"),
        (engine.bind_tool_runtime, 3, "ToolSet.tools: expected a sequence of tools, got int"),
        (engine.bind_model, 3, "bind_model: expected a definition, got int"),
        (engine.bind_model_runtime, 3, "bind_model_runtime: expected what has invoke and prepare, got int"),
    ]:
        with pytest.raises(InputError) as caught:
            bind(value)
        assert str(caught.value) == text
    engine.bind_workflow(WRITING)
    engine.bind_tool_runtime([look])
    engine.bind_model_runtime(al.ModelRunner(ScriptedProvider([])))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_rounds": 0}, "Engine.max_rounds: expected an integer from 1 to 9007199254740991, got 0"),
        ({"max_rounds": True}, "Engine.max_rounds: expected an integer from 1"),
        ({"max_tool_calls": -1}, "Engine.max_tool_calls: expected an integer from 0"),
        ({"ledger": 3}, "Engine.ledger: expected Ledger or None, got int"),
        ({"pool": 3}, "Engine.pool: expected ToolPool or None, got int"),
        ({"execution": 3}, "Engine.execution: expected Execution or None, got int"),
        ({"clock": 5}, "Engine.clock: expected a function, got int"),
        ({"new_id": 5}, "Engine.new_id: expected a function, got int"),
        ({"now_ms": 5}, "Engine.now_ms: expected a function, got int"),
        ({"spawn": 3}, "Engine.spawn: expected a function or None, got int"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        al.Engine(WRITING, **options)
    assert str(caught.value).startswith(text)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="max_round"):
        al.Engine(WRITING, max_round=3)  # type: ignore[call-overload]


def test_an_engine_says_what_it_runs() -> None:
    assert (repr(al.Engine()), repr(al.Engine(WRITING))) == ("<Engine of steps>", "<Engine of 'article'>")
    with pytest.raises(InputError, match=r"Engine.journal: expected an engine that has run"):
        _ = al.Engine().journal
    assert al.Engine(WRITING).state is None


# -- steps


async def test_a_step_gets_the_number_of_its_round_and_its_context() -> None:
    """(R288)"""
    seen = []

    async def step(number: int, context: al.NodeContext) -> al.Continue | al.Complete[str]:
        seen.append((number, context.round, context.node, context.deps))
        return al.Continue() if number < 3 else al.Complete("done")

    assert await al.Engine().run(step, deps="app") == "done"
    assert seen == [(1, 1, "step", "app"), (2, 2, "step", "app"), (3, 3, "step", "app")]


@pytest.mark.parametrize("value", [None, 0, "", False, [1]])
async def test_any_value_completes_none_included(value: Any) -> None:
    """(R293)"""

    async def step(number: int, context: al.NodeContext) -> al.Complete[Any]:
        return al.Complete(value)

    assert await al.Engine().run(step) == value
    assert await al.Engine().run(lambda number, context: al.Complete(value)) == value  # sync as well


@pytest.mark.parametrize("outcome", [None, True, al.Complete, "done"])
async def test_what_is_no_outcome_is_refused(outcome: Any) -> None:
    """(R293)"""

    async def step(number: int, context: al.NodeContext) -> Any:
        return outcome

    engine = al.Engine()
    with pytest.raises(WorkflowError) as caught:
        await engine.run(step)
    assert caught.value.code == "bad_outcome"
    assert caught.value.rule.startswith("step: expected Continue() or Complete(value), got ")
    assert [(trace.status, trace.code) for trace in engine.journal.nodes] == [("error", "bad_outcome")]


async def test_rounds_are_eight_unless_said() -> None:
    """(R287)"""
    rounds = []

    async def step(number: int, context: al.NodeContext) -> al.Continue:
        rounds.append(number)
        return al.Continue()

    with pytest.raises(BudgetError) as caught:
        await al.Engine().run(step)
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == ("max_rounds", 8, 9)
    assert rounds == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(BudgetError, match="max_rounds: allowed 2, got at least 3"):
        await al.Engine(max_rounds=2).run(step)
    assert rounds[8:] == [1, 2]


async def calls_of(rounds: int) -> int:
    """How many Python and C functions one run of so many rounds calls."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    async def step(number: int, context: al.NodeContext) -> al.Continue | al.Complete[int]:
        return al.Continue() if number < rounds else al.Complete(number)

    engine = al.Engine(max_rounds=rounds)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        assert await engine.run(step) == rounds
    finally:
        sys.setprofile(before)
    return count


async def test_the_work_of_a_round_does_not_grow_with_their_number() -> None:
    await calls_of(10)
    few, some, many = await calls_of(10), await calls_of(510), await calls_of(1_010)
    assert many - some == pytest.approx(some - few, rel=0.01)
    assert (many - some) / 500 < 150


async def test_a_round_begins_with_each_node_that_starts_one_and_the_state_outlives_the_limit() -> None:
    """(R287)"""
    seen = []

    def count(state: Draft, context: al.NodeContext) -> dict[str, int]:
        seen.append((context.node, context.round))
        return {"tries": state.tries + 1}

    again = flow(
        node("draft", count, to("judge"), provides=("tries",), starts_round=True),
        node("judge", count, to("draft", lambda state: True), *END, provides=("tries",)),
    )
    engine = al.Engine(again, max_rounds=2)
    with pytest.raises(BudgetError, match="max_rounds: allowed 2, got at least 3"):
        await engine.run(Draft())
    assert seen == [("draft", 1), ("judge", 1), ("draft", 2), ("judge", 2)]
    assert engine.state is not None
    assert engine.state.tries == 4


async def test_a_step_run_refuses_a_model_id() -> None:
    """(R289)"""
    called = []

    async def step(number: int, context: al.NodeContext) -> al.Complete[None]:
        called.append(number)
        return al.Complete(None)

    engine: Any = al.Engine()
    with pytest.raises(InputError, match=r"run.model_id: expected none for a step"):
        await engine.run(step, model_id="large")
    assert called == []


async def test_what_cannot_be_run_is_refused() -> None:
    engine: Any = al.Engine()
    with pytest.raises(InputError, match="run: expected a step, as the engine has no workflow, got Draft"):
        await engine.run(Draft())
    engine.bind_workflow(WRITING)
    with pytest.raises(InputError, match="state: expected Draft, got int"):
        await engine.run(3)
    with pytest.raises(InputError, match=r"run.signal: expected a Signal or None, got int"):
        await engine.run(Draft(), signal=3)
    with pytest.raises(InputError, match=r"run.model_id: expected str or None, got int"):
        await engine.run(Draft(), model_id=3)
    assert await engine.run(Draft()) == "about tides"


# -- one at a time


async def test_two_requests_do_not_overlap_on_one_engine() -> None:
    """(R271)"""
    inside, go_on = asyncio.Event(), asyncio.Event()
    engine: al.Engine[Draft, Any]

    async def wait(state: Draft, context: al.NodeContext) -> None:
        with pytest.raises(ConflictError):  # nor one inside the other
            await engine.run(Draft())
        inside.set()
        await go_on.wait()

    engine = al.Engine(flow(node("wait", wait)))
    first = asyncio.create_task(engine.run(Draft(text="x")))
    await inside.wait()
    with pytest.raises(ConflictError, match="engine: expected one request at a time, got another one; fork"):
        await engine.run(Draft())
    go_on.set()
    assert await first == "x"
    assert await engine.run(Draft(text="y")) == "y"


async def test_a_fork_runs_beside_its_engine_on_the_model_that_it_is_given() -> None:
    """(R271)"""

    async def ask(state: Draft, context: al.NodeContext) -> dict[str, str]:
        return {"text": (await context.model.invoke(state.topic)).value}

    mine, other = al.ModelRunner(ScriptedProvider([reply("mine")])), al.ModelRunner(ScriptedProvider([reply("other")]))
    engine = al.Engine(flow(node("ask", ask, provides=("text",))), model_runtime=mine, tools=[look], max_rounds=3)
    fork = engine.fork(model_runtime=other)
    assert await asyncio.gather(engine.run(Draft()), fork.run(Draft())) == ["mine", "other"]
    assert (mine.call_count, other.call_count) == (1, 1)
    assert engine.fork(model_runtime=mine.child()) is not engine
    with pytest.raises(ConflictError, match="tools to be bound once"):
        fork.bind_tool_runtime([])
    for given, text in [
        ({}, "fork: expected either model= or model_runtime=, got none of them"),
        ({"model": al.RunnerDefinition(ScriptedProvider([])), "model_runtime": other}, "got both"),
        ({"model_runtime": mine}, "fork: expected another service, got the engine's own"),
    ]:
        with pytest.raises(InputError, match=text):
            engine.fork(**given)  # type: ignore[call-overload]


async def test_a_fork_ends_with_its_engine_and_not_the_other_way_round() -> None:
    """(R271)"""
    engine = al.Engine(WRITING)
    fork = engine.fork(model=al.RunnerDefinition(ScriptedProvider([])))
    fork.signal.cancel()
    assert await engine.run(Draft()) == "about tides"
    with pytest.raises(RunCancelled):
        await fork.run(Draft())
    other, why = engine.fork(model=al.RunnerDefinition(ScriptedProvider([]))), Why()
    engine.signal.cancel(why)
    for one in (engine, other):
        with pytest.raises(Why) as caught:
            await one.run(Draft())
        assert caught.value is why


# -- cancelling


class Stubborn:
    """A handler that takes no cancel: it goes on until it is let."""

    def __init__(self) -> None:
        self.inside, self.let, self.back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.met: BaseException | None = None
        self.context: al.NodeContext | None = None

    async def __call__(self, state: Draft, context: al.NodeContext) -> dict[str, str]:
        self.context = context
        self.inside.set()
        while not self.let.is_set():
            try:
                await self.let.wait()
            except asyncio.CancelledError as error:
                self.met = error
        self.back.set()
        return {"text": "late"}


def stubborn() -> tuple[Stubborn, al.Engine[Draft, Any], list[str]]:
    after: list[str] = []
    handler = Stubborn()
    workflow = flow(
        node("slow", handler, to("next"), provides=("text",)),
        node("next", lambda state, context: after.append("next")),
    )
    return handler, al.Engine(workflow), after


async def test_a_cancel_stops_the_waiting_and_keeps_its_reason() -> None:
    """(R289, R290)"""
    handler, engine, _ = stubborn()
    signal, why = al.Signal("mine"), Why()
    run = asyncio.create_task(engine.run(Draft(text="early"), signal=signal))
    await handler.inside.wait()
    signal.cancel(why)
    with pytest.raises(Why) as caught:
        await run
    assert caught.value is why
    assert not handler.back.is_set()
    assert isinstance(handler.met, asyncio.CancelledError)
    assert handler.context is not None
    assert handler.context.signal.reason is why
    assert [(trace.node, trace.status, trace.code) for trace in engine.journal.nodes] == [("slow", "cancelled", "Why")]
    handler.let.set()
    await handler.back.wait()


async def test_a_late_result_enters_nothing() -> None:
    """(R290)"""
    handler, engine, after = stubborn()
    signal = al.Signal()
    run = asyncio.create_task(engine.run(Draft(text="early"), signal=signal))
    await handler.inside.wait()
    signal.cancel()
    with pytest.raises(RunCancelled):
        await run
    told = engine.journal.snapshot()
    handler.let.set()
    await handler.back.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert after == []
    assert engine.state == Draft(text="early")
    assert engine.journal.snapshot() == told
    assert told.open == ()


async def test_the_signals_of_engine_run_and_runner_all_cancel_a_run() -> None:
    """(R269, R289)"""
    for which in ("engine", "run", "runner", "execution"):
        handler, _, _ = stubborn()
        above, mine, why = al.Signal(), al.Signal(), Why()
        runner = al.ModelRunner(ScriptedProvider([]))
        engine = al.Engine(
            flow(node("slow", handler, provides=("text",))),
            model_runtime=runner,
            execution=al.Execution(signal=above),
        )
        run = asyncio.create_task(engine.run(Draft(), signal=mine))
        await handler.inside.wait()
        {"engine": engine.signal, "run": mine, "runner": runner.signal, "execution": above}[which].cancel(why)
        with pytest.raises(Why) as caught:
            await run
        assert caught.value is why
        assert (mine.cancelled, engine.signal.cancelled) == (which == "run", which in ("engine", "execution"))
        handler.let.set()
        await handler.back.wait()


async def test_a_signal_of_one_run_leaves_the_next_one_alone() -> None:
    """(R289)"""
    engine, signal = al.Engine(WRITING), al.Signal()
    signal.cancel(Why())
    with pytest.raises(Why):
        await engine.run(Draft(), signal=signal)
    assert await engine.run(Draft(), signal=al.Signal()) == "about tides"


async def test_cancelling_the_caller_cancels_the_run() -> None:
    """(R290)"""
    handler, engine, after = stubborn()
    run = asyncio.create_task(engine.run(Draft()))
    await handler.inside.wait()
    run.cancel("words")
    with pytest.raises(asyncio.CancelledError, match="words"):
        await run
    assert run.cancelled()
    assert handler.context is not None
    with pytest.raises(RunCancelled):
        handler.context.check()
    assert [trace.status for trace in engine.journal.nodes] == ["cancelled"]
    handler.let.set()
    await handler.back.wait()
    assert after == []


@pytest.mark.parametrize("outcome", [al.Continue(), al.Complete("value")])
async def test_a_cancel_during_a_step_comes_before_what_it_returns(outcome: Any) -> None:
    """(R290)"""
    signal, why, rounds = al.Signal(), Why(), []

    async def step(number: int, context: al.NodeContext) -> Any:
        rounds.append(number)
        signal.cancel(why)
        return outcome

    engine = al.Engine()
    with pytest.raises(Why) as caught:
        await engine.run(step, signal=signal)
    assert caught.value is why
    assert rounds == [1]
    assert [trace.status for trace in engine.journal.nodes] == ["cancelled"]


async def test_a_cancel_between_two_nodes_enters_no_other_one() -> None:
    """(R290)"""
    signal, after = al.Signal(), []

    def guard(state: Draft) -> bool:
        signal.cancel(Why())
        return True

    engine = al.Engine(flow(node("a", None, to("b", guard), *END), node("b", lambda state, context: after.append("b"))))
    with pytest.raises(Why):
        await engine.run(Draft(), signal=signal)
    assert after == []
    assert [trace.node for trace in engine.journal.nodes] == ["a"]


async def test_a_deadline_ends_a_run_between_nodes_that_never_wait() -> None:
    """(R289)"""
    clock = FakeClock()
    seen: list[int] = []

    def slow(state: Draft, context: al.NodeContext) -> None:
        seen.append(context.round)
        clock.advance(3)

    engine = al.Engine(flow(node("slow", slow, to("slow", lambda _: True), *END, starts_round=True)), clock=clock)
    with pytest.raises(CallTimeout, match="deadline: expected an end within 5 s"):
        await engine.run(Draft(), signal=al.Signal(seconds=5, clock=clock))
    assert seen == [1, 2]
    assert [trace.status for trace in engine.journal.nodes] == ["success", "cancelled"]
    assert engine.journal.nodes[0].duration_ms == 3_000


async def test_what_a_handler_was_given_says_that_the_run_is_over() -> None:
    """(R291)"""
    kept: list[al.NodeContext] = []

    async def keep(state: Draft, context: al.NodeContext) -> None:
        context.check()
        assert not context.signal.cancelled
        kept.append(context)

    await al.Engine(flow(node("keep", keep)), tools=[look], model=al.RunnerDefinition(ScriptedProvider([]))).run(
        Draft()
    )
    context = kept[0]
    assert context.signal.cancelled
    with pytest.raises(RunCancelled):
        context.check()
    with pytest.raises(RunCancelled):
        await context.tools.call("look", {"word": "a"})
    with pytest.raises(RunCancelled):
        await context.model.invoke("x")
    with pytest.raises(RunCancelled):
        context.model.prepare()
    with pytest.raises(RunCancelled):
        await context.agents.run(al.Agent(name="a"), "x")


async def test_a_run_that_is_left_waits_for_what_it_began() -> None:
    """(R292)"""
    inside, commit, committed = asyncio.Event(), asyncio.Event(), []

    @al.tool
    async def transfer() -> str:
        """Move money, whole: it takes a cancel only when it is done."""
        inside.set()
        try:
            await commit.wait()
        except asyncio.CancelledError:
            await commit.wait()
            committed.append("transfer")
            raise
        return "ok"

    async def pay(state: Draft, context: al.NodeContext) -> None:
        await context.tools.call("transfer")

    engine = al.Engine(flow(node("pay", pay)), tools=[transfer])
    run = asyncio.create_task(engine.run(Draft()))
    await inside.wait()
    engine.signal.cancel(Why())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not run.done()
    commit.set()
    with pytest.raises(Why):
        await run
    assert committed == ["transfer"]
    assert [(trace.tool_id, trace.status) for trace in engine.journal.tools] == [("transfer", "cancelled")]
    assert engine.journal.snapshot().open == ()


async def test_a_value_that_was_there_first_stands() -> None:
    signal = al.Signal()

    def is_result(value: str) -> bool:
        signal.cancel(Why())  # after the last check: the workflow has completed
        return True

    engine = al.Engine(flow(node("write", write, provides=("text",)), is_result=is_result))
    assert await engine.run(Draft(), signal=signal) == "about tides"


async def test_an_error_of_a_handler_is_raised_as_itself_and_the_engine_can_run_again() -> None:
    why = Why()

    async def fail(state: Draft, context: al.NodeContext) -> None:
        if state.text is None:
            raise why

    engine = al.Engine(flow(node("fail", fail)))
    with pytest.raises(Why) as caught:
        await engine.run(Draft())
    assert caught.value is why
    assert [(trace.status, trace.code) for trace in engine.journal.nodes] == [("error", "Why")]
    assert await engine.run(Draft(text="fine")) == "fine"
    assert [trace.status for trace in engine.journal.nodes] == ["success"]  # of the newest run


@pytest.mark.parametrize("by_hand", [False, True])
async def test_an_error_of_a_handler_that_was_left_is_said_in_the_log(
    by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """(R290)"""
    inside, let = asyncio.Event(), asyncio.Event()

    async def fail(state: Any, context: al.NodeContext) -> Any:
        inside.set()
        while not let.is_set():
            try:
                await let.wait()
            except asyncio.CancelledError:
                continue
        raise KeyError("SECRET")

    engine = al.Engine(flow(node("fail", fail, on_error="after"), node("after")))
    run: asyncio.Task[Any] = asyncio.create_task(engine.run(fail if by_hand else Draft()))
    await inside.wait()
    engine.signal.cancel(Why())
    with pytest.raises(Why):
        await run
    let.set()
    left = next(task for task in asyncio.all_tasks() if task.get_name() == "agentloop engine")
    await asyncio.wait({left})
    await asyncio.sleep(0)
    del left
    gc.collect()
    told = [record.getMessage() for record in caplog.records]  # and nothing of a task that nobody asked
    assert told == [f"node '{'step' if by_hand else 'fail'}' ended with KeyError after its run had left it"]
    assert [one.status for one in engine.journal.nodes] == ["cancelled"]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_run_that_a_handler_waits_for_has_ended_before_the_handlers_own(times: int) -> None:
    """(R292)"""
    inside, let, ended = asyncio.Event(), asyncio.Event(), []

    class Service:
        def prepare(self, **given: Any) -> None: ...

        async def invoke(self, input: Any, **given: Any) -> None:
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                await let.wait()
                ended.append("call")

    async def ask(state: Draft, context: al.NodeContext) -> None:
        await context.model.invoke("x")

    async def nest(state: Draft, context: al.NodeContext) -> None:
        await al.Engine(flow(node("ask", ask)), model_runtime=Service()).run(Draft())

    run = asyncio.create_task(al.Engine(flow(node("nest", nest))).run(Draft()))
    await inside.wait()
    for _ in range(times):
        run.cancel()
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not run.done()
    let.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended == ["call"]
    assert [task for task in asyncio.all_tasks() if task.get_name() == "agentloop engine"] == []


async def test_a_handler_that_ends_as_it_is_cancelled_has_ended_before_its_run() -> None:
    inside = asyncio.Event()

    async def wait(state: Draft, context: al.NodeContext) -> None:
        inside.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(al.Engine(flow(node("wait", wait))).run(Draft()))
    await inside.wait()
    run.cancel()
    await asyncio.wait({run})
    assert run.cancelled()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "agentloop engine"] == []


async def test_a_cancel_that_comes_after_the_result_is_the_callers_with_its_words() -> None:
    """(R290)"""
    seen: list[Any] = []

    async def ask() -> None:
        seen.append(await al.Engine(flow(node("end", end))).run(Draft(text="done")))
        await asyncio.sleep(0)

    async def end(state: Draft, context: al.NodeContext) -> None:
        caller.cancel("words")  # met when the handler has returned, as it does not wait

    caller = asyncio.create_task(ask())
    with pytest.raises(asyncio.CancelledError, match="words"):
        await caller
    assert seen == ["done"]
