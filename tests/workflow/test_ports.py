"""What a node can ask for: tools as the loop executes them, and agents on the budget of the run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import ToolPool
from agentloop.effects.pool import Execution
from agentloop.errors import (
    BudgetError,
    InputError,
    OutcomeError,
    RunCancelled,
    ToolCrashed,
    ToolDefinitionError,
    ToolFailed,
)
from agentloop.events import NodeStarted, ToolEnded, ToolProgress, ToolStarted
from agentloop.testing import RecordingSink, ScriptedProvider, call, reply
from agentloop.tools import ArgumentsRefused
from tests.workflow.flows import Draft, Spawned, flow, node, result_of_agent


@al.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@al.tool
async def fails(how: str, ctx: al.ToolContext[Any]) -> str:
    """Fail in a way."""
    await ctx.progress("half way", 0.5)
    if how == "words":
        raise ToolFailed("no such thing")
    if how == "crash":
        raise KeyError("SECRET")
    return "x" * 10_000


async def called(name: str, arguments: Any = None, *tools: al.Tool, **options: Any) -> Any:
    """What one call in one node comes to, and the journal of its run."""
    got: list[Any] = []

    async def run(state: Draft, context: al.NodeContext) -> None:
        got.append(await context.tools.call(name, arguments))

    await al.Engine(flow(node("use", run)), tools=tools or (add, fails), **options).run(Draft())
    return got[0]


# -- tools


async def test_a_tool_answers_with_its_result() -> None:
    answer = await called("add", {"a": 1, "b": 2})
    assert (answer.kind, answer.text, answer.code, answer.require()) == ("done", "3", None, "3")
    assert (await called("add", '{"a":1,"b":2}')).text == "3"


async def test_a_failure_of_a_tool_is_an_answer() -> None:
    answer = await called("fails", {"how": "words"})
    assert (answer.kind, answer.text, answer.code) == ("failed", "no such thing", "tool_failed")
    with pytest.raises(ToolFailed, match="no such thing"):
        answer.require()


async def test_a_result_is_cut_as_the_loop_cuts_it() -> None:
    @al.tool(max_output_bytes=300)
    async def short() -> str:
        """Say much, and be cut."""
        return "y" * 10_000

    assert 3_000 < len((await called("fails", {"how": "long"})).text) < 4_096
    assert len((await called("short", None, short)).text) < 300


async def test_a_crash_of_a_tool_is_raised_with_its_cause() -> None:
    with pytest.raises(ToolCrashed) as caught:
        await called("fails", {"how": "crash"})
    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.tool, caught.value.error_type) == ("fails", "KeyError")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("unknown", {}, ToolDefinitionError),
        ("add", {"a": 1}, ArgumentsRefused),
        ("add", {"a": "1", "b": 2}, ArgumentsRefused),
        ("add", "not json", ArgumentsRefused),
        ("add", [1], InputError),
        ("add", {"a": object()}, InputError),
    ],
)
async def test_what_does_not_fit_runs_nothing_and_costs_nothing(name: str, arguments: Any, error: Any) -> None:
    ledger = al.Ledger(tool_calls=1)
    with pytest.raises(error):
        await called(name, arguments, ledger=ledger)
    assert ledger.left("tool_calls") == 1


async def test_tool_calls_are_debited_to_the_budget_of_the_run() -> None:
    async def thrice(state: Draft, context: al.NodeContext) -> None:
        assert context.tools.names == ("add",)
        await context.tools.call("add", {"a": 1, "b": 1})
        await context.tools.call("add", {"a": 1, "b": 1})

    ledger = al.Ledger(tool_calls=3)
    workflow = flow(node("thrice", thrice))
    await al.Engine(workflow, tools=[add], ledger=ledger, max_tool_calls=2).run(Draft())
    assert ledger.left("tool_calls") == 1
    with pytest.raises(BudgetError, match="tool_calls: allowed 1, got at least 2"):
        await al.Engine(workflow, tools=[add], max_tool_calls=1).run(Draft())
    with pytest.raises(BudgetError, match="tool_calls: allowed 3, got at least 4"):
        await al.Engine(workflow, tools=[add], ledger=ledger).run(Draft())
    total = al.Ledger(tool_calls=1)
    runner = al.ModelRunner(ScriptedProvider([]), ledger=total)
    with pytest.raises(BudgetError):
        await al.Engine(workflow, tools=[add], model_runtime=runner).run(Draft())
    assert total.left("tool_calls") == 0


async def test_what_is_converted_for_a_tool_is_told() -> None:
    @al.tool(coerce=True)
    async def double(n: int) -> int:
        """Double it."""
        return 2 * n

    async def use(state: Draft, context: al.NodeContext) -> None:
        assert (await context.tools.call("double", '{"n": "21"}')).text == "42"

    seen = RecordingSink()
    async with al.Runtime(ScriptedProvider([]), observers=[seen]) as runtime:
        await runtime.engine(flow(node("use", use)), tools=[double]).run(Draft())
    assert [(e.arguments, e.converted) for e in seen.of(ToolStarted)] == [('{"n": "21"}', ("$.n: string to integer",))]


async def test_a_tool_is_told_below_its_node_in_the_words_of_a_run() -> None:
    seen = RecordingSink()

    async def use(state: Draft, context: al.NodeContext) -> None:
        await context.tools.call("add", {"b": 2, "a": 1})
        await context.tools.call("fails", {"how": "words"})
        with pytest.raises(ToolCrashed):
            await context.tools.call("fails", {"how": "crash"})

    async with al.Runtime(ScriptedProvider([]), observers=[seen]) as runtime:
        engine = runtime.engine(flow(node("use", use)), tools=[add, fails])
        await engine.run(Draft())
    assert seen.types == [
        "node.started",
        "tool.started",
        "tool.ended",
        *["tool.started", "tool.progress", "tool.ended"] * 2,
        "node.ended",
        "route.taken",
    ]
    visit = seen.of(NodeStarted)[0].invocation_id
    tools = [event for event in seen.events if event.type.startswith("tool.")]
    assert {event.parent_span_id for event in tools} == {visit}
    assert [(e.tool, e.exchange, e.position, e.arguments) for e in seen.of(ToolStarted)] == [
        ("add", 0, 0, '{"a":1,"b":2}'),
        ("fails", 0, 1, '{"how":"words"}'),
        ("fails", 0, 2, '{"how":"crash"}'),
    ]
    assert [(e.status, e.slot, e.code, e.output, e.output_bytes) for e in seen.of(ToolEnded)] == [
        ("success", "done", None, "3", 1),
        ("error", "failed", "tool_failed", "no such thing", 13),
        ("error", "unknown", "tool_crashed", "", 0),
    ]
    assert [(e.message, e.fraction) for e in seen.of(ToolProgress)] == [("half way", 0.5)] * 2
    assert [(one.tool_id, one.status, one.parent_invocation_id) for one in engine.journal.tools] == [
        ("add", "success", visit),
        ("fails", "error", visit),
        ("fails", "error", visit),
    ]


async def test_a_tool_is_given_the_applications_own_and_the_identity_of_its_call() -> None:
    got: list[al.ToolContext[Any]] = []

    @al.tool
    async def keep(ctx: al.ToolContext[Any]) -> str:
        """Keep the context."""
        got.append(ctx)
        return "kept"

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        return {"text": (await context.tools.call("keep")).invocation_id}

    engine = al.Engine(flow(node("use", use, provides=("text",))), tools=[keep])
    answered = await engine.run(Draft(), deps="the app")
    context = got[0]
    assert (context.deps, context.agent, context.tool, context.attempt) == ("the app", "article", "keep", 1)
    assert context.call_id == context.effect_id == answered
    assert context.run_id == engine.journal.run_id


async def test_a_step_has_tools_as_well() -> None:
    async def step(number: int, context: al.NodeContext) -> al.Complete[str]:
        return al.Complete((await context.tools.call("add", {"a": number, "b": 1})).text)

    assert await al.Engine(tools=[add]).run(step) == "2"
    with pytest.raises(InputError, match=r"context.tools: expected an engine with tools"):
        await al.Engine().run(step)


async def test_an_idempotent_tool_is_repeated_and_each_start_is_debited_and_told() -> None:
    attempts = []

    @al.tool(idempotent=True, timeout=0.001, retries=2)
    async def slow(ctx: al.ToolContext[Any]) -> str:
        """Take longer than allowed, but for the last time."""
        attempts.append((ctx.attempt, ctx.effect_id))
        await ctx.progress(f"attempt {ctx.attempt}")
        if ctx.attempt < 3:
            await asyncio.Event().wait()
        return "at last"

    seen, ledger = RecordingSink(), al.Ledger(tool_calls=5)

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        return {"text": (await context.tools.call("slow")).require()}

    async with al.Runtime(ScriptedProvider([]), observers=[seen], ledger=ledger) as runtime:
        engine = runtime.engine(flow(node("use", use, provides=("text",))), tools=[slow])
        assert await engine.run(Draft()) == "at last"
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert len({effect for _, effect in attempts}) == 1
    assert ledger.left("tool_calls") == 2
    assert [event.attempt for event in seen.of(ToolStarted)] == [1, 2, 3]
    assert [(event.status, event.slot, event.code, event.position) for event in seen.of(ToolEnded)] == [
        ("error", "unknown", "timeout", 0),
        ("error", "unknown", "timeout", 0),
        ("success", "done", None, 0),
    ]
    assert [event.message for event in seen.of(ToolProgress)] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [(one.attempt, one.status) for one in engine.journal.tools] == [(1, "error"), (2, "error"), (3, "success")]


@pytest.mark.parametrize("options", [{"max_tool_calls": 2}, {}])
async def test_repetitions_end_with_the_budget_or_the_tools_own_limit(options: dict[str, Any]) -> None:
    @al.tool(policy=al.ToolPolicy(idempotent=True, timeout=0.001, max_calls=None if options else 2))
    async def never() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    ledger = al.Ledger(tool_calls=9)
    answer = await called("never", None, never, ledger=ledger, **options)
    assert (answer.kind, answer.code) == ("failed", "timeout")
    assert ledger.left("tool_calls") == 7


async def test_a_tool_is_called_as_often_in_a_run_as_its_policy_says() -> None:
    @al.tool(policy=al.ToolPolicy(max_calls=1))
    async def once() -> str:
        """Run once."""
        return "ran"

    answers = []

    async def use(state: Draft, context: al.NodeContext) -> None:
        answers.append([await context.tools.call("once"), await context.tools.call("once")])

    engine = al.Engine(flow(node("use", use)), tools=[once])
    await engine.run(Draft())
    await engine.run(Draft())
    for first, second in answers:
        assert (first.kind, first.text) == ("done", "ran")
        assert (second.kind, second.code) == ("failed", "max_calls")
        assert second.text == "Nothing ran: once can be called once in a run, and that is used up."
    assert len(engine.journal.tools) == 1


@al.selection
def pick(color: str) -> str:
    """Pick a color."""
    return f"paint it {color}"


async def test_a_selection_resolves_in_place() -> None:
    assert (await called("pick", {"color": "blue"}, pick)).text == "paint it blue"


async def test_no_tool_begins_beside_a_thread_that_has_not_ended() -> None:
    go_on, began, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(20)

    pool, ledger = ToolPool(2), al.Ledger(tool_calls=1)
    left = asyncio.create_task(
        pool.run_thread(Execution("r", "slow"), work, seconds=None, grace=1)
    )  # of an earlier call of the same run
    await began.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    execution = al.Execution(diagnostics=al.Diagnostics(run_id="r"))
    try:
        answer = await called("add", {"a": 1, "b": 1}, add, pool=pool, execution=execution, ledger=ledger)
        assert (answer.kind, answer.code) == ("failed", "thread_busy")
        assert answer.text.startswith("Nothing ran: an earlier call of slow has not ended")
        assert ledger.left("tool_calls") == 1
        assert (await called("pick", {"color": "red"}, pick, pool=pool, execution=execution)).kind == "done"
    finally:
        go_on.set()
    assert await pool.wait_idle() == 0


async def test_a_cancel_cuts_a_tool_off_wherever_it_was_called() -> None:
    """(R291, R292)"""
    inside, why = asyncio.Event(), ValueError("why")

    @al.tool
    async def wait() -> str:
        """Wait for ever."""
        inside.set()
        await asyncio.Event().wait()
        return ""

    strays: list[asyncio.Task[Any]] = []

    async def use(state: Draft, context: al.NodeContext) -> None:
        strays.append(asyncio.create_task(context.tools.call("wait")))  # a task of the handler's own
        await asyncio.Event().wait()

    engine = al.Engine(flow(node("use", use)), tools=[wait])
    run = asyncio.create_task(engine.run(Draft()))
    await inside.wait()
    engine.signal.cancel(why)
    with pytest.raises(ValueError, match="why"):
        await run
    with pytest.raises(ValueError, match="why"):
        await strays[0]
    assert [(one.tool_id, one.status, one.code) for one in engine.journal.tools] == [("wait", "cancelled", "cancelled")]


async def test_what_a_handler_left_behind_ends_with_the_run() -> None:
    """(R292)"""
    inside = asyncio.Event()

    @al.tool
    async def wait() -> str:
        """Wait for ever."""
        inside.set()
        await asyncio.Event().wait()
        return ""

    strays: list[asyncio.Task[Any]] = []

    async def use(state: Draft, context: al.NodeContext) -> None:
        strays.append(asyncio.create_task(context.tools.call("wait")))
        await inside.wait()

    engine = al.Engine(flow(node("use", use)), tools=[wait])
    assert await engine.run(Draft(text="x")) == "x"
    assert [one.status for one in engine.journal.tools] == ["cancelled"]
    with pytest.raises(RunCancelled):
        await strays[0]


# -- agents

WRITER = al.Agent(name="writer", instructions="Write.", tools=[add])


async def test_an_agent_runs_on_the_budget_of_the_workflow() -> None:
    provider = ScriptedProvider([reply(calls=[call("add", a=1, b=2)]), reply("It is 3."), reply("mine")])

    async def use(state: Draft, context: al.NodeContext) -> dict[str, str]:
        result = await context.agents.run(WRITER, state.topic, run_id="r9")
        assert (context.model.total_call_count, context.model.call_count, context.model.remaining_calls) == (2, 0, 1)
        await context.model.invoke("x")
        with pytest.raises(BudgetError):
            await context.agents.run(WRITER, "again")
        return {"text": result.require_text()}

    async with al.Runtime(provider) as runtime:
        spawn = Spawned(runtime)
        engine = al.Engine(
            flow(node("use", use, provides=("text",))),
            model_runtime=runtime.runner(max_calls=3),
            spawn=spawn,
        )
        assert await engine.run(Draft(), deps="app") == "It is 3."
    assert spawn.asked[0] == {
        "agent": "writer",
        "input": "tides",
        "parent_span_id": engine.journal.nodes[0].invocation_id,
        "run_id": "r9",
        "deps": "app",
    }


async def test_an_agent_can_have_an_application_of_its_own() -> None:
    asked: list[Any] = []

    async def spawn(agent: al.Agent[Any], input: Any, /, **given: Any) -> Any:
        asked.append(given["deps"])
        return result_of_agent("x")

    async def use(state: Draft, context: al.NodeContext) -> None:
        await context.agents.run(WRITER, "x", deps="other")
        await context.agents.run(WRITER, "x")

    await al.Engine(flow(node("use", use)), spawn=spawn).run(Draft(), deps="app")
    assert asked == ["other", "app"]


async def test_an_engine_that_can_run_no_agents_says_so() -> None:
    async def use(state: Draft, context: al.NodeContext) -> None:
        await context.agents.run(WRITER, "x")

    with pytest.raises(InputError, match=r"context.agents: expected an engine that can run agents"):
        await al.Engine(flow(node("use", use))).run(Draft())

    async def wrong(state: Draft, context: al.NodeContext) -> None:
        await context.agents.run("writer", "x")  # type: ignore[arg-type]

    async def spawn(agent: Any, input: Any, /, **given: Any) -> Any:
        raise AssertionError

    with pytest.raises(InputError, match=r"context.agents.run: expected an Agent, got str"):
        await al.Engine(flow(node("use", wrong)), spawn=spawn).run(Draft())


async def test_a_cancel_reaches_an_agent_and_waits_for_its_end() -> None:
    """(R292)"""
    inside, ended, why = asyncio.Event(), [], ValueError("why")

    async def spawn(agent: Any, input: Any, /, **given: Any) -> Any:
        try:
            inside.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(agent.name)

    async def use(state: Draft, context: al.NodeContext) -> None:
        await context.agents.run(WRITER, "x")

    engine = al.Engine(flow(node("use", use)), spawn=spawn)
    run = asyncio.create_task(engine.run(Draft()))
    await inside.wait()
    engine.signal.cancel(why)
    with pytest.raises(ValueError, match="why"):
        await run
    assert ended == ["writer"]


async def test_an_agent_node_keeps_the_text_or_the_value() -> None:
    typed = al.Agent(name="counter", output=int)
    provider = ScriptedProvider([reply("A text."), reply('{"value":7}')])
    async with al.Runtime(provider) as runtime:
        spawn = Spawned(runtime)

        def ask(state: Draft) -> str:
            return f"{state.topic}, {state.text}"

        workflow = flow(
            al.agent_node("write", "Write", WRITER, input=ask, into="text", routes=(al.Route(to="count"),)),
            al.agent_node(
                "count",
                "Count",
                typed,
                input=ask,
                into="tries",
                requires=("text",),
                routes=(al.Route(complete=lambda state: (state.text, state.tries)),),
            ),
        )
        assert await al.Engine(workflow, spawn=spawn).run(Draft()) == ("A text.", 7)
    assert [one["input"] for one in spawn.asked] == ["tides, None", "tides, A text."]
    assert workflow.nodes["count"].provides == ("tries",)


async def test_an_agent_that_did_not_complete_is_an_error_of_its_node() -> None:
    seen: list[Any] = []
    async with al.Runtime(ScriptedProvider([reply("cut", finish="length")])) as runtime:
        workflow = flow(
            al.agent_node("a", "A", WRITER, input=lambda _: "x", into="text", on_error="b", routes=(al.Route(to="b"),)),
            node("b", lambda state, context: seen.append(context.error), al.Route(complete="mended")),
        )
        assert await al.Engine(workflow, spawn=Spawned(runtime)).run(Draft()) == "mended"
    assert isinstance(seen[0], OutcomeError)


@pytest.mark.parametrize(
    ("agent", "ask", "text"),
    [
        ("writer", lambda state: "x", "agent_node.agent: expected an Agent, got str"),
        (WRITER, "x", "agent_node.input: expected a sync function of the state, got str"),
        (WRITER, called, "agent_node.input: expected a sync function of the state, got an async one"),
    ],
)
def test_an_agent_node_is_checked_when_it_is_made(agent: Any, ask: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        al.agent_node("a", "A", agent, input=ask, into="text")
    assert str(caught.value) == text
