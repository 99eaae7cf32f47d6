"""An agent as a tool of another: what it may do, what it costs, what is seen of it, and what a death leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.delegation import Delegate
from agentloop.exchange import OriginOpened, SendStarted, SlotMoved
from agentloop.testing import ScriptedProvider, call, reply
from agentloop.tools import ToolContext
from tests.mortal import Ground
from tests.runs import facts_of, pairs_in


@al.tool(idempotent=True)
async def search(query: str, ctx: al.ToolContext[list[str]]) -> str:
    """Search."""
    ctx.deps.append(f"search {query}")
    return f"found {query}"


@al.tool
async def pay(ctx: al.ToolContext[list[str]]) -> str:
    """Pay."""
    ctx.deps.append("pay")
    return "paid"


READER = al.Agent(name="reader", instructions="Read.", tools=[search, pay])


def research(*tools: str, **options: Any) -> al.Tool:
    return al.delegate(READER, name="research", description="Find a fact.", tools=tools, **options)


def writer(*tools: al.Tool, **options: Any) -> al.Agent[None]:
    return al.Agent(name="writer", instructions="Write.", tools=tools or [research("search")], **options)


def is_child(request: al.ModelRequest) -> bool:
    return request.messages[0] == al.SystemMessage(content="Read.")


def answer(request: al.ModelRequest) -> Any:
    """What either agent says, by what is in the request."""
    if is_child(request):
        return (
            reply("42", usage=(5, 1)) if request.exchanges else reply(calls=[call("search", query="q")], usage=(5, 1))
        )
    if request.exchanges:
        return reply("It is 42.", usage=(10, 1))
    return reply(calls=[call("research", task="Find it.")], usage=(10, 1))


def model(count: int = 10) -> ScriptedProvider:
    return ScriptedProvider([answer] * count)


class Watcher:
    """Keeps every event of every run."""

    def __init__(self) -> None:
        self.events: list[al.Event] = []

    async def observe(self, event: al.Event) -> None:
        self.events.append(event)


async def test_the_model_reads_what_the_agent_came_to() -> None:
    """Delegation is a tool that one agent exposes to another (R343)."""
    provider, ran = model(), []
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(writer(), "What is it?", run_id="r", deps=ran)
        child = await runtime.result("r/0.0")
    assert (result.text, child.text, ran) == ("It is 42.", "42", ["search q"])
    assert pairs_in(provider.requests[-1]) == [("call_1", "42")]
    asked = provider.requests[1]
    assert asked.messages == (al.SystemMessage(content="Read."), al.UserMessage(content="Find it."))
    assert [spec.name for spec in asked.tools] == ["search"]


async def test_the_agent_has_the_tools_that_were_named_and_no_other() -> None:
    """Nothing is inherited, be it of the caller or of the agent's own definition (R344)."""
    provider = ScriptedProvider(
        [
            reply(calls=[call("research", task="Pay.")]),
            reply(calls=[call("pay")]),
            reply("I cannot."),
            reply("Too bad."),
        ]
    )
    ran: list[str] = []
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(research("search"), pay), "go", deps=ran)
    assert ran == []
    assert [spec.name for spec in provider.requests[1].tools] == ["search"]
    assert "There is no tool named 'pay'" in pairs_in(provider.requests[2])[0][1]


async def test_an_agent_without_tools_is_asked_for_none() -> None:
    provider = ScriptedProvider([reply(calls=[call("research", task="Think.")]), reply("Hm."), reply("Done.")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(research()), "go")
    assert provider.requests[1].tools == ()


def test_an_agent_has_no_tool_that_leads_back_to_it() -> None:
    """A tool is made of a finished agent, so whatever it may use was there before it (R345)."""
    first = research("search")
    deeper = al.Agent(name="deeper", tools=[first])
    second = al.delegate(deeper, name="deep", description="Go deep.", tools=["research"])
    assert isinstance(second, Delegate)
    assert second.agent.toolset.names == ("research",)
    assert isinstance(first, Delegate)
    assert first.agent.toolset.names == ("search",)
    with pytest.raises(al.ToolDefinitionError, match="unknown_tool: tool 'research'"):
        research("research")
    with pytest.raises(AttributeError, match="fixed"):
        second.agent = deeper  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"agent": "reader"}, "delegate: expected an Agent, got str"),
        ({"tools": "search"}, "delegate.tools: expected a list of names"),
        ({"tools": [search]}, "delegate.tools: expected a list of names"),
        ({"tools": ["search", "search"]}, "duplicate_tool_name"),
        ({"limits": 3}, "delegate.limits: expected LoopLimits, got int"),
        ({"name": "two words"}, "bad_tool_name"),
        ({"description": None}, "description: expected str"),
    ],
)
def test_a_wrong_value_is_refused_by_name(changes: dict[str, Any], rule: str) -> None:
    values = {"agent": READER, "name": "n", "description": "d", "tools": [], **changes}
    with pytest.raises(al.InputError, match=rule):
        al.delegate(values.pop("agent"), **values)


def test_the_permission_is_no_default() -> None:
    with pytest.raises(TypeError, match="tools"):
        al.delegate(READER, name="n", description="d")  # type: ignore[call-arg]


def test_a_catalogue_covers_the_agent_behind_a_tool() -> None:
    one, two = writer(research("search")), writer(research("search", "pay"))
    assert one.toolset.specs == two.toolset.specs
    assert one.toolset.digest != two.toolset.digest


async def test_depth_is_bounded_by_the_outermost_run() -> None:
    inner = research("search")
    middle = al.Agent(name="middle", tools=[inner], limits=al.LoopLimits(max_depth=5))
    outer = al.delegate(middle, name="ask", description="Ask.", tools=["research"])
    script = [
        reply(calls=[call("ask", task="a")]),
        reply(calls=[call("research", task="b")]),
        reply("refused"),
        reply("end"),
    ]
    provider = ScriptedProvider(script)
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(outer), "go", deps=[])
    assert pairs_in(provider.requests[2]) == [("call_1", "Nothing ran: agents may be asked 1 deep at most here.")]
    provider = ScriptedProvider([*script[:2], reply("deepest"), *script[2:]])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(outer, limits=al.LoopLimits(max_depth=2)), "go", deps=[], run_id="r")
        assert (await runtime.result("r/0.0/0.0")).text == "deepest"
    provider = ScriptedProvider([script[0], reply("end")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(outer, limits=al.LoopLimits(max_depth=0)), "go")
    assert pairs_in(provider.requests[1]) == [("call_1", "Nothing ran: no agent may be asked here.")]


async def test_the_agent_spends_what_its_caller_has_left() -> None:
    """(R277)"""
    provider, ran = model(), []
    total = al.Ledger(model_calls=10)
    async with al.Runtime(provider, ledger=total) as runtime:
        agent = writer(limits=al.LoopLimits(max_model_calls=2))
        result = await runtime.run(agent, "go", run_id="r", deps=ran)
        child = await runtime.result("r/0.0")
    assert (child.outcome, child.reason, child.model_calls) == ("limit_reached", "max_model_calls", 1)
    assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_model_calls", 1)
    assert len(provider.requests) == total.spent("model_calls") == 2
    assert ran == []  # the answer could not have been read


async def test_the_agent_has_limits_of_its_own() -> None:
    provider = model()
    tool = research("search", limits=al.LoopLimits(max_model_calls=1))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(writer(tool), "go", deps=[])
    assert (result.outcome, len(provider.requests)) == ("completed", 3)
    (pair,) = pairs_in(provider.requests[-1])
    assert pair[1] == "The agent 'reader' ended as limit_reached (max_model_calls)."


async def test_a_value_is_read_as_json() -> None:
    class Fact(msgspec.Struct):
        number: int

    finder = al.Agent(name="finder", output=al.Structured(Fact, route="json_text"))
    tool = al.delegate(finder, name="find", description="Find.", tools=[])
    provider = ScriptedProvider([reply(calls=[call("find", task="t")]), reply('{"number": 42}'), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(tool), "go")
    assert pairs_in(provider.requests[-1]) == [("call_1", '{"number":42}')]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (reply("so far", finish="length"), "The agent 'reader' ended as incomplete (length). It said: so far"),
        (reply("", refusal="I will not."), "The agent 'reader' ended as refused (stop). It said: I will not."),
        (al.ConnectionFailed("no server"), "ConnectionFailed: no server"),
        (al.StreamRefused("truncated", 1, 2, "an end", "none"), "StreamRefused: truncated at event 1"),
    ],
)
async def test_an_end_without_a_result_is_feedback(said: Any, words: str) -> None:
    provider = ScriptedProvider([reply(calls=[call("research", task="t")]), said, reply("done")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(writer(), "go", run_id="r")
        slot = runtime._store.book.turn("r").entries[0].slots[0]
    assert (result.text, slot.state) == ("done", "failed")
    assert pairs_in(provider.requests[-1])[0][1].startswith(words)


async def test_what_a_tool_of_the_agent_did_not_declare_ends_both_runs() -> None:
    @al.tool
    async def search(query: str) -> str:
        """Search."""
        raise ZeroDivisionError

    reader = al.Agent(name="reader", instructions="Read.", tools=[search])
    tool = al.delegate(reader, name="research", description="d", tools=["search"])
    async with al.Runtime(model()) as runtime:
        with pytest.raises(al.ToolCrashed, match="research") as caught:
            await runtime.run(writer(tool), "go", run_id="r")
        assert isinstance(caught.value.__cause__, al.ToolCrashed)
        with pytest.raises(al.ToolCrashed, match="search"):
            await runtime.result("r/0.0")
        assert await runtime.unfinished() == []


async def test_observers_hear_of_the_agent_under_its_own_run_and_the_sink_does_not() -> None:
    watcher = Watcher()

    class Sink:
        async def emit(self, event: al.OutputEvent) -> None:
            sunk.append(event.run_id)

    sunk: list[str] = []
    async with al.Runtime(model(), observers=[watcher]) as runtime:
        await runtime.run(writer(), "go", run_id="r", deps=[], sink=Sink())
    assert set(sunk) == {"r"}
    child = [event for event in watcher.events if event.run_id == "r/0.0"]
    assert [event.type for event in child if event.type.startswith(("run", "tool"))] == [
        "run.started",
        "tool.started",
        "tool.ended",
        "run.ended",
    ]
    assert {event.parent_span_id for event in child if event.invocation_id is None} == {"r/0.0"}
    parents = [event.type for event in watcher.events if event.run_id == "r" and event.span_id == "r/0.0"]
    assert parents == ["tool.started", "tool.ended"]
    assert [event.sequence for event in child] == list(range(1, len(child) + 1))


async def test_a_cancel_of_the_caller_reaches_the_agent_and_waits_for_its_end() -> None:
    under_way, order = asyncio.Event(), []

    async def hang(request: al.ModelRequest) -> Any:
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("child ended")

    provider = ScriptedProvider([reply(calls=[call("research", task="t")]), hang])
    async with al.Runtime(provider) as runtime:
        ref = await runtime.submit(writer(), "go", run_id="r")
        await under_way.wait()
        await runtime.cancel(ref)
        order.append("cancelled")
        closed = {name: runtime._store.book.turn(name).closed for name in ("r", "r/0.0")}
    assert order == ["child ended", "cancelled"]
    assert {name: end and end.outcome for name, end in closed.items()} == {"r": "cancelled", "r/0.0": "cancelled"}


async def test_an_agent_that_somebody_cancels_is_feedback_to_its_caller() -> None:
    under_way = asyncio.Event()

    async def hang(request: al.ModelRequest) -> Any:
        under_way.set()
        await asyncio.Event().wait()

    provider = ScriptedProvider([reply(calls=[call("research", task="t")]), hang, reply("Without it, then.")])
    async with al.Runtime(provider) as runtime:
        ref = await runtime.submit(writer(), "go", run_id="r")
        await under_way.wait()
        await runtime.cancel("r/0.0")
        assert (await runtime.result(ref)).text == "Without it, then."
    assert pairs_in(provider.requests[-1]) == [("call_1", "The agent 'reader' was cancelled.")]


async def test_an_agent_is_asked_as_it_was_defined() -> None:
    careful = al.Agent(name="careful", instructions="Mind.", tools=[search], options=al.ModelOptions(temperature=0))
    tool = al.delegate(careful, name="mind", description="Mind it.", tools=[], max_output_bytes=256)
    provider = ScriptedProvider([reply(calls=[call("mind", task="t")]), reply("x" * 1_000), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(tool), "go", run_id="r")
        assert len((await runtime.result("r/0.0")).text) == 1_000
    assert provider.requests[1].options.temperature == 0
    assert len(pairs_in(provider.requests[2])[0][1]) < 256
    assert (tool.policy.timeout, tool.policy.idempotent) == (None, True)


async def test_an_agents_run_that_failed_before_is_told_to_the_caller_that_is_resumed(ground: Ground) -> None:
    agent = writer()
    script = [reply(calls=[call("research", task="t")]), al.ConnectionFailed("no server")]
    async with ground.mortal(ScriptedProvider(script), at=7) as (dying, medium):  # its end is stored, no answer of it
        start = asyncio.create_task(dying.submit(agent, "go", run_id="r"))
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = ScriptedProvider([reply("done")])
        async with ground.runtime(provider) as runtime:
            assert (await runtime.resume("r", agent)).text == "done"
        medium.bury()
        await asyncio.wait({start})
        start.exception()
    assert pairs_in(provider.requests[0]) == [("call_1", "The agent 'reader' ended as failed (connection_failed).")]


async def test_runs_that_a_host_named_like_children_are_not_taken_for_them() -> None:
    async with al.Runtime(ScriptedProvider([reply("x")] * 3)) as runtime:
        for run_id in ("r", "r/0.0", "r/a"):
            await runtime.run(al.Agent(name="plain"), "go", run_id=run_id)
        await runtime.forget(ref="r")
        assert {fact.run_id for fact in await facts_of(runtime)} == {"r/0.0", "r/a"}


async def test_outside_of_a_run_there_is_nobody_to_run_the_agent() -> None:
    tools = writer().toolset
    with pytest.raises(al.InputError, match="expected a call in a run of an agent"):
        await tools.invoke_async("research", {"task": "t"})


async def test_a_tool_of_ones_own_may_have_an_agent_run() -> None:
    @al.tool
    async def ask(ctx: ToolContext[Any]) -> str:
        """Ask."""
        assert ctx.spawn is not None
        return f"it said {(await ctx.spawn(al.Agent(name='own'), 'hello')).text}"

    provider = ScriptedProvider([reply(calls=[call("ask")]), reply("hi"), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(writer(ask), "go")
    assert pairs_in(provider.requests[-1]) == [("call_1", "it said hi")]


async def test_what_is_forgotten_of_a_run_goes_with_its_children() -> None:
    async with al.Runtime(model()) as runtime:
        await runtime.run(writer(), "go", run_id="r", deps=[])
        await runtime.run(writer(), "go", conversation="c", run_id="s", deps=[])
        with pytest.raises(al.ConflictError, match=r"expected 's/0\.0' to be redacted before it"):
            await runtime.redact("s", author="Ann")
        await runtime.redact("s/0.0", author="Ann")
        await runtime.redact("s", author="Ann")
        await runtime.forget(conversation="c")
        await runtime.forget(ref="r")
        assert await facts_of(runtime) == []
        assert runtime._runs.live == {}


async def test_unnamed_runs_in_memory_leave_no_child_behind() -> None:
    async with al.Runtime(ScriptedProvider([answer] * 4 * 200)) as runtime:
        for _ in range(200):
            await runtime.run(writer(), "go", deps=[])
        kept = {fact.run_id for fact in await facts_of(runtime)}
    assert len(kept) <= 130


# -- death

APPENDS = 14
"""Of the caller three, then seven of the agent, then four of the caller again."""


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_a_death_anywhere_repeats_no_effect_of_either_run(ground: Ground, at: int, when: Any) -> None:
    """The call is repeated and joins the run it had; what is unknown waits where it happened (R139)."""
    agent = writer(research("search", limits=al.LoopLimits(max_model_calls=3)))
    first, second, ran = model(), model(), []
    async with ground.mortal(first, at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(agent, "go", run_id="r", deps=ran))
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(second) as runtime:
            if (at, when) == (1, "before"):
                assert await runtime.unfinished() == []
            else:
                while True:
                    try:
                        result = await runtime.resume("r", agent, deps=ran)
                        break
                    except al.UnsettledError:
                        sends = [item for item in await runtime.unsettled() if item.kind == "send"]
                        assert sends
                        await runtime.settle_send(sends[0].ref, sends[0].effect_id, author="host")
                assert (result.outcome, result.text) == ("completed", "It is 42.")
                facts = await ground.facts()
                opened = [fact for fact in facts if isinstance(fact, OriginOpened)]
                assert [(fact.run_id, fact.parent) for fact in opened] == [("r", None), ("r/0.0", "r/0.0")]
                sends_stored = [fact for fact in facts if isinstance(fact, SendStarted)]
                assert len(first.requests) + len(second.requests) <= len(sends_stored) <= 6
                starts = [fact for fact in facts if isinstance(fact, SlotMoved) and fact.state == "started"]
                assert len(ran) <= sum(fact.run_id == "r/0.0" for fact in starts) <= 2
                assert await runtime.unfinished() == []
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def test_a_runtime_that_closes_pauses_both_and_a_later_one_goes_on(ground: Ground) -> None:
    under_way, release = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> Any:
        under_way.set()
        await release.wait()
        return reply(calls=[call("search", query="q")])

    ran: list[str] = []
    agent = writer()
    async with ground.runtime(ScriptedProvider([reply(calls=[call("research", task="t")]), slow])) as runtime:
        await runtime.submit(agent, "go", run_id="r", deps=ran)
        await under_way.wait()
        closing = asyncio.create_task(runtime.aclose())
        await asyncio.sleep(0)
        release.set()
        await closing
    assert ran == []
    provider = ScriptedProvider([reply("42"), reply("done")])
    async with ground.runtime(provider) as runtime:
        assert {row.run_id for row in await runtime.unfinished()} == {"r", "r/0.0"}
        result = await runtime.resume("r", agent, deps=ran)
    assert (result.text, ran, len(provider.requests)) == ("done", ["search q"], 2)


async def test_a_resumed_run_counts_what_the_children_of_its_children_used(ground: Ground) -> None:
    middle = al.Agent(name="middle", instructions="Ask.", tools=[research()])
    tool = al.delegate(middle, name="ask", description="Ask.", tools=["research"])
    agent = writer(tool, limits=al.LoopLimits(max_model_calls=3, max_depth=2))
    script = [reply(calls=[call("ask", task="t")]), reply(calls=[call("research", task="t")]), reply("deep")]
    async with ground.mortal(ScriptedProvider(script), at=10) as (dying, medium):  # the deepest one has its reply
        start = asyncio.create_task(dying.submit(agent, "go", run_id="r"))
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(provider := ScriptedProvider([])) as runtime:
            result = await runtime.resume("r", agent)
            assert (result.outcome, result.reason, provider.requests) == ("limit_reached", "max_model_calls", [])
            assert (await runtime.result("r/0.0/0.0")).text == "deep"
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def test_a_resumed_run_counts_what_its_children_used(ground: Ground) -> None:
    agent = writer(limits=al.LoopLimits(max_model_calls=3))
    async with ground.mortal(model(), at=10) as (dying, medium):  # the child has its last reply, and no end
        start = asyncio.create_task(dying.submit(agent, "go", run_id="r", deps=[]))
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = model()
        async with ground.runtime(provider) as runtime:
            used = sum(isinstance(fact, SendStarted) for fact in await ground.facts())
            result = await runtime.resume("r", agent, deps=[])
            assert used == 3
            assert (result.outcome, result.reason, provider.requests) == ("limit_reached", "max_model_calls", [])
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def test_closing_waits_for_a_childs_own_send_as_long_as_for_any(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that lives apart is paid for; the run above it waits with it (R143)."""
    monkeypatch.setattr("agentloop.runs.CLOSE_SECONDS", 0.01)
    under_way, release = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> Any:
        under_way.set()
        await release.wait()
        return reply("42")

    agent = writer()
    script = [reply(calls=[call("research", task="t")]), slow]
    async with ground.runtime(ScriptedProvider(script), settle_seconds=5) as runtime:
        start = asyncio.create_task(runtime.run(agent, "go", run_id="r", checkpoint=True))
        await under_way.wait()
        closing = asyncio.create_task(runtime.aclose())
        await asyncio.wait({start}, timeout=0.1)
        assert not start.done()  # longer than a tool is waited for
        release.set()
        await closing
        with pytest.raises(al.RunPaused):
            await start
    assert {fact.checkpoint for fact in await ground.facts() if isinstance(fact, OriginOpened)} == {True}
    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider) as runtime:
        assert [(item.kind, item.tool) for item in await runtime.unsettled()] == [("call", "research")]  # repeatable
        assert (await runtime.resume("r", agent)).text == "done"
    assert pairs_in(provider.requests[0]) == [("call_1", "42")]


async def test_recovery_points_need_every_tool_of_the_agent_to_state_its_recovery(ground: Ground) -> None:
    """(R129, R130)"""
    async with ground.runtime(model()) as runtime:
        with pytest.raises(al.InputError, match=r"got none for \['research.pay'\]"):
            await runtime.run(writer(research("search", "pay")), "go", checkpoint=True)


async def test_a_child_that_goes_on_elsewhere_is_waited_for_and_then_left_alone(ground: Ground) -> None:
    """Its owner died a little later than its caller's; or lives, and then the caller's run only waits."""
    agent, slept = writer(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        ground.clock.advance(seconds if len(slept) > 1 else seconds / 2)

    async with ground.mortal(model(), at=7) as (dying, medium):  # in the child's tool
        start = asyncio.create_task(dying.submit(agent, "go", run_id="r", deps=[]))
        await medium.dead.wait()
        ground.clock.advance(31)
        handle = ground.handle()
        await handle.open()
        await handle.acquire("r/0.0", "somebody", seconds=20)
        async with ground.runtime(model(), sleep=sleep) as runtime:
            with pytest.raises(al.UnsettledError, match=r"call 0\.0") as caught:
                await runtime.resume("r", agent, deps=[])
            assert isinstance(caught.value.__cause__, al.NotOwnerError)
            assert (await runtime.resume("r", agent, deps=[])).text == "It is 42."
        assert slept == [20.0, 10.0]
        await handle.close()
        medium.bury()
        await asyncio.wait({start})
        start.exception()


@pytest.mark.parametrize("ends", ["cancel", "decide"])
async def test_a_child_is_kept_until_its_caller_has_ended(ground: Ground, ends: str) -> None:
    """Else its call would be made anew, and what ran in it would run twice (R8)."""
    ran: list[str] = []

    @al.tool(approval="required")
    async def sign() -> str:
        """Sign."""
        return "signed"

    clerk = al.Agent(name="clerk", instructions="Read.", tools=[pay, sign])
    ask = al.delegate(clerk, name="ask", description="Ask.", tools=["pay", "sign"])
    script = [reply(calls=[call("ask", task="t")]), reply(calls=[call("pay"), call("sign", call_id="2")])]
    async with ground.runtime(ScriptedProvider([*script, reply("done"), reply("well")])) as runtime:
        result = await runtime.run(writer(ask), "go", run_id="r", deps=ran)
        if ends == "cancel":
            await runtime.cancel("r/0.0", author="Ann")
        else:
            assert isinstance(ask, Delegate)
            decisions: dict[str, al.Decision] = {result.waiting[0].ref: al.Approve()}
            await runtime.resume("r/0.0", ask.agent, deps=ran, decisions=decisions)
        for refused in (runtime.forget(ref="r/0.0"), runtime.redact("r/0.0", author="Ann")):
            with pytest.raises(al.ConflictError, match="expected the run that it was done for to have ended, 'r'"):
                await refused
        await runtime.resume("r", writer(ask), deps=ran)
        assert ran == ["pay"]
        await runtime.redact("r/0.0", author="Ann")
        await runtime.forget(ref="r")
        assert await ground.facts() == []


async def test_what_a_childs_tool_left_over_holds_back_its_caller_and_the_next_child() -> None:
    release, begun = asyncio.Event(), []

    @al.tool(timeout=0.01, grace=0.01)
    async def write() -> str:
        """Write."""
        begun.append("write")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "written"

    @al.tool
    async def own() -> str:
        """Do it."""
        begun.append("own")
        return "done"

    clerk = al.Agent(name="clerk", instructions="Read.", tools=[write])
    ask = al.delegate(clerk, name="ask", description="Ask.", tools=["write"])
    again = [reply(calls=[call("ask", task="t"), call("own", call_id="2")]), reply(calls=[call("write")]), reply("no")]
    provider = ScriptedProvider(
        [reply(calls=[call("ask", task="t")]), reply(calls=[call("write")]), reply("no"), *again]
    )
    async with al.Runtime(provider) as runtime:
        limits = al.LoopLimits(max_model_calls=6)
        await runtime.run(writer(ask, own, limits=limits), "go", run_id="r", conversation="c")
        assert [left.run_id for left in runtime.left_over] == ["r/0.0"]
        slots = {slot.call.name: slot.code for slot in runtime._store.book.turn("r").entries[1].slots}
        release.set()
    assert (begun, slots["own"]) == (["write"], "thread_busy")


async def test_children_of_one_reply_hold_each_other_back() -> None:
    release, left, begun = asyncio.Event(), asyncio.Event(), []

    @al.tool(timeout=0.01, grace=0.01)
    async def write() -> str:
        """Write."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "written"

    @al.tool
    async def wait() -> str:
        """Wait until the other one is left over."""
        await left.wait()
        return "waited"

    @al.tool
    async def own() -> str:
        """Do it."""
        begun.append("own")
        return "done"

    def says(request: al.ModelRequest) -> Any:
        task = request.messages[-1]
        if task == al.UserMessage(content="go"):
            asks = [call("ask", task="one"), call("ask", call_id="2", task="two")]
            return reply("end") if request.exchanges else reply(calls=asks)
        if task == al.UserMessage(content="one"):
            if request.exchanges:
                left.set()
                return reply("one is over")
            return reply(calls=[call("write")])
        wanted = ["wait", "own"][len(request.exchanges) :]
        return reply(calls=[call(wanted[0])]) if wanted else reply("two is over")

    clerk = al.Agent(name="clerk", instructions="Read.", tools=[write, wait, own])
    ask = al.delegate(clerk, name="ask", description="Ask.", tools=["write", "wait", "own"])
    async with al.Runtime(ScriptedProvider([says] * 9)) as runtime:
        limits = al.LoopLimits(max_parallel_tools=2)
        await runtime.run(writer(ask, limits=limits), "go", run_id="r")
        (slot,) = runtime._store.book.turn("r/0.1").entries[1].slots
        release.set()
    assert (begun, slot.call.name, slot.code) == ([], "own", "thread_busy")
