"""Where a workflow's model calls go: a runner for each run, or a service that is there already."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import BudgetError, ConflictError, HandleError, InputError, RunCancelled
from agentloop.events import ModelStart, NodeStarted, RequestRejected
from agentloop.testing import RecordingSink, ScriptedProvider, reply
from tests.runner.calls import facts_of
from tests.workflow.flows import END, Draft, flow, node, to


async def ask(state: Draft, context: al.NodeContext) -> dict[str, Any]:
    return {"text": (await context.model.invoke(state.topic)).value}


ASKING = flow(node("ask", ask, provides=("text",)))


class Service:
    """A model service of a host's own: two methods, and counts."""

    remaining_calls, call_count, total_call_count = 5, 2, 3

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def prepare(self, **given: Any) -> Any:
        return ("prepared", given)

    async def invoke(self, input: Any, **given: Any) -> Any:
        self.asked.append((input, given))
        return al.ModelResult(
            value=f"said {input}",
            invocation=al.ModelCallRecord(invocation_id="i", call_sequence=1, started_at_ms=1, ref="r"),
        )


# -- a definition


async def test_each_run_of_a_definition_has_a_runner_and_a_budget_of_its_own() -> None:
    """(R268)"""
    seen = []

    async def count(state: Draft, context: al.NodeContext) -> dict[str, str]:
        before = context.model.remaining_calls, context.model.call_count
        said = await context.model.invoke("x")
        seen.append((before, said.invocation.call_sequence, context.model.remaining_calls))
        return {"text": said.value}

    provider = ScriptedProvider([reply("1"), reply("2")])
    engine = al.Engine(flow(node("count", count, provides=("text",))), model=al.RunnerDefinition(provider, max_calls=1))
    assert [await engine.run(Draft()), await engine.run(Draft())] == ["1", "2"]
    assert seen == [((1, 0), 1, 0), ((1, 0), 1, 0)]


async def test_a_definition_is_checked_when_it_is_made() -> None:
    """(R268)"""
    provider = ScriptedProvider([])
    with pytest.raises(InputError, match=r"ModelRunner.max_calls: expected an integer"):
        al.RunnerDefinition(provider, max_calls=-1)
    with pytest.raises(TypeError, match="expected the options"):
        al.RunnerDefinition(provider, max_call=1)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"RunnerDefinition.execution: expected none"):
        al.RunnerDefinition(provider, execution=al.Execution(signal=al.Signal()))


async def test_a_definition_may_be_any_function_of_an_execution() -> None:
    """(R268, R272)"""
    given: list[al.Execution] = []
    closed = []

    class Closing(Service):
        async def aclose(self) -> None:
            closed.append(self)

    def define(execution: al.Execution) -> Closing:
        given.append(execution)
        return Closing()

    engine = al.Engine(ASKING, model=define)
    assert await engine.run(Draft()) == "said tides"
    assert await engine.run(Draft(topic="sun")) == "said sun"
    assert len(closed) == len(given) == 2
    assert given[0].signal is not given[1].signal
    assert given[0].diagnostics is not given[1].diagnostics
    assert given[1].signal is not None
    assert given[1].signal.cancelled
    with pytest.raises(InputError, match="bind_model: expected what has invoke and prepare, got int"):
        await al.Engine(ASKING, model=lambda execution: 3).run(Draft())  # type: ignore[arg-type,return-value]


async def test_what_a_definition_says_of_its_calls_applies_to_every_run() -> None:
    """(R268)"""
    sink, ledger = RecordingSink(), al.Ledger(model_calls=3)
    provider = ScriptedProvider([reply("1"), reply("2")])
    definition = al.RunnerDefinition(provider, sink=sink, ledger=ledger, options=al.ModelOptions(temperature=0))
    engine = al.Engine(ASKING, model=definition)
    await engine.run(Draft())
    await engine.run(Draft())
    assert sink.text == "12"
    assert ledger.left("model_calls") == 1
    assert [request.options.temperature for request in provider.requests] == [0, 0]


# -- a service that exists


async def test_a_later_run_on_a_runner_gets_no_new_quota() -> None:
    """(R269)"""
    runner = al.ModelRunner(ScriptedProvider([reply("1"), reply("2")]), max_calls=2)
    engine = al.Engine(ASKING, model_runtime=runner)
    assert await engine.run(Draft()) == "1"
    assert (runner.remaining_calls, runner.call_count) == (1, 1)
    assert await engine.run(Draft()) == "2"
    with pytest.raises(BudgetError, match="model_calls: allowed 2, got at least 3"):
        await engine.run(Draft())
    assert not runner.signal.cancelled


async def test_a_run_on_a_runner_is_told_to_its_observers_and_cancelled_with_it() -> None:
    """(R269)"""
    seen = RecordingSink()
    async with al.ModelRunner(ScriptedProvider([reply("1")]), observers=[seen]) as runner:
        engine = al.Engine(ASKING, model_runtime=runner)
        await engine.run(Draft())
        runner.signal.cancel()
        with pytest.raises(RunCancelled):
            await engine.run(Draft())
    assert seen.types == [
        "node.started",
        "model.start",
        "model.output",
        "model.parsed",
        "model.end",
        "node.ended",
        "route.taken",
    ]
    assert [event.sequence for event in seen.events] == [1, 2, 3, 4, 5, 6, 7]
    assert {event.run_id for event in seen.events} == {runner.execution.diagnostics.run_id}  # type: ignore[union-attr]


async def test_a_structural_service_is_used_as_it_is() -> None:
    """(R272)"""
    service = Service()
    before = dict(vars(service))

    async def both(state: Draft, context: al.NodeContext) -> dict[str, Any]:
        prepared = context.model.prepare(max_output_tokens=9)
        assert prepared == ("prepared", {"stage_id": "both", "max_output_tokens": 9, "model_id": "large"})  # type: ignore[comparison-overlap]
        with pytest.raises(InputError, match=r"context.model.measure: expected a service that has it, got Service"):
            context.model.measure("x", prepared)
        counts = context.model.remaining_calls, context.model.call_count, context.model.total_call_count
        assert counts == (5, 2, 3)
        service.call_count = 7  # live, not copied
        assert context.model.call_count == 7
        await context.model.invoke("a", prepared=prepared)
        return {"text": (await context.model.invoke("b", stage_id="mine")).value}

    engine = al.Engine(flow(node("both", both, provides=("text",))), model_runtime=service)
    assert await engine.run(Draft(), model_id="large") == "said b"
    assert service.asked[0][0] == "a"
    assert list(service.asked[0][1]) == ["prepared"]
    assert service.asked[1] == ("b", {"stage_id": "mine", "model_id": "large"})
    assert vars(service).keys() - before.keys() == {"call_count"}


async def test_the_receivers_are_those_of_the_binding() -> None:
    """(R272)"""
    service = Service()
    engine = al.Engine(ASKING, model_runtime=service)

    async def other(input: Any, **given: Any) -> Any:
        raise AssertionError

    service.invoke = other  # type: ignore[method-assign]
    assert await engine.run(Draft()) == "said tides"
    assert service.asked == [("tides", {"stage_id": "ask"})]


async def test_a_service_that_counts_nothing_says_so() -> None:
    """(R270, R272)"""

    class Bare:
        invoke, prepare = Service.invoke, Service.prepare

    async def read(state: Draft, context: al.NodeContext) -> None:
        with pytest.raises(InputError, match=r"context.model.call_count: expected a service that counts, got Bare"):
            _ = context.model.call_count

    await al.Engine(flow(node("read", read)), model_runtime=Bare()).run(Draft())


@pytest.mark.parametrize("service", [None, 3, al.ModelRunner, object()])
def test_what_makes_no_calls_cannot_be_bound(service: Any) -> None:
    """(R272)"""
    with pytest.raises(InputError, match="bind_model_runtime: expected what has invoke and prepare"):
        al.Engine().bind_model_runtime(service)


# -- what a node sees


async def test_a_node_reads_the_parent_and_the_live_counts_of_its_calls() -> None:
    """(R270)"""
    seen = []

    async def twice(state: Draft, context: al.NodeContext) -> dict[str, str]:
        model = context.model
        seen.append((model.remaining_calls, model.call_count, model.total_call_count))
        await model.invoke("a")
        seen.append((model.remaining_calls, model.call_count, model.total_call_count))
        await runner.child().invoke("b")
        seen.append((model.remaining_calls, model.call_count, model.total_call_count))
        return {"text": model.parent}

    runner = al.ModelRunner(ScriptedProvider([reply("a"), reply("b")]), max_calls=3)
    engine = al.Engine(flow(node("twice", twice, provides=("text",))), model_runtime=runner)
    parent = await engine.run(Draft())
    assert seen == [(3, 0, 0), (2, 1, 1), (1, 1, 2)]
    assert [trace.invocation_id for trace in engine.journal.nodes] == [parent]
    assert [trace.parent_invocation_id for trace in runner.journal.model] == [parent]
    origins = [fact.call.parent for fact in await facts_of(runner) if hasattr(fact, "call") and fact.call is not None]
    assert origins[0] == parent
    assert origins[1] != parent


@pytest.mark.parametrize("exists", [False, True])
async def test_calls_are_told_below_the_node_that_made_them(exists: bool) -> None:
    """(R270)"""
    seen = RecordingSink()
    provider = ScriptedProvider([reply("a"), reply("b")])
    async with al.Runtime(provider, observers=[seen]) as runtime:
        runner = runtime.runner(max_calls=2)
        again = flow(
            node("ask", ask, to("ask", lambda state: state.text == "a"), *END, provides=("text",), starts_round=True)
        )
        engine = runtime.engine(again, runner=runner) if exists else runtime.engine(again, max_calls=2)
        await engine.run(Draft())
        if exists:
            with pytest.raises(BudgetError):
                await engine.run(Draft())
    nodes = [event.invocation_id for event in seen.of(NodeStarted)]
    assert [event.parent_span_id for event in seen.of(ModelStart)] == nodes[:2]
    assert [event.stage_id for event in seen.of(ModelStart)] == ["ask", "ask"]
    assert [event.span_id for event in seen.of(RequestRejected)] == nodes[2:]
    journal = al.Journal.of(seen.events)
    assert [trace.parent_invocation_id for trace in journal.model] == [trace.invocation_id for trace in journal.nodes][
        :2
    ]


async def test_a_handle_may_be_kept_for_a_later_node_of_the_same_run() -> None:
    """(R270)"""
    kept: list[Any] = []

    async def prepare(state: Draft, context: al.NodeContext) -> None:
        kept.append(context.model.prepare(stage_id="mine"))
        measured = context.model.measure("hello", kept[-1])
        assert measured.message_chars == 5

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        result = await context.model.invoke("x", prepared=kept[0])
        assert result.invocation.stage_id == "mine"
        return {"text": result.value}

    provider = ScriptedProvider([reply("1"), reply("2")])
    workflow = flow(node("prepare", prepare, to("use")), node("use", use, provides=("text",)))
    engine = al.Engine(workflow, model=al.RunnerDefinition(provider))
    assert await engine.run(Draft()) == "1"
    with pytest.raises(HandleError, match="foreign_handle"):  # of another run, whose runner is another
        await engine.run(Draft())


async def test_what_a_handle_has_fixed_is_not_given_again() -> None:
    async def twice(state: Draft, context: al.NodeContext) -> None:
        prepared = context.model.prepare()
        with pytest.raises(InputError, match="expected prepared= alone"):
            await context.model.invoke("x", prepared=prepared, stage_id="mine")  # type: ignore[call-overload]

    await al.Engine(flow(node("twice", twice)), model=al.RunnerDefinition(ScriptedProvider([]))).run(Draft())


async def test_a_node_names_a_model_or_gets_that_of_the_run() -> None:
    small, large = ScriptedProvider([reply("small")]), ScriptedProvider([reply("large"), reply("large")])
    engine = al.Engine(ASKING, model=al.RunnerDefinition(small, models={"large": large}))
    assert await engine.run(Draft()) == "small"
    assert await engine.run(Draft(), model_id="large") == "large"

    async def named(state: Draft, context: al.NodeContext) -> dict[str, str]:
        return {"text": (await context.model.invoke("x", model_id="large")).value}

    own = al.Engine(
        flow(node("named", named, provides=("text",))), model=al.RunnerDefinition(small, models={"large": large})
    )
    assert await own.run(Draft(), model_id="default") == "large"


async def test_one_call_at_a_time_as_on_any_runner() -> None:
    async def both(state: Draft, context: al.NodeContext) -> None:
        first = asyncio.create_task(context.model.invoke("a"))
        await inside.wait()
        with pytest.raises(ConflictError):
            await context.model.invoke("b")
        go_on.set()
        await first

    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> al.ModelReply:
        inside.set()
        await go_on.wait()
        return reply("a")

    engine = al.Engine(flow(node("both", both)), model=al.RunnerDefinition(ScriptedProvider([slow])))
    await engine.run(Draft(text="x"))


async def test_an_engine_without_a_model_says_so() -> None:
    with pytest.raises(InputError, match=r"context.model: expected an engine with a model, got one that has none"):
        await al.Engine(ASKING).run(Draft())


# -- cancelling


@pytest.mark.parametrize("exists", [False, True])
async def test_a_cancel_cuts_a_model_call_off_and_its_end_is_recorded_first(exists: bool) -> None:
    """(R269, R291, R292)"""
    inside, why = asyncio.Event(), ValueError("mine")

    async def never(request: al.ModelRequest) -> al.ModelReply:
        inside.set()
        await asyncio.Event().wait()
        raise AssertionError

    seen = RecordingSink()
    async with al.Runtime(ScriptedProvider([never]), observers=[seen]) as runtime:
        runner = runtime.runner()
        engine = runtime.engine(ASKING, runner=runner) if exists else runtime.engine(ASKING)
        run = asyncio.create_task(engine.run(Draft()))
        await inside.wait()
        engine.signal.cancel(why)
        with pytest.raises(ValueError, match="mine") as caught:
            await run
        assert caught.value is why
        assert runner.signal.cancelled is False
    assert seen.types == ["node.started", "model.start", "model.end", "node.ended"]
    assert [event.status for event in seen.events if event.type in ("model.end", "node.ended")] == ["cancelled"] * 2  # type: ignore[attr-defined]


# -- closing what was made for a run


class Closing(Service):
    """Closes as it is told."""

    def __init__(self, fault: BaseException | None = None) -> None:
        super().__init__()
        self.fault, self.closed = fault, 0

    async def aclose(self) -> None:
        self.closed += 1
        if self.fault is not None:
            raise self.fault


async def fail(state: Draft, context: al.NodeContext) -> None:
    raise KeyError("mine")


SAID = "the close of the run's own Closing raised"


@pytest.mark.parametrize("fault", [OSError("SECRET"), asyncio.CancelledError("SECRET")], ids=repr)
async def test_a_close_that_fails_takes_neither_an_error_nor_a_result_away(
    fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """(R268)"""
    words = f"{SAID} {type(fault).__name__}"
    with pytest.raises(KeyError, match="mine") as caught:
        await al.Engine(flow(node("fail", fail)), model=lambda execution: Closing(fault)).run(Draft())
    assert caught.value.__notes__ == [f"Besides, {words}."]
    del caught
    engine = al.Engine(ASKING, model=lambda execution: Closing(fault))
    assert await engine.run(Draft()) == "said tides"
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == [words, words]


async def test_a_close_that_never_ends_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentloop.workflow.models.CLOSE_SECONDS", 0.02)
    closing = asyncio.Event()

    class Hanging(Service):
        async def aclose(self) -> None:
            closing.set()
            await asyncio.Event().wait()

    run = asyncio.create_task(al.Engine(ASKING, model=lambda execution: Hanging()).run(Draft()))
    await closing.wait()
    run.cancel()
    await asyncio.wait({run})
    assert [record.getMessage() for record in caplog.records] == [
        "the close of the run's own Hanging had not ended after 0.02 s"
    ]


async def test_what_is_made_and_is_no_service_is_refused_and_closed() -> None:
    """(R268)"""
    made: list[Any] = []

    class Half:
        closed = 0

        def prepare(self, **given: Any) -> None: ...

        async def aclose(self) -> None:
            self.closed += 1

    def define(execution: al.Execution) -> Any:
        made.append(Half())
        return made[-1]

    with pytest.raises(InputError, match=r"bind_model: expected what has invoke and prepare, got Half"):
        await al.Engine(ASKING, model=define).run(Draft())
    assert made[0].closed == 1

    async def later(execution: al.Execution) -> Any: ...

    with pytest.raises(InputError, match=r"bind_model: expected a definition, got an async one"):
        al.Engine(ASKING, model=later)  # type: ignore[call-overload]
    late: Any = lambda execution: later(execution)  # noqa: E731, PLW0108  # hides that it is async
    with pytest.raises(InputError, match=r"expected what has invoke and prepare, got coroutine"):
        await al.Engine(ASKING, model=late).run(Draft())
