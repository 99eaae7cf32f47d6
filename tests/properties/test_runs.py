"""Runs of every kind: whatever a model, a stream, a tool, a sink or a limit does, the order of events holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.messages import ModelReply
from agentloop.testing import ScriptedCall, ScriptedProvider, broken, call, reply
from tests.runs import NEXT, SlowBackend, check_end, check_order, on_backend, pairs_in, turn_of

FAULTS: list[Callable[[], Exception]] = [  # each raise has an error of its own
    lambda: al.StreamRefused("truncated", 3, 99, "the rest of the stream", "its end"),
    lambda: al.ConnectionLost("gone"),
    lambda: al.HTTPStatusError("busy", status=503),
    lambda: RuntimeError("a bug"),
]


class Bag:
    """Deps: which calls ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []


@al.tool
async def works(ctx: al.ToolContext[Bag], n: int = 0) -> str:
    """Works, and tells how far it is."""
    ctx.deps.ran.append(ctx.effect_id)
    for at in range(n):
        await ctx.progress(f"step {at}")
    return "x" * n


@al.tool(errors=(KeyError,))
async def fails(ctx: al.ToolContext[Bag]) -> str:
    """Fails as it declares."""
    ctx.deps.ran.append(ctx.effect_id)
    raise KeyError("k")


@al.tool
async def crashes(ctx: al.ToolContext[Bag]) -> str:
    """Raises what it does not declare."""
    ctx.deps.ran.append(ctx.effect_id)
    raise LookupError("l")


@al.tool(timeout=0.001)
async def hangs(ctx: al.ToolContext[Bag]) -> str:
    """Never returns."""
    ctx.deps.ran.append(ctx.effect_id)
    await asyncio.Event().wait()
    return "never"


TOOLS = [works, fails, crashes, hangs]


class Failing:
    """A sink that raises at its n-th event."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.types: list[str] = []

    async def emit(self, event: al.OutputEvent) -> None:
        self.types.append(event.type)
        self.left -= 1
        if self.left == 0:
            raise ConnectionResetError("the client went")


calls = st.lists(
    st.one_of(
        st.integers(0, 3).map(lambda n: call("works", n=n)),
        st.sampled_from([call("fails"), call("crashes"), call("hangs"), call("nobody")]),
        st.sampled_from(["{", "[]", '{"n": "x"}', "", '{"n": 1, "n": 1}']).map(
            lambda text: call("works", arguments_text=text)
        ),
    ),
    max_size=3,
)


def answer(text: str, asked: list[ScriptedCall], finish: str | None, usage: tuple[int, int] | None) -> ModelReply:
    return reply(text, calls=asked, finish=finish, usage=usage, reasoning="hm" if usage else None)


replies = st.builds(
    answer,
    st.text(max_size=12),
    calls,
    st.sampled_from([None, None, None, "stop", "length", "content_filter", "odd"]),
    st.none() | st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
entries = st.one_of(
    replies,
    replies,
    replies,
    st.sampled_from(FAULTS).map(lambda make: make()),
    st.builds(lambda shown, make: broken(shown, make()), replies, st.sampled_from(FAULTS)),
)
limits = st.builds(
    al.LoopLimits,
    max_model_calls=st.integers(1, 4),
    max_tool_calls=st.none() | st.integers(0, 4),
    max_tokens=st.none() | st.integers(1, 120),
    max_equal_calls=st.none() | st.integers(1, 2),
    max_parallel_tools=st.integers(1, 3),
    request_bytes=st.sampled_from([2**21, 6_000, 10_000]),
    collection_bytes=st.sampled_from([2**23, 6_000]),
    reply_bytes=st.sampled_from([2**16, 420]),
    max_wire_request_bytes=st.none() | st.sampled_from([400, 6_000]),
)


@settings(max_examples=150)
@given(
    script=st.lists(entries, min_size=1, max_size=4),
    limits=limits,
    sink_fails_at=st.none() | st.integers(1, 12),
    deltas=st.none() | st.integers(1, 4),
    slow=st.booleans(),
    reasoning=st.booleans(),
)
def test_the_order_of_events_holds_whatever_happens(
    script: list[Any], limits: al.LoopLimits, sink_fails_at: int | None, deltas: int | None, slow: bool, reasoning: bool
) -> None:
    """(R62, R265, R266, R319, R321)"""
    asyncio.run(one_run(script, limits, sink_fails_at, deltas, slow, reasoning))


async def one_run(
    script: list[Any], limits: al.LoopLimits, sink_fails_at: int | None, deltas: int | None, slow: bool, reasoning: bool
) -> None:
    bag, sink = Bag(), None if sink_fails_at is None else Failing(sink_fails_at)
    provider = ScriptedProvider([*script, *[reply("the end")] * 5], deltas=deltas)
    agent = al.Agent(name="a", tools=TOOLS, limits=limits)
    options: Any = {"deps": bag, "sink": sink, "conversation": "c", "run_id": "r", "reasoning": reasoning}
    async with on_backend(SlowBackend() if slow else None, provider) as runtime:
        live: list[al.Event] = []
        raised: Exception | None = None
        result = None
        async with runtime.start(agent, "go", **options) as run:
            try:
                async for event in run:
                    live.append(event)  # noqa: PERF401  # what came before an error is kept
                result = await run.result()
            except (al.StreamRefused, al.ProviderError, RuntimeError, al.ToolCrashed, ConnectionResetError) as error:
                raised = error
        turn = turn_of(runtime, "r")
        outcome = turn.closed.outcome
        await check_end(runtime, "r", outcome, parallel=limits.max_parallel_tools)
        check_order(live, parallel=limits.max_parallel_tools)
        assert (outcome == "failed") == (raised is not None)
        if sink is not None:
            check_sink(sink.types)

        executed = [e.invocation_id for e in live if isinstance(e, al.ToolStarted)]
        assert bag.ran == executed
        assert len(set(executed)) == len(executed)
        starts = [event for event in live if isinstance(event, al.ModelStart)]
        assert len(provider.requests) in (len(starts), len(starts) - 1)  # all but one whose start was not delivered
        assert len(starts) <= limits.max_model_calls
        assert limits.max_tool_calls is None or len(executed) <= limits.max_tool_calls
        if result is not None:
            assert (result.outcome, result.reason) == (outcome, turn.closed.reason)
            assert (result.model_calls, result.tool_calls) == (len(starts), len(executed))
            stood = turn.entries[-1].reply.text if turn.entries else ""
            assert result.text == stood
        for entry in turn.entries:
            if entry.reply.termination.kind != "completed":
                assert all(slot.state == "skipped" for slot in entry.slots)

        provider._script.clear()
        provider._script.append(reply("and on"))
        after = await runtime.run(al.Agent(name="b"), "again", conversation="c", run_id="after")
        stored = [(slot.call.id, slot.feedback.text) for entry in turn.entries for slot in entry.slots]
        assert pairs_in(provider.requests[-1]) == stored
        assert after.model_calls == 1


def check_sink(types: list[str]) -> None:
    """A sink sees whole model calls, one after the other."""
    state = "idle"
    for kind in types:
        state = NEXT[state][kind]
    assert state == "idle"


def test_the_reference_order_refuses_what_is_out_of_order() -> None:
    """The table that the tests hold runs to can fail."""
    fields: dict[str, Any] = {"occurred_at_ms": 1, "run_id": "r", "span_id": "r"}
    begun = al.RunStarted(
        event_id=al.event_id("r", 1), agent="a", conversation=None, origin_id="o", catalogue_digest="d", **fields
    )
    over = al.RunEnded(
        event_id=al.event_id("r", 2),
        outcome="completed",
        reason=None,
        model_calls=0,
        tool_calls=0,
        usage=None,
        duration_ms=0,
        **fields,
    )
    check_order([begun, over])
    for wrong in ([begun], [over], [begun, begun, over], [begun, over, over]):
        with pytest.raises(AssertionError):
            check_order(wrong)
