"""What a user says to a run that goes on: where the model reads it, which ends it keeps off, and who may say it."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.exchange import Fact, OriginOpened, ReplyTaken, RunClosed, SendStarted, SlotMoved, Steered, StopAsked
from agentloop.messages import ModelExchange, UserMessage
from agentloop.persistence import Lease
from agentloop.persistence.snapshot import read_snapshot, write_snapshot
from agentloop.testing import RecordingSink, ReplayServer, ScriptedProvider, call, reply
from agentloop.testing.replay_server import Answer
from tests.mortal import Ground, SharedMemory
from tests.runs import SlowBackend, body_of, check_end, facts_of, follow_all, on_backend, turn_of

RECORDINGS = Path(__file__).parent / "recordings"


class Hands:
    """Deps: what each run of the tool does meanwhile, in order."""

    def __init__(self, *acts: Callable[[], Awaitable[object]]) -> None:
        self.acts = list(acts)
        self.ran = 0


@al.tool(recovery="settle")
async def work(ctx: al.ToolContext[Hands]) -> str:
    """Work for a while."""
    ctx.deps.ran += 1
    if ctx.deps.acts:
        await ctx.deps.acts.pop(0)()
    return "done"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[work])
CHAT = al.Agent(name="chat")
WORK = reply(calls=[call("work")])


def said(request: al.ModelRequest) -> list[str]:
    """What a model reads, in order: ``=text`` is a reply, ``=work`` one that called the tool."""
    found = []
    for message in (*request.messages, *request.exchanges):
        if isinstance(message, ModelExchange):
            found.append("=" + (message.reply.text or ",".join(item.name for item in message.reply.calls)))
        else:
            found.append(str(message.content))
    return found


def prefixes_hold(requests: Sequence[al.ModelRequest]) -> None:
    """Each request without its closing brackets begins the next one, so prompt caches hold."""
    bodies = [body_of(request) for request in requests]
    for before, after in itertools.pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


class Gate:
    """An answer of a model that waits: ``asked`` is set when its request has come, ``go`` lets it answer."""

    def __init__(self, answer: Any) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self._answer = answer

    async def __call__(self, request: al.ModelRequest) -> Any:
        self.asked.set()
        await self.go.wait()
        return self._answer


# -- where it is read


async def test_what_is_said_while_a_tool_runs_is_read_after_its_result() -> None:
    provider = ScriptedProvider([WORK, WORK, reply("fine")])
    async with al.Runtime(provider) as runtime, _started(runtime, deps=Hands(lambda: run.steer("faster"))) as run:
        result = await run.result()
    assert (result.outcome, result.text, result.model_calls, result.tool_calls) == ("completed", "fine", 3, 2)
    assert [said(request) for request in provider.requests] == [
        ["Be brief.", "go"],
        ["Be brief.", "go", "=work", "faster"],
        ["Be brief.", "go", "=work", "faster", "=work"],
    ]
    prefixes_hold(provider.requests)


def _started(runtime: al.Runtime, **options: Any) -> al.Run[None]:
    return runtime.start(AGENT, "go", **options)


async def test_what_is_said_while_the_final_reply_comes_is_answered_by_one_more() -> None:
    gate = Gate(reply("first"))
    provider = ScriptedProvider([gate, reply("second")])
    async with al.Runtime(provider) as runtime, runtime.start(CHAT, "go", conversation="c") as run:
        await gate.asked.wait()
        await run.steer("and then?", author="Ada")
        await run.steer((al.TextPart(text="see"),))
        await run.steer(UserMessage(content="last"))
        gate.go.set()
        result = await run.result()
        events = await check_end(runtime, run.ref, "completed", "stop")
        assert (result.text, result.model_calls) == ("second", 2)
        told = [event for event in events if isinstance(event, al.RunSteered)]
        assert [(event.author, event.text_chars, event.images) for event in told] == [
            ("Ada", 9, 0),
            (None, 3, 0),
            (None, 4, 0),
        ]
        facts = [fact for fact in await facts_of(runtime) if isinstance(fact, Steered)]
        assert [fact.author for fact in facts] == ["Ada", None, None]
        assert [type(event).__name__ for event in events if event.type == "model.start"] == ["ModelStart"] * 2
        history = await runtime.history("c")
        assert [m.content for m in history if isinstance(m, UserMessage)] == [
            "go",
            "and then?",
            (al.TextPart(text="see"),),
            "last",
        ]
        assert [type(m) for m in history] == [UserMessage, ModelExchange, *[UserMessage] * 3, ModelExchange]
    assert provider.requests[1].messages == history[:-1]
    prefixes_hold(provider.requests)


async def test_an_image_is_told_by_number_only() -> None:
    gate = Gate(reply("first"))
    provider = ScriptedProvider([gate, reply("second")])
    async with al.Runtime(provider) as runtime, runtime.start(CHAT, "go") as run:
        await gate.asked.wait()
        await run.steer((al.TextPart(text="two"), al.ImagePart(url="https://a.example/b.png")))
        gate.go.set()
        await run.result()
        (told,) = [event for event in await follow_all(runtime, run.ref) if isinstance(event, al.RunSteered)]
    assert (told.text_chars, told.images) == (3, 1)


async def test_a_later_turn_and_a_branch_read_it_where_it_was_said() -> None:
    provider = ScriptedProvider([WORK, reply("one"), reply("two"), reply("aside")])
    async with al.Runtime(provider) as runtime:
        deps = Hands(lambda: runtime.steer("r1", "more"))
        await runtime.run(AGENT, "go", conversation="c", run_id="r1", deps=deps)
        await runtime.run(AGENT, "again", conversation="c")
        first, second, _ = await runtime.exchanges("c")
        await runtime.branch("c", first, "before")
        await runtime.run(AGENT, "hm", conversation="before")
        assert [str(m.content) for m in await runtime.history("c", second) if isinstance(m, UserMessage)] == [
            "go",
            "more",
        ]
    assert said(provider.requests[2]) == ["Be brief.", "go", "=work", "more", "=one", "again"]
    assert said(provider.requests[3]) == ["Be brief.", "go", "=work", "hm"]
    prefixes_hold(provider.requests[:3])


async def test_a_real_server_gets_it_between_the_messages() -> None:
    async with ReplayServer() as server:
        calls, text = ((RECORDINGS / f"{name}.sse").read_bytes() for name in ("notes-demo-1", "text"))
        server.script(Answer(body=calls), Answer(body=text))
        provider = al.ChatCompletions(server.url, model="m")
        async with al.Runtime(provider) as runtime:

            @al.tool(name="read_note")
            async def read(id: str) -> str:
                """Read a note."""
                await runtime.steer("r", "Only the title.")
                return "a note"

            agent = al.Agent(name="a", tools=[read])
            await runtime.run(agent, "Read it.", run_id="r")
        first, second = (json.loads(request.body) for request in server.requests)
    roles = [message["role"] for message in second["messages"]]
    tools = len(second["messages"][1]["tool_calls"])
    assert roles == ["user", "assistant", *["tool"] * tools, "user"]
    assert second["messages"][-1] == {"role": "user", "content": "Only the title."}
    assert server.requests[1].body.startswith(server.requests[0].body.removesuffix(b"]}"))
    assert first["messages"] == second["messages"][:1]


async def test_a_refused_request_is_repeated_as_it_was_and_what_was_said_meanwhile_comes_after() -> None:
    """(R114)"""
    busy = al.HTTPStatusError("busy", status=429)
    provider = ScriptedProvider([busy, reply("first"), reply("second")])

    async def rest(seconds: float) -> None:
        await runtime.steer("r", "still there?")

    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=rest) as runtime:
        result = await runtime.run(CHAT, "go", run_id="r")
    assert (result.text, result.model_calls) == ("second", 3)
    assert body_of(provider.requests[0]) == body_of(provider.requests[1])
    assert said(provider.requests[2]) == ["go", "=first", "still there?"]


# -- ends


async def test_where_no_model_call_is_left_the_run_ends_at_that_limit() -> None:
    gate = Gate(reply("first"))
    agent = al.Agent(name="a", limits=al.LoopLimits(max_model_calls=1))
    provider = ScriptedProvider([gate, reply("next")])
    async with al.Runtime(provider) as runtime:
        async with runtime.start(agent, "go", conversation="c") as run:
            await gate.asked.wait()
            await run.steer("more")
            gate.go.set()
            result = await run.result()
        assert (result.outcome, result.reason, result.text) == ("limit_reached", "max_model_calls", "first")
        await check_end(runtime, run.ref, "limit_reached", "max_model_calls")
        await runtime.run(agent, "again", conversation="c")
    assert said(provider.requests[1]) == ["go", "=first", "again"]


@pytest.mark.parametrize("cut", ["length", "content_filter", "stop"])
async def test_a_reply_that_is_cut_off_or_refused_is_no_end_either(cut: str) -> None:
    answer = reply(
        "half", finish=cut, refusal="no" if cut == "stop" else None, calls=[call("work")] if cut == "length" else []
    )
    gate, hands = Gate(answer), Hands()
    provider = ScriptedProvider([gate, reply("whole")])
    async with al.Runtime(provider) as runtime, _started(runtime, deps=hands) as run:
        await gate.asked.wait()
        await run.steer("go on")
        gate.go.set()
        assert (await run.result()).text == "whole"
        await check_end(runtime, run.ref, "completed")
    assert hands.ran == 0
    assert said(provider.requests[1]) == ["Be brief.", "go", "=half", "go on"]


async def test_a_message_that_does_not_fit_brings_the_run_to_its_limit() -> None:
    agent = al.Agent(name="a", tools=[work], limits=al.LoopLimits(request_bytes=4096, feedback_bytes=256))
    provider = ScriptedProvider([WORK])
    async with al.Runtime(provider) as runtime:
        deps = Hands(lambda: runtime.steer("r", "x" * 4096))
        result = await runtime.run(agent, "go", run_id="r", deps=deps)
        assert (result.outcome, result.reason) == ("limit_reached", "request_bytes")
        await check_end(runtime, "r", "limit_reached", "request_bytes")


async def test_no_tool_runs_whose_answer_would_not_fit_beside_what_was_said() -> None:
    gate, hands = Gate(WORK), Hands()
    agent = al.Agent(name="a", tools=[work], limits=al.LoopLimits(request_bytes=4096, feedback_bytes=256))
    async with al.Runtime(ScriptedProvider([gate])) as runtime, runtime.start(agent, "go", deps=hands) as run:
        await gate.asked.wait()
        await run.steer("x" * 4096)
        gate.go.set()
        result = await run.result()
    assert (result.outcome, result.reason, hands.ran) == ("limit_reached", "request_bytes", 0)


class Ticket(msgspec.Struct, frozen=True):
    title: str


@pytest.mark.parametrize(("dialect", "given"), [("openai", None), ("groq", "function")])
async def test_a_value_that_was_given_before_the_message_is_asked_for_again(dialect: str, given: str | None) -> None:
    agent = al.Agent(name="clerk", output=Ticket, tools=[work])
    asked, go = asyncio.Event(), asyncio.Event()

    def answer(title: str) -> Callable[[al.ModelRequest], Any]:
        def made(request: al.ModelRequest) -> Any:
            if given is None:
                return reply(json.dumps({"title": title}))
            (output,) = [spec.name for spec in request.tools if spec.name != "work"]
            return reply(calls=[call(output, title=title)])

        return made

    async def first(request: al.ModelRequest) -> Any:
        asked.set()
        await go.wait()
        return answer("draft")(request)

    provider = ScriptedProvider([first, answer("final")], dialect=dialect)
    async with al.Runtime(provider) as runtime, runtime.start(agent, "go", deps=Hands()) as run:
        await asked.wait()
        await run.steer("shorter")
        go.set()
        result = await run.result()
    assert (result.outcome, result.value, result.model_calls) == ("completed", Ticket("final"), 2)
    assert said(provider.requests[1])[-1] == "shorter"


# -- stopping


async def test_a_stop_lets_the_model_call_and_its_tools_finish() -> None:
    gate, hands = Gate(reply("On it.", calls=[call("work"), call("work")])), Hands()
    provider = ScriptedProvider([gate, reply("next")])
    async with al.Runtime(provider) as runtime:
        async with _started(runtime, deps=hands, conversation="c") as run:
            await gate.asked.wait()
            await run.stop_after_current(author="Ada")
            await run.stop_after_current(author="Bob")
            gate.go.set()
            result = await run.result()
            await run.stop_after_current()  # harmless after the end
        assert (result.outcome, result.reason, result.text) == ("incomplete", "stopped", "On it.")
        assert (result.model_calls, result.tool_calls, hands.ran) == (1, 2, 2)
        events = await check_end(runtime, run.ref, "incomplete", "stopped")
        assert [event.author for event in events if isinstance(event, al.RunStopping)] == ["Ada"]
        assert [fact.author for fact in await facts_of(runtime) if isinstance(fact, StopAsked)] == ["Ada"]
        await runtime.run(AGENT, "again", conversation="c", deps=hands)
    assert said(provider.requests[1]) == ["Be brief.", "go", "=On it.", "again"]


async def test_the_tools_of_a_stopped_run_need_no_further_model_call() -> None:
    """Its answers are for the next turn, so no limit on a next request skips them."""
    gate, hands = Gate(WORK), Hands()
    agent = al.Agent(name="a", tools=[work], limits=al.LoopLimits(max_model_calls=1))
    async with al.Runtime(ScriptedProvider([gate])) as runtime, runtime.start(agent, "go", deps=hands) as run:
        await gate.asked.wait()
        await run.stop_after_current()
        gate.go.set()
        result = await run.result()
    assert (result.outcome, result.reason, hands.ran) == ("incomplete", "stopped", 1)


async def test_a_final_reply_completes_a_stopped_run_whatever_was_said_before() -> None:
    gate = Gate(reply("first"))
    provider = ScriptedProvider([gate])
    async with al.Runtime(provider) as runtime, runtime.start(CHAT, "go") as run:
        await gate.asked.wait()
        await run.steer("more")
        await run.stop_after_current()
        with pytest.raises(al.ConflictError, match="expected a run that was not asked to stop"):
            await run.steer("even more")
        gate.go.set()
        result = await run.result()
        assert (result.outcome, result.reason, result.text) == ("completed", "stop", "first")
        await check_end(runtime, run.ref, "completed", "stop")


async def test_a_stop_of_a_run_that_was_said_more_to_ends_it_after_its_tools() -> None:
    provider = ScriptedProvider([WORK])
    async with al.Runtime(provider) as runtime:

        async def both() -> None:
            await runtime.steer("r", "more")
            await runtime.stop_after_current("r")

        result = await runtime.run(AGENT, "go", run_id="r", deps=Hands(both))
    assert (result.outcome, result.reason, result.model_calls, result.tool_calls) == ("incomplete", "stopped", 1, 1)


async def test_a_refused_request_is_repeated_also_after_a_stop() -> None:
    provider = ScriptedProvider([al.HTTPStatusError("busy", status=429), reply("first")])

    async def rest(seconds: float) -> None:
        await runtime.stop_after_current("r")

    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=rest) as runtime:
        result = await runtime.run(CHAT, "go", run_id="r")
    assert (result.outcome, result.text) == ("completed", "first")


# -- races


class Racing(SlowBackend):
    """Lets something be said while facts of a kind are written: it is stored just after them.

    Whatever the run's driver does next comes after that.
    """

    def __init__(self, kind: type[Fact], act: Callable[[], Awaitable[object]], *, state: str | None = None) -> None:  # type: ignore[valid-type]
        super().__init__(self._when)
        self.kind, self.act, self.state = kind, act, state
        self.acting: asyncio.Task[Any] | None = None

    async def _when(self, facts: Sequence[Fact]) -> None:
        hit = any(type(fact) is self.kind and self.state in (None, getattr(fact, "state", None)) for fact in facts)
        if self.acting is None and hit:
            self.acting = asyncio.ensure_future(self.act())
            for _ in range(5):
                await asyncio.sleep(0)


async def test_what_is_said_just_before_the_end_keeps_the_end_off() -> None:
    provider = ScriptedProvider([reply("first"), reply("second")])
    backend = Racing(ReplyTaken, lambda: runtime.steer("r", "wait"))
    async with on_backend(backend, provider) as runtime:
        result = await runtime.run(CHAT, "go", run_id="r")
        assert (result.text, said(provider.requests[1])) == ("second", ["go", "=first", "wait"])
        await check_end(runtime, "r", "completed", "stop")
        kinds = [type(fact) for fact in await facts_of(runtime)]
    assert kinds[kinds.index(ReplyTaken) + 1] is Steered


async def test_what_is_said_just_after_the_end_is_refused() -> None:
    backend = Racing(RunClosed, lambda: runtime.steer("r", "wait"))
    async with on_backend(backend, ScriptedProvider([reply("first")])) as runtime:
        assert (await runtime.run(CHAT, "go", run_id="r")).text == "first"
        assert backend.acting is not None
        with pytest.raises(al.ConflictError, match="expected a run that has not ended, got one that completed"):
            await backend.acting
        assert not [fact for fact in await facts_of(runtime) if isinstance(fact, Steered)]


async def test_what_is_said_just_before_a_request_leaves_is_in_it() -> None:
    provider = ScriptedProvider([WORK, reply("fine")])
    backend = Racing(SlotMoved, lambda: runtime.steer("r", "wait"), state="done")
    async with on_backend(backend, provider) as runtime:
        result = await runtime.run(AGENT, "go", run_id="r", deps=Hands())
        assert said(provider.requests[1]) == ["Be brief.", "go", "=work", "wait"]
        assert (result.model_calls, len(provider.requests)) == (2, 2)
        kinds = [type(fact) for fact in await facts_of(runtime)]
        await check_end(runtime, "r", "completed")
    assert kinds[kinds.index(Steered) + 1] is SendStarted


async def test_what_is_said_just_before_a_request_leaves_is_weighed_with_it() -> None:
    agent = al.Agent(name="a", tools=[work], limits=al.LoopLimits(request_bytes=4096, feedback_bytes=256))
    backend = Racing(SlotMoved, lambda: runtime.steer("r", "x" * 4096), state="done")
    async with on_backend(backend, ScriptedProvider([WORK])) as runtime:
        result = await runtime.run(agent, "go", run_id="r", deps=Hands())
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "request_bytes", 1)
        events = await check_end(runtime, "r", "limit_reached", "request_bytes")
    assert [event.type for event in events[-3:]] == ["run.steered", "runtime.rejected", "run.ended"]


async def test_a_stop_just_before_a_request_leaves_keeps_it_from_leaving() -> None:
    provider = ScriptedProvider([WORK])
    backend = Racing(SlotMoved, lambda: runtime.stop_after_current("r"), state="done")
    async with on_backend(backend, provider) as runtime:
        result = await runtime.run(AGENT, "go", run_id="r", deps=Hands())
        assert (result.outcome, result.reason, result.model_calls) == ("incomplete", "stopped", 1)
        await check_end(runtime, "r", "incomplete", "stopped")


async def test_a_cancel_that_meets_the_end_which_was_kept_off_ends_the_run() -> None:
    async def cancel(facts: Sequence[Fact]) -> None:
        await Racing._when(backend, facts)
        if any(isinstance(fact, Steered) for fact in facts):
            runtime._runs.live["r"].request_stop()  # while the driver waits to store the end

    backend = Racing(ReplyTaken, lambda: runtime.steer("r", "wait"))
    backend.hook = cancel
    async with on_backend(backend, ScriptedProvider([reply("first")])) as runtime:
        with pytest.raises(al.RunCancelled):
            await runtime.run(CHAT, "go", run_id="r")
        await check_end(runtime, "r", "cancelled", "cancelled")
        assert runtime._store.fault is None


async def test_who_is_cancelled_while_it_is_written_has_said_it_and_stops_no_store() -> None:
    gate = Gate(reply("first"))
    provider, backend = ScriptedProvider([gate, reply("second")]), SlowBackend()
    async with on_backend(backend, provider) as runtime, runtime.start(CHAT, "go") as run:
        await gate.asked.wait()
        speaker = asyncio.ensure_future(run.steer("more"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        speaker.cancel()
        await asyncio.wait({speaker})
        gate.go.set()
        assert (await run.result()).text == "second"
        assert runtime._store.fault is None
    assert backend.log == ["whole"] * len(backend.log)


@pytest.mark.parametrize("slow", [True, False])
async def test_whenever_it_is_said_it_is_read_or_refused(slow: bool) -> None:
    """At each turn of the event loop from the beginning of a run to after its end."""
    refusals = []
    for ticks in range(80):
        provider = ScriptedProvider([WORK, reply("one"), reply("two")])
        async with on_backend(SlowBackend() if slow else None, provider) as runtime:
            run = runtime.start(AGENT, "go", deps=Hands(), conversation="c")
            async with run:
                for _ in range(ticks):
                    await asyncio.sleep(0)
                try:
                    await run.steer("wait")
                except al.ConflictError:
                    refusals.append(ticks)
                result = await run.result()
                events = await check_end(runtime, run.ref, "completed", "stop")
            heard = ticks not in refusals
            assert ("wait" in said(provider.requests[-1])) == heard
            assert [event.type for event in events].count("run.steered") == heard
            assert (result.text == "two") == (len(provider.requests) == 3)
            assert UserMessage(content="wait") in await runtime.history("c") or not heard
            prefixes_hold(provider.requests)
    assert refusals == list(range(refusals[0], 80))  # from the end on, and not before
    assert refusals[0] > (20 if slow else 0)


@pytest.mark.parametrize("slow", [True, False])
async def test_whenever_a_stop_is_asked_for_the_run_ends_in_good_order(slow: bool) -> None:
    outcomes = []
    for ticks in range(80):
        provider, hands = ScriptedProvider([WORK, WORK, reply("one")]), Hands()
        async with on_backend(SlowBackend() if slow else None, provider) as runtime:
            async with runtime.start(AGENT, "go", deps=hands) as run:
                for _ in range(ticks):
                    await asyncio.sleep(0)
                await run.stop_after_current()
                result = await run.result()
            await check_end(runtime, run.ref, result.outcome, result.reason)
            assert hands.ran == result.tool_calls == min(result.model_calls, 2)
            outcomes.append(result.model_calls)
            assert (result.reason == "stopped") == (result.model_calls < 3)
    assert outcomes == sorted(outcomes)
    assert outcomes[-1] == 3
    assert not slow or set(outcomes) == {1, 2, 3}


async def test_many_speak_at_once_and_nothing_is_lost() -> None:
    gate = Gate(WORK)
    provider = ScriptedProvider([gate, reply("fine")])
    async with on_backend(SlowBackend(), provider) as runtime, _started(runtime, deps=Hands()) as run:
        await gate.asked.wait()
        await asyncio.gather(*(run.steer(f"{n}") for n in range(20)))
        gate.go.set()
        await run.result()
    assert sorted(said(provider.requests[1])[3:]) == sorted(map(str, range(20)))


# -- telling


async def test_a_sink_that_is_slow_or_speaks_itself_leaves_the_events_in_their_order() -> None:
    class Speaking(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            await super().emit(event)
            if event.type in ("model.start", "model.end") and len(self.events) < 8:
                await runtime.steer("r", event.type)

    provider, sink = ScriptedProvider([reply("one"), reply("two"), reply("three")]), Speaking()
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(CHAT, "go", run_id="r", sink=sink)
        events = await check_end(runtime, "r", "completed")
    assert result.text == "three"
    types = [event.type for event in events]
    assert types[:4] == ["run.started", "model.start", "run.steered", "model.output"]
    assert types.index("model.end") + 1 == types.index("run.steered", 4)
    assert said(provider.requests[1]) == ["go", "=one", "model.start", "model.end"]


# -- runs that go on nowhere, or elsewhere


async def test_a_run_whose_process_died_has_it_when_it_is_resumed(ground: Ground) -> None:
    provider = ScriptedProvider([WORK])
    async with ground.mortal(provider, at=4) as (dying, medium):  # the tool ran, its answer is not stored
        run = asyncio.create_task(dying.run(AGENT, "go", run_id="r", deps=Hands()))
        await medium.dead.wait()
    await asyncio.wait({run})
    run.exception()
    ground.clock.advance(31)
    provider = ScriptedProvider([reply("fine")])
    async with ground.runtime(provider) as runtime:
        await runtime.steer("r", "one", author="Ada")
        await runtime.steer("r", "two")
        assert [row.lease for row in await runtime.unfinished()] == [None]
        await runtime.settle_call("r", 0, 0, author="host", result=al.ToolResult.ok("paid"))
        digests = list((await runtime._store.turn("r")).digests)
        result = await runtime.resume("r", AGENT, input="go", deps=Hands())
        assert (result.outcome, result.text) == ("completed", "fine")
        assert turn_of(runtime, "r").digests[: len(digests)] == digests
        assert not [event for event in await follow_all(runtime, "r") if event.type == "run.steered"]
    assert said(provider.requests[0]) == ["Be brief.", "go", "=work", "one", "two"]


async def test_a_stop_is_honoured_when_a_run_is_resumed(ground: Ground) -> None:
    async with ground.mortal(ScriptedProvider([WORK]), at=4, when="after") as (dying, medium):
        run = asyncio.create_task(dying.run(AGENT, "go", run_id="r", deps=Hands()))
        await medium.dead.wait()
    await asyncio.wait({run})
    run.exception()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        await runtime.stop_after_current("r")
        await runtime.stop_after_current("r")
        result = await runtime.resume("r", AGENT, deps=Hands())
        assert (result.outcome, result.reason, result.tool_calls) == ("incomplete", "stopped", 1)
        await runtime.stop_after_current("r")
        with pytest.raises(al.ConflictError, match="has not ended, got one that incomplete"):
            await runtime.steer("r", "more")
    async with ground.runtime(ScriptedProvider([])) as runtime:  # which has never seen it
        await runtime.stop_after_current("r")
        with pytest.raises(al.ConflictError, match="has not ended, got one that incomplete"):
            await runtime.steer("r", "more")
    assert len([fact for fact in await ground.facts() if isinstance(fact, StopAsked)]) == 1


async def test_a_run_that_was_stopped_before_it_asked_asks_nothing(ground: Ground) -> None:
    async with ground.mortal(ScriptedProvider([]), at=2) as (dying, medium):
        run = asyncio.create_task(dying.run(AGENT, "go", run_id="r", deps=Hands()))
        await medium.dead.wait()
    await asyncio.wait({run})
    run.exception()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        await runtime.steer("r", "more")
        await runtime.stop_after_current("r")
        result = await runtime.resume("r", AGENT, deps=Hands())
        assert (result.outcome, result.reason, result.model_calls, result.text) == ("incomplete", "stopped", 0, "")
        await check_end(runtime, "r", "incomplete", "stopped")


async def test_a_run_that_goes_on_in_another_process_is_not_spoken_to(ground: Ground) -> None:
    gate = Gate(reply("first"))
    async with ground.runtime(ScriptedProvider([gate])) as there, there.start(CHAT, "go", run_id="r") as run:
        await gate.asked.wait()
        async with ground.runtime(ScriptedProvider([])) as here:
            with pytest.raises(al.NotOwnerError):
                await here.steer("r", "more")
            with pytest.raises(al.NotOwnerError):
                await here.stop_after_current("r")
        gate.go.set()
        assert (await run.result()).text == "first"


async def test_a_run_that_was_taken_over_from_here_is_not_spoken_to_here(ground: Ground) -> None:
    """Neither by its driver, nor while a send of it still goes on here."""
    gate, later = Gate(reply("late")), Gate(reply("later"))
    provider = ScriptedProvider([gate, later])
    async with ground.runtime(provider, settle_seconds=0.01) as here:
        with pytest.raises(al.ModelPending):
            await here.run(AGENT, "go", run_id="left", checkpoint=True, wait=0.01)
        going = asyncio.ensure_future(here.run(CHAT, "go", run_id="driven"))
        await later.asked.wait()
        ground.clock.advance(31)
        async with ground.runtime(ScriptedProvider([])) as there:
            for ref in ("left", "driven"):
                await there.steer(ref, "more")
                with pytest.raises(al.NotOwnerError):
                    await here.steer(ref, "and more")
        later.go.set()
        with pytest.raises(al.NotOwnerError):
            await going
    steers = [fact for fact in await ground.facts() if isinstance(fact, Steered)]
    assert [(fact.run_id, fact.message.content) for fact in steers] == [("left", "more"), ("driven", "more")]


async def test_a_send_that_its_run_has_left_goes_on_and_the_message_waits_for_the_run(ground: Ground) -> None:
    gate = Gate(reply("first"))
    provider = ScriptedProvider([gate, reply("second")])
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=0.01)
        await runtime.steer("r", "more")
        pending = runtime._runs.sends.of("r")
        assert pending is not None
        gate.go.set()
        await asyncio.wait({pending.task})
        result = await runtime.resume("r", AGENT, deps=Hands())
        assert (result.text, result.model_calls) == ("second", 2)
    assert said(provider.requests[1]) == ["Be brief.", "go", "=first", "more"]


async def test_a_submitted_run_is_left_with_it_and_goes_on_with_it_after_a_restart(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "store.db")
    gate = Gate(WORK)
    async with ground.runtime(ScriptedProvider([gate])) as runtime:
        ref = await runtime.submit(AGENT, "go", deps=Hands(), conversation="c")
        await gate.asked.wait()
        await runtime.steer(ref, "more")
        gate.go.set()
        await runtime.aclose()
        with pytest.raises(al.InputError, match="expected an open runtime"):
            await runtime.steer(ref, "too late")
    provider = ScriptedProvider([reply("fine"), reply("next")])
    async with ground.runtime(provider) as runtime:
        turn = await runtime._store.turn(ref)
        assert turn.closed is None
        before = list(turn.digests)
        assert (await runtime.resume(ref, AGENT, deps=Hands())).text == "fine"
        assert turn_of(runtime, ref).digests[: len(before)] == before
        await runtime.run(AGENT, "again", conversation="c", deps=Hands())
    assert said(provider.requests[0]) == ["Be brief.", "go", "=work", "more"]
    assert said(provider.requests[1]) == ["Be brief.", "go", "=work", "more", "=fine", "again"]


class Releasing(SharedMemory):
    """A durable medium on which something is said while a lease is given up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.act: Callable[[], Awaitable[object]] | None = None
        self.acting: asyncio.Task[Any] | None = None

    async def release(self, lease: Lease) -> None:
        if self.act is not None and self.acting is None:
            self.acting = asyncio.ensure_future(self.act())
            for _ in range(5):
                await asyncio.sleep(0)
        await super().release(lease)


async def test_what_is_said_while_a_run_leaves_off_waits_until_it_has_and_is_stored_then() -> None:
    ground = Ground(None)
    ground._memory = Releasing(clock=ground.clock)
    async with ground.mortal(ScriptedProvider([reply("lost")]), at=3) as (dying, medium):
        run = asyncio.create_task(dying.run(CHAT, "go", run_id="r"))
        await medium.dead.wait()
    await asyncio.wait({run})
    run.exception()
    ground.clock.advance(31)
    provider = ScriptedProvider([reply("fine")])
    async with ground.runtime(provider) as runtime:
        ground._memory.act = lambda: runtime.steer("r", "more")
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.resume("r", CHAT)
        assert ground._memory.acting is not None
        await ground._memory.acting
        await runtime.settle_send("r", caught.value.sends[0], author="host")
        assert (await runtime.resume("r", CHAT)).text == "fine"
    assert said(provider.requests[0]) == ["go", "more"]


async def test_a_snapshot_holds_it_and_another_store_goes_on_from_it(tmp_path: Path) -> None:
    """(R85, R86)"""
    ground, other = Ground(tmp_path / "one.db"), Ground(tmp_path / "two.db")
    async with ground.runtime(ScriptedProvider([WORK, reply("one")])) as runtime:
        deps = Hands(lambda: runtime.steer("r", "more"))
        await runtime.run(AGENT, "go", conversation="c", run_id="r", deps=deps)
        history = await runtime.history("c")
    out = io.BytesIO()
    for place, copy in ((ground, write_snapshot), (other, read_snapshot)):
        backend = place.handle()
        await backend.open()
        out.seek(0)
        await copy(backend, out)  # type: ignore[operator]
        await backend.close()
    provider = ScriptedProvider([reply("two")])
    async with other.runtime(provider) as runtime:
        assert await runtime.history("c") == history
        await runtime.run(AGENT, "again", conversation="c", deps=Hands())
    assert said(provider.requests[0]) == ["Be brief.", "go", "=work", "more", "=one", "again"]


async def test_a_run_that_was_spoken_to_is_redacted_whole(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "store.db")
    provider = ScriptedProvider([reply("one"), reply("two"), reply("three")])
    async with ground.runtime(provider) as runtime:

        class Speaking(RecordingSink):
            async def emit(self, event: al.Event) -> None:
                if event.type == "model.start" and not self.events:
                    await runtime.steer("r", "a secret")
                await super().emit(event)

        await runtime.run(CHAT, "go", conversation="c", run_id="r", sink=Speaking())
        await runtime.redact("r", author="Ada")
        await runtime.run(CHAT, "again", conversation="c")
        with pytest.raises(al.ConflictError):
            await runtime.steer("r", "more")
        await runtime.stop_after_current("r")
    assert said(provider.requests[1]) == ["go", "=one", "a secret"]
    assert said(provider.requests[2]) == ["again"]
    assert b"a secret" not in (tmp_path / "store.db").read_bytes()


# -- with a context


@pytest.mark.parametrize("strategy", ["drop", "summarise"])
async def test_a_context_keeps_or_leaves_out_a_turn_with_all_that_was_said_in_it(strategy: Any) -> None:
    plan = al.ContextPlan(max_chars=500, strategy=strategy, summary=al.Summary(instruction="In short.", max_chars=40))
    agent = al.Agent(name="a", tools=[work], context=plan)

    def answer(request: al.ModelRequest) -> Any:
        if str(request.messages[-1].content).startswith("In short."):  # type: ignore[union-attr]
            asked.append(request)
            return reply("short")
        return reply("ok") if request.exchanges or str(request.messages[-1].content) == "more" else WORK  # type: ignore[union-attr]

    asked: list[al.ModelRequest] = []
    provider = ScriptedProvider([answer] * 20)
    async with al.Runtime(provider) as runtime:
        for turn in range(4):
            deps = Hands(lambda turn=turn: runtime.steer(f"r{turn}", "more"))  # type: ignore[misc]
            await runtime.run(agent, f"{turn}".ljust(150, "."), conversation="c", run_id=f"r{turn}", deps=deps)
        cuts = [turn_of(runtime, f"r{turn}").opened.context for turn in range(4)]
        assert cuts[0] is None
        assert cuts[3] is not None
        history = await runtime.history("c")
        assert sum(isinstance(message, UserMessage) and message.content == "more" for message in history) == 4
    for request in provider.requests:
        words = [word.rstrip(".") for word in said(request)]
        for at, word in enumerate(words):
            if word == "more":
                assert words[at - 1] == "=work"
                assert words[at - 2].isdigit()
    assert bool(asked) == (strategy == "summarise")


# -- what is refused


async def test_what_cannot_be_said_is_refused_and_nothing_is_stored() -> None:
    gate = Gate(reply("first"))
    async with al.Runtime(ScriptedProvider([gate]), limits=al.BookLimits(item_bytes=300)) as runtime:
        unentered = runtime.start(CHAT, "go")
        with pytest.raises(al.InputError, match="got a run that was not entered"):
            await unentered.steer("x")
        with pytest.raises(al.LostError):
            await runtime.steer("nobody", "x")
        with pytest.raises(al.LostError):
            await runtime.stop_after_current("nobody")
        async with runtime.start(CHAT, "go", run_id="r") as run:
            await gate.asked.wait()
            with pytest.raises(al.InputError, match="input: expected str, UserMessage or a tuple of parts, got int"):
                await run.steer(7)  # type: ignore[arg-type]
            with pytest.raises(al.AdmissionError):
                await run.steer("\ud800")
            with pytest.raises(al.LimitExceeded, match="item_bytes"):
                await run.steer("x" * 300)
            with pytest.raises(al.InputError, match="author"):
                await run.steer("x", author="")
            with pytest.raises(al.InputError, match="author"):
                await run.stop_after_current(author=7)  # type: ignore[arg-type]
            with pytest.raises(al.InputError, match="ref: expected the id of a run"):
                await runtime.steer(run, "x")  # type: ignore[arg-type]
            gate.go.set()
            assert (await run.result()).text == "first"
        assert not [fact for fact in await facts_of(runtime) if isinstance(fact, Steered)]


async def test_a_runners_model_call_is_not_spoken_to() -> None:
    async with al.Runtime(ScriptedProvider([reply("first")])) as runtime:
        await runtime.runner().invoke("x")
        (ref,) = [fact.run_id for fact in await facts_of(runtime) if isinstance(fact, OriginOpened)]
        for speaking in (runtime.steer(ref, "x"), runtime.stop_after_current(ref)):
            with pytest.raises(al.ConflictError):
                await speaking
