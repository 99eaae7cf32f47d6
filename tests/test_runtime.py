"""The host: opening, joining, following, forgetting and closing runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import agentloop as al
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, call, reply
from tests.runs import SlowBackend, check_end, facts_of, follow_all, on_backend, other_tasks

AGENT = al.Agent(name="a", instructions="Be brief.")


class Gate:
    """A tool that waits until it is let go, and says when it is reached."""

    def __init__(self) -> None:
        self.reached, self.release = asyncio.Event(), asyncio.Event()

        @al.tool(name="wait")
        async def wait() -> str:
            """Wait for the test."""
            self.reached.set()
            await self.release.wait()
            return "waited"

        self.agent = al.Agent(name="waiting", tools=[wait])
        self.script: list[Any] = [reply("First. ", calls=[call("wait")]), reply("Second.")]


# -- one way in, four doors


async def test_every_door_gives_the_same_answer() -> None:
    async with al.Runtime(ScriptedProvider([reply("hello")] * 4, deltas=2)) as runtime:
        assert (await runtime.run(AGENT, "go")).text == "hello"
        async with runtime.start(AGENT, "go") as run:
            assert (await run.result()).text == "hello"
        assert [text async for text in runtime.text(AGENT, "go")] == ["he", "ll", "o"]
        ref = await runtime.submit(AGENT, "go")
        assert (await runtime.result(ref)).text == "hello"


async def test_what_a_run_returns_is_the_final_text_alone() -> None:
    """(R124, R126)"""
    gate = Gate()
    gate.release.set()
    async with al.Runtime(ScriptedProvider(gate.script, deltas=1)) as runtime:
        async with runtime.start(gate.agent, "go") as run:
            shown = [event.text async for event in run if isinstance(event, al.TextPreview)]
            result = await run.result()
        assert "".join(shown) == "First. Second."
        assert result.text == result.require_text() == "Second."
        assert result == await runtime.result(result.ref)


async def test_a_result_says_what_was_spent_and_whose_it_is() -> None:
    gate = Gate()
    gate.release.set()
    script = [reply(calls=[call("wait")], usage=(10, 2)), reply("done", usage=(20, 3))]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        result = await runtime.run(gate.agent, "go", conversation="c", run_id="r")
    assert (result.ref, result.conversation, result.outcome, result.reason) == ("r", "c", "completed", "stop")
    assert (result.model_calls, result.tool_calls) == (2, 1)
    assert result.usage == al.Usage(input_tokens=30, output_tokens=5, total_tokens=35)


async def test_text_raises_after_the_last_piece_when_the_run_did_not_complete() -> None:
    async with al.Runtime(ScriptedProvider([reply("half a wo", finish="length")])) as runtime:
        seen = []
        with pytest.raises(al.OutcomeError, match="got incomplete"):  # noqa: PT012  # the loop is what is tested
            async for text in runtime.text(AGENT, "go"):
                seen.append(text)  # noqa: PERF401  # what came before the error is kept
        assert seen == ["half a wo"]


async def test_tools_get_the_deps_and_the_names_of_their_run() -> None:
    seen: list[Any] = []

    @al.tool
    async def look(ctx: al.ToolContext[dict[str, int]]) -> str:
        """Look around."""
        seen.append(
            (ctx.deps, ctx.run_id, ctx.agent, ctx.conversation, ctx.tool, ctx.call_id, ctx.effect_id, ctx.attempt)
        )
        return "ok"

    deps = {"x": 1}
    provider = ScriptedProvider([reply(calls=[call("look", call_id="k")]), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=[look]), "go", deps=deps, conversation="c", run_id="r")
    assert seen == [(deps, "r", "a", "c", "look", "k", "r/0.0", 1)]
    assert seen[0][0] is deps


async def test_progress_of_a_tool_is_told_in_its_place() -> None:
    @al.tool
    async def dig(ctx: al.ToolContext[None]) -> str:
        """Dig."""
        await ctx.progress("half way", 0.5)
        return "dug"

    async with al.Runtime(ScriptedProvider([reply(calls=[call("dig")]), reply("done")])) as runtime:
        await runtime.run(al.Agent(name="a", tools=[dig]), "go", run_id="r")
        events = await check_end(runtime, "r", "completed")
        (progress,) = (event for event in events if isinstance(event, al.ToolProgress))
        assert (progress.message, progress.fraction, progress.tool) == ("half way", 0.5, "dig")


async def test_a_user_turn_may_be_text_parts_or_a_message() -> None:
    parts = (al.TextPart(text="what is this?"), al.ImagePart(url="https://example.com/a.png"))
    provider = ScriptedProvider([reply("ok")] * 3)
    async with al.Runtime(provider) as runtime:
        await runtime.run(AGENT, "hi")
        await runtime.run(AGENT, parts)
        await runtime.run(AGENT, al.UserMessage(content="hi"))
    assert [request.messages[1] for request in provider.requests] == [
        al.UserMessage(content="hi"),
        al.UserMessage(content=parts),
        al.UserMessage(content="hi"),
    ]


# -- previews


async def test_only_body_text_is_previewed_and_reasoning_only_when_asked_for() -> None:
    """(R123, R125, R262, R266)"""
    secret = reply("body", calls=[call("nobody", key="arguments")], reasoning="thoughts", refusal=None)
    for asked in (False, True):
        sink = RecordingSink()
        async with al.Runtime(ScriptedProvider([secret, reply("end", reasoning="more")], deltas=3)) as runtime:
            await runtime.run(AGENT, "go", sink=sink, reasoning=asked, run_id="r")
            await check_end(runtime, "r", "completed")
        assert sink.text == "bodyend"
        thoughts = "".join(event.text for event in sink.of(al.ReasoningPreview))
        assert thoughts == ("thoughtsmore" if asked else "")
        assert [event.call_sequence for event in sink.of(al.ModelStart)] == [1, 2]
        assert {event.stage_id for event in sink.of(al.ModelStart)} == {"model"}
        for event in sink.events:
            assert "arguments" not in repr(event)


async def test_every_preview_says_where_it_stands_in_its_attempt() -> None:
    """(R267)"""
    sink = RecordingSink()
    async with al.Runtime(ScriptedProvider([reply("abcdefgh")], deltas=3)) as runtime:
        await runtime.run(AGENT, "go", sink=sink)
    previews = sink.of(al.TextPreview)
    assert [(event.offset, event.text) for event in previews] == [(0, "abc"), (3, "def"), (6, "gh")]
    assert {event.attempt_id for event in previews} == {sink.of(al.ModelStart)[0].attempt_id}


async def test_a_sink_gets_start_text_parse_and_end_and_the_reply_is_stored_before_its_end() -> None:
    """(R126, R261, R262, R263, R267)"""
    kept: list[tuple[str, int]] = []

    class Watching:
        async def emit(self, event: al.OutputEvent) -> None:
            kept.append((event.type, len(runtime._store.book.turn("r").entries)))

    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        await runtime.run(AGENT, "go", sink=Watching(), run_id="r")
    assert kept == [("model.start", 0), ("model.output", 0), ("model.parsed", 0), ("model.end", 1)]


# -- joining a run by its id


async def test_the_same_start_joins_the_run_that_goes_on_and_the_run_that_has_ended() -> None:
    """(R82)"""
    gate = Gate()
    provider = ScriptedProvider(gate.script)
    async with al.Runtime(provider) as runtime:
        first = await runtime.submit(gate.agent, "go", run_id="r", conversation="c")
        await gate.reached.wait()
        assert await runtime.submit(gate.agent, "go", run_id="r", conversation="c") == first == "r"
        joined = asyncio.create_task(runtime.run(gate.agent, "go", run_id="r", conversation="c"))
        gate.release.set()
        assert await joined == await runtime.result("r")
        async with runtime.start(gate.agent, "go", run_id="r", conversation="c") as run:
            events = [event.type async for event in run]
        assert events[0] == "run.started"
        assert events[-1] == "run.ended"
        await check_end(runtime, "r", "completed")
    assert len(provider.requests) == 2


@pytest.mark.parametrize("first", ["submit", "start", "run"])
async def test_one_of_several_who_joined_may_leave_without_ending_the_run_for_the_others(first: str) -> None:
    gate = Gate()
    provider = ScriptedProvider(gate.script)
    async with al.Runtime(provider) as runtime:

        async def stay() -> None:
            if first == "submit":
                await runtime.submit(gate.agent, "go", run_id="r")
            elif first == "run":
                await runtime.run(gate.agent, "go", run_id="r")
            else:
                async with runtime.start(gate.agent, "go", run_id="r") as run:
                    await run.result()

        staying = asyncio.create_task(stay())
        await gate.reached.wait()
        async with runtime.start(gate.agent, "go", run_id="r"):
            pass
        leaving = asyncio.create_task(runtime.run(gate.agent, "go", run_id="r"))
        await asyncio.wait({leaving}, timeout=0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.release.set()
        await staying
        assert (await runtime.result("r")).outcome == "completed"


async def test_the_last_of_several_who_joined_ends_the_run_by_leaving() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider(gate.script)) as runtime:
        async with runtime.start(gate.agent, "go", run_id="r"):
            await gate.reached.wait()
            async with runtime.start(gate.agent, "go", run_id="r"):
                pass
        await check_end(runtime, "r", "cancelled")


async def test_the_same_id_for_another_start_is_a_conflict() -> None:
    """(R83)"""
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        await runtime.run(AGENT, "go", run_id="r", conversation="c")
        other = al.Agent(name="a", instructions="Be long.")
        hot = al.Agent(name="a", instructions="Be brief.", options=al.ModelOptions(temperature=1.0))
        named = al.Agent(name="b", instructions="Be brief.")
        for agent, input, conversation in (
            (AGENT, "stop", "c"),
            (AGENT, "go", None),
            (AGENT, "go", "d"),
            (other, "go", "c"),
            (hot, "go", "c"),
            (named, "go", "c"),
        ):
            with pytest.raises(al.ConflictError, match="expected the input this run was started with"):
                await runtime.run(agent, input, run_id="r", conversation=conversation)


async def test_starts_with_one_id_at_the_same_moment_are_one_run() -> None:
    """(R82)"""
    provider = ScriptedProvider([reply("hi")])
    for backend in (None, SlowBackend()):
        provider = ScriptedProvider([reply("hi")])
        async with on_backend(backend, provider) as runtime:
            results = await asyncio.gather(*(runtime.run(AGENT, "go", run_id="r") for _ in range(5)))
            assert {result.text for result in results} == {"hi"}
            await check_end(runtime, "r", "completed")
        assert len(provider.requests) == 1


# -- following


async def test_a_reader_that_comes_back_with_the_last_id_it_saw_gets_the_rest_exactly() -> None:
    gate = Gate()
    gate.release.set()
    script = [reply("Once upon ", calls=[call("wait")], reasoning="hm hm"), reply("a time.", reasoning="more")]
    async with al.Runtime(ScriptedProvider(script, deltas=2)) as runtime:
        live: list[al.Event] = []
        async with runtime.start(gate.agent, "go", run_id="r", reasoning=True) as run:
            async for event in run:
                live.append(event)  # noqa: PERF401  # one by one, as they come

        def text_of(events: list[al.Event], kind: Any = al.TextPreview) -> str:
            return "".join(event.text for event in events if isinstance(event, kind))

        def others(events: list[al.Event]) -> list[str]:
            return [e.event_id for e in events if not isinstance(e, (al.TextPreview, al.ReasoningPreview))]

        assert text_of(live) == "Once upon a time."
        for seen in range(len(live) + 1):
            before, after = live[:seen], live[seen - 1].event_id if seen else None
            rest = [event async for event in runtime.follow("r", after=after)]
            assert others(before) + others(rest) == others(live)
            for kind in (al.TextPreview, al.ReasoningPreview):
                assert text_of(before, kind) + text_of(rest, kind) == text_of(live, kind)
            sequences = [event.sequence for event in rest]
            assert sequences == sorted(set(sequences))
            assert all(sequence > seen for sequence in sequences)


async def test_a_follower_that_comes_before_the_end_gets_each_event_as_it_comes() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider(gate.script)) as runtime:
        ref = await runtime.submit(gate.agent, "go")
        follower = runtime.follow(ref)
        seen = []
        async for event in follower:
            seen.append(event.type)
            if isinstance(event, al.ToolStarted):
                break
        gate.release.set()
        seen += [event.type async for event in follower]
        assert seen == [event.type for event in await follow_all(runtime, ref)]


async def test_a_follower_of_a_failed_run_gets_every_event_then_the_error() -> None:
    error = al.StreamRefused("truncated", 1, 2, "x", "y")
    async with al.Runtime(ScriptedProvider([broken(reply("half"), error)])) as runtime:
        ref = await runtime.submit(AGENT, "go")
        with pytest.raises(al.StreamRefused) as caught:
            await runtime.result(ref)
        assert caught.value is error
        follower = runtime.follow(ref)
        seen = []
        with pytest.raises(al.StreamRefused):  # noqa: PT012  # the loop is what is tested
            async for event in follower:
                seen.append(event.type)  # noqa: PERF401  # what came before the error is kept
        assert seen == ["run.started", "model.start", "model.end", "run.ended"]
        with pytest.raises(al.StreamRefused):
            await runtime.result(ref)  # as often as it is asked for


@pytest.mark.parametrize("after", ["x", "", "other:0000000001", "r:1", "r:-000000001", 7, b"r:0000000001"])
async def test_an_id_that_is_not_one_of_this_run_is_refused(after: Any) -> None:
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
        with pytest.raises(al.InputError, match="after: expected None or the id of an event of run 'r'"):
            runtime.follow("r", after=after)


async def test_a_reference_that_names_nothing_is_lost() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        for ask in (runtime.result, runtime.cancel):
            with pytest.raises(al.LostError, match="no run 'nobody' is kept"):
                await ask("nobody")
        with pytest.raises(al.LostError):
            runtime.follow("nobody")
        with pytest.raises(al.LostError):
            await runtime.forget(ref="nobody")
        with pytest.raises(al.LostError, match="no conversation 'nobody' is kept"):
            await runtime.forget(conversation="nobody")


# -- what is kept


async def test_the_newest_128_runs_that_nobody_named_are_kept() -> None:
    provider = ScriptedProvider([reply("hi")] * 400)
    async with al.Runtime(provider) as runtime:
        named = await runtime.submit(AGENT, "go", run_id="named")
        await runtime.run(AGENT, "go", conversation="c")
        refs = [(await runtime.run(AGENT, "go")).ref for _ in range(300)]
        assert (await runtime.result(named)).text == "hi"
        assert (await runtime.result(refs[-128])).text == "hi"
        with pytest.raises(al.LostError):
            await runtime.result(refs[-129])
        assert len(runtime._runs.live) == 130
        runs = {fact.run_id for fact in await facts_of(runtime)}
        assert len(runs) == 130
        size = runtime._store.book.size
        await runtime.run(AGENT, "go")
        assert runtime._store.book.size == size


async def test_a_run_that_nobody_named_is_kept_while_it_goes_on() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate.script[0], *[reply("hi")] * 200])) as runtime:
        ref = await runtime.submit(gate.agent, "go")
        await gate.reached.wait()
        for _ in range(150):
            await runtime.run(AGENT, "go")
        gate.release.set()
        assert (await runtime.result(ref)).text == "hi"


async def test_forgetting_drops_a_run_or_a_whole_conversation() -> None:
    async with al.Runtime(ScriptedProvider([reply("hi")] * 4)) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
        for _ in range(2):
            await runtime.run(AGENT, "go", conversation="c")
        await runtime.forget(ref="r")
        await runtime.forget(conversation="c")
        assert await facts_of(runtime) == []
        assert runtime._runs.live == {}
        assert runtime._store.book.size == 0
        with pytest.raises(al.LostError):
            await runtime.result("r")
        assert (await runtime.run(AGENT, "go", run_id="r")).text == "hi"  # the id is free again


async def test_what_goes_on_or_belongs_to_a_conversation_is_not_forgotten() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider([reply("hi"), *gate.script])) as runtime:
        ended = (await runtime.run(AGENT, "go", conversation="c")).ref
        running = await runtime.submit(gate.agent, "go", conversation="c")
        await gate.reached.wait()
        with pytest.raises(al.ConflictError, match="expected its whole conversation"):
            await runtime.forget(ref=ended)
        with pytest.raises(al.ConflictError, match="expected a run that ended"):
            await runtime.forget(ref=running)
        with pytest.raises(al.ConflictError, match="expected a run that ended"):
            await runtime.forget(conversation="c")
        gate.release.set()
        await runtime.result(running)
        await runtime.forget(conversation="c")


@pytest.mark.parametrize("names", [{}, {"conversation": "c", "ref": "r"}])
async def test_forgetting_takes_one_name(names: Any) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.InputError, match="expected either conversation= or ref="):
            await runtime.forget(**names)


# -- observers


async def test_observers_watch_every_run_and_touch_none() -> None:
    """(R261)"""
    good, bad = RecordingSink(), RecordingSink(fails_on=(al.Event, RuntimeError("no")))
    async with al.Runtime(ScriptedProvider([reply("hi")] * 2), observers=[bad, good]) as runtime:
        one = (await runtime.run(AGENT, "go")).ref
        two = (await runtime.run(AGENT, "go")).ref
    runs = [event.run_id for event in good.events]
    assert runs == [one] * 6 + [two] * 6
    assert [event.type for event in good.events[:6]] == [
        "run.started",
        "model.start",
        "model.output",
        "model.parsed",
        "model.end",
        "run.ended",
    ]
    assert bad.events == []


async def test_times_and_ids_come_from_the_host() -> None:
    clock = FakeClock(epoch_ms=1_000_000)
    ids = iter(f"id-{number}" for number in range(10))

    def answer(request: al.ModelRequest) -> Any:
        clock.advance(2)
        return reply("hi")

    provider = ScriptedProvider([answer])
    async with al.Runtime(provider, clock=clock, now_ms=clock.now_ms, new_id=lambda: next(ids)) as runtime:
        result = await runtime.run(AGENT, "go")
        events = await follow_all(runtime, result.ref)
    assert result.ref == "id-0"
    assert provider.attempts == ["id-2"]
    assert [event.occurred_at_ms for event in events] == [1_000_000] * 2 + [1_002_000] * 4
    (end,) = (event for event in events if isinstance(event, al.ModelEnd))
    assert end.duration_ms == 2_000
    assert [event.event_id for event in events] == [f"id-0:{number:010d}" for number in range(1, 7)]


# -- closing


async def test_closing_cancels_what_goes_on_all_at_once_and_every_run_records_its_end() -> None:
    gate = Gate()
    provider = ScriptedProvider([gate.script[0]] * 3)
    observer = RecordingSink()
    async with al.Runtime(provider, observers=[observer]) as runtime:
        refs = [await runtime.submit(gate.agent, "go") for _ in range(3)]
        unstarted = await runtime.submit(gate.agent, "go", run_id="late")
        while observer.types.count("tool.started") < 3:
            gate.reached.clear()
            await gate.reached.wait()
        await runtime.cancel(unstarted)
    for ref in refs:
        await check_end(runtime, ref, "cancelled")
        with pytest.raises(al.RunCancelled):
            await runtime.result(ref)
    assert observer.types.count("run.ended") == 4  # observers are closed after the runs
    assert not other_tasks()


async def test_closing_waits_for_a_run_that_is_being_opened() -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def hook(facts: Any) -> None:
        if type(facts[0]).__name__ == "OriginOpened":
            reached.set()
            await release.wait()

    provider = ScriptedProvider([reply("hi")])
    async with on_backend(SlowBackend(hook), provider) as runtime:
        opening = asyncio.create_task(runtime.submit(AGENT, "go", run_id="r"))
        await reached.wait()
        closing = asyncio.create_task(runtime.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()
        release.set()
        await closing
        assert await opening == "r"
        events = await check_end(runtime, "r", "cancelled")
        assert [event.type for event in events] == ["run.started", "run.ended"]
    assert provider.requests == []


async def test_a_cancel_does_not_cut_the_closing_short() -> None:
    closed = []

    class Slow(ScriptedProvider):
        async def aclose(self) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            closed.append(True)

    runtime = al.Runtime(Slow([]))
    await runtime.__aenter__()
    task = asyncio.create_task(runtime.aclose())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]
    assert not other_tasks()


async def test_closing_twice_at_once_is_closing_once() -> None:
    closed = []

    class Counting(ScriptedProvider):
        async def aclose(self) -> None:
            closed.append(True)

    async with al.Runtime(Counting([])) as runtime:
        await asyncio.gather(runtime.aclose(), runtime.aclose())
    await runtime.aclose()
    assert closed == [True]


async def test_everything_is_closed_though_one_part_fails() -> None:
    class Failing(ScriptedProvider):
        async def aclose(self) -> None:
            raise OSError("no")

    class Backend(SlowBackend):
        closed = False

        async def close(self) -> None:
            self.closed = True
            raise ValueError("no either")

    backend = Backend()
    with pytest.raises(OSError, match="no"):  # leaving the block is what is tested
        async with on_backend(backend, Failing([])):
            pass
    assert backend.closed


async def test_a_run_cannot_close_the_runtime_it_is_part_of() -> None:
    errors: list[al.InputError] = []

    @al.tool
    async def close(ctx: al.ToolContext[al.Runtime]) -> str:
        """Close the house from inside."""
        try:
            await ctx.deps.aclose()
        except al.InputError as error:
            errors.append(error)
        return "tried"

    async with al.Runtime(ScriptedProvider([reply(calls=[call("close")]), reply("done")])) as runtime:
        result = await runtime.run(al.Agent(name="a", tools=[close]), "go", deps=runtime)
    assert result.text == "done"
    assert "expected a caller outside its runs" in str(errors[0])


async def test_closing_waits_for_threads_and_says_how_many_are_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentloop.runs.CLOSE_SECONDS", 0.02)
    begun, release = threading.Event(), threading.Event()

    @al.tool
    def hold() -> None:
        """Hold a thread."""
        begun.set()
        release.wait(10)

    try:
        with caplog.at_level(logging.WARNING, "agentloop.runtime"):
            async with al.Runtime(ScriptedProvider([reply(calls=[call("hold")])])) as runtime:
                ref = await runtime.submit(al.Agent(name="a", tools=[hold]), "go")
                await asyncio.to_thread(begun.wait, 10)
        await check_end(runtime, ref, "cancelled")
        assert "1 tools that are left over have not ended" in caplog.text
    finally:
        release.set()


async def test_closing_does_not_wait_forever_for_an_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.runs.CLOSE_SECONDS", 0.02)
    stuck = RecordingSink(gate=asyncio.Event())
    async with al.Runtime(ScriptedProvider([reply("hi")]), observers=[stuck]) as runtime:
        assert (await runtime.run(AGENT, "go")).text == "hi"
    assert runtime._runs._observers is not None
    assert runtime._runs._observers.dropped == 5
    assert not other_tasks()


# -- used wrongly


async def test_a_runtime_is_used_inside_its_block_once() -> None:
    runtime = al.Runtime(ScriptedProvider([]))
    with pytest.raises(al.InputError, match=r"expected an open runtime \(async with\), got one that is new"):
        await runtime.run(AGENT, "go")
    async with runtime:
        with pytest.raises(al.InputError, match="expected to be entered once, got a runtime that is open"):
            await runtime.__aenter__()
    with pytest.raises(al.InputError, match="got one that is closed"):
        await runtime.submit(AGENT, "go")
    with pytest.raises(al.InputError, match="got a runtime that is closed"):
        await runtime.__aenter__()


async def test_a_run_is_used_inside_its_block_once() -> None:
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        run = runtime.start(AGENT, "go")
        for use in (lambda: run.ref, lambda: aiter(run)):
            with pytest.raises(al.InputError, match="got a run that was not entered"):
                use()
        for ask in (run.result, run.cancel):
            with pytest.raises(al.InputError, match="got a run that was not entered"):
                await ask()
        async with run:
            with pytest.raises(al.InputError, match="expected to be entered once, got a second time"):
                await run.__aenter__()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agent": "notes"}, "expected an Agent, got str"),
        ({"input": 7}, "input: expected str, UserMessage or a tuple of parts, got int"),
        ({"input": ["hi"]}, "input: expected str, UserMessage or a tuple of parts, got list"),
        ({"input": ("hi",)}, "expected TextPart or ImagePart, got str"),
        ({"input": "\ud800"}, "surrogate"),
        ({"conversation": 7}, "conversation: expected a string of 1 to 128 characters, got int"),
        ({"conversation": ""}, "conversation: expected a string of 1 to 128 characters, got 0 characters"),
        ({"run_id": "x" * 129}, "run_id: expected a string of 1 to 128 characters, got 129 characters"),
        ({"run_id": "\udfff"}, "run_id: expected text that UTF-8 can encode"),
        ({"sink": print}, r"sink: expected an object with an async emit\(event\), got builtin_function_or_method"),
        ({"sink": RecordingSink}, r"an async emit\(event\), got the class RecordingSink"),
        ({"reasoning": 1}, "reasoning: expected a bool, got int"),
    ],
)
async def test_a_wrong_value_is_refused_by_name_and_starts_nothing(fields: dict[str, Any], message: str) -> None:
    """(R47)"""
    provider = ScriptedProvider([])
    async with al.Runtime(provider) as runtime:
        given = {"agent": AGENT, "input": "go", **fields}
        with pytest.raises(al.InputError, match=message):
            await runtime.run(given.pop("agent"), given.pop("input"), **given)
        assert await facts_of(runtime) == []
        assert not runtime._runs._gate._held, "closing would wait for it"


async def test_an_option_that_does_not_exist_is_refused() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(TypeError, match=r"expected the options deps, .*, got 'dep'"):
            await runtime.run(AGENT, "go", dep=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"provider": "https://example.com"}, "Runtime.provider: expected a Provider, got str"),
        ({"store": 7}, "store: expected None, a path, a postgresql:// URL or a Backend, got int"),
        ({"limits": al.LoopLimits()}, "Runtime.limits: expected BookLimits, got LoopLimits"),
        ({"lease_seconds": 0}, "Runtime.lease_seconds: expected seconds above 0, got 0"),
        ({"observers": [print]}, r"Runtime.observers\[0\]: expected an object with an async observe"),
        ({"observers": [RecordingSink]}, r"Runtime.observers\[0\]: .*, got the class RecordingSink"),
        ({"observers": RecordingSink()}, "Runtime.observers: expected a list of observers, got RecordingSink"),
    ],
)
def test_a_runtime_refuses_wrong_parts_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.Runtime(**{"provider": ScriptedProvider([]), **fields})


async def test_a_runtime_can_be_opened_in_each_loop_it_is_made_in() -> None:
    """Nothing of it is bound to a loop before it is entered."""
    runtime = al.Runtime(ScriptedProvider([reply("hi")]))

    def other_loop() -> str:
        async def main() -> str:
            async with runtime:
                return (await runtime.run(AGENT, "go")).text

        return asyncio.run(main())

    assert await asyncio.to_thread(other_loop) == "hi"
