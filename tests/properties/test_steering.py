"""Runs that are spoken to at any time, by processes that die at any time, against the order of their facts alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.exchange import (
    Book,
    Fact,
    OriginOpened,
    ReceiptMint,
    ReplyTaken,
    RunClosed,
    SendEnded,
    SendStarted,
    SlotMoved,
    Steered,
    StopAsked,
    restore,
)
from agentloop.messages import ModelExchange
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.runs import turn_of


def said(request: al.ModelRequest) -> list[str]:
    """What a model reads, in order: ``=`` is a reply with its feedback."""
    return [
        f"={message.reply.text}" if isinstance(message, ModelExchange) else str(message.content)
        for message in (*request.messages, *request.exchanges)
    ]


def expected(facts: Sequence[Fact]) -> dict[str, list[str]]:
    """What each attempt's request holds, told from the order of the facts and from nothing else."""
    held: dict[str, list[str]] = {}
    words: list[str] = []
    waiting: list[str] = []
    refused = False
    text, open_calls = "", 0
    for fact in facts:
        match fact:
            case OriginOpened():
                words = [str(message.content) for message in fact.messages]  # type: ignore[union-attr]
            case Steered():
                waiting.append(str(fact.message.content))
            case SendStarted():
                if not refused:
                    words, waiting = words + waiting, []
                held[fact.attempt_id] = list(words)
            case SendEnded():
                refused = refused or (fact.outcome == "failed" and fact.author is None)
            case ReplyTaken():
                refused, text, open_calls = False, f"={fact.reply.text}", len(fact.reply.calls)
                if not open_calls:
                    words.append(text)
            case SlotMoved() if fact.feedback is not None:
                open_calls -= 1
                if not open_calls:
                    words.append(text)
    return held


class World:
    """What happens in one life of a process: a model and a tool, each of which lets a user speak meanwhile."""

    def __init__(self, answers: Sequence[str], acts: Sequence[str]) -> None:
        self.answers, self.acts = list(answers), list(acts)
        self.spoken = 0
        self.runtime: al.Runtime | None = None

    async def act(self) -> None:
        """The next thing that a user does."""
        assert self.runtime is not None
        what = self.acts.pop(0) if self.acts else "nothing"
        if what == "nothing":
            return
        try:
            if what == "stop":
                await self.runtime.stop_after_current("r")
            else:
                for _ in range(1 if what == "steer" else 2):
                    self.spoken += 1
                    await self.runtime.steer("r", f"s{self.spoken}")
        except al.ConflictError as error:
            assert "asked to stop" in str(error)  # noqa: PT017  # no other refusal while it goes on

    async def answer(self, request: al.ModelRequest) -> Any:
        await self.act()
        what = self.answers.pop(0) if self.answers else "final"
        if what == "busy":
            return al.HTTPStatusError("busy", status=429)
        if what == "call":
            return reply(f"{len(said(request))}", calls=[call("work"), call("work")])
        return reply(f"{len(said(request))}", finish="length" if what == "length" else None)


@al.tool(idempotent=True)
async def work(ctx: al.ToolContext[World]) -> str:
    """Work, while somebody may speak."""
    await ctx.deps.act()
    return "done"


AGENT = al.Agent(name="a", tools=[work])


async def no_time(seconds: float) -> None:
    """A rest that is over at once."""


async def settle(runtime: al.Runtime) -> None:
    for item in await runtime.unsettled():
        if item.kind == "send":
            await runtime.settle_send("r", item.effect_id, author="host")


@settings(max_examples=120, deadline=None)
@given(
    answers=st.lists(st.sampled_from(["call", "call", "final", "length", "busy"]), max_size=6),
    acts=st.lists(st.sampled_from(["nothing", "steer", "steer", "twice", "stop"]), max_size=12),
    deaths=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["before", "after"])), max_size=3),
    between=st.lists(st.sampled_from(["nothing", "steer", "stop"]), min_size=3, max_size=3),
)
def test_a_run_reads_what_was_said_in_the_order_of_its_facts_whoever_dies(
    answers: list[str], acts: list[str], deaths: list[tuple[int, Any]], between: list[str]
) -> None:
    """Requests, digests and ends follow from the facts; nothing is lost or read twice (R76, R86, R88)."""
    asyncio.run(_lives(World(answers, acts), deaths, between))


async def _lives(world: World, deaths: list[tuple[int, Any]], between: list[str]) -> None:
    ground = Ground(None)
    provider = ScriptedProvider([world.answer] * 40)
    options: dict[str, Any] = {"resend": al.ResendPolicy(), "sleep": no_time}
    for (at, when), what in zip(deaths, between, strict=False):
        async with ground.mortal(provider, at=at, when=when, **options) as (runtime, medium):
            world.runtime = runtime
            going = asyncio.ensure_future(_go(runtime, world))
            dying = asyncio.ensure_future(medium.dead.wait())
            await asyncio.wait({going, dying}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({going})
        dying.cancel()
        if not going.cancelled():
            going.exception()
        ground.clock.advance(31)
        async with ground.runtime(ScriptedProvider([]), **options) as runtime:
            known = {row.run_id for row in await runtime.unfinished()}
            if "r" in known and what != "nothing":
                world.runtime, acts, world.acts = runtime, world.acts, [what]
                await world.act()
                world.acts = acts
    async with ground.runtime(provider, **options) as runtime:
        world.runtime = runtime
        await _go(runtime, world)
        digests = list(turn_of(runtime, "r").digests)
    facts = await ground.facts()
    _hold(facts, provider)
    book = Book(ReceiptMint())
    restore(book, facts)
    assert book.turn("r").digests == digests


async def _go(runtime: al.Runtime, world: World) -> None:
    """Begin the run, or take it up where another process left it; its end is a fact, whatever it is."""
    await settle(runtime)
    try:
        await runtime.run(AGENT, "go", run_id="r", deps=world)
    except al.HTTPStatusError:  # refused more often than it is sent once more
        pass
    except al.OutcomeError as error:  # and so it ended in an earlier life
        assert error.outcome == "failed"  # noqa: PT017


def _hold(facts: list[Fact], provider: ScriptedProvider) -> None:
    held = expected(facts)
    for attempt, request in zip(provider.attempts, provider.requests, strict=True):
        assert said(request) == held[attempt]
    closed = facts[-1]
    assert isinstance(closed, RunClosed)
    stopped = any(isinstance(fact, StopAsked) for fact in facts)
    steers = [str(fact.message.content) for fact in facts if isinstance(fact, Steered)]
    assert len(steers) == len(set(steers))
    last = list(held.values())[-1] if held else []
    if closed.outcome in ("completed", "incomplete") and not stopped:
        assert [word for word in last if word.startswith("s")] == steers
    if closed.reason == "stopped":
        assert stopped
    assert closed.outcome in ("completed", "incomplete", "limit_reached", "failed")
