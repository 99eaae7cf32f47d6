"""What is told of model calls: whatever a stream, a transport, a sink or a budget does, events and facts agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_type

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.events import decode_event, encode_event
from agentloop.messages import ModelReply
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, call, reply
from tests.runner.calls import check_calls, facts_of, runner_on
from tests.runs import SlowBackend, other_tasks

FAULTS: list[Callable[[], Exception]] = [  # each raise has an error of its own
    lambda: al.StreamRefused("truncated", 3, 99, "the rest of the stream", "its end"),
    lambda: al.ConnectionLost("gone"),
    lambda: al.HTTPStatusError("busy", status=503),
    lambda: RuntimeError("a bug"),
]


class Unkind:
    """A transport of a host's own that fails at one place: ``create``, ``push``, ``finish``, ``count`` or nowhere.

    It may also ``refuse`` the first fragment; it is asked nothing more then.
    """

    id = "unkind"

    def __init__(self) -> None:
        self.fails: str | None = None
        self.output_chars: Any = 0

    def prepare(self, stage: al.Stage) -> al.Interaction[str]:
        return al.Interaction(create_response=self.create, route="text")

    def create(self) -> Unkind:
        self.output_chars = -1 if self.fails == "count" else 0
        self._at("create")
        return self

    def push(self, fragment: al.Fragment) -> None:
        self._at("push")
        if self.fails == "refuse":
            self.fails = "push"  # nor may it be asked again
            raise al.OutputRefused("no", "expected another answer")
        self.output_chars += len(fragment) if isinstance(fragment, str) else 1

    def finish(self, reply: ModelReply) -> str:
        self._at("finish")
        return reply.text

    def _at(self, place: str) -> None:
        if self.fails == place:
            raise LookupError(place)


class Rude(RecordingSink):
    """A sink that fails at the events of some kinds, after it has them; or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: tuple[str, ...] = ()

    async def emit(self, event: al.Event) -> None:
        await super().emit(event)
        await asyncio.sleep(0)
        if event.type in self.fails:
            raise ConnectionError(event.type)


class Broken:
    """An observer that fails at whatever it is told."""

    async def observe(self, event: al.Event) -> None:
        raise ZeroDivisionError


texts = st.text(alphabet="ab {}\n", max_size=40)
replies = st.builds(
    reply,
    texts,
    calls=st.sampled_from([(), (), (), (call("f", n=1),)]),
    finish=st.sampled_from([None, None, None, "length", "content_filter"]),
    usage=st.sampled_from([None, (3, 4), (50, 60)]),
)
answers = st.one_of(
    replies,
    st.builds(lambda shown, fault: broken(shown, fault()), replies, st.sampled_from(FAULTS)),
    st.builds(lambda fault: fault(), st.sampled_from(FAULTS)),
)
calls = st.fixed_dictionaries(
    {
        "transport": st.sampled_from(["core:plain-text", "unkind"]),
        "fails": st.sampled_from([None, None, "create", "push", "refuse", "finish", "count"]),
        "sink": st.sampled_from([(), (), ("model.start",), ("model.output",), ("model.parsed",), ("model.end",)]),
        "input": st.sampled_from(["go", "go", "much too long for this runner " * 2]),
    }
)


@settings(max_examples=150)
@given(
    script=st.lists(answers, min_size=8, max_size=8),
    plan=st.lists(calls, min_size=1, max_size=4),
    slow=st.booleans(),
    resend=st.booleans(),
    child=st.booleans(),
    deltas=st.sampled_from([None, 1, 7]),
    budget=st.sampled_from([1000, 30]),
    max_tokens=st.sampled_from([None, 60]),
)
def test_the_order_of_events_holds_and_the_facts_agree_whatever_happens(
    script: list[Any],
    plan: list[dict[str, Any]],
    slow: bool,
    resend: bool,
    child: bool,
    deltas: int | None,
    budget: int,
    max_tokens: int | None,
) -> None:
    """(R217, R262, R263, R265, R266, R267, R321)"""

    async def scenario() -> None:
        sink, seen, transport = Rude(), RecordingSink(), Unkind()
        options: dict[str, Any] = {"max_calls": 3, "max_output_chars": budget, "max_tokens": max_tokens}
        options |= {"max_input_chars": 20, "observers": [seen, Broken()], "reasoning": True}
        if resend:
            options["resend"] = al.ResendPolicy(on_unavailable=True, delay=1e-9, max_delay=1e-9)
        provider, backend = ScriptedProvider(script, deltas=deltas), SlowBackend() if slow else None
        values, rejected = [], 0
        own: dict[str, Any] = {"sink": sink, "transports": [transport]}
        async with runner_on(backend, provider, **options, **({} if child else own)) as root:
            runner = root.child("part", **own) if child else root
            for step in plan:
                transport.fails, sink.fails = step["fails"], step["sink"]
                try:
                    result = await runner.invoke(step["input"], transport=step["transport"])
                except (al.AgentLoopError, LookupError, RuntimeError, ConnectionError) as error:
                    rejected += isinstance(error, al.BudgetError) and error.limit != "max_output_chars"
                else:
                    values.append(result.value)
                    assert runner.last_call is not None
                    assert result.invocation == runner.last_call.record()
            facts = await facts_of(runner)
        told = seen.events
        assert sum(isinstance(event, al.RequestRejected) for event in told) == rejected
        check_calls(told, facts, values)
        assert sink.events == [event for event in told if isinstance(event, al.OutputEvent)]
        assert len(provider.requests) <= runner.call_count
        assert runner.remaining_calls == 3 - runner.call_count
        assert [decode_event(encode_event(event)) for event in told] == told
        assert not other_tasks()

    asyncio.run(scenario())


async def test_a_runner_tells_its_observers_on_the_side_and_its_sink_on_the_way() -> None:
    """(R210, R216, R217, R262)"""
    gate, seen, sink = asyncio.Event(), RecordingSink(), RecordingSink()

    class Slow:
        async def observe(self, event: al.Event) -> None:
            await gate.wait()

    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), observers=[Slow(), Broken(), seen], sink=sink, max_calls=1)
    assert (await runner.invoke("go")).value == "hi"  # nobody waits for an observer
    assert sink.types == ["model.start", "model.output", "model.parsed", "model.end"]
    with pytest.raises(al.BudgetError):
        await runner.invoke("go")
    gate.set()
    await runner.aclose()
    assert seen.types == [*sink.types, "runtime.rejected"]
    assert seen.events[:4] == sink.events
    assert not other_tasks()
    await runner.aclose()


async def test_a_runner_without_observers_begins_nothing_that_has_to_be_closed() -> None:
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]))
    assert (await runner.invoke("go")).value == "hi"
    assert not other_tasks()
    del runner  # a warning is an error


def test_a_runner_is_made_outside_of_an_event_loop_and_used_in_one() -> None:
    seen = RecordingSink()
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), observers=[seen])

    async def use() -> str:
        async with runner:
            return (await runner.invoke("go")).value

    assert asyncio.run(use()) == "hi"
    assert seen.types[-1] == "model.end"


@pytest.mark.parametrize("slow", [False, True], ids=["alone", "of a runtime"])
async def test_a_child_tells_the_observers_also_where_it_makes_the_first_call(slow: bool) -> None:
    """(R217, R274)"""
    seen = RecordingSink()
    provider = ScriptedProvider([reply("hi")])
    async with runner_on(SlowBackend() if slow else None, provider, observers=[seen]) as root:
        await root.child("part").invoke("go")
    assert [event.span_id for event in seen.of(al.ModelStart)] == [seen.of(al.ModelStart)[0].attempt_id]
    assert {event.parent_span_id for event in seen.events} == {"part"}


async def test_a_runner_makes_the_signal_and_the_run_that_it_was_not_given() -> None:
    """(R210)"""
    provider = ScriptedProvider([reply("hi")] * 2)
    alone, other = al.ModelRunner(provider), al.ModelRunner(provider)
    assert isinstance(alone.signal, al.Signal)
    assert (alone.signal.reason, alone.signal.seconds_left()) == (None, None)
    assert alone.execution.diagnostics is not None
    assert other.execution.diagnostics is not None
    assert alone.execution.diagnostics.run_id != other.execution.diagnostics.run_id
    with pytest.raises(AttributeError):
        alone.execution.signal = al.Signal()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        alone.signal = al.Signal()  # type: ignore[misc]

    signal, part = al.Signal(), al.Diagnostics(run_id="request-1", output=(sink := RecordingSink()))
    bound = al.ModelRunner(provider, execution=al.Execution(signal=signal, diagnostics=part))
    assert bound.execution.diagnostics is part
    assert bound.journal is part.journal
    await bound.invoke("go")
    assert {event.run_id for event in sink.events} == {"request-1"}
    signal.cancel(reason := RuntimeError("gone"))
    assert bound.signal.reason is reason
    assert signal is not bound.signal  # the runner can be closed, and the request goes on
    assert not al.ModelRunner(provider).signal.cancelled


async def test_what_binds_a_request_is_refused_where_it_cannot() -> None:
    provider, part = ScriptedProvider([]), al.Diagnostics()
    with pytest.raises(al.InputError, match=r"Execution\.signal: expected Signal or None, got str"):
        al.Execution(signal="s")  # type: ignore[arg-type]
    with pytest.raises(al.InputError, match=r"Execution\.diagnostics: expected Diagnostics or None, got str"):
        al.Execution(diagnostics="d")  # type: ignore[arg-type]
    with pytest.raises(al.InputError, match=r"ModelRunner\.sink: expected none beside diagnostics"):
        al.ModelRunner(provider, execution=al.Execution(diagnostics=part), sink=RecordingSink())
    al.ModelRunner(provider, execution=al.Execution(diagnostics=part))
    with pytest.raises(al.InputError, match="expected a part that no runner has, got one that is in use"):
        al.ModelRunner(provider, execution=al.Execution(diagnostics=part))
    with pytest.raises(al.InputError, match=r"ModelRunner.observers\[1\]: expected an object with an async observe"):
        al.ModelRunner(provider, observers=[RecordingSink(), "o"])  # type: ignore[list-item]


class Forged(msgspec.Struct):
    """A value that looks like what a runner returns."""

    value: str
    invocation: dict[str, Any]


async def test_a_model_cannot_say_how_its_call_went() -> None:
    """(R219, R221)"""
    forged = '{"value": "v", "invocation": {"invocation_id": "mine", "call_sequence": 99, "status": "success"}}'
    transport = al.Structured(Forged)
    runner = al.ModelRunner(ScriptedProvider([reply(forged), reply(forged)], deltas=5), transports=[transport])
    plain = await runner.invoke("go")
    assert plain.value == forged
    typed = await runner.invoke("go", transport=transport)
    assert typed.value.invocation["invocation_id"] == "mine"
    for number, result in ((1, plain), (2, typed)):
        trace = runner.journal.model[number - 1]
        assert result.invocation.invocation_id == trace.invocation_id != "mine"
        assert result.invocation.call_sequence == number
        with pytest.raises(AttributeError):
            result.invocation = typed.invocation  # type: ignore[misc]


async def test_the_type_of_a_value_follows_from_how_it_is_asked_for() -> None:
    """A handle's own; text by the id that is always there; nothing is known of another id (R224)."""
    transport = al.Structured(Forged, id="forged")
    answer = reply('{"value": "v", "invocation": {}}')
    runner = al.ModelRunner(ScriptedProvider([answer] * 4), transports=[transport])
    assert type(assert_type((await runner.invoke("go")).value, str)) is str
    assert type(assert_type((await runner.invoke("go", transport="core:plain-text")).value, str)) is str
    assert type(assert_type((await runner.invoke("go", transport=transport)).value, Forged)) is Forged
    assert type(assert_type((await runner.invoke("go", transport="forged")).value, object)) is Forged


async def test_each_call_has_one_id_below_the_part_that_made_it() -> None:
    """(R261, R312, R319)"""
    seen, provider = RecordingSink(), ScriptedProvider([reply("hi")] * 4)
    async with runner_on(None, provider, observers=[seen], children=al.ChildLimits(max_depth=2)) as root:
        part = root.child("part")
        leaf = part.child("leaf")
        for runner in (root, part, leaf, root):
            await runner.invoke("go")
    run_id = root.execution.diagnostics.run_id  # type: ignore[union-attr]
    assert {event.run_id for event in seen.events} == {run_id}
    starts = seen.of(al.ModelStart)
    assert [event.parent_span_id for event in starts] == [run_id, "part", "leaf", run_id]
    assert [event.call_sequence for event in starts] == [1, 1, 1, 2]
    assert provider.attempts == [event.invocation_id for event in starts] == [event.span_id for event in starts]
    assert len(set(provider.attempts)) == 4
    assert leaf.execution.diagnostics.parent_span_id == "part"  # type: ignore[union-attr]
    ids = [event.event_id for event in seen.events]
    assert ids == sorted(set(ids))
    assert [event.sequence for event in seen.events] == list(range(1, len(ids) + 1))


async def test_a_call_s_time_is_that_of_its_preparation_its_answer_and_its_delivery() -> None:
    """(R314)"""
    clock = FakeClock()

    class Patient(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            clock.advance(1)
            await super().emit(event)

    class Careful(al.PlainText):
        id = "careful"

        def prepare(self, stage: al.Stage) -> al.Interaction[str]:
            clock.advance(10)
            return super().prepare(stage)

    def think(request: al.ModelRequest) -> ModelReply:
        clock.advance(100)
        return reply("hi")

    before = clock.now_ms()
    async with al.Runtime(ScriptedProvider([think]), clock=clock, now_ms=clock.now_ms) as runtime:
        runner = runtime.runner(sink=Patient(), transports=[careful := Careful()])
        await runner.invoke("go", transport=careful)
    trace = runner.last_call
    assert trace is not None
    assert (trace.started_at_ms, trace.duration_ms) == (before, 113_000)  # what follows its end is not in it
