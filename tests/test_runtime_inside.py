"""A tool, a sink or an observer calls the runtime it is part of: nothing ever waits for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider, call, reply
from tests.runs import check_end, other_tasks


class Sink:
    """Does something at the first preview."""

    def __init__(self, act: Any) -> None:
        self.act = act

    async def emit(self, event: al.Event) -> None:
        if isinstance(event, al.TextPreview):
            await self.act()


class Watch:
    """Does something at the first event, and keeps what came of it."""

    def __init__(self, act: Any) -> None:
        self.act: Any = act
        self.error: BaseException | None = None

    async def observe(self, event: al.Event) -> None:
        act, self.act = self.act, None
        if act is not None:
            try:
                await act()
            except BaseException as error:
                self.error = error
                raise


def agent(*tools: al.Tool) -> al.Agent:
    return al.Agent(name="a", tools=tools)


async def join(runtime: al.Runtime) -> Any:
    return await runtime.run(agent(wait_for_itself), "go", run_id="r", deps=None)


async def look_up(runtime: al.Runtime) -> Any:
    return await runtime.result("r")


async def enter(runtime: al.Runtime) -> Any:
    async with runtime.start(agent(wait_for_itself), "go", run_id="r") as run:
        return await run.result()


@al.tool(timeout=None)
async def wait_for_itself(ctx: al.ToolContext[Any]) -> str:
    """Wait for the end of the run that it is part of."""
    try:
        await ctx.deps[1](ctx.deps[0])
    except al.InputError as error:
        return str(error)
    return "waited"


@pytest.mark.parametrize("way", [join, look_up, enter])
async def test_a_tool_cannot_wait_for_the_end_of_its_own_run(way: Any) -> None:
    """It would wait for itself, here without a clock that ends it."""
    provider = ScriptedProvider([reply(calls=[call("wait_for_itself")]), reply("done")])
    async with asyncio.timeout(5), al.Runtime(provider) as runtime:
        result = await runtime.run(agent(wait_for_itself), "go", run_id="r", deps=(runtime, way))
        assert result.text == "done"
        (exchange,) = provider.requests[1].exchanges
        assert "expected a caller outside the run" in exchange.feedback[0].text
        await check_end(runtime, "r", "completed")


async def test_a_sink_cannot_wait_for_the_end_of_its_own_run() -> None:
    async with asyncio.timeout(5), al.Runtime(ScriptedProvider([reply("hello")])) as runtime:
        with pytest.raises(al.InputError, match="expected a caller outside the run"):
            await runtime.run(agent(), "go", run_id="r", sink=Sink(lambda: runtime.result("r")))
        await check_end(runtime, "r", "failed", "input")


async def test_a_tool_may_begin_another_run_and_read_its_end() -> None:
    @al.tool
    async def ask(ctx: al.ToolContext[al.Runtime]) -> str:
        """Ask another agent."""
        return (await ctx.deps.run(al.Agent(name="child"), "child", run_id="inner")).require_text()

    provider = ScriptedProvider([reply(calls=[call("ask")]), reply("inner words"), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent(ask), "go", run_id="r", deps=runtime)
        assert provider.requests[2].exchanges[0].feedback[0].text == "inner words"
        await check_end(runtime, "r", "completed")
        await check_end(runtime, "inner", "completed")


@pytest.mark.parametrize("clock", [False, True])
async def test_a_tool_that_waits_for_a_task_that_closes_the_runtime_does_not_stop_the_closing(clock: bool) -> None:
    """The closing waits for the run, the run for the tool, the tool for the task: the task gives way."""

    @al.tool(timeout=None)
    async def close(ctx: al.ToolContext[al.Runtime]) -> None:
        """Close the house through a task."""
        closing = asyncio.create_task(ctx.deps.aclose())
        await (asyncio.wait_for(closing, 60) if clock else closing)

    async with asyncio.timeout(5):
        async with al.Runtime(ScriptedProvider([reply(calls=[call("close")])])) as runtime:
            with pytest.raises(al.RunCancelled):
                await runtime.run(agent(close), "go", run_id="r", deps=runtime)
        await check_end(runtime, "r", "cancelled")
    assert not other_tasks()


async def test_an_observer_that_closes_the_runtime_does_not_stop_the_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.runs.CLOSE_SECONDS", 0.02)
    watch = Watch(lambda: runtime.aclose())  # noqa: PLW0108  # there is no runtime yet
    async with asyncio.timeout(5):
        async with al.Runtime(ScriptedProvider([reply("hello")]), observers=[watch]) as runtime:
            await asyncio.wait([asyncio.ensure_future(runtime.run(agent(), "go"))])
        assert runtime._closing is not None
        assert runtime._closing.done()
    assert isinstance(watch.error, asyncio.CancelledError)
    assert not other_tasks()


async def test_a_cancel_from_outside_still_waits_for_the_whole_closing() -> None:
    """Of another runtime's run too: only its own closing lets it go."""
    begun, release = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def aclose(self) -> None:
            begun.set()
            await release.wait()

    inner = al.Runtime(Slow([]))

    @al.tool(timeout=None)
    async def close() -> None:
        """Close the other house."""
        await inner.aclose()

    async with inner, al.Runtime(ScriptedProvider([reply(calls=[call("close")])])) as runtime:
        ref = await runtime.submit(agent(close), "go")
        await begun.wait()
        ending = asyncio.create_task(runtime.cancel(ref))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not ending.done()
        release.set()
        await ending


async def test_a_runtime_is_of_one_event_loop() -> None:
    runtime = al.Runtime(ScriptedProvider([reply("hello")]))
    async with runtime:
        for act in (lambda: runtime.run(agent(), "go"), runtime.aclose):
            with pytest.raises(al.InputError, match="expected the event loop it was entered in"):
                await asyncio.to_thread(lambda act=act: asyncio.run(act()))
        assert (await runtime.run(agent(), "go")).text == "hello"


async def test_progress_told_after_its_tool_has_ended_is_not_told() -> None:
    """A task or a thread that outlives its call says nothing in the middle of a model call, or after the last event."""
    kept: list[al.ToolContext[Any]] = []

    @al.tool
    async def dig(ctx: al.ToolContext[Any]) -> str:
        """Dig."""
        await ctx.progress("in time")
        kept.append(ctx)
        return "dug"

    async def late(request: al.ModelRequest) -> Any:
        await kept[0].progress("too late")
        return reply("done")

    async with al.Runtime(ScriptedProvider([reply(calls=[call("dig")]), late])) as runtime:
        await runtime.run(agent(dig), "go", run_id="r")
        await kept[0].progress("much too late")
        events = await check_end(runtime, "r", "completed")
        assert [event.message for event in events if isinstance(event, al.ToolProgress)] == ["in time"]
