"""`Runtime.engine`: workflows on a runtime's provider, store, ledger and observers, closed with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import BudgetError, InputError, OutcomeError, RunCancelled
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, call, reply
from tests.workflow.flows import END, Draft, flow, node


async def ask(state: Draft, context: al.NodeContext) -> dict[str, Any]:
    return {"text": (await context.model.invoke(state.topic)).value}


ASKING = flow(node("ask", ask, provides=("text",)))


async def test_each_run_has_a_runner_on_the_runtimes_ledger_and_store() -> None:
    """(R268)"""
    total = al.Ledger(model_calls=3)
    provider = ScriptedProvider([reply("1"), reply("2"), reply("3")])
    async with al.Runtime(provider, ledger=total) as runtime:
        engine = runtime.engine(ASKING, max_calls=1)
        assert [await engine.run(Draft()), await engine.run(Draft())] == ["1", "2"]
        assert total.left("model_calls") == 1
        assert await runtime.engine(ASKING, max_calls=2).run(Draft()) == "3"
        with pytest.raises(BudgetError, match="model_calls: allowed 3, got at least 4"):
            await engine.run(Draft())


async def test_calls_of_a_workflow_are_stored_as_runs_of_their_own() -> None:
    """(R268)"""
    seen: list[al.ModelCallRecord] = []

    async def keep(state: Draft, context: al.NodeContext) -> None:
        seen.append((await context.model.invoke("x")).invocation)

    async with al.Runtime(ScriptedProvider([reply("stored")])) as runtime:
        await runtime.engine(flow(node("keep", keep))).run(Draft())
        status = await runtime.read(seen[0].ref, seen[0].invocation_id)
        assert status.reply is not None
        assert status.reply.text == "stored"


async def test_all_runs_on_a_given_runner_share_what_it_has() -> None:
    """(R269)"""
    async with al.Runtime(ScriptedProvider([reply("1")])) as runtime:
        runner = runtime.runner(max_calls=1)
        engine = runtime.engine(ASKING, runner=runner)
        assert await engine.run(Draft()) == "1"
        with pytest.raises(BudgetError):
            await engine.run(Draft())
        with pytest.raises(InputError, match=r"Runtime.engine: expected no options beside runner=, got max_calls"):
            runtime.engine(ASKING, runner=runner, max_calls=2)


async def test_options_are_checked_when_the_engine_is_made() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(InputError, match=r"ModelRunner.max_calls"):
            runtime.engine(ASKING, max_calls=-1)
        with pytest.raises(TypeError, match="expected the options"):
            runtime.engine(ASKING, max_call=1)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="expected an open runtime"):
        runtime.engine(ASKING)


async def test_closing_the_runtime_cancels_a_run_under_way() -> None:
    """(R289, R290)"""
    inside, met = asyncio.Event(), []

    async def wait(state: Draft, context: al.NodeContext) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            met.append(context.signal.reason)

    async with al.Runtime(ScriptedProvider([])) as runtime:
        engine = runtime.engine(flow(node("wait", wait)))
        run = asyncio.create_task(engine.run(Draft()))
        await inside.wait()
    with pytest.raises(RunCancelled, match="its runtime closed") as caught:
        await run
    assert met == [caught.value]


async def test_an_execution_cancels_the_runs_and_has_them_told_below_it() -> None:
    """(R284, R289)"""
    seen = RecordingSink()
    signal, part = al.Signal(), al.Diagnostics(run_id="request")
    async with al.Runtime(ScriptedProvider([reply("1")]), observers=[seen]) as runtime:
        engine = runtime.engine(ASKING, execution=al.Execution(signal=signal, diagnostics=part))
        await engine.run(Draft())
        signal.cancel(ValueError("mine"))
        with pytest.raises(ValueError, match="mine"):
            await engine.run(Draft())
    assert {event.run_id for event in seen.events} == {"request"}
    node_started, start = seen.events[0], seen.events[1]
    assert node_started.parent_span_id not in (None, "request")
    assert start.parent_span_id == node_started.invocation_id


async def test_clock_and_ids_are_the_runtimes() -> None:
    clock, ids = FakeClock(), iter(f"id{at}" for at in range(100))

    async def wait(state: Draft, context: al.NodeContext) -> None:
        clock.advance(2)

    runtime = al.Runtime(ScriptedProvider([]), clock=clock, now_ms=clock.now_ms, new_id=lambda: next(ids))
    async with runtime:
        engine = runtime.engine(flow(node("wait", wait)))
        await engine.run(Draft())
    trace = engine.journal.nodes[0]
    assert trace.duration_ms == 2_000
    assert trace.started_at_ms == 1_700_000_000_000
    assert trace.invocation_id.startswith("id")


async def test_tools_of_a_workflow_run_in_the_runtimes_pool() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:

        @al.tool
        def sync() -> str:
            """Run in a thread."""
            return "done"

        async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
            return {"text": (await context.tools.call("sync")).text}

        engine = runtime.engine(flow(node("use", use, provides=("text",))), tools=[sync])
        assert await engine.run(Draft()) == "done"
        assert engine._pool is runtime._runs.pool


async def test_steps_run_on_a_runtime_as_well() -> None:
    """(R288)"""

    async def step(number: int, context: al.NodeContext) -> al.Continue | al.Complete[str]:
        said = (await context.model.invoke("x")).value
        return al.Complete(said) if said == "good" else al.Continue()

    async with al.Runtime(ScriptedProvider([reply("bad"), reply("good")])) as runtime:
        engine = runtime.engine()
        assert await engine.run(step) == "good"
        assert [(one.workflow, one.node, one.round) for one in engine.journal.nodes] == [
            ("", "step", 1),
            ("", "step", 2),
        ]


# -- agents


@al.tool(idempotent=True)
async def look_up(topic: str, ctx: al.ToolContext[dict[str, str]]) -> str:
    """Look a topic up."""
    return ctx.deps[topic]


READER = al.Agent(name="reader", instructions="Read.", tools=[look_up])


async def test_an_agent_of_a_node_is_a_run_of_its_own_on_the_budget_of_the_workflow() -> None:
    """(R268, R270)"""
    seen, counts = RecordingSink(), []
    provider = ScriptedProvider([reply(calls=[call("look_up", topic="tides")]), reply("The moon."), reply("Said.")])

    async def use(state: Draft, context: al.NodeContext) -> dict[str, Any]:
        result = await context.agents.run(READER, state.topic, run_id="child")
        counts.append((context.model.call_count, context.model.total_call_count, context.model.remaining_calls))
        await context.model.invoke("x")
        with pytest.raises(BudgetError):
            await context.model.invoke("x")
        return {"text": result.require_text()}

    async with al.Runtime(provider, observers=[seen]) as runtime:
        engine = runtime.engine(flow(node("use", use, provides=("text",))), max_calls=3, max_tool_calls=1)
        assert await engine.run(Draft(), deps={"tides": "It is the moon."}) == "The moon."
        assert (await runtime.result("child")).tool_calls == 1
    assert counts == [(0, 2, 1)]
    assert [fed.text for fed in provider.requests[1].exchanges[0].feedback] == ["It is the moon."]
    visit = seen.of(al.NodeStarted)[0].invocation_id
    assert [event.parent_span_id for event in seen.events if event.type == "run.started"] == [visit]


async def test_an_agent_that_has_no_budget_left_ends_with_a_limit() -> None:
    """(R269)"""
    outcomes = []

    async def use(state: Draft, context: al.NodeContext) -> None:
        outcomes.append((await context.agents.run(READER, "x")).outcome)
        outcomes.append((await context.agents.run(READER, "x")).outcome)

    async with al.Runtime(ScriptedProvider([reply("1")])) as runtime:
        await runtime.engine(flow(node("use", use)), runner=runtime.runner(max_calls=1)).run(Draft())
    assert outcomes == ["completed", "limit_reached"]


async def test_an_agent_of_a_node_may_ask_others_as_in_a_run_of_its_own() -> None:
    asks = al.delegate(READER, name="ask", description="Ask.", tools=[])
    chief = al.Agent(name="chief", tools=[asks])
    alone = al.Agent(name="chief", tools=[asks], limits=al.LoopLimits(max_depth=0))
    script = [reply(calls=[call("ask", task="x")]), reply("Read."), reply("Done.")]
    refused = [reply(calls=[call("ask", task="x")]), reply("Not done.")]
    async with al.Runtime(ScriptedProvider([*script, *refused])) as runtime:

        async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
            agent = chief if state.tries else alone
            return {"text": (await context.agents.run(agent, "x")).text}

        engine = runtime.engine(flow(node("use", use, provides=("text",))))
        assert await engine.run(Draft(tries=1)) == "Done."
        assert await engine.run(Draft(tries=0)) == "Not done."


async def test_an_agent_as_a_tool_is_a_part_of_its_call_in_a_node_as_well() -> None:
    asks = al.delegate(READER, name="ask", description="Ask.", tools=[])
    seen = RecordingSink()

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        answer = await context.tools.call("ask", {"task": "x"})
        assert (await runtime.result(answer.invocation_id)).text == "Read."
        return {"text": answer.require()}

    async with al.Runtime(ScriptedProvider([reply("Read.")]), observers=[seen]) as runtime:
        engine = runtime.engine(flow(node("use", use, provides=("text",))), tools=[asks], max_calls=1)
        assert await engine.run(Draft()) == "Read."
    call_id = seen.of(al.ToolStarted)[0].invocation_id
    assert [event.parent_span_id for event in seen.events if event.type == "run.started"] == [call_id]


async def test_a_cancel_of_a_workflow_ends_the_run_of_its_agent_first() -> None:
    """(R289, R292)"""
    inside, why = asyncio.Event(), ValueError("why")

    async def never(request: al.ModelRequest) -> al.ModelReply:
        inside.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def use(state: Draft, context: al.NodeContext) -> None:
        await context.agents.run(READER, "x", run_id="child")

    seen = RecordingSink()
    async with al.Runtime(ScriptedProvider([never]), observers=[seen]) as runtime:
        engine = runtime.engine(flow(node("use", use)))
        run = asyncio.create_task(engine.run(Draft()))
        await inside.wait()
        engine.signal.cancel(why)
        with pytest.raises(ValueError, match="why") as caught:
            await run
        assert caught.value is why
        with pytest.raises(RunCancelled):
            await runtime.result("child")
    assert seen.types[-2:] == ["run.ended", "node.ended"]


MENDED = node("mend", None, al.Route(complete="mended"))


@pytest.mark.parametrize("direct", [False, True])
async def test_a_budget_that_an_agent_runs_out_of_takes_no_error_route(direct: bool) -> None:
    """(R298)"""

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        return {"text": (await context.agents.run(READER, "x")).require_text()}

    if direct:
        asks = node("ask", use, provides=("text",), on_error="mend")
    else:
        asks = al.agent_node(
            "ask", "Ask", READER, input=lambda state: "x", into="text", on_error="mend", routes=MENDED.routes
        )
    workflow = flow(asks, MENDED)
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(OutcomeError, match="max_model_calls"):
            await runtime.engine(workflow, max_calls=0).run(Draft())
    async with al.Runtime(ScriptedProvider([]), ledger=al.Ledger(model_calls=0)) as runtime:
        with pytest.raises(OutcomeError, match="max_model_calls"):
            await runtime.engine(workflow).run(Draft())


async def test_a_limit_of_the_agents_own_may_take_an_error_route() -> None:
    """(R298)"""

    @al.tool
    async def look() -> str:
        """Look."""
        return "seen"

    brief = al.Agent(name="brief", tools=[look], limits=al.LoopLimits(max_model_calls=1))
    asks = al.agent_node("ask", "Ask", brief, input=lambda state: "x", into="text", on_error="mend", routes=END)
    async with al.Runtime(ScriptedProvider([reply(calls=[call("look")])])) as runtime:
        assert await runtime.engine(flow(asks, MENDED), max_calls=2).run(Draft()) == "mended"


async def test_an_agent_that_waits_for_a_host_takes_no_error_route() -> None:
    """(R298)"""

    @al.tool(approval="required")
    async def publish() -> str:
        """Publish."""
        return "out"

    editor = al.Agent(name="editor", tools=[publish])
    asks = al.agent_node("ask", "Ask", editor, input=lambda state: "x", into="text", on_error="mend", routes=END)
    async with al.Runtime(ScriptedProvider([reply(calls=[call("publish")])])) as runtime:
        with pytest.raises(OutcomeError, match="waiting_for_approval"):
            await runtime.engine(flow(asks, MENDED)).run(Draft())
        assert [waits.tool for waits in await runtime.waiting()] == ["publish"]


async def test_closing_the_runtime_is_no_error_that_a_route_takes() -> None:
    """Whenever it closes, a run under way meets that first, and not a runtime that takes no more runs (R298)."""
    for turns in range(60):
        async with al.Runtime(ScriptedProvider([lambda request: reply("x")] * 20)) as runtime:

            async def ask(state: Draft, context: al.NodeContext, runtime: al.Runtime = runtime) -> None:
                for _ in range(20):
                    await runtime.run(READER, "x")

            engine = runtime.engine(flow(node("ask", ask, on_error="mend"), MENDED))
            run = asyncio.create_task(engine.run(Draft(text="all")))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert not run.done()
            await runtime.aclose()
        with pytest.raises(RunCancelled):
            await run
