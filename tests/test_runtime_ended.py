"""A run that goes on nowhere is ended by cancelling it, and its conversation can go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import RunClosed, SendEnded, SlotMoved
from agentloop.testing import ScriptedProvider, reply
from tests.mortal import Ground
from tests.runs import pairs_in
from tests.test_runtime_deaths import AGENT, APPENDS, FAILURE, POINTS, UNSETTLED, Ran, When, model


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


async def died(ground: Ground, *, at: int, provider: Any = None) -> None:
    """Run ``r`` on conversation ``c``, whose process died before this append, and whose lease is over."""
    async with ground.mortal(provider or model(), at=at) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", conversation="c", deps=[])
        await medium.dead.wait()
    ground.clock.advance(31)


@pytest.mark.parametrize(("at", "when"), POINTS)
async def test_a_run_is_ended_wherever_its_process_died(ground: Ground, at: int, when: When) -> None:
    """What nobody knows is decided by somebody, or nothing is written (R139, R133, R134)."""
    ran: list[Ran] = []
    async with ground.mortal(model(), at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(AGENT, "go", run_id="r", conversation="c", deps=ran))
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = ScriptedProvider([reply("still here")])
        async with ground.runtime(provider) as runtime:
            if (at, when) == (1, "before"):
                with pytest.raises(al.LostError, match="no run 'r'"):
                    await runtime.cancel("r", author="Ann")
            else:
                await ended(ground, runtime, UNSETTLED.get((at, when)), over=(at, when) == (APPENDS, "after"))
                assert provider.requests == []
                result = await runtime.run(AGENT, "again", conversation="c", deps=ran)
                assert result.text == "still here"
                told = dict(pairs_in(provider.requests[0]))
                assert list(told) == ["1", "2", "3"][: len(told)]
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def ended(
    ground: Ground, runtime: al.Runtime, unknown: tuple[str, str | None, str | None] | None, *, over: bool
) -> None:
    before = await ground.facts()
    if unknown is None:
        await runtime.cancel("r")
    else:
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.cancel("r")
        assert len(caught.value.sends + caught.value.calls) == 1
        assert caught.value.calls == ((unknown[2],) if unknown[0] == "call" else ())
        assert await ground.facts() == before
        assert [row.lease for row in await runtime.unfinished()] == [None]
        await runtime.cancel("r", author="Ann")
    facts = await ground.facts()
    assert facts[: len(before)] == before
    added = facts[len(before) :]
    if over:
        assert added == []
    else:
        end = added[-1]
        assert isinstance(end, RunClosed)
        assert (end.outcome, end.reason) == ("cancelled", "cancelled")
        with pytest.raises(al.OutcomeError, match=r"got cancelled \(cancelled\)"):
            await runtime.result("r")
    authors = [fact.author for fact in added if isinstance(fact, SendEnded | SlotMoved) and fact.author is not None]
    assert authors == ([] if unknown is None else ["Ann"])
    await runtime.cancel("r")
    await runtime.cancel("r", author="Bob")
    assert (await ground.facts(), await runtime.unfinished()) == (facts, [])


async def test_the_model_reads_what_became_of_its_calls(ground: Ground) -> None:
    await died(ground, at=4)  # look has run, and nobody knows; pay was not begun
    provider = ScriptedProvider([reply("I see.")])
    async with ground.runtime(provider) as runtime:
        await runtime.cancel("r", author="Ann")
        await runtime.run(AGENT, "again", conversation="c", deps=[])
        assert pairs_in(provider.requests[0]) == [
            ("1", "Error: the run was cancelled; whether the effect of this call happened is unknown."),
            ("2", "This call was not run: the run was cancelled."),
        ]
        first, second = runtime._store.book.turn("r").entries[0].slots
        assert ((first.state, first.effect_id), second.state) == (("unknown", "r/0.0"), "skipped")


async def test_a_run_whose_owner_lives_is_left_alone(ground: Ground) -> None:
    async with ground.mortal(model(), at=5) as (owner, medium):
        await owner.submit(AGENT, "go", run_id="r", deps=[])
        await medium.dead.wait()
        ground.clock.advance(10)
        before = await ground.facts()
        async with ground.runtime(model()) as runtime:
            with pytest.raises(al.NotOwnerError) as caught:
                await runtime.cancel("r", author="Ann")
            assert (caught.value.owner, caught.value.seconds_left) == (owner._runs._owner, 20.0)
        assert await ground.facts() == before


async def test_an_end_that_was_begun_stays_the_end(ground: Ground) -> None:
    """(R142)"""
    await died(ground, at=4, provider=ScriptedProvider([FAILURE]))  # its failure is stored, its end is not
    async with ground.runtime(model()) as runtime:
        await runtime.cancel("r")
        with pytest.raises(al.OutcomeError, match=r"got failed \(connection_lost\)"):
            await runtime.result("r")


async def test_a_run_that_waits_to_be_settled_here_is_ended(ground: Ground) -> None:
    await died(ground, at=5)
    async with ground.runtime(model()) as runtime:
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", AGENT, deps=[])
        with pytest.raises(al.UnsettledError):
            await runtime.cancel("r")
        await runtime.cancel("r", author="Ann")
        for ask in (runtime.result("r"), runtime.resume("r", AGENT, deps=[])):
            with pytest.raises(al.OutcomeError, match="got cancelled"):
                await ask


@pytest.mark.parametrize("first", ["cancel", "resume"])
async def test_who_cancels_and_who_resumes_at_once_take_turns(ground: Ground, first: str) -> None:
    await died(ground, at=4)
    ran: list[Ran] = []
    async with ground.runtime(model()) as runtime:
        works = [
            runtime.cancel("r", author="Ann"),
            runtime.resume("r", AGENT, deps=ran),
            runtime.cancel("r", author="B"),
        ]
        if first == "resume":
            works[:2] = reversed(works[:2])
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) in (
            ["NoneType", "NoneType", "OutcomeError"],
            ["NoneType", "NoneType", "RunCancelled"],
        )
        assert [one.tool for one in ran] in ([], ["look"])
    (end,) = [fact for fact in await ground.facts() if isinstance(fact, RunClosed)]
    assert end.outcome == "cancelled"


async def test_of_two_processes_that_cancel_one_ends_it(ground: Ground) -> None:
    await died(ground, at=5)
    async with ground.runtime(model()) as one, ground.runtime(model()) as two:
        outcomes = await asyncio.gather(
            one.cancel("r", author="one"), two.cancel("r", author="two"), return_exceptions=True
        )
        assert {type(outcome).__name__ for outcome in outcomes} <= {"NoneType", "NotOwnerError"}
        assert None in outcomes
    ends = [fact for fact in await ground.facts() if isinstance(fact, RunClosed)]
    assert len(ends) == 1


@pytest.mark.parametrize(("at", "when"), [(1, "before"), (1, "after"), (2, "before"), (2, "after")])
async def test_who_cancels_may_die_as_well(ground: Ground, at: int, when: When) -> None:
    """Its decision and the run's end are one write: that the call is lost, and then all of it or nothing."""
    await died(ground, at=5)
    before = await ground.facts()
    async with ground.mortal(model(), at=at, when=when) as (dying, medium):
        cancelling = asyncio.create_task(dying.cancel("r", author="Ann"))
        await medium.dead.wait()
        written = len(await ground.facts()) - len(before)
        assert written == {(1, "before"): 0, (1, "after"): 1, (2, "before"): 1, (2, "after"): 3}[at, when]
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            await runtime.cancel("r", author="Bob")
        medium.bury()
        await asyncio.wait({cancelling})
        cancelling.exception()
    added = (await ground.facts())[len(before) :]
    assert [type(fact) for fact in added] == [SlotMoved, SlotMoved, RunClosed]
    assert [getattr(fact, "author", None) for fact in added[:2]] == [None, "Ann" if written == 3 else "Bob"]


@pytest.mark.parametrize("author", ["", "x" * 129, 3])
async def test_an_author_has_a_name(ground: Ground, author: Any) -> None:
    async with ground.runtime(model()) as runtime:
        with pytest.raises(al.InputError, match="author: expected a string of 1 to 128 characters"):
            await runtime.cancel("r", author=author)
